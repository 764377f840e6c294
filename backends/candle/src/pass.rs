//! One forward pass over a batch: which rows are computed, and which are known from earlier passes.
//!
//! Input: a batch, the rows that its answers need, and the [`PrefixCache`]. Output: keys and values of all
//! the batch's tokens in every layer, computed rows before known ones; the way of recurrent layers through
//! the computed rows; and the computed rows and states that are worth keeping, as [`Fresh`]. What must hold:
//! every row that an answer needs is computed, and so are all later rows of its texts; the pass only reads
//! the cache, so a failed pass leaves the cache unchanged.

use crate::{
    delta::{SegmentRows, Walk},
    kept::{Kept, KeptRow},
    operations::{Operations, Result},
    prefix_cache::{Cursor, Fresh, FreshPrefix, PrefixCache},
};
use std::collections::BTreeSet;
use text_embeddings_backend_core::{BackendError, Batch, RowsToCompute, Segment};

/// A batch on its way through the layers.
pub(crate) struct Pass<'a, K> {
    batch: &'a Batch,
    cache: &'a PrefixCache<K>,
    computed: Vec<usize>,
    places: Vec<usize>,
    /// The known rows' places in the cache, in the order of the rows.
    known: Vec<Cursor>,
    /// Their keys and values.
    known_rows: Vec<KeptRow<'a, K>>,
    walk: Walk,
    /// The places in the cache of the states that the walk begins with.
    known_states: Vec<Cursor>,
    /// Texts whose first row is known.
    known_texts: usize,
    fresh: Fresh<K>,
    /// The layer with keys that the next call of [`Pass::exchange`] is for.
    layer: usize,
}

/// The rows of a batch that the cache knows.
#[derive(Default)]
struct KnownRows {
    computed: Vec<usize>,
    known: Vec<Cursor>,
    /// The rows of `known`.
    rows: Vec<usize>,
    /// For each segment, the place in the cache after its last known row, if it has known rows.
    ends: Vec<Option<Cursor>>,
    /// Rows that the tree has, but whose texts then leave it: later texts may leave it there, too.
    forks: BTreeSet<usize>,
}

impl KnownRows {
    /// `is_needed` says of each row whether an answer needs its hidden state.
    fn from_cache<K: Kept>(batch: &Batch, cache: &PrefixCache<K>, is_needed: &[bool]) -> Self {
        let mut found = Self::default();
        // For each segment, the place in the cache after its last row, if all its rows are known.
        let mut wholes: Vec<Option<Cursor>> = Vec::with_capacity(batch.segments().len());
        for segment in batch.segments() {
            let mut cursor = segment.parent.map_or(Some(Cursor::START), |parent| wholes[parent]);
            let mut steps = Vec::new();
            for row in segment.rows.clone() {
                if is_needed[row] {
                    break;
                }
                cursor = cursor.and_then(|cursor| cache.step(cursor, batch.token_ids()[row]));
                let Some(cursor) = cursor else { break };
                steps.push(cursor);
            }
            if cache.has_states() {
                if !steps.is_empty() && steps.len() < segment.rows.len() {
                    found.forks.insert(segment.rows.start + steps.len() - 1);
                }
                steps.truncate(
                    steps.iter().rposition(|&step| cache.has_state(step)).map_or(0, |last| last + 1),
                );
            }
            let (known, computed) = (segment.rows.start..segment.rows.start + steps.len(), segment.rows.end);
            found.computed.extend(known.end..computed);
            found.rows.extend(known);
            found.ends.push(steps.last().copied());
            let is_whole = steps.len() == segment.rows.len();
            wholes.push(if is_whole { steps.last().copied() } else { None });
            found.known.extend(steps);
        }
        found
    }
}

impl<'a, K: Kept> Pass<'a, K> {
    /// Finds the rows of `batch` that the cache knows. `needed` lists the rows whose hidden states the
    /// answers need, ascending.
    pub(crate) fn new(batch: &'a Batch, needed: &[usize], cache: &'a PrefixCache<K>) -> Self {
        let mut is_needed = vec![false; batch.token_ids().len()];
        for &row in needed {
            is_needed[row] = true;
        }
        let KnownRows { computed, known, rows, ends, forks } =
            KnownRows::from_cache(batch, cache, &is_needed);
        let mut places = vec![0; batch.token_ids().len()];
        for (place, &row) in computed.iter().chain(&rows).enumerate() {
            places[row] = place;
        }
        let is_known = |row: usize| places[row] >= computed.len();
        let mut prefixes = Vec::new();
        for (text, &reusable) in batch.reusable().iter().enumerate() {
            let length = reusable.min(cache.max_tokens());
            let rows: Vec<usize> =
                batch.rows_of(text).take(length).take_while(|&row| !is_needed[row]).collect();
            if !rows.is_empty() && prefixes.last() != Some(&rows) {
                prefixes.push(rows);
            }
        }
        let mut state_rows = Vec::new();
        if cache.has_states() {
            state_rows = choose_states(batch, &prefixes, &forks, cache.max_states(), is_known);
            for rows in &mut prefixes {
                let last =
                    rows.iter().rposition(|row| is_known(*row) || state_rows.binary_search(row).is_ok());
                rows.truncate(last.map_or(0, |last| last + 1));
            }
        }
        let mut fresh_rows: Vec<usize> =
            prefixes.iter().flatten().copied().filter(|&row| !is_known(row)).collect();
        fresh_rows.sort_unstable();
        fresh_rows.dedup();
        let known_texts = (0..batch.leaves().len())
            .filter(|&text| batch.rows_of(text).next().is_some_and(is_known))
            .count();
        let (walk, known_states) = if cache.has_states() {
            walk_through(batch, &places, &ends, &state_rows)
        } else {
            <_>::default()
        };
        let known_rows = known.iter().filter_map(|&cursor| cache.kept(cursor)).collect();
        let prefixes = prefixes.into_iter().map(|rows| FreshPrefix {
            token_ids: rows.iter().map(|&row| batch.token_ids()[row]).collect(),
            rows,
        });
        let fresh = Fresh {
            prefixes: prefixes.collect(),
            rows: fresh_rows,
            layers: Vec::new(),
            state_rows,
            states: Vec::new(),
            known: Vec::new(),
            known_texts: 0,
        };
        Self {
            batch,
            cache,
            computed,
            places,
            known,
            known_rows,
            walk,
            known_states,
            known_texts,
            fresh,
            layer: 0,
        }
    }

    pub(crate) fn batch(&self) -> &'a Batch {
        self.batch
    }

    /// The rows of the batch that are computed, ascending; at least one.
    pub(crate) fn computed(&self) -> &[usize] {
        &self.computed
    }

    /// For each row of the batch, its row in the keys and values: computed rows first, then known rows.
    pub(crate) fn places(&self) -> &[usize] {
        &self.places
    }

    /// The way of recurrent layers through the computed rows.
    pub(crate) fn recurrent_walk(&self) -> &Walk {
        &self.walk
    }

    /// The states that the walk begins with, in the next recurrent layer.
    pub(crate) fn known_states(&self) -> Vec<&'a [f32]> {
        let layer = self.fresh.states.len();
        self.known_states.iter().filter_map(|&cursor| self.cache.layer_state(cursor, layer)).collect()
    }

    /// Takes the states that the walk keeps, of the next recurrent layer.
    pub(crate) fn keep_states(&mut self, states: Vec<Vec<f32>>) {
        self.fresh.states.push(states);
    }

    /// Copies the rows to keep out of the next layer's keys and values, `[computed, values]`, and appends the
    /// known rows.
    pub(crate) fn exchange<O: Operations<Kept = K>>(
        &mut self,
        operations: &mut O,
        keys_values: &mut O::Tensor,
    ) -> Result<()> {
        if !self.fresh.rows.is_empty() {
            let places: Vec<usize> = self.fresh.rows.iter().map(|&row| self.places[row]).collect();
            self.fresh.layers.push(operations.keep(keys_values, &places)?);
        }
        if !self.known.is_empty() {
            operations.append(keys_values, &self.known_rows, self.layer)?;
        }
        self.layer += 1;
        Ok(())
    }

    /// The computed rows that later passes may use.
    pub(crate) fn finish(self) -> Fresh<K> {
        Fresh { known: self.known, known_texts: self.known_texts, ..self.fresh }
    }
}

/// The rows of a batch that passes compute. `needed` lists the rows whose hidden states the answers need,
/// ascending.
pub(crate) fn rows_to_compute<K: Kept>(
    batch: &Batch,
    needed: &[usize],
    cache: &PrefixCache<K>,
) -> RowsToCompute {
    let lengths = batch.text_lengths().enumerate();
    let of_texts = lengths.map(|(text, length)| {
        let before = batch.rows_of(text).take_while(|row| needed.binary_search(row).is_err());
        let ids: Vec<u32> = before.map(|row| batch.token_ids()[row]).collect();
        length - cache.known(&ids)
    });
    let of_batch = Pass::new(batch, needed, cache).computed().len();
    RowsToCompute { of_batch, of_texts: of_texts.collect() }
}

/// The rows after which the states are kept, at most `limit`: first those where texts part from each other or
/// from the cached ones, then the ends of the prefixes. Ascending.
fn choose_states(
    batch: &Batch,
    prefixes: &[Vec<usize>],
    forks: &BTreeSet<usize>,
    limit: usize,
    is_known: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let reusable: BTreeSet<usize> = prefixes.iter().flatten().copied().collect();
    let parents = batch.segments().iter().filter_map(|segment| segment.parent);
    let branches = parents.map(|parent| batch.segments()[parent].rows.end - 1);
    let parting: BTreeSet<usize> = branches.chain(forks.iter().copied()).collect();
    let ends: BTreeSet<usize> = prefixes.iter().filter_map(|rows| rows.last().copied()).collect();
    let inside = parting.iter().filter(|row| reusable.contains(row) && !ends.contains(row));
    let mut chosen: Vec<usize> = Vec::new();
    for &row in inside.chain(&ends) {
        if chosen.len() < limit && !is_known(row) {
            chosen.push(row);
        }
    }
    chosen.sort_unstable();
    chosen
}

/// The way of recurrent layers, and the places in the cache of the states that it begins with. `ends` are
/// the segments' last known rows, `state_rows` the rows after which states are kept.
fn walk_through(
    batch: &Batch,
    places: &[usize],
    ends: &[Option<Cursor>],
    state_rows: &[usize],
) -> (Walk, Vec<Cursor>) {
    let (mut known_states, mut first) = (Vec::new(), 0);
    let mut segments = Vec::with_capacity(ends.len());
    for (&Segment { parent, ref rows, is_attended, .. }, end) in batch.segments().iter().zip(ends) {
        let computed = rows.clone().find(|&row| places[row] == first).unwrap_or(rows.end);
        let kept = state_rows.iter().filter(|row| (computed..rows.end).contains(row));
        segments.push(SegmentRows {
            parent,
            rows: first..first + rows.end - computed,
            known: end.map(|_| known_states.len()),
            kept_after: kept.map(|row| row + 1 - computed).collect(),
            is_unattended: !is_attended,
        });
        known_states.extend(end);
        first += rows.end - computed;
    }
    (Walk::from_segments(&segments), known_states)
}

/// Checks that a table has a vector for each of `ids`.
pub(crate) fn refuse_unknown(ids: &[u32], vocabulary: usize) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(BackendError::Inference(format!(
            "token {id} is outside the model's vocabulary of {vocabulary}: tokenizer.json is of another model"
        ))),
        None => Ok(()),
    }
}

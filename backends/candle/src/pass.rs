//! One forward pass over a batch: which rows are computed, and which are known from earlier passes.
//!
//! Input: a batch, the rows that its answers need, and the [`PrefixCache`]. Output: keys and values of all of
//! the batch's tokens in every layer, the known ones below the computed ones; and what of the computed ones
//! is worth keeping, as [`Fresh`]. What must hold: a row that an answer needs is computed, and so is all that
//! comes after it in its texts; the cache is only read, so that a pass that fails leaves it as it was.

use crate::{
    kept::Kept,
    operations::{Operations, Result},
    prefix_cache::{Cursor, Fresh, PrefixCache},
};
use text_embeddings_backend_core::Batch;

/// A batch on its way through the layers.
pub(crate) struct Pass<'a, K> {
    batch: &'a Batch,
    cache: &'a PrefixCache<K>,
    computed: Vec<usize>,
    places: Vec<usize>,
    /// Where the cache has the rows that are not computed, in their order.
    known: Vec<Cursor>,
    /// Texts whose first row is known.
    known_texts: usize,
    fresh: Fresh<K>,
    /// The layer whose keys and values come next.
    layer: usize,
}

impl<'a, K: Kept> Pass<'a, K> {
    /// Finds what is known of `batch`. `needed` are the rows, ascending, whose hidden states the answers
    /// need.
    pub(crate) fn new(batch: &'a Batch, needed: &[usize], cache: &'a PrefixCache<K>) -> Self {
        let is_needed = |row: &usize| needed.binary_search(row).is_ok();
        let ids = batch.token_ids();
        let (mut computed, mut known, mut known_rows) = (Vec::new(), Vec::new(), Vec::new());
        let mut ends: Vec<Option<Cursor>> = Vec::with_capacity(batch.segments().len());
        for segment in batch.segments() {
            let mut cursor = segment.parent.map_or(Some(Cursor::START), |parent| ends[parent]);
            for row in segment.rows.clone() {
                cursor = cursor.filter(|_| !is_needed(&row)).and_then(|cursor| cache.step(cursor, ids[row]));
                match cursor {
                    Some(cursor) => {
                        known.push(cursor);
                        known_rows.push(row);
                    }
                    None => computed.push(row),
                }
            }
            ends.push(cursor);
        }
        let mut places = vec![0; ids.len()];
        for (place, &row) in computed.iter().chain(&known_rows).enumerate() {
            places[row] = place;
        }
        let mut fresh = Fresh {
            prefixes: Vec::new(),
            rows: Vec::new(),
            layers: Vec::new(),
            known: Vec::new(),
            known_texts: 0,
        };
        for (text, &reusable) in batch.reusable().iter().enumerate() {
            let length = reusable.min(cache.most_tokens());
            let rows: Vec<usize> =
                batch.rows_of(text).take(length).take_while(|row| !is_needed(row)).collect();
            if !rows.is_empty() && fresh.prefixes.last() != Some(&rows) {
                fresh.rows.extend(rows.iter().filter(|&&row| places[row] < computed.len()));
                fresh.prefixes.push(rows);
            }
        }
        fresh.rows.sort_unstable();
        fresh.rows.dedup();
        let is_known =
            |text: usize| batch.rows_of(text).next().is_some_and(|row| places[row] >= computed.len());
        let known_texts = (0..batch.leaves().len()).filter(|&text| is_known(text)).count();
        Self { batch, cache, computed, places, known, known_texts, fresh, layer: 0 }
    }

    /// The batch.
    pub(crate) fn batch(&self) -> &'a Batch {
        self.batch
    }

    /// The rows of the batch that are computed, ascending; at least one.
    pub(crate) fn computed(&self) -> &[usize] {
        &self.computed
    }

    /// For each row of the batch, where its keys and values stand: computed rows first, known rows after
    /// them.
    pub(crate) fn places(&self) -> &[usize] {
        &self.places
    }

    /// Takes from the next layer's keys and values, `[computed, values]`, what will be kept, and adds the
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
            let kept = self.known.iter().filter_map(|&cursor| self.cache.kept(cursor, self.layer));
            operations.append(keys_values, &kept.collect::<Vec<_>>())?;
        }
        self.layer += 1;
        Ok(())
    }

    /// What was computed that later passes may use.
    pub(crate) fn finish(self) -> Fresh<K> {
        Fresh { known: self.known, known_texts: self.known_texts, ..self.fresh }
    }
}

//! Keys and values of prefixes that earlier batches computed, for later batches: a radix tree of token ids
//! within a budget. A model with recurrent layers also has their states at the ends of nodes.
//!
//! Input: the prefixes that a pass computed ([`Fresh`]). Output: for each token whose whole prefix is in the
//! tree, its keys and values in every layer, in the precision in which attention reads them; and the states
//! after some tokens. Of models with states, a prefix is in the tree only up to a state. What must hold:
//! `PrefixCache::bytes` counts everything that nodes hold and never exceeds the budget; a prefix is stored
//! once, however many others continue it; the least recently used nodes are removed first, and a node that
//! has children is never removed.

use crate::{
    kept::{Kept, KeptRow},
    operations::Result,
};
use std::collections::HashMap;
use text_embeddings_backend_core::Reused;

/// The size of a node's entries in the maps, in bytes.
const EDGE_BYTES: usize = 64;

/// A run of tokens that follows its parent's run.
struct PrefixNode<K> {
    parent: Option<usize>,
    /// At least one.
    tokens: Vec<u32>,
    /// For each layer with keys, the tokens' keys and values.
    layers: Vec<K>,
    /// For each recurrent layer, the state after the last token; empty if it is not known.
    states: Vec<Vec<f32>>,
    children: usize,
    /// The last pass that used it.
    used: u64,
}

/// A place in the tree: after the first `tokens` tokens of a node or, without a node, before all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    node: Option<usize>,
    /// At least one if there is a node.
    tokens: usize,
}

impl Cursor {
    /// Before the first token.
    pub(crate) const START: Self = Self { node: None, tokens: 0 };
}

/// A prefix that is worth keeping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FreshPrefix {
    pub(crate) token_ids: Vec<u32>,
    /// The tokens' rows in the batch of the pass, including known rows.
    pub(crate) rows: Vec<usize>,
}

/// The computed rows of a pass that later passes may use.
pub(crate) struct Fresh<K> {
    pub(crate) prefixes: Vec<FreshPrefix>,
    /// The computed rows among them, ascending.
    pub(crate) rows: Vec<usize>,
    /// For each layer with keys, the keys and values of `rows`.
    pub(crate) layers: Vec<K>,
    /// The rows after which states are kept, ascending.
    pub(crate) state_rows: Vec<usize>,
    /// For each recurrent layer, the states after `state_rows`.
    pub(crate) states: Vec<Vec<Vec<f32>>>,
    /// The places in the cache of the rows that were known.
    pub(crate) known: Vec<Cursor>,
    /// The number of texts that begin with known rows.
    pub(crate) known_texts: usize,
}

impl<K> Fresh<K> {
    /// For each recurrent layer, the state with this index.
    fn states_at(&self, index: usize) -> Vec<Vec<f32>> {
        self.states.iter().map(|layer| layer[index].clone()).collect()
    }
}

/// The size of a token's keys and values, and of the states after it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenShape {
    /// The number of layers with keys.
    pub(crate) layers: usize,
    /// Values per token and layer.
    pub(crate) values: usize,
    /// Bytes per value.
    pub(crate) value_bytes: usize,
    /// The number of recurrent layers.
    pub(crate) state_layers: usize,
    /// Values per state and layer.
    pub(crate) state_values: usize,
}

pub(crate) struct PrefixCache<K> {
    budget: usize,
    bytes: usize,
    shape: TokenShape,
    nodes: HashMap<usize, PrefixNode<K>>,
    /// By a node (`None` for the start) and the next token: the child that begins with this token.
    edges: HashMap<(Option<usize>, u32), usize>,
    next: usize,
    pass: u64,
}

impl<K: Kept> PrefixCache<K> {
    /// An empty cache of at most `budget` bytes. With 0, it keeps nothing.
    pub(crate) fn new(budget: usize, shape: TokenShape) -> Self {
        Self { budget, bytes: 0, shape, nodes: HashMap::new(), edges: HashMap::new(), next: 0, pass: 0 }
    }

    /// The longest prefix that the whole cache has room for.
    pub(crate) fn max_tokens(&self) -> usize {
        self.budget.saturating_sub(2 * self.node_bytes(0) + self.state_bytes()) / self.token_bytes()
    }

    /// The number of states that the whole cache has room for.
    pub(crate) fn max_states(&self) -> usize {
        if self.has_states() { self.budget / (self.state_bytes() + self.node_bytes(0)) } else { 0 }
    }

    /// Whether the model has recurrent layers.
    pub(crate) fn has_states(&self) -> bool {
        self.shape.state_layers > 0
    }

    /// The states after the token before `cursor`, if they are known.
    fn states_after(&self, Cursor { node, tokens }: Cursor) -> Option<&[Vec<f32>]> {
        let node = self.nodes.get(&node?)?;
        (node.tokens.len() == tokens && !node.states.is_empty()).then_some(&node.states)
    }

    /// Whether the states after the token before `cursor` are known.
    pub(crate) fn has_state(&self, cursor: Cursor) -> bool {
        self.states_after(cursor).is_some()
    }

    /// The state of a recurrent layer after the token before `cursor`.
    pub(crate) fn layer_state(&self, cursor: Cursor, layer: usize) -> Option<&[f32]> {
        self.states_after(cursor)?.get(layer).map(Vec::as_slice)
    }

    /// The place after `token`, if the tree continues with it.
    pub(crate) fn step(&self, Cursor { node, tokens }: Cursor, token: u32) -> Option<Cursor> {
        let next = node.and_then(|node| self.nodes.get(&node)?.tokens.get(tokens));
        match next {
            Some(&next) => (next == token).then_some(Cursor { node, tokens: tokens + 1 }),
            None => self.edges.get(&(node, token)).map(|&node| Cursor { node: Some(node), tokens: 1 }),
        }
    }

    /// The number of tokens at the start of `ids` that need not be computed.
    pub(crate) fn known(&self, ids: &[u32]) -> usize {
        let known = ids
            .iter()
            .scan(Cursor::START, |cursor, &id| {
                *cursor = self.step(*cursor, id)?;
                Some(*cursor)
            })
            .enumerate();
        let usable = known.filter(|&(_, cursor)| !self.has_states() || self.has_state(cursor));
        usable.last().map_or(0, |(index, _)| index + 1)
    }

    /// The keys and values of the token before `cursor`. `None` at the start.
    pub(crate) fn kept(&self, Cursor { node, tokens }: Cursor) -> Option<KeptRow<'_, K>> {
        let node = self.nodes.get(&node?)?;
        Some(KeptRow { layers: &node.layers, row: tokens - 1 })
    }

    /// Adds the prefixes that a pass computed. Nodes that the pass used or adds are not removed to make room.
    pub(crate) fn keep(&mut self, fresh: &Fresh<K>) -> Reused {
        self.pass += 1;
        for node in fresh.known.iter().filter_map(|cursor| cursor.node) {
            self.touch(node);
        }
        // A value that is not finite would spoil even texts that do not see it, because a weight of zero
        // times it is NaN.
        let mut states = fresh.states.iter().flatten().flatten();
        if K::are_finite(&fresh.layers) && states.all(|value| value.is_finite()) {
            for FreshPrefix { token_ids, rows } in &fresh.prefixes {
                if !self.has_states() {
                    self.insert(token_ids, rows, fresh, None);
                    continue;
                }
                for (index, row) in rows.iter().enumerate() {
                    if let Ok(state) = fresh.state_rows.binary_search(row) {
                        self.insert(&token_ids[..=index], &rows[..=index], fresh, Some(state));
                    }
                }
            }
        }
        Reused { texts: fresh.known_texts, tokens: fresh.known.len(), bytes: self.bytes }
    }

    /// Adds the part of a prefix that the tree lacks. `rows` are the rows of `ids` in the pass's batch, and
    /// `state` is the index of the state after them.
    fn insert(&mut self, ids: &[u32], rows: &[usize], fresh: &Fresh<K>, state: Option<usize>) {
        let mut at = Cursor::START;
        let mut found = 0;
        while let Some(next) = ids.get(found).and_then(|&id| self.step(at, id)) {
            if let Some(node) = next.node {
                self.touch(node);
            }
            at = next;
            found += 1;
        }
        let missing = &rows[found..];
        if let (true, Some(state)) = (missing.is_empty(), state) {
            return self.add_states(at, fresh, state);
        }
        // A known row that has since been removed was not computed. So the prefix is added only if all
        // missing rows are fresh.
        let places: std::result::Result<Vec<usize>, _> =
            missing.iter().map(|row| fresh.rows.binary_search(row)).collect();
        let Ok(mut places) = places else { return };
        if places.is_empty() {
            return;
        }
        places.truncate(self.make_room(missing.len(), state.is_some()));
        if places.is_empty() || state.is_some() && places.len() < missing.len() {
            return;
        }
        // Makes the copies first: a device without room for them leaves the tree as it was.
        let Ok(layers) = K::copy_rows(&fresh.layers, &places, self.shape.values) else { return };
        let Ok(parent) = self.split(at) else { return };
        let tokens = ids[found..found + places.len()].to_vec();
        if let Some(parent) = parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            parent.children += 1;
        }
        let states = state.map_or_else(Vec::new, |state| fresh.states_at(state));
        self.add(PrefixNode { parent, tokens, layers, states, children: 0, used: self.pass });
    }

    /// Adds the states at a place in the tree, unless they are there.
    fn add_states(&mut self, at: Cursor, fresh: &Fresh<K>, state: usize) {
        if self.has_state(at) || self.make_room(1, true) == 0 {
            return;
        }
        if let Ok(Some(node)) = self.split(at)
            && let Some(node) = self.nodes.get_mut(&node)
        {
            node.states = fresh.states_at(state);
            self.bytes += self.state_bytes();
        }
    }

    fn touch(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.used = self.pass;
        }
    }

    fn add(&mut self, node: PrefixNode<K>) -> usize {
        let id = self.next;
        self.next += 1;
        self.bytes += self.bytes_of(&node);
        self.edges.insert((node.parent, node.tokens[0]), id);
        self.nodes.insert(id, node);
        id
    }

    /// The node that ends at `at`; `None` at the start. If `at` is inside a node, the node is cut in two.
    /// If the device fails, the tree is unchanged.
    fn split(&mut self, at: Cursor) -> Result<Option<usize>> {
        let Some((id, node)) = at.node.and_then(|id| Some((id, self.nodes.get_mut(&id)?))) else {
            return Ok(None);
        };
        if at.tokens == node.tokens.len() {
            return Ok(Some(id));
        }
        let rows: Vec<usize> = (0..node.tokens.len()).collect();
        let (before, after) = rows.split_at(at.tokens);
        let layers = K::copy_rows(&node.layers, before, self.shape.values)?;
        let rest = K::copy_rows(&node.layers, after, self.shape.values)?;
        // The old node keeps its end, so its children keep their parent. A new node takes its beginning.
        node.layers = rest;
        let tail = node.tokens.split_off(at.tokens);
        let mut tokens = std::mem::replace(&mut node.tokens, tail);
        tokens.shrink_to_fit();
        let (parent, used, next) = (node.parent, node.used, node.tokens[0]);
        self.bytes -= tokens.len() * self.token_bytes();
        let head = self.add(PrefixNode { parent, tokens, layers, states: Vec::new(), children: 1, used });
        self.edges.insert((Some(head), next), id);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.parent = Some(head);
        }
        Ok(Some(head))
    }

    /// Removes the least recently used leaves until there is room for a node of `tokens` tokens, perhaps with
    /// states, and for cutting another node in two. Nodes that this pass used stay. Returns the number of
    /// tokens that there is room for.
    fn make_room(&mut self, tokens: usize, with_states: bool) -> usize {
        let fixed = 2 * self.node_bytes(0) + if with_states { self.state_bytes() } else { 0 };
        let needed = fixed + tokens * self.token_bytes();
        while self.bytes + needed > self.budget {
            let leaves = self.nodes.iter().filter(|(_, node)| node.children == 0 && node.used < self.pass);
            let Some((&oldest, _)) = leaves.min_by_key(|(id, node)| (node.used, **id)) else { break };
            self.remove(oldest);
        }
        let room = self.budget.saturating_sub(self.bytes + fixed) / self.token_bytes();
        room.min(tokens)
    }

    fn remove(&mut self, id: usize) {
        let Some(node) = self.nodes.remove(&id) else { return };
        self.edges.remove(&(node.parent, node.tokens[0]));
        self.bytes -= self.bytes_of(&node);
        if let Some(parent) = node.parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            parent.children -= 1;
        }
    }

    fn node_bytes(&self, tokens: usize) -> usize {
        let node = size_of::<PrefixNode<K>>() + EDGE_BYTES + self.shape.layers * size_of::<K>();
        node + tokens * self.token_bytes()
    }

    fn bytes_of(&self, node: &PrefixNode<K>) -> usize {
        let states = if node.states.is_empty() { 0 } else { self.state_bytes() };
        self.node_bytes(node.tokens.len()) + states
    }

    /// The size of the states after a token, in bytes.
    pub(crate) fn state_bytes(&self) -> usize {
        let TokenShape { state_layers, state_values, .. } = self.shape;
        state_layers * (size_of::<Vec<f32>>() + state_values * size_of::<f32>())
    }

    /// The size of a token's id, keys and values, in bytes.
    pub(crate) fn token_bytes(&self) -> usize {
        let TokenShape { layers, values, value_bytes, .. } = self.shape;
        size_of::<u32>() + layers * values * value_bytes
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{cpu::CpuOperations, kept::HostValues, operations::Operations, pass::Pass};
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::HashSet;
    use text_embeddings_backend_core::{Batch, BatchBuilder, DType, Packing, Text, Wanted};

    const LAYERS: usize = 3;
    const WIDTH: usize = 5;

    type Cache = PrefixCache<HostValues>;

    fn cache(budget: usize, operations: &CpuOperations) -> Cache {
        let value_bytes = operations.kept_bytes();
        PrefixCache::new(
            budget,
            TokenShape { layers: LAYERS, values: WIDTH, value_bytes, ..TokenShape::default() },
        )
    }

    fn operations(dtype: DType) -> CpuOperations {
        CpuOperations::start(1, crate::InstructionSet::best(), dtype).unwrap()
    }

    /// Keys and values of the token at the end of this prefix. bfloat16 represents them exactly.
    fn values(prefix: &[u32], layer: usize) -> [f32; WIDTH] {
        std::array::from_fn(|column| {
            let start = (layer * WIDTH + column) as u32;
            let hash =
                prefix.iter().fold(start, |hash, id| (hash ^ id).wrapping_mul(0x0100_0193) ^ hash >> 15);
            f32::from((hash >> 8) as u8)
        })
    }

    /// Runs a pass over `batch` whose answers need the rows `needed`, and checks everything it reads from the
    /// cache. Returns the prefixes of the rows that were not computed, and the prefixes of the rows that were
    /// to be kept.
    fn pass(
        operations: &mut CpuOperations,
        cache: &mut Cache,
        batch: &Batch,
        needed: &[usize],
    ) -> [HashSet<Vec<u32>>; 2] {
        let mut prefixes = vec![Vec::new(); batch.token_ids().len()];
        for text in 0..batch.leaves().len() {
            let rows: Vec<usize> = batch.rows_of(text).collect();
            for (index, &row) in rows.iter().enumerate() {
                prefixes[row] = rows[..=index].iter().map(|&row| batch.token_ids()[row]).collect();
            }
        }
        let mut pass = Pass::new(batch, needed, cache);
        assert!(needed.iter().all(|row| pass.computed().contains(row)));
        for layer in 0..LAYERS {
            let computed: Vec<f32> =
                pass.computed().iter().flat_map(|&row| values(&prefixes[row], layer)).collect();
            let mut tensor = operations.tensor(&computed, WIDTH).unwrap();
            pass.exchange(operations, &mut tensor).unwrap();
            let all = operations.values(&tensor).unwrap();
            for (prefix, &place) in prefixes.iter().zip(pass.places()) {
                assert_eq!(all[place * WIDTH..][..WIDTH], values(prefix, layer), "{prefix:?}");
            }
            assert_eq!(all.len(), prefixes.len() * WIDTH);
        }
        let computed: HashSet<usize> = pass.computed().iter().copied().collect();
        let fresh = pass.finish();
        let known =
            (0..prefixes.len()).filter(|row| !computed.contains(row)).map(|row| prefixes[row].clone());
        let kept = fresh.prefixes.iter().flat_map(|prefix| &prefix.rows);
        let kept = kept.map(|&row| prefixes[row].clone()).collect();
        let reused = cache.keep(&fresh);
        assert_eq!((reused.tokens, reused.bytes), (prefixes.len() - computed.len(), cache.bytes));
        check(cache);
        [known.collect(), kept]
    }

    /// Checks that the tree is consistent and that its bytes are the sum of its nodes' bytes.
    fn check(cache: &Cache) {
        let mut bytes = 0;
        for (id, node) in &cache.nodes {
            assert_eq!(cache.edges[&(node.parent, node.tokens[0])], *id);
            let children = cache.nodes.values().filter(|child| child.parent == Some(*id)).count();
            assert_eq!(children, node.children);
            let parent = node.parent.map(|parent| &cache.nodes[&parent]);
            assert!(
                parent.is_none_or(|parent| parent.used >= node.used),
                "a parent is used with its children"
            );
            bytes +=
                size_of::<PrefixNode<HostValues>>() + EDGE_BYTES + node.tokens.capacity() * size_of::<u32>();
            for layer in &node.layers {
                bytes += size_of::<HostValues>() + layer.bytes();
            }
            assert_eq!(node.layers.len(), LAYERS);
        }
        assert_eq!(cache.edges.len(), cache.nodes.len());
        assert_eq!(cache.bytes, bytes);
        assert!(cache.bytes <= cache.budget);
    }

    #[test]
    fn a_pass_sees_what_was_kept_and_the_budget_holds() {
        let mut rng = StdRng::seed_from_u64(60);
        for dtype in [DType::Float32, DType::BFloat16] {
            let mut operations = operations(dtype);
            for budget in [0, 500, 1000, 3000, 10_000, usize::MAX] {
                let mut cache = cache(budget, &operations);
                let mut ever = HashSet::new();
                let mut total = 0;
                for _ in 0..150 {
                    let mut builder = BatchBuilder::new(Packing::SHARED);
                    for _ in 0..rng.random_range(1..5) {
                        let ids: Vec<u32> =
                            (0..rng.random_range(1..14)).map(|_| rng.random_range(0..2)).collect();
                        let reusable = rng.random_range(0..=ids.len() + 1);
                        builder.push(&Text { reusable, ..Text::new(ids, Wanted::WHOLE) });
                    }
                    let batch = builder.build();
                    let mut needed: Vec<usize> = batch.last_rows().collect();
                    needed.extend((0..batch.token_ids().len()).filter(|_| rng.random_bool(0.05)));
                    needed.sort_unstable();
                    needed.dedup();
                    let [known, kept] = pass(&mut operations, &mut cache, &batch, &needed);
                    assert!(known.is_subset(&ever), "what was never kept is not known");
                    if budget == usize::MAX {
                        for text in 0..batch.leaves().len() {
                            let rows: Vec<usize> = batch.rows_of(text).collect();
                            let ids: Vec<u32> = rows.iter().map(|&row| batch.token_ids()[row]).collect();
                            let free = rows.iter().take_while(|row| !needed.contains(row)).count();
                            for end in 1..=ids.len() {
                                let wanted = end <= free && ever.contains(&ids[..end]);
                                assert_eq!(known.contains(&ids[..end]), wanted, "{ids:?} {end}");
                            }
                        }
                    }
                    ever.extend(kept);
                    total += known.len();
                }
                assert_eq!(total > 0, budget >= 1000, "{budget}: {total}");
            }
        }
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let mut operations = operations(DType::Float32);
        let mut cache = cache(usize::MAX, &operations);
        let mut one = |cache: &mut Cache, ids: &[u32]| {
            let mut builder = BatchBuilder::new(Packing::SHARED);
            let text = [ids, &[8]].concat();
            builder.push(&Text { reusable: ids.len(), ..Text::new(text, Wanted::WHOLE) });
            pass(&mut operations, cache, &builder.build(), &[ids.len()])[0].len()
        };
        one(&mut cache, &[1, 1, 1]);
        // Room for three prefixes of this length, and for cutting one of them.
        cache.budget = 4 * cache.bytes;
        for (ids, known) in [
            ([2, 2, 2], 0),
            ([3, 3, 3], 0),
            ([1, 1, 1], 3), // used again: the oldest is 2 2 2
            ([4, 4, 4], 0),
            ([1, 1, 1], 3),
            ([3, 3, 3], 3),
            ([2, 2, 2], 0),
            ([4, 4, 4], 0),
            ([1, 1, 1], 0),
        ] {
            assert_eq!(one(&mut cache, &ids), known, "{ids:?}");
        }
    }

    #[test]
    fn what_is_not_finite_is_not_kept() {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        builder.push(&Text { reusable: 2, ..Text::new([1, 2, 3], Wanted::WHOLE) });
        let batch = builder.build();
        for (bad, kept) in [(1.0, true), (f32::INFINITY, false), (f32::NAN, false)] {
            let mut operations = operations(DType::BFloat16);
            let mut cache = cache(usize::MAX, &operations);
            let mut pass = Pass::new(&batch, &[2], &cache);
            for _ in 0..LAYERS {
                let mut values = vec![1.0; 3 * WIDTH];
                values[WIDTH + 2] = bad;
                let mut tensor = operations.tensor(&values, WIDTH).unwrap();
                pass.exchange(&mut operations, &mut tensor).unwrap();
            }
            let fresh = pass.finish();
            assert_eq!(cache.keep(&fresh).bytes > 0, kept, "{bad}");
        }
    }
}

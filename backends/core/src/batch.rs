//! A packed batch: a forest of segments. Where the model allows it, a prefix that several texts share is
//! stored once.
//!
//! Input: texts as token ids, and the backend's [`Packing`]. Output: a [`Batch`]. What must hold: the tokens
//! of the segments from a text's root down to its leaf are the text's ids; a segment's descendants follow it
//! at once. With shared prefixes, no two children of a parent and no two roots start with the same token,
//! and texts with equal ids share their rows, whichever outputs are wanted. Without shared prefixes, each
//! text is one segment of its own.

mod part;

pub use part::RowsToCompute;

use crate::Wanted;
use std::ops::Range;

/// A run of tokens in a batch. A token can attend only to tokens of its own segment and of the segment's
/// ancestors; the model decides to which of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The segment before this one in every text that contains this one. Its index is always smaller.
    pub parent: Option<usize>,
    /// The rows of the batch that hold its tokens.
    pub rows: Range<usize>,
    /// The position of its first token in its texts: the number of its ancestors' tokens.
    pub position: usize,
    /// Whether tokens attend to its tokens. Otherwise its own tokens attend to its ancestors only.
    pub is_attended: bool,
}

/// How a backend wants texts packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Whether texts with a common prefix share the rows of that prefix. Only right if a token's state does
    /// not depend on later tokens, as in causal models.
    pub shares_prefixes: bool,
}

impl Packing {
    /// Common prefixes are stored once.
    pub const SHARED: Self = Self { shares_prefixes: true };
    /// Every text has rows of its own.
    pub const SEPARATE: Self = Self { shares_prefixes: false };
}

/// A text on its way into a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Its token ids; at least one.
    pub ids: Vec<u32>,
    /// For a pair, the index of the first token of type 1, where the second text begins. Tokens before it,
    /// and all tokens of single texts, have type 0.
    pub second: Option<usize>,
    /// The outputs that the caller wants.
    pub wanted: Wanted,
    /// The length of the prefix that later texts may share, in tokens. A backend may cache its results for
    /// it.
    pub reusable: usize,
    /// With [`Wanted::tokens`], the indices of the tokens whose vectors are wanted, ascending and distinct.
    /// Empty means all tokens.
    pub marks: Vec<usize>,
    /// The number of last tokens to which no token attends, nor they to themselves or each other: a
    /// late-interaction model's expansion of a query. Less than all tokens. Only right for backends whose
    /// packing is [`Packing::SEPARATE`].
    pub unattended: usize,
    /// The text's kind, from 0 up, for models that read several kinds of texts and know which one a text is
    /// (Laya). 0 for all others. Only right for backends whose packing is [`Packing::SEPARATE`].
    pub kind: u32,
}

impl Text {
    /// A single text without reusable or marked tokens.
    pub fn new(ids: impl Into<Vec<u32>>, wanted: Wanted) -> Self {
        Self { ids: ids.into(), second: None, wanted, reusable: 0, marks: Vec::new(), unattended: 0, kind: 0 }
    }
}

/// Texts as a forest of segments. [`BatchBuilder`] makes it and upholds the invariants of this module.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    token_ids: Vec<u32>,
    segments: Vec<Segment>,
    leaves: Vec<usize>,
    second: Vec<Option<usize>>,
    wanted: Vec<Wanted>,
    reusable: Vec<usize>,
    marks: Vec<Vec<usize>>,
    kinds: Vec<u32>,
}

impl Batch {
    /// The unique tokens, segment after segment.
    pub fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// The forest. A segment's descendants follow it at once.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// For each text, in the order of addition, the segment that ends with its last token.
    pub fn leaves(&self) -> &[usize] {
        &self.leaves
    }

    /// For each text, in the order of addition, the index of its first token of type 1.
    pub fn second(&self) -> &[Option<usize>] {
        &self.second
    }

    /// For each text, in the order of addition, the outputs that the caller wants.
    pub fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }

    /// For each text, in the order of addition, the length of the prefix that later texts may share.
    pub fn reusable(&self) -> &[usize] {
        &self.reusable
    }

    /// For each text, in the order of addition, the number of its tokens.
    pub fn text_lengths(&self) -> impl Iterator<Item = usize> {
        self.leaves.iter().map(|&leaf| self.segments[leaf].position + self.segments[leaf].rows.len())
    }

    /// The rows of a text's tokens, first to last. `text` counts from zero in the order of addition.
    pub fn rows_of(&self, text: usize) -> impl Iterator<Item = usize> {
        let path = self.path(self.leaves[text]);
        path.into_iter().flat_map(|segment| self.segments[segment].rows.clone())
    }

    /// The rows of a text's marked tokens, first to last. If no token is marked, the rows of all its tokens.
    pub fn marked_rows(&self, text: usize) -> Vec<usize> {
        let rows: Vec<usize> = self.rows_of(text).collect();
        match self.marks[text].as_slice() {
            [] => rows,
            marks => marks.iter().map(|&mark| rows[mark]).collect(),
        }
    }

    /// For each text, in the order of addition, the row of its last token.
    pub fn last_rows(&self) -> impl ExactSizeIterator<Item = usize> {
        self.leaves.iter().map(|&leaf| self.segments[leaf].rows.end - 1)
    }

    /// The position of each row's token in its text.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.segments.iter().flat_map(|segment| segment.position..segment.position + segment.rows.len())
    }

    /// The type of each row's token, 0 or 1. Texts with tokens of type 1 must not share rows
    /// ([`Packing::SEPARATE`]).
    pub fn token_types(&self) -> Vec<u32> {
        let mut types = vec![0; self.token_ids.len()];
        for (text, second) in self.second.iter().enumerate() {
            if let Some(second) = *second {
                self.rows_of(text).skip(second).for_each(|row| types[row] = 1);
            }
        }
        types
    }

    /// For each row, the kind of its text.
    pub fn row_kinds(&self) -> Vec<u32> {
        let mut kinds = vec![0; self.token_ids.len()];
        for (text, &kind) in self.kinds.iter().enumerate().filter(|(_, kind)| **kind > 0) {
            self.rows_of(text).for_each(|row| kinds[row] = kind);
        }
        kinds
    }

    /// The number of tokens to which tokens may attend, of the text that ends with `segment`: all, or all
    /// before it.
    pub fn attended_tokens(&self, segment: usize) -> usize {
        let Segment { position, ref rows, is_attended, .. } = self.segments[segment];
        if is_attended { position + rows.len() } else { position }
    }

    /// The segments from the root down to `segment`, itself included.
    pub fn path(&self, segment: usize) -> Vec<usize> {
        let mut path = vec![segment];
        while let Some(parent) = self.segments[path[path.len() - 1]].parent {
            path.push(parent);
        }
        path.reverse();
        path
    }
}

/// Collects texts into a radix tree of their token ids; [`BatchBuilder::build`] lays it out as a [`Batch`].
#[derive(Debug)]
pub struct BatchBuilder {
    packing: Packing,
    nodes: Vec<Node>,
    roots: Vec<usize>,
    /// The batch without tokens and segments. Its leaves are nodes.
    batch: Batch,
    unique_tokens: usize,
}

#[derive(Debug)]
struct Node {
    tokens: Vec<u32>,
    parent: Option<usize>,
    children: Vec<usize>,
    is_attended: bool,
}

impl Node {
    /// Whether texts can share it that go on with this token.
    fn begins_with(&self, token: u32) -> bool {
        self.is_attended && self.tokens[0] == token
    }
}

/// How far a text's ids follow the tree.
struct Match {
    /// The last node with at least one matching token.
    node: Option<usize>,
    /// The number of that node's tokens that match.
    within: usize,
    /// The number of the text's tokens that match, over all nodes.
    tokens: usize,
}

impl BatchBuilder {
    /// A builder without texts.
    pub fn new(packing: Packing) -> Self {
        Self { packing, nodes: Vec::new(), roots: Vec::new(), batch: Batch::default(), unique_tokens: 0 }
    }

    /// Unique tokens so far. This is the number of the batch's rows, and the token budget counts it.
    pub fn unique_tokens(&self) -> usize {
        self.unique_tokens
    }

    /// Texts so far.
    pub fn texts(&self) -> usize {
        self.batch.leaves.len()
    }

    /// The number of rows that `ids` would add: its tokens without the prefix that it shares with earlier
    /// texts.
    pub fn cost(&self, ids: &[u32]) -> usize {
        ids.len() - self.longest_match(ids).tokens
    }

    /// Adds a text. Its ids must not be empty, because an empty text has no last token.
    pub fn push(&mut self, text: &Text) {
        let ids = &text.ids;
        debug_assert!(!ids.is_empty());
        debug_assert!(text.marks.iter().all(|&mark| mark < ids.len()));
        debug_assert!(text.unattended < ids.len());
        let (ids, expansion) = ids.split_at(ids.len() - text.unattended);
        let found = self.longest_match(ids);
        self.unique_tokens += ids.len() - found.tokens;
        let mut end = found.node;
        if let Some(node) = found.node
            && found.within < self.nodes[node].tokens.len()
        {
            self.split(node, found.within);
        }
        if found.tokens < ids.len() {
            end = Some(self.add_node(ids[found.tokens..].to_vec(), found.node));
        }
        if !expansion.is_empty() {
            let node = self.add_node(expansion.to_vec(), end);
            self.nodes[node].is_attended = false;
            self.unique_tokens += expansion.len();
            end = Some(node);
        }
        self.batch.leaves.extend(end);
        self.batch.second.push(text.second);
        self.batch.wanted.push(text.wanted);
        self.batch.reusable.push(text.reusable);
        self.batch.marks.push(text.marks.clone());
        self.batch.kinds.push(text.kind);
    }

    /// The batch of all texts added.
    pub fn build(self) -> Batch {
        let mut batch = Batch { token_ids: Vec::with_capacity(self.unique_tokens), ..self.batch };
        let mut segment_of = vec![0; self.nodes.len()];
        let mut pending: Vec<usize> = self.roots.iter().rev().copied().collect();
        while let Some(node) = pending.pop() {
            let Node { tokens, parent, children, is_attended } = &self.nodes[node];
            let parent = parent.map(|parent| segment_of[parent]);
            let position = parent.map_or(0, |parent| {
                let parent: &Segment = &batch.segments[parent];
                parent.position + parent.rows.len()
            });
            let start = batch.token_ids.len();
            batch.token_ids.extend_from_slice(tokens);
            segment_of[node] = batch.segments.len();
            let rows = start..batch.token_ids.len();
            batch.segments.push(Segment { parent, rows, position, is_attended: *is_attended });
            pending.extend(children.iter().rev());
        }
        for leaf in &mut batch.leaves {
            *leaf = segment_of[*leaf];
        }
        batch
    }

    fn longest_match(&self, ids: &[u32]) -> Match {
        let mut found = Match { node: None, within: 0, tokens: 0 };
        if !self.packing.shares_prefixes {
            return found;
        }
        let mut candidates = &self.roots;
        while let Some(&next) = ids.get(found.tokens) {
            let Some(&node) = candidates.iter().find(|&&node| self.nodes[node].begins_with(next)) else {
                break;
            };
            let tokens = &self.nodes[node].tokens;
            let within = tokens.iter().zip(&ids[found.tokens..]).take_while(|(a, b)| a == b).count();
            found = Match { node: Some(node), within, tokens: found.tokens + within };
            if within < tokens.len() {
                break;
            }
            candidates = &self.nodes[node].children;
        }
        found
    }

    /// Cuts `node` after `at` tokens. The node keeps the first part, so that its parent and earlier siblings
    /// need no change. A new child takes the other tokens, all former children, and all texts that ended in
    /// the node.
    fn split(&mut self, node: usize, at: usize) {
        let rest = self.nodes[node].tokens.split_off(at);
        let grandchildren = std::mem::take(&mut self.nodes[node].children);
        let child = self.nodes.len();
        for &grandchild in &grandchildren {
            self.nodes[grandchild].parent = Some(child);
        }
        let is_attended = self.nodes[node].is_attended;
        self.nodes.push(Node { tokens: rest, parent: Some(node), children: grandchildren, is_attended });
        self.nodes[node].children.push(child);
        for leaf in &mut self.batch.leaves {
            if *leaf == node {
                *leaf = child;
            }
        }
    }

    fn add_node(&mut self, tokens: Vec<u32>, parent: Option<usize>) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node { tokens, parent, children: Vec::new(), is_attended: true });
        match parent {
            Some(parent) => self.nodes[parent].children.push(node),
            None => self.roots.push(node),
        }
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn build(texts: &[Vec<u32>]) -> Batch {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for text in texts {
            builder.push(&Text::new(&text[..], Wanted::WHOLE));
        }
        builder.build()
    }

    /// The ids of a text, read back from the forest.
    fn text(batch: &Batch, index: usize) -> Vec<u32> {
        batch.rows_of(index).map(|row| batch.token_ids()[row]).collect()
    }

    /// The number of distinct non-empty prefixes, which is the number of rows of a batch that shares all
    /// prefixes.
    fn distinct_prefixes(texts: &[Vec<u32>]) -> usize {
        let prefixes = texts.iter().flat_map(|text| (1..=text.len()).map(|end| &text[..end]));
        prefixes.collect::<std::collections::HashSet<_>>().len()
    }

    #[test]
    fn random_texts_come_back_and_every_shared_prefix_is_stored_once() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..500 {
            let count = rng.random_range(1..12);
            let texts: Vec<Vec<u32>> = (0..count)
                .map(|_| (0..rng.random_range(1..9)).map(|_| rng.random_range(0..3)).collect())
                .collect();
            let mut builder = BatchBuilder::new(Packing::SHARED);
            let wanted: Vec<Wanted> = texts
                .iter()
                .map(|ids| {
                    let wanted = if rng.random_bool(0.5) { Wanted::WHOLE } else { Wanted::TOKENS };
                    builder.push(&Text { reusable: ids.len() / 2, ..Text::new(&ids[..], wanted) });
                    wanted
                })
                .collect();
            let batch = builder.build();
            assert_eq!(batch.wanted(), wanted);
            assert!(batch.reusable().iter().eq(&texts.iter().map(|ids| ids.len() / 2).collect::<Vec<_>>()));
            let positions: Vec<usize> = batch.positions().collect();
            for (index, ids) in texts.iter().enumerate() {
                assert_eq!(&text(&batch, index), ids, "{texts:?}");
                let rows = batch.rows_of(index);
                assert!(rows.enumerate().all(|(position, row)| positions[row] == position), "{texts:?}");
                assert_eq!(batch.rows_of(index).last(), batch.last_rows().nth(index), "{texts:?}");
            }
            assert_eq!(batch.token_ids().len(), distinct_prefixes(&texts), "{texts:?}");
            for (index, segment) in batch.segments().iter().enumerate() {
                let before: usize =
                    batch.path(index).iter().map(|&s| batch.segments()[s].rows.len()).sum::<usize>();
                assert_eq!(segment.position + segment.rows.len(), before);
                assert!(segment.parent.is_none_or(|parent| parent < index) && !segment.rows.is_empty());
            }
            assert_eq!(batch.positions().count(), batch.token_ids().len());
        }
    }

    #[test]
    fn the_cost_of_a_text_is_what_adding_it_adds() {
        let texts =
            [vec![1, 2, 3, 4], vec![1, 2, 5], vec![1, 2, 3, 4], vec![1], vec![7, 7], vec![1, 2, 3, 4, 9]];
        let mut builder = BatchBuilder::new(Packing::SHARED);
        let costs: Vec<usize> = texts
            .iter()
            .map(|text| {
                let (cost, before) = (builder.cost(text), builder.unique_tokens());
                builder.push(&Text::new(&text[..], Wanted::WHOLE));
                assert_eq!(builder.unique_tokens() - before, cost);
                cost
            })
            .collect();
        assert_eq!(costs, [4, 1, 0, 0, 2, 1]);
        assert_eq!(builder.texts(), 6);
    }

    #[test]
    fn without_sharing_every_text_is_a_root_of_its_own() {
        let mut builder = BatchBuilder::new(Packing::SEPARATE);
        builder.push(&Text::new([1, 2, 3], Wanted::WHOLE));
        builder.push(&Text::new([1, 2, 3], Wanted::TOKENS));
        let batch = builder.build();
        assert_eq!(batch.token_ids(), [1, 2, 3, 1, 2, 3]);
        assert_eq!(batch.last_rows().collect::<Vec<_>>(), [2, 5]);
        assert_eq!(batch.rows_of(1).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(batch.positions().collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn token_types_begin_at_the_second_text() {
        let mut builder = BatchBuilder::new(Packing::SEPARATE);
        for (ids, second) in [(&[1, 2, 3][..], Some(2)), (&[4], None), (&[1, 2], Some(0)), (&[5, 6], Some(2))]
        {
            builder.push(&Text { second, ..Text::new(ids, Wanted::WHOLE) });
        }
        let batch = builder.build();
        assert_eq!(batch.token_types(), [0, 0, 1, 0, 1, 1, 0, 0]);
        assert_eq!(batch.second(), [Some(2), None, Some(0), Some(2)]);
        assert_eq!(batch.row_kinds(), [0; 8]);
    }

    #[test]
    fn all_rows_of_a_text_have_its_kind() {
        let mut builder = BatchBuilder::new(Packing::SEPARATE);
        for (ids, kind) in [(&[1, 2, 3][..], 2), (&[1, 2, 3], 0), (&[5], 1)] {
            builder.push(&Text { kind, ..Text::new(ids, Wanted::TOKENS) });
        }
        assert_eq!(builder.build().row_kinds(), [2, 2, 2, 0, 0, 0, 1]);
    }

    #[test]
    fn the_rows_of_marks_are_found_across_segments_and_without_marks_they_are_all() {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for (ids, marks) in [(&[1, 2, 3, 4][..], &[0, 3][..]), (&[1, 2, 5], &[2]), (&[1, 2], &[])] {
            builder.push(&Text { marks: marks.to_vec(), ..Text::new(ids, Wanted::TOKENS) });
        }
        // Rows: 1 2 | 3 4 | 5.
        let batch = builder.build();
        assert_eq!([0, 1, 2].map(|text| batch.marked_rows(text)), [vec![0, 3], vec![4], vec![0, 1]]);
    }

    #[test]
    fn a_split_keeps_the_texts_that_ended_in_the_node() {
        let batch = build(&[vec![1, 2, 3], vec![1, 2], vec![1, 2, 3, 4]]);
        assert_eq!(batch.token_ids(), [1, 2, 3, 4]);
        assert_eq!(batch.last_rows().collect::<Vec<_>>(), [2, 1, 3]);
    }

    #[test]
    fn unattended_tokens_are_a_segment_of_their_own_that_no_text_shares() {
        for packing in [Packing::SHARED, Packing::SEPARATE] {
            let mut builder = BatchBuilder::new(packing);
            builder.push(&Text { unattended: 2, ..Text::new(vec![1, 2, 3, 9, 9], Wanted::TOKENS) });
            builder.push(&Text::new(vec![1, 2, 3, 9], Wanted::TOKENS));
            let batch = builder.build();
            assert_eq!((text(&batch, 0), text(&batch, 1)), (vec![1, 2, 3, 9, 9], vec![1, 2, 3, 9]));
            assert_ne!(batch.leaves()[0], batch.leaves()[1]);
            assert_eq!(
                batch.leaves().iter().map(|&leaf| batch.attended_tokens(leaf)).collect::<Vec<_>>(),
                [3, 4]
            );
            let is_attended = |segment: usize| batch.segments()[segment].is_attended;
            assert_eq!(
                batch.path(batch.leaves()[0]).into_iter().map(is_attended).collect::<Vec<_>>(),
                [true, false]
            );
        }
    }

    #[test]
    fn equal_texts_of_which_different_things_are_wanted_share_their_rows() {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for (ids, wanted) in
            [(&[1, 2, 3][..], Wanted::TOKENS), (&[1, 2], Wanted::WHOLE), (&[1, 2, 3], Wanted::WHOLE)]
        {
            builder.push(&Text::new(ids, wanted));
        }
        let batch = builder.build();
        assert_eq!(batch.token_ids(), [1, 2, 3]);
        assert_eq!(batch.wanted(), [Wanted::TOKENS, Wanted::WHOLE, Wanted::WHOLE]);
        assert_eq!(batch.leaves()[0], batch.leaves()[2]);
        assert_eq!(batch.rows_of(0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(batch.rows_of(1).collect::<Vec<_>>(), [0, 1]);
    }
}

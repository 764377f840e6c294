//! The order in which a recurrent layer goes through a batch, and where it gets a state from.
//!
//! Input: for each segment, its computed rows and the states that are wanted in it. Output: a [`Walk`]. What
//! must hold: a run begins with the state at its parent's end; the number of states that exist at a time
//! grows with the logarithm of the number of segments. For this, a segment's children with fewer descendants
//! come first, and the last child takes over its parent's state.

use std::ops::Range;

/// A segment of a batch, as recurrent layers see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SegmentRows {
    /// The segment before it.
    pub(crate) parent: Option<usize>,
    /// Its computed rows, by their indices among all computed rows. A segment's first rows may be known.
    pub(crate) rows: Range<usize>,
    /// The index of the known state at the end of its known rows. Without one, it begins where its parent
    /// ends.
    pub(crate) known: Option<usize>,
    /// The places where its state is kept, ascending: how many computed rows come before, at least one.
    pub(crate) kept_after: Vec<usize>,
    /// Whether no token attends to its tokens, which then do not change a state either.
    pub(crate) is_unattended: bool,
}

/// A run of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowRun {
    /// The rows, by their indices among the computed rows.
    pub(crate) rows: Range<usize>,
    /// The index that the state after the run has among the kept states.
    pub(crate) keeps: Option<usize>,
    /// Whether no token attends to its rows.
    pub(crate) is_unattended: bool,
    start: RunStart,
    /// Whether several runs continue it.
    branches: bool,
}

/// The state before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunStart {
    /// The beginning of a text.
    Text,
    /// A state that an earlier batch kept.
    Known(usize),
    /// The end of the previous run.
    Previous,
    /// The end of the last run that branches.
    Branch,
    /// The same, for the last of its branches.
    LastBranch,
}

/// The runs of texts that begin with the same segment.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The rows of all its runs.
    pub(crate) rows: Range<usize>,
    /// The indices of the states that its runs keep.
    pub(crate) kept: Range<usize>,
    runs: Vec<RowRun>,
}

impl Tree {
    /// Calls `step` for each run with the state before it, which `step` turns into the state after it.
    /// `start` gives the state of a text's beginning, or the known state of this index.
    pub(crate) fn follow_runs<S: Clone>(
        &self,
        start: impl Fn(Option<usize>) -> S,
        mut step: impl FnMut(&RowRun, &mut S),
    ) {
        let (mut branched, mut previous) = (Vec::new(), None);
        for run in &self.runs {
            let state = match run.start {
                RunStart::Text => None,
                RunStart::Known(index) => Some(start(Some(index))),
                RunStart::Previous => previous.take(),
                RunStart::Branch => branched.last().cloned(),
                RunStart::LastBranch => branched.pop(),
            };
            let mut state = state.unwrap_or_else(|| start(None));
            step(run, &mut state);
            if run.branches {
                branched.push(state);
            } else {
                previous = Some(state);
            }
        }
    }
}

/// The way through a batch.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Groups of texts that share no state.
    pub(crate) trees: Vec<Tree>,
    /// The number of states that are kept.
    pub(crate) kept: usize,
}

impl Walk {
    /// The way through these segments. Parents come before children, and a segment's descendants follow it.
    /// Kept states are counted in the order of the segments.
    pub(crate) fn from_segments(segments: &[SegmentRows]) -> Self {
        let mut children = vec![Vec::new(); segments.len()];
        let mut sizes = vec![1; segments.len()];
        let (mut roots, mut first_kept) = (Vec::new(), Vec::new());
        let mut kept = 0;
        for segment in segments {
            first_kept.push(kept);
            kept += segment.kept_after.len();
        }
        for (index, segment) in segments.iter().enumerate().rev() {
            match segment.parent {
                Some(parent) => {
                    sizes[parent] += sizes[index];
                    children[parent].push(index);
                }
                None => roots.push(index),
            }
        }
        for children in &mut children {
            children.sort_by_key(|&child| sizes[child]);
        }
        let forest = Forest { segments, children, sizes, first_kept };
        Self { trees: roots.iter().rev().map(|&root| forest.tree_at(root, kept)).collect(), kept }
    }
}

/// Segments, and their places in the walk.
struct Forest<'a> {
    segments: &'a [SegmentRows],
    /// In the order of the walk.
    children: Vec<Vec<usize>>,
    /// The number of descendants, including itself.
    sizes: Vec<usize>,
    /// The index of its first kept state.
    first_kept: Vec<usize>,
}

impl Forest<'_> {
    /// The tree of a root. `kept` is the number of kept states in the forest.
    fn tree_at(&self, root: usize, kept: usize) -> Tree {
        let next = root + self.sizes[root];
        let mut tree = Tree {
            rows: self.segments[root].rows.start..self.segments[next - 1].rows.end,
            kept: self.first_kept[root]..self.first_kept.get(next).copied().unwrap_or(kept),
            runs: Vec::new(),
        };
        let mut pending = vec![(root, RunStart::Text)];
        while let Some((index, start)) = pending.pop() {
            let end = tree.add_runs(&self.segments[index], start, self.first_kept[index]);
            let children = &self.children[index];
            let branches = children.len() > 1 && end == RunStart::Previous;
            if let (true, Some(run)) = (branches, tree.runs.last_mut()) {
                run.branches = true;
            }
            for (place, &child) in children.iter().enumerate().rev() {
                let is_last = place + 1 == children.len();
                let start = match (branches, is_last) {
                    (true, true) => RunStart::LastBranch,
                    (true, false) => RunStart::Branch,
                    (false, _) => end,
                };
                pending.push((child, start));
            }
        }
        tree
    }
}

impl Tree {
    /// Adds the runs of a segment. Returns where its children begin.
    fn add_runs(&mut self, segment: &SegmentRows, start: RunStart, first_kept: usize) -> RunStart {
        let (Range { start: first, end }, is_unattended) = (segment.rows.clone(), segment.is_unattended);
        let (mut from, mut start) = (first, segment.known.map_or(start, RunStart::Known));
        for (index, after) in segment.kept_after.iter().enumerate() {
            let (rows, keeps) = (from..first + after, Some(first_kept + index));
            from = rows.end;
            self.runs.push(RowRun { rows, keeps, is_unattended, start, branches: false });
            start = RunStart::Previous;
        }
        if from < end {
            self.runs.push(RowRun { rows: from..end, keeps: None, is_unattended, start, branches: false });
            start = RunStart::Previous;
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// A state here is the list of the rows before it. So each run must see the rows of its text.
    #[test]
    fn every_run_begins_where_its_text_is() {
        let mut rng = StdRng::seed_from_u64(60);
        for round in 0..300 {
            let (segments, texts) = random_forest(&mut rng, round);
            let walk = Walk::from_segments(&segments);
            let mut seen = Vec::new();
            let mut kept = vec![None; walk.kept];
            for tree in &walk.trees {
                let start =
                    |known: Option<usize>| known.map_or_else(Vec::new, |index| vec![usize::MAX - index]);
                tree.follow_runs(start, |run, state: &mut Vec<usize>| {
                    assert!(tree.rows.start <= run.rows.start && run.rows.end <= tree.rows.end);
                    for row in run.rows.clone() {
                        assert_eq!(*state, texts[row], "row {row} of {segments:?}");
                        state.push(row);
                        seen.push(row);
                    }
                    if let Some(index) = run.keeps {
                        assert!(tree.kept.contains(&index));
                        kept[index] = Some(run.rows.end - 1);
                    }
                });
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..texts.len()).collect::<Vec<_>>());
            let expected = segments.iter().flat_map(|segment| {
                segment.kept_after.iter().map(|after| Some(segment.rows.start + after - 1))
            });
            assert_eq!(kept, expected.collect::<Vec<_>>());
        }
    }

    /// Segments, and for each computed row the rows before it in its text.
    fn random_forest(rng: &mut StdRng, round: usize) -> (Vec<SegmentRows>, Vec<Vec<usize>>) {
        let count = rng.random_range(1..30);
        let (mut segments, mut texts) = (Vec::<SegmentRows>::new(), Vec::<Vec<usize>>::new());
        let mut ends: Vec<Vec<usize>> = Vec::new();
        let mut path: Vec<usize> = Vec::new();
        for index in 0..count {
            // Descendants follow their segment: a parent is on the path to the last segment.
            path.truncate(rng.random_range(0..=path.len()));
            let parent = path.last().copied();
            let whole_known = parent
                .is_none_or(|parent| segments[parent].known.is_some() && segments[parent].rows.is_empty());
            let known = (round % 2 == 1 && whole_known && rng.random_bool(0.6)).then_some(index);
            let length = if known.is_some() { rng.random_range(0..4) } else { rng.random_range(1..5) };
            let rows = texts.len()..texts.len() + length;
            let mut end = match (known, parent) {
                (Some(known), _) => vec![usize::MAX - known],
                (None, Some(parent)) => ends[parent].clone(),
                (None, None) => Vec::new(),
            };
            for row in rows.clone() {
                texts.push(end.clone());
                end.push(row);
            }
            let kept_after = (1..=length).filter(|_| rng.random_bool(0.2)).collect();
            segments.push(SegmentRows { parent, rows, known, kept_after, is_unattended: false });
            ends.push(end);
            path.push(index);
        }
        (segments, texts)
    }

    #[test]
    fn few_states_exist_at_a_time() {
        // Each segment continues the one before it, and a leaf hangs on each: a comb of depth 500.
        let mut segments = Vec::new();
        let mut pending = vec![(None, 500)];
        while let Some((parent, depth)) = pending.pop() {
            let index = segments.len();
            segments.push(SegmentRows { parent, rows: index..index + 1, ..SegmentRows::default() });
            if depth > 0 {
                pending.extend([(Some(index), depth - 1), (Some(index), 0)]);
            }
        }
        let walk = Walk::from_segments(&segments);
        let (mut branched, mut most) = (0_usize, 0);
        for run in &walk.trees[0].runs {
            branched -= usize::from(run.start == RunStart::LastBranch);
            branched += usize::from(run.branches);
            most = most.max(branched);
        }
        assert_eq!((walk.trees.len(), branched), (1, 0));
        assert!(most <= 2, "{most}");
    }
}

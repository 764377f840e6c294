//! A gated delta rule on the CPU: a work item is one head of the texts that share a beginning.
//!
//! Input: products of the computed rows. Output: an operand. A state is, for each head, its blocks of columns
//! ([`block_columns`]), and the channels of the tokens before. What must hold: as in [`crate::delta`], whose
//! plain form is the reference; a text's values have the same bits in every batch and on any threads.

use super::{CpuOperations, PackedActivations};
use crate::{
    delta::{DeltaRule, RowRun, Tree, UNIT_EPSILON},
    kernels::{
        InstructionSet,
        delta::{DeltaTokens, block_columns, convolve_rows, delta_steps, dot_rows, gated_norm, unit_row},
    },
    operations::{DeltaInput, Operations, Precision, Result},
    plan::DeltaSizes,
};

/// The most tokens that pass a block of the state before the next block.
const TOKENS_PER_STEP: usize = 32;

/// A head of some texts.
struct HeadItem<'a> {
    head: usize,
    tree: &'a Tree,
    /// `[rows of the tree, value size]`
    results: &'a mut [f32],
    /// The head's part of each state in [`Tree::kept`].
    kept: Vec<&'a mut [f32]>,
}

/// The inputs of all items.
struct HeadSteps<'a> {
    set: InstructionSet,
    rule: &'a DeltaRule,
    /// `[rows, channels]`
    channels: &'a [f32],
    /// `[rows, 2 · value heads]`
    rates: &'a [f32],
}

/// The sizes of a head's state.
#[derive(Clone, Copy)]
struct StateShape {
    /// Values of a block.
    block: usize,
    /// The number of blocks.
    blocks: usize,
    /// Values of the channels of the tokens before.
    before: usize,
}

impl StateShape {
    fn from_sizes(set: InstructionSet, sizes: DeltaSizes) -> Self {
        let DeltaSizes { key_size, value_size, taps, .. } = sizes;
        let columns = block_columns(set);
        Self {
            block: key_size * columns,
            blocks: value_size.div_ceil(columns),
            before: (taps - 1) * (2 * key_size + value_size),
        }
    }

    fn value_count(self) -> usize {
        self.block * self.blocks + self.before
    }
}

/// The values of the tokens that pass together.
#[derive(Default)]
struct Passing {
    head: usize,
    /// The channels of the tokens before and of the tokens, `[taps − 1 + tokens, width]`.
    window: Vec<f32>,
    /// `[tokens, width]`
    mixed: Vec<f32>,
    /// `[tokens, key size]`
    queries: Vec<f32>,
    /// `[tokens, key size]`
    keys: Vec<f32>,
    /// `[tokens, columns of a block]`
    values: Vec<f32>,
    rates: Vec<[f32; 3]>,
}

impl CpuOperations {
    /// The number of values of a state that outlives its batch.
    pub(super) fn delta_state(&self, sizes: DeltaSizes) -> usize {
        sizes.value_heads * StateShape::from_sizes(self.compute.set, sizes).value_count()
    }

    /// See [`Operations::delta_rule`].
    pub(super) fn delta_steps(
        &mut self,
        input: DeltaInput<'_, Self>,
        rule: &DeltaRule,
        precision: Precision,
    ) -> Result<(PackedActivations, Vec<Vec<f32>>)> {
        let DeltaInput { channels, rates, mut gate, rows, walk, known } = input;
        let (set, size) = (self.compute.set, rule.sizes.value_size);
        let of_head = StateShape::from_sizes(set, rule.sizes).value_count();
        // [head][rows][value size]: each item writes to one place.
        let mut results = self.activations(rule.sizes.value_heads * channels.rows(), size);
        let mut kept = vec![vec![0.0; rule.sizes.value_heads * of_head]; walk.kept];
        let mut kept_heads: Vec<_> = kept.iter_mut().map(|state| state.chunks_exact_mut(of_head)).collect();
        let mut items = Vec::new();
        let heads = results.values_mut().chunks_exact_mut(channels.rows() * size).enumerate();
        for (head, mut results) in heads {
            let mut kept = kept_heads.iter_mut().filter_map(Iterator::next);
            for tree in &walk.trees {
                let (own, rest) = results.split_at_mut(tree.rows.len() * size);
                let kept = kept.by_ref().take(tree.kept.len()).collect();
                items.push(HeadItem { head, tree, results: own, kept });
                results = rest;
            }
        }
        let steps = HeadSteps { set, rule, channels: channels.values(), rates: rates.values() };
        self.compute.threads.for_each(items.into_iter(), |item| steps.run_item(item, known));
        let (count, values) = (channels.rows(), results.values());
        self.each_rows(&mut gate, |from, gates| {
            for (index, gate) in gates.chunks_exact_mut(rule.sizes.value_count()).enumerate() {
                let row = rows.map_or(from + index, |rows| rows[from + index]);
                for (head, gate) in gate.chunks_exact_mut(size).enumerate() {
                    let result = &values[(head * count + row) * size..][..size];
                    gated_norm(set, result, &rule.norm, rule.epsilon, gate);
                }
            }
        });
        Ok((self.operand(&gate, precision)?, kept))
    }
}

impl HeadSteps<'_> {
    fn run_item(&self, item: HeadItem<'_>, known: &[&[f32]]) {
        let HeadItem { head, tree, results, mut kept } = item;
        let shape = StateShape::from_sizes(self.set, self.rule.sizes);
        let mut passing = Passing { head, ..Passing::default() };
        let size = self.rule.sizes.value_size;
        tree.follow_runs(
            |index| match index {
                Some(index) => known[index][head * shape.value_count()..][..shape.value_count()].to_vec(),
                None => vec![0.0; shape.value_count()],
            },
            |run: &RowRun, state| {
                let (matrix, before) = state.split_at_mut(shape.block * shape.blocks);
                for from in run.rows.clone().step_by(TOKENS_PER_STEP) {
                    let count = TOKENS_PER_STEP.min(run.rows.end - from);
                    let results = &mut results[(from - tree.rows.start) * size..][..count * size];
                    self.prepare_tokens(from, results, before, &mut passing);
                    self.take_steps(matrix, shape, results, &mut passing);
                }
                if let Some(index) = run.keeps {
                    kept[index - tree.kept.start].copy_from_slice(state);
                }
            },
        );
    }

    /// Convolves the channels of the tokens from the row `from` on, and makes their queries, keys and rates.
    /// Their values go to `values`. `before` are the channels of the tokens before.
    fn prepare_tokens(&self, from: usize, values: &mut [f32], before: &mut [f32], passing: &mut Passing) {
        let Passing { head, window, mixed, queries, keys, rates, .. } = passing;
        let (sizes, width) = (self.rule.sizes, self.rule.head_width());
        let (size, count) = (sizes.key_size, values.len() / sizes.value_size);
        window.resize(before.len() + count * width, 0.0);
        window[..before.len()].copy_from_slice(before);
        for (row, out) in (from..).zip(window[before.len()..].chunks_exact_mut(width)) {
            self.rule.head_channels(*head, &self.channels[row * sizes.channel_count()..], out);
        }
        before.copy_from_slice(&window[count * width..]);
        mixed.resize(count * width, 0.0);
        convolve_rows(self.set, window, &self.rule.taps[*head], width, mixed);
        queries.resize(count * size, 0.0);
        keys.resize(count * size, 0.0);
        rates.clear();
        let factor = 1.0 / (size as f32).sqrt();
        for (index, mixed) in mixed.chunks_exact(width).enumerate() {
            let (query, key) = (&mut queries[index * size..][..size], &mut keys[index * size..][..size]);
            unit_row(self.set, &mixed[..size], UNIT_EPSILON, factor, query);
            unit_row(self.set, &mixed[size..2 * size], UNIT_EPSILON, 1.0, key);
            values[index * sizes.value_size..][..sizes.value_size].copy_from_slice(&mixed[2 * size..]);
            let products = &self.rates[(from + index) * 2 * sizes.value_heads..];
            let [strength, decay] = self.rule.head_rates(*head, products);
            let mut product = 0.0;
            dot_rows(self.set, query, key, &mut product);
            rates.push([strength, decay, product]);
        }
    }

    /// Takes the steps of the tokens. `results`, `[tokens, value size]`, holds their values, which become
    /// their results.
    fn take_steps(&self, matrix: &mut [f32], shape: StateShape, results: &mut [f32], passing: &mut Passing) {
        let Passing { queries, keys, values, rates, .. } = passing;
        let (size, key_size) = (self.rule.sizes.value_size, self.rule.sizes.key_size);
        let columns = shape.block / key_size;
        for (index, block) in matrix.chunks_exact_mut(shape.block).enumerate() {
            let first = index * columns;
            let count = columns.min(size - first);
            // Columns beyond the value size stay zero.
            values.clear();
            values.resize(rates.len() * columns, 0.0);
            for (values, row) in values.chunks_exact_mut(columns).zip(results.chunks_exact(size)) {
                values[..count].copy_from_slice(&row[first..first + count]);
            }
            delta_steps(self.set, block, DeltaTokens { size: key_size, queries, keys, rates }, values);
            for (values, row) in values.chunks_exact(columns).zip(results.chunks_exact_mut(size)) {
                row[first..first + count].copy_from_slice(&values[..count]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        delta::{self, SegmentRows, Walk},
        tests::assert_close,
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::{Batch, BatchBuilder, DType, Packing, Text, Wanted};

    /// Products of some rows.
    #[derive(Clone)]
    struct Products {
        channels: Vec<f32>,
        rates: Vec<f32>,
        gate: Vec<f32>,
    }

    impl Products {
        fn random(rng: &mut StdRng, rule: &DeltaRule, rows: usize) -> Self {
            let mut values =
                |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-2.0..2.0)).collect() };
            Self {
                channels: values(rows * rule.sizes.channel_count()),
                rates: values(rows * 2 * rule.sizes.value_heads),
                gate: values(rows * rule.sizes.value_count()),
            }
        }

        /// The products of some of the rows.
        fn of_rows(&self, rule: &DeltaRule, rows: &[usize]) -> Self {
            let pick = |values: &[f32], width: usize| -> Vec<f32> {
                rows.iter().flat_map(|row| values[row * width..][..width].to_vec()).collect()
            };
            Self {
                channels: pick(&self.channels, rule.sizes.channel_count()),
                rates: pick(&self.rates, 2 * rule.sizes.value_heads),
                gate: pick(&self.gate, rule.sizes.value_count()),
            }
        }
    }

    fn random_rule(rng: &mut StdRng) -> DeltaRule {
        let key_heads = rng.random_range(1..3);
        let sizes = DeltaSizes {
            key_heads,
            value_heads: key_heads * rng.random_range(1..3),
            key_size: rng.random_range(1..40),
            value_size: rng.random_range(1..80),
            taps: rng.random_range(1..6),
            is_tiled: rng.random_bool(0.3),
        };
        let width = 2 * sizes.key_size + sizes.value_size;
        let mut values =
            |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
        DeltaRule {
            sizes,
            taps: (0..sizes.value_heads).map(|_| values(sizes.taps * width)).collect(),
            decays: values(sizes.value_heads).iter().map(|value| -(3.0 * value).exp()).collect(),
            decay_bias: values(sizes.value_heads),
            norm: values(sizes.value_size),
            epsilon: 0.01,
        }
    }

    fn random_batch(rng: &mut StdRng) -> Batch {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        let longest = if rng.random_bool(0.2) { 140 } else { 20 };
        for _ in 0..rng.random_range(1..9) {
            let ids: Vec<u32> = (0..rng.random_range(1..longest)).map(|_| rng.random_range(0..2)).collect();
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        builder.build()
    }

    fn walk_through(batch: &Batch) -> Walk {
        let stretch = |segment: &text_embeddings_backend_core::Segment| SegmentRows {
            parent: segment.parent,
            rows: segment.rows.clone(),
            ..SegmentRows::default()
        };
        Walk::from_segments(&batch.segments().iter().map(stretch).collect::<Vec<_>>())
    }

    fn compute(
        operations: &mut CpuOperations,
        rule: &DeltaRule,
        products: &Products,
        (walk, known): (&Walk, &[&[f32]]),
        rows: Option<&[usize]>,
    ) -> (Vec<f32>, Vec<Vec<f32>>) {
        let channels = operations.tensor(&products.channels, rule.sizes.channel_count()).unwrap();
        let rates = operations.tensor(&products.rates, 2 * rule.sizes.value_heads).unwrap();
        let gate = operations.tensor(&products.gate, rule.sizes.value_count()).unwrap();
        let input = DeltaInput { channels: &channels, rates: &rates, gate, rows, walk, known };
        let (operand, kept) = operations.delta_rule(input, rule, Precision::High).unwrap();
        (operand.operand.values(), kept)
    }

    #[test]
    fn the_steps_are_those_of_the_plain_form() {
        let mut rng = StdRng::seed_from_u64(61);
        for round in 0..40 {
            let (rule, batch) = (random_rule(&mut rng), random_batch(&mut rng));
            let walk = walk_through(&batch);
            let all = batch.token_ids().len();
            let rows: Vec<usize> = (0..all).filter(|row| *row == 0 || rng.random_bool(0.5)).collect();
            let products = Products::random(&mut rng, &rule, all);
            let wanted = Products { gate: products.of_rows(&rule, &rows).gate, ..products.clone() };
            let recurred = delta::plain_results(&rule, &products.channels, &products.rates, &walk, &[]);
            let expected = delta::gated_norm(&rule, &recurred.results, &rows, &wanted.gate);
            for set in InstructionSet::available() {
                let threads = rng.random_range(1..4);
                let mut operations = CpuOperations::start(threads, set, DType::Float32).unwrap();
                let (got, _) = compute(&mut operations, &rule, &wanted, (&walk, &[]), Some(&rows));
                assert_close(&got, &expected, 2e-4, &format!("round {round}, {set}, {:?}", rule.sizes));
            }
        }
    }

    #[test]
    fn a_text_has_the_same_bits_alone_and_in_any_company() {
        let mut rng = StdRng::seed_from_u64(62);
        for round in 0..30 {
            let (rule, batch) = (random_rule(&mut rng), random_batch(&mut rng));
            let products = Products::random(&mut rng, &rule, batch.token_ids().len());
            for set in InstructionSet::available() {
                let [mut one, mut three] =
                    [1, 3].map(|threads| CpuOperations::start(threads, set, DType::Float32).unwrap());
                let (all, _) = compute(&mut three, &rule, &products, (&walk_through(&batch), &[]), None);
                for text in 0..batch.leaves().len() {
                    let rows: Vec<usize> = batch.rows_of(text).collect();
                    let alone = SegmentRows { rows: 0..rows.len(), ..SegmentRows::default() };
                    let own = products.of_rows(&rule, &rows);
                    let (got, _) =
                        compute(&mut one, &rule, &own, (&Walk::from_segments(&[alone]), &[]), None);
                    let width = rule.sizes.value_count();
                    let expected: Vec<f32> =
                        rows.iter().flat_map(|row| all[row * width..][..width].to_vec()).collect();
                    assert_eq!(got, expected, "round {round}, {set}, text {text}");
                }
            }
        }
    }

    #[test]
    fn a_text_goes_on_from_a_kept_state_with_the_same_bits() {
        let mut rng = StdRng::seed_from_u64(63);
        for round in 0..40 {
            let (rule, tokens) = (random_rule(&mut rng), rng.random_range(2..90));
            let cut = rng.random_range(1..tokens);
            let products = Products::random(&mut rng, &rule, tokens);
            let rest: Vec<usize> = (cut..tokens).collect();
            let whole = SegmentRows { rows: 0..tokens, kept_after: vec![cut], ..SegmentRows::default() };
            let second = SegmentRows { rows: 0..rest.len(), known: Some(0), ..SegmentRows::default() };
            let after = products.of_rows(&rule, &rest);
            let width = rule.sizes.value_count();
            for set in InstructionSet::available() {
                let mut operations = CpuOperations::start(2, set, DType::Float32).unwrap();
                let walk = Walk::from_segments(std::slice::from_ref(&whole));
                let (all, kept) = compute(&mut operations, &rule, &products, (&walk, &[]), None);
                assert_eq!(kept[0].len(), operations.delta_state_values(rule.sizes));
                let walk = Walk::from_segments(std::slice::from_ref(&second));
                let (got, none) = compute(&mut operations, &rule, &after, (&walk, &[&kept[0]]), None);
                assert_eq!((got.as_slice(), none.len()), (&all[cut * width..], 0), "round {round}, {set}");
            }
            let plain = |products: &Products, stretch: &SegmentRows, known: &[&[f32]]| {
                let walk = Walk::from_segments(std::slice::from_ref(stretch));
                delta::plain_results(&rule, &products.channels, &products.rates, &walk, known)
            };
            let all = plain(&products, &whole, &[]);
            assert_eq!(all.kept[0].len(), delta::state_values(rule.sizes));
            assert_eq!(plain(&after, &second, &[&all.kept[0]]).results, all.results[cut * width..]);
        }
    }
}

//! Compares products and attention with slow references, for random shapes and values, for as long as `make
//! fuzz` asks.
//!
//! Every case follows from a number. A failure shows the number, so that the case can be run again alone.

use super::*;
use crate::bias::{DistanceBias, DistanceRule};
use crate::kernels::{
    compute::Compute,
    matrix::{ColumnOrder, Matrix},
    operand::Operand,
    pack::{Words, round_to_bf16},
    stored::StoredMatrix,
    threads::Threads,
};
use std::time::{Duration, Instant};

/// The formats of attention, each with its largest error for values up to 2.
pub(super) const ATTENTION_FORMATS: [(OperandFormat, f32); 3] =
    [(OperandFormat::F32, 5e-6), (OperandFormat::Int16, 2e-3), (OperandFormat::Bf16, 0.04)];
const FORMATS: [(OperandFormat, OperandFormat); 5] = [
    (OperandFormat::F32, OperandFormat::F32),
    (OperandFormat::F32, OperandFormat::Bf16),
    (OperandFormat::Bf16, OperandFormat::Bf16),
    (OperandFormat::Int16, OperandFormat::Int16),
    (OperandFormat::Int8, OperandFormat::Int8),
];

/// The first cases, which run with all other tests.
#[test]
fn the_first_random_shapes_equal_the_references() {
    (0..150).for_each(case);
}

/// With `FUZZ_CASE`, runs this case alone. Otherwise runs cases from `FUZZ_START` (by default from the clock)
/// for `FUZZ_SECONDS`.
#[test]
#[ignore = "runs until FUZZ_SECONDS are over: make fuzz"]
#[expect(clippy::print_stderr, reason = "shows the progress of fuzzing")]
fn random_shapes_equal_the_references_for_a_long_time() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    if let Some(only) = number("FUZZ_CASE") {
        return case(only);
    }
    let by_the_clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() << 20;
    let start = number("FUZZ_START").unwrap_or_else(by_the_clock);
    let end = Instant::now() + Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(60));
    let mut next = start;
    while Instant::now() < end {
        case(next);
        next += 1;
    }
    eprintln!("{} cases from FUZZ_CASE={start} on", next - start);
}

#[test]
fn attention_of_every_number_of_queries_equals_the_reference() {
    let computes: Vec<Compute> = InstructionSet::available()
        .into_iter()
        .flat_map(|set| [1, 2].map(|threads| Compute { set, threads: Threads::start(threads).unwrap() }))
        .collect();
    for number in 1..=130 {
        let mut rng = StdRng::seed_from_u64(number as u64);
        let keys = 1 + number % 2;
        let heads =
            Heads { queries: keys * rng.random_range(1..4), keys, size: 2 * rng.random_range(0..20) + 1 };
        let packing = if number % 3 == 0 { Packing::SEPARATE } else { Packing::SHARED };
        let mut builder = BatchBuilder::new(packing);
        for length in [2 * rng.random_range(0..40) + 1, 130] {
            let ids: Vec<u32> = (0..length).map(|_| rng.random_range(0..2)).collect();
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        let batch = builder.build();
        let mut asked = rand::seq::index::sample(&mut rng, batch.token_ids().len(), number).into_vec();
        asked.sort_unstable();
        attention_is_near(&mut rng, &computes, (heads, &batch), &asked, &format!("{number} queries"));
    }
}

fn case(number: u64) {
    let mut rng = StdRng::seed_from_u64(number);
    let sets = InstructionSet::available();
    let set = sets[rng.random_range(0..sets.len())];
    let compute = Compute { set, threads: Threads::start(rng.random_range(1..4)).unwrap() };
    match rng.random_range(0..3) {
        0 => attention_case(&mut rng, compute, number),
        _ => product_case(&mut rng, &compute, number),
    }
}

/// A size of at most `most`. Small sizes, multiples of the kernels' units and their neighbours are likely.
fn size(rng: &mut StdRng, most: usize) -> usize {
    let near = |rng: &mut StdRng, step: usize| {
        (rng.random_range(1..=most.div_ceil(step)) * step + rng.random_range(0..3)).saturating_sub(1)
    };
    let size = match rng.random_range(0..4) {
        0 => rng.random_range(1..=9),
        1 => near(rng, 14),
        2 => near(rng, 32),
        _ => rng.random_range(1..=most),
    };
    size.clamp(1, most)
}

/// Rows whose values are even, have outliers, are tiny, are huge, are mostly zero, or are all zero.
fn spread(rng: &mut StdRng, rows: usize, columns: usize) -> Vec<f32> {
    let row = |rng: &mut StdRng| -> Vec<f32> {
        let kind = rng.random_range(0..6);
        let value = |rng: &mut StdRng| {
            let even = rng.random_range(-1.0..1.0_f32);
            match kind {
                0 if rng.random_bool(0.02) => even * 300.0,
                1 => even * 1e-12,
                2 => even * 1e12,
                3 if rng.random_bool(0.9) => 0.0,
                4 => 0.0,
                _ => even,
            }
        };
        (0..columns).map(|_| value(rng)).collect()
    };
    (0..rows).flat_map(|_| row(rng)).collect()
}

/// The values that `format` keeps of a row, each with the allowed error of a value between two integers.
fn kept(format: OperandFormat, row: &[f32]) -> Vec<(f64, f64)> {
    let largest = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let step = if format == OperandFormat::Int16 {
        row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt() / 32_767.0
    } else {
        f64::from(largest) / 127.0
    };
    let keep = |&value: &f32| match format {
        OperandFormat::F32 => (f64::from(value), 0.0),
        OperandFormat::Bf16 | OperandFormat::WideBf16 => {
            (f64::from(f32::from_bits(u32::from(round_to_bf16(value)) << 16)), 0.0)
        }
        OperandFormat::Int16 | OperandFormat::Int8 if largest == 0.0 => (0.0, 0.0),
        OperandFormat::Int16 | OperandFormat::Int8 => {
            let steps = f64::from(value) / step;
            let between = (steps.abs().fract() - 0.5).abs() < 1e-6 * steps.abs() + 1e-3;
            (steps.round_ties_even() * step, if between { step } else { 0.0 })
        }
    };
    row.iter().map(keep).collect()
}

pub(super) fn in_memory(values: &[f32], columns: usize) -> StoredMatrix {
    StoredMatrix::from_values(values, columns)
}

fn product_case(rng: &mut StdRng, compute: &Compute, number: u64) {
    let (rows, depth, outputs) = (size(rng, 140), size(rng, 600), size(rng, 200));
    let (left, right) = FORMATS[rng.random_range(0..FORMATS.len())];
    let (x, weights) = (spread(rng, rows, depth), spread(rng, outputs, depth));
    let matrix = Matrix::pack(compute, &[in_memory(&weights, depth)], right, ColumnOrder::Plain);
    let operand: Operand = compute.operand(&x, depth, left, Words::default(), |row, _| row);
    let mut got = vec![f32::NAN; rows * outputs];
    compute.product(&operand, &matrix, &mut got);
    let rows: Vec<_> = x.chunks(depth).map(|row| kept(left, row)).collect();
    let columns: Vec<_> = weights.chunks(depth).map(|row| kept(right, row)).collect();
    for (index, &got) in got.iter().enumerate() {
        let (row, column) = (&rows[index / outputs], &columns[index % outputs]);
        let (mut sum, mut magnitude, mut between) = (0.0, 0.0, 0.0);
        for (&(a, a_off), &(b, b_off)) in row.iter().zip(column) {
            sum += a * b;
            magnitude += (a * b).abs();
            between += a_off * b.abs() + b_off * a.abs() + a_off * b_off;
        }
        // Each step of the sum rounds to 24 bits, and so does a scale of bytes. Subnormal values may be
        // flushed to zero.
        let allowed =
            (depth + 8) as f64 * (magnitude * 1.2e-7 + f64::from(f32::MIN_POSITIVE)) + 1.001 * between;
        assert!(
            (f64::from(got) - sum).abs() <= allowed,
            "FUZZ_CASE={number}: {} {left:?} {right:?} at {index} of {}x{depth}x{outputs}: {got} for {sum}",
            compute.set,
            rows.len()
        );
    }
}

fn attention_case(rng: &mut StdRng, compute: Compute, number: u64) {
    let keys = rng.random_range(1..4);
    let heads = Heads { queries: keys * rng.random_range(1..5), keys, size: 2 * size(rng, 65) };
    let mut builder =
        BatchBuilder::new(if rng.random_bool(0.5) { Packing::SHARED } else { Packing::SEPARATE });
    for _ in 0..rng.random_range(1..8) {
        // There are few different tokens, so that texts share prefixes of all lengths and some are prefixes
        // of others.
        let kinds = rng.random_range(1..4);
        let length = size(rng, 150);
        let ids: Vec<u32> = (0..length).map(|_| rng.random_range(0..kinds)).collect();
        builder.push(&Text::new(ids, Wanted::WHOLE));
    }
    let batch = builder.build();
    let tokens = batch.token_ids().len();
    let share = rng.random_range(0.05..=1.0);
    let mut asked: Vec<usize> = (0..tokens).filter(|_| rng.random_bool(share)).collect();
    if asked.is_empty() {
        asked.push(rng.random_range(0..tokens));
    }
    attention_is_near(rng, &[compute], (heads, &batch), &asked, &format!("FUZZ_CASE={number}"));
}

/// A random scoring, with or without windows, soft caps and biases.
pub(crate) struct Scored {
    mask: Mask,
    divisor: f32,
    soft_cap: Option<f32>,
    bias: Option<DistanceBias>,
}

impl Scored {
    /// If the batch shares prefixes, no later token may count.
    pub(crate) fn random(rng: &mut StdRng, batch: &Batch, heads: Heads) -> Self {
        let is_shared = batch.segments().iter().any(|segment| segment.parent.is_some());
        let side = |rng: &mut StdRng| if rng.random_bool(0.5) { usize::MAX } else { rng.random_range(0..70) };
        let mask = Mask { before: side(rng), after: if is_shared { 0 } else { side(rng) } };
        let divisor = (heads.size as f32).sqrt() * rng.random_range(0.5..2.0);
        let longest = batch.positions().max().unwrap_or(0) + 1;
        let bias = rng.random_bool(0.3).then(|| {
            let slopes = (0..heads.queries).map(|_| rng.random_range(0.0..0.5)).collect();
            let mut bias = DistanceBias::new(DistanceRule::Alibi(slopes), divisor);
            bias.extend_to(longest);
            bias
        });
        Self { mask, divisor, soft_cap: rng.random_bool(0.3).then(|| rng.random_range(1.0..10.0)), bias }
    }

    pub(crate) fn scoring(&self) -> Scoring<'_> {
        let &Self { mask, divisor, soft_cap, ref bias } = self;
        Scoring { mask, divisor, soft_cap, bias: bias.as_ref(), disentangled: false }
    }
}

/// Compares attention with the reference, for random queries in the rows `asked` and random keys and values.
fn attention_is_near(
    rng: &mut StdRng,
    computes: &[Compute],
    (heads, batch): (Heads, &Batch),
    asked: &[usize],
    what: &str,
) {
    let tokens = batch.token_ids().len();
    let mut places: Vec<usize> = (0..tokens).collect();
    places.shuffle(rng);
    let spans = queries_at(batch, asked);
    let mut values = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-2.0..2.0)).collect() };
    let queries = values(asked.len() * heads.queries * heads.size);
    let keys_values = values(tokens * 2 * heads.keys * heads.size);
    let tensor = |values: &[f32], rows: usize| {
        Tensor::from_slice(values, (rows, values.len() / rows), &Device::Cpu).unwrap()
    };
    let scored = Scored::random(rng, batch, heads);
    let scoring = scored.scoring();
    let rows = Rows { batch, places: &places, spans: &spans, angles: None, heads, scoring };
    let expected = reference::attention(&tensor(&queries, asked.len()), &tensor(&keys_values, tokens), &rows);
    let expected: Vec<f32> = expected.unwrap().flatten_all().unwrap().to_vec1().unwrap();
    for compute in computes {
        for (format, tolerance) in ATTENTION_FORMATS {
            let mut packed = PackedKeys::new(format);
            packed.pack(compute, &keys_values, &places, heads, batch);
            let ready = |_: usize, _: &mut [f32]| ();
            let queries = Queries { values: &queries, spans: &spans, turn: ready, gate: None };
            let keys = Keys { packed: &packed, batch, heads, scoring, disentangled: None };
            let got =
                cpu::attention::attention(compute, &queries, keys, OperandFormat::F32, Words::default())
                    .values();
            let Scoring { mask, soft_cap, bias, .. } = scoring;
            let what = format!(
                "{what}: {} {format:?} {heads:?} {mask:?} {soft_cap:?} {}, {tokens} tokens",
                compute.set,
                bias.is_some()
            );
            assert_close(&got, &expected, tolerance, &what);
        }
    }
}

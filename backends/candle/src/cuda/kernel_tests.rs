//! Compares each kernel of `kernels.cu` with its twin: random inputs, sizes around each boundary, all block
//! sizes, misaligned rows, null arguments. The kernels are compiled for the CPU; in a build for GPUs, the
//! same tests also run on the card.

#![expect(unsafe_code, reason = "values are read and written as bytes")]
#![expect(clippy::panic, clippy::unwrap_used, reason = "a failed test should stop here")]

use super::{
    accelerator::Word,
    emulated::kernels,
    launches::{activation_number, norm_number},
    tests::runners::{Bytes, Runner},
    twins::{self, HostNorm, Round, TurnedHeads, Turns, to_bf16, to_f16, to_f32},
};
use crate::{
    operations::{Lookup, Norm},
    plan::NormKind,
    tests::crate_folder,
};
use half::{bf16, f16};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{cell::Cell, fs, marker::PhantomData};
use text_embeddings_backend_core::Activation;

/// Column counts around a wide access, a warp, the part that a block keeps in registers, and the largest row.
const COLUMNS: [usize; 18] =
    [1, 2, 7, 8, 9, 31, 33, 64, 100, 256, 264, 520, 1000, 1024, 1032, 3072, 4104, 16_384];
const THREADS: [usize; 4] = [32, 64, 256, 1024];
/// A type that kernels store.
trait Stored: Copy + PartialEq + std::fmt::Debug {
    const SUFFIX: &'static str;
    /// The relative distance of neighbouring values; 0 if only sums may differ.
    const STEP: f32;
    const ROUND: Round;
    fn stored(value: f32) -> Self;
    fn value(self) -> f32;
}

impl Stored for f32 {
    const SUFFIX: &'static str = "f32";
    const STEP: f32 = 0.0;
    const ROUND: Round = to_f32;
    fn stored(value: f32) -> Self {
        value
    }
    fn value(self) -> f32 {
        self
    }
}

impl Stored for bf16 {
    const SUFFIX: &'static str = "bf16";
    const STEP: f32 = 1.0 / 128.0;
    const ROUND: Round = to_bf16;
    fn stored(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Stored for f16 {
    const SUFFIX: &'static str = "f16";
    const STEP: f32 = 1.0 / 1024.0;
    const ROUND: Round = to_f16;
    fn stored(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
}

/// Values after a margin. No kernel may change the margin, and it spoils every sum that includes it. After
/// the values comes memory that must not be touched.
struct Memory<V> {
    bytes: Box<dyn Bytes>,
    count: usize,
    /// The offset of the first value, in bytes.
    start: usize,
    kind: PhantomData<V>,
}

/// The size of the margin in bytes.
const MARGIN: usize = 512;
/// A byte that makes a NaN in every type.
pub(super) const SPOILT: u8 = 0xff;

impl<V: Copy> Memory<V> {
    /// Memory whose first value is `shift` values after an aligned address.
    fn new(runner: &dyn Runner, values: &[V], shift: usize) -> Self {
        let start = MARGIN + shift * size_of::<V>();
        let mut bytes = vec![SPOILT; start];
        // SAFETY: values are numbers, which have no padding.
        bytes
            .extend(unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) });
        Self { bytes: runner.place_bytes(&bytes), count: values.len(), start, kind: PhantomData }
    }

    /// Checks the margin, and returns the values.
    fn values(&self) -> Vec<V> {
        let bytes = self.bytes.all_bytes();
        let (margin, values) = bytes.split_at(self.start);
        assert!(margin.iter().all(|&byte| byte == SPOILT), "a kernel wrote before its memory");
        assert_eq!(values.len(), self.count * size_of::<V>());
        // SAFETY: these are the bytes of as many numbers, and any bits are a number.
        values
            .chunks(size_of::<V>())
            .map(|value| unsafe { value.as_ptr().cast::<V>().read_unaligned() })
            .collect()
    }

    fn address(&self) -> u64 {
        self.bytes.first_address() + self.start as u64
    }

    fn word(&self) -> Word {
        Word::Address(self.address())
    }
}

const NULL: Word = Word::Address(0);

fn int(value: usize) -> Word {
    Word::Int(i32::try_from(value).unwrap())
}

/// The inputs of a case.
struct Case<'a> {
    runner: &'a dyn Runner,
    rng: StdRng,
    rows: usize,
    columns: usize,
    threads: usize,
    /// One bit per memory: whether its values begin one value after an aligned address.
    shifts: Cell<u64>,
}

impl Case<'_> {
    fn values<S: Stored>(&mut self, count: usize) -> Vec<S> {
        (0..count).map(|_| S::stored(self.rng.random_range(-4.0..4.0))).collect()
    }

    fn memory<V: Copy>(&self, values: &[V]) -> Memory<V> {
        let shifts = self.shifts.get();
        self.shifts.set(shifts.rotate_right(1));
        Memory::new(self.runner, values, (shifts & 1) as usize)
    }

    /// Memory for results, filled with NaN.
    fn room<S: Stored>(&self, count: usize) -> Memory<S> {
        self.memory(&vec![S::stored(f32::NAN); count])
    }

    fn launch(&self, kernel: &str, words: &[Word]) {
        self.launch_rows(kernel, self.rows, words);
    }

    fn launch_rows(&self, kernel: &str, rows: usize, words: &[Word]) {
        // Sometimes fewer blocks than rows: a block's leftovers from one row must not disturb its next row.
        let blocks = if self.threads == 64 { rows.div_ceil(2) } else { rows };
        self.runner.run_kernel(kernel, blocks, self.threads, words);
    }

    fn weights(&mut self) -> Weights {
        let kind = *[None, Some(NormKind::Rms), Some(NormKind::Layer)].choose(&mut self.rng).unwrap();
        self.weights_of(kind)
    }

    fn weights_of(&mut self, kind: Option<NormKind>) -> Weights {
        let (weight, bias) = (self.values(self.columns), self.values(self.columns));
        let has_bias = kind == Some(NormKind::Layer) && self.rng.random_bool(0.7);
        Weights { kind, in_memory: [self.memory(&weight), self.memory(&bias)], weight, bias, has_bias }
    }

    fn epsilon() -> f32 {
        1e-3
    }

    fn what(&self) -> String {
        let Self { rows, columns, threads, shifts, .. } = self;
        format!("{rows} rows of {columns} columns, {threads} threads, shifts {:#x}", shifts.get())
    }
}

/// A norm's weights, for the twin and for the kernel.
struct Weights {
    kind: Option<NormKind>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    in_memory: [Memory<f32>; 2],
    has_bias: bool,
}

impl Weights {
    fn norm(&self) -> Option<HostNorm<'_>> {
        let bias = self.has_bias.then_some(&*self.bias);
        self.kind.map(|kind| Norm { kind, weight: &*self.weight, bias, epsilon: Case::epsilon() })
    }

    /// The kernel's pointers to weight and bias.
    fn words(&self) -> [Word; 2] {
        let [weight, bias] = &self.in_memory;
        [
            if self.kind.is_some() { weight.word() } else { NULL },
            if self.has_bias { bias.word() } else { NULL },
        ]
    }

    fn number(&self) -> Word {
        int(norm_number(self.kind))
    }
}

/// Runs `test` for random cases with rows of each number of `columns`, aligned and not.
fn for_cases(runner: &dyn Runner, seed: u64, columns: &[usize], test: impl Fn(&mut Case<'_>)) {
    let mut rng = StdRng::seed_from_u64(seed);
    for &columns in columns {
        for threads in THREADS {
            for shifts in [0, u64::MAX, rng.random()] {
                let (rows, shifts) = (rng.random_range(1..runner.max_rows(columns)), Cell::new(shifts));
                let rng = StdRng::seed_from_u64(rng.random());
                test(&mut Case { runner, rng, rows, columns, threads, shifts });
            }
        }
    }
}

/// Checks that a kernel's values equal its twin's, up to the rounding of sums. That may round a stored value
/// to its neighbour.
fn assert_same<S: Stored>(got: &[S], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let mut neighbours = 0;
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let (got, sums) = (got.value(), 4e-6 * expected.abs().max(1.0));
        let difference = (got - expected).abs();
        // float16's subnormal numbers all have the same distance.
        let step = (S::STEP * expected.abs()).max(if S::STEP == 0.0 { 0.0 } else { 6e-8 });
        assert!(difference <= sums + step, "{what}: value {at} is {got}, not {expected}");
        neighbours += usize::from(difference > sums);
    }
    let most = 3 + got.len() / 50;
    assert!(neighbours <= most, "{what}: {neighbours} of {} values were rounded differently", got.len());
}

fn wide<S: Stored>(values: &[S]) -> Vec<f32> {
    values.iter().map(|value| value.value()).collect()
}

fn norm_of<S: Stored>(case: &mut Case<'_>) {
    let Case { rows, columns, .. } = *case;
    let x = case.values::<f32>(rows * columns);
    let weights = case.weights();
    let expected = twins::norm(&x, columns, weights.norm().as_ref(), S::ROUND);
    let exact = twins::norm(&x, columns, weights.norm().as_ref(), to_f32);
    let what = format!("norm_{} of kind {:?}, {}", S::SUFFIX, weights.kind, case.what());
    // Writes both results; both, one of them in place; only the second; only the first.
    for variant in 0..4 {
        let memory = case.memory(&x);
        let (out, in_place) = (case.room::<S>(x.len()), case.room::<f32>(x.len()));
        let [weight, bias] = weights.words();
        let words = [
            memory.word(),
            weight,
            bias,
            if variant == 2 { NULL } else { out.word() },
            [in_place.word(), memory.word(), in_place.word(), NULL][variant],
            int(rows),
            int(columns),
            Word::Float(Case::epsilon()),
            weights.number(),
        ];
        case.launch(&format!("norm_{}", S::SUFFIX), &words);
        let what = format!("variant {variant} of {what}");
        if variant != 2 {
            assert_same(&out.values(), &expected, &what);
        }
        let (written, unwritten) = if variant == 1 { (&memory, &in_place) } else { (&in_place, &memory) };
        if variant == 3 {
            assert!(written.values().iter().all(|value| value.is_nan()), "{what}");
        } else {
            assert_same(&written.values(), &exact, &what);
        }
        if variant != 1 {
            assert_eq!(unwritten.values(), x, "{what}");
        }
    }
}

fn norms_equal_their_twin(runner: &dyn Runner) {
    for_cases(runner, 1, &COLUMNS, |case| {
        norm_of::<bf16>(case);
        norm_of::<f16>(case);
    });
}

fn add_norm_of<S: Stored>(case: &mut Case<'_>) {
    let Case { rows, columns, .. } = *case;
    let x = case.values::<S>(rows * columns);
    let mut expected = case.values::<f32>(rows * columns);
    let weights = case.weights();
    let (memory, sum) = (case.memory(&x), case.memory(&expected));
    twins::add_norm(&wide(&x), columns, weights.norm().as_ref(), &mut expected);
    let [weight, bias] = weights.words();
    let words = [
        memory.word(),
        weight,
        bias,
        sum.word(),
        int(rows),
        int(columns),
        Word::Float(Case::epsilon()),
        weights.number(),
    ];
    case.launch(&format!("add_norm_{}", S::SUFFIX), &words);
    let what = format!("add_norm_{} of kind {:?}, {}", S::SUFFIX, weights.kind, case.what());
    assert_same(&sum.values(), &expected, &what);
    assert_eq!(memory.values(), x);
}

fn sums_of_norms_equal_their_twin(runner: &dyn Runner) {
    for_cases(runner, 2, &COLUMNS, |case| {
        add_norm_of::<f32>(case);
        add_norm_of::<bf16>(case);
        add_norm_of::<f16>(case);
    });
}

fn norm_columns_of<S: Stored>(case: &mut Case<'_>) {
    let Case { rows, columns, .. } = *case;
    let stride = columns + *[0, 3, 8, 64].choose(&mut case.rng).unwrap();
    let x = case.values::<S>(rows * stride);
    let kind = *[NormKind::Rms, NormKind::Layer].choose(&mut case.rng).unwrap();
    let weights = case.weights_of(Some(kind));
    let memory = case.memory(&x);
    let mut expected = wide(&x);
    twins::norm_columns(&mut expected, stride, &weights.norm().unwrap(), S::ROUND);
    let [weight, bias] = weights.words();
    let words = [
        memory.word(),
        weight,
        bias,
        int(rows),
        int(columns),
        int(stride),
        Word::Float(Case::epsilon()),
        weights.number(),
    ];
    case.launch(&format!("norm_columns_{}", S::SUFFIX), &words);
    let what = format!("norm_columns_{} of {kind:?}, rows of {stride}, {}", S::SUFFIX, case.what());
    assert_same(&memory.values(), &expected, &what);
    for (row, old) in memory.values().chunks(stride).zip(x.chunks(stride)) {
        assert_eq!(row[columns..], old[columns..], "{what}");
    }
}

fn norms_of_first_columns_equal_their_twin(runner: &dyn Runner) {
    for_cases(runner, 3, &COLUMNS, |case| {
        norm_columns_of::<bf16>(case);
        norm_columns_of::<f16>(case);
    });
}

fn gather_turned_of<S: Stored>(case: &mut Case<'_>) {
    let (count, size) = (case.rows, case.columns);
    let (half, heads) = (size / 2, case.rng.random_range(1..9));
    let columns = heads * size + *[0, size, 6].choose(&mut case.rng).unwrap();
    let stride = columns + *[0, size, 5].choose(&mut case.rng).unwrap();
    let own = case.rng.random_range(1..6);
    let angles: usize = case.rng.random_range(1..4);
    let weights = case.weights_of(case.rng.clone().random_bool(0.6).then_some(NormKind::Rms));
    let (cosines, sines) = (case.values::<f32>(angles * half), case.values::<f32>(angles * half));
    let of_rows: Vec<u32> = (0..own).map(|_| case.rng.random_range(0..angles as u32)).collect();
    let (cosines_there, sines_there) = (case.memory(&cosines), case.memory(&sines));
    let of_rows_there = case.memory(&of_rows);
    let turns = Turns { cosines: &cosines, sines: &sines, of_rows: &of_rows };
    let turns = case.rng.random_bool(0.8).then_some(turns);
    let turn_words =
        turns.map_or([NULL; 3], |_| [cosines_there.word(), sines_there.word(), of_rows_there.word()]);
    let x = case.values::<S>(own * stride);
    let mut turned = wide(&x);
    let shape = TurnedHeads { heads, size, stride };
    twins::turn_heads(&wide(&x), &mut turned, shape, weights.norm().as_ref(), turns, S::ROUND);
    let others = case.rng.random_range(0..4) * columns;
    let others = case.values(others);
    let places = Elsewhere::<S>::new(case, others, columns);
    let rows: Vec<u32> = (0..count).map(|_| case.rng.random_range(0..(own + places.count) as u32)).collect();
    let rows_there = case.memory(&rows);
    let what = format!(
        "gather_turned_{} of {heads} heads in rows of {columns} in {stride}, turned: {}, norm: {}, {}",
        S::SUFFIX,
        turns.is_some(),
        weights.kind.is_some(),
        case.what()
    );
    for is_in_place in [false, true] {
        let memory = case.memory(&x);
        let separate = case.room::<S>(count * columns);
        let (out, out_stride) = if is_in_place { (&memory, stride) } else { (&separate, columns) };
        let own_rows = [memory.word(), int(own), int(stride * size_of::<S>())];
        let selected = if is_in_place {
            [NULL, int(0), NULL, out.word(), int(out_stride), int(own)]
        } else {
            [places.word(), int(places.layer), rows_there.word(), out.word(), int(out_stride), int(count)]
        };
        let turn = [int(columns), weights.words()[0], turn_words[0], turn_words[1], turn_words[2]];
        let sizes = [int(heads), int(size), Word::Float(Case::epsilon())];
        let words = [&own_rows[..], &selected, &turn, &sizes].concat();
        case.launch_rows(
            &format!("gather_turned_{}", S::SUFFIX),
            if is_in_place { own } else { count },
            &words,
        );
        let expected: Vec<f32> = if is_in_place {
            turned.clone()
        } else {
            let row_of = |&row: &u32| match (row as usize).checked_sub(own) {
                Some(other) => wide(places.row(other)),
                None => turned[row as usize * stride..][..columns].to_vec(),
            };
            rows.iter().flat_map(row_of).collect()
        };
        assert_same(&out.values(), &expected, &format!("{what}, in place: {is_in_place}"));
    }
}

fn gathered_and_turned_rows_equal_their_twin(runner: &dyn Runner) {
    for_cases(runner, 4, &[2, 6, 16, 24, 32, 48, 64, 72, 80, 96, 100, 128, 192, 256, 512, 1040], |case| {
        gather_turned_of::<bf16>(case);
        gather_turned_of::<f16>(case);
    });
}

fn activate_of<S: Stored>(case: &mut Case<'_>) {
    let Case { rows, columns, .. } = *case;
    for activation in Activation::ALL {
        let x = case.values::<S>(rows * columns);
        let bias = case.values::<f32>(columns);
        let bias_there = case.memory(&bias);
        let bias = case.rng.random_bool(0.5).then_some(&*bias);
        let expected = twins::activate(&wide(&x), columns, bias, activation, S::ROUND);
        let (memory, separate) = (case.memory(&x), case.room::<S>(x.len()));
        let out = if case.rng.random_bool(0.5) { &memory } else { &separate };
        let words = [
            memory.word(),
            bias.map_or(NULL, |_| bias_there.word()),
            out.word(),
            int(rows),
            int(columns),
            int(activation_number(activation)),
        ];
        case.launch(&format!("activate_{}", S::SUFFIX), &words);
        let what = format!("activate_{} of {activation:?}, {}", S::SUFFIX, case.what());
        assert_same(&out.values(), &expected, &what);
    }
}

fn gate_of<S: Stored>(case: &mut Case<'_>) {
    let Case { rows, columns: inner, .. } = *case;
    for activation in Activation::ALL {
        let x = case.values::<S>(2 * rows * inner);
        let bias = case.values::<f32>(2 * inner);
        let bias_there = case.memory(&bias);
        let bias = case.rng.random_bool(0.5).then_some(&*bias);
        let expected = twins::gate(&wide(&x), inner, bias, activation, S::ROUND);
        let (memory, out) = (case.memory(&x), case.room::<S>(rows * inner));
        let words = [
            memory.word(),
            bias.map_or(NULL, |_| bias_there.word()),
            out.word(),
            int(rows),
            int(inner),
            int(activation_number(activation)),
        ];
        case.launch(&format!("gate_{}", S::SUFFIX), &words);
        let what = format!("gate_{} of {activation:?}, {}", S::SUFFIX, case.what());
        assert_same(&out.values(), &expected, &what);
    }
}

fn activations_and_gates_equal_their_twins(runner: &dyn Runner) {
    for_cases(runner, 5, &[1, 7, 8, 9, 33, 100, 264, 1032], |case| {
        activate_of::<bf16>(case);
        activate_of::<f16>(case);
        gate_of::<bf16>(case);
        gate_of::<f16>(case);
    });
}

/// Checks activations far from zero, where exponentials leave the range of `f32`.
fn activations_have_their_limits(runner: &dyn Runner) {
    let x = [-3e38, -1000.0, -100.0, -20.0, -0.0, 0.0, 20.0, 100.0, 1000.0, 3e38].map(bf16::from_f32);
    for activation in Activation::ALL {
        let (memory, out) = (Memory::new(runner, &x, 0), Memory::new(runner, &[bf16::NAN; 10], 0));
        let words = [memory.word(), NULL, out.word(), int(1), int(10), int(activation_number(activation))];
        runner.run_kernel("activate_bf16", 1, 32, &words);
        let expected = twins::activate(&wide(&x), 10, None, activation, to_bf16);
        assert_same(&out.values(), &expected, &format!("{activation:?}"));
    }
}

fn add_bias_of<S: Stored>(case: &mut Case<'_>) {
    let Case { rows, columns, .. } = *case;
    let x = case.values::<S>(rows * columns);
    let bias = case.values::<f32>(columns);
    let (memory, bias_there) = (case.memory(&x), case.memory(&bias));
    let mut expected = wide(&x);
    twins::add_bias(&mut expected, &bias, S::ROUND);
    let words = [memory.word(), bias_there.word(), int(rows), int(columns)];
    case.launch(&format!("add_bias_{}", S::SUFFIX), &words);
    // One addition and one rounding give the same bits.
    assert_eq!(wide(&memory.values()), expected, "add_bias_{}, {}", S::SUFFIX, case.what());
}

fn biases_are_added_as_their_twin_adds_them(runner: &dyn Runner) {
    for_cases(runner, 6, &COLUMNS, |case| {
        add_bias_of::<f32>(case);
        add_bias_of::<bf16>(case);
        add_bias_of::<f16>(case);
    });
}

fn embed_of<S: Stored>(case: &mut Case<'_>) {
    let Case { rows, columns, .. } = *case;
    let tables: Vec<(Vec<S>, Vec<u32>)> = (0..case.rng.random_range(1..4))
        .map(|_| {
            let ids = case.rng.random_range(1..6);
            let table = case.values(ids * columns);
            (table, (0..rows).map(|_| case.rng.random_range(0..ids as u32)).collect())
        })
        .collect();
    let scale = *[1.0, 27.7].choose(&mut case.rng).unwrap();
    let weights = case.weights();
    let there: Vec<_> = tables.iter().map(|(table, ids)| (case.memory(table), case.memory(ids))).collect();
    let out = case.room::<f32>(rows * columns);
    let mut words = Vec::new();
    for lookup in 0..3 {
        let lookup = there.get(lookup);
        words.push(lookup.map_or(NULL, |(table, _)| table.word()));
        words.push(lookup.map_or(NULL, |(_, ids)| ids.word()));
    }
    words.push(Word::Float(scale));
    words.extend(weights.words());
    words.extend([out.word(), int(rows), int(columns), Word::Float(Case::epsilon()), weights.number()]);
    case.launch(&format!("embed_{}", S::SUFFIX), &words);
    let values: Vec<Vec<f32>> = tables.iter().map(|(table, _)| wide(table)).collect();
    let lookups: Vec<Lookup<'_, [f32]>> =
        values.iter().zip(&tables).map(|(table, (_, ids))| Lookup { table: &table[..], ids }).collect();
    let expected = twins::embed(&lookups, columns, scale, weights.norm().as_ref());
    let what = format!("embed_{} of kind {:?}, {}", S::SUFFIX, weights.kind, case.what());
    assert_same(&out.values(), &expected, &what);
}

fn embeddings_equal_their_twin(runner: &dyn Runner) {
    for_cases(runner, 7, &COLUMNS, |case| {
        embed_of::<f32>(case);
        embed_of::<bf16>(case);
        embed_of::<f16>(case);
    });
}

/// Rows that are not in the first matrix, behind the rows of other layers and in another order.
struct Elsewhere<V> {
    values: Vec<V>,
    columns: usize,
    count: usize,
    layer: usize,
    places: Memory<i64>,
    /// Keeps the rows.
    _memory: Memory<V>,
}

impl<V: Copy> Elsewhere<V> {
    /// These rows. Memory of other layers has their values, too.
    fn new(case: &mut Case<'_>, values: Vec<V>, columns: usize) -> Self {
        let (count, layer) = (values.len() / columns, case.rng.random_range(0..4));
        let mut there = values.repeat(layer);
        there.extend(values.chunks(columns).rev().flatten());
        let memory = case.memory(&there);
        let start = memory.address();
        let row_bytes = (columns * size_of::<V>()) as i64;
        let places: Vec<i64> = (0..count as i64)
            .flat_map(|row| [start as i64 + (count as i64 - 1 - row) * row_bytes, count as i64 * row_bytes])
            .collect();
        let places = case.memory(&places);
        Self { values, columns, count, layer, places, _memory: memory }
    }

    fn word(&self) -> Word {
        if self.count == 0 { NULL } else { self.places.word() }
    }

    fn row(&self, row: usize) -> &[V] {
        &self.values[row * self.columns..][..self.columns]
    }
}

fn gathered_rows_equal_their_twin(runner: &dyn Runner) {
    for_cases(runner, 8, &COLUMNS, |case| {
        let Case { rows: count, columns, .. } = *case;
        let own = case.rng.random_range(0..6);
        let stride = columns + *[0, 3, 8].choose(&mut case.rng).unwrap();
        let x: Vec<u16> = (0..own * stride).map(|_| case.rng.random()).collect();
        let others = case.rng.random_range(usize::from(own == 0)..4) * columns;
        let others = (0..others).map(|_| case.rng.random()).collect();
        let places = Elsewhere::<u16>::new(case, others, columns);
        let (there, all) = (case.memory(&x), own + places.count);
        let some: Vec<u32> = (0..count).map(|_| case.rng.random_range(0..all as u32)).collect();
        let some_there = case.memory(&some);
        let everything: Vec<u32> = (0..all as u32).collect();
        let mut every_row: Vec<u16> = x.chunks(stride).flat_map(|row| &row[..columns]).copied().collect();
        every_row.extend(&places.values);
        for (rows, rows_word) in [(&some, some_there.word()), (&everything, NULL)] {
            let out = case.memory(&vec![0_u16; rows.len() * columns]);
            let words = [
                there.word(),
                int(own),
                int(2 * stride),
                places.word(),
                int(places.layer),
                rows_word,
                out.word(),
                int(rows.len()),
                int(2 * columns),
            ];
            case.launch_rows("gather_rows", rows.len(), &words);
            assert_eq!(out.values(), twins::gather_rows(&every_row, columns, rows), "{}", case.what());
        }
    });
}

fn copied_layers_equal_their_twin(runner: &dyn Runner) {
    for_cases(runner, 12, &COLUMNS, |case| {
        let Case { rows: count, columns, .. } = *case;
        let layers: Vec<Vec<u16>> = (0..case.rng.random_range(1..5))
            .map(|_| (0..7 * columns).map(|_| case.rng.random()).collect())
            .collect();
        let memory: Vec<Memory<u16>> = layers.iter().map(|layer| case.memory(layer)).collect();
        let addresses: Vec<u64> = memory.iter().map(Memory::address).collect();
        let rows: Vec<u32> = (0..count).map(|_| case.rng.random_range(0..7)).collect();
        let (addresses, rows_there) = (case.memory(&addresses), case.memory(&rows));
        let out = case.memory(&vec![0_u16; layers.len() * count * columns]);
        let words = [
            addresses.word(),
            rows_there.word(),
            out.word(),
            int(layers.len()),
            int(count),
            int(2 * columns),
        ];
        case.launch_rows("copy_layers", layers.len() * count, &words);
        assert_eq!(out.values(), twins::copy_layers(&layers, columns, &rows), "{}", case.what());
    });
}

fn means_of_rows_equal_their_twin(runner: &dyn Runner) {
    for_cases(runner, 9, &COLUMNS[..15], |case| {
        let Case { rows: texts, columns, .. } = *case;
        let x = case.values::<f32>(50 * columns);
        let mut starts = vec![0_u32];
        for _ in 0..texts {
            starts.push(starts[starts.len() - 1] + case.rng.random_range(0..100));
        }
        let rows: Vec<u32> = (0..starts[texts]).map(|_| case.rng.random_range(0..50)).collect();
        let expected = twins::mean_rows(&x, columns, &starts, &rows);
        let (there, starts_there, rows_there) = (case.memory(&x), case.memory(&starts), case.memory(&rows));
        let out = case.room::<f32>(texts * columns);
        let words =
            [there.word(), starts_there.word(), rows_there.word(), out.word(), int(texts), int(columns)];
        case.launch("mean_rows", &words);
        assert_same(&out.values(), &expected, &case.what());
    });
}

fn not_finite_of<S: Stored>(case: &mut Case<'_>) {
    let count = case.columns;
    for spoiler in [None, Some(f32::INFINITY), Some(f32::NEG_INFINITY), Some(f32::NAN)] {
        let tensors = case.rng.random_range(1..4);
        let mut x = case.values::<S>(tensors * count);
        if let Some(spoiler) = spoiler {
            x[case.rng.random_range(0..tensors * count)] = S::stored(spoiler);
        }
        let memory: Vec<Memory<S>> = x.chunks(count).map(|tensor| case.memory(tensor)).collect();
        let addresses: Vec<u64> = memory.iter().map(Memory::address).collect();
        let (addresses, flag) = (case.memory(&addresses), case.memory(&[0_i32]));
        let part = *[8, 64, 1 << 14].choose(&mut case.rng).unwrap();
        let words = [addresses.word(), flag.word(), int(tensors), int(count), int(part)];
        case.launch(&format!("not_finite_{}", S::SUFFIX), &words);
        let expected = i32::from(twins::not_finite(&wide(&x)));
        assert_eq!(expected, i32::from(spoiler.is_some()));
        assert_eq!(flag.values(), [expected], "{spoiler:?}, {}", case.what());
    }
}

fn values_that_are_not_finite_are_found(runner: &dyn Runner) {
    for_cases(runner, 10, &COLUMNS, |case| {
        not_finite_of::<bf16>(case);
        not_finite_of::<f16>(case);
    });
}

/// The kernels' types convert like crate `half`: all their values, and values between them.
fn types_round_to_even(runner: &dyn Runner) {
    let mut rng = StdRng::seed_from_u64(11);
    let mut x: Vec<f32> = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).collect();
    x.extend((0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f32()));
    // Ties, and neighbours of ties.
    for value in x.clone() {
        x.extend(
            [0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001]
                .map(|more| f32::from_bits(value.to_bits() | more)),
        );
    }
    x.extend((0..100_000).map(|_| f32::from_bits(rng.random())));
    x.retain(|value| !value.is_nan());
    let there = Memory::new(runner, &x, 0);
    let words = |out: Word| {
        [there.word(), NULL, NULL, out, NULL, int(1), int(x.len()), Word::Float(0.0), Word::Int(0)]
    };
    let halves = Memory::new(runner, &vec![f16::NAN; x.len()], 0);
    runner.run_kernel("norm_f16", 1, 32, &words(halves.word()));
    let brain = Memory::new(runner, &vec![bf16::NAN; x.len()], 0);
    runner.run_kernel("norm_bf16", 1, 32, &words(brain.word()));
    for ((&value, half), brain) in x.iter().zip(halves.values()).zip(brain.values()) {
        assert_eq!(half.to_bits(), f16::from_f32(value).to_bits(), "{value:e}");
        assert_eq!(brain.to_bits(), bf16::from_f32(value).to_bits(), "{value:e}");
    }
}

/// Each test, with the kernels compiled for the CPU, and in a build for GPUs with the card's.
macro_rules! with_each_runner {
    ($($test:ident,)*) => {
        mod emulated {
            $(#[test] fn $test() {
                if let Some(kernels) = super::kernels() {
                    super::$test(kernels);
                }
            })*
        }

        #[cfg(feature = "cuda")]
        mod on_the_card {
            $(#[test] #[serial_test::serial] fn $test() {
                super::$test(&crate::cuda::tests::runners::this_card());
            })*
        }
    };
}

with_each_runner! {
    norms_equal_their_twin,
    sums_of_norms_equal_their_twin,
    norms_of_first_columns_equal_their_twin,
    gathered_and_turned_rows_equal_their_twin,
    activations_and_gates_equal_their_twins,
    activations_have_their_limits,
    biases_are_added_as_their_twin_adds_them,
    embeddings_equal_their_twin,
    gathered_rows_equal_their_twin,
    copied_layers_equal_their_twin,
    means_of_rows_equal_their_twin,
    values_that_are_not_finite_are_found,
    types_round_to_even,
}

/// The emulator notices an argument of the wrong kind.
#[test]
#[should_panic(expected = "argument 2 of add_bias_f32 is i, not Float(1.0)")]
fn arguments_of_another_kind_are_refused() {
    let kernels = kernels().unwrap_or_else(|| panic!("argument 2 of add_bias_f32 is i, not Float(1.0)"));
    kernels.launch("add_bias_f32", 1, 32, &[NULL, NULL, Word::Float(1.0), int(1)]);
}

/// Checks that the tests name each kernel, without its type.
#[test]
fn every_kernel_is_tested() {
    let sources = crate_folder().join("src/cuda");
    let kernels = fs::read_to_string(sources.join("kernels.cu")).unwrap();
    let tests = fs::read_to_string(sources.join("kernel_tests.rs")).unwrap();
    let names = kernels.split("KERNEL ").skip(1).filter_map(|rest| rest.split(['(', '#']).next());
    let names: Vec<&str> =
        names.map(|name| name.trim_end_matches('_')).filter(|name| !name.contains(' ')).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(tests.contains(&format!("\"{name}")), "no test launches {name}");
    }
}

//! Tests of the GPU's operations on the CPU: the same code and the same kernels, with a stand-in for the
//! device.
#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

pub(crate) mod runners;
pub(crate) mod stand_in;

use super::{
    CudaOperations,
    accelerator::{Accelerator, FlashInput},
    memory::DeviceMemory,
    proof::FlashProof,
    sequences::Sequences,
};
use crate::{
    attention::{Heads, Mask, Scoring},
    operations::{Operations, Rows},
    plain::{TensorMatrix, reference},
    tests::{assert_close, padded::ForestCase, shapes::Scored},
};
use candle_core::{DType, Device, Tensor};
use rand::{
    Rng, SeedableRng,
    rngs::StdRng,
    seq::{IndexedRandom, SliceRandom},
};
use stand_in::StandIn;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tracing::{Event, Metadata, Subscriber, span};

fn memory_of<A: Accelerator>(accelerator: A) -> DeviceMemory<A> {
    DeviceMemory::new(Arc::new(accelerator))
}

#[test]
fn flash_attention_that_computes_nothing_is_refused() {
    let device = |has_kernel| memory_of(StandIn { has_flash: true, has_kernel });
    let mut proof = FlashProof::default();
    for mask in [
        Mask::CAUSAL,
        Mask::FULL,
        Mask { before: 5, after: 0 },
        Mask { before: 3, after: 3 },
        Mask { before: 2000, after: 0 },
    ] {
        for _ in 0..2 {
            proof.compare_kernel(&device(true), DType::F16, 8, mask).unwrap();
        }
        let broken = FlashProof::default().compare_kernel(&device(false), DType::F16, 8, mask);
        let refusal = broken.unwrap_err().to_string();
        assert!(
            refusal.starts_with("flash attention gives wrong values on this GPU (heads of 8"),
            "{refusal}"
        );
    }
    // It is not computed again, so a device without the kernel does not matter any more.
    proof.compare_kernel(&device(false), DType::F16, 8, Mask::CAUSAL).unwrap();
}

/// A rounded logit of a router would choose another expert.
#[test]
fn exact_products_are_not_rounded() {
    let mut rng = StdRng::seed_from_u64(63);
    let mut random = |rows: usize, columns: usize| {
        let values: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-1.0..1.0)).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap()
    };
    let (x, weight) = (random(5, 40), random(7, 40));
    let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
    let values = |x: &Tensor| -> Vec<f32> { wide(x).flatten_all().unwrap().to_vec1().unwrap() };
    let expected = values(&wide(&x).matmul(&wide(&weight).t().unwrap()).unwrap());
    let mut operations = CudaOperations::new(StandIn { has_flash: true, has_kernel: true }, DType::BF16);
    let matrix = TensorMatrix { weight, bias: None };
    assert_close(
        &values(&operations.linear_exact(&x.clone().into(), &matrix).unwrap()),
        &expected,
        1e-5,
        "exact",
    );
    assert_ne!(values(&operations.linear(&x.into(), &matrix).unwrap()), expected);
}

/// Counts the log's lines.
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target().starts_with("text_embeddings") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn the_log_says_once_that_attention_takes_the_general_path() {
    let mut rng = StdRng::seed_from_u64(62);
    let ForestCase { batch, heads, spans, .. } = ForestCase::random(&mut rng, 12, 1.0);
    let small = Heads { size: 6, ..heads };
    let heads = Heads { size: 8, ..heads };
    let places: Vec<usize> = (0..batch.token_ids().len()).collect();
    let scored = Scored::random(&mut rng, &batch, heads);
    let plain = Scoring { mask: Mask::CAUSAL, bias: None, soft_cap: None, ..scored.scoring() };
    let capped = Scoring { soft_cap: Some(30.0), ..plain };
    for (has_flash, heads, scoring, expected) in
        [(true, heads, plain, 0), (true, small, plain, 1), (true, heads, capped, 1), (false, heads, plain, 1)]
    {
        let lines = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
            let mut operations = CudaOperations::new(StandIn { has_flash, has_kernel: true }, DType::F16);
            for _ in 0..3 {
                let rows =
                    Rows { batch: &batch, places: &places, spans: &spans, angles: None, heads, scoring };
                operations.rows(rows).unwrap();
            }
        });
        assert_eq!(lines.load(Ordering::Relaxed), expected, "flash attention: {has_flash}");
    }
}

/// The kind of a random case of flash attention.
struct Compared {
    /// Whether flash attention can express the case at all.
    is_taken: bool,
    is_gathered: bool,
}

/// Compares flash attention over the sequences of a random forest with `plain::reference` over the forest,
/// unless the sequences report that flash attention cannot express it.
fn compare_flash(
    memory: &DeviceMemory<impl Accelerator>,
    rng: &mut StdRng,
    size: usize,
    dtype: DType,
    tolerance: f32,
) -> Compared {
    let share = if rng.random_bool(0.3) { 1.0 } else { rng.random_range(0.05..=1.0) };
    let ForestCase { batch, heads, spans, queries, keys_values } = ForestCase::with_size(rng, size, share);
    let mut places: Vec<usize> = (0..batch.token_ids().len()).collect();
    if rng.random_bool(0.5) {
        places.shuffle(rng);
    }
    let scored = Scored::random(rng, &batch, heads);
    let mut scoring = scored.scoring();
    if rng.random_bool(0.8) {
        (scoring.bias, scoring.soft_cap) = (None, None);
        let before = rng.random_range(0..30);
        let after = *[0, 3, 30].choose(rng).unwrap();
        let windows = [Mask::CAUSAL, Mask::FULL, Mask { before, after: 0 }, Mask { before, after }];
        scoring.mask = *windows.choose(rng).unwrap();
    }
    let rows = Rows { batch: &batch, places: &places, spans: &spans, angles: None, heads, scoring };
    let device = memory.accelerator().device();
    let what = format!("{heads:?} {:?} {dtype:?}", scoring.mask);
    let Some(sequences) = Sequences::new(&rows, |words| memory.place_list(words)).unwrap() else {
        let is_said = scoring.bias.is_none() && scoring.soft_cap.is_none() && scoring.mask.after == 0;
        assert!(!is_said, "{what} needs no general path");
        return Compared { is_taken: false, is_gathered: false };
    };
    let [queries, keys_values] = [queries, keys_values].map(|x| x.to_dtype(dtype).unwrap());
    let exact = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
    let expected = reference::attention(&exact(&queries), &exact(&keys_values), &rows).unwrap();
    let [queries, keys_values] = [queries, keys_values].map(|x| x.to_device(device).unwrap());
    let is_gathered = sequences.gathered.is_some();
    memory.send_lists().unwrap();
    let keys_values = match &sequences.gathered {
        Some(rows) => keys_values.index_select(rows, 0).unwrap(),
        None => keys_values,
    };
    let (count, columns) = queries.dims2().unwrap();
    let context = memory.empty_tensor(count, columns, dtype).unwrap();
    let sums = memory.empty_tensor(heads.queries, count, DType::F32).unwrap();
    let input =
        FlashInput { heads, queries: &queries, keys_values: &keys_values, context: &context, sums: &sums };
    memory.accelerator().attend_sequences(&input, &sequences).unwrap();
    memory.accelerator().flush_calls().unwrap();
    let values = |x: &Tensor| -> Vec<f32> { exact(x).flatten_all().unwrap().to_vec1().unwrap() };
    assert_close(&values(&context), &values(&expected), tolerance, &what);
    Compared { is_taken: true, is_gathered }
}

#[test]
fn sequences_say_which_keys_each_query_sees() {
    let mut rng = StdRng::seed_from_u64(61);
    let memory = memory_of(StandIn { has_flash: true, has_kernel: true });
    let (mut taken, mut gathered) = (0, 0);
    for _ in 0..300 {
        let size = 2 * rng.random_range(1..20);
        let compared = compare_flash(&memory, &mut rng, size, DType::F32, 5e-6);
        taken += usize::from(compared.is_taken);
        gathered += usize::from(compared.is_gathered);
    }
    assert!(taken > 150 && gathered > 50, "{taken} of the cases took flash attention, {gathered} gathered");
}

/// Every size of head that flash attention takes, in both types, with the kernels of the card.
#[cfg(feature = "flash-attn")]
#[test]
#[serial_test::serial]
fn flash_attention_equals_the_obvious_one_on_the_card() {
    use crate::tests::emulated_gpu::is_emulated;
    let mut rng = StdRng::seed_from_u64(64);
    let memory = memory_of(runners::this_card());
    // A plain loop replaces the kernels on an emulated card.
    let rounds = if is_emulated() { 1 } else { 12 };
    for size in (8..=256).step_by(8) {
        for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            let mut taken = 0;
            while taken < rounds {
                taken += usize::from(compare_flash(&memory, &mut rng, size, dtype, tolerance).is_taken);
            }
        }
    }
}

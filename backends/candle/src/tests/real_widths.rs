//! Models as wide as real ones: the GPU's path gives the vectors that the CPU gives in float32.

use super::{
    heads::{embedding, on_cpu},
    heads_reference::cosine,
    random_model::{RandomModel, Sizes, VOCABULARY},
    *,
};
use candle_core::DType;

/// The layers of Qwen3-Reranker-0.6B, and heads of 32, 64 and 256.
pub(super) const WIDTHS: [Sizes; 4] = [
    Sizes { hidden: 1024, heads: Heads { queries: 16, keys: 8, size: 128 }, inner: 3072, layers: 2 },
    Sizes { hidden: 384, heads: Heads { queries: 12, keys: 12, size: 32 }, inner: 1536, layers: 2 },
    Sizes { hidden: 896, heads: Heads { queries: 14, keys: 2, size: 64 }, inner: 4864, layers: 2 },
    Sizes { hidden: 640, heads: Heads { queries: 4, keys: 1, size: 256 }, inner: 2048, layers: 2 },
];

/// Texts with common beginnings; on a card, enough of them for several blocks of each kernel.
fn texts(rng: &mut StdRng) -> Vec<Vec<u32>> {
    let [count, longest] = if on_a_real_card() { [40, 300] } else { [4, 30] };
    let mut ids =
        |count: usize| -> Vec<u32> { (0..count).map(|_| rng.random_range(0..VOCABULARY as u32)).collect() };
    let trunk = ids(longest);
    (1..=count)
        .map(|text| [&trunk[..longest * text / count / 2], &ids(longest * text / count)].concat())
        .collect()
}

/// Neither a CPU in the role of a GPU nor an emulated one.
fn on_a_real_card() -> bool {
    #[cfg(feature = "cuda")]
    return !emulated_gpu::is_emulated();
    #[cfg(not(feature = "cuda"))]
    false
}

#[test]
#[serial_test::serial]
fn real_widths_give_the_cpus_vectors_on_the_card() {
    let mut rng = StdRng::seed_from_u64(71);
    for (seed, sizes) in WIDTHS.into_iter().enumerate() {
        let model = RandomModel::with_sizes(seed as u64, "", DType::BF16, sizes);
        let options = model.options(embedding(Pooling::Last, Vec::new()));
        let texts = texts(&mut rng);
        let vectors = |mut backend: Box<dyn Backend>| -> Vec<Vec<f32>> {
            let batch = batch(BatchBuilder::new(Packing::SHARED), &texts).build();
            backend.predict(&batch).unwrap().texts.into_iter().map(|text| text.whole).collect()
        };
        let expected = vectors(on_cpu(&options, 2, InstructionSet::best()));
        // The smallest measured cosines were 0.9999991 and 0.99994.
        for (dtype, least) in [(DType::F16, 0.999_998), (DType::BF16, 0.9999)] {
            let Some(backend) = on_gpu(dtype, true, &options) else { return };
            for (text, (got, expected)) in vectors(backend).iter().zip(&expected).enumerate() {
                let cosine = cosine(got, expected);
                assert!(cosine > least, "{sizes:?}, {dtype:?}, text {text}: {cosine}");
            }
        }
    }
}

/// A pass that comes again may be a graph. It gives the bits that a model gives in its first pass, which
/// cannot be one.
#[test]
#[serial_test::serial]
fn passes_of_one_shape_give_the_bits_of_a_first_pass_on_the_card() {
    let mut rng = StdRng::seed_from_u64(74);
    let model = RandomModel::with_sizes(75, "", DType::BF16, WIDTHS[1]);
    let options = model.options(embedding(Pooling::Last, Vec::new()));
    let start = || on_gpu(DType::BF16, true, &options);
    let Some(mut again) = start() else { return };
    for round in 0..if on_a_real_card() { 40 } else { 8 } {
        // Two shapes, so that graphs differ from the pass before.
        let (count, length) = if round % 3 == 2 { (5, 20) } else { (2, 9) };
        let texts: Vec<Vec<u32>> = (0..count)
            .map(|text| {
                let own = (0..length).map(|_| rng.random_range(0..VOCABULARY as u32));
                std::iter::once(text).chain(own).collect()
            })
            .collect();
        let vectors = |backend: &mut dyn Backend| -> Vec<Vec<f32>> {
            let batch = batch(BatchBuilder::new(Packing::SHARED), &texts).build();
            backend.predict(&batch).unwrap().texts.into_iter().map(|text| text.whole).collect()
        };
        let expected = vectors(start().unwrap().as_mut());
        assert_eq!(vectors(again.as_mut()), expected, "round {round}");
    }
}

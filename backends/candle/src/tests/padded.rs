//! Attention over padded groups equals plain attention, for any grouping.

use super::shapes::Scored;
use super::*;
use crate::attention::QuerySpan;
use crate::plain::padded::{GroupLimits, PaddedAttention};
use rand::seq::IndexedRandom;

/// Texts of a few different tokens, so that they share prefixes of all lengths and some are prefixes of
/// others. In most cases one text is much longer than the others.
fn forest(rng: &mut StdRng) -> Batch {
    let mut builder =
        BatchBuilder::new(if rng.random_bool(0.5) { Packing::SHARED } else { Packing::SEPARATE });
    let kinds = rng.random_range(1..4);
    for _ in 0..rng.random_range(1..12) {
        let most = *[3, 40, 40, 150].choose(rng).unwrap();
        let ids: Vec<u32> = (0..rng.random_range(1..=most)).map(|_| rng.random_range(0..kinds)).collect();
        builder.push(&Text::new(ids, Wanted::WHOLE));
    }
    builder.build()
}

/// A forest with random queries for some of its tokens, and random keys and values for all.
pub(crate) struct ForestCase {
    pub(crate) batch: Batch,
    pub(crate) heads: Heads,
    pub(crate) spans: Vec<QuerySpan>,
    /// `[queries, query heads · size]`
    pub(crate) queries: Tensor,
    /// `[tokens, 2 · key heads · size]`
    pub(crate) keys_values: Tensor,
}

impl ForestCase {
    /// Heads have an even size below `size`. About this share of the tokens has queries, the last token
    /// always.
    pub(crate) fn random(rng: &mut StdRng, size: usize, share: f64) -> Self {
        let size = 2 * rng.random_range(1..size / 2);
        Self::with_size(rng, size, share)
    }

    /// The same for heads of this size.
    pub(crate) fn with_size(rng: &mut StdRng, size: usize, share: f64) -> Self {
        let batch = forest(rng);
        let keys = rng.random_range(1..4);
        let heads = Heads { queries: keys * rng.random_range(1..4), keys, size };
        let tokens = batch.token_ids().len();
        let mut asked: Vec<usize> = (0..tokens).filter(|_| rng.random_bool(share)).collect();
        asked.push(tokens - 1);
        asked.dedup();
        let mut tensor = |rows: usize, columns: usize| {
            let values: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-2.0..2.0)).collect();
            Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
        };
        Self {
            spans: queries_at(&batch, &asked),
            queries: tensor(asked.len(), heads.queries * heads.size),
            keys_values: tensor(tokens, 2 * heads.keys * heads.size),
            heads,
            batch,
        }
    }
}

/// Random limits. Each of them may cut, separate or join groups.
fn limits(rng: &mut StdRng) -> GroupLimits {
    let GroupLimits { queries, group, padding, masks } = GroupLimits::GPU;
    GroupLimits {
        queries: *[1, 3, 16, queries].choose(rng).unwrap(),
        group: *[1, 5_000, 50_000, group].choose(rng).unwrap(),
        padding: *[0, 2_000, padding].choose(rng).unwrap(),
        masks: *[0, 10_000, masks].choose(rng).unwrap(),
    }
}

#[test]
fn attention_over_padded_groups_equals_the_obvious_one() {
    let device = device();
    let mut rng = StdRng::seed_from_u64(51);
    for case in 0..300 {
        let limits = limits(&mut rng);
        let share = rng.random_range(0.05..=1.0);
        let ForestCase { batch, heads, spans, queries, keys_values } =
            ForestCase::random(&mut rng, 80, share);
        let tokens = batch.token_ids().len();
        // Shuffled places, as if some rows came from earlier batches.
        let mut places: Vec<usize> = (0..tokens).collect();
        places.shuffle(&mut rng);
        let values = |x: Tensor| -> Vec<f32> { x.flatten_all().unwrap().to_vec1().unwrap() };
        let scored = Scored::random(&mut rng, &batch, heads);
        let scoring = scored.scoring();
        let rows = Rows { batch: &batch, places: &places, spans: &spans, angles: None, heads, scoring };
        let expected = reference::attention(&queries, &keys_values, &rows);
        let expected = values(expected.unwrap());
        let scaled = (queries / f64::from(scoring.divisor)).unwrap();
        let plan = PaddedAttention::new(&rows, limits, &device).unwrap();
        let [queries, keys_values] = [&scaled, &keys_values].map(|x| x.to_device(&device).unwrap());
        let got = values(plan.attention(&queries, &keys_values, None).unwrap());
        assert_close(&got, &expected, 5e-6, &format!("case {case}, {heads:?} {limits:?}"));
    }
}

#[test]
fn a_score_of_candle_depends_neither_on_company_nor_on_sharing() {
    let mut rng = StdRng::seed_from_u64(52);
    let mut texts: Vec<Vec<u32>> = cases("tied-bf16").into_iter().map(|(_, ids, _)| ids).collect();
    texts.extend(random_texts(&mut rng));
    let mut backend = load_on(candle(), &options("tied-bf16")).unwrap();
    let mut score = |builder, texts: &[Vec<u32>]| predict(backend.as_mut(), batch(builder, texts));
    let alone: Vec<f32> = texts
        .iter()
        .flat_map(|ids| score(BatchBuilder::new(Packing::SHARED), std::slice::from_ref(ids)))
        .collect();
    let shared = score(BatchBuilder::new(Packing::SHARED), &texts);
    assert_close(&shared, &alone, 2e-5, "shared");
    let unshared = score(BatchBuilder::new(Packing::SEPARATE), &texts);
    assert_close(&unshared, &alone, 2e-5, "unshared");
}

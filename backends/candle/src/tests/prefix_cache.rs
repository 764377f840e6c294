//! Whole models with a prefix cache give the same answers as without it, whatever they computed before, and
//! keep to their budget.

use super::{random_model::*, *};
use crate::cpu::timed::Log;
use text_embeddings_backend_core::Reused;

fn with_cache<O: Operations + 'static>(
    operations: O,
    options: &LoadOptions,
    bytes: usize,
) -> Box<dyn Backend> {
    let options = LoadOptions { prefix_cache_bytes: bytes, ..options.clone() };
    load_on(operations, &options).unwrap()
}

fn start(dtype: DType, set: InstructionSet) -> CpuOperations {
    CpuOperations::start(2, set, dtype).unwrap()
}

/// The bytes of a cache, and the fewest tokens of a part of a batch. With little room, a part of a batch
/// pushes out what another has just kept.
const BUDGETS: [(usize, usize); 6] =
    [(0, usize::MAX), (3_000, 1), (100_000, 1), (300_000, usize::MAX), (1 << 30, 1), (1 << 30, usize::MAX)];

/// Generates texts from one of a few instructions, one of a few queries, some of which share a prefix, and
/// any document. Some texts have no reusable tokens, others too many. Half of the texts are of two tokens
/// only: their prefixes part and meet in every way.
struct Requests {
    rng: StdRng,
    instructions: Vec<Vec<u32>>,
    queries: Vec<Vec<u32>>,
}

impl Requests {
    fn new(seed: u64, vocabulary: u32) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut ids =
            |len: usize| -> Vec<u32> { (0..len).map(|_| rng.random_range(0..vocabulary)).collect() };
        let system = ids(11);
        let instructions = [1, 9, 22].map(|len| [&system[..], &ids(len)].concat()).to_vec();
        let start = ids(5);
        let mut queries = vec![start.clone(), Vec::new()];
        queries.extend([3, 17, 40].map(|len| [&start[..], &ids(len)].concat()));
        queries.extend([1, 33].map(ids));
        Self { rng, instructions, queries }
    }

    fn text(&mut self) -> Text {
        let rng = &mut self.rng;
        if rng.random_bool(0.5) {
            let ids: Vec<u32> = (0..rng.random_range(1..14)).map(|_| rng.random_range(0..2)).collect();
            return Text { reusable: rng.random_range(0..=ids.len() + 1), ..Text::new(ids, Wanted::WHOLE) };
        }
        let mut ids = self.instructions[rng.random_range(0..3)].clone();
        ids.extend(&self.queries[rng.random_range(0..self.queries.len())]);
        let reusable = [ids.len(), ids.len(), ids.len(), 0, usize::MAX][rng.random_range(0..5)];
        let document: Vec<u32> = (0..rng.random_range(0..20)).map(|_| rng.random_range(0..90)).collect();
        Text { reusable, ..Text::new([ids, document].concat(), Wanted::WHOLE) }
    }

    fn batch(&mut self) -> Vec<Text> {
        (0..self.rng.random_range(1..9)).map(|_| self.text()).collect()
    }
}

fn answer(backend: &mut dyn Backend, texts: &[Text]) -> (Vec<f32>, Reused) {
    let mut builder = BatchBuilder::new(Packing::SHARED);
    for text in texts {
        builder.push(text);
    }
    let predictions = backend.predict(&builder.build()).unwrap();
    (
        predictions
            .texts
            .iter()
            .flat_map(|text| [&text.whole[..], &text.tokens.values[..]].concat())
            .collect(),
        predictions.reused,
    )
}

/// The number of forward passes in a log: one for each part of a batch.
fn count_passes(log: &Log) -> usize {
    log.lock().unwrap().iter().filter(|(kind, _)| kind.name == "embedding").count()
}

/// The scores may differ as much as between batches, because cached keys may come from a batch in which
/// attention covered other segments.
#[test]
fn scores_over_time_are_those_without_a_cache() {
    let options = options("tied-bf16");
    let mut cases: Vec<_> =
        InstructionSet::available().into_iter().map(|set| (DType::Float32, set, 2e-5)).collect();
    for (dtype, _, tolerance) in LOWER_PRECISIONS {
        cases.extend([InstructionSet::Portable, InstructionSet::best()].map(|set| (dtype, set, tolerance)));
    }
    for (seed, (dtype, set, tolerance)) in cases.into_iter().enumerate() {
        for (budget, part_tokens) in BUDGETS {
            let mut cached = with_cache(start(dtype, set).with_parts_of(part_tokens), &options, budget);
            let mut plain = with_cache(start(dtype, set), &options, 0);
            let mut requests = Requests::new(50 + seed as u64, 1300);
            let mut total = 0;
            for round in 0..12 {
                let texts = requests.batch();
                let (scores, reused) = answer(cached.as_mut(), &texts);
                let (expected, none) = answer(plain.as_mut(), &texts);
                let what = format!("{dtype} {set}, {budget} bytes, round {round}");
                assert_close(&scores, &expected, tolerance, &what);
                assert_eq!(none, Reused::default());
                assert!(reused.bytes <= budget, "{} of {budget} bytes", reused.bytes);
                assert!(reused.texts <= texts.len() && (reused.texts == 0) == (reused.tokens == 0));
                total += reused.tokens;
            }
            // The smallest cache holds a few tokens, which may or may not be reused.
            assert!(total > 0 || budget <= 3_000, "{dtype} {set}, {budget} bytes");
            assert!(total == 0 || budget > 0, "{dtype} {set}: {total} tokens out of nothing");
        }
    }
    let mut cached = with_cache(candle(), &options, 300_000);
    let mut plain = with_cache(candle(), &options, 0);
    let mut requests = Requests::new(49, 1300);
    for round in 0..12 {
        let texts = requests.batch();
        let (scores, reused) = answer(cached.as_mut(), &texts);
        assert_close(&scores, &answer(plain.as_mut(), &texts).0, 2e-5, &format!("candle, round {round}"));
        assert!(round < 6 || reused.tokens > 0);
    }
}

#[test]
#[serial_test::serial]
fn scores_over_time_are_those_without_a_cache_on_the_card() {
    let options = options("tied-bf16");
    for budget in [0, 30_000, 1 << 30] {
        let with = |prefix_cache_bytes| {
            let options = LoadOptions { prefix_cache_bytes, ..options.clone() };
            on_gpu(candle_core::DType::F16, true, &options)
        };
        let (Some(mut cached), Some(mut plain)) = (with(budget), with(0)) else { return };
        let mut requests = Requests::new(48, 1300);
        let mut total = 0;
        for round in 0..12 {
            let texts = requests.batch();
            let (scores, reused) = answer(cached.as_mut(), &texts);
            let (expected, _) = answer(plain.as_mut(), &texts);
            assert_close(&scores, &expected, 1e-2, &format!("GPU, {budget} bytes, round {round}"));
            assert!(reused.bytes <= budget);
            total += reused.tokens;
        }
        assert!(total > 0 || budget < 1 << 30, "{budget} bytes");
    }
}

/// Models with recurrent layers keep states at a few places only.
#[test]
fn states_of_recurrent_layers_are_kept_and_used() {
    for fixture in architectures::fixtures_of_architectures() {
        if !fixture.name.starts_with("qwen3_5") || fixture.name.contains("classifier") {
            continue;
        }
        let options = fixture.options("last");
        let mut cases: Vec<_> =
            InstructionSet::available().into_iter().map(|set| (DType::Float32, set, 2e-5)).collect();
        cases.push((DType::BFloat16, InstructionSet::best(), 0.1));
        for (seed, (dtype, set, tolerance)) in cases.into_iter().enumerate() {
            for (budget, part_tokens) in BUDGETS {
                let mut cached = with_cache(start(dtype, set).with_parts_of(part_tokens), &options, budget);
                let mut plain = with_cache(start(dtype, set), &options, 0);
                let mut requests = Requests::new(70 + seed as u64, 101);
                let mut total = 0;
                for round in 0..15 {
                    let texts = requests.batch();
                    let known = cached.known_tokens(&texts[0]);
                    let (values, reused) = answer(cached.as_mut(), &texts);
                    let (expected, _) = answer(plain.as_mut(), &texts);
                    let what = format!("{} {dtype} {set}, {budget} bytes, round {round}", fixture.name);
                    assert_close(&values, &expected, tolerance, &what);
                    assert!(reused.bytes <= budget, "{what}: {} bytes", reused.bytes);
                    assert!(texts.len() > 1 || known == reused.tokens, "{what}: {known}");
                    total += reused.tokens;
                }
                assert!(total == 0 || budget >= 100_000, "{dtype} {set}: {total} tokens, {budget} bytes");
                assert!(total > 0 || budget < 1 << 30, "{dtype} {set}");
            }
        }
    }
}

/// Two queries with the same frame: their states are kept at their ends, and when the second comes, also
/// where it parts from the first.
#[test]
fn a_state_is_kept_where_texts_part() {
    let fixtures = architectures::fixtures_of_architectures();
    let Some(fixture) = fixtures.iter().find(|fixture| fixture.name == "qwen3_5-text") else { return };
    let mut backend =
        with_cache(start(DType::Float32, InstructionSet::best()), &fixture.options("last"), 1 << 30);
    let text = |ids: &[u32], reusable| Text { reusable, ..Text::new(ids, Wanted::WHOLE) };
    let mut reused = |texts: &[Text]| answer(backend.as_mut(), texts).1.tokens;
    // A frame of four tokens, two of a query, one of a document.
    assert_eq!(reused(&[text(&[1, 2, 3, 4, 5, 6, 7], 6), text(&[1, 2, 3, 4, 5, 6, 8], 6)]), 0);
    assert_eq!(reused(&[text(&[1, 2, 3, 4, 5, 6, 9], 6)]), 6, "the end of the query");
    assert_eq!(reused(&[text(&[1, 2, 3, 4, 9, 9, 7], 6)]), 0, "no state where the queries part");
    assert_eq!(reused(&[text(&[1, 2, 3, 4, 8, 8, 7], 6)]), 4, "now there is one");
    assert_eq!(reused(&[text(&[1, 2, 3, 4, 5, 6, 7], 6), text(&[1, 2, 3, 4, 9, 9, 7], 6)]), 8);
    assert_eq!(reused(&[text(&[1, 2, 3, 5], 3), text(&[1, 2, 8, 8], 2)]), 0);
    assert_eq!(reused(&[text(&[1, 2, 3, 5, 5], 3), text(&[1, 2, 9, 9], 2)]), 3);
}

#[test]
fn the_same_request_again_computes_only_its_documents() {
    let mut backend =
        with_cache(start(DType::Float32, InstructionSet::best()), &options("tied-bf16"), 1 << 30);
    let text = |ids: &[u32], reusable| Text { reusable, ..Text::new(ids, Wanted::WHOLE) };
    let first = [text(&[1, 2, 3, 4, 5], 3), text(&[1, 2, 3, 6], 3)];
    let (scores, reused) = answer(backend.as_mut(), &first);
    assert_eq!((reused.texts, reused.tokens), (0, 0));
    let kept = reused.bytes;
    assert!(kept > 0);
    // The bits are equal, because attention covers the same segments in the same order.
    assert_eq!(answer(backend.as_mut(), &first), (scores, Reused { texts: 2, tokens: 3, bytes: kept }));
    // The last token of a text is always computed. Tokens that must not be kept are computed again.
    assert_eq!(
        answer(backend.as_mut(), &[text(&[1, 2, 3], 0)]).1,
        Reused { texts: 1, tokens: 2, bytes: kept }
    );
    let (_, other) = answer(backend.as_mut(), &[text(&[1, 2, 9, 9], 3), text(&[8, 8, 8], 0)]);
    assert_eq!((other.texts, other.tokens), (1, 2));
    assert!(other.bytes > kept);
}

#[test]
fn texts_whose_prefix_is_known_are_computed_in_parts_with_the_same_bits() {
    let fixtures = architectures::fixtures_of_architectures();
    let recurrent = fixtures.iter().find(|fixture| fixture.name == "qwen3_5-text");
    let recurrent = recurrent.map(|fixture| (fixture.name.as_str(), fixture.options("last")));
    let mut rng = StdRng::seed_from_u64(54);
    for (name, options) in [("tied-bf16", options("tied-bf16"))].into_iter().chain(recurrent) {
        let with = |part_tokens| start(DType::Float32, InstructionSet::best()).with_parts_of(part_tokens);
        let log = Log::default();
        let mut in_parts = with_cache(with(1).timed(log.clone()), &options, 1 << 30);
        let mut whole = with_cache(with(usize::MAX), &options, 1 << 30);
        let mut ids = |len: usize| -> Vec<u32> { (0..len).map(|_| rng.random_range(0..50)).collect() };
        let prefix = ids(40);
        let mut texts = |first: u32| -> Vec<Text> {
            let text = |index: u32| {
                let ids = [&prefix[..], &[first + index], &ids(20 + index as usize)].concat();
                Text { reusable: prefix.len(), ..Text::new(ids, Wanted::WHOLE) }
            };
            (0..8).map(text).collect()
        };
        // In the last batch, each text shares all but its last tokens with another.
        let mut alike = texts(16);
        alike
            .extend(alike.clone().into_iter().map(|text| Text { ids: [text.ids, vec![1]].concat(), ..text }));
        for (batch, texts, divided) in
            [("first", texts(0), false), ("next", texts(8), true), ("last", alike, false)]
        {
            log.lock().unwrap().clear();
            assert_eq!(answer(in_parts.as_mut(), &texts), answer(whole.as_mut(), &texts), "{name}, {batch}");
            let passes = count_passes(&log);
            assert_eq!(passes > 1, divided, "{name}, {batch}");
        }
    }
}

/// In random forests, some texts begin with the same token, and the others have roots of their own.
#[test]
fn any_forest_is_computed_in_parts_with_the_values_of_the_whole() {
    let mut rng = StdRng::seed_from_u64(55);
    for fixture in architectures::fixtures_of_architectures() {
        let options = fixture.options("last");
        let load = |threads, part_tokens, log: &Log, bytes| {
            let operations = CpuOperations::start(threads, InstructionSet::best(), DType::Float32).unwrap();
            with_cache(operations.with_parts_of(part_tokens).timed(log.clone()), &options, bytes)
        };
        if architectures::REFUSED.iter().any(|(name, _)| *name == fixture.name)
            || !load(1, usize::MAX, &Log::default(), 0).packing().shares_prefixes
        {
            continue;
        }
        let mut divided = 0;
        for (threads, bytes) in [(2, 0), (3, 0), (2, 1 << 30)] {
            let log = Log::default();
            let mut in_parts = load(threads, 1, &log, bytes);
            let mut whole = load(threads, usize::MAX, &Log::default(), bytes);
            for round in 0..8 {
                let texts: Vec<Text> = (0..rng.random_range(8..20))
                    .map(|_| {
                        let length = rng.random_range(20..40);
                        let mut ids: Vec<u32> = (0..length).map(|_| rng.random_range(0..90)).collect();
                        ids[0] %= 4;
                        Text { reusable: ids.len() / 2, ..Text::new(ids, Wanted::WHOLE) }
                    })
                    .collect();
                log.lock().unwrap().clear();
                let (values, _) = answer(in_parts.as_mut(), &texts);
                let (expected, _) = answer(whole.as_mut(), &texts);
                let largest = expected.iter().fold(1.0_f32, |largest, value| largest.max(value.abs()));
                let what = format!("{}, {threads} threads, {bytes} bytes, round {round}", fixture.name);
                assert_close(&values, &expected, 2e-5 * largest, &what);
                let passes = count_passes(&log);
                divided += usize::from(passes > 1);
            }
        }
        assert!(divided > 12, "{}: {divided} of 24", fixture.name);
    }
}

#[test]
fn what_is_said_to_be_known_is_not_computed() {
    let options = options("tied-bf16");
    for budget in [0, 100_000, 1 << 30] {
        let mut backend = with_cache(start(DType::BFloat16, InstructionSet::best()), &options, budget);
        let mut requests = Requests::new(53, 1300);
        let mut total = 0;
        for _ in 0..60 {
            let text = requests.text();
            let known = backend.known_tokens(&text);
            let (_, reused) = answer(backend.as_mut(), std::slice::from_ref(&text));
            assert_eq!(known, reused.tokens, "{budget} bytes");
            total += known;
        }
        assert_eq!(total > 0, budget > 0);
        let text = Text { wanted: Wanted::TOKENS, ..requests.text() };
        assert_eq!(backend.known_tokens(&text), 0, "of all tokens something is wanted");
    }
}

#[test]
fn a_pass_that_fails_leaves_the_cache_as_it_was() {
    let options = options("tied-bf16");
    let mut backend = with_cache(start(DType::Float32, InstructionSet::best()), &options, 1 << 30);
    let text = |ids: &[u32]| Text { reusable: 3, ..Text::new(ids, Wanted::WHOLE) };
    let (scores, before) = answer(backend.as_mut(), &[text(&[1, 2, 3, 4])]);
    let mut builder = BatchBuilder::new(Packing::SHARED);
    builder.push(&text(&[1, 2, 9_999_999, 4]));
    builder.push(&text(&[7, 7, 7, 7]));
    assert!(backend.predict(&builder.build()).is_err());
    let again = answer(backend.as_mut(), &[text(&[1, 2, 3, 4])]);
    assert_eq!(again, (scores, Reused { texts: 1, tokens: 3, bytes: before.bytes }));
    assert_eq!(answer(backend.as_mut(), &[text(&[7, 7, 7, 7])]).1.tokens, 0);
}

#[test]
fn nothing_is_kept_for_heads_that_read_the_first_rows() {
    let model = RandomModel::new(51, "", candle_core::DType::F32);
    for (pool, keeps) in [(Pooling::Last, true), (Pooling::Mean, false), (Pooling::First, false)] {
        let options = model.options(heads::embedding(pool, Vec::new()));
        let mut cached = with_cache(start(DType::Float32, InstructionSet::best()), &options, 1 << 20);
        let mut plain = with_cache(start(DType::Float32, InstructionSet::best()), &options, 0);
        let mut requests = Requests::new(52, 90);
        let mut tokens = 0;
        for round in 0..8 {
            let mut texts = requests.batch();
            if round % 2 == 0 {
                texts[0].wanted = Wanted::TOKENS;
            }
            let (values, reused) = answer(cached.as_mut(), &texts);
            assert_close(&values, &answer(plain.as_mut(), &texts).0, 2e-5, &format!("{pool:?}"));
            tokens += reused.tokens;
            assert!(keeps || reused == Reused::default(), "{pool:?}: {reused:?}");
        }
        assert_eq!(tokens > 0, keeps, "{pool:?}");
    }
}

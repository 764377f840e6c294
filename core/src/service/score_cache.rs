//! Scores and vectors that were computed before, for inputs that come again.
//!
//! Input: an input of a request, and later the model's values for it. Output: the same values, bit by bit,
//! and the number of the input's tokens, if they are still there. The key is a hash of the text with all that
//! decides its tokens, so that a kept text is not even tokenized. What must hold: only equal inputs of one
//! model share values; a client cannot make two inputs share them, because the hash has a secret key; a query
//! that all inputs of a request have is hashed once; memory is limited, bookkeeping included; values that no
//! request needs again leave before values that some request does.

use super::task::ModelTask;
use crate::{
    metrics::{ModelMetrics, SCORE_CACHE_BYTES},
    tokenization::{Input, Truncation},
};
use sha2::{Digest, Sha256};
use std::{
    collections::{HashMap, VecDeque, hash_map},
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    marker::PhantomData,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use text_embeddings_backend_core::Output;

/// The most bytes of an entry without a list of values. A bucket of the table takes 41 bytes, and there are
/// up to 16 buckets for 7 entries; a place in a queue takes 16 bytes, and each of the two queues may have
/// twice as many places as there are entries.
const ENTRY_BYTES: usize = 160;
/// The bytes of an allocation besides its content.
const ALLOCATION_BYTES: usize = 32;
/// New values take at most 1/YOUNG of the memory, once it is full.
const YOUNG: usize = 10;
/// The bytes from which on a text is hashed on its own, because many inputs of a request may have it.
const LONG_TEXT: usize = 256;
/// The texts that inputs of a request may share: an instruction and a query. They come before the document.
const COMMON_TEXTS: usize = 2;
/// The number of times that a value stays because requests needed it.
const MAX_HITS: u8 = 3;

/// The values of all models of the process.
pub struct ScoreCache {
    entries: Mutex<ScoreEntries>,
    /// The most bytes that it holds.
    pub max_bytes: usize,
    secret: [u8; 32],
    /// The number of models that ever used it.
    models: AtomicU64,
}

/// The hash of a model's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ScoreKey([u8; 16]);

/// The long texts that the first inputs of a request had, each with its hash: a query that a thousand inputs
/// share is hashed once. The texts outlive this, so that their address tells them apart.
#[derive(Default)]
pub(super) struct LongTexts<'a> {
    known: Vec<LongText>,
    texts: PhantomData<&'a str>,
    #[cfg(test)]
    hashed_bytes: usize,
}

struct LongText {
    address: usize,
    length: usize,
    hash: [u8; 32],
}

impl LongTexts<'_> {
    /// The keyed hash of a long text.
    fn hash_text(&mut self, secret: &[u8; 32], text: &[u8]) -> [u8; 32] {
        let (address, length) = (text.as_ptr().addr(), text.len());
        if let Some(known) = self.known.iter().find(|it| it.address == address && it.length == length) {
            return known.hash;
        }
        #[cfg(test)]
        {
            self.hashed_bytes += length;
        }
        let hash = Sha256::new_with_prefix(secret).chain_update(text).finalize().into();
        if self.known.len() < COMMON_TEXTS {
            self.known.push(LongText { address, length, hash });
        }
        hash
    }
}

/// The hash of an input. It has a secret, so that no client can choose an input for a given hash. A long text
/// takes part by a hash of its own.
struct KeyHasher<'k, 'a> {
    hash: Sha256,
    secret: &'k [u8; 32],
    long: &'k mut LongTexts<'a>,
}

impl Hasher for KeyHasher<'_, '_> {
    fn write(&mut self, bytes: &[u8]) {
        if bytes.len() < LONG_TEXT {
            self.hash.update(bytes);
        } else {
            self.hash.update(self.long.hash_text(self.secret, bytes));
        }
    }

    /// Has no use: the key takes more than 64 bits.
    fn finish(&self) -> u64 {
        0
    }
}

/// The model's values for an input.
#[derive(Debug, Clone)]
pub(super) struct KeptOutput {
    pub(super) output: Arc<Output>,
    /// The number of the input's tokens.
    pub(super) tokens: usize,
    /// Whether tokens were cut from it.
    pub(super) is_cut: bool,
}

#[derive(Debug)]
enum KeptValues {
    /// A re-ranker's score.
    One(f32),
    /// The classes of a classifier, a vector, or the vectors of tokens. Requests share them.
    Many(Arc<Output>),
}

#[derive(Debug)]
struct ScoreEntry {
    values: KeptValues,
    tokens: u32,
    is_cut: bool,
    /// The number of requests that needed it since it last had a chance to leave.
    hits: u8,
}

/// The entries in the order in which they may leave (S3-FIFO, without its list of departed keys). A new entry
/// is young, and leaves soon unless another request needs it. So a client that sends many new texts only
/// pushes out young entries.
#[derive(Debug, Default)]
struct ScoreEntries {
    table: HashMap<ScoreKey, ScoreEntry>,
    young: VecDeque<ScoreKey>,
    old: VecDeque<ScoreKey>,
    young_bytes: usize,
    old_bytes: usize,
}

impl KeptValues {
    fn entry_bytes(&self) -> usize {
        match self {
            Self::One(_) => ENTRY_BYTES,
            Self::Many(output) => {
                let Output { whole, tokens, sparse } = output.as_ref();
                let values = (whole.capacity() + tokens.values.capacity()) * size_of::<f32>();
                let sparse = size_of_val::<[_]>(sparse);
                ENTRY_BYTES + 2 * ALLOCATION_BYTES + size_of::<Output>() + values + sparse
            }
        }
    }
}

impl ScoreEntries {
    fn insert_new(&mut self, key: ScoreKey, entry: ScoreEntry, max_bytes: usize) {
        let bytes = entry.values.entry_bytes();
        if bytes > max_bytes / YOUNG {
            return;
        }
        if let hash_map::Entry::Vacant(place) = self.table.entry(key) {
            place.insert(entry);
            self.young.push_back(key);
            self.young_bytes += bytes;
        }
        while self.young_bytes + self.old_bytes > max_bytes {
            if self.young_bytes > max_bytes / YOUNG { self.pass_young() } else { self.pass_old() }
        }
    }

    /// The first young entry leaves, or becomes old if a request needed it.
    fn pass_young(&mut self) {
        let Some(key) = self.young.pop_front() else { return };
        let hash_map::Entry::Occupied(mut entry) = self.table.entry(key) else { return };
        let bytes = entry.get().values.entry_bytes();
        self.young_bytes -= bytes;
        if entry.get().hits > 0 {
            entry.get_mut().hits = 0;
            self.old.push_back(key);
            self.old_bytes += bytes;
        } else {
            entry.remove();
        }
    }

    /// The first old entry leaves, or goes to the end if a request needed it.
    fn pass_old(&mut self) {
        let Some(key) = self.old.pop_front() else { return };
        let hash_map::Entry::Occupied(mut entry) = self.table.entry(key) else { return };
        if entry.get().hits > 0 {
            entry.get_mut().hits -= 1;
            self.old.push_back(key);
        } else {
            self.old_bytes -= entry.remove().values.entry_bytes();
        }
    }
}

impl ScoreCache {
    /// An empty cache of at most `max_bytes` bytes.
    pub fn with_limit(max_bytes: usize) -> Self {
        // The standard library takes the keys of its hashers from the system's random source.
        let random = RandomState::new();
        let seed: Vec<u8> = (0..4_u64).flat_map(|part| random.hash_one(part).to_le_bytes()).collect();
        let (entries, models) = (Mutex::default(), AtomicU64::new(0));
        Self { entries, max_bytes, secret: Sha256::digest(seed).into(), models }
    }

    /// The bytes that it holds.
    pub fn held_bytes(&self) -> usize {
        let entries = self.lock_entries();
        entries.young_bytes + entries.old_bytes
    }

    fn lock_entries(&self) -> MutexGuard<'_, ScoreEntries> {
        // No code under the lock can leave the entries half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ScoreCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScoreCache").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

/// The values of one model. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ModelScores {
    cache: Arc<ScoreCache>,
    /// The model's number. Model, revision, template, arithmetic and adapters belong to it and never change.
    model: u64,
}

impl ModelScores {
    /// The values of a new model.
    pub(super) fn from_cache(cache: Arc<ScoreCache>) -> Self {
        Self { model: cache.models.fetch_add(1, Ordering::Relaxed), cache }
    }

    /// The key of an input; absent if the task's outputs are not kept.
    pub(super) fn find_key<'a>(
        &self,
        task: ModelTask,
        truncation: Truncation,
        input: &Input<'a>,
        long: &mut LongTexts<'a>,
    ) -> Option<ScoreKey> {
        if !task.keeps_outputs() {
            return None;
        }
        let secret = &self.cache.secret;
        let mut hasher = KeyHasher { hash: Sha256::new_with_prefix(secret), secret, long };
        (self.model, task, truncation, input).hash(&mut hasher);
        hasher.hash.finalize().first_chunk().copied().map(ScoreKey)
    }

    /// The output for an input that was computed before.
    pub(super) fn find_output(&self, key: ScoreKey) -> Option<KeptOutput> {
        let mut entries = self.cache.lock_entries();
        let entry = entries.table.get_mut(&key)?;
        entry.hits = (entry.hits + 1).min(MAX_HITS);
        let output = match &entry.values {
            KeptValues::One(value) => Arc::new(Output::whole([*value])),
            KeptValues::Many(output) => Arc::clone(output),
        };
        Some(KeptOutput { output, tokens: entry.tokens as usize, is_cut: entry.is_cut })
    }

    /// Keeps the output for an input.
    pub(super) fn keep_output(&self, key: ScoreKey, kept: &KeptOutput) {
        let KeptOutput { output, tokens, is_cut } = kept;
        let values = match output.whole.as_slice() {
            [value] => KeptValues::One(*value),
            _ => KeptValues::Many(Arc::clone(output)),
        };
        // No input has more tokens than fit: they are ids in memory.
        let tokens = u32::try_from(*tokens).unwrap_or(u32::MAX);
        let entry = ScoreEntry { values, tokens, is_cut: *is_cut, hits: 0 };
        self.cache.lock_entries().insert_new(key, entry, self.cache.max_bytes);
    }

    /// Sets the metric of the bytes that the cache holds, for all models together.
    pub(super) fn publish_bytes(&self) {
        ModelMetrics::default().set_amount(SCORE_CACHE_BYTES, self.cache.held_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::service::task::MAX_VECTOR_TOKENS;
    use crate::{
        error::Error,
        metrics::{self, testing::recorded},
        model::{CosineRanking, RerankScoring},
        service::{
            EmbedEncoding, EmbedInput, EmbedInputs, EmbedRequest, PredictInput, PredictRequest,
            RerankRequest, ServiceConfig,
            testing::{
                Fixture, block_on, classifier_fixture, embedder, embedding_fixture, fixture, fixture_with,
                reranker,
            },
        },
        tokenization::{PairSide, PairText, Side, TokenLimits, TruncationDirection},
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::{TokenVectors, Wanted};

    fn cache(bytes: usize) -> Arc<ScoreCache> {
        Arc::new(ScoreCache::with_limit(bytes))
    }

    fn request(query: usize, texts: &[usize]) -> RerankRequest {
        let texts = texts.iter().map(|text| format!("w{text} w{}", 900 - text)).collect();
        RerankRequest { query: format!("w{query}"), texts, raw_scores: true, ..RerankRequest::default() }
    }

    /// The number of texts that the device computed so far.
    fn computed(fixture: &Fixture) -> usize {
        fixture.control.batch_sizes().iter().sum()
    }

    #[tokio::test]
    async fn every_bit_is_the_same_with_and_without_and_nothing_is_computed_twice() {
        let rng = &mut StdRng::seed_from_u64(1);
        let fixture = fixture(500);
        let cached = fixture.service.clone().with_score_cache(&cache(1 << 20));
        let (mut seen, mut hits) = (std::collections::HashSet::new(), 0);
        for _ in 0..100 {
            let query = rng.random_range(100..104);
            let texts: Vec<usize> =
                (0..rng.random_range(1..16)).map(|_| rng.random_range(100..130)).collect();
            let instruction = rng.random_bool(0.3).then(|| "w7 w8".to_owned());
            let raw_scores = rng.random_bool(0.5);
            let asked =
                RerankRequest { instruction: instruction.clone(), raw_scores, ..request(query, &texts) };
            let plain = fixture.service.rerank(asked.clone()).await.unwrap();
            let answer = cached.rerank(asked).await.unwrap();
            assert_eq!(answer.value, plain.value);
            let known =
                texts.iter().filter(|text| seen.contains(&(query, **text, instruction.is_some()))).count();
            assert_eq!((answer.cost.cached, plain.cost.cached), (Some(known), None));
            // Kept texts are not tokenized.
            assert_eq!(answer.cost.tokenization.is_zero(), known == texts.len());
            // Everything else that the answer says about its cost is as without.
            assert_eq!(
                (answer.cost.texts, answer.cost.tokens, answer.cost.characters, answer.cost.truncated),
                (plain.cost.texts, plain.cost.tokens, plain.cost.characters, plain.cost.truncated)
            );
            seen.extend(texts.iter().map(|text| (query, *text, instruction.is_some())));
            hits += known;
        }
        assert!(hits > 300, "{hits}");
        let before = computed(&fixture);
        cached.rerank(request(100, &[100, 101])).await.unwrap();
        let again = cached.rerank(request(100, &[101, 100, 101])).await.unwrap();
        assert_eq!(again.cost.cached, Some(3));
        assert!(computed(&fixture) - before <= 2);
    }

    #[tokio::test]
    async fn models_that_share_the_cache_share_no_values() {
        let shared = cache(1 << 20);
        let scoring = RerankScoring::Logits { positive: Some(1) };
        let fixtures = [fixture(500), fixture_with(500, |config| reranker(config).scoring = scoring)];
        let mut answers = Vec::new();
        for fixture in &fixtures {
            let service = fixture.service.clone().with_score_cache(&shared);
            for cached in [0, 4] {
                let answer =
                    service.rerank(request(100, &[1, 2, 3, 4].map(|text| text + 100))).await.unwrap();
                let plain = fixture.service.rerank(request(100, &[101, 102, 103, 104])).await.unwrap();
                assert_eq!((answer.cost.cached, &answer.value), (Some(cached), &plain.value));
                answers.push(answer.value);
            }
        }
        assert_ne!(answers[0], answers[2]);
    }

    fn embed_request(words: usize) -> EmbedRequest {
        let inputs = vec![EmbedInput::Text("w500 ".repeat(words))];
        EmbedRequest {
            inputs: EmbedInputs { inputs, is_batch: false },
            encoding: EmbedEncoding::default(),
            normalize: true,
            dimensions: None,
        }
    }

    #[tokio::test]
    async fn vectors_of_short_texts_and_labels_are_kept_and_other_outputs_are_not() {
        let embedding = embedding_fixture(500, |config: &mut ServiceConfig| {
            embedder(config).cosine_ranking = Some(CosineRanking::default());
        });
        let cached = embedding.service.clone().with_score_cache(&cache(1 << 20));
        // With `[CLS]`.
        for (words, hits) in [(1, 1), (MAX_VECTOR_TOKENS - 1, 1), (MAX_VECTOR_TOKENS, 0)] {
            let plain = embedding.service.embed(embed_request(words), Wanted::WHOLE).await.unwrap();
            for hits in [0, hits] {
                let answer = cached.embed(embed_request(words), Wanted::WHOLE).await.unwrap();
                assert_eq!((answer.cost.cached, answer.value), (Some(hits), plain.value.clone()), "{words}");
            }
        }
        for _ in 0..2 {
            let answer = cached.embed(embed_request(2), Wanted::TOKENS).await.unwrap();
            assert_eq!(answer.cost.cached, Some(0), "one vector for each token");
        }
        // The query's vector of one request serves another one.
        let plain = embedding.service.rerank(request(100, &[101])).await.unwrap();
        assert_eq!(cached.rerank(request(100, &[102])).await.unwrap().cost.cached, Some(0));
        let answer = cached.rerank(request(100, &[101])).await.unwrap();
        assert_eq!((answer.cost.cached, answer.value), (Some(1), plain.value));

        let classifier = classifier_fixture(&["a", "b", "c"]);
        let cached = classifier.service.clone().with_score_cache(&cache(1 << 20));
        let predict = |first: &str, second: &str| PredictRequest {
            inputs: vec![PredictInput::Pair(first.to_owned(), second.to_owned())],
            is_batch: false,
            truncate: None,
            truncation_direction: TruncationDirection::Right,
            raw_scores: true,
        };
        // The same tokens with another border between the texts.
        for (first, second, hits) in [("w9", "w10 w11", 0), ("w9 w10", "w11", 0), ("w9", "w10 w11", 1)] {
            let answer = cached.predict(predict(first, second)).await.unwrap();
            let plain = classifier.service.predict(predict(first, second)).await.unwrap();
            assert_eq!((answer.cost.cached, answer.value), (Some(hits), plain.value), "{first} {second}");
        }
    }

    #[tokio::test]
    async fn failures_are_not_kept() {
        let fixture = fixture(500);
        let cached = fixture.service.clone().with_score_cache(&cache(1 << 20));
        let ask = |text: &str| RerankRequest { texts: vec![text.to_owned()], ..request(100, &[]) };
        for _ in 0..2 {
            assert_eq!(cached.rerank(ask("nan")).await.unwrap_err(), Error::MissingValues);
            assert!(matches!(cached.rerank(ask("fail")).await, Err(Error::Inference(_))));
        }
    }

    #[test]
    fn hits_saved_tokens_and_bytes_are_metrics() {
        let fixture = fixture(500);
        let cached = fixture.service.clone().with_score_cache(&cache(1 << 20));
        let moved = recorded(|| {
            let first = block_on(cached.rerank(request(100, &[101, 102]))).unwrap().cost;
            let second = block_on(cached.rerank(request(100, &[101, 102, 103]))).unwrap().cost;
            assert_eq!((first.cached, second.cached), (Some(0), Some(2)));
        });
        let tokens = fixture.raw_score(None, "w100", "w101 w799").1;
        assert_eq!(moved[metrics::SCORE_CACHE_HITS], [2.0]);
        assert_eq!(moved[metrics::SCORE_CACHE_TOKENS], [2.0 * tokens as f64]);
        assert_eq!(moved[SCORE_CACHE_BYTES], [3.0 * ENTRY_BYTES as f64]);
        assert_eq!((moved["te_predict_count"][0], moved["te_predict_success"][0]), (5.0, 5.0));
    }

    const SCORE: ModelTask = ModelTask::Score(RerankScoring::Logits { positive: None });
    const PLAIN: Truncation =
        Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE };

    #[test]
    fn keys_depend_on_all_that_decides_the_values_and_on_a_secret() {
        let (cache, other_cache) = (cache(1 << 20), cache(1 << 20));
        let scores = ModelScores::from_cache(Arc::clone(&cache));
        let text = |prompt, text| Input::Text { prompt, text };
        let pair = |instruction, query, document| Input::Pair(PairText { instruction, query, document });
        let side =
            |prompt, text, max_tokens| Input::Side(PairSide { instruction: None, prompt, text, max_tokens });
        let late = |side, instruction, text| Input::Late { side, instruction, text };
        let (embed, late_task) = (ModelTask::Embed(Wanted::WHOLE), ModelTask::Score(RerankScoring::MaxSim));
        let inputs = [
            text("", "ab"),
            text("a", "b"),
            text("ab", ""),
            pair(None, "a", "b"),
            pair(None, "", "ab"),
            pair(None, "ab", ""),
            pair(Some(""), "a", "b"),
            pair(Some("a"), "", "b"),
            side("", "ab", None),
            side("a", "b", None),
            side("", "ab", Some(0)),
            side("", "ab", Some(9)),
            late(Side::Query, None, "ab"),
            late(Side::Document, None, "ab"),
            late(Side::Document, Some(""), "ab"),
            Input::Ids(&[1, 2]),
            Input::Ids(&[2, 1]),
            Input::Ids(&[1]),
            Input::PromptedIds { prompt: "", ids: &[1, 2] },
        ];
        let limits = TokenLimits::NONE;
        let truncations = [
            PLAIN,
            Truncation { truncate: false, ..PLAIN },
            Truncation { direction: TruncationDirection::Left, ..PLAIN },
            Truncation { limits: TokenLimits { query: Some(3), ..limits }, ..PLAIN },
            Truncation { limits: TokenLimits { document: Some(3), ..limits }, ..PLAIN },
            Truncation { limits: TokenLimits { prompt: Some(3), ..limits }, ..PLAIN },
        ];
        let other_models =
            [ModelScores::from_cache(Arc::clone(&cache)), ModelScores::from_cache(other_cache)];
        let mut keys = std::collections::HashSet::new();
        for input in &inputs {
            for scores in std::iter::once(&scores).chain(&other_models) {
                for task in [SCORE, embed, late_task] {
                    for truncation in truncations {
                        let key =
                            scores.find_key(task, truncation, input, &mut LongTexts::default()).unwrap();
                        assert_eq!(
                            scores.find_key(task, truncation, input, &mut LongTexts::default()),
                            Some(key)
                        );
                        assert!(keys.insert(key), "{input:?} {task:?} {truncation:?}");
                    }
                }
            }
        }
        for task in [ModelTask::Score(RerankScoring::Lists), ModelTask::Embed(Wanted::TOKENS)] {
            assert_eq!(scores.find_key(task, PLAIN, &inputs[0], &mut LongTexts::default()), None);
        }
    }

    #[test]
    fn a_common_query_is_hashed_once_and_keys_are_those_of_single_inputs() {
        let scores = ModelScores::from_cache(cache(1 << 20));
        for length in [LONG_TEXT - 1, LONG_TEXT, LONG_TEXT + 1, 10_000] {
            let (query, instruction) = ("q".repeat(length), "i".repeat(length));
            let documents: Vec<String> = (0..100).map(|index| format!("{index}{query}")).collect();
            let pairs = documents.iter().flat_map(|document| {
                let pair = PairText { instruction: Some(&instruction), query: &query, document };
                [pair, PairText { document: &document[..20], ..pair }]
            });
            let (mut long, mut keys) = (LongTexts::default(), std::collections::HashSet::new());
            for pair in pairs.map(Input::Pair) {
                let key = scores.find_key(SCORE, PLAIN, &pair, &mut long).unwrap();
                assert_eq!(scores.find_key(SCORE, PLAIN, &pair, &mut LongTexts::default()), Some(key));
                assert!(keys.insert(key), "{pair:?}");
            }
            let is_long = |text: &&String| text.len() >= LONG_TEXT;
            let texts = documents.iter().chain([&query, &instruction]).filter(is_long);
            assert_eq!(long.hashed_bytes, texts.map(String::len).sum::<usize>());
        }
    }

    /// The bytes of a bucket, by which [`ENTRY_BYTES`] is reckoned.
    #[test]
    fn an_entry_takes_as_much_as_is_counted() {
        assert_eq!(size_of::<(ScoreKey, ScoreEntry)>(), 40);
    }

    fn kept(output: Output) -> KeptOutput {
        KeptOutput { output: Arc::new(output), tokens: 7, is_cut: false }
    }

    #[test]
    fn memory_is_limited_and_values_that_are_used_survive_a_flood() {
        for bytes in [0, 100, 100_000, 1 << 20] {
            let cache = cache(bytes);
            let scores = ModelScores::from_cache(Arc::clone(&cache));
            for id in 0..20_000 {
                let key =
                    scores.find_key(SCORE, PLAIN, &Input::Ids(&[id]), &mut LongTexts::default()).unwrap();
                let (count, width) = (id as usize % 20, 4);
                let tokens = TokenVectors { values: vec![1.0; count * width], width };
                let whole = Output::whole(vec![1.0; count]);
                let output = if id % 3 == 0 { Output { tokens, ..Output::default() } } else { whole };
                scores.keep_output(key, &kept(output));
                assert!(cache.held_bytes() <= bytes);
            }
        }
        let cache = cache(1 << 20);
        let scores = ModelScores::from_cache(Arc::clone(&cache));
        let room = (1 << 20) / ENTRY_BYTES as u32;
        let key =
            |id: u32| scores.find_key(SCORE, PLAIN, &Input::Ids(&[id]), &mut LongTexts::default()).unwrap();
        let hot = 0..room / 10;
        let mut lost = 0;
        // One client floods the cache with ten times its size while others ask for the same again.
        for id in 0..room * 10 {
            let asked = id % hot.end;
            if scores.find_output(key(asked)).is_none() {
                lost += u32::from(id >= hot.end);
                scores.keep_output(key(asked), &kept(Output::whole([asked as f32])));
            }
            scores.keep_output(key(room * 10 + id), &kept(Output::whole([0.5])));
        }
        assert!(lost < hot.end / 10, "{lost} of {} asked again", hot.end);
        for id in hot {
            assert!(scores.find_output(key(id)).is_none_or(|output| output.output.whole == [id as f32]));
        }
    }
}

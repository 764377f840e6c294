//! The self-check of the start: whether the loaded model gives different texts different answers.
//!
//! Input: the backend and the encoder that will serve. Output: the length of an embedding model's vectors, or
//! the reason not to serve. What must hold: a model whose answers would all be the same, or not be numbers,
//! is not served.

use anyhow::ensure;
use sha2::{Digest, Sha256};
use text_embeddings_backend::{Backend, BatchBuilder, Text, Wanted};
use text_embeddings_backend_core::{Output, TokenVectors, amount};
use text_embeddings_core::{
    model::{Decider, EmbeddingModel, MadeFor, Model, ModelKind, Reading, Reranker},
    tokenization::{
        Encoded, Encoder, Input, MarkedQuestion, PairText, Side, TokenLimits, Truncation, TruncationDirection,
    },
};

/// Raw scores that are closer than this count as the same. It is far above the rounding of one prompt scored
/// twice, and far below the difference of two prompts' scores by a model that reads them.
const SAME_SCORE: f32 = 1e-5;

/// The bytes of a hash that are kept.
const HASH_BYTES: usize = 8;

/// A model may have an input length that the test texts exceed.
const TRUNCATION: Truncation =
    Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE };

const PAIRS: [[&str; 2]; 2] = [
    ["What is the capital of China?", "The capital of China is Beijing."],
    ["How does gravity work?", "Bread is baked from flour, water, yeast and salt."],
];

/// Runs the model on two inputs of its kind. Returns the length of an embedding model's vectors, else zero.
/// Vectors that are made of sparse ones have an entry for each of `vocabulary`.
pub(super) fn check_model(
    backend: &mut dyn Backend,
    encoder: &Encoder,
    model: &Model,
    vocabulary: usize,
) -> anyhow::Result<usize> {
    match &model.kind {
        ModelKind::Embedder(model) => {
            if model.outputs.sparse {
                check_sparse(backend, encoder, model)?;
            }
            if model.outputs.whole { check_embedding(backend, encoder, model) } else { Ok(vocabulary) }
        }
        ModelKind::Classifier(_) => check_classifier(backend, encoder).map(|()| 0),
        ModelKind::Reranker(model) if model.late.is_some() => check_late(backend, encoder).map(|()| 0),
        ModelKind::Reranker(model) if model.reads_lists() => check_lists(backend, encoder).map(|()| 0),
        ModelKind::Reranker(model) => check_reranker(backend, encoder, model).map(|()| 0),
        ModelKind::Decider(model) => check_decider(backend, encoder, model).map(|()| 0),
    }
}

/// The prompt as a calibration knows it again: a hash of the tokens of a fixed prompt, which changes with
/// tokenizer and template, and the instruction. No hash for models that read no prompt.
pub(super) fn describe_prompt(encoder: &Encoder, model: &Model) -> anyhow::Result<MadeFor> {
    let [[question, text], _] = PAIRS;
    let takes_instruction = match model.reranker().map(|model| &model.reading) {
        Some(Reading::Template(template)) => template.has_instruction(),
        Some(Reading::Joined) | None => false,
    };
    // The instruction is compared as text.
    let instruction = takes_instruction.then_some("instruction");
    let pair = Input::Pair(PairText { instruction, query: question, document: text });
    let asked = MarkedQuestion {
        kind: 0,
        text: question.to_owned(),
        options: vec![text.to_owned(), question.to_owned()],
    };
    let prompts = match &model.kind {
        ModelKind::Embedder(_) | ModelKind::Classifier(_) => return Ok(MadeFor::default()),
        ModelKind::Reranker(model) if model.late.is_some() => {
            let sides =
                [Side::Query, Side::Document].map(|side| Input::Late { side, instruction: None, text });
            sides.iter().map(|side| encoder.encode(side, TRUNCATION, None)).collect::<Result<Vec<_>, _>>()?
        }
        ModelKind::Reranker(model) if model.reads_lists() => {
            encoder.encode_list(&[pair], TRUNCATION, &|| false)?.prompts
        }
        ModelKind::Decider(decider) if !matches!(**decider, Decider::Labels(_)) => {
            vec![encoder.encode(&Input::Question { state: text, question: &asked }, TRUNCATION, None)?]
        }
        ModelKind::Reranker(_) | ModelKind::Decider(_) => vec![encoder.encode(&pair, TRUNCATION, None)?],
    };
    let mut hash = Sha256::new();
    for id in prompts.iter().flat_map(|prompt| &prompt.ids) {
        hash.update(id.to_le_bytes());
    }
    let digest = hash.finalize();
    let mut bytes = [0; HASH_BYTES];
    bytes.copy_from_slice(&digest[..HASH_BYTES]);
    let hash = format!("{:016x}", u64::from_be_bytes(bytes));
    let instruction = model.reranker().and_then(Reranker::shown_instruction).map(str::to_owned);
    Ok(MadeFor { prompt_hash: Some(hash), instruction, ..MadeFor::default() })
}

/// Two different pairs must get two different scores: a server that gives every text 0.7310586 is worse than
/// no server.
fn check_reranker(backend: &mut dyn Backend, encoder: &Encoder, model: &Reranker) -> anyhow::Result<()> {
    let logits =
        compute_outputs(backend, encoder, PAIRS.map(pair_input), Wanted::WHOLE)?.map(|output| output.whole);
    let scores = logits.each_ref().map(|logits| model.scoring.relevance_score(logits));
    ensure_numbers(&scores, &format!("two test pairs got the logits {logits:?}"))?;
    ensure!(
        (scores[0] - scores[1]).abs() > SAME_SCORE,
        "two different test pairs got the same raw score, {}: the checkpoint's weights do not read the \
         prompt; download it again, or check that it is the re-ranker that `--model-id` means",
        scores[0]
    );
    Ok(())
}

/// Two questions must get different logits.
fn check_decider(backend: &mut dyn Backend, encoder: &Encoder, decider: &Decider) -> anyhow::Result<()> {
    let questions = PAIRS.map(|[text, _]| MarkedQuestion {
        kind: 0,
        text: text.to_owned(),
        options: PAIRS.map(|[_, option]| option.to_owned()).into(),
    });
    let logits = match decider {
        Decider::Labels(_) => {
            let inputs = PAIRS.map(|[question, text]| pair_input([text, question]));
            compute_outputs(backend, encoder, inputs, Wanted::WHOLE)?.map(|output| output.whole)
        }
        Decider::Laya(_) | Decider::Pointer(_) => {
            let inputs =
                questions.each_ref().map(|question| Input::Question { state: PAIRS[0][0], question });
            compute_outputs(backend, encoder, inputs, Wanted::TOKENS)?.map(|output| output.tokens.values)
        }
    };
    let problem = "the answers of two test questions have logits that are not numbers";
    ensure_numbers(logits.iter().flatten(), problem)?;
    ensure!(
        logits[0].iter().zip(&logits[1]).any(|(a, b)| (a - b).abs() > SAME_SCORE),
        "the answers of two different test questions have the same logits: the checkpoint's weights do not read \
         the prompt; download it again"
    );
    Ok(())
}

/// The vectors of a query and two documents must be numbers, and no two alike.
fn check_lists(backend: &mut dyn Backend, encoder: &Encoder) -> anyhow::Result<()> {
    let pairs = PAIRS.map(|[_, document]| pair_input([PAIRS[0][0], document]));
    let mut batch = BatchBuilder::new(backend.packing());
    for Encoded { ids, marks, .. } in encoder.encode_list(&pairs, TRUNCATION, &|| false)?.prompts {
        batch.push(&Text { marks, ..Text::new(ids, Wanted::TOKENS) });
    }
    let texts = backend.predict(&batch.build())?.texts;
    let width = texts.first().map_or(1, |text| text.tokens.width).max(1);
    let vectors: Vec<&[f32]> = texts.iter().flat_map(|text| text.tokens.values.chunks_exact(width)).collect();
    ensure!(
        vectors.len() > PAIRS.len() && vectors.iter().copied().flatten().all(|value| value.is_finite()),
        "the vectors of two test documents hold values that are not numbers: the checkpoint's weights are \
         broken; download it again"
    );
    let largest = largest_value(vectors.iter().copied().flatten());
    let twice = (1..vectors.len())
        .any(|index| vectors[..index].iter().any(|other| is_same(vectors[index], other, largest)));
    ensure!(
        !twice,
        "two different test texts got the same vector: the checkpoint's weights do not read the prompt; \
         download it again"
    );
    Ok(())
}

/// Refuses weights that give values which are not numbers.
fn ensure_numbers<'v>(values: impl IntoIterator<Item = &'v f32>, problem: &str) -> anyhow::Result<()> {
    ensure!(
        values.into_iter().all(|value| value.is_finite()),
        "{problem}: the checkpoint's weights are broken; download it again"
    );
    Ok(())
}

/// The largest magnitude.
fn largest_value<'v>(values: impl IntoIterator<Item = &'v f32>) -> f32 {
    values.into_iter().fold(0.0, |largest, value| largest.max(value.abs()))
}

/// Whether two vectors differ by rounding at most, among vectors whose largest value is `largest`.
fn is_same(a: &[f32], b: &[f32], largest: f32) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= SAME_SCORE * largest)
}

/// The vectors of a query and of a document must be numbers, and not all alike.
fn check_late(backend: &mut dyn Backend, encoder: &Encoder) -> anyhow::Result<()> {
    let [query, document] = PAIRS[0];
    let sides = [(Side::Query, query), (Side::Document, document)];
    let inputs = sides.map(|(side, text)| Input::Late { side, instruction: None, text });
    for TokenVectors { values, width } in
        compute_outputs(backend, encoder, inputs, Wanted::TOKENS)?.map(|it| it.tokens)
    {
        ensure!(
            width > 0 && values.iter().all(|value| value.is_finite()),
            "the vectors of a test text hold values that are not numbers: the checkpoint's weights are broken; \
             download it again"
        );
        ensure!(
            values.chunks_exact(width).any(|vector| vector != &values[..width]),
            "all tokens of a test text got the same vector: the checkpoint's weights do not read the text; \
             download it again"
        );
    }
    Ok(())
}

/// A classifier's logits must be numbers.
fn check_classifier(backend: &mut dyn Backend, encoder: &Encoder) -> anyhow::Result<()> {
    let logits =
        compute_outputs(backend, encoder, PAIRS.map(pair_input), Wanted::WHOLE)?.map(|output| output.whole);
    ensure_numbers(logits.iter().flatten(), &format!("two test pairs got the logits {logits:?}"))
}

/// Two different texts must get two different vectors. Returns their length.
fn check_embedding(
    backend: &mut dyn Backend,
    encoder: &Encoder,
    model: &EmbeddingModel,
) -> anyhow::Result<usize> {
    let [first, second] =
        compute_outputs(backend, encoder, prompted_texts(model), Wanted::WHOLE)?.map(|output| output.whole);
    let problem = "the vectors of two test texts hold values that are not numbers";
    ensure_numbers(first.iter().chain(&second), problem)?;
    let largest = largest_value(&first);
    ensure!(
        !is_same(&first, &second, largest),
        "two different test texts got the same vector: the checkpoint's weights, or the pooling, do not read \
         the text; download the model again, or check `--pooling`"
    );
    Ok(first.len())
}

/// Two different texts must get two different sparse vectors of numbers.
fn check_sparse(backend: &mut dyn Backend, encoder: &Encoder, model: &EmbeddingModel) -> anyhow::Result<()> {
    let [first, second] =
        compute_outputs(backend, encoder, prompted_texts(model), Wanted::SPARSE)?.map(|output| output.sparse);
    let problem = "the sparse vectors of two test texts hold values that are not numbers";
    ensure_numbers(first.iter().chain(&second).map(|entry| &entry.value), problem)?;
    ensure!(
        first != second,
        "two different test texts got the same sparse vector, with {}: the checkpoint's weights do not \
         read the text; download the model again, or check `--pooling`",
        amount(first.len(), "entry")
    );
    Ok(())
}

fn pair_input([query, document]: [&'static str; 2]) -> Input<'static> {
    Input::Pair(PairText { instruction: None, query, document })
}

fn prompted_texts(model: &EmbeddingModel) -> [Input<'_>; 2] {
    PAIRS.map(|[text, _]| Input::Text { prompt: &model.prompts.default, text })
}

/// The backend's outputs of two inputs.
fn compute_outputs(
    backend: &mut dyn Backend,
    encoder: &Encoder,
    inputs: [Input<'_>; 2],
    wanted: Wanted,
) -> anyhow::Result<[Output; 2]> {
    let mut batch = BatchBuilder::new(backend.packing());
    for input in &inputs {
        let encoded = encoder.encode(input, TRUNCATION, None)?;
        ensure!(
            !encoded.ids.is_empty(),
            "the tokenizer (tokenizer.json) gives a text no tokens: download it again"
        );
        let Encoded { ids, second, marks, unattended, kind, .. } = encoded;
        batch.push(&Text { second, marks, unattended, kind, ..Text::new(ids, wanted) });
    }
    let texts = backend.predict(&batch.build())?.texts;
    let got = texts.len();
    texts
        .try_into()
        .map_err(|_| anyhow::anyhow!("the backend gave the outputs of {} for two", amount(got, "text")))
}

//! The self-check of the start: does the loaded model tell texts apart?
//!
//! Input: the backend and the encoder that will serve. Output: the length of an embedding model's vectors, or the reason
//! not to serve. What must hold: a model whose every answer would be the same, or no number, does not serve.

use anyhow::ensure;
use text_embeddings_backend::{Backend, BatchBuilder, Text, Wanted};
use text_embeddings_core::{
    service::ServedModel,
    tokenization::{Encoder, Input, PromptText, TokenLimits, Truncation, TruncationDirection},
};

/// Raw scores that are closer than this are the same: far above the rounding of one prompt scored twice, far below
/// the distance of any two prompts' scores by a model that reads them.
const SAME_SCORE: f32 = 1e-5;

const PAIRS: [[&str; 2]; 2] = [
    ["What is the capital of China?", "The capital of China is Beijing."],
    ["How does gravity work?", "Bread is baked from flour, water, yeast and salt."],
];

/// Two different pairs must get two different scores: a server that gives every text 0.7310586 is worse than none.
pub(super) fn reranker(
    backend: &mut dyn Backend,
    encoder: &Encoder,
    model: &ServedModel,
) -> anyhow::Result<()> {
    let pair = |[query, document]: [&'static str; 2]| {
        Input::Prompt(PromptText { instruction: None, query, document })
    };
    let logits = compute(backend, encoder, PAIRS.map(pair))?;
    let scores: Vec<f32> =
        logits.iter().map(|logits| model.relevance(logits)).collect::<Result<_, _>>().unwrap_or_default();
    ensure!(
        scores.len() == PAIRS.len() && scores.iter().all(|score| score.is_finite()),
        "two test pairs got the logits {logits:?}: the checkpoint's weights are broken; download it again"
    );
    ensure!(
        (scores[0] - scores[1]).abs() > SAME_SCORE,
        "two different test pairs got the same raw score, {}: the checkpoint's weights do not read the prompt; \
         download it again, or check that it is the re-ranker that `--model-id` means",
        scores[0]
    );
    Ok(())
}

/// A classifier's logits must be numbers.
pub(super) fn classifier(backend: &mut dyn Backend, encoder: &Encoder) -> anyhow::Result<()> {
    let logits = compute(backend, encoder, PAIRS.map(Input::Pair))?;
    ensure!(
        logits.iter().flatten().all(|logit| logit.is_finite()),
        "two test pairs got the logits {logits:?}: the checkpoint's weights are broken; download it again"
    );
    Ok(())
}

/// Two different texts must get two different vectors. Gives their length.
pub(super) fn embedding(
    backend: &mut dyn Backend,
    encoder: &Encoder,
    model: &ServedModel,
) -> anyhow::Result<usize> {
    let text = |[text, _]: [&'static str; 2]| Input::Text { prompt: &model.prompts.default, text };
    let [first, second] = compute(backend, encoder, PAIRS.map(text))?;
    ensure!(
        first.iter().chain(&second).all(|value| value.is_finite()),
        "the vectors of two test texts hold values that are no numbers: the checkpoint's weights are broken; download \
         it again"
    );
    let largest = first.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= SAME_SCORE * largest;
    ensure!(
        !first.iter().zip(&second).all(is_close),
        "two different test texts got the same vector: the checkpoint's weights, or the pooling, do not read the text; \
         download the model again, or check `--pooling`"
    );
    Ok(first.len())
}

/// What the backend says of two inputs.
fn compute(
    backend: &mut dyn Backend,
    encoder: &Encoder,
    inputs: [Input<'_>; 2],
) -> anyhow::Result<[Vec<f32>; 2]> {
    let mut batch = BatchBuilder::default();
    for input in &inputs {
        let truncation =
            Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE };
        let ids = encoder.encode(input, truncation)?.ids;
        ensure!(!ids.is_empty(), "the tokenizer (tokenizer.json) gives a text no tokens: download it again");
        batch.push(&Text::new(ids, Wanted::Whole));
    }
    let predictions = backend.predict(&batch.build())?;
    let values: Vec<Vec<f32>> = predictions.texts().map(|text| text.values.to_vec()).collect();
    let got = values.len();
    values.try_into().map_err(|_| anyhow::anyhow!("the backend gave the values of {got} texts for two"))
}

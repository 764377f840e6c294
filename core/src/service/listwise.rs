//! Listwise re-ranking: the model reads the documents of a query together, and their vectors are compared.
//!
//! Input: a request that lists its [`Input`]s, all of them pairs. Output: the raw score of each pair, which
//! is the cosine of its document's vector and the query's. What must hold: the pairs of a request with one
//! query are one list, all other pairs are lists of their own; the arithmetic is that of jina-reranker-v3's
//! own code (`rerank` in `modeling.py`): if a list needs several prompts, the query's vector is the mean of
//! its vectors in all prompts, each weighted by the prompt's best document, and every document is compared
//! with that mean.

use super::{
    Cost, Service,
    compute::{Computed, Inputs, Sizes, failures},
    request::Failed,
};
use crate::{
    error::Error,
    infer::{Announced, Outcome, Permit},
    metrics::{PREDICT, REQUEST_INPUT_LENGTH, TRUNCATED_INPUTS, count, count_many, observe_amount},
    queue::Turn,
    tokenization::{EncodedList, Encoder, Input, ListPrompt, ListText, Truncation},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{Output, Text, TokenVectors, Wanted};
use tokio::sync::oneshot;

/// The prompts of a request's lists, and the time that encoding them took.
struct EncodedLists {
    lists: Vec<EncodedList>,
    duration: Duration,
}

impl Service {
    /// Reads the request's documents together with their queries.
    pub(super) async fn compute_lists<I: Inputs>(
        &self,
        inputs: &Arc<I>,
        Sizes { characters, bytes, .. }: Sizes,
        truncation: Truncation,
        (mut permit, turn): (Permit, &Arc<Turn>),
    ) -> Result<Computed, Failed> {
        let start = Instant::now();
        let (answer, encoded) = oneshot::channel();
        let (pairs, bytes) = (Arc::clone(inputs), bytes.iter().sum());
        self.tokenization.run(self.tokenization.place(bytes), bytes, move |encoder| {
            let lists = encode(encoder, pairs.as_ref(), truncation, &|| answer.is_closed());
            // A closed receiver means that the request was abandoned.
            let _ = answer.send(lists.map(|lists| EncodedLists { lists, duration: start.elapsed() }));
        });
        let failure = Error::Tokenizer("the tokenizer failed".to_owned());
        let EncodedLists { lists, duration } =
            encoded.await.unwrap_or(Err(failure)).map_err(|error| Failed::on_the_way_to_tokens(error, 1))?;
        let mut cost = Cost { texts: inputs.count(), characters, tokenization: duration, ..Cost::default() };
        cost.truncated = lists.iter().map(|list| list.truncated).sum();
        count_many(TRUNCATED_INPUTS, cost.truncated);
        // Pairs each list with its documents and their places in its prompts.
        let prompts: Vec<ListPrompt> = lists.iter().flat_map(|list| list.prompts.iter().cloned()).collect();
        let announced: Vec<Announced> = prompts.iter().map(|_| self.engine.announce(turn)).collect();
        let outcomes: Vec<_> = announced
            .into_iter()
            .zip(prompts)
            .map(|(announced, prompt)| {
                cost.lists += 1;
                cost.tokens += prompt.ids.len();
                observe_amount(REQUEST_INPUT_LENGTH, prompt.ids.len());
                count(PREDICT.count);
                let (reply, outcome) = oneshot::channel();
                let ListPrompt { ids, marks, reusable, .. } = prompt;
                announced.submit(Text { marks, reusable, ..Text::new(ids, Wanted::TOKENS) }, reply);
                outcome
            })
            .collect();
        permit.settle(cost.tokens);
        let mut vectors = Vec::with_capacity(outcomes.len());
        let mut outcomes = outcomes.into_iter();
        while let Some(outcome) = outcomes.next() {
            let outcome: Outcome = match outcome.await.unwrap_or(Err(Error::Unhealthy)) {
                Ok(outcome) => outcome,
                Err(error) => return Err(Failed::of_texts(error, 1 + failures(outcomes))),
            };
            PREDICT.observe(duration, &outcome);
            cost.queue = cost.queue.max(outcome.queue);
            cost.inference = cost.inference.max(outcome.inference);
            vectors.push(outcome.output.tokens);
        }
        let mut vectors = vectors.into_iter();
        let scores = lists.iter().flat_map(|list| {
            let of_list: Vec<TokenVectors> = vectors.by_ref().take(list.prompts.len()).collect();
            scores(&of_list)
        });
        let outputs: Vec<Output> = scores.map(|score| Output::whole([score])).collect();
        if outputs.len() != inputs.count() {
            let message = "the backend did not give one vector for each document";
            return Err(Error::Inference(message.to_owned()).into());
        }
        Ok(Computed { outputs, cost })
    }
}

/// The prompts of all lists of a request.
fn encode<I: Inputs>(
    encoder: &Encoder,
    inputs: &I,
    truncation: Truncation,
    is_abandoned: &dyn Fn() -> bool,
) -> Result<Vec<EncodedList>, Error> {
    let Encoder::Listwise(encoder) = encoder else { return Err(other_model()) };
    let pairs = (0..inputs.count()).map(|index| match inputs.input(index) {
        Input::Pair(pair) => Ok(pair),
        _ => Err(other_model()),
    });
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    let length = if inputs.have_one_query() { pairs.len().max(1) } else { 1 };
    let list = |pairs: &[crate::tokenization::PairText<'_>]| {
        let documents: Vec<&str> = pairs.iter().map(|pair| pair.document).collect();
        let [first, ..] = pairs else { return Ok(EncodedList::default()) };
        let list = ListText { instruction: first.instruction, query: first.query, documents: &documents };
        encoder.encode_list(&list, truncation, is_abandoned)
    };
    pairs.chunks(length).map(list).collect()
}

fn other_model() -> Error {
    Error::Tokenizer("this input belongs to another kind of model".to_owned())
}

/// The scores of a list's documents, from the vectors of its prompts. Each prompt has the vectors of its
/// documents, then the query's.
fn scores(prompts: &[TokenVectors]) -> Vec<f32> {
    let split = |prompt: &TokenVectors| -> Option<(Vec<Vec<f64>>, Vec<f64>)> {
        let wide = |vector: &[f32]| vector.iter().map(|&value| f64::from(value)).collect::<Vec<f64>>();
        let mut vectors: Vec<_> = prompt.values.chunks_exact(prompt.width.max(1)).map(wide).collect();
        let query = vectors.pop()?;
        Some((vectors, query))
    };
    let prompts: Vec<_> = prompts.iter().filter_map(split).collect();
    // The weight maps the best cosine from [-1, 1] to [0, 1].
    let weight = |(documents, query): &(Vec<Vec<f64>>, Vec<f64>)| {
        documents.iter().map(|document| f64::midpoint(cosine(document, query), 1.0)).fold(0.0, f64::max)
    };
    let weights: Vec<f64> = prompts.iter().map(weight).collect();
    // A single prompt's query vector is used unchanged, whatever its weight.
    let is_flat = prompts.len() < 2 || weights.iter().sum::<f64>() == 0.0;
    let width = prompts.first().map_or(0, |(_, query)| query.len());
    let mut query = vec![0.0; width];
    for ((_, of_prompt), weight) in prompts.iter().zip(weights) {
        let weight = if is_flat { 1.0 } else { weight };
        query.iter_mut().zip(of_prompt).for_each(|(sum, value)| *sum += weight * value);
    }
    prompts
        .iter()
        .flat_map(|(documents, _)| documents)
        .map(|document| cosine(document, &query) as f32)
        .collect()
}

/// The cosine of two vectors; 0 if one has length zero, as in torch.
fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths == 0.0 { 0.0 } else { dot(a, b) / lengths }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(rows: &[[f32; 2]]) -> TokenVectors {
        TokenVectors { values: rows.as_flattened().to_vec(), width: 2 }
    }

    fn assert_close(got: &[f32], expected: &[f32]) {
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {expected:?}");
    }

    #[test]
    fn one_prompt_gives_the_cosines_with_its_query() {
        let list = [vectors(&[[1.0, 0.0], [-3.0, 0.0], [1.0, 1.0], [0.0, 0.0], [2.0, 0.0]])];
        assert_close(&scores(&list), &[1.0, -1.0, 0.5_f32.sqrt(), 0.0]);
        // The only document is the opposite of the query, so its weight is zero.
        assert_close(&scores(&[vectors(&[[-1.0, 0.0], [2.0, 0.0]])]), &[-1.0]);
    }

    #[test]
    fn the_query_of_several_prompts_is_their_mean_weighed_by_the_best_document() {
        // Weights 1 and (1 + 0) / 2: the query is (1, 0) + (0, 2) / 2.
        let list = [vectors(&[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), vectors(&[[1.0, 0.0], [0.0, 2.0]])];
        let half = 0.5_f32.sqrt();
        assert_close(&scores(&list), &[half, half, half]);
        // Two prompts with weight zero count equally.
        let list = [vectors(&[[-1.0, 0.0], [1.0, 0.0]]), vectors(&[[0.0, -1.0], [0.0, 1.0]])];
        assert_close(&scores(&list), &[-half, -half]);
        assert_close(&scores(&[]), &[]);
    }
}

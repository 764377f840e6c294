//! `POST /score` and `/v1/score`: the scores of pairs, as `vLLM` gives them.
//!
//! Input: a query or a list of queries, and a document or a list of documents, under one of four pairs of
//! names. Output: `{id, object, created, model, data, usage}`, a score for each pair in their order. What
//! must hold: the numbers of queries and documents are 1:1, 1:N or N:N; a pair has the score that re-ranking
//! gives it.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::{extract::State, response::Response};
use serde::{Deserialize, Deserializer, Serialize};
use text_embeddings_core::service::ScoreRequest;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    error::ApiError,
    extract::{Checked, DecodedBody, UnparsedBody},
    near_misses::{has_field, hint},
    one_or_many::one_or_many,
    rerank::{
        answers::RerankUsage,
        dialect::{note_misspelled_instruction, seen},
        in_fields,
        options::{Options, ReadOptions, WithOptions},
    },
    responses::NestedErrors,
    schemas::TAG,
    shared::respond,
};
use crate::state::AppState;

/// The names of the two sides of the pairs.
pub(crate) const NAMES: [[&str; 2]; 4] =
    [["queries", "documents"], ["queries", "items"], ["data_1", "data_2"], ["text_1", "text_2"]];

/// The pairs to score. [`Options`] has the other fields.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ScoreRequest, example = json!({
    "queries": "What is deep learning?",
    "documents": ["Bread is baked from flour.", "Machine learning with many layers."]
}))]
pub(crate) struct ScoreBody {
    /// One query for all documents, or one for each.
    #[serde(alias = "data_1", alias = "text_1", deserialize_with = "texts")]
    #[schema(value_type = ScoreTextsSchema)]
    queries: ScoreTexts,
    /// The documents.
    #[serde(alias = "items", alias = "data_2", alias = "text_2", deserialize_with = "texts")]
    #[schema(value_type = ScoreTextsSchema)]
    documents: ScoreTexts,
}

/// The schema of [`ScoreTexts`].
#[derive(Serialize, ToSchema)]
#[schema(as = ScoreInput)]
#[serde(untagged)]
#[expect(dead_code, reason = "a description, not a value")]
pub(crate) enum ScoreTextsSchema {
    One(String),
    Many(Vec<String>),
}

/// The texts in their order. A single text is a list of one.
type ScoreTexts = Vec<String>;

fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ScoreTexts, D::Error> {
    one_or_many(deserializer, "a string or a list of strings")
}

/// The scores of the pairs, in their order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ScoreResponse)]
pub(crate) struct ScoreAnswer {
    id: String,
    #[schema(example = "list")]
    object: &'static str,
    /// The time of the answer in seconds since 1970.
    created: u64,
    /// `--served-model-name`.
    model: String,
    data: Vec<ScoreDatum>,
    usage: RerankUsage,
}

/// The score of a pair.
#[derive(Debug, Serialize, ToSchema)]
struct ScoreDatum {
    index: usize,
    #[schema(example = "score")]
    object: &'static str,
    score: f32,
}

/// Score pairs of a query and a document, in the order of the request. Only with a re-ranker.
#[utoipa::path(post, path = "/score", tag = TAG, request_body = ScoreBody,
    responses(
        (status = 200, description = "The scores, in the order of the pairs", body = ScoreAnswer),
        NestedErrors
    ))]
pub(crate) async fn score(State(state): State<AppState>, body: UnparsedBody) -> Result<Response, ApiError> {
    let format = body.answer_format;
    let Checked { found: names, body: pairs } =
        body.read_with(|body| body.read_without_nulls(NAMES.as_flattened(), read)).await??;
    let WithOptions { notes: ReadOptions { options, .. }, body: pairs } = pairs?;
    options.note_model(state.served());
    let request = request(pairs, &options).map_err(ApiError::invalid)?;
    let answer = state.served().service.score(request).await.map_err(|error| in_fields(error, names))?;
    let tokens = answer.cost.tokens;
    Ok(respond(&state, format, "score", answer, |scores| ScoreAnswer {
        id: options.request_id.unwrap_or_else(|| format!("score-{}", Uuid::new_v4().simple())),
        object: "list",
        created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        model: state.served().info.served_model_name.clone(),
        data: scores
            .into_iter()
            .enumerate()
            .map(|(index, score)| ScoreDatum { index, object: "score", score })
            .collect(),
        usage: RerankUsage::new(tokens),
    }))
}

/// A body of pairs, and the names of the two sides.
pub(crate) fn read(
    body: &DecodedBody,
) -> Result<Checked<[&'static str; 2], WithOptions<ScoreBody>>, ApiError> {
    body.check(|fields| {
        let names = names(fields)?;
        note_misspelled_instruction(fields);
        Ok(names)
    })
}

fn request(pairs: ScoreBody, options: &Options) -> Result<ScoreRequest, String> {
    options.check()?;
    options.refuse_for_pairs()?;
    Ok(ScoreRequest {
        queries: pairs.queries,
        documents: pairs.documents,
        instruction: options.instruction(),
        truncate: options.truncate(),
        truncation_direction: options.direction(),
        limits: options.limits(),
        raw_scores: options.raw_scores(),
    })
}

/// The names that a request has for the two sides of its pairs.
fn names(fields: &[String]) -> Result<[&'static str; 2], String> {
    if has_field(fields, "label_token_ids") {
        return Err(
            "`label_token_ids` is not supported: a pair has one score, that of the model's own answer"
                .to_owned(),
        );
    }
    let all = NAMES.as_flattened();
    let given: Vec<&str> = all.iter().copied().filter(|name| has_field(fields, name)).collect();
    let found = NAMES.iter().find(|names| names.iter().all(|name| has_field(fields, name)));
    match found {
        Some(names) if given.iter().all(|name| names.contains(name)) => Ok(*names),
        Some(_) => Err(format!("the request names its pairs in two ways: {}. {CHOICES}", seen(fields))),
        None => {
            let singular = if has_field(fields, "query") { ": is `query` meant as `queries`?" } else { "" };
            let hint = hint(fields, &["documents"]).unwrap_or_else(|| singular.to_owned());
            Err(format!("the request does not say which pairs to score: {}. {CHOICES}{hint}", seen(fields)))
        }
    }
}

/// The advice for a body that does not name its pairs.
const CHOICES: &str =
    "Send `queries` and `documents`, `queries` and `items`, `data_1` and `data_2` or `text_1` and `text_2`";

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::NAMES;
    use crate::http::testing::Server;
    use serde_json::{Value, json};

    #[tokio::test]
    async fn pairs_are_scored_in_their_order_under_each_name() {
        let server = Server::start_with("--served-model-name tiny").await;
        for path in ["/score", "/v1/score"] {
            for [first, second] in NAMES {
                for (queries, documents, scores) in [
                    (json!("q"), json!("Z"), vec![0.5]),
                    (json!(["q"]), json!("ZZ"), vec![0.731_058_6]),
                    (json!("Z"), json!(["", "Z", "ZZ"]), vec![0.5, 0.731_058_6, 0.880_797]),
                    (json!(["q", "Z"]), json!(["ZZ", ""]), vec![0.731_058_6, 0.5]),
                ] {
                    let body = json!({first: queries, second: documents, "model": "any"});
                    let answer = server.post(path, &body.to_string(), &[]).await;
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    let tokens: u64 = answer.header("x-compute-tokens").unwrap().parse().unwrap();
                    let mut answer: Value = serde_json::from_str(&answer.body).unwrap();
                    let fields = answer.as_object_mut().unwrap();
                    assert!(fields.remove("id").unwrap().as_str().unwrap().starts_with("score-"));
                    assert!(fields.remove("created").unwrap().as_u64().unwrap() > 1_700_000_000);
                    let datum = |(index, score)| json!({"index": index, "object": "score", "score": score});
                    let data: Vec<Value> = scores.into_iter().enumerate().map(datum).collect();
                    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
                    let expected = json!({"object": "list", "model": "tiny", "data": data, "usage": usage});
                    assert_eq!(answer, expected, "{body}");
                }
            }
        }
    }
}

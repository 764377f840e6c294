//! The answers to bodies with `documents`, `input` or `passages`.
//!
//! Input: the ranks of a request, and further values that the dialects' answers have. Output: the bodies that
//! the clients read. What must hold: scores are written with the same digits as TEI's; a document comes back
//! as it was sent, and only if the request asks for it.

use serde::Serialize;
use text_embeddings_core::service::Rank;
use utoipa::ToSchema;
use uuid::Uuid;

use super::parts::RankDetails;
use crate::http::json::JsonText;

/// The values of an answer in addition to the ranks.
pub(super) struct Answered {
    /// The id that the request gave itself.
    pub(super) id: Option<String>,
    /// `--served-model-name`.
    pub(super) model: String,
    /// Tokens of all prompts.
    pub(super) tokens: usize,
    /// Whether the scores depend on each other.
    pub(super) is_listwise: bool,
    /// For each document the object it was sent as, if it was one. Empty unless the answer repeats the
    /// documents.
    pub(super) objects: Vec<Option<JsonText>>,
    /// `object` of the answer: `rerank` for Infinity's client, `list` for all others.
    pub(super) object: &'static str,
    /// Whether the answer also has the results in Voyage's format.
    pub(super) has_data: bool,
}

/// A document's place in the order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RerankResult)]
struct ResultBody {
    /// The document's place in the request.
    index: usize,
    relevance_score: f32,
    /// The document, if the request asked for it: an object as it was sent, or an object with the text.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RepeatedDocument>,
    #[serde(flatten)]
    details: RankDetails,
}

/// A document of an answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum RepeatedDocument {
    /// An object as it was sent.
    Object(JsonText),
    /// An object with the text.
    Holder {
        text: String,
    },
    Text(String),
}

/// A document's place in the order, in Voyage's format.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VoyageResult)]
struct VoyageResult {
    /// The document's place in the request.
    index: usize,
    relevance_score: f32,
    /// The document's text, if the request asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<String>,
    #[serde(flatten)]
    details: RankDetails,
}

/// The tokens of the request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RerankUsage)]
pub(crate) struct RerankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl RerankUsage {
    /// The usage of a request whose prompts have `tokens` tokens in all.
    pub(crate) fn new(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

/// The metadata of an answer, as Cohere has them.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RerankMeta)]
struct Meta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
    tokens: MetaTokens,
    /// A warning about the scores of a listwise re-ranker, which depend on each other. Absent for other
    /// models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<&'static str>,
}

/// The warning of a listwise re-ranker.
const LISTWISE: &str = "this model reads the documents of a request together: a score depends on the other \
                        documents, and is not to be compared with scores of other requests";

/// Cohere's version whose answer this is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApiVersion {
    #[schema(example = "2")]
    pub(crate) version: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
struct BilledUnits {
    /// Always 1.
    search_units: usize,
}

#[derive(Debug, Serialize, ToSchema)]
struct MetaTokens {
    input_tokens: usize,
    /// Always 0.
    output_tokens: usize,
}

impl Meta {
    fn new(version: &'static str, tokens: usize, is_listwise: bool) -> Self {
        Self {
            api_version: ApiVersion { version },
            billed_units: BilledUnits { search_units: 1 },
            tokens: MetaTokens { input_tokens: tokens, output_tokens: 0 },
            warnings: is_listwise.then_some(LISTWISE).into_iter().collect(),
        }
    }
}

/// The documents' places, best first, as Cohere's first version, Jina, `vLLM`, `llama.cpp` and Infinity
/// answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RerankDocumentsResponse)]
pub(crate) struct DocumentsAnswer {
    id: String,
    /// `list`; `rerank` for a body with Infinity's `raw_scores`.
    #[schema(example = "list")]
    object: &'static str,
    /// `--served-model-name`.
    model: String,
    results: Vec<ResultBody>,
    /// The same in Voyage's format, if the request has a field of Voyage's.
    #[schema(value_type = Vec<VoyageResult>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Vec<VoyageResult>>,
    usage: RerankUsage,
    meta: Meta,
}

impl DocumentsAnswer {
    pub(super) fn new(answered: Answered, ranks: Vec<Rank>) -> Self {
        let Answered { id, model, tokens, is_listwise, mut objects, object, has_data } = answered;
        let data = has_data.then(|| ranks.iter().map(voyage_result).collect());
        Self {
            id: id.unwrap_or_else(|| format!("rerank-{}", Uuid::new_v4().simple())),
            object,
            model,
            results: ranks.into_iter().map(|rank| result(rank, &mut objects)).collect(),
            data,
            usage: RerankUsage::new(tokens),
            meta: Meta::new("1", tokens, is_listwise),
        }
    }
}

/// The documents' places, best first, as Cohere's second version answers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CohereRerankResponse)]
pub(crate) struct CohereAnswer {
    id: String,
    results: Vec<ResultBody>,
    meta: Meta,
}

impl CohereAnswer {
    pub(super) fn new(answered: Answered, ranks: Vec<Rank>) -> Self {
        let Answered { id, tokens, is_listwise, mut objects, .. } = answered;
        Self {
            id: id.unwrap_or_else(|| Uuid::new_v4().to_string()),
            results: ranks.into_iter().map(|rank| result(rank, &mut objects)).collect(),
            meta: Meta::new("2", tokens, is_listwise),
        }
    }
}

/// The inputs' places, best first, as Mixedbread answers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MixedbreadRerankResponse)]
pub(crate) struct MixedbreadAnswer {
    #[schema(example = "list")]
    object: &'static str,
    /// `--served-model-name`.
    model: String,
    data: Vec<MixedbreadResult>,
    usage: RerankUsage,
    /// The number of results.
    top_k: usize,
    return_input: bool,
}

/// An input's place in the order.
#[derive(Debug, Serialize, ToSchema)]
struct MixedbreadResult {
    /// The input's place in the request.
    index: usize,
    score: f32,
    /// The input as it was sent, if the request asked for it.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<RepeatedDocument>,
    #[schema(example = "text_document")]
    object: &'static str,
    #[serde(flatten)]
    details: RankDetails,
}

impl MixedbreadAnswer {
    pub(super) fn new(answered: Answered, ranks: Vec<Rank>, return_input: bool) -> Self {
        let Answered { model, tokens, mut objects, .. } = answered;
        let mut data = Vec::with_capacity(ranks.len());
        for mut rank in ranks {
            let details = RankDetails::take_from(&mut rank);
            let Rank { index, score, text, .. } = rank;
            let object = objects.get_mut(index).and_then(Option::take).map(RepeatedDocument::Object);
            let input = text.map(|text| object.unwrap_or(RepeatedDocument::Text(text)));
            data.push(MixedbreadResult { index, score, input, object: "text_document", details });
        }
        Self { object: "list", model, top_k: data.len(), data, usage: RerankUsage::new(tokens), return_input }
    }
}

/// The passages' places, best first, as `NVIDIA`'s NIM answers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NimRankingResponse)]
pub(crate) struct NimAnswer {
    rankings: Vec<NimRanking>,
    usage: RerankUsage,
}

/// A passage's place in the order.
#[derive(Debug, Serialize, ToSchema)]
struct NimRanking {
    /// The passage's place in the request.
    index: usize,
    /// The score before the sigmoid, unless the request says otherwise.
    logit: f32,
    /// The passage as it was sent, if the request asked for it.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RepeatedDocument>,
    #[serde(flatten)]
    details: RankDetails,
}

impl NimAnswer {
    pub(super) fn from_ranks(answered: Answered, ranks: Vec<Rank>) -> Self {
        let Answered { tokens, mut objects, .. } = answered;
        let rankings = ranks.into_iter().map(|rank| {
            let ResultBody { index, relevance_score, document, details } = result(rank, &mut objects);
            NimRanking { index, logit: relevance_score, document, details }
        });
        Self { rankings: rankings.collect(), usage: RerankUsage::new(tokens) }
    }
}

fn result(mut rank: Rank, objects: &mut [Option<JsonText>]) -> ResultBody {
    let details = RankDetails::take_from(&mut rank);
    let Rank { index, score, text, .. } = rank;
    let object = objects.get_mut(index).and_then(Option::take).map(RepeatedDocument::Object);
    let document = text.map(|text| object.unwrap_or(RepeatedDocument::Holder { text }));
    ResultBody { index, relevance_score: score, document, details }
}

fn voyage_result(rank: &Rank) -> VoyageResult {
    let details = RankDetails::take_from(&mut rank.clone());
    VoyageResult { index: rank.index, relevance_score: rank.score, document: rank.text.clone(), details }
}

//! Bodies with `texts`, as TEI has them.
//!
//! Input: TEI's fields, and in addition `instruction`, `top_n` and limits under the names that other servers
//! use. Output: `[{index, score, text?}]`. What must hold: a body that TEI takes means the same here.

use serde::{Deserialize, Serialize};
use text_embeddings_core::service::{Rank, RerankRequest};
use utoipa::ToSchema;

use super::{
    options::{Options, TemplateArguments},
    parts::{HighlightBody, HighlightCount, LongDocuments, PassageBody, RankDetails},
};
use crate::http::{
    named_fields::WithNames,
    shared::{TruncateChoice, TruncationSide},
};

/// A query and the texts to rank.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = RerankRequest, example = json!({
    "query": "What is deep learning?",
    "texts": ["Bread is baked from flour.", "Machine learning with many layers."]
}))]
pub(crate) struct RerankBody {
    query: String,
    texts: Vec<String>,
    /// Whether an input that is too long is cut. Absent or null: as `--auto-truncate` of the server says.
    #[schema(default = false)]
    truncate: Option<bool>,
    #[serde(default)]
    #[schema(default = "right")]
    truncation_direction: TruncationSide,
    /// Scores before the sigmoid or softmax.
    #[serde(default)]
    #[schema(default = false)]
    raw_scores: bool,
    /// Whether the answer repeats the texts.
    #[serde(default)]
    #[schema(default = false)]
    return_text: bool,
    /// What "relevant" means, for a generative re-ranker. Absent: as `--default-instruction` of the server
    /// says.
    instruction: Option<String>,
    /// `SGLang`'s name for `instruction`.
    instruct: Option<String>,
    /// `vLLM`'s place for `instruction`. It has priority over the others.
    #[schema(value_type = Option<TemplateArguments>)]
    chat_template_kwargs: Option<WithNames<TemplateArguments>>,
    /// The number of results, best first; all if it is absent, null or 0.
    top_n: Option<usize>,
    /// Voyage's name for `top_n`.
    top_k: Option<usize>,
    /// The least score of a text in the answer, as the answer shows it. Absent or null: as `--min-score` of
    /// the server says.
    min_score: Option<f32>,
    /// The most tokens of each text; 0 for no limit but the model's.
    max_tokens_per_doc: Option<usize>,
    /// The most tokens of the query; 0 for no limit but the model's.
    max_tokens_per_query: Option<usize>,
    /// `vLLM`'s opposite of `raw_scores`.
    use_activation: Option<bool>,
    /// Whether a text that does not fit is cut, as by default, or divided into chunks. Then it has the score
    /// of its best chunk, and the answer says which one that is.
    long_documents: Option<LongDocuments>,
    /// The most chunks of a text; the rest of it is cut. Asks for chunks unless `long_documents` is `cut`.
    /// Absent or null: 10.
    max_chunks_per_doc: Option<usize>,
    /// The most tokens that a chunk repeats of the one before it. Asks for chunks unless `long_documents` is
    /// `cut`. Absent or null: 0.
    chunk_overlap: Option<usize>,
    /// The number of best texts whose sentences get scores of their own; true for all that are returned.
    highlight: Option<HighlightCount>,
}

impl From<RerankBody> for RerankRequest {
    fn from(body: RerankBody) -> Self {
        let options = Options {
            instruction: body.instruction,
            instruct: body.instruct,
            chat_template_kwargs: body.chat_template_kwargs,
            truncate: body.truncate.map(TruncateChoice::Cut),
            truncation_direction: Some(body.truncation_direction),
            max_tokens_per_doc: body.max_tokens_per_doc,
            max_tokens_per_query: body.max_tokens_per_query,
            // In this dialect false is the default, and `use_activation` may still ask for raw scores.
            raw_scores: body.raw_scores.then_some(true),
            use_activation: body.use_activation,
            min_score: body.min_score,
            long_documents: body.long_documents,
            max_chunks_per_doc: body.max_chunks_per_doc,
            chunk_overlap: body.chunk_overlap,
            highlight: body.highlight,
            ..Options::default()
        };
        Self {
            return_text: body.return_text,
            top_n: body.top_n.or(body.top_k),
            ..options.request(body.query, body.texts)
        }
    }
}

/// A text's place in the order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Rank)]
struct RankBody {
    /// The text's place in the request.
    index: usize,
    /// The text, if the request asked for it.
    #[schema(default = json!(null))]
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f32,
    /// In a cascade, the number of the model that gave the score: 1 or 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<u8>,
    /// The chunk that has this score, if the request divides long texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    best_passage: Option<PassageBody>,
    /// The text's sentences in their order, if the request asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    highlights: Option<Vec<HighlightBody>>,
}

impl From<Rank> for RankBody {
    fn from(mut rank: Rank) -> Self {
        // TEI's description has no place for a schema that consists of two.
        let RankDetails { stage, best_passage, highlights } = RankDetails::take_from(&mut rank);
        Self { index: rank.index, text: rank.text, score: rank.score, stage, best_passage, highlights }
    }
}

/// The texts' places, best first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RerankResponse)]
pub(crate) struct Ranks(Vec<RankBody>);

impl From<Vec<Rank>> for Ranks {
    fn from(ranks: Vec<Rank>) -> Self {
        Self(ranks.into_iter().map(RankBody::from).collect())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::testing::Server;
    use serde_json::json;

    #[test]
    fn a_body_has_teis_defaults() {
        let body: RerankBody =
            serde_json::from_str(r#"{"query":"q","texts":["a"],"unknown":{"x":1}}"#).unwrap();
        let expected =
            RerankRequest { query: "q".to_owned(), texts: vec!["a".to_owned()], ..RerankRequest::default() };
        assert_eq!(RerankRequest::from(body), expected);
    }

    #[test]
    fn spellings_have_their_order() {
        let table = [
            (json!({"instruction": "i"}), Some("i"), None),
            (json!({"instruct": "s"}), Some("s"), None),
            (json!({"instruct": "s", "instruction": "i"}), Some("i"), None),
            (
                json!({"chat_template_kwargs": {"instruction": "k", "enable_thinking": false}, "instruction": "i"}),
                Some("k"),
                None,
            ),
            (json!({"chat_template_kwargs": {}, "instruction": "i"}), Some("i"), None),
            (json!({"chat_template_kwargs": null, "instruction": null, "top_n": null}), None, None),
            (json!({"top_n": 3}), None, Some(3)),
            (json!({"top_k": 4}), None, Some(4)),
            (json!({"top_k": 4, "top_n": 3}), None, Some(3)),
        ];
        for (mut fields, instruction, top_n) in table {
            let object = fields.as_object_mut().unwrap();
            object.extend([("query".to_owned(), json!("q")), ("texts".to_owned(), json!([]))]);
            let request = RerankRequest::from(serde_json::from_value::<RerankBody>(fields.clone()).unwrap());
            assert_eq!((request.instruction.as_deref(), request.top_n), (instruction, top_n), "{fields}");
        }
    }

    #[tokio::test]
    async fn texts_come_back_best_first() {
        let server = Server::start().await;
        let answer = server.rerank("q", &["", "ZZ", "Z"]).await;
        assert_eq!(answer.status, 200);
        insta::assert_snapshot!(answer.body, @r#"[{"index":1,"score":0.7310586},{"index":2,"score":0.5},{"index":0,"score":0.26894143}]"#);
        let fields = json!({"query": "q", "texts": ["a", "ZZ"], "raw_scores": true, "return_text": true});
        insta::assert_snapshot!(server.post("/rerank", &fields.to_string(), &[]).await.body, @r#"[{"index":1,"text":"ZZ","score":1.0},{"index":0,"text":"a","score":-1.0}]"#);
        let fields = json!({"query": "q", "texts": ["a", "ZZ", "Z"], "top_n": 1, "instruction": "Z"});
        for path in [
            "/rerank",
            "/v1/rerank",
            "/v2/rerank",
            "/reranking",
            "/v1/reranking",
            "/v1/ranking",
            "/",
            "/invocations",
        ] {
            let answer = server.post(path, &fields.to_string(), &[]).await;
            insta::allow_duplicates!(
                insta::assert_snapshot!(answer.body, @r#"[{"index":1,"score":0.880797}]"#)
            );
        }
    }
}

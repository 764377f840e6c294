//! Parts of documents: the fields that ask for scores of parts, and the parts of an answer.
//!
//! Input: fields of a body, and a [`Rank`]. Output: the service's values, and members of a result. What must
//! hold: places are counted in characters (Unicode code points) of the document's text.

use serde::{Deserialize, Serialize};
use text_embeddings_core::service::{Chunking, Highlight, Passage, Rank};
use utoipa::ToSchema;

/// The treatment of a document that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LongDocuments {
    /// It is cut.
    Cut,
    /// It is divided into chunks, and has the score of the best one.
    Chunks,
}

/// The number of documents whose sentences get scores: all that are returned, or none, or this many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`true`, `false` or a number of documents")]
pub(crate) enum HighlightCount {
    All(bool),
    Best(usize),
}

impl HighlightCount {
    /// The number of documents.
    pub(super) fn max_texts(self) -> usize {
        match self {
            Self::All(true) => usize::MAX,
            Self::All(false) => 0,
            Self::Best(count) => count,
        }
    }
}

/// How long documents are divided, if they are: a limit on chunks asks for them, too.
pub(crate) fn wanted_chunking(
    long_documents: Option<LongDocuments>,
    max_chunks: Option<usize>,
    overlap: Option<usize>,
) -> Option<Chunking> {
    let is_wanted = match long_documents {
        Some(LongDocuments::Cut) => false,
        Some(LongDocuments::Chunks) => true,
        None => max_chunks.is_some() || overlap.is_some(),
    };
    is_wanted.then(|| Chunking {
        max_chunks: max_chunks.unwrap_or(Chunking::MAX_CHUNKS),
        overlap: overlap.unwrap_or(0),
    })
}

/// Further members of a result.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = RankDetails)]
pub(crate) struct RankDetails {
    /// In a cascade, the number of the model that gave the score: 1 or 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stage: Option<u8>,
    /// The chunk that has this score, if the request divides long documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) best_passage: Option<PassageBody>,
    /// The document's sentences in their order, if the request asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) highlights: Option<Vec<HighlightBody>>,
}

impl RankDetails {
    /// Takes the details out of a rank.
    pub(super) fn take_from(rank: &mut Rank) -> Self {
        Self {
            stage: rank.stage,
            best_passage: rank.best_passage.take().map(PassageBody::from_passage),
            highlights: rank
                .highlights
                .take()
                .map(|all| all.into_iter().map(HighlightBody::from_highlight).collect()),
        }
    }
}

/// A part of a document's text.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = RerankPassage)]
pub(crate) struct PassageBody {
    /// The index of its first character (Unicode code point).
    start: usize,
    /// The index behind its last character.
    end: usize,
    /// Its text, if the answer repeats the documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl PassageBody {
    fn from_passage(Passage { start, end, text }: Passage) -> Self {
        Self { start, end, text }
    }
}

/// A sentence with its score.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = RerankHighlight)]
pub(crate) struct HighlightBody {
    #[serde(flatten)]
    passage: PassageBody,
    /// Its score for the query, in the form of the document's score.
    score: f32,
}

impl HighlightBody {
    fn from_highlight(Highlight { passage, score }: Highlight) -> Self {
        Self { passage: PassageBody::from_passage(passage), score }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::http::testing::Server;
    use serde_json::{Value, json};

    /// A body of each dialect, its path, and where its results are.
    const DIALECTS: [(&str, &str, &str); 5] = [
        ("texts", "/rerank", ""),
        ("documents", "/v1/rerank", "results"),
        ("documents", "/v2/rerank", "results"),
        ("documents", "/rerank", "data"),
        ("input", "/rerank", "data"),
    ];

    async fn ask(server: &Server, dialect: (&str, &str, &str), fields: &Value) -> Vec<Value> {
        let (texts, path, results) = dialect;
        let mut body = fields.clone();
        let map = body.as_object_mut().unwrap();
        let documents = map.remove("texts").unwrap();
        map.insert(texts.to_owned(), documents);
        map.insert("query".to_owned(), json!("q"));
        if results == "data" && texts == "documents" {
            map.insert("truncation".to_owned(), json!(true));
        }
        let answer = server.post(path, &body.to_string(), &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        let results = if results.is_empty() { &answer } else { &answer[results] };
        results.as_array().unwrap().clone()
    }

    fn score(result: &Value) -> &Value {
        result.get("score").unwrap_or_else(|| &result["relevance_score"])
    }

    #[tokio::test]
    async fn every_dialect_divides_long_documents_and_says_which_chunk_is_best() {
        let server = Server::start().await;
        // Each letter is a token; about 380 fit next to the query.
        let (first, last) =
            (format!("{}. ", "A".repeat(300)), format!("😀 {}. Three ZZZ here.", "B".repeat(300)));
        let long = first.clone() + &last;
        let (start, end) = (first.chars().count(), long.chars().count());
        for dialect in DIALECTS {
            for (fields, is_divided) in [
                (json!({}), false),
                (json!({"long_documents": "cut", "max_chunks_per_doc": 3}), false),
                (json!({"long_documents": null, "max_chunks_per_doc": null, "highlight": null}), false),
                (json!({"max_chunks_per_doc": 2}), true),
                (json!({"long_documents": "chunks"}), true),
                (json!({"chunk_overlap": 0}), true),
                (json!({"chunk_overlap": 9, "long_documents": "chunks", "max_chunks_per_doc": 2}), true),
            ] {
                let mut fields = fields;
                fields["texts"] = json!(["Z", long]);
                fields["raw_scores"] = json!(true);
                let results = ask(&server, dialect, &fields).await;
                let best = &results[0];
                let (index, raw) = if is_divided { (1, 2.0) } else { (0, 0.0) };
                assert_eq!((&best["index"], score(best)), (&json!(index), &json!(raw)), "{fields}");
                let passages = [json!({"start": start, "end": end}), json!({"start": 0, "end": 1})];
                for (result, passage) in results.iter().zip(&passages) {
                    assert_eq!(
                        result.get("best_passage"),
                        is_divided.then_some(passage),
                        "{dialect:?} {fields}"
                    );
                }
            }
            let mut fields = json!({"texts": [long], "max_chunks_per_doc": 2});
            let returns = if dialect.0 == "texts" { "return_text" } else { "return_documents" };
            fields[returns] = json!(true);
            let results = ask(&server, dialect, &fields).await;
            assert_eq!(results[0]["best_passage"]["text"], json!(last), "{dialect:?}");
        }
    }

    #[tokio::test]
    async fn every_dialect_marks_the_sentences_of_the_best_documents() {
        let server = Server::start().await;
        let text = "😀 One Z here. Two ZZ there! None of them";
        let part = |start, end, score| json!({"start": start, "end": end, "score": score});
        let expected = json!([part(0, 13, 0.5), part(14, 27, 0.731_058_6), part(28, 40, 0.268_941_43)]);
        for dialect in DIALECTS {
            for (highlight, marked) in [
                (json!(true), 2),
                (json!(1), 1),
                (json!(9), 2),
                (json!(0), 0),
                (json!(false), 0),
                (json!(null), 0),
            ] {
                let fields = json!({"texts": ["x", text], "highlight": highlight});
                let results = ask(&server, dialect, &fields).await;
                let found: Vec<_> = results.iter().map(|result| result.get("highlights").cloned()).collect();
                let all = [expected.clone(), json!([part(0, 1, 0.268_941_43)])].map(Some);
                let wanted: Vec<_> =
                    all.into_iter().enumerate().map(|(place, it)| it.filter(|_| place < marked)).collect();
                assert_eq!(found, wanted, "{dialect:?} {highlight}");
            }
        }
    }

    #[tokio::test]
    async fn fields_that_make_no_sense_are_refused_by_name() {
        let server = Server::start().await;
        for (path, fields, part) in [
            ("/rerank", json!({"max_chunks_per_doc": 0}), "`max_chunks_per_doc` must be at least 1"),
            ("/rerank", json!({"max_chunks_per_doc": -1}), "max_chunks_per_doc"),
            (
                "/rerank",
                json!({"long_documents": "split"}),
                "unknown variant `split`, expected `cut` or `chunks`",
            ),
            ("/rerank", json!({"highlight": "yes"}), "`true`, `false` or a number of documents"),
            ("/score", json!({"max_chunks_per_doc": 9}), "`max_chunks_per_doc` is for re-ranking"),
            ("/score", json!({"long_documents": "chunks"}), "`long_documents` is for re-ranking"),
            ("/score", json!({"chunk_overlap": 1}), "`chunk_overlap` is for re-ranking"),
            ("/score", json!({"highlight": true}), "`highlight` is for re-ranking"),
        ] {
            let mut body = fields.clone();
            let names = if path == "/score" { ["queries", "documents"] } else { ["query", "texts"] };
            body[names[0]] = json!("q");
            body[names[1]] = json!(["a"]);
            let answer = server.post(path, &body.to_string(), &[]).await;
            assert!(answer.status == 422 && answer.body.contains(part), "{fields}: {}", answer.body);
        }
        let cut = json!({"queries": "q", "documents": ["a"], "long_documents": "cut"});
        assert_eq!(server.post("/score", &cut.to_string(), &[]).await.status, 200);
    }
}

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
#[serde(untagged, expecting = "expected `true`, `false` or a number of documents")]
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
        let highlights = rank.highlights.take().map(|all| {
            let all = all.into_iter();
            all.map(|Highlight { passage, score }| HighlightBody { passage: passage.into(), score }).collect()
        });
        Self { stage: rank.stage, best_passage: rank.best_passage.take().map(Into::into), highlights }
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

impl From<Passage> for PassageBody {
    fn from(Passage { start, end, text }: Passage) -> Self {
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::http::testing::Server;
    use serde_json::json;

    #[test]
    fn a_limit_on_chunks_asks_for_them_unless_documents_are_to_be_cut() {
        let (cut, chunks) = (Some(LongDocuments::Cut), Some(LongDocuments::Chunks));
        let wanted = |max_chunks, overlap| Some(Chunking { max_chunks, overlap });
        for (long_documents, max_chunks, overlap, expected) in [
            (None, None, None, None),
            (cut, Some(3), None, None),
            (chunks, None, None, wanted(Chunking::MAX_CHUNKS, 0)),
            (None, Some(2), None, wanted(2, 0)),
            (None, None, Some(0), wanted(Chunking::MAX_CHUNKS, 0)),
            (chunks, Some(2), Some(9), wanted(2, 9)),
        ] {
            assert_eq!(wanted_chunking(long_documents, max_chunks, overlap), expected);
        }
        for (highlight, max_texts) in [("true", usize::MAX), ("9", 9), ("0", 0), ("false", 0)] {
            let count: HighlightCount = serde_json::from_str(highlight).unwrap();
            assert_eq!(count.max_texts(), max_texts, "{highlight}");
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
            ("/rerank", json!({"highlight": "yes"}), "expected `true`, `false` or a number of documents"),
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

//! The prompt of a query and a document, in the form that the model reads.
//!
//! Input: a [`ShowRequest`]. Output: a [`ShownPrompt`]. What must hold: re-ranking with the same fields
//! scores exactly this prompt; a request that re-ranking would refuse is refused here with the same message.

use super::{Service, request::Failed};
use crate::{
    error::Error,
    metrics::TOKENIZER_REQUESTS,
    tokenization::{PairText, ShownPrompt, TruncationDirection},
};

/// A query and one of its documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShowRequest {
    /// The query. Must not be empty.
    pub query: String,
    /// The document.
    pub text: String,
    /// The instruction, which defines relevance. If absent, the server's default applies.
    pub instruction: Option<String>,
    /// Whether a too long prompt is truncated; the server's default if absent.
    pub truncate: Option<bool>,
    /// The end at which the document is cut.
    pub truncation_direction: TruncationDirection,
}

impl ShowRequest {
    fn bytes(&self) -> usize {
        self.query.len() + self.text.len() + self.instruction.as_ref().map_or(0, String::len)
    }
}

impl Service {
    /// The prompt of a query and a document, in pieces.
    ///
    /// # Errors
    ///
    /// [`Error::ModelType`] if the model is not a re-ranker; [`Error::Empty`] without a query;
    /// [`Error::Validation`] for an instruction that cannot be used; [`Error::TooLong`] for a prompt that
    /// must not be truncated; [`Error::Overloaded`] without a free permit; [`Error::Tokenizer`] if the
    /// tokenizer fails.
    pub async fn show_prompt(&self, request: ShowRequest) -> Result<ShownPrompt, Error> {
        self.model_metrics().counted(TOKENIZER_REQUESTS, "single", self.shown(request)).await
    }

    async fn shown(&self, request: ShowRequest) -> Result<ShownPrompt, Failed> {
        self.reranker()?;
        if request.query.trim().is_empty() {
            return Err(Error::Empty { field: "query" }.into());
        }
        let truncation = self.truncation(request.truncate, request.truncation_direction);
        let shown = self.map(vec![request], ShowRequest::bytes, move |encoder, request| {
            let ShowRequest { query, text, instruction, .. } = request;
            let text = PairText { instruction: instruction.as_deref(), query: &query, document: &text };
            encoder.show(&text, truncation)
        });
        let mut shown = shown.await?;
        Ok(shown.pop().ok_or_else(|| Error::Tokenizer("the tokenizer failed".to_owned()))?)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        metrics::testing::recorded,
        service::{
            RerankRequest,
            testing::{
                MAX_INPUT_LENGTH, block_on, classifier_fixture, embedding_fixture, fixture, fixture_with,
                fixture_with_permits,
            },
        },
    };

    fn request(query: &str, text: &str) -> ShowRequest {
        ShowRequest { query: query.to_owned(), text: text.to_owned(), ..ShowRequest::default() }
    }

    #[tokio::test]
    async fn the_prompt_has_as_many_tokens_as_its_reranking_costs() {
        let service = fixture(100).service;
        let long = "w300 ".repeat(MAX_INPUT_LENGTH);
        for (text, instruction) in
            [("w100 행성", None), ("", None), (&long, None), (&long, Some("w1 w2 w3")), ("w100", Some(""))]
        {
            let instruction = instruction.map(str::to_owned);
            let shown = ShowRequest { instruction: instruction.clone(), ..request("w200 w201", text) };
            let shown = service.show_prompt(shown).await.unwrap();
            let texts = vec![text.to_owned()];
            let rerank = RerankRequest {
                query: "w200 w201".to_owned(),
                texts,
                instruction,
                ..RerankRequest::default()
            };
            let cost = service.rerank(rerank).await.unwrap().cost;
            assert_eq!((shown.tokens(), usize::from(shown.truncated() > 0)), (cost.tokens, cost.truncated));
            assert_eq!(shown.max_input_length, MAX_INPUT_LENGTH);
        }
    }

    #[tokio::test]
    async fn what_a_reranking_refuses_is_refused_alike() {
        let long = "w300 ".repeat(MAX_INPUT_LENGTH);
        let strict = fixture_with(100, |config| config.auto_truncate = false).service;
        for (service, shown) in [
            (fixture(100).service, request(" \n", "w100")),
            (fixture(100).service, ShowRequest { instruction: Some(long.clone()), ..request("w1", "w2") }),
            (fixture(100).service, ShowRequest { truncate: Some(false), ..request("w1", &long) }),
            (strict, request("w1", &long)),
            (fixture_with_permits(100, 0).service, request("w1", "w2")),
            (embedding_fixture(100, |_| ()).service, request("w1", "w2")),
            (classifier_fixture(&["a", "b"]).service, request("", "w2")),
        ] {
            let ShowRequest { query, text, instruction, truncate, truncation_direction } = shown.clone();
            let texts = vec![text];
            let rerank = RerankRequest {
                query,
                texts,
                instruction,
                truncate,
                truncation_direction,
                ..RerankRequest::default()
            };
            let expected = service.rerank(rerank).await.unwrap_err();
            assert_eq!(service.show_prompt(shown).await, Err(expected));
        }
    }

    #[tokio::test]
    async fn only_what_a_person_can_read_is_encoded_to_be_shown() {
        let long = "w300 ".repeat(1 << 15);
        let service = fixture(100).service;
        let instruction = ShowRequest { instruction: Some(long.clone()), ..request("w1", "w2") };
        for shown in [request(&long, "w1"), request("w1", &long), instruction] {
            let error = service.show_prompt(shown).await.unwrap_err().to_string();
            assert!(error.contains("bytes are shown"), "{error}");
        }
    }

    #[test]
    fn a_request_is_counted_once_and_takes_nothing_to_the_model() {
        let fixture = fixture(100);
        let counts = recorded(|| {
            block_on(fixture.service.show_prompt(request("w1", "w2"))).unwrap();
        });
        assert_eq!(counts.len(), 2, "{counts:?}");
        assert_eq!(counts["te_tokenize_count{method=\"single\"}"], [1.0]);
        assert_eq!(counts["te_tokenize_success{method=\"single\"}"], [1.0]);
        assert_eq!(fixture.control.batch_sizes(), [0; 0]);
    }
}

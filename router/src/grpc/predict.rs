//! `Predict`: labels with scores; for a re-ranker, a pair's score.
//!
//! What must hold: a pair is two texts; `truncate` cannot be absent: the default is `false`, as in TEI.

use futures_util::TryFutureExt;
use text_embeddings_core::{
    error::Error,
    service::{Answer, PredictInput, PredictRequest, Prediction, Service},
};
use text_embeddings_proto::v1::{self, predict_server::Predict};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    Grpc,
    error::{invalid, status},
    stream::{AnswerStream, without_headers},
    wire::{answered, direction},
};

async fn predict(
    service: Service,
    message: v1::PredictRequest,
) -> Result<Answer<v1::PredictResponse>, Status> {
    let request = PredictRequest {
        inputs: vec![PredictInput::Single(message.inputs)],
        is_batch: false,
        truncate: Some(message.truncate),
        truncation_direction: direction(message.truncation_direction)?,
        raw_scores: message.raw_scores,
    };
    label("tei.v1.Predict/Predict", &service, request).await
}

async fn predict_pair(
    service: Service,
    message: v1::PredictPairRequest,
) -> Result<Answer<v1::PredictResponse>, Status> {
    let request = PredictRequest {
        inputs: vec![pair(message.inputs)?],
        is_batch: false,
        truncate: Some(message.truncate),
        truncation_direction: direction(message.truncation_direction)?,
        raw_scores: message.raw_scores,
    };
    label("tei.v1.Predict/PredictPair", &service, request).await
}

fn pair(texts: Vec<String>) -> Result<PredictInput, Status> {
    match <[String; 2]>::try_from(texts) {
        Ok([first, second]) => Ok(PredictInput::Pair(first, second)),
        Err(texts) if texts.is_empty() => Err(status(Error::Empty { field: "inputs" })),
        Err(texts) => Err(invalid(format!("`inputs` must be a pair of texts, not {}", texts.len()))),
    }
}

async fn label(
    method: &'static str,
    service: &Service,
    request: PredictRequest,
) -> Result<Answer<v1::PredictResponse>, Status> {
    answered(method, service.predict(request).await, |lists, metadata| v1::PredictResponse {
        // One input has one list of labels.
        predictions: lists
            .into_iter()
            .flatten()
            .map(|Prediction { score, label }| v1::Prediction { score, label })
            .collect(),
        metadata,
    })
}

#[async_trait]
impl Predict for Grpc {
    type PredictStreamStream = AnswerStream<v1::PredictResponse>;
    type PredictPairStreamStream = AnswerStream<v1::PredictResponse>;

    async fn predict(
        &self,
        request: Request<v1::PredictRequest>,
    ) -> Result<Response<v1::PredictResponse>, Status> {
        Ok(self.respond(predict(self.0.served().service.clone(), request.into_inner()).await?))
    }

    async fn predict_pair(
        &self,
        request: Request<v1::PredictPairRequest>,
    ) -> Result<Response<v1::PredictResponse>, Status> {
        Ok(self.respond(predict_pair(self.0.served().service.clone(), request.into_inner()).await?))
    }

    async fn predict_stream(
        &self,
        requests: Request<Streaming<v1::PredictRequest>>,
    ) -> Result<Response<Self::PredictStreamStream>, Status> {
        Ok(self.stream(requests, |service, message| predict(service, message).map_ok(without_headers)))
    }

    async fn predict_pair_stream(
        &self,
        requests: Request<Streaming<v1::PredictPairRequest>>,
    ) -> Result<Response<Self::PredictPairStreamStream>, Status> {
        Ok(self.stream(requests, |service, message| predict_pair(service, message).map_ok(without_headers)))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::grpc::testing::{Server, messages, read, refusal};
    use text_embeddings_proto::v1::predict_client::PredictClient;
    use tonic::Code;

    fn message(texts: &[&str]) -> v1::PredictPairRequest {
        let inputs = texts.iter().map(ToString::to_string).collect();
        v1::PredictPairRequest { inputs, ..v1::PredictPairRequest::default() }
    }

    fn labels(answer: &v1::PredictResponse) -> Vec<(&str, f32)> {
        answer.predictions.iter().map(|prediction| (prediction.label.as_str(), prediction.score)).collect()
    }

    #[tokio::test]
    async fn pairs_get_the_label_yes() {
        let server = Server::start().await;
        let mut client = PredictClient::new(server.channel.clone());
        let answer = client.predict_pair(message(&["q", "ZZ"])).await.unwrap();
        assert_eq!(labels(answer.get_ref()), [("yes", 0.731_058_6)]);
        assert_eq!(answer.metadata().get("x-compute-characters").unwrap(), "3");
        assert_eq!(answer.get_ref().metadata.unwrap().compute_chars, 3);
        let raw = v1::PredictPairRequest { raw_scores: true, ..message(&["q", "ZZZ"]) };
        let (answers, end) =
            read(client.predict_pair_stream(messages(vec![raw, message(&["q", "Z"])])).await).await;
        assert_eq!(answers.iter().map(labels).collect::<Vec<_>>(), [[("yes", 2.0)], [("yes", 0.5)]]);
        assert_eq!(end, None);
    }

    #[tokio::test]
    async fn what_is_no_pair_is_refused() {
        let server = Server::start().await;
        let mut client = PredictClient::new(server.channel.clone());
        let single = "Input validation error: this re-ranker predicts on pairs: each of `inputs` must be `[query, document]`, not a single text";
        let expected = (Code::InvalidArgument, single.to_owned());
        let text = v1::PredictRequest { inputs: "a".to_owned(), ..v1::PredictRequest::default() };
        assert_eq!(refusal(client.predict(text.clone()).await), expected);
        assert_eq!(read(client.predict_stream(messages(vec![text])).await).await.1, Some(expected));
        let table: [(&[&str], &str); 4] = [
            (&[], "`inputs` cannot be empty"),
            (&["a"], "`inputs` must be a pair of texts, not 1"),
            (&["a", "b", "c"], "`inputs` must be a pair of texts, not 3"),
            (&["", "b"], "Input validation error: `inputs` cannot be empty"),
        ];
        for (texts, expected) in table {
            let expected = (Code::InvalidArgument, expected.to_owned());
            assert_eq!(refusal(client.predict_pair(message(texts)).await), expected);
            let (answers, end) =
                read(client.predict_pair_stream(messages(vec![message(&["q", "Z"]), message(texts)])).await)
                    .await;
            assert_eq!((answers.len(), end), (1, Some(expected)));
        }
    }

    #[tokio::test]
    async fn a_classifier_labels_texts_and_pairs_best_first() {
        let server = Server::start_with("--model-type classifier").await;
        let mut client = PredictClient::new(server.channel.clone());
        let text = v1::PredictRequest {
            inputs: "ZaZb".to_owned(),
            raw_scores: true,
            ..v1::PredictRequest::default()
        };
        let expected = [("long", 4.0), ("sleepy", 2.0), ("loud", 1.0)];
        assert_eq!(labels(client.predict(text.clone()).await.unwrap().get_ref()), expected);
        let (answers, end) = read(client.predict_stream(messages(vec![text; 3])).await).await;
        assert_eq!(answers.iter().map(labels).collect::<Vec<_>>(), vec![expected; 3]);
        assert_eq!(end, None);
        let pair = v1::PredictPairRequest { raw_scores: true, ..message(&["Z", "aa"]) };
        let expected = [("long", 3.0), ("loud", 2.0), ("sleepy", 1.0)];
        assert_eq!(labels(client.predict_pair(pair).await.unwrap().get_ref()), expected);
        let probabilities =
            client.predict_pair(message(&["Z", "aa"])).await.unwrap().into_inner().predictions;
        let sum: f32 = probabilities.iter().map(|prediction| prediction.score).sum();
        assert!((sum - 1.0).abs() < 1e-6 && probabilities[0].label == "long", "{probabilities:?}");
    }
}

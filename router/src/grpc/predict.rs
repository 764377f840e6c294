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

//! Embeddings: vectors for texts or token ids, and results derived from vectors.
//!
//! Input: one of this file's requests. Output: vectors in the order of the request. What must hold: an
//! input's vector does not depend on the other inputs of its request; every route gives the same vector for
//! the same input.

use super::{
    Answer, Cost, Service,
    request::{Failed, check_length, method},
    task::{Inputs, ModelTask},
};
use crate::{
    error::Error,
    metrics::EMBED,
    model::InputType,
    postprocess::normalized,
    tokenization::{Input, Side, TruncationDirection},
};
use std::sync::Arc;
use text_embeddings_backend_core::{Output, SparseValue, TokenVectors, Wanted};

/// One input of an embedding model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbedInput {
    /// A text. The tokenizer adds its special tokens.
    Text(String),
    /// Token ids, used unchanged, or after the prompt if there is one.
    Ids(Vec<u32>),
}

/// The inputs of a request, and the form in which they were sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedInputs {
    /// The inputs. Must not be empty.
    pub inputs: Vec<EmbedInput>,
    /// Whether the client sent a list, even of a single input.
    pub is_batch: bool,
}

impl EmbedInputs {
    /// A single input.
    pub fn single(input: EmbedInput) -> Self {
        Self { inputs: vec![input], is_batch: false }
    }

    /// A list of inputs.
    pub fn batch(inputs: Vec<EmbedInput>) -> Self {
        Self { inputs, is_batch: true }
    }

    /// Whether any of them is token ids.
    pub fn has_ids(&self) -> bool {
        self.inputs.iter().any(|input| matches!(input, EmbedInput::Ids(ids) if !ids.is_empty()))
    }
}

/// The rules by which an input becomes tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EmbedEncoding {
    /// Whether too long inputs are truncated; the server's default if absent.
    pub truncate: Option<bool>,
    /// The end at which an input is cut.
    pub truncation_direction: TruncationDirection,
    /// The name of the model's prompt that is put before the text. If absent, the server's default applies.
    pub prompt_name: Option<String>,
    /// The use of the vectors, which chooses the prompt where none is named.
    pub input_type: Option<InputType>,
}

/// Inputs to embed. The caller names the outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedRequest {
    /// The inputs. Must not be empty.
    pub inputs: EmbedInputs,
    /// The rules by which they become tokens.
    pub encoding: EmbedEncoding,
    /// Whether vectors, of inputs and of tokens, are scaled to length one. Weights of vocabulary entries are
    /// never scaled.
    pub normalize: bool,
    /// The number of each vector's first values to return (Matryoshka); all if absent. Weights of vocabulary
    /// entries are never cut.
    pub dimensions: Option<usize>,
}

/// The outputs of one input. Outputs that were not requested are absent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EmbedOutputs {
    /// Its vector.
    pub dense: Option<Vec<f32>>,
    /// The weights of vocabulary entries.
    pub sparse: Option<Vec<SparseValue>>,
    /// The vectors of its tokens.
    pub tokens: Option<Vec<Vec<f32>>>,
}

impl Service {
    /// A vector for each input. For a SPLADE model it has a weight for each vocabulary entry, zeros included.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] and [`Error::BatchTooLarge`] for a list that is empty or too long;
    /// [`Error::ModelType`] if the model is not an embedding model; [`Error::Splade`] for scaled vectors of a
    /// SPLADE model; [`Error::EmptyInput`], [`Error::Validation`] and [`Error::TooLong`] for an invalid
    /// input; [`Error::Overloaded`] without a free permit; failures of tokenizer and backend.
    pub async fn embed_vectors(&self, request: EmbedRequest) -> Result<Answer<Vec<Vec<f32>>>, Error> {
        self.embed_up_to(request, self.config.max_client_batch_size).await
    }

    /// The same with `OpenAI`'s limit on the number of inputs.
    ///
    /// # Errors
    ///
    /// As for [`Service::embed_vectors`].
    pub async fn embed_openai(&self, request: EmbedRequest) -> Result<Answer<Vec<Vec<f32>>>, Error> {
        self.embed_up_to(request, self.config.max_openai_inputs).await
    }

    async fn embed_up_to(
        &self,
        request: EmbedRequest,
        max_inputs: usize,
    ) -> Result<Answer<Vec<Vec<f32>>>, Error> {
        self.model_metrics()
            .measured(method(request.inputs.is_batch), async {
                let is_splade = self.is_splade();
                Self::check_inputs(&request.inputs, max_inputs, || {
                    self.embedder()?;
                    if is_splade && request.normalize {
                        Err(Error::Splade { what: "`normalize`" })
                    } else {
                        Ok(())
                    }
                })?;
                let outputs = if is_splade { Wanted::SPARSE } else { Wanted::WHOLE };
                self.check_dimensions(&request, Wanted::WHOLE)?;
                let length = request.dimensions.unwrap_or(self.config.dimensions);
                let answer = self.outputs(request, outputs).await?;
                let vector = |outputs: EmbedOutputs| match outputs {
                    EmbedOutputs { dense: Some(vector), .. } => vector,
                    EmbedOutputs { sparse, .. } => dense(&sparse.unwrap_or_default(), length),
                };
                Ok(answer.map(|outputs| outputs.into_iter().map(vector).collect()))
            })
            .await
    }

    /// Some outputs of each input, computed in one forward pass.
    ///
    /// # Errors
    ///
    /// As for [`Service::embed_vectors`]; [`Error::ModelType`] or [`Error::Splade`] for an output that the
    /// model does not have.
    pub async fn embed(
        &self,
        request: EmbedRequest,
        outputs: Wanted,
    ) -> Result<Answer<Vec<EmbedOutputs>>, Error> {
        self.model_metrics()
            .measured(method(request.inputs.is_batch), async {
                if self.reads_apart() && outputs == Wanted::TOKENS {
                    check_length("inputs", request.inputs.inputs.len(), self.config.max_client_batch_size)?;
                    self.check_dimensions(&request, outputs)?;
                    return self.side_vectors(request).await;
                }
                Self::check_inputs(&request.inputs, self.config.max_client_batch_size, || {
                    self.embedder()?;
                    if outputs.tokens && self.is_splade() {
                        return Err(Error::Splade { what: "`embed_all`" });
                    }
                    if outputs.whole && self.is_splade() {
                        return Err(Error::Splade { what: "the output `dense`" });
                    }
                    if outputs.sparse { self.require_sparse() } else { Ok(()) }
                })?;
                if outputs == Wanted::default() {
                    return Err(Error::Empty { field: "outputs" }.into());
                }
                self.check_dimensions(&request, outputs)?;
                self.outputs(request, outputs).await
            })
            .await
    }

    /// A sparse vector for each input, with its entries in ascending order of the index.
    ///
    /// # Errors
    ///
    /// As for [`Service::embed_vectors`]; [`Error::ModelType`] if the model does not have sparse vectors.
    pub async fn embed_sparse(&self, request: EmbedRequest) -> Result<Answer<Vec<Vec<SparseValue>>>, Error> {
        self.model_metrics()
            .measured(method(request.inputs.is_batch), async {
                let max_inputs = self.config.max_client_batch_size;
                Self::check_inputs(&request.inputs, max_inputs, || self.require_sparse())?;
                let answer = self.outputs(request, Wanted::SPARSE).await?;
                Ok(answer.map(|outputs| outputs.into_iter().filter_map(|output| output.sparse).collect()))
            })
            .await
    }

    /// Refuses more than `max` inputs. Then refuses all of them if `check` says that the model cannot embed
    /// them in this way.
    pub(super) fn check_inputs(
        inputs: &EmbedInputs,
        max: usize,
        check: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Failed> {
        check_length("inputs", inputs.inputs.len(), max)?;
        check().map_err(|error| Failed::of_texts(error, inputs.inputs.len()))
    }

    pub(super) fn is_splade(&self) -> bool {
        self.embedder().is_ok_and(|model| !model.outputs.whole)
    }

    /// Refuses sparse vectors if the model does not have them.
    fn require_sparse(&self) -> Result<(), Error> {
        let is_sparse = self.embedder().is_ok_and(|model| model.outputs.sparse);
        if is_sparse {
            Ok(())
        } else {
            Err(self.other_kind("Model is not an embedding model with SPLADE pooling"))
        }
    }

    /// Refuses values that the requested vectors do not have, and more values than an answer may have.
    fn check_dimensions(&self, request: &EmbedRequest, outputs: Wanted) -> Result<(), Failed> {
        let error = match request.dimensions {
            Some(0) => Error::Validation("`dimensions` should be positive".to_owned()),
            Some(got) if outputs.whole && got > self.config.dimensions => {
                too_many_dimensions(got, self.config.dimensions)
            }
            dimensions => {
                let length = dimensions.unwrap_or(self.config.dimensions) * usize::from(outputs.whole);
                return Ok(self.check_values(request.inputs.inputs.len().saturating_mul(length))?);
            }
        };
        Err(Failed::of_texts(error, request.inputs.inputs.len()))
    }

    /// Computes some outputs of each input.
    async fn outputs(
        &self,
        request: EmbedRequest,
        wanted: Wanted,
    ) -> Result<Answer<Vec<EmbedOutputs>>, Failed> {
        let EmbedRequest { inputs, encoding, normalize, dimensions } = request;
        let (outputs, mut cost) = self.vectors(inputs.inputs, &encoding, wanted).await?;
        if wanted.whole {
            cost.untrained_dimensions = dimensions.filter(|length| !self.is_trained_for(*length));
        }
        if let (true, Some(got)) = (wanted.tokens, dimensions)
            && let Some(width) = outputs.iter().map(|output| output.tokens.width).find(|width| got > *width)
        {
            return Err(Failed::of_texts(too_many_dimensions(got, width), outputs.len()));
        }
        let form = VectorForm { normalize, dimensions };
        let outputs = outputs.into_iter().map(|output| EmbedOutputs {
            dense: wanted.whole.then(|| form.apply(&output.whole)),
            tokens: wanted.tokens.then(|| form.apply_to_tokens(&output.tokens)),
            sparse: wanted.sparse.then_some(output.sparse),
        });
        Ok(Answer { value: outputs.collect(), cost })
    }

    /// The model's outputs for each input.
    pub(super) async fn vectors(
        &self,
        inputs: Vec<EmbedInput>,
        encoding: &EmbedEncoding,
        wanted: Wanted,
    ) -> Result<(Vec<Output>, Cost), Failed> {
        let prompt = self.embed_prompt(encoding).map_err(|error| {
            // text-embeddings-inference would count these failures during tokenization.
            self.model_metrics().count_many(EMBED.count, inputs.len());
            Failed::on_the_way_to_tokens(error, inputs.len())
        })?;
        let prompt = prompt.map(str::to_owned);
        let truncation = self.truncation(encoding.truncate, encoding.truncation_direction);
        let inputs = Arc::new(PromptedInputs { prompt, inputs, side: None });
        let computed = self.compute(&inputs, ModelTask::Embed(wanted), truncation).await?;
        let (mut outputs, cost) = computed.into_owned();
        if !self.is_splade() {
            let empty_tokens = &self.embedder()?.empty_tokens;
            for output in &mut outputs {
                output.sparse.retain(|entry| !empty_tokens.contains(&entry.index));
            }
        }
        if outputs.iter().all(Output::is_finite) {
            Ok((outputs, cost))
        } else {
            Err(Error::MissingValues.into())
        }
    }
}

/// The error for `dimensions` above the length `max` of a vector.
fn too_many_dimensions(got: usize, max: usize) -> Error {
    Error::Validation(format!(
        "`dimensions` should be smaller than the maximum embedding dimension. It is {max}; given: {got}"
    ))
}

/// How vectors are returned.
#[derive(Debug, Clone, Copy)]
struct VectorForm {
    normalize: bool,
    dimensions: Option<usize>,
}

impl VectorForm {
    fn apply(self, vector: &[f32]) -> Vec<f32> {
        let length = self.dimensions.map_or(vector.len(), |dimensions| dimensions.min(vector.len()));
        if self.normalize { normalized(&vector[..length]) } else { vector[..length].to_vec() }
    }

    /// The vectors of an input's tokens, as a list.
    fn apply_to_tokens(self, tokens: &TokenVectors) -> Vec<Vec<f32>> {
        tokens.values.chunks(tokens.width.max(1)).map(|vector| self.apply(vector)).collect()
    }
}

/// A sparse vector as a dense one of `length` values.
fn dense(sparse: &[SparseValue], length: usize) -> Vec<f32> {
    let mut vector = vec![0.0; length];
    for entry in sparse {
        if let Some(value) = vector.get_mut(entry.index as usize) {
            *value = entry.value;
        }
    }
    vector
}

/// A request's inputs with their prompt.
pub(super) struct PromptedInputs {
    pub(super) prompt: Option<String>,
    pub(super) inputs: Vec<EmbedInput>,
    /// Which texts they are, for a model that reads queries and documents apart.
    pub(super) side: Option<Side>,
}

impl Inputs for PromptedInputs {
    fn count(&self) -> usize {
        self.inputs.len()
    }

    fn input(&self, index: usize) -> Input<'_> {
        match &self.inputs[index] {
            EmbedInput::Text(text) => match self.side {
                Some(side) => Input::Late { side, instruction: None, text },
                None => Input::Text { prompt: self.prompt.as_deref().unwrap_or_default(), text },
            },
            EmbedInput::Ids(ids) => match &self.prompt {
                Some(prompt) => Input::PromptedIds { prompt, ids },
                None => Input::Ids(ids),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        metrics::testing::recorded,
        service::{
            ServiceConfig, SimilarityRequest,
            testing::{CLS, Fixture, MAX_INPUT_LENGTH, block_on, embedder, embedding_fixture},
        },
    };
    use std::time::Duration;
    use text_embeddings_backend_core::Pool;

    const WIDTH: usize = 7;

    fn fixture(max_batch_tokens: usize) -> Fixture {
        embedding_fixture(max_batch_tokens, |_| ())
    }

    fn texts(texts: &[&str]) -> Vec<EmbedInput> {
        texts.iter().map(|&text| EmbedInput::Text(text.to_owned())).collect()
    }

    fn request(inputs: Vec<EmbedInput>) -> EmbedRequest {
        let inputs = EmbedInputs::batch(inputs);
        EmbedRequest { inputs, encoding: EmbedEncoding::default(), normalize: false, dimensions: None }
    }

    fn named(prompt_name: &str) -> EmbedEncoding {
        EmbedEncoding { prompt_name: Some(prompt_name.to_owned()), ..EmbedEncoding::default() }
    }

    fn typed(input_type: InputType) -> EmbedEncoding {
        EmbedEncoding { input_type: Some(input_type), ..EmbedEncoding::default() }
    }

    /// Scales to length one in double precision, without any code under test.
    fn unit(vector: &[f32]) -> Vec<f64> {
        let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        vector.iter().map(|value| f64::from(*value) / length).collect()
    }

    fn assert_close(got: &[f32], wanted: &[f64]) {
        assert_eq!(got.len(), wanted.len());
        assert!(got.iter().zip(wanted).all(|(got, wanted)| (f64::from(*got) - wanted).abs() < 1e-6));
    }

    #[tokio::test]
    async fn a_vector_does_not_depend_on_batches_and_follows_its_prompt() {
        for budget in [1, 12, 100_000] {
            let fixture = fixture(budget);
            for (prompt_name, prompt) in [(None, ""), (Some("query"), "w700 w701 "), (Some("document"), "")] {
                let sent = ["w100 w101", "w102", "행성", "w100 w101"];
                let encoding = prompt_name.map(named).unwrap_or_default();
                let request = EmbedRequest { encoding, ..request(texts(&sent)) };
                let answer = fixture.service.embed_vectors(request).await.unwrap();
                let expected = sent.map(|text| fixture.values(&Input::Text { prompt, text }));
                assert_eq!(answer.value, expected, "{prompt_name:?} at {budget}");
                let tokens = sent.map(|text| fixture.ids(&Input::Text { prompt, text }).len());
                assert_eq!(answer.cost.tokens, tokens.iter().sum::<usize>());
                assert_eq!(answer.cost.characters, 9 + 4 + 2 + 9, "the prompt is not the client's");
                assert!(
                    answer.cost.total >= answer.cost.inference && answer.cost.tokenization > Duration::ZERO
                );
            }
        }
    }

    #[tokio::test]
    async fn the_servers_default_prompt_is_put_before_texts_that_name_none() {
        let change = |config: &mut ServiceConfig| embedder(config).prompts.default = "w800 ".to_owned();
        let fixture = embedding_fixture(100, change);
        for (encoding, prompt) in
            // A name is more specific than a type.
            [
                (EmbedEncoding::default(), "w800 "),
                (named("query"), "w700 w701 "),
                (named("document"), ""),
                (typed(InputType::Query), "w700 w701 "),
                (typed(InputType::Document), ""),
                (typed(InputType::Clustering), "w800 "),
                (EmbedEncoding { input_type: Some(InputType::Query), ..named("document") }, ""),
            ]
        {
            let request = EmbedRequest { encoding, ..request(texts(&["w100"])) };
            let expected = fixture.values(&Input::Text { prompt, text: "w100" });
            assert_eq!(fixture.service.embed_vectors(request).await.unwrap().value, [expected]);
        }
    }

    #[tokio::test]
    async fn the_prompt_stands_before_ids_too() {
        let ids = [100, 101];
        let with_default = |config: &mut ServiceConfig| embedder(config).prompts.default = "w800 ".to_owned();
        for (fixture, encoding, expected) in [
            (fixture(100), EmbedEncoding::default(), vec![100, 101]),
            (fixture(100), named("query"), vec![CLS, 700, 701, 100, 101]),
            (fixture(100), named("document"), vec![CLS, 100, 101]),
            (fixture(100), typed(InputType::Document), vec![100, 101]),
            (fixture(100), typed(InputType::Query), vec![CLS, 700, 701, 100, 101]),
            (embedding_fixture(100, with_default), EmbedEncoding::default(), vec![CLS, 800, 100, 101]),
            (embedding_fixture(100, with_default), named("query"), vec![CLS, 700, 701, 100, 101]),
        ] {
            let request = EmbedRequest { encoding, ..request(vec![EmbedInput::Ids(ids.to_vec())]) };
            let answer = fixture.service.embed_vectors(request).await.unwrap();
            assert_eq!(answer.value, [fixture.values(&Input::Ids(&expected))], "{expected:?}");
            assert_eq!((answer.cost.characters, answer.cost.tokens), (2, expected.len()));
        }
    }

    #[tokio::test]
    async fn a_length_that_the_model_was_not_trained_for_is_in_the_cost() {
        let trained = embedding_fixture(100, |config| embedder(config).trained_lengths = vec![3, 5]);
        for (fixture, dimensions, warned) in [
            (&trained, None, None),
            (&trained, Some(3), None),
            (&trained, Some(5), None),
            (&trained, Some(WIDTH), None),
            (&trained, Some(4), Some(4)),
            (&fixture(100), Some(4), None),
        ] {
            let request = EmbedRequest { dimensions, ..request(texts(&["w100"])) };
            let answer = fixture.service.embed_vectors(request.clone()).await.unwrap();
            assert_eq!(answer.cost.untrained_dimensions, warned, "{dimensions:?}");
            let tokens = fixture.service.embed(request, Wanted::TOKENS).await.unwrap();
            assert_eq!(tokens.cost.untrained_dimensions, None, "vectors of tokens are another matter");
        }
    }

    #[tokio::test]
    async fn dimensions_are_the_first_values_and_scaled_after_the_cut() {
        let fixture = fixture(100);
        let whole = fixture.values(&Input::Text { prompt: "", text: "w100 w101" });
        for dimensions in [None, Some(1), Some(3), Some(WIDTH)] {
            let count = dimensions.unwrap_or(WIDTH);
            for normalize in [false, true] {
                let request = EmbedRequest { normalize, dimensions, ..request(texts(&["w100 w101"])) };
                let answer = fixture.service.embed_vectors(request).await.unwrap().value;
                if normalize {
                    assert_close(&answer[0], &unit(&whole[..count]));
                } else {
                    assert_eq!(answer, [&whole[..count]]);
                }
            }
        }
        let too_many = "should be smaller than the maximum embedding dimension. It is 7; given: ";
        for (dimensions, problem) in [
            (0, "should be positive".to_owned()),
            (WIDTH + 1, format!("{too_many}8")),
            (usize::MAX, format!("{too_many}{}", usize::MAX)),
        ] {
            let request = EmbedRequest { dimensions: Some(dimensions), ..request(texts(&["w100"])) };
            let message = fixture.service.embed_vectors(request).await.unwrap_err().to_string();
            assert_eq!(message, format!("Input validation error: `dimensions` {problem}"));
        }
        assert_eq!(fixture.control.batch_sizes().len(), 8, "what is refused is not computed");
    }

    #[tokio::test]
    async fn embed_all_gives_each_token_its_own_vector() {
        let fixture = fixture(100);
        let inputs = vec![EmbedInput::Text("w100 w101".to_owned()), EmbedInput::Ids(vec![5, CLS])];
        let answer = fixture.service.embed(request(inputs), Wanted::TOKENS).await.unwrap().map(tokens_of);
        let text = Input::Text { prompt: "", text: "w100 w101" };
        let expected = [fixture.values_of_tokens(&text), fixture.values_of_tokens(&Input::Ids(&[5, CLS]))];
        assert_eq!(answer.value, expected);
        assert_eq!((answer.value[0].len(), answer.value[1].len(), answer.value[0][0].len()), (3, 2, WIDTH));
        assert_eq!((answer.cost.characters, answer.cost.tokens), (9 + 2, 3 + 2));
    }

    #[tokio::test]
    async fn vectors_of_tokens_are_scaled_where_that_is_asked_for() {
        let fixture = fixture(100);
        let expected = fixture.values_of_tokens(&Input::Text { prompt: "", text: "w100 w101" });
        for dimensions in [None, Some(3)] {
            let request = EmbedRequest { normalize: true, dimensions, ..request(texts(&["w100 w101"])) };
            let answer = fixture.service.embed(request, Wanted::TOKENS).await.unwrap().map(tokens_of).value;
            assert_eq!(answer[0].len(), expected.len());
            for (got, wanted) in answer[0].iter().zip(&expected) {
                assert_close(got, &unit(&wanted[..dimensions.unwrap_or(WIDTH)]));
            }
        }
    }

    #[tokio::test]
    async fn dimensions_hold_for_every_output_with_vectors() {
        let fixture = embedding_fixture(100, |config| embedder(config).outputs.sparse = true);
        let (text, all) = (Input::Text { prompt: "", text: "w101 w100" }, Wanted { sparse: true, ..DENSE });
        let cut =
            |dimensions| EmbedRequest { dimensions: Some(dimensions), ..request(texts(&["w101 w100"])) };
        for (outputs, count) in [(all, 2), (DENSE, WIDTH), (Wanted::TOKENS, 1), (Wanted::SPARSE, 3)] {
            let answer = fixture.service.embed(cut(count), outputs).await.unwrap().value.remove(0);
            let dense = outputs.whole.then(|| fixture.values(&text)[..count].to_vec());
            assert_eq!(answer.dense, dense, "{outputs:?}");
            let short = |vector: Vec<f32>| vector[..count].to_vec();
            let tokens = || fixture.values_of_tokens(&text).into_iter().map(short).collect::<Vec<_>>();
            assert_eq!(answer.tokens, outputs.tokens.then(tokens), "{outputs:?}");
            assert_eq!(answer.sparse, outputs.sparse.then(|| entries(&[100, 101, CLS])), "{outputs:?}");
        }
        for outputs in [all, Wanted::WHOLE, Wanted::TOKENS] {
            let message = fixture.service.embed(cut(WIDTH + 1), outputs).await.unwrap_err().to_string();
            assert!(message.ends_with("the maximum embedding dimension. It is 7; given: 8"), "{message}");
        }
        for outputs in [all, Wanted::SPARSE] {
            let message = fixture.service.embed(cut(0), outputs).await.unwrap_err().to_string();
            assert!(message.ends_with("`dimensions` should be positive"), "{message}");
        }
    }

    const DENSE: Wanted = Wanted { whole: true, tokens: true, sparse: false };

    fn tokens_of(outputs: Vec<EmbedOutputs>) -> Vec<Vec<Vec<f32>>> {
        outputs.into_iter().map(|output| output.tokens.unwrap()).collect()
    }

    fn entries(ids: &[u32]) -> Vec<SparseValue> {
        ids.iter().map(|&index| SparseValue { index, value: 1.0 }).collect()
    }

    #[tokio::test]
    async fn a_lexical_model_gives_every_output_by_one_pass() {
        let fixture = embedding_fixture(100, |config| {
            embedder(config).outputs.sparse = true;
            embedder(config).empty_tokens = vec![CLS];
        });
        let text = Input::Text { prompt: "", text: "w101 w100" };
        let (sent, sparse) = (|| texts(&["w101 w100"]), entries(&[100, 101]));
        let all = Wanted { whole: true, tokens: true, sparse: true };
        let answer = fixture.service.embed(request(sent()), all).await.unwrap().value;
        let expected = EmbedOutputs {
            dense: Some(fixture.values(&text)),
            sparse: Some(sparse.clone()),
            tokens: Some(fixture.values_of_tokens(&text)),
        };
        assert_eq!(answer, [expected]);
        assert_eq!(fixture.control.batch_sizes(), [1]);
        let scaled = fixture
            .service
            .embed(EmbedRequest { normalize: true, ..request(sent()) }, all)
            .await
            .unwrap()
            .value;
        assert_close(scaled[0].dense.as_ref().unwrap(), &unit(&fixture.values(&text)));
        assert_eq!(scaled[0].sparse, Some(sparse.clone()), "weights are not scaled");
        let answer = fixture.service.embed(request(sent()), Wanted::SPARSE).await.unwrap().value;
        assert_eq!(answer, [EmbedOutputs { sparse: Some(sparse.clone()), ..EmbedOutputs::default() }]);
        assert_eq!(fixture.service.embed_sparse(request(sent())).await.unwrap().value, [sparse]);
        let none = fixture.service.embed(request(sent()), Wanted::default()).await;
        assert_eq!(none, Err(Error::Empty { field: "outputs" }));
    }

    #[tokio::test]
    async fn a_splade_model_gives_sparse_vectors_and_refuses_the_rest_as_tei_does() {
        let fixture = embedding_fixture(100, |config| {
            embedder(config).pool = Pool::Splade;
            embedder(config).outputs = Wanted::SPARSE;
            config.dimensions = CLS as usize + 1;
        });
        let (service, sent) = (&fixture.service, || texts(&["w101 w100"]));
        let sparse = entries(&[100, 101, CLS]);
        let answer = service.embed_sparse(request(sent())).await.unwrap().value;
        assert_eq!(answer, std::slice::from_ref(&sparse));
        let vector = &service.embed_vectors(request(sent())).await.unwrap().value[0];
        let ones = vector.iter().filter(|value| **value > 0.0).count();
        assert_eq!((vector.len(), ones), (1001, 3), "zeros included");
        let several = Wanted { whole: true, sparse: true, tokens: false };
        let cut = EmbedRequest { dimensions: Some(101), ..request(sent()) };
        let cut = &service.embed_vectors(cut).await.unwrap().value[0];
        assert_eq!((cut.len(), cut[100], cut.iter().sum::<f32>()), (101, 1.0, 1.0));
        let similar = SimilarityRequest {
            source_sentence: "w100".to_owned(),
            sentences: vec!["w101".to_owned()],
            encoding: EmbedEncoding::default(),
        };
        let errors = [
            service.embed_vectors(EmbedRequest { normalize: true, ..request(sent()) }).await.err(),
            service.embed(request(sent()), Wanted::TOKENS).await.err(),
            service.similarity(similar).await.err(),
            service.embed(request(sent()), several).await.err(),
        ];
        let what = ["`normalize`", "`embed_all`", "`similarity`", "the output `dense`"];
        for (error, what) in errors.into_iter().zip(what) {
            let message = error.unwrap().to_string();
            assert_eq!(message, format!("Backend error: {what} is not available for SPLADE models"));
        }
    }

    #[tokio::test]
    async fn similarity_is_the_cosine_of_what_embed_gives() {
        let fixture = fixture(100);
        let sentences = ["w101", "w100 w200", "w100"].map(str::to_owned).to_vec();
        let request = SimilarityRequest {
            source_sentence: "w100".to_owned(),
            sentences: sentences.clone(),
            encoding: named("query"),
        };
        let answer = fixture.service.similarity(request.clone()).await.unwrap().value;
        let vector = |text: &str| unit(&fixture.values(&Input::Text { prompt: "w700 w701 ", text }));
        let source = vector("w100");
        let cosine = |text: &String| vector(text).iter().zip(&source).map(|(a, b)| a * b).sum::<f64>();
        assert_close(&answer, &sentences.iter().map(cosine).collect::<Vec<_>>());
        assert!((answer[2] - 1.0).abs() <= f32::EPSILON && answer.iter().all(|cosine| cosine.abs() <= 1.0));

        let of = |sentences| SimilarityRequest { sentences, ..request.clone() };
        let empty = Err(Error::Empty { field: "inputs.sentences" });
        assert_eq!(fixture.service.similarity(of(vec![])).await, empty);
        let four = vec!["w1".to_owned(); 4];
        let too_many = Err(Error::BatchTooLarge { got: 5, max: 4 });
        assert_eq!(
            fixture.service.similarity(of(four)).await,
            too_many,
            "the source sentence is one of them"
        );
        let three = vec!["w1".to_owned(); 3];
        assert_eq!(fixture.service.similarity(of(three)).await.unwrap().value.len(), 3);
        let second = of(vec!["w1".to_owned(), String::new()]);
        let empty = Error::EmptyInput { field: "inputs" };
        assert_eq!(fixture.service.similarity(second).await, Err(empty.clone().of_input(1)));
        let source = SimilarityRequest { source_sentence: String::new(), ..request };
        assert_eq!(fixture.service.similarity(source).await, Err(empty));
    }

    #[tokio::test]
    async fn what_cannot_be_embedded_is_refused() {
        let fixture = fixture(100);
        let ids = |ids: &[u32]| vec![EmbedInput::Ids(ids.to_vec())];
        let validation = |text: &str| Error::Validation(text.to_owned());
        let long = "w300 ".repeat(MAX_INPUT_LENGTH);
        let strict = EmbedEncoding { truncate: Some(false), ..EmbedEncoding::default() };
        let unknown = "`default-prompt-name` is set to `nope` but it was not found in the Sentence Transformers prompts. Available prompts: [\"document\", \"query\"]. The name is the request's `prompt_name`";
        let empty = Error::EmptyInput { field: "inputs" };
        let table = [
            (vec![], EmbedEncoding::default(), Error::Empty { field: "inputs" }),
            (texts(&["w100"; 5]), named("nope"), Error::BatchTooLarge { got: 5, max: 4 }),
            (texts(&["w100"]), named("nope"), validation(unknown)),
            (ids(&[]), EmbedEncoding::default(), empty.clone()),
            (ids(&[]), named("query"), empty.clone()),
            (texts(&[""]), EmbedEncoding::default(), empty.clone()),
            (texts(&["w100", ""]), named("query"), empty.of_input(1)),
            (
                ids(&[5, 1001]),
                EmbedEncoding::default(),
                validation("`inputs` holds the token id 1001, but the ids of this model are below 1001"),
            ),
            (
                texts(&["w100", &long]),
                strict.clone(),
                Error::TooLong { got: MAX_INPUT_LENGTH + 1, max: MAX_INPUT_LENGTH }.of_input(1),
            ),
            (ids(&[5; 401]), strict, Error::TooLong { got: 401, max: 400 }),
            (texts(&["w100", "nan"]), EmbedEncoding::default(), Error::MissingValues),
        ];
        for (inputs, encoding, expected) in table {
            let request = EmbedRequest { encoding, ..request(inputs) };
            assert_eq!(fixture.service.embed(request.clone(), Wanted::TOKENS).await, Err(expected.clone()));
            assert_eq!(fixture.service.embed_vectors(request).await, Err(expected));
        }
        let cut = fixture.service.embed_vectors(request(texts(&[&long]))).await.unwrap().cost;
        assert_eq!((cut.tokens, cut.truncated), (MAX_INPUT_LENGTH, 1));
    }

    #[test]
    fn each_embedded_text_is_counted_and_measured_once() {
        let fixture = fixture(100);
        let sentences = vec!["w1".to_owned(), "w2".to_owned()];
        let similar = || SimilarityRequest {
            source_sentence: "w100".to_owned(),
            sentences: sentences.clone(),
            encoding: EmbedEncoding::default(),
        };
        let all = || EmbedRequest {
            inputs: EmbedInputs::single(EmbedInput::Text("w100".to_owned())),
            ..request(Vec::new())
        };
        let (one, two) = (|| request(texts(&["w100"])), || request(texts(&["w100", "w6"])));
        let runs: [(&str, usize, &dyn Fn()); 4] = [
            ("batch", 2, &|| _ = block_on(fixture.service.embed_vectors(two())).unwrap()),
            ("batch", 1, &|| _ = block_on(fixture.service.embed_vectors(one())).unwrap()),
            ("single", 1, &|| _ = block_on(fixture.service.embed(all(), Wanted::TOKENS)).unwrap()),
            ("batch", 3, &|| _ = block_on(fixture.service.similarity(similar())).unwrap()),
        ];
        for (method, texts, run) in runs {
            let moved = recorded(run);
            assert_eq!(moved[&format!("te_request_count{{method=\"{method}\"}}")], [1.0]);
            assert_eq!(moved[&format!("te_request_success{{method=\"{method}\"}}")], [1.0]);
            assert_eq!(
                (&moved["te_embed_count"], &moved["te_embed_success"]),
                (&vec![texts as f64], &vec![texts as f64])
            );
            for step in ["", "_tokenization", "_queue", "_inference"] {
                assert_eq!(moved[&format!("te_embed{step}_duration")].len(), texts);
                assert_eq!(moved[&format!("te_request{step}_duration")].len(), 1);
            }
            assert!(!moved.keys().any(|name| name.starts_with("te_predict")), "{moved:?}");
        }
    }

    #[test]
    fn each_text_of_a_failed_batch_and_each_without_values_is_counted_as_a_failure() {
        let fixture = fixture(10_000);
        for (inputs, label, failures) in [
            (&["w1", "fail", "w2"][..], "inference", 3.0),
            (&["w1", "nan", "w2", "nan"], "missing_values", 2.0),
        ] {
            let moved = recorded(|| {
                block_on(fixture.service.embed_vectors(request(texts(inputs)))).unwrap_err();
            });
            assert_eq!(moved["te_request_count{method=\"batch\"}"], [1.0], "{label}");
            assert_eq!(moved[&format!("te_request_failure{{err=\"{label}\"}}")], [failures], "{moved:?}");
            assert_eq!(moved["te_embed_count"], [inputs.len() as f64], "{label}");
            assert!(!moved.keys().any(|name| name.starts_with("te_request_success")), "{moved:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_could_not_be_sent_is_not_computed() {
        let text = EmbedInput::Text("w100 w101 w102".to_owned());
        let inputs = |count| EmbedInputs::batch(vec![text.clone(); count]);
        let encoding = EmbedEncoding::default();
        let request = |count| EmbedRequest {
            inputs: inputs(count),
            encoding: encoding.clone(),
            normalize: false,
            dimensions: None,
        };
        let fixture = embedding_fixture(1000, |config| config.max_answer_values = 3 * 4 * WIDTH);
        let tokens = Wanted { tokens: true, ..Wanted::default() };
        // Each text has four tokens.
        assert_eq!(fixture.service.embed(request(3), tokens).await.unwrap().value.len(), 3);
        let error = fixture.service.embed(request(4), tokens).await.unwrap_err().to_string();
        assert!(error.contains("more than 84 values") && error.contains("`--max-unsent-bytes`"), "{error}");
        let small = embedding_fixture(1000, |config| config.max_answer_values = 3 * WIDTH);
        assert!(small.service.embed_vectors(request(3)).await.is_ok());
        assert_eq!(small.control.batch_sizes(), [3]);
        let error = small.service.embed_vectors(request(4)).await.unwrap_err().to_string();
        assert!(error.contains("more than 21 values"), "{error}");
        assert_eq!(small.control.batch_sizes(), [3], "it is refused before it is computed");
        let cut = EmbedRequest { dimensions: Some(5), ..request(4) };
        assert!(small.service.embed_vectors(cut).await.is_ok());
    }
}

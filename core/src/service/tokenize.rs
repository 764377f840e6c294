//! Encodes texts to tokens, and decodes tokens to texts.
//!
//! Input: texts or ids. Output: tokens with their place in the text, or texts. What must hold: offsets count
//! bytes of the text that the client sent, with an embedding model's prompt before it, and lie between
//! characters; requests take a permit like all others, so that waiting work is bounded.

use super::{
    Service,
    request::{Failed, check_length, method},
};
use crate::{
    error::Error,
    infer::Permit,
    metrics::TOKENIZER_REQUESTS,
    tokenization::{Encoder, LARGE_TEXT},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokenizers::{Encoding, Tokenizer};
use tokio::sync::oneshot;

/// The most tokens of an answer, which is about 35 MB of JSON. A token takes some 70 bytes there, even if its
/// text is short. Without a limit, the answer to a body of digits would be 60 times its size.
const MAX_TOKENS_SHOWN: usize = 500_000;

/// Texts to tokenize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizeRequest {
    /// The texts. Neither the list nor a text may be empty.
    pub inputs: Vec<String>,
    /// Whether the client sent a list, even of a single text.
    pub is_batch: bool,
    /// Whether the tokenizer's post-processor adds its special tokens.
    pub add_special_tokens: bool,
    /// The name of the prompt of an embedding model that is put before each text. If absent, the server's
    /// default applies.
    pub prompt_name: Option<String>,
}

/// A token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The part of the text that it stands for, or its own name if it is special.
    pub text: String,
    /// Whether it is a special token.
    pub special: bool,
    /// The byte offset of its first character in the text; absent for special tokens.
    pub start: Option<usize>,
    /// The byte offset after its last character; absent for special tokens.
    pub stop: Option<usize>,
}

/// Ids to turn into text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeRequest {
    /// The ids of each text. Neither the list nor one of its lists may be empty.
    pub ids: Vec<Vec<u32>>,
    /// Whether the client sent a list of lists, even of a single list.
    pub is_batch: bool,
    /// Whether to leave out special tokens.
    pub skip_special_tokens: bool,
}

impl Service {
    /// The tokens of each text, without the template.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] without inputs; [`Error::BatchTooLarge`] for too many; [`Error::EmptyInput`] for an
    /// empty input; [`Error::TooManyCharacters`] for an input that is too long; [`Error::Validation`] for an
    /// unknown prompt, and for more tokens than an answer may hold; [`Error::Overloaded`] without a free
    /// permit; [`Error::Tokenizer`] if an input cannot be encoded.
    pub async fn tokenize(&self, request: TokenizeRequest) -> Result<Vec<Vec<Token>>, Error> {
        self.tokenize_up_to(request, MAX_TOKENS_SHOWN).await
    }

    async fn tokenize_up_to(
        &self,
        request: TokenizeRequest,
        max_tokens: usize,
    ) -> Result<Vec<Vec<Token>>, Error> {
        let TokenizeRequest { inputs, is_batch, add_special_tokens, prompt_name } = request;
        self.model_metrics()
            .counted(TOKENIZER_REQUESTS, method(is_batch), async move {
                check_length("inputs", inputs.len(), self.config.max_client_batch_size)?;
                check_each(&inputs, |text| match text.as_str() {
                    "" => Err(Error::EmptyInput { field: "inputs" }),
                    text => self.tokenization.encoder().check_characters(text.chars().count()),
                })?;
                let prompt = self.prompt(prompt_name.as_deref());
                let prompt = prompt.map_err(|error| Failed::on_the_way_to_tokens(error, inputs.len()))?;
                let prompt = prompt.unwrap_or_default();
                let texts = inputs.iter().map(|text| [prompt, text].concat()).collect();
                let left = Arc::new(AtomicUsize::new(max_tokens));
                self.map(texts, String::len, move |encoder, text| {
                    // To be refused, a large text need not be encoded whole.
                    if text.len() > LARGE_TEXT && encoder.count_tokens(&text)? > max_tokens {
                        return Err(too_many_tokens(max_tokens));
                    }
                    let encoding = encode(encoder.tokenizer(), &text, add_special_tokens)?;
                    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(encoding.len())
                    });
                    taken.map_err(|_| too_many_tokens(max_tokens))?;
                    Ok(tokens(&encoding, &text))
                })
                .await
            })
            .await
    }

    /// The text of each list of ids.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] without lists; [`Error::BatchTooLarge`] for too many; [`Error::EmptyInput`] for an
    /// empty list; [`Error::Validation`] for an id that the tokenizer does not have; [`Error::Overloaded`]
    /// without a free permit; [`Error::Tokenizer`] if a list cannot be decoded.
    pub async fn decode(&self, request: DecodeRequest) -> Result<Vec<String>, Error> {
        let DecodeRequest { ids, is_batch, skip_special_tokens } = request;
        self.model_metrics()
            .counted(TOKENIZER_REQUESTS, method(is_batch), async move {
                check_length("ids", ids.len(), self.config.max_client_batch_size)?;
                check_each(&ids, |ids| match ids.len() {
                    0 => Err(Error::EmptyInput { field: "input_ids" }),
                    _ => Ok(()),
                })?;
                let decode = move |encoder: &Encoder, ids: Vec<u32>| {
                    let tokenizer = encoder.tokenizer();
                    // The tokenizer would leave it out silently.
                    if let Some(id) = ids.iter().find(|id| tokenizer.id_to_token(**id).is_none()) {
                        return Err(Error::Validation(format!(
                            "`ids` holds the token id {id}, which this model's tokenizer does not have"
                        )));
                    }
                    tokenizer
                        .decode(&ids, skip_special_tokens)
                        .map_err(|error| Error::Tokenizer(error.to_string()))
                };
                self.map(ids, |ids| size_of_val(ids.as_slice()), decode).await
            })
            .await
    }

    /// Runs `job` for each input on the tokenizer's threads. `bytes` gives the length of an input.
    pub(super) async fn map<I: Send + 'static, O: Send + 'static>(
        &self,
        inputs: Vec<I>,
        bytes: impl Fn(&I) -> usize,
        job: impl Fn(&Encoder, I) -> Result<O, Error> + Clone + Send + 'static,
    ) -> Result<Vec<O>, Failed> {
        // This does not use the device. A token is hardly ever shorter than a byte.
        let permit = Arc::new(self.permit(inputs.iter().map(&bytes).sum()).await?);
        Ok(self.map_admitted(&permit, inputs, bytes, job).await?)
    }

    /// As [`Self::map`], for a request that has its permit. Each input has a copy of `permit` until its
    /// output is there, so that the permit of an abandoned request covers the inputs that still wait in
    /// the line.
    pub(super) async fn map_admitted<I: Send + 'static, O: Send + 'static>(
        &self,
        permit: &Arc<Permit>,
        inputs: Vec<I>,
        bytes: impl Fn(&I) -> usize,
        job: impl Fn(&Encoder, I) -> Result<O, Error> + Clone + Send + 'static,
    ) -> Result<Vec<O>, Error> {
        let place = self.tokenization.place(inputs.iter().map(&bytes).sum());
        let mut answers = Vec::with_capacity(inputs.len());
        for input in inputs {
            let (reply, answer) = oneshot::channel();
            let (job, permit) = (job.clone(), Arc::clone(permit));
            self.tokenization.run(place, bytes(&input), move |encoder: &Encoder| {
                // A closed receiver means that the request was abandoned.
                if !reply.is_closed() {
                    let output = job(encoder, input);
                    drop(permit);
                    let _ = reply.send(output);
                }
            });
            answers.push(answer);
        }
        let mut outputs = Vec::with_capacity(answers.len());
        for answer in answers {
            outputs.push(answer.await.map_err(|_| Error::Tokenizer("the tokenizer failed".to_owned()))??);
        }
        Ok(outputs)
    }
}

fn too_many_tokens(max: usize) -> Error {
    Error::Validation(format!("`inputs` must have at most {max} tokens in all: send fewer or shorter texts"))
}

/// Refuses inputs if any of them fails `check`, with the error of the first failure.
fn check_each<I>(inputs: &[I], check: impl Fn(&I) -> Result<(), Error>) -> Result<(), Failed> {
    let mut errors = inputs.iter().filter_map(|input| check(input).err());
    match errors.next() {
        None => Ok(()),
        Some(error) => Err(Failed::on_the_way_to_tokens(error, 1 + errors.count())),
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, add_special_tokens: bool) -> Result<Encoding, Error> {
    tokenizer
        .encode_char_offsets(text, add_special_tokens)
        .map_err(|error| Error::Tokenizer(error.to_string()))
}

fn tokens(encoding: &Encoding, text: &str) -> Vec<Token> {
    let bytes: Vec<usize> = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
    (0..encoding.len())
        .map(|index| {
            let id = encoding.get_ids()[index];
            if encoding.get_special_tokens_mask()[index] == 1 {
                let name = encoding.get_tokens()[index].clone();
                return Token { id, text: name, special: true, start: None, stop: None };
            }
            let (start, stop) = encoding.get_offsets()[index];
            let (start, stop) = (bytes[start], bytes[stop]);
            let text = text[start..stop].to_owned();
            Token { id, text, special: false, start: Some(start), stop: Some(stop) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        infer::EngineLimits,
        metrics::testing::recorded,
        service::{
            ServiceConfig,
            testing::{
                CLS, MAX_INPUT_LENGTH, block_on, embedder, embedding_fixture, fixture, fixture_of_limits,
                fixture_with_permits, limits,
            },
        },
    };

    fn token(id: u32, text: &str, place: Option<(usize, usize)>) -> Token {
        let (start, stop) = place.unzip();
        Token { id, text: text.to_owned(), special: place.is_none(), start, stop }
    }

    #[tokio::test]
    async fn tokens_carry_their_place_in_bytes() {
        let service = fixture(100).service;
        let inputs: Vec<String> = ["행성 w100  w101", " ", "🦀🦀 w102"].map(str::to_owned).to_vec();
        let request =
            TokenizeRequest { inputs, is_batch: true, add_special_tokens: false, prompt_name: None };
        let wanted = vec![
            vec![
                token(5, "행성", Some((0, 6))),
                token(100, "w100", Some((7, 11))),
                token(101, "w101", Some((13, 17))),
            ],
            vec![],
            vec![token(0, "🦀🦀", Some((0, 8))), token(102, "w102", Some((9, 13)))],
        ];
        assert_eq!(service.tokenize(request.clone()).await.unwrap(), wanted);

        let special =
            service.tokenize(TokenizeRequest { add_special_tokens: true, ..request }).await.unwrap();
        for (special, plain) in special.iter().zip(wanted) {
            assert_eq!(special[0], token(CLS, "[CLS]", None));
            assert_eq!(special[1..], plain);
        }
    }

    #[tokio::test]
    async fn a_prompt_is_tokenized_with_the_text_and_its_bytes_count() {
        let change = |config: &mut ServiceConfig| embedder(config).prompts.default = "행성 ".to_owned();
        let service = embedding_fixture(100, change).service;
        let text = |start| token(100, "w100", Some((start, start + 4)));
        let prompt = [token(700, "w700", Some((0, 4))), token(701, "w701", Some((5, 9)))];
        for (prompt_name, wanted) in [
            (None, vec![token(5, "행성", Some((0, 6))), text(7)]),
            (Some("query"), [&prompt[..], &[text(10)]].concat()),
            (Some("document"), vec![text(0)]),
        ] {
            let request = TokenizeRequest {
                inputs: vec!["w100".to_owned()],
                is_batch: false,
                add_special_tokens: false,
                prompt_name: prompt_name.map(str::to_owned),
            };
            assert_eq!(service.tokenize(request).await.unwrap(), [wanted], "{prompt_name:?}");
        }
        for (service, known) in [
            (
                service,
                "it was not found in the Sentence Transformers prompts. Available prompts: [\"document\", \"query\"]",
            ),
            (fixture(100).service, "no prompts were found in the Sentence Transformers configuration"),
        ] {
            let request = TokenizeRequest {
                inputs: vec!["w100".to_owned()],
                is_batch: false,
                add_special_tokens: false,
                prompt_name: Some("x".to_owned()),
            };
            let message = service.tokenize(request).await.unwrap_err().to_string();
            let wanted = format!("Input validation error: `default-prompt-name` is set to `x` but {known}. ");
            assert!(message.starts_with(&wanted), "{message}");
        }
    }

    #[tokio::test]
    async fn ids_become_text_with_or_without_special_tokens() {
        let service = fixture(100).service;
        let ids = vec![vec![CLS, 100, 5], vec![101], vec![CLS]];
        for (skip_special_tokens, wanted) in
            [(true, ["w100 행성", "w101", ""]), (false, ["[CLS] w100 행성", "w101", "[CLS]"])]
        {
            let request = DecodeRequest { ids: ids.clone(), is_batch: true, skip_special_tokens };
            assert_eq!(service.decode(request).await.unwrap(), wanted);
        }
    }

    #[tokio::test]
    async fn bytes_that_are_tokenized_count_as_tokens_in_flight() {
        let service = fixture_of_limits(EngineLimits { max_queue_tokens: 10, ..limits(100, 9) }).service;
        let held = service.engine.try_acquire(4).unwrap();
        let tokenize = |text: &str| TokenizeRequest {
            inputs: vec![text.to_owned()],
            is_batch: false,
            add_special_tokens: false,
            prompt_name: None,
        };
        assert!(service.tokenize(tokenize("w10 w1")).await.is_ok());
        let refused = Err(Error::Overloaded { retry_after: 1 });
        assert_eq!(service.tokenize(tokenize("w10 w11")).await, refused);
        drop(held);
        assert!(service.tokenize(tokenize("w10 w11 w12")).await.is_ok(), "nothing else is in flight");
    }

    #[tokio::test]
    async fn a_patient_request_waits_for_a_permit() {
        let service = fixture_with_permits(100, 1).service;
        let held = service.permit(0).await.unwrap();
        let decode = DecodeRequest { ids: vec![vec![100]], is_batch: false, skip_special_tokens: true };
        assert_eq!(service.decode(decode.clone()).await, Err(Error::Overloaded { retry_after: 1 }));
        let release = async {
            drop(held);
            // The permit goes to the request that waits, not to a later one.
            service.decode(decode.clone()).await
        };
        let patient = service.patient();
        let (waited, impatient) = tokio::join!(patient.decode(decode.clone()), release);
        assert_eq!(
            (waited.unwrap(), impatient),
            (vec!["w100".to_owned()], Err(Error::Overloaded { retry_after: 1 }))
        );
    }

    #[tokio::test]
    async fn what_has_too_many_characters_is_refused_before_it_is_tokenized() {
        let service = fixture(100).service;
        let max = 250 * MAX_INPUT_LENGTH;
        let tokenize = |length| {
            let inputs = vec!["é".repeat(length)];
            let request =
                TokenizeRequest { inputs, is_batch: false, add_special_tokens: true, prompt_name: None };
            service.tokenize(request)
        };
        assert_eq!(tokenize(max).await.map(|texts| texts.len()), Ok(1));
        let refused = tokenize(max + 1).await.unwrap_err();
        assert_eq!(refused, Error::TooManyCharacters { got: max + 1, max });
        let message = format!(
            "Input validation error: `inputs` must have less than {max} characters. Given: {}; {max} fit",
            max + 1
        );
        assert_eq!(refused.to_string(), message);
    }

    #[tokio::test]
    async fn an_answer_holds_so_many_tokens_in_all() {
        let service = fixture(100).service;
        let tokenize = |texts: &[&str], max_tokens| {
            let inputs = texts.iter().map(|&text| text.to_owned()).collect();
            let request =
                TokenizeRequest { inputs, is_batch: true, add_special_tokens: false, prompt_name: None };
            service.tokenize_up_to(request, max_tokens)
        };
        for texts in [&["w1 w2 w3 w4"][..], &["w1 w2", "w3 w4"], &["w1", "w2", "w3", "w4"]] {
            assert_eq!(tokenize(texts, 4).await.unwrap().concat().len(), 4);
            let refused = tokenize(texts, 3).await.unwrap_err();
            assert!(matches!(&refused, Error::Validation(text) if text.contains("at most 3 tokens in all")));
        }
    }

    #[test]
    fn lists_and_texts_are_limited_and_counted_under_names_of_their_own() {
        let service = fixture(100).service;
        let tokenize = |inputs: &[&str], is_batch| {
            let inputs = inputs.iter().map(|&text| text.to_owned()).collect();
            let request = TokenizeRequest { inputs, is_batch, add_special_tokens: true, prompt_name: None };
            block_on(service.tokenize(request)).map(|texts| texts.len())
        };
        let decode = |ids: Vec<Vec<u32>>| {
            let request = DecodeRequest { ids, is_batch: true, skip_special_tokens: true };
            block_on(service.decode(request)).map(|texts| texts.len())
        };
        let five = Err(Error::BatchTooLarge { got: 5, max: 4 });
        let counts = recorded(|| {
            assert_eq!(tokenize(&[], true), Err(Error::Empty { field: "inputs" }));
            assert_eq!(tokenize(&["w100"], false), Ok(1));
            assert_eq!(tokenize(&["", "w100", ""], true), Err(Error::EmptyInput { field: "inputs" }));
            assert_eq!(tokenize(&["w100"; 5], true), five);
            assert_eq!(decode(vec![]), Err(Error::Empty { field: "ids" }));
            assert_eq!(decode(vec![vec![100]; 4]), Ok(4));
            assert_eq!(decode(vec![vec![100], vec![]]), Err(Error::EmptyInput { field: "input_ids" }));
            assert_eq!(decode(vec![vec![100]; 5]), five);
        });
        for (metric, wanted) in [
            ("te_tokenize_count{method=\"single\"}", 1.0),
            ("te_tokenize_count{method=\"batch\"}", 7.0),
            ("te_tokenize_success{method=\"single\"}", 1.0),
            ("te_tokenize_success{method=\"batch\"}", 1.0),
            ("te_request_failure{err=\"validation\"}", 2.0),
            ("te_request_failure{err=\"batch_size\"}", 2.0),
            ("te_request_failure{err=\"tokenization\"}", 3.0),
        ] {
            assert_eq!(counts[metric], [wanted], "{metric}");
        }
        assert_eq!(counts.len(), 7, "{counts:?}");
    }
}

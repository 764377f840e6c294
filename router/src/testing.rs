//! A server for tests: real engine, a byte-level tokenizer and a backend that counts letters.
//!
//! Input: flags; `--model-type` sets the kind of model (default: a generative re-ranker), and behind `--and`
//! come the flags of a further model. Output: a [`Running`] server. What must hold: a test can read every
//! expected number off the request. A prompt's raw score is its number of `Z`s less one. A text's vector, and
//! a classifier's logits, are its numbers of `Z`s, of `a`s and of tokens. A token's vector is the vector of
//! the text up to this token. A prompt with `#` fails, one with `%` scores NaN, and one with `$` loses the
//! device. [`Control`] can hold all prompts, let them fail, lose the device, let it run out of memory, or
//! hold the loads of models with `--idle-unload`.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use serde_json::json;
use text_embeddings_backend_core::{
    Backend, BackendError, Batch, Head, Output, Packing, Pool, Pooling, Predictions, TokenVectors, Wanted,
};
use text_embeddings_core::{
    families::QWEN3_RERANKER,
    infer::Engine,
    metrics::ModelMetrics,
    model::{
        CosineRanking, EmbeddingModel, InputLimits, Model, ModelKind, Prompts, Reading, RequestedType,
        Reranker,
    },
    service::Service,
    templates::PromptTemplate,
    tokenization::{Encoder, EncoderOptions, PromptEncoder, TextEncoder, TextOptions, Tokenization},
};
use text_embeddings_door::{Door, Stop};
use tokenizers::{Tokenizer, pre_tokenizers::byte_level::ByteLevel};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    args::Args,
    auth::ApiKeys,
    config::{ServerConfig, client_limits},
    current::CurrentModels,
    file_versions::FileVersions,
    info::{Computation, Info},
    machine::Machine,
    models::{Models, Served},
    residency::Tenant,
    serve::{Ended, serve},
    startup::flags::{engine_limits, service_config},
    state::AppState,
    telemetry::{self, metrics::Metrics, traces::Traces},
    transports::{CurrentApplications, Listeners, Transports},
};

/// Small limits, so that tests can exceed them.
const FLAGS: &str = "text-embeddings-router --model-id org/tiny-reranker --max-rerank-texts 8 --max-client-batch-size 4 \
                     --max-input-length 600 --tokenization-workers 2 --payload-limit 100000";

/// A server that listens, and what a test may do to it.
pub(crate) struct Running {
    pub(crate) control: Control,
    pub(crate) traces: Traces,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Ended>,
    /// As in the process, the end of serving does not wait for the models.
    _models: CurrentModels,
}

impl Running {
    /// Starts a server that waits no longer than `drain` for requests in flight.
    pub(crate) fn start(flags: &str, listeners: Listeners, drain: Duration) -> Self {
        let control = Control::default();
        let (stop, stopped) = oneshot::channel();
        let asked = async {
            let _ = stopped.await;
        };
        let stopped = Stop::on(asked, Duration::ZERO);
        let models: Vec<Args> = flags.split("--and").map(model_args).collect();
        let args = &models[0];
        let door = Door::new(client_limits(&args.door, args.payload_limit.get(), None).unwrap());
        let state = state(&models, &control, stopped, door.clone());
        let (traces, current, stopped) = (state.traces.clone(), state.current.clone(), state.stop.clone());
        let transports = Transports::resolve(args).unwrap();
        let applications =
            CurrentApplications::from_state(transports, &state, listeners.second.is_some()).unwrap();
        let ports = applications.open_ports(listeners);
        let models = current.clone();
        let served = tokio::spawn(async move { serve(&current, &stopped, ports, &door, drain).await });
        Self { control, traces, stop: Some(stop), served, _models: models }
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until the server has stopped, and says why it did.
    pub(crate) async fn ended(&mut self) -> Ended {
        tokio::time::timeout(Duration::from_secs(20), &mut self.served).await.unwrap().unwrap()
    }
}

impl Drop for Running {
    /// Whatever a failed test left held would keep the engine, and with it the process, from ending.
    fn drop(&mut self) {
        self.control.hold(false);
        self.control.hold_loads(false);
    }
}

/// The arguments of a model. `--alias NAME` stands for a further name, which only a models file can give.
fn model_args(flags: &str) -> Args {
    let (flags, alias) = flags.split_once("--alias").unwrap_or((flags, ""));
    let args = Args::try_from(FLAGS.split_whitespace().chain(flags.split_whitespace())).unwrap();
    Args { aliases: alias.split_whitespace().map(str::to_owned).collect(), ..args }
}

/// The state of a server with these models. The flags of the first are the server's.
fn state(models: &[Args], control: &Control, stop: Stop, door: Door) -> AppState {
    let args = &models[0];
    let server = ServerConfig::resolve(args).unwrap();
    let traces = Traces::start(server.collector.as_ref(), &args.otlp_service_name).unwrap();
    let models = models.iter().map(|args| Arc::new(served(args, control))).collect();
    let models = Models::new(models, &[], Vec::new()).unwrap();
    AppState {
        current: CurrentModels::from_models(models.clone(), 1, None).0,
        models,
        server: Arc::new(server),
        keys: ApiKeys::load(args.api_key.as_ref(), args.door.api_key_file.as_deref()).unwrap(),
        traces,
        metrics: Metrics::new(telemetry::metrics::builder().unwrap().build_recorder().handle(), door),
        stop,
    }
}

fn served(args: &Args, control: &Control) -> Served {
    let machine = Machine::from_args(args).unwrap();
    let model = model(args);
    let limits = engine_limits(args, &machine, &model, None);
    let config = service_config(args, model, 3, None);
    let info = Info {
        model_id: args.model_id.clone(),
        served_model_name: args.model_name().to_owned(),
        model_sha: None,
        config: config.clone(),
        limits,
        machine: machine.clone(),
        computation: Computation {
            backend: "candle",
            device: "cpu",
            dtype: "float32".to_owned(),
            arithmetic: "float32".to_owned(),
            weights: "model.safetensors".to_owned(),
            instruction_set: Some("portable".to_owned()),
            pinned_threads: args.model.pin_threads == Some(true),
            prefix_cache_bytes: args.model.prefix_cache_bytes,
        },
        cascade: None,
        prompt_hash: None,
    };
    let tokenizer = tokenizer();
    let backend = LetterBackend {
        is_reranker: config.model.reranker().is_some(),
        counted: ["Z", "a"].map(|letter| tokenizer.token_to_id(letter).unwrap()),
        failing: tokenizer.token_to_id("#").unwrap(),
        nan: tokenizer.token_to_id("%").unwrap(),
        control: control.clone(),
    };
    let again = backend.clone();
    let encoder = encoder(args, &config.model, tokenizer);
    let tokenization = Tokenization::start(encoder, machine.tokenization_workers).unwrap();
    let (backend, resident) = machine.residency.take_in(
        Box::new(backend),
        Tenant {
            name: args.model_name().to_owned(),
            weights: 0,
            promised: 0,
            idle_limit: args.model.idle_unload.0,
            load: Box::new(move || {
                again.control.wait_for_load();
                Ok(Box::new(again.clone()))
            }),
            metrics: ModelMetrics::default(),
        },
    );
    let engine = Engine::start(backend, limits, ModelMetrics::default()).unwrap();
    Served {
        service: Service::new(tokenization, engine, config),
        info,
        aliases: args.aliases.clone(),
        resident,
        summary: String::new(),
        versions: FileVersions::default(),
        max_payload: None,
    }
}

/// The model of the kind that the flags name.
fn model(args: &Args) -> Model {
    let labels = |labels: &[&str]| labels.iter().map(|&label| label.to_owned()).collect();
    let pool = Pool::LastToken;
    let (kind, head) = match args.model.model_type {
        Some(RequestedType::Embedding) => {
            let outputs = Wanted { whole: true, tokens: true, sparse: false };
            let prompts = Prompts::default();
            let model = EmbeddingModel {
                pool,
                outputs,
                prompts,
                empty_tokens: Vec::new(),
                last_token: None,
                bare_tokens: None,
                trained_lengths: vec![2],
                cosine_ranking: if args.no_cosine_rerank { None } else { Some(CosineRanking::default()) },
            };
            let head = Head::embedding(Pooling::Last, Vec::new());
            (ModelKind::Embedder(model), head)
        }
        Some(RequestedType::Classifier) => {
            (ModelKind::Classifier(labels(&["sleepy", "loud", "long"])), Head::classification(3))
        }
        requested => {
            let reranker = Reranker {
                is_generative: requested != Some(RequestedType::Reranker),
                reading: Reading::Template(PromptTemplate::builtin(&QWEN3_RERANKER)),
                labels: labels(&["yes"]),
                instruction: Some("Judge.".to_owned()),
                ..Reranker::default()
            };
            (ModelKind::Reranker(Box::new(reranker)), Head::classification(1))
        }
    };
    let max_input_length = args.model.max_input_length.unwrap().get();
    let limits = InputLimits { max_input_length, ..InputLimits::default() };
    Model { kind, reason: String::new(), head, limits }
}

fn encoder(args: &Args, model: &Model, tokenizer: Tokenizer) -> Encoder {
    let max_input_length = model.limits.max_input_length;
    let parse_special_tokens = args.model.parse_special_tokens;
    if let Some(Reranker { reading: Reading::Template(template), instruction, .. }) = model.reranker() {
        let options = EncoderOptions {
            default_instruction: instruction.clone(),
            max_input_length,
            parse_special_tokens,
            ..EncoderOptions::default()
        };
        return PromptEncoder::new(tokenizer, template, options).unwrap().into();
    }
    let vocabulary = tokenizer.get_vocab_size(true);
    let options =
        TextOptions { max_input_length, parse_special_tokens, vocabulary, ..TextOptions::default() };
    TextEncoder::new(tokenizer, options).unwrap().into()
}

/// Byte-level, a token for each byte, with the control tokens of Qwen's prompt.
fn tokenizer() -> Tokenizer {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let vocabulary: serde_json::Map<_, _> =
        alphabet.iter().enumerate().map(|(id, letter)| (letter.to_string(), json!(id))).collect();
    let added: Vec<_> = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
        .iter()
        .enumerate()
        .map(|(index, content)| {
            json!({ "id": vocabulary.len() + index, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": content.contains('|') })
        })
        .collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let file = json!({
        "version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "post_processor": byte_level,
        "decoder": byte_level, "model": { "type": "BPE", "vocab": vocabulary, "merges": [] }
    });
    file.to_string().parse().unwrap()
}

/// Controls the backend from a test while the engine owns it.
#[derive(Clone, Default)]
pub(crate) struct Control(Arc<(Mutex<Mood>, Condvar)>);

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "a test may want any of them")]
struct Mood {
    held: bool,
    loads_held: bool,
    broken: bool,
    /// Whether the device of the re-rankers is lost.
    lost: bool,
    /// The unique tokens of the largest batch that fits the device's memory; any number if absent.
    room: Option<usize>,
    batches: usize,
}

impl Control {
    /// Holds every batch until released.
    pub(crate) fn hold(&self, held: bool) {
        self.change(|mood| mood.held = held);
    }

    /// Holds every load until released.
    pub(crate) fn hold_loads(&self, held: bool) {
        self.change(|mood| mood.loads_held = held);
    }

    fn wait_for_load(&self) {
        let (mood, changed) = &*self.0;
        let _released = changed.wait_while(mood.lock().unwrap(), |mood| mood.loads_held).unwrap();
    }

    /// Lets every batch fail.
    pub(crate) fn break_all(&self, broken: bool) {
        self.change(|mood| mood.broken = broken);
    }

    /// Waits until the backend got `count` batches.
    pub(crate) async fn batches(&self, count: usize) {
        while self.seen() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// From the next batch on the device of the re-rankers is lost.
    pub(crate) fn lose_device(&self) {
        self.change(|mood| mood.lost = true);
    }

    /// From now on a batch of more unique tokens does not fit the device's memory.
    pub(crate) fn leave_room_for(&self, tokens: usize) {
        self.change(|mood| mood.room = Some(tokens));
    }

    /// How many batches the backend got.
    pub(crate) fn seen(&self) -> usize {
        self.0.0.lock().unwrap().batches
    }

    fn change(&self, change: impl FnOnce(&mut Mood)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }
}

#[derive(Clone)]
struct LetterBackend {
    is_reranker: bool,
    counted: [u32; 2],
    failing: u32,
    nan: u32,
    control: Control,
}

impl LetterBackend {
    fn values(&self, ids: &[u32]) -> Vec<f32> {
        if ids.contains(&self.nan) {
            return vec![f32::NAN; if self.is_reranker { 1 } else { 3 }];
        }
        let counts = self.counted.map(|counted| ids.iter().filter(|id| **id == counted).count() as f32);
        if self.is_reranker { vec![counts[0] - 1.0] } else { vec![counts[0], counts[1], ids.len() as f32] }
    }
}

impl LetterBackend {
    fn output(&self, ids: &[u32], wanted: Wanted) -> Output {
        let mut output = Output::default();
        if wanted.whole {
            output.whole = self.values(ids);
        }
        if wanted.tokens {
            let rows: Vec<Vec<f32>> = (1..=ids.len()).map(|end| self.values(&ids[..end])).collect();
            output.tokens = TokenVectors { values: rows.concat(), width: rows[0].len() };
        }
        output
    }
}

impl Backend for LetterBackend {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        self.control.change(|mood| mood.batches += 1);
        let (mood, changed) = &*self.control.0;
        let (broken, lost, room) = {
            let mood = changed.wait_while(mood.lock().unwrap(), |mood| mood.held).unwrap();
            (mood.broken, mood.lost, mood.room)
        };
        if lost && self.is_reranker {
            return Err(BackendError::DeviceLost("the test wants it".to_owned()));
        }
        if room.is_some_and(|room| batch.token_ids().len() > room) {
            return Err(BackendError::OutOfMemory("the test wants it".to_owned()));
        }
        if broken || batch.token_ids().contains(&self.failing) {
            return Err(BackendError::Inference("the test wants it".to_owned()));
        }
        let output = |(text, wanted): (usize, &Wanted)| {
            let ids: Vec<u32> = batch.rows_of(text).map(|row| batch.token_ids()[row]).collect();
            self.output(&ids, *wanted)
        };
        let texts = batch.wanted().iter().enumerate().map(output).collect();
        Ok(Predictions { texts, ..Predictions::default() })
    }

    fn batch_bytes(&self, _tokens: usize) -> usize {
        0
    }

    fn packing(&self) -> Packing {
        Packing::SHARED
    }
}

/// Compares a checked-in document, named from the repository's root, with the document that the code makes.
/// With the variable `UPDATE_DOCS=1` it writes the document instead.
pub(crate) fn check_document(name: &str, content: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        std::fs::write(&path, content).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == content, "{name} is stale: run `make docs`");
}

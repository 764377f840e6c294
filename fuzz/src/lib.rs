//! The fuzz targets: each function feeds arbitrary bytes to one parser.
//!
//! Input: bytes from a fuzzer, or from `router/tests/fuzzing.rs`, which runs the same functions on changed
//! seeds with stable Rust. Output: none. What must hold: no function panics, hangs or takes gigabytes,
//! whatever the bytes are. An error is a good result.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use text_embeddings_backend::{
    AnswerTokens, BackendError, BackendKind, BatchBuilder, Description, Head, LoadOptions, Text, Wanted,
    WeightChoices, describe, load,
};
use text_embeddings_backend_core::{Packing, Pooling, read_graph};
use text_embeddings_core::files::{ModelFolder, Reader};
use text_embeddings_core::guard::resident;
use text_embeddings_core::templates::{MessageStyle, PromptTemplate};
use text_embeddings_core::tokenization::{
    Encoder, EncoderOptions, Input, PairText, PromptEncoder, SharedQuery, TextEncoder, TextOptions,
    TokenLimits, Truncation, TruncationDirection, load_tokenizer,
};

/// The folder of a small re-ranker. Both packages that compile this file are one level below the root of the
/// repository.
const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures/models/tied-bf16");
/// The longest time to wait for work that a guard left: less than the fuzzer's own limit for an input.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The longest input of [`truncation`], in tokens.
const MAX_TOKENS: usize = 160;

/// A model folder with the small re-ranker's files. A target replaces one of them. Each thread has its own,
/// which goes when the thread ends; a static one would stay on the disk.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        copy(Path::new(MODEL), folder.path());
        Self(folder)
    }

    fn write(&self, file: &str, content: &[u8]) -> PathBuf {
        std::fs::write(self.0.path().join(file), content).expect("a file");
        self.0.path().to_owned()
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the fixtures") {
        let entry = entry.expect("an entry").path();
        let to = to.join(entry.file_name().expect("a name"));
        if entry.is_dir() {
            std::fs::create_dir_all(&to).expect("a folder");
            copy(&entry, &to);
        } else {
            std::fs::copy(&entry, &to).expect("a copy");
        }
    }
}

/// A chat template.
pub fn template(data: &[u8]) {
    let source = String::from_utf8_lossy(data);
    if let Ok(template) = PromptTemplate::from_chat_template(&source, &MessageStyle::plain()) {
        // A template that was learned has places for both texts.
        let shown = template.render("instruction", "query", "document");
        assert!(shown.contains("query") && shown.contains("document"), "{source}");
    }
    wait_for_left_work();
}

/// Waits for templates and tokenizers that took more time or memory than they may. Their threads go on until
/// the process ends: the server ends at once, but here they would add up over the inputs.
fn wait_for_left_work() {
    const HELD: u64 = 512 << 20;
    let is_guarded = |thread: PathBuf| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "guarded")
    };
    let goes_on = || {
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        threads.map(|thread| thread.path()).any(is_guarded)
    };
    let start = Instant::now();
    while resident().is_some_and(|bytes| bytes > HELD) && goes_on() && start.elapsed() < MAX_WAIT {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A `tokenizer.json`, and a text encoded and decoded with it.
pub fn tokenizer(data: &[u8]) {
    thread_local!(static FOLDER: Folder = Folder::new());
    let path = FOLDER.with(|folder| folder.write("tokenizer.json", data)).join("tokenizer.json");
    let Ok(tokenizer) = load_tokenizer(path.as_path()) else { return };
    let decoder = tokenizer.clone();
    let options = TextOptions { max_input_length: MAX_TOKENS, vocabulary: 1000, ..TextOptions::default() };
    let Ok(encoder) = TextEncoder::new(tokenizer, options) else { return };
    let text = Input::Text { prompt: "", text: "The capital of China is Beijing. 정\u{301}!" };
    // As in the server's tokenizer threads, a panic in the library costs the request and not the process.
    let encoded = std::panic::catch_unwind(|| Encoder::from(encoder).encode(&text, truncated(), None));
    if let Ok(Ok(encoded)) = encoded {
        assert!(encoded.ids.len() <= MAX_TOKENS);
        drop(std::panic::catch_unwind(|| decoder.decode(&encoded.ids, false)));
    }
}

/// One file of a model's folder. The first byte chooses the file, the others are its content.
pub fn folder(data: &[u8]) {
    const FILES: [&str; 9] = [
        "config.json",
        "tokenizer_config.json",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_LogitScore/config.json",
        "chat_template.jinja",
        "model.safetensors",
        "model.safetensors.index.json",
    ];
    thread_local!(static FOLDER: Folder = Folder::new());
    let Some((which, content)) = data.split_first() else { return };
    let file = FILES[usize::from(*which) % FILES.len()];
    let root = FOLDER.with(|folder| folder.write(file, content));
    drop(ModelFolder::open(&root, &Reader::default(), &native));
    // The next input finds the other files as they were.
    match std::fs::read(Path::new(MODEL).join(file)) {
        Ok(original) => drop(FOLDER.with(|folder| folder.write(file, &original))),
        Err(_) => std::fs::remove_file(root.join(file)).expect("the file that was written"),
    }
}

/// A `model.safetensors`, loaded if it is accepted. Bytes that begin like JSON are the header only: its
/// length and the data that it promises are added, so that a changed header is read beyond its first bytes.
/// Its metadata may hold the model's `quantization_config`.
pub fn weights(data: &[u8]) {
    thread_local!(static FOLDER: Folder = Folder::new());
    let content = if data.starts_with(b"{") { &with_data(data) } else { data };
    let root = FOLDER.with(|folder| folder.write("model.safetensors", content));
    let Ok(folder) = ModelFolder::open(&root, &Reader::default(), &native) else { return };
    let mut config = folder.config.raw;
    let header: Value = serde_json::from_slice(data).unwrap_or_default();
    if let Some(scheme) = header["__metadata__"]["quantization_config"].as_str() {
        config["quantization_config"] = serde_json::from_str(scheme).unwrap_or_default();
    }
    drop(load(&LoadOptions {
        max_input_length: MAX_TOKENS,
        ..LoadOptions::new(config, folder.weights, Head::answers(AnswerTokens::difference(1, Some(2))))
    }));
}

/// A safetensors file with this header, and as many bytes of data as it promises, if these are not too many.
fn with_data(header: &[u8]) -> Vec<u8> {
    const MAX_DATA: u64 = 1 << 20;
    let parsed: Value = serde_json::from_slice(header).unwrap_or_default();
    let tensors = parsed.as_object().into_iter().flat_map(|tensors| tensors.values());
    let end = tensors.filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max().unwrap_or_default();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    // In each floating-point format, small numbers; equal rows would be refused.
    file.extend(
        (0..end.min(MAX_DATA)).map(|place| if place % 2 == 1 { 0x3c } else { (place / 2 % 251) as u8 }),
    );
    file
}

/// An ONNX file, whose names and types this server reads itself. The result is no larger than the file.
pub fn onnx(data: &[u8]) {
    if let Ok(graph) = read_graph(Cursor::new(data)) {
        let names = graph.outputs.iter().chain(&graph.values).map(String::len).sum::<usize>();
        // A name that is not UTF-8 becomes up to three times as long.
        assert!(names <= 3 * data.len());
    }
}

/// A `pytorch_model.bin`. Each tensor that is accepted is read.
pub fn pickle(data: &[u8]) {
    thread_local!(static FOLDER: TempDir = tempfile::tempdir().expect("a folder"));
    FOLDER.with(|folder| read_all(&folder.path().join("pytorch_model.bin"), data));
}

/// A GGUF file: its tensors, and the model folder made from it, which is loaded if it is accepted.
pub fn gguf(data: &[u8]) {
    thread_local!(static FOLDER: TempDir = tempfile::tempdir().expect("a folder"));
    let root = FOLDER.with(|folder| folder.path().to_owned());
    read_all(&root.join("model.gguf"), data);
    let Ok(folder) = ModelFolder::open(&root, &Reader::default(), &native) else { return };
    drop(load_tokenizer(folder.tokenizer));
    drop(load(&LoadOptions {
        max_input_length: MAX_TOKENS,
        ..LoadOptions::new(folder.config.raw, folder.weights, Head::embedding(Pooling::Mean, Vec::new()))
    }));
}

/// Reads all tensors of a checkpoint file with this content.
fn read_all(path: &Path, content: &[u8]) {
    std::fs::write(path, content).expect("a file");
    let Ok(checkpoint) = text_embeddings_checkpoint::open(path) else { return };
    for (name, tensor) in checkpoint.tensors {
        // The values of a tensor take no more memory than its storage, widened.
        let most = content.len() * 16;
        assert!(
            tensor.rows() * tensor.columns() <= most || name == "lm_head.weight",
            "{name}: {:?}",
            tensor.shape()
        );
        if tensor.rows() * tensor.columns() <= most {
            drop(tensor.read(&name, 0..tensor.rows()));
        }
    }
}

/// Describes a `config.json` for the backend that loads the folder.
fn native(config: &Value) -> Result<Description, BackendError> {
    describe(config, &WeightChoices::default(), BackendKind::Candle)
}

/// A `config.json`, for each backend. Bytes that do not begin like JSON are changes to one of the seeds.
pub fn configuration(data: &[u8]) {
    let config = if data.starts_with(b"{") { serde_json::from_slice(data).ok() } else { changed(data) };
    let Some(config) = config else { return };
    for backend in BackendKind::ALL {
        drop(describe(&config, &WeightChoices::default(), backend));
    }
}

/// One of the seeds of [`configuration`], some of whose fields have other values. The first byte chooses the
/// seed, and each further pair of bytes a field of any seed and its value.
fn changed(data: &[u8]) -> Option<Value> {
    static SEEDS: LazyLock<Vec<Value>> = LazyLock::new(|| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds/configuration");
        let entries =
            std::fs::read_dir(folder).expect("the seeds").map(|entry| entry.expect("a seed").path());
        let mut files: Vec<PathBuf> = entries.collect();
        files.sort();
        let read = |file: &PathBuf| serde_json::from_slice(&std::fs::read(file).expect("a seed")).ok();
        files.iter().filter_map(read).filter(Value::is_object).collect()
    });
    static FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        SEEDS.iter().filter_map(Value::as_object).flat_map(|seed| seed.keys().cloned()).collect()
    });
    let (which, changes) = data.split_first()?;
    let mut config = SEEDS[usize::from(*which) % SEEDS.len()].clone();
    for change in changes.chunks_exact(2) {
        let [field, value] = [usize::from(change[0]), usize::from(change[1])];
        let field = FIELDS.iter().nth(field % FIELDS.len())?;
        let value = match value {
            0 => json!(0),
            1 => json!(1),
            2 => json!(-1),
            3 => json!(7),
            4 => json!(u32::MAX),
            5 => json!(u64::MAX),
            6 => json!(i64::MAX),
            7 => json!(1e308),
            8 => json!(0.5),
            9 => json!(""),
            10 => json!([]),
            11 => json!({}),
            12 => json!(true),
            13 => json!([1, 2, 3]),
            14 => json!({"rope_type": "yarn", "factor": 0.0, "original_max_position_embeddings": 0}),
            15 => json!({"full_attention": null, "sliding_attention": {}}),
            // Absent in most seeds, which is null here.
            value => SEEDS[value % SEEDS.len()][field].clone(),
        };
        config[field] = value;
    }
    Some(config)
}

fn truncated() -> Truncation {
    Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE }
}

/// Truncates a query and a document. Four bytes give the limits, the others are text.
pub fn truncation(data: &[u8]) {
    static ENCODER: LazyLock<Encoder> = LazyLock::new(|| {
        let root = Path::new(MODEL);
        let tokenizer = load_tokenizer(root.join("tokenizer.json")).expect("the fixture's tokenizer");
        let source =
            std::fs::read_to_string(root.join("chat_template.jinja")).expect("the fixture's template");
        let template = PromptTemplate::from_chat_template(&source, &MessageStyle::plain());
        let options = EncoderOptions { max_input_length: MAX_TOKENS, ..EncoderOptions::default() };
        PromptEncoder::new(tokenizer, &template.expect("a template"), options).expect("an encoder").into()
    });
    let Some((&[flags, query, document, prompt], text)) = data.split_first_chunk::<4>() else { return };
    let text = String::from_utf8_lossy(text);
    let (query_text, document_text) = text.split_at(text.floor_char_boundary(text.len() / 3));
    let limit = |value: u8, bit: u8| (flags & bit != 0).then_some(usize::from(value));
    let truncation = Truncation {
        truncate: flags & 1 != 0,
        direction: if flags & 2 != 0 { TruncationDirection::Left } else { TruncationDirection::Right },
        limits: TokenLimits {
            query: limit(query, 4),
            document: limit(document, 8),
            prompt: limit(prompt, 16),
        },
    };
    let pair = Input::Pair(PairText { instruction: None, query: query_text, document: document_text });
    let encoded = ENCODER.encode(&pair, truncation, None).ok();
    // A query that several texts share is encoded once, with the same ids.
    let shared = SharedQuery::default();
    for _ in 0..2 {
        assert_eq!(ENCODER.encode(&pair, truncation, Some(&shared)).ok(), encoded);
    }
    if let Some(encoded) = encoded {
        assert!(encoded.ids.len() <= MAX_TOKENS && encoded.reusable <= encoded.ids.len());
        assert!(truncation.limits.prompt.is_none_or(|most| encoded.ids.len() <= most));
        // A prompt ends with the template's last token, whatever was cut.
        let whole = Input::Pair(PairText { instruction: None, query: "q", document: "d" });
        let whole = ENCODER.encode(&whole, truncated(), None).expect("a short prompt");
        assert_eq!(encoded.ids.last(), whole.ids.last());
    }
}

/// Texts in a packed batch: each byte is a token, and zero ends a text. Reading the batch back must give the
/// texts.
pub fn forest(data: &[u8]) {
    let texts: Vec<Vec<u32>> = data
        .split(|byte| *byte == 0)
        .filter(|text| !text.is_empty())
        .map(|text| text.iter().map(|byte| u32::from(byte % 4)).collect())
        .collect();
    for shares_prefixes in [true, false] {
        let mut builder = BatchBuilder::new(Packing { shares_prefixes });
        for text in &texts {
            builder.push(&Text::new(text.clone(), Wanted::WHOLE));
        }
        let batch = builder.build();
        for (index, text) in texts.iter().enumerate() {
            let ids: Vec<u32> = batch.rows_of(index).map(|row| batch.token_ids()[row]).collect();
            assert_eq!(&ids, text);
        }
        assert!(!shares_prefixes || batch.token_ids().len() <= texts.iter().map(Vec::len).sum());
    }
}

/// The answer of the Python backend's worker to a batch.
pub fn reply(data: &[u8]) {
    text_embeddings_backend_python::fuzzing::answer(data);
}

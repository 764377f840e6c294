//! A small server on loopback with the Hub's routes, and the files of a small model.
//!
//! It uses bare sockets, because the tests need answers that no HTTP library would send: fewer bytes than
//! announced, a connection closed in the middle, silence.
#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use text_embeddings_backend_core::{BackendError, Description};

use super::{FilesError, ModelFolder, Reader};

/// Opens a folder. Every architecture except `mamba` counts as supported.
pub(crate) fn open(root: &Path) -> Result<ModelFolder, FilesError> {
    ModelFolder::open(root, &Reader::default(), &describe)
}

/// Describes a config.json with the usual names of fields.
pub(super) fn describe(config: &Value) -> Result<Description, BackendError> {
    let number = |field: &str| config[field].as_u64().map(|number| number as usize);
    if config["model_type"] == "mamba" {
        return Err(BackendError::Architecture("mamba is not supported".to_owned()));
    }
    Ok(Description {
        max_length: number("max_position_embeddings"),
        has_token_types: number("type_vocab_size").is_some_and(|types| types > 1),
        is_causal: false,
        hidden: number("hidden_size").unwrap_or(8),
        vocabulary: number("vocab_size").unwrap_or(100),
        cutoff_layers: None,
        token_work: None,
    })
}

/// Contents of files by their names in the repository.
pub(super) type ModelFiles = BTreeMap<String, Vec<u8>>;

/// A valid safetensors file with one tensor of `data` bytes, a multiple of four.
pub(super) fn safetensors(data: usize) -> Vec<u8> {
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}},"w":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{data}]}}}}"#,
        data / 4
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 7);
    file
}

/// An ONNX file with one output, and one tensor in each of the external files `values`.
pub(super) fn graph(values: &[&str]) -> Vec<u8> {
    fn message(field: u8, content: &[u8]) -> Vec<u8> {
        [&[field << 3 | 2, content.len() as u8], content].concat()
    }
    let tensors: Vec<u8> = values
        .iter()
        .flat_map(|place| {
            let entry = [message(1, b"location"), message(2, place.as_bytes())].concat();
            message(5, &message(13, &entry))
        })
        .collect();
    message(7, &[tensors, message(12, &message(1, b"last_hidden_state"))].concat())
}

/// The files of a re-ranker's repository as Qwen has published them since April 2026, with little content.
pub(crate) fn reranker_files() -> ModelFiles {
    let texts = [
        ("config.json", r#"{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":151669}"#),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", r#"{"chat_template":"{{ messages[0].role == 'user' }}"}"#),
        ("chat_template.jinja", r#"{{ messages | selectattr("role", "eq", "query") }}{{ "document" }}"#),
        (
            "modules.json",
            r#"[{"idx":0,"name":"0","path":"","type":"sentence_transformers.base.modules.transformer.Transformer"},
                {"idx":1,"name":"1","path":"1_LogitScore",
                 "type":"sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}]"#,
        ),
        (
            "1_LogitScore/config.json",
            r#"{"true_token_id":9693,"false_token_id":2152,"module_input_name":"causal_logits"}"#,
        ),
        (
            "config_sentence_transformers.json",
            r#"{"prompts":{"query":"Find it"},"default_prompt_name":"query"}"#,
        ),
    ];
    let mut files: ModelFiles = texts.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).into();
    files.insert("model.safetensors".to_owned(), safetensors(64));
    files
}

/// Writes `files` to `root`, which is created if needed.
pub(crate) fn write_files(root: &Path, files: &ModelFiles) {
    for (name, content) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

/// A fault in the transfer of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection closes after half of the announced bytes.
    Drop,
    /// Half of the bytes come without an announced length, so that the transfer looks complete.
    Short,
    /// This status, with an error page as the body.
    Status(u16),
    /// Nothing comes after half of the bytes, and the connection stays open until the client closes it.
    Stall,
    /// Bytes come without end and without an announced length.
    Endless,
    /// One byte comes every 20 ms.
    Drip,
}

/// The server's content. Tests change it while the server runs.
pub(super) struct FakeRepository {
    pub(super) id: String,
    /// Commits by branch or tag.
    pub(super) revisions: BTreeMap<String, String>,
    pub(super) files: ModelFiles,
    /// The token. Requests without it get 401 on every route.
    pub(super) token: Option<String>,
    /// The status and the `X-Error-Code` in answers to requests for any file's metadata.
    pub(super) refuse_files: Option<(u16, &'static str)>,
    /// Faults by file, each with the number of times that it occurs.
    pub(super) faults: BTreeMap<String, (Fault, usize)>,
    /// The `ETag` of files that do not have a plain one.
    pub(super) etags: BTreeMap<String, String>,
    /// The length that a file's metadata announce, if it differs from the real one.
    pub(super) lengths: BTreeMap<String, Option<u64>>,
    /// The value of `X-Repo-Commit`, if it differs from the commit.
    pub(super) commit: Option<String>,
}

/// The server. It stops when it is dropped.
pub(super) struct FakeHub {
    pub(super) address: SocketAddr,
    pub(super) repository: Arc<Mutex<FakeRepository>>,
    /// `METHOD path` of each request so far.
    pub(super) requests: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeHub {
    pub(super) fn start(repository: FakeRepository) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let repository = Arc::new(Mutex::new(repository));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&repository), Arc::clone(&requests), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if shared.2.load(Ordering::SeqCst) {
                    return;
                }
                let (repository, requests) = (Arc::clone(&shared.0), Arc::clone(&shared.1));
                std::thread::spawn(move || serve(&connection.unwrap(), address, &repository, &requests));
            }
        });
        Self { address, repository, requests, stop, thread: Some(thread) }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        drop(self.thread.take().map(JoinHandle::join));
    }
}

struct FakeAnswer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// The announced length.
    length: Option<u64>,
    fault: Option<Fault>,
}

impl FakeAnswer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let length = Some(body.len() as u64);
        Self { status, headers: Vec::new(), body, length, fault: None }
    }

    fn error(status: u16, code: &str) -> Self {
        Self::new(status, format!("error page: {code}")).header("x-error-code", code)
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

fn serve(
    connection: &TcpStream,
    address: SocketAddr,
    repository: &Mutex<FakeRepository>,
    requests: &Mutex<Vec<String>>,
) {
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let token = head.iter().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then(|| value.trim_start_matches("Bearer ").to_owned())
    });
    let from = head.iter().find_map(|line| line.strip_prefix("range: bytes=")?.strip_suffix('-'));
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default().replace("%2F", "/");
    let range = from.map(|from| format!(" from {from}")).unwrap_or_default();
    requests.lock().unwrap().push(format!("{method} {path}{range}"));
    let mut answer = answer(&mut repository.lock().unwrap(), address, method, &path, token.as_deref());
    if answer.status == 200
        && let Some(from) = from.and_then(|from| from.parse::<usize>().ok())
    {
        let (all, last) = (answer.body.len(), answer.body.len() - 1);
        answer = FakeAnswer { status: 206, ..answer }
            .header("content-range", format!("bytes {from}-{last}/{all}"));
        answer.body.drain(..from);
        answer.length = Some(answer.body.len() as u64);
    }
    drop(send(connection, method, &answer));
}

fn answer(
    repository: &mut FakeRepository,
    address: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
) -> FakeAnswer {
    if let Some(file) = path.strip_prefix("/cdn/") {
        return content(repository, file);
    }
    if repository.token.as_deref().is_some_and(|wanted| token != Some(wanted)) {
        return FakeAnswer::error(401, "RepoNotFound");
    }
    let id = repository.id.clone();
    if let Some(revision) = path.strip_prefix(&format!("/api/models/{id}/revision/")) {
        return listing(repository, revision);
    }
    let Some((revision, file)) =
        path.strip_prefix(&format!("/{id}/resolve/")).and_then(|rest| rest.split_once('/'))
    else {
        return FakeAnswer::error(404, "RepoNotFound");
    };
    let Some(body) = repository.files.get(file) else { return FakeAnswer::error(404, "EntryNotFound") };
    if let Some((status, code)) = repository.refuse_files {
        return FakeAnswer::error(status, code);
    }
    let etag = format!("\"{}-{}\"", file.replace(|c: char| !c.is_ascii_alphanumeric(), "-"), body.len());
    // The Hub names large files by the SHA-256 of their content.
    let is_large = file.ends_with(".safetensors");
    let etag = if is_large { format!("\"{}\"", sha256_of(body)) } else { etag };
    let etag = repository.etags.get(file).cloned().unwrap_or(etag);
    let length = repository.lengths.get(file).copied().unwrap_or(Some(body.len() as u64));
    let commit = repository.commit.clone().unwrap_or_else(|| revision.to_owned());
    if is_large {
        // Large files are stored elsewhere, so the metadata come with the redirect.
        let answer = FakeAnswer::new(302, "moved")
            .header("location", format!("http://{address}/cdn/{file}"))
            .header("x-linked-etag", etag)
            .header("x-repo-commit", commit);
        return match length {
            Some(length) => answer.header("x-linked-size", length.to_string()),
            None => answer,
        };
    }
    let answer =
        if method == "HEAD" { FakeAnswer::new(200, body.clone()) } else { content(repository, file) };
    let answer = answer.header("etag", etag).header("x-repo-commit", commit);
    FakeAnswer { length: if method == "HEAD" { length } else { answer.length }, ..answer }
}

/// The SHA-256 of a content in hexadecimal digits.
pub(super) fn sha256_of(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
}

fn listing(repository: &FakeRepository, revision: &str) -> FakeAnswer {
    let known = repository.revisions.values().find(|sha| *sha == revision);
    let Some(sha) = repository.revisions.get(revision).or(known) else {
        return FakeAnswer::error(404, "RevisionNotFound");
    };
    let siblings: Vec<_> =
        repository.files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
    let body = serde_json::json!({ "id": repository.id, "sha": sha, "siblings": siblings });
    FakeAnswer::new(200, body.to_string()).header("content-type", "application/json")
}

/// The content of a file, changed by its fault if it has one.
fn content(repository: &mut FakeRepository, file: &str) -> FakeAnswer {
    let body = repository.files[file].clone();
    let fault = match repository.faults.get_mut(file) {
        Some((fault, times)) if *times > 0 => {
            *times -= 1;
            Some(*fault)
        }
        _ => None,
    };
    match fault {
        Some(Fault::Status(status)) => FakeAnswer::error(status, "Expired"),
        fault => FakeAnswer { fault, ..FakeAnswer::new(200, body) },
    }
}

fn send(mut connection: &TcpStream, method: &str, answer: &FakeAnswer) -> std::io::Result<()> {
    write!(connection, "HTTP/1.1 {} FakeAnswer\r\nconnection: close\r\n", answer.status)?;
    for (name, value) in &answer.headers {
        write!(connection, "{name}: {value}\r\n")?;
    }
    let is_open = matches!(answer.fault, Some(Fault::Short | Fault::Endless));
    if !is_open && let Some(length) = answer.length {
        write!(connection, "content-length: {length}\r\n")?;
    }
    write!(connection, "\r\n")?;
    if method == "HEAD" {
        return Ok(());
    }
    match answer.fault {
        // Sends until the client closes the connection.
        Some(Fault::Endless) => loop {
            connection.write_all(&[b' '; 1 << 14])?;
        },
        Some(Fault::Drip) => {
            for byte in &answer.body {
                connection.write_all(&[*byte])?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        _ => {}
    }
    let sent = if answer.fault.is_some() { answer.body.len() / 2 } else { answer.body.len() };
    connection.write_all(&answer.body[..sent])?;
    connection.flush()?;
    if answer.fault == Some(Fault::Stall) {
        connection.set_read_timeout(Some(Duration::from_mins(1)))?;
        while connection.read(&mut [0])? > 0 {}
    }
    Ok(())
}

//! The errors on the way from `--model-id` to a complete and readable model folder.
//!
//! Every message is one sentence for the person who starts the server. It says which file or flag is wrong
//! and what to do.

use std::path::PathBuf;

use text_embeddings_backend_core::{BackendError, BackendKind};
use text_embeddings_checkpoint::CheckpointError;

/// A model that cannot be fetched or read.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The name of a chat template that cannot be a file name.
    #[error(
        "sentence_bert_config.json names the chat template `{name}`, which cannot be a file of \
         additional_chat_templates: correct it, or give `--chat-template`"
    )]
    TemplateName {
        /// The name.
        name: String,
    },
    /// `--model-id` looks like a path but is not a directory.
    #[error(
        "`--model-id {model_id}` looks like a path, but there is no such directory or file: correct it, or \
         give a Hub id such as `Qwen/Qwen3-Reranker-0.6B`"
    )]
    NoSuchDirectory {
        /// The given value.
        model_id: String,
    },
    /// `--model-id` is a file.
    #[error(
        "`--model-id {model_id}` is a file, but not one of weights (.safetensors, .bin or .gguf): give one, \
         or the directory that holds config.json and the weights; `--onnx-file` names an ONNX file in it"
    )]
    NotADirectory {
        /// The given value.
        model_id: String,
    },
    /// `--model-id` is neither a path nor a possible Hub id.
    #[error(
        "`--model-id {model_id}` is neither a directory nor a Hub id: a Hub id is `owner/name`, of letters, \
         digits, `-`, `_` and `.`, and `owner/name:FILE.gguf` names a GGUF file"
    )]
    InvalidModelId {
        /// The given value.
        model_id: String,
    },
    /// The demonstration model in the binary cannot be used.
    #[error("the demonstration (`--model-id demo`) {reason}")]
    Demo {
        /// The reason and the remedy.
        reason: String,
    },
    /// The Hub client refuses its settings.
    #[error(
        "the Hub client cannot start: {reason}; check HF_ENDPOINT, which must be a URL such as \
         https://huggingface.co"
    )]
    Client {
        /// The client's words.
        reason: String,
    },
    /// The Hub answered 401.
    #[error(
        "the Hub wants a login for {what} (401): pass a valid token with `--hf-token` or HF_TOKEN, and check \
         the model id, because a misspelled one gets the same answer"
    )]
    LoginRequired {
        /// The repository or the file in it.
        what: String,
    },
    /// The Hub answered 403, or that the repository is gated.
    #[error(
        "the Hub refuses access to {what}: if the model is gated, accept its conditions at {page}, and pass \
         a token that may read it (`--hf-token` or HF_TOKEN)"
    )]
    AccessDenied {
        /// The repository or the file in it.
        what: String,
        /// The model's page.
        page: String,
    },
    /// There is no such repository.
    #[error(
        "there is no model `{model_id}` at {endpoint}, and no directory of that name: check `--model-id`; a \
         private model looks like this too without a token that may read it (`--hf-token` or HF_TOKEN)"
    )]
    UnknownRepository {
        /// The Hub id.
        model_id: String,
        /// The Hub's address.
        endpoint: String,
    },
    /// The repository has no such revision.
    #[error(
        "the model `{model_id}` has no revision `{revision}`: check `--revision` (a branch, a tag, a full \
         commit id or refs/pr/N)"
    )]
    UnknownRevision {
        /// The Hub id.
        model_id: String,
        /// The requested revision.
        revision: String,
    },
    /// The Hub cannot be reached, and the cache has no complete copy.
    #[error(
        "cannot reach the Hub at {endpoint} ({reason}), and the cache {cache} has no complete copy of the \
         model: check the network and HF_ENDPOINT, or give `--model-id` a local directory"
    )]
    Unreachable {
        /// The Hub's address.
        endpoint: String,
        /// The failure of the request.
        reason: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// The cache lacks the model and the network may not be used.
    #[error(
        "HF_HUB_OFFLINE is set and the cache {cache} has no complete copy of `{model_id}` at revision \
         `{revision}` ({reason}): start once without HF_HUB_OFFLINE, or point HF_HOME or \
         `--huggingface-hub-cache` to the cache that has it"
    )]
    NotCached {
        /// The Hub id.
        model_id: String,
        /// The requested revision.
        revision: String,
        /// The cache folder.
        cache: PathBuf,
        /// The missing part.
        reason: String,
    },
    /// A transfer ended before the file did.
    #[error("the download of `{file}` broke off ({reason}): start again to continue it")]
    Dropped {
        /// The file in the repository.
        file: String,
        /// The failure.
        reason: String,
    },
    /// A name in the Hub's answer or in a file from it that could lead out of the cache.
    #[error(
        "the Hub names the file {name:?}, which cannot be a file of a model: check HF_ENDPOINT and \
         `--model-id`"
    )]
    HubName {
        /// The name.
        name: String,
    },
    /// A revision that cannot be a path of the Hub or of the cache.
    #[error(
        "`--revision {revision}` cannot be a revision: give a branch, a tag, a full commit id or refs/pr/N"
    )]
    InvalidRevision {
        /// The given value.
        revision: String,
    },
    /// More bytes than the Hub or the model's own files announce.
    #[error(
        "the Hub sends more of `{file}` than it may ({reason}): nothing of it is kept; check HF_ENDPOINT"
    )]
    HubLength {
        /// The file in the repository.
        file: String,
        /// Which bound it exceeds.
        reason: String,
    },
    /// A content that is not the one that the Hub announces.
    #[error(
        "the content of `{file}` does not have the SHA-256 that the Hub announces ({announced}): nothing of it \
         is kept; start again to download it again, and check HF_ENDPOINT if that does not help"
    )]
    HubSum {
        /// The file in the repository.
        file: String,
        /// The announced sum, in hexadecimal digits.
        announced: String,
    },
    /// Any other answer of the Hub.
    #[error("the Hub did not deliver {what}: {reason}; try again later, or check HF_ENDPOINT")]
    Hub {
        /// The repository or the file in it.
        what: String,
        /// The answer.
        reason: String,
    },
    /// A file that every model needs is not there.
    #[error("`{file}` is missing in {place}: {remedy}")]
    Missing {
        /// The folder or the repository.
        place: String,
        /// The file.
        file: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A trained decider without `config.json`.
    #[error(
        "{place} holds a decider of the family {family}, whose layout and head are not supported: choose an \
         instruct model with `--model-type decider`"
    )]
    TrainedDecider {
        /// The folder or the repository.
        place: String,
        /// The family.
        family: &'static str,
    },
    /// An adapter in the folder of a model that has no place for one.
    #[error(
        "{place} has an adapter (PEFT, adapter_config.json), which is not supported: merge it into its base \
         (`merge_and_unload` of peft), or choose `--backend python`"
    )]
    Adapter {
        /// The folder or the repository.
        place: String,
    },
    /// An adapter without the model to which it is added.
    #[error(
        "{place} is an adapter of the model `{base}`, which must be given with it, and must not be an adapter \
         itself: serve the adapter with `--model-id`"
    )]
    LacksBase {
        /// The folder or the repository.
        place: String,
        /// The name of the model to which it is added.
        base: String,
        /// The revision of that model.
        revision: Option<String>,
    },
    /// The model to which an adapter is added cannot be read.
    #[error(
        "{place} is an adapter of the model `{base}`, which cannot be read: {cause} (a folder with the last part \
         of its name next to the adapter's folder is used instead of the Hub)"
    )]
    Base {
        /// The folder or the repository.
        place: String,
        /// The name of the model to which it is added.
        base: String,
        /// The reason.
        cause: Box<FilesError>,
    },
    /// The file is only a Git LFS pointer.
    #[error("{path} is only a Git LFS pointer, not the file itself: run `git lfs pull` in its folder")]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// A weight file that cannot be read.
    #[error("{0}")]
    Weights(CheckpointError),
    /// Several GGUF files, and none is named.
    #[error(
        "{place} has several GGUF files, and `--model-id` names none of them; choose one with `--gguf-file`: \
         {found}"
    )]
    SeveralGguf {
        /// The folder or the repository.
        place: String,
        /// The files.
        found: String,
    },
    /// A GGUF file that is not there.
    #[error("{place} has no GGUF file `{file}`; its GGUF files: {found}")]
    NoSuchGguf {
        /// The folder or the repository.
        place: String,
        /// The file.
        file: String,
        /// The files that there are.
        found: String,
    },
    /// A GGUF file for a backend that reads none.
    #[error(
        "`{file}` is a GGUF file, which `--backend {backend}` does not read: leave `--backend` out, or \
         `--gguf-file`"
    )]
    GgufForAnother {
        /// The file.
        file: String,
        /// The backend.
        backend: BackendKind,
    },
    /// Two names for one file.
    #[error("`--model-id {model_id}` and `--gguf-file {file}` name different files: leave one of them out")]
    TwoFiles {
        /// The given value.
        model_id: String,
        /// The given value.
        file: String,
    },
    /// The content of a file contradicts its name.
    #[error("{path} is damaged ({reason}): delete it and download it again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// A JSON file cannot be read.
    #[error("{path} is not what it should be: {reason}; correct it, or delete it and download it again")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's words, with line and column.
        reason: String,
    },
    /// A field has a value that is not supported.
    #[error("`{field}` of {path} is `{value}`, which is not supported: only {known}")]
    UnsupportedField {
        /// The file.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The supported values.
        known: &'static str,
    },
    /// A module of sentence-transformers is not supported, or not in this position.
    #[error(
        "modules.json names the module `{class}`{after}, which is not supported: an embedding model may have \
         Transformer, Pooling, any number of Dense and LayerNorm, and Normalize, in this order, or \
         StaticEmbedding and Normalize"
    )]
    UnsupportedModule {
        /// The class.
        class: String,
        /// The preceding module if the position is wrong, with a space before it. Otherwise empty.
        after: String,
    },
    /// The first module of sentence-transformers is in a folder of its own.
    #[error(
        "modules.json puts the module `Transformer` into the folder `{path}`, which is not supported: load the model \
         with a current sentence-transformers and save it again, which puts the module's files at the top"
    )]
    TransformerFolder {
        /// The folder.
        path: String,
    },
    /// A model with one vector for each token.
    #[error(
        "{file} has {mark}, so this is a late-interaction model (ColBERT), whose layout is not supported: \
         PyLate's (a Transformer and Dense modules) and Stanford's are, by the native backend"
    )]
    LateInteraction {
        /// The file that says so.
        file: &'static str,
        /// The part that says so.
        mark: String,
    },
    /// The files belong to a re-ranker, but the flags ask for embeddings.
    #[error(
        "modules.json names `LogitScore`, or a last Dense that gives `scores`, so this is a re-ranker and \
         not an embedding model: leave `--pooling` and `--model-type` out, or give \
         `--model-type listwise-reranker` for the first"
    )]
    RerankerModule,
    /// A modular cross-encoder without a known pooling.
    #[error(
        "modules.json ends in `scores`, but the configuration of its Pooling does not say exactly one of \
         cls, mean and lasttoken: download the model again with this folder"
    )]
    ScoresWithoutPooling,
    /// A module that does not belong to a SPLADE model.
    #[error(
        "modules.json names the module `{class}`, which is not supported in a SPLADE model: it may have \
         Transformer (or MLMTransformer) and SpladePooling; leave `--pooling splade` out if it is not one"
    )]
    SpladeModule {
        /// The class.
        class: String,
    },
    /// The backend does not support the model that `config.json` describes.
    #[error("{0}")]
    Unsupported(BackendError),
    /// The backend does not know the architecture.
    #[error("{reason}")]
    Architecture {
        /// The backend's words.
        reason: String,
        /// Whether there is an ONNX file, which another backend could serve.
        has_onnx: bool,
    },
    /// There is no ONNX file, or not the requested one, or there are several and none was requested.
    #[error("{place} has {problem}")]
    OnnxFile {
        /// The folder or the repository.
        place: String,
        /// The ONNX files that it has, and the remedy.
        problem: String,
    },
    /// The only weights are an ONNX file.
    #[error(
        "the weights in {place} are in ONNX ({found}), which `--backend candle` does not read: give \
         `--backend ort`, in a build with the feature `ort`"
    )]
    OnlyOnnx {
        /// The folder or the repository.
        place: String,
        /// A file of it.
        found: String,
    },
    /// A repository has more files for sentence-transformers than any model.
    #[error(
        "the repository has {count} files that sentence-transformers might read, more than the limit of \
         {max}: it is not a model"
    )]
    TooManyFiles {
        /// The files.
        count: usize,
        /// The limit on the number of downloaded files.
        max: usize,
    },
    /// The weights are in another format.
    #[error(
        "the weights in {place} are in the format of `{found}`, but this server reads safetensors, PyTorch's \
         and GGUF files only: choose another repository or `--revision`, or convert them, by loading the \
         model with transformers and `save_pretrained(folder)`"
    )]
    OtherWeights {
        /// The folder or the repository.
        place: String,
        /// A file of it.
        found: String,
    },
    /// A model of the Hub whose settings are in its weights, for a command that fetches none.
    #[error(
        "the settings of {place} are in its weights, which are not fetched here: fetch them with \
         `text-embeddings-router download`, and name the folder or the file that it prints"
    )]
    SettingsInWeights {
        /// The repository.
        place: String,
    },
    /// `include_prompt` is off, and the pooling is not the last token.
    #[error(
        "1_Pooling/config.json leaves the prompt out of the pooling (`include_prompt` is false), which is not \
         supported: choose another pooling with `--pooling`, if the model works with it"
    )]
    PromptExcluded,
    /// A classifier on static embeddings.
    #[error(
        "the folder has {file}, so this is a classifier of model2vec, which is not supported: remove the file \
         to serve the embeddings that it reads"
    )]
    StaticClassifier {
        /// The file with the classifier.
        file: &'static str,
    },
    /// A dense module outside the model's folder.
    #[error(
        "the dense module's folder `{path}` is not a folder below the model's: correct modules.json, or give \
         `--dense-path` a name such as `2_Dense`"
    )]
    DensePath {
        /// The path.
        path: String,
    },
    /// An embedding model that reads a text as a message of a conversation.
    #[error(
        "{place} says that each text is put into the tokenizer's chat template (`message` in `modality_config` \
         of sentence_bert_config.json), which is not supported for vectors: remove `message` there if the \
         model was trained on plain texts"
    )]
    TextAsMessage {
        /// The folder or the repository.
        place: String,
    },
    /// A module outside the model's folder.
    #[error(
        "modules.json names `{path}` as the folder of the module `{class}`, which is not a folder below the \
         model's: correct it to a name such as `1_{class}`"
    )]
    ModulePath {
        /// The class.
        class: String,
        /// The path.
        path: String,
    },
    /// `--dense-path` for a model with several dense modules.
    #[error(
        "`--dense-path {path}` stands in for one dense module, but modules.json names several ({named}): \
         leave the flag out"
    )]
    SeveralDense {
        /// The flag's value.
        path: String,
        /// The folders in modules.json.
        named: String,
    },
    /// A classification head of an unsupported sort.
    #[error(
        "`architectures` of config.json names {architectures}, whose head is not supported: only heads that \
         label whole texts (…ForSequenceClassification) are"
    )]
    Classification {
        /// The architectures.
        architectures: String,
    },
    /// `id2label` or `label2id` does not name classes from 0 on.
    #[error("`{field}` of config.json must name each class once, from 0 on: correct it, or leave it out")]
    Labels {
        /// The field.
        field: &'static str,
    },
    /// A two-label re-ranker whose positive class is unclear.
    #[error(
        "`--model-type reranker` needs to know which of the two labels of `{name}` ({labels}) means \
         relevant: name exactly one of them yes, true, relevant, positive, entailment or 1 in `id2label` of \
         config.json, or give `--model-type classifier`"
    )]
    PositiveLabel {
        /// The model.
        name: String,
        /// Its labels.
        labels: String,
    },
    /// The path is a directory, a pipe or a device, and not a file.
    #[error("{path} is {kind}, not a file: put the file itself there")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of path, with its article.
        kind: &'static str,
    },
    /// A file other than weights is longer than any such file.
    #[error(
        "`{file}` is longer than {max_length} bytes, the most that this server reads of such a file: check that \
         it is what its name says"
    )]
    TooLong {
        /// The file or its path.
        file: String,
        /// The limit in bytes.
        max_length: u64,
    },
    /// The operating system refused access to a file.
    #[error("cannot read or write {path}: {cause}; check that it exists, its permissions and the free space")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error. It is not the `source` of this error, which would print it a second time.
        cause: std::io::Error,
    },
}

impl FilesError {
    /// The error for a backend's refusal of `config.json`.
    pub(super) fn refused(error: BackendError, has_onnx: bool) -> Self {
        match error {
            BackendError::Architecture(reason) => Self::Architecture { reason, has_onnx },
            error => Self::Unsupported(error),
        }
    }

    /// Whether files are missing, not damaged.
    pub(super) fn is_about_absence(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. }
                | Self::NoSuchGguf { .. }
                | Self::SeveralGguf { .. }
                | Self::OnnxFile { .. }
                | Self::OnlyOnnx { .. }
                | Self::OtherWeights { .. }
        )
    }

    /// Whether the error is about a GGUF file. Such a model needs no other file.
    pub(super) fn is_about_gguf(&self) -> bool {
        matches!(self, Self::SeveralGguf { .. } | Self::NoSuchGguf { .. } | Self::GgufForAnother { .. })
    }

    pub(super) fn io(path: impl Into<PathBuf>, cause: std::io::Error) -> Self {
        Self::Io { path: path.into(), cause }
    }
}

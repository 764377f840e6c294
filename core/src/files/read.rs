//! Reads a model from a repository. No other file knows which files a model has.
//!
//! Input: a [`Repository`]. Output: [`ModelFolder`]. What must hold: config, tokenizer and all weight files
//! exist and are complete; a file that exists but cannot be understood is an error and is never skipped. The
//! order of reading is the order in which defects are told: first `config.json`, then the other small files,
//! then the weights, which take the Hub longest to send.

use std::path::Path;

use text_embeddings_backend_core::{BackendKind, HeadModule};
use text_embeddings_checkpoint::ModelFile;

use super::adapter::open_adapter;
use super::config::{BgeM3Files, ModelConfig, Module, PromptsConfig, SentenceBert, named_prompts};
use super::error::FilesError;
use super::folder::{Describe, ModelFolder};
use super::late_interaction::LateInteraction;
use super::module_settings::{DenseRole, ends_in_scores, fetch_dense};
use super::names::{
    ADAPTER, Bound, CONFIG, LAYA, POINTER, PROMPTS, TOKENIZER, TRAINED_DECIDERS, module_config,
};
use super::pointer::{self, PointerFiles};
use super::reading::{read_text, remedy, run_ready};
use super::repository::Repository;
use super::small_files::{
    check_vector_settings, has_unnamed_score, read_logit_score, read_pooling, read_sentence_bert,
    read_splade, read_tokenizer_config,
};
use super::source::Reader;
use super::static_embedding::{StaticFolder, Unpacked};
use super::weights::{Selection, check_weights, open_weights, select, stored};
use super::{class_settings, gguf, late_interaction, laya, modules, python, static_embedding, templates};

/// The `model_type` of bge-m3, and the names of its additional outputs without their endings.
const BGE_M3: &str = "xlm-roberta";
const LEXICAL: &str = "sparse_linear";
const TOKEN_VECTORS: &str = "colbert_linear";
/// The endings of both: converted to safetensors, which is preferred, or as published.
const BGE_M3_ENDINGS: [&str; 2] = ["safetensors", "pt"];

impl ModelFolder {
    /// Reads and checks the folder `root` for a backend. An unsupported architecture is reported before all
    /// other errors.
    ///
    /// # Errors
    ///
    /// Any variant of [`FilesError`] about files. It names the missing, truncated or malformed file.
    pub fn open(root: &Path, reader: &Reader, describe: &Describe) -> Result<Self, FilesError> {
        run_ready(read_model(&Repository::Folder(root.to_owned()), GivenParts::default(), reader, describe))
    }
}

/// The parts of a model that its repository does not decide.
#[derive(Default)]
pub(super) struct GivenParts<'a> {
    /// The weights, if the user names them.
    pub(super) selection: Option<Selection>,
    /// The model to which it is added, if it is an adapter.
    pub(super) base: Option<&'a ModelFolder>,
}

pub(super) async fn read_model(
    repository: &Repository<'_>,
    GivenParts { selection, base }: GivenParts<'_>,
    reader: &Reader,
    describe: &Describe,
) -> Result<ModelFolder, FilesError> {
    if repository.has(POINTER) && reader.backend == BackendKind::Candle {
        return read_pointer(repository, base, reader, describe).await;
    }
    if repository.has(LAYA) && reader.backend == BackendKind::Candle {
        return read_laya(repository, selection, reader, describe).await;
    }
    let trained_decider = TRAINED_DECIDERS.iter().find(|(file, _)| repository.has(file));
    let trained_decider = trained_decider.map(|(_, family)| *family);
    if let (Some(family), false) = (trained_decider, repository.has(CONFIG)) {
        return Err(FilesError::Refused(format!(
            "{} holds a decider of the family {family}, whose layout and head are not supported: choose an \
             instruct model with `--model-type decider`",
            repository.place()
        )));
    }
    let may_be_static = selection.is_none() && reader.backend == BackendKind::Candle;
    let selected = selection.map_or_else(|| select(repository, reader), Ok);
    match selected {
        // A model in a GGUF file needs no other file.
        Err(error @ (FilesError::NoGguf(_) | FilesError::GgufForAnother { .. })) => Err(error),
        Ok(Selection::Gguf(name)) => read_gguf(repository, name, reader, describe).await,
        selected => {
            // sentence-transformers adds the adapter to the base, or loads the base that it names.
            if reader.backend != BackendKind::Python && repository.has(ADAPTER) {
                return Err(FilesError::Refused(format!(
                    "{} has an adapter (PEFT, adapter_config.json), which is not supported: merge it into its \
                     base (`merge_and_unload` of peft), or choose `--backend python`",
                    repository.place()
                )));
            }
            if may_be_static && let Some(found) = static_embedding::find_static(repository).await? {
                return read_static(repository, &found, reader, describe).await;
            }
            if !repository.has(CONFIG) {
                modules::read_modules(repository, reader.backend).await?;
            }
            let sources = Sources::from_repositories(repository, repository);
            let model = sources.read(selected, reader, describe).await?;
            Ok(ModelFolder { trained_decider, ..model })
        }
    }
}

/// Reads a decider of the family Laya, whose files have a layout of their own.
async fn read_laya(
    repository: &Repository<'_>,
    selection: Option<Selection>,
    reader: &Reader,
    describe: &Describe,
) -> Result<ModelFolder, FilesError> {
    let files = Repository::Memory(laya::unpack_files(repository).await?);
    let selected = selection.map_or_else(|| select(repository, reader), Ok);
    Sources::from_repositories(&files, repository).read(selected, reader, describe).await
}

/// Reads an adapter of the family any2jev, whose base is in another repository.
async fn read_pointer(
    repository: &Repository<'_>,
    base: Option<&ModelFolder>,
    reader: &Reader,
    describe: &Describe,
) -> Result<ModelFolder, FilesError> {
    let Some(base) = base else { return Err(pointer::lacks_base(repository).await) };
    let PointerFiles { files, weights } = pointer::unpack_files(repository, base).await?;
    let files = Repository::Memory(files);
    let sources = Sources { weights: Some(weights), ..Sources::from_repositories(&files, repository) };
    sources.read(Ok(Selection::File(POINTER.to_owned())), reader, describe).await
}

/// Reads a static embedding model, whose files say neither its sizes nor its pooling.
async fn read_static(
    repository: &Repository<'_>,
    found: &StaticFolder,
    reader: &Reader,
    describe: &Describe,
) -> Result<ModelFolder, FilesError> {
    let Unpacked { files, selection, tokens } = found.unpack_files(repository).await?;
    let files = Repository::Memory(files);
    let sources = Sources::from_repositories(&files, repository);
    let model = sources.read(Ok(selection), reader, describe).await?;
    Ok(ModelFolder { static_tokens: Some(tokens), ..model })
}

/// Reads a GGUF file, which contains the settings and the tokenizer.
async fn read_gguf(
    folder: &Repository<'_>,
    name: String,
    reader: &Reader,
    describe: &Describe,
) -> Result<ModelFolder, FilesError> {
    for step in modules::steps(&[], reader.dense_path.as_deref())? {
        fetch_dense(folder, &step.path).await?;
    }
    let selection = Selection::Gguf(name);
    let weights = open_weights(folder, &selection).await?;
    let stem = weights[0].path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let files = Repository::Memory(gguf::unpack(&weights[0])?);
    let sources = Sources::from_repositories(&files, folder);
    let model = sources.read(Ok(selection), reader, describe).await?;
    Ok(ModelFolder { given_name: Some(stem), ..model })
}

/// Where the files of a model are.
struct Sources<'r, 'a> {
    /// The files that describe the model; for a GGUF file, in memory.
    files: &'r Repository<'a>,
    /// The folder or repository that the user named, with the weights.
    folder: &'r Repository<'a>,
    /// The files of the weights, if they are open.
    weights: Option<Vec<ModelFile>>,
}

impl<'r, 'a> Sources<'r, 'a> {
    fn from_repositories(files: &'r Repository<'a>, folder: &'r Repository<'a>) -> Self {
        Self { files, folder, weights: None }
    }

    async fn read(
        &self,
        selected: Result<Selection, FilesError>,
        reader: &Reader,
        describe: &Describe,
    ) -> Result<ModelFolder, FilesError> {
        let files = self.files;
        let config = files.require(CONFIG, Bound::Small, remedy(CONFIG)).await?;
        let mut config = ModelConfig::from_text(&read_text(&config)?)?;
        let description =
            describe(&config.raw).map_err(|error| FilesError::from_backend(error, &files.names()))?;
        let modules = modules::read_modules(files, reader.backend).await?;
        let prompts_config: PromptsConfig = files.read_json(PROMPTS).await?.unwrap_or_default();
        check_vector_settings(files, &prompts_config, &modules)?;
        let sentence_bert = read_sentence_bert(files, &modules).await?;
        let late_interaction =
            self.read_late(&config, &modules, &prompts_config, sentence_bert.as_ref(), reader).await?;
        modules::refuse_unknown(&modules, reader.backend)?;
        if !files.has(TOKENIZER) {
            return Err(files.missing(TOKENIZER, remedy(TOKENIZER)));
        }
        let selection = selected?;
        let tokenizer = files.require(TOKENIZER, Bound::Small, remedy(TOKENIZER)).await?;
        let tokenizer_config = read_tokenizer_config(files).await?;
        let tokenizer = class_settings::apply(tokenizer, &tokenizer_config, &config)?;
        let has_token_types = description.has_token_types && tokenizer_config.reads_token_types();
        let special_tokens = tokenizer_config.special_tokens();
        let model_max_length = tokenizer_config.max_length();
        let chat_template =
            templates::choose(files, tokenizer_config, sentence_bert.as_ref(), &modules).await?;
        let ends_in_scores = ends_in_scores(files, &modules).await?;
        let logit_score = read_logit_score(files, &modules).await?;
        let pooling = read_pooling(files, &modules).await?;
        let splade = read_splade(files, &modules).await?;
        let is_late = late_interaction.is_some();
        let mut head_modules = self.read_head_modules(&modules, is_late, ends_in_scores, reader).await?;
        let bge_m3 = self.open_bge_m3(&config).await?;
        let weights = self.open_weights(&selection, &mut config, reader).await?;
        // ONNX Runtime checks the form of a graph and of its values.
        let is_graph = matches!(selection, Selection::Graph(_));
        let checked: &[ModelFile] = if is_graph { &[] } else { &weights };
        let checkpoints = checked.iter().map(check_weights).collect::<Result<Vec<_>, _>>()?;
        let late_interaction = late_interaction
            .map(|late| late.complete_with(&special_tokens, &config, &checkpoints, &mut head_modules))
            .transpose()?;
        let root = self.folder.root();
        Ok(ModelFolder {
            model_id: root.display().to_string(),
            root,
            revision_sha: None,
            has_unnamed_score: has_unnamed_score(&config, &checkpoints, is_graph.then(|| weights[0].path()))?,
            stored: stored(&checkpoints),
            score_activation: prompts_config
                .activation_fn
                .or_else(|| config.score_activation().map(str::to_owned)),
            config,
            description,
            tokenizer,
            weights,
            has_token_types,
            special_tokens,
            model_max_length,
            chat_template,
            joins_pairs: sentence_bert.as_ref().is_some_and(|settings| settings.joins_pairs(&modules)),
            ends_in_scores,
            logit_score,
            pooling,
            splade,
            head_modules,
            bge_m3,
            modules,
            default_prompt_name: prompts_config.default_prompt_name,
            prompts: named_prompts(prompts_config.prompts),
            tokenizer_cuts: sentence_bert.as_ref().is_some_and(SentenceBert::leaves_length_to_tokenizer),
            max_seq_length: sentence_bert.and_then(|config| config.max_seq_length),
            late_interaction,
            // The callers know the other fields.
            ..ModelFolder::default()
        })
    }

    /// The files of the weights, and of the adapter that is added to them.
    async fn open_weights(
        &self,
        selection: &Selection,
        config: &mut ModelConfig,
        reader: &Reader,
    ) -> Result<Vec<ModelFile>, FilesError> {
        if let Some(weights) = &self.weights {
            return Ok(weights.clone());
        }
        let mut weights = open_weights(self.folder, selection).await?;
        weights.extend(open_adapter(self.files, config, reader).await?);
        Ok(weights)
    }

    /// The settings of a late-interaction model. One vector for a text of such a model would be meaningless,
    /// so that a layout which is not supported is refused.
    async fn read_late(
        &self,
        config: &ModelConfig,
        modules: &[Module],
        prompts: &PromptsConfig,
        sentence_bert: Option<&SentenceBert>,
        reader: &Reader,
    ) -> Result<Option<LateInteraction>, FilesError> {
        let Some((file, mark)) = late_interaction::find_mark(config, modules, prompts) else {
            return Ok(None);
        };
        let refused = FilesError::Refused(format!(
            "{file} has {mark}, so this is a late-interaction model (ColBERT), whose layout is not supported: \
             PyLate's (a Transformer and Dense modules) and Stanford's are, by the native backend"
        ));
        if reader.backend != BackendKind::Candle {
            return Err(refused);
        }
        if late_interaction::is_stanford(config) && modules.is_empty() {
            let artifact = self.files.read_text(late_interaction::ARTIFACT).await?;
            return LateInteraction::from_artifact(artifact.as_ref()).map(Some);
        }
        if late_interaction::is_pylate(modules, prompts) {
            return LateInteraction::from_pylate(prompts).map(Some);
        }
        if let Some(mask) = late_interaction::mask_module(modules, prompts) {
            let config = self.files.read_text(&module_config(&mask.path)).await?;
            let settings = sentence_bert.cloned().unwrap_or_default();
            return LateInteraction::from_own_layout(prompts, &settings, config.as_ref()).map(Some);
        }
        Err(refused)
    }

    /// The modules after the pooling. The Python backend reads the modules of an embedding model itself, and
    /// needs all files of a model in its folder.
    async fn read_head_modules(
        &self,
        modules: &[Module],
        is_late: bool,
        ends_in_scores: bool,
        reader: &Reader,
    ) -> Result<Vec<HeadModule>, FilesError> {
        let role = match (is_late, ends_in_scores) {
            (true, _) => DenseRole::Tokens,
            (false, true) => DenseRole::Scores,
            (false, false) => DenseRole::Vector,
        };
        if reader.backend == BackendKind::Python {
            python::fetch_files(self.folder, reader.python_code).await?;
            if role != DenseRole::Scores {
                return Ok(Vec::new());
            }
        }
        let dense_path = reader.dense_path.as_deref();
        // The user's path starts in the folder of a GGUF file.
        let repository = if dense_path.is_some() { self.folder } else { self.files };
        modules::load_steps(repository, &modules::steps(modules, dense_path)?, role).await
    }

    async fn open_bge_m3(&self, config: &ModelConfig) -> Result<BgeM3Files, FilesError> {
        if config.model_type.as_deref() != Some(BGE_M3) {
            return Ok(BgeM3Files::default());
        }
        Ok(BgeM3Files {
            lexical: self.open_output(LEXICAL).await?,
            token_vectors: self.open_output(TOKEN_VECTORS).await?,
        })
    }

    /// Opens the weights of an additional output of bge-m3.
    async fn open_output(&self, name: &str) -> Result<Option<ModelFile>, FilesError> {
        for ending in BGE_M3_ENDINGS {
            if let Some(file) = self.folder.open(&format!("{name}.{ending}"), Bound::ANY).await? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

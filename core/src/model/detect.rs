//! Decides the kind of a model. A pure function of the model's files and the user's flags.
//!
//! Input: the files as [`ModelFolder`] describes them, `--model-type`, `--pooling`, and the family that
//! `--chat-template` names. Output: [`Detected`], or an error that names the deciding flag. The rules, in
//! this order:
//!
//! 1. an explicit flag wins;
//! 2. a `LogitScore` in `modules.json` makes a generative re-ranker, and modules that end in scores make a
//!    re-ranker;
//! 3. an architecture that ends in `Classification` makes a classifier, or a re-ranker if it has one label (a
//!    re-ranker with two labels needs the flag); a head with one label that only the weights name, as in
//!    jina-reranker-v1, makes a re-ranker;
//! 4. a `SpladePooling` module makes a SPLADE model, a `Pooling` module or folder an embedding model;
//! 5. `--chat-template` with a family's name makes a re-ranker; a causal language model is a generative
//!    re-ranker if its chat template has query and document roles, if a known family has its name, or if its
//!    config or its name says so; a few embedding models are known by their names;
//! 6. a kind of BERT is an embedding model with CLS pooling, as in TEI;
//! 7. everything else would be an embedding model with unknown pooling and is refused, because a wrong guess
//!    would silently give wrong scores.

mod requested;

use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::{ModelType, Pool};

use super::Refusal;
use crate::families::{Evidence, Family};
use crate::files::{FilesError, ModelConfig, ModelFolder, PoolingConfig, class_labels};
use crate::templates::template_has_roles;
pub use requested::RequestedType;

impl ModelFolder {
    fn is_classification(&self) -> bool {
        names_classification(&self.config)
    }

    /// The hints in the files about a re-ranker's family.
    pub fn evidence(&self) -> Evidence<'_> {
        let Self { config, .. } = self;
        let model_type = config.model_type.as_deref().unwrap_or_default();
        Evidence { names: self.names(), architectures: &config.architectures, model_type }
    }

    /// The family by the model's name or architecture, unless its own name contains "embed".
    fn named_family(&self) -> Option<(&'static Family, String)> {
        if self.name().to_lowercase().contains("embed") { None } else { self.evidence().family() }
    }

    /// The kind of models in its family, if it belongs to one. Some families have heads that config.json does
    /// not name.
    fn kind_of_family(&self) -> Option<ModelType> {
        self.named_family().map(|(family, _)| family.kind())
    }

    fn has_module(&self, class: &str) -> bool {
        self.modules.iter().any(|module| module.class_name() == class)
    }

    fn has_logit_score(&self) -> bool {
        self.has_module("LogitScore")
    }

    /// Whether the checkpoint has the head that SPLADE needs.
    fn has_masked_head(&self) -> bool {
        self.config.architectures.iter().any(|name| name.ends_with("ForMaskedLM"))
    }

    /// Whether the first token is the default pooling, as in TEI.
    fn is_bert(&self) -> bool {
        let model_type = self.config.model_type.as_deref().unwrap_or_default().to_lowercase();
        model_type.contains("bert") && !self.is_named_reranker() && !self.config.is_reranker
    }

    fn is_trained_decider(&self) -> bool {
        self.is_laya() || self.is_pointer()
    }

    fn is_causal(&self) -> bool {
        self.config.architectures.iter().any(|name| name.ends_with("ForCausalLM"))
    }

    /// Whether its name says re-ranker. A name that also contains "embed" does not count.
    fn is_named_reranker(&self) -> bool {
        let name = self.name().to_lowercase();
        name.contains("reranker") && !name.contains("embed")
    }

    /// Whether the chat template has the roles query and document.
    fn template_has_roles(&self) -> bool {
        self.chat_template.as_ref().is_some_and(|chosen| template_has_roles(&chosen.source))
    }

    fn architecture_names(&self) -> String {
        if self.config.architectures.is_empty() {
            "no architecture".to_owned()
        } else {
            self.config.architectures.join(", ")
        }
    }
}

/// Whether `config.json` names a classification head. gte-multilingual-base is an embedding model, but its
/// architecture has the name of a head without labels.
fn names_classification(config: &ModelConfig) -> bool {
    let names_labels = config.names_labels();
    config
        .architectures
        .iter()
        .any(|name| name.ends_with("Classification") && (name != "NewForTokenClassification" || names_labels))
}

/// Refuses a classification head that is not supported. It needs nothing but `config.json`, so it comes
/// before the weights are fetched. `requested` may be another kind of model.
///
/// # Errors
///
/// If the head does not label whole texts, or the file does not name each of the classes 0, 1, … once.
pub fn check_head(config: &Value, requested: Option<RequestedType>) -> Result<(), FilesError> {
    // A wrong field is an error when the folder is read.
    let Ok(config) = ModelConfig::deserialize(config) else { return Ok(()) };
    let may_be_other = matches!(
        requested,
        Some(RequestedType::Embedding | RequestedType::ListwiseReranker | RequestedType::Decider)
    );
    if may_be_other || !names_classification(&config) {
        return Ok(());
    }
    class_labels(&config).map(drop)
}

/// The kind of a model, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detected {
    /// The kind.
    pub model_type: ModelType,
    /// The reason in words.
    pub reason: String,
}

impl Detected {
    fn new(model_type: ModelType, reason: impl Into<String>) -> Self {
        Self { model_type, reason: reason.into() }
    }
}

/// Decides the kind of a model by the rules at the top of this file. `requested` is `--model-type`, `pooling`
/// is `--pooling`: without `--model-type`, it asks for embeddings. For a model with a classification head it
/// is ignored, as in TEI. `family` is the family that `--chat-template` names.
///
/// # Errors
///
/// [`Refusal::Kind`] if files and flags leave the kind open or contradict each other.
pub fn detect_kind(
    files: &ModelFolder,
    requested: Option<RequestedType>,
    pooling: Option<Pool>,
    family: Option<&Family>,
) -> Result<Detected, Refusal> {
    if files.late_interaction.is_some() {
        return match (requested, pooling) {
            (None | Some(RequestedType::Reranker), None) => {
                Ok(Detected::new(ModelType::Reranker, "its files compare texts token by token (ColBERT)"))
            }
            _ => Err(Refusal::Kind(format!(
                "`{}` compares queries and documents token by token (ColBERT), so it is a re-ranker, and \
                 `/embed_all` gives its vectors: leave `--model-type` and `--pooling` out",
                files.name()
            ))),
        };
    }
    match (requested, pooling) {
        (Some(requested), pooling) => {
            Ok(Detected::new(from_flag(files, requested, pooling)?, "`--model-type` says so"))
        }
        (None, Some(Pool::Splade)) if files.has_masked_head() || !files.is_classification() => {
            Ok(Detected::new(require_masked_head(files)?, "`--pooling` asks for sparse embeddings"))
        }
        (None, Some(pool)) if !files.is_classification() => {
            Ok(Detected::new(ModelType::Embedding(pool), "`--pooling` asks for embeddings"))
        }
        (None, pooling) => {
            let mut detected = from_files(files, family)?;
            if pooling.is_some() {
                detected.reason += "; `--pooling` has no effect on it";
            }
            Ok(detected)
        }
    }
}

fn from_flag(
    files: &ModelFolder,
    requested: RequestedType,
    pooling: Option<Pool>,
) -> Result<ModelType, Refusal> {
    let name = files.name();
    match (requested, pooling) {
        (requested, _) if files.is_trained_decider() && requested != RequestedType::Decider => {
            Err(no_classification_head(files, requested))
        }
        (RequestedType::Embedding, Some(Pool::Splade)) => require_masked_head(files),
        (RequestedType::Embedding, Some(pool)) => Ok(ModelType::Embedding(pool)),
        (RequestedType::Embedding, None) if files.has_module("SpladePooling") => require_masked_head(files),
        (RequestedType::Embedding, None) if files.pooling.is_some() => pooling_of_files(files),
        (RequestedType::Embedding, None) if files.is_bert() => Ok(ModelType::Embedding(Pool::Cls)),
        (RequestedType::Embedding, None) if files.evidence().embedder().is_some() => {
            Ok(ModelType::Embedding(Pool::LastToken))
        }
        (RequestedType::Embedding, None) => Err(no_pooling(files)),
        (_, Some(pooling)) => Err(Refusal::Kind(format!(
            "`--pooling {pooling}` makes no sense with `--model-type {requested}`: leave one of the two out"
        ))),
        (RequestedType::ListwiseReranker, None)
            if files.is_causal()
                || files.has_logit_score()
                || files.kind_of_family() == Some(ModelType::ListwiseReranker) =>
        {
            Ok(ModelType::ListwiseReranker)
        }
        (RequestedType::Decider, None) if files.is_causal() || files.is_trained_decider() => {
            Ok(ModelType::Decider)
        }
        (RequestedType::ListwiseReranker | RequestedType::Decider, None) => {
            let architecture = files.architecture_names();
            Err(Refusal::Kind(format!(
                "`--model-type {requested}` needs a causal language model, but `{name}` is {architecture}: leave the \
                 flag out, or give `--model-type reranker`"
            )))
        }
        (RequestedType::Reranker, None)
            if files.ends_in_scores
                || files.has_unnamed_score
                || files.kind_of_family() == Some(ModelType::Reranker) =>
        {
            Ok(ModelType::Reranker)
        }
        (_, None) if !files.is_classification() => Err(no_classification_head(files, requested)),
        (RequestedType::Reranker, None) if files.config.label_count() > 2 => {
            let labels = files.config.label_count();
            Err(Refusal::Kind(format!(
                "`--model-type reranker` needs a head with one or two labels, but `{name}` has {labels}: give \
                 `--model-type classifier`"
            )))
        }
        (RequestedType::Reranker, None) => Ok(ModelType::Reranker),
        (RequestedType::Classifier, None) => Ok(ModelType::Classifier),
    }
}

/// The refusal of a `--model-type` that needs a classification head.
fn no_classification_head(files: &ModelFolder, requested: RequestedType) -> Refusal {
    let advice = match from_files(files, None) {
        Ok(found) => format!("leave the flag out, and it is served as {}", found.model_type),
        Err(_) if files.is_causal() => "give `--model-type listwise-reranker` if it is a generative \
            re-ranker, or `--chat-template` with the name of its family"
            .to_owned(),
        Err(_) => "give `--model-type embedding` and `--pooling` if it is an embedding model".to_owned(),
    };
    let (name, architecture) = (files.name(), files.architecture_names());
    Refusal::Kind(format!(
        "`--model-type {requested}` needs a classification head, but `{name}` is {architecture}: {advice}"
    ))
}

fn no_pooling(files: &ModelFolder) -> Refusal {
    let (name, architecture) = (files.name(), files.architecture_names());
    Refusal::Kind(format!(
        "`{name}` ({architecture}) would be an embedding model, but no 1_Pooling/config.json says how it pools: \
         give `--pooling` (cls, mean, splade or last-token), or the right kind with `--model-type`"
    ))
}

fn from_files(files: &ModelFolder, family: Option<&Family>) -> Result<Detected, Refusal> {
    let (model_type, reason) = if files.is_laya() {
        (ModelType::Decider, "rl_agent_config.json says that it is a decider of the family Laya")
    } else if files.is_pointer() {
        (ModelType::Decider, "any2jev.json says that it is a decider of the family any2jev")
    } else if files.has_logit_score() {
        (ModelType::ListwiseReranker, "modules.json names a LogitScore")
    } else if files.ends_in_scores {
        (ModelType::Reranker, "modules.json ends in a score")
    } else if files.is_classification() && files.config.label_count() == 1 {
        (ModelType::Reranker, "config.json names a classification head with one label")
    } else if files.is_classification() {
        (ModelType::Classifier, "config.json names a classification head with several labels")
    } else if files.has_unnamed_score {
        (ModelType::Reranker, "its weights hold a classification head with one label")
    } else if files.has_module("SpladePooling") {
        (require_masked_head(files)?, "modules.json names a SpladePooling")
    } else if files.static_tokens.is_some() {
        (pooling_of_files(files)?, "its files have a vector for each token, and no layers")
    } else if files.pooling.is_some() {
        refuse_unserved(files)?;
        (pooling_of_files(files)?, "its files name a pooling")
    } else if files.is_bert() && !files.is_causal() {
        let reason = "config.json names a kind of BERT, and nothing says how it pools; give `--pooling` if \
            not by its first token";
        (ModelType::Embedding(Pool::Cls), reason)
    } else {
        return from_hints(files, family);
    };
    Ok(Detected::new(model_type, reason))
}

/// Rules 5 and 7, for causal language models and models without any hints.
fn from_hints(files: &ModelFolder, family: Option<&Family>) -> Result<Detected, Refusal> {
    let (name, evidence) = (files.name(), files.evidence());
    if let Some(family) = family {
        let reason = format!("`--chat-template` names the family {}", family.name);
        return Ok(Detected::new(family.kind(), reason));
    }
    if files.template_has_roles() && files.is_causal() {
        let reason = "its chat template has the roles query and document";
        return Ok(Detected::new(ModelType::ListwiseReranker, reason));
    }
    refuse_unserved(files)?;
    if let Some(embedder) = evidence.embedder() {
        let reason = format!("its name is that of {}", embedder.name);
        return Ok(Detected::new(ModelType::Embedding(Pool::LastToken), reason));
    }
    if let Some((family, reason)) = files.named_family() {
        let reason = format!("it is of the family {}: {reason}", family.name);
        return Ok(Detected::new(family.kind(), reason));
    }
    if !files.is_causal() {
        return Err(no_pooling(files));
    }
    let reason = if files.config.is_reranker {
        "config.json says `is_reranker`"
    } else if files.is_named_reranker() {
        "its name says so, and config.json names a causal language model"
    } else {
        return Err(Refusal::Kind(format!(
            "nothing in the files of `{name}` says what it is: give `--model-type listwise-reranker` if it is a \
             generative re-ranker such as Qwen3-Reranker, `--model-type decider` if it is an instruct model that \
             answers questions about a text, or `--pooling last-token` (or mean, cls) if it is an embedding model"
        )));
    };
    Ok(Detected::new(ModelType::ListwiseReranker, reason))
}

/// Refuses a model by its name, if this server does not compute it.
fn refuse_unserved(files: &ModelFolder) -> Result<(), Refusal> {
    match files.evidence().unserved() {
        Some(reason) => {
            Err(Refusal::Kind(format!("`{}` cannot be served as a re-ranker: {reason}", files.name())))
        }
        None => Ok(()),
    }
}

fn require_masked_head(files: &ModelFolder) -> Result<ModelType, Refusal> {
    if files.has_masked_head() {
        return Ok(ModelType::Embedding(Pool::Splade));
    }
    Err(Refusal::Kind(format!(
        "a SPLADE model needs a masked-language-model head (an architecture that ends in ForMaskedLM), but `{}` is \
         {}: leave `--pooling splade` out, or choose another model",
        files.name(),
        files.architecture_names()
    )))
}

fn pooling_of_files(files: &ModelFolder) -> Result<ModelType, Refusal> {
    let pool = files.pooling.as_ref().and_then(PoolingConfig::pool);
    pool.map(ModelType::Embedding).ok_or_else(|| {
        Refusal::Kind(format!(
            "the pooling of `{}` is not exactly one of cls, mean and lasttoken in 1_Pooling/config.json: choose \
             one with `--pooling`, if the model works with it",
            files.name()
        ))
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::files::fake_hub::{open, reranker_files, write_files};
    use crate::files::{ChosenTemplate, Module};
    use crate::files::{LateInteraction, Marking};
    use crate::templates::MessageStyle;

    const LISTWISE: Result<ModelType, &str> = Ok(ModelType::ListwiseReranker);
    const RERANKER: Result<ModelType, &str> = Ok(ModelType::Reranker);
    const CLASSIFIER: Result<ModelType, &str> = Ok(ModelType::Classifier);
    const LAST_TOKEN: Result<ModelType, &str> = Ok(ModelType::Embedding(Pool::LastToken));
    const MEAN: Result<ModelType, &str> = Ok(ModelType::Embedding(Pool::Mean));
    const SPLADE: Result<ModelType, &str> = Ok(ModelType::Embedding(Pool::Splade));
    const CLS: Result<ModelType, &str> = Ok(ModelType::Embedding(Pool::Cls));

    /// `--model-type` and `--pooling`.
    type Flags = (Option<RequestedType>, Option<Pool>);

    const NO_FLAGS: Flags = (None, None);

    fn model(architecture: &str, name: &str) -> ModelFolder {
        let config = ModelConfig { architectures: vec![architecture.to_owned()], ..ModelConfig::default() };
        ModelFolder { given_name: Some(name.to_owned()), config, ..ModelFolder::default() }
    }

    fn configured(folder: ModelFolder, change: impl FnOnce(&mut ModelConfig)) -> ModelFolder {
        let mut config = folder.config.clone();
        change(&mut config);
        ModelFolder { config, ..folder }
    }

    fn qwen(name: &str) -> ModelFolder {
        model("Qwen3ForCausalLM", name)
    }

    /// A folder whose modules.json names these classes.
    fn modular(folder: ModelFolder, classes: &[&str]) -> ModelFolder {
        let module = |class: &&str| Module { class: (*class).to_owned(), path: String::new() };
        ModelFolder { modules: classes.iter().map(module).collect(), ..folder }
    }

    fn scored(folder: ModelFolder) -> ModelFolder {
        modular(folder, &["Transformer", "LogitScore"])
    }

    fn pooled(folder: ModelFolder, mode: &str) -> ModelFolder {
        let pooling = PoolingConfig { modes: vec![mode.to_owned()], ..PoolingConfig::default() };
        ModelFolder { pooling: Some(pooling), ..folder }
    }

    fn labelled(architecture: &str, labels: usize) -> ModelFolder {
        configured(model(architecture, "head"), |config| config.num_labels = Some(labels))
    }

    /// A folder with a chat template that has the roles of a re-ranker.
    fn with_roles(folder: ModelFolder) -> ModelFolder {
        let (source, place) = ("'query' 'document'".to_owned(), String::new());
        let template = ChosenTemplate { source, place, style: MessageStyle::plain(), renders_pairs: false };
        ModelFolder { chat_template: Some(template), ..folder }
    }

    fn said_to_rerank(folder: ModelFolder) -> ModelFolder {
        configured(folder, |config| config.is_reranker = true)
    }

    fn asked(model_type: RequestedType) -> Flags {
        (Some(model_type), None)
    }

    fn pooling(pool: Pool) -> Flags {
        (None, Some(pool))
    }

    fn kind(files: &ModelFolder, (requested, pooling): Flags) -> Result<ModelType, String> {
        let found = detect_kind(files, requested, pooling, None);
        found.map(|found| found.model_type).map_err(|refusal| refusal.to_string())
    }

    fn check(table: Vec<(&str, ModelFolder, Flags, Result<ModelType, &str>)>) {
        for (row, files, flags, expected) in table {
            let found = kind(&files, flags);
            let as_expected = match (&found, expected) {
                (Ok(found), Ok(expected)) => *found == expected,
                (Err(message), Err(part)) => message.contains(part),
                _ => false,
            };
            assert!(as_expected, "{row}: {found:?}");
        }
    }

    #[test]
    fn an_unsupported_head_is_refused_by_config_json_alone() {
        let check = |architecture: &str, extra: &str, model_type| {
            let config = format!(r#"{{"architectures":["{architecture}"]{extra}}}"#);
            check_head(&serde_json::from_str(&config).unwrap(), model_type)
        };
        let labels = r#","id2label":{"0":"a","1":"b"},"label2id":{"a":0,"b":1}"#;
        for (architecture, extra, model_type, is_refused) in [
            ("BertForSequenceClassification", "", None, false),
            ("BertForTokenClassification", "", None, true),
            ("BertForTokenClassification", "", Some(RequestedType::Classifier), true),
            ("BertForTokenClassification", "", Some(RequestedType::Embedding), false),
            ("NewForTokenClassification", "", None, false),
            ("NewForTokenClassification", labels, None, true),
            ("BertForSequenceClassification", r#","id2label":{"1":"a","2":"b"}"#, None, true),
            ("BertModel", "", None, false),
        ] {
            let result = check(architecture, extra, model_type);
            assert_eq!(result.is_err(), is_refused, "{architecture} {extra} {model_type:?}: {result:?}");
        }
        let message = check("BertForTokenClassification", "", None).unwrap_err().to_string();
        assert!(message.contains("BertForTokenClassification, whose head is not supported"), "{message}");
    }

    #[test]
    fn files_alone() {
        let last = "lasttoken";
        let roles = with_roles(qwen("model"));
        let says_so = said_to_rerank(qwen("model"));
        let both = pooled(scored(qwen("Qwen3-Reranker-0.6B")), last);
        let said_of_bert = said_to_rerank(model("BertModel", "bert"));
        check(vec![
            ("official files", scored(qwen("Qwen3-Reranker-0.6B")), NO_FLAGS, LISTWISE),
            ("official files, renamed folder", scored(qwen("model")), NO_FLAGS, LISTWISE),
            ("older snapshot, by its id", qwen("Qwen3-Reranker-4B"), NO_FLAGS, LISTWISE),
            ("local folder named so", qwen("my_RERANKER_v2"), NO_FLAGS, LISTWISE),
            ("template with roles", roles.clone(), NO_FLAGS, LISTWISE),
            ("is_reranker", says_so.clone(), NO_FLAGS, LISTWISE),
            ("renamed, no hints", qwen("model"), NO_FLAGS, Err("--model-type listwise-reranker")),
            ("renamed, no hints", qwen("model"), NO_FLAGS, Err("--pooling last-token")),
            ("Qwen3-Embedding", pooled(qwen("Qwen3-Embedding-0.6B"), last), NO_FLAGS, LAST_TOKEN),
            ("embedding with both words", pooled(qwen("embedding-for-reranker"), last), NO_FLAGS, LAST_TOKEN),
            ("embedding in a folder named reranker", pooled(qwen("reranker"), last), NO_FLAGS, LAST_TOKEN),
            ("embedding without pooling", qwen("Qwen3-Embedding-0.6B"), NO_FLAGS, Err("--pooling")),
            ("both words, no pooling", qwen("Qwen3-Embedding-vs-Reranker"), NO_FLAGS, Err("--model-type")),
            ("pooling goes before template", pooled(roles, last), NO_FLAGS, LAST_TOKEN),
            ("pooling goes before is_reranker", pooled(says_so, "mean_tokens"), NO_FLAGS, MEAN),
            ("LogitScore goes before pooling", both, NO_FLAGS, LISTWISE),
            (
                "LogitScore goes before the head",
                scored(labelled("Qwen3ForSequenceClassification", 1)),
                NO_FLAGS,
                LISTWISE,
            ),
            ("head, one label", labelled("Qwen3ForSequenceClassification", 1), NO_FLAGS, RERANKER),
            ("head, two labels", labelled("Qwen3ForSequenceClassification", 2), NO_FLAGS, CLASSIFIER),
            (
                "head goes before pooling",
                pooled(labelled("BertForSequenceClassification", 1), last),
                NO_FLAGS,
                RERANKER,
            ),
            (
                "head that only the weights have",
                ModelFolder { has_unnamed_score: true, ..model("JinaBertModel", "model") },
                NO_FLAGS,
                RERANKER,
            ),
            ("token classification", labelled("BertForTokenClassification", 9), NO_FLAGS, CLASSIFIER),
            ("BERT", pooled(model("BertModel", "bge"), "cls_token"), NO_FLAGS, CLS),
            ("BERT, no pooling", model("BertModel", "bge"), NO_FLAGS, Err("--pooling")),
            ("BERT named reranker", model("BertModel", "bge-reranker"), NO_FLAGS, Err("--model-type")),
            ("BERT with is_reranker", said_of_bert, NO_FLAGS, Err("BertModel")),
            ("unknown pooling mode", pooled(qwen("e"), "max_tokens"), NO_FLAGS, Err("1_Pooling/config.json")),
            ("no architecture", ModelFolder::default(), NO_FLAGS, Err("no architecture")),
        ]);
    }

    #[test]
    fn a_late_interaction_model_is_a_re_ranker_and_nothing_else() {
        let late = LateInteraction {
            markers: [String::new(), String::new()],
            marking: Marking::Token,
            lengths: [None, None],
            expansion: None,
            skipped: Vec::new(),
        };
        let files = ModelFolder { late_interaction: Some(late), ..model("BertModel", "colbert") };
        let other = Err("compares queries and documents token by token");
        check(vec![
            ("files alone", files.clone(), NO_FLAGS, RERANKER),
            ("asked to re-rank", files.clone(), asked(RequestedType::Reranker), RERANKER),
            ("asked to embed", files.clone(), asked(RequestedType::Embedding), other),
            ("pooling given", files, pooling(Pool::Mean), other),
        ]);
    }

    #[test]
    fn flags_win() {
        use RequestedType::{Classifier, Embedding, ListwiseReranker, Reranker};
        let last = "lasttoken";
        let one = || labelled("BertForSequenceClassification", 1);
        let embedding_model = || pooled(qwen("Qwen3-Embedding-0.6B"), last);
        let exclusive = (Some(ListwiseReranker), Some(Pool::LastToken));
        let with_pooling = (Some(Embedding), Some(Pool::Mean));
        check(vec![
            ("no hints, asked", qwen("model"), asked(ListwiseReranker), LISTWISE),
            ("embedding, asked to re-rank", embedding_model(), asked(ListwiseReranker), LISTWISE),
            ("re-ranker, asked to embed", scored(qwen("r")), with_pooling, MEAN),
            ("re-ranker, asked to embed, no pooling", scored(qwen("r")), asked(Embedding), Err("--pooling")),
            (
                "re-ranker by name, pooling given",
                qwen("Qwen3-Reranker-4B"),
                pooling(Pool::LastToken),
                LAST_TOKEN,
            ),
            ("no hints, pooling given", qwen("model"), pooling(Pool::LastToken), LAST_TOKEN),
            ("pooling flag before the file's", embedding_model(), pooling(Pool::Mean), MEAN),
            ("asked to embed, the file's pooling", embedding_model(), asked(Embedding), LAST_TOKEN),
            ("pooling is no reason to drop a head", one(), pooling(Pool::Cls), RERANKER),
            ("head, asked to embed", one(), with_pooling, MEAN),
            ("one label, asked to classify", one(), asked(Classifier), CLASSIFIER),
            ("one label, asked to re-rank", one(), asked(Reranker), RERANKER),
            (
                "two labels, asked to re-rank",
                labelled("X2ForSequenceClassification", 2),
                asked(Reranker),
                RERANKER,
            ),
            (
                "several labels, asked to re-rank",
                labelled("BertForSequenceClassification", 3),
                asked(Reranker),
                Err("has 3"),
            ),
            (
                "no head, asked to re-rank",
                scored(qwen("r")),
                asked(Reranker),
                Err("leave the flag out, and it is served as generative re-ranker"),
            ),
            (
                "no head and no hints, asked to re-rank",
                qwen("model"),
                asked(Reranker),
                Err("is Qwen3ForCausalLM: give `--model-type listwise-reranker`"),
            ),
            (
                "no head and not causal, asked to re-rank",
                model("MPNetModel", "model"),
                asked(Reranker),
                Err("give `--model-type embedding` and `--pooling`"),
            ),
            ("no head, asked to classify", qwen("r"), asked(Classifier), Err("classification head")),
            ("head, asked to generate", one(), asked(ListwiseReranker), Err("--model-type reranker")),
            ("flags that exclude each other", qwen("r"), exclusive, Err("--pooling last-token")),
        ]);
    }

    #[test]
    fn a_familys_name_decides_where_the_files_have_no_head_and_no_pooling() {
        let zerank = crate::families::by_name("zerank").unwrap();
        for (row, files, expected) in [
            ("renamed folder", qwen("model"), LISTWISE),
            ("head", labelled("Qwen3ForSequenceClassification", 1), RERANKER),
            ("pooling", pooled(qwen("e"), "lasttoken"), LAST_TOKEN),
        ] {
            let found = detect_kind(&files, None, None, Some(zerank)).unwrap();
            assert_eq!(Ok(found.model_type), expected, "{row}");
        }
        let reason = detect_kind(&qwen("model"), None, None, Some(zerank)).unwrap().reason;
        assert_eq!(reason, "`--chat-template` names the family zerank");
    }

    #[test]
    fn tei_s_models() {
        let of = |model_type: &str, architecture: &str| {
            configured(model(architecture, "m"), |config| config.model_type = Some(model_type.to_owned()))
        };
        let named =
            |files: ModelFolder, name: &str| ModelFolder { given_name: Some(name.to_owned()), ..files };
        let gte = || of("new", "NewForTokenClassification");
        let splade = || modular(of("bert", "BertForMaskedLM"), &["SpladePooling"]);
        let ends_in_scores = || ModelFolder {
            ends_in_scores: true,
            ..pooled(of("modernbert", "ModernBertModel"), "cls_token")
        };
        let with_labels = |config: &mut ModelConfig| {
            config.id2label = [("0".to_owned(), "a".to_owned()), ("1".to_owned(), "b".to_owned())].into();
            config.label2id = [("a".to_owned(), 0), ("b".to_owned(), 1)].into();
        };
        check(vec![
            ("BERT", of("bert", "BertModel"), NO_FLAGS, CLS),
            ("XLM-RoBERTa", of("xlm-roberta", "XLMRobertaModel"), NO_FLAGS, CLS),
            (
                "ModernBERT, asked to embed",
                of("modernbert", "ModernBertModel"),
                asked(RequestedType::Embedding),
                CLS,
            ),
            ("masked model", of("bert", "BertForMaskedLM"), NO_FLAGS, CLS),
            ("the flag goes before", of("bert", "BertModel"), pooling(Pool::Mean), MEAN),
            ("MPNet", of("mpnet", "MPNetModel"), NO_FLAGS, Err("--pooling")),
            (
                "BERT named re-ranker",
                named(of("bert", "BertModel"), "bge-reranker"),
                NO_FLAGS,
                Err("--pooling"),
            ),
            ("gte-multilingual-base", pooled(gte(), "cls_token"), NO_FLAGS, CLS),
            ("gte with labels", configured(gte(), with_labels), NO_FLAGS, CLASSIFIER),
            ("splade by modules", splade(), NO_FLAGS, SPLADE),
            ("splade by modules, asked to embed", splade(), asked(RequestedType::Embedding), SPLADE),
            ("splade by flag", of("bert", "BertForMaskedLM"), pooling(Pool::Splade), SPLADE),
            ("splade without head", of("bert", "BertModel"), pooling(Pool::Splade), Err("ForMaskedLM")),
            (
                "splade without head",
                modular(of("bert", "BertModel"), &["SpladePooling"]),
                NO_FLAGS,
                Err("BertModel"),
            ),
            (
                "splade asked of a head",
                labelled("BertForSequenceClassification", 1),
                pooling(Pool::Splade),
                RERANKER,
            ),
            ("modular cross-encoder", ends_in_scores(), NO_FLAGS, RERANKER),
            ("modular cross-encoder, asked", ends_in_scores(), asked(RequestedType::Reranker), RERANKER),
            ("modular cross-encoder, pooling given", ends_in_scores(), pooling(Pool::Mean), MEAN),
        ]);
    }

    #[test]
    fn a_folder_decides_as_the_table_does() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("renamed");
        let mut files = reranker_files();
        write_files(&root, &files);
        let kind = |root: &std::path::Path| kind(&open(root).unwrap(), NO_FLAGS);
        assert_eq!(kind(&root), Ok(ModelType::ListwiseReranker));
        for extra in ["modules.json", "1_LogitScore/config.json", "chat_template.jinja"] {
            files.remove(extra);
        }
        let older = folder.path().join("Qwen3-Reranker-0.6B");
        write_files(&older, &files);
        assert_eq!(kind(&older), Ok(ModelType::ListwiseReranker));
        let renamed = folder.path().join("model");
        write_files(&renamed, &files);
        let refusal = kind(&renamed).unwrap_err();
        assert!(refusal.starts_with("nothing in the files of `model` says what it is"), "{refusal}");
        files.insert("1_Pooling/config.json".to_owned(), r#"{"pooling_mode_lasttoken":true}"#.into());
        write_files(&renamed, &files);
        assert_eq!(kind(&renamed), Ok(ModelType::Embedding(Pool::LastToken)));
    }

    #[test]
    fn every_requested_type_is_read_as_it_is_written() {
        for kind in RequestedType::ALL {
            assert_eq!(kind.to_string().parse::<RequestedType>(), Ok(kind));
        }
        assert!("rerank".parse::<RequestedType>().unwrap_err().contains("listwise-reranker"));
    }

    #[test]
    fn what_decides_is_said() {
        let bare = || qwen("model");
        let table = [
            (scored(bare()), NO_FLAGS, "LogitScore"),
            (scored(bare()), asked(RequestedType::ListwiseReranker), "--model-type"),
            (bare(), pooling(Pool::Mean), "--pooling"),
            (labelled("Qwen3ForSequenceClassification", 1), NO_FLAGS, "one label"),
            (labelled("Qwen3ForSequenceClassification", 3), NO_FLAGS, "several labels"),
            (
                labelled("Qwen3ForSequenceClassification", 1),
                pooling(Pool::Cls),
                "`--pooling` has no effect on it",
            ),
            (pooled(bare(), "lasttoken"), NO_FLAGS, "a pooling"),
            (with_roles(said_to_rerank(bare())), NO_FLAGS, "chat template"),
            (said_to_rerank(bare()), NO_FLAGS, "is_reranker"),
            (
                ModelFolder { has_unnamed_score: true, ..model("JinaBertModel", "jina-reranker-v1-tiny-en") },
                NO_FLAGS,
                "its weights hold",
            ),
            (qwen("My-Reranker"), NO_FLAGS, "its name"),
        ];
        for (files, (requested, pooling), expected) in table {
            let reason = detect_kind(&files, requested, pooling, None).unwrap().reason;
            assert!(reason.contains(expected), "{reason}");
        }
    }
}

//! Decides the kind of a model. A pure function of the model's files and the user's flags.
//!
//! Input: [`ModelFacts`], [`KindFlags`]. Output: a [`ModelType`], or an error that names the deciding flag.
//! What must hold, in this order:
//!
//! 1. an explicit flag wins;
//! 2. a `LogitScore` in `modules.json` makes a generative re-ranker, and modules that end in scores make a
//!    re-ranker;
//! 3. an architecture that ends in `Classification` makes a classifier, or a re-ranker if it has one label (a
//!    re-ranker with two labels needs the flag); a head with one label that only the weights name, as in
//!    jina-reranker-v1, makes a re-ranker;
//! 4. a `SpladePooling` module makes a SPLADE model, a `Pooling` module or folder an embedding model;
//! 5. a causal language model is a generative re-ranker if its chat template has query and document roles, if
//!    a known family has its name, or if its config or its name says so; a few embedding models are
//!    known by their names;
//! 6. a kind of BERT is an embedding model with CLS pooling, as in TEI;
//! 7. everything else would be an embedding model with unknown pooling and is refused, because a wrong guess
//!    would silently give wrong scores.

mod error;

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::{ModelType, Pool};

use super::config::{ModelConfig, Module};
use super::error::FilesError;
use super::folder::ModelFolder;
use super::head::class_labels;
use crate::families::{Evidence, Family};
use crate::templates::template_has_roles;
pub use error::DetectError;

/// The facts about a model's files that the rules use.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not exclude each other")]
pub struct ModelFacts {
    /// The last part of the Hub id, or the folder's name.
    pub name: String,
    /// All its names in lower case, including `_name_or_path` of `config.json`.
    pub names: Vec<String>,
    /// `architectures` of `config.json`.
    pub architectures: Vec<String>,
    /// `model_type` of `config.json`.
    pub model_type: String,
    /// Whether `config.json` names its labels in both directions.
    pub names_labels: bool,
    /// Whether the modules end in a raw score.
    pub ends_in_scores: bool,
    /// Whether the weights contain a classification head with one label that no other file mentions.
    pub has_unnamed_score: bool,
    /// The class names in `modules.json`, such as `LogitScore`.
    pub modules: Vec<String>,
    /// Whether there is a `Pooling` module or a `1_Pooling` folder.
    pub has_pooling: bool,
    /// The mode of the pooling, if this server supports it.
    pub pool: Option<Pool>,
    /// Whether the chat template has the roles query and document.
    pub template_has_roles: bool,
    /// `is_reranker` of `config.json`.
    pub is_reranker: bool,
    /// The number of labels of a classification head.
    pub labels: usize,
}

impl From<&ModelFolder> for ModelFacts {
    fn from(folder: &ModelFolder) -> Self {
        Self {
            name: folder.name(),
            names: folder.names(),
            architectures: folder.config.architectures.clone(),
            model_type: folder.config.model_type.clone().unwrap_or_default(),
            names_labels: folder.config.names_labels(),
            ends_in_scores: folder.ends_in_scores,
            has_unnamed_score: folder.has_unnamed_score,
            modules: folder.modules.iter().map(Module::class_name).map(str::to_owned).collect(),
            has_pooling: folder.pooling.is_some(),
            pool: folder.pooling.as_ref().and_then(super::config::PoolingConfig::pool),
            template_has_roles: folder
                .chat_template
                .as_ref()
                .is_some_and(|chosen| template_has_roles(&chosen.source)),
            is_reranker: folder.config.is_reranker,
            labels: folder.config.label_count(),
        }
    }
}

impl ModelFacts {
    fn is_classification(&self) -> bool {
        names_classification(&self.architectures, self.names_labels)
    }

    /// The hints in the files about a re-ranker's family.
    #[must_use]
    pub fn evidence(&self) -> Evidence<'_> {
        Evidence { names: &self.names, architectures: &self.architectures, model_type: &self.model_type }
    }

    /// The family by the model's name or architecture, unless its own name contains "embed".
    fn family(&self) -> Option<(&'static Family, String)> {
        self.evidence().family().filter(|_| !self.name.to_lowercase().contains("embed"))
    }

    /// The kind of models in its family, if it belongs to one. Some families have heads that config.json does
    /// not name.
    fn kind_of_family(&self) -> Option<ModelType> {
        self.family().map(|(family, _)| family.kind())
    }

    fn has_logit_score(&self) -> bool {
        self.has_module("LogitScore")
    }

    fn has_module(&self, class: &str) -> bool {
        self.modules.iter().any(|module| module == class)
    }

    /// Whether the checkpoint has the head that SPLADE needs.
    fn is_masked_model(&self) -> bool {
        self.architectures.iter().any(|name| name.ends_with("ForMaskedLM"))
    }

    /// Whether the first token is the default pooling, as in TEI.
    fn is_bert(&self) -> bool {
        self.model_type.to_lowercase().contains("bert") && !self.is_named_reranker() && !self.is_reranker
    }

    fn is_causal(&self) -> bool {
        self.architectures.iter().any(|name| name.ends_with("ForCausalLM"))
    }

    /// Whether its name says re-ranker. A name that also contains "embed" does not count.
    fn is_named_reranker(&self) -> bool {
        let name = self.name.to_lowercase();
        name.contains("reranker") && !name.contains("embed")
    }

    fn architecture(&self) -> String {
        if self.architectures.is_empty() {
            "no architecture".to_owned()
        } else {
            self.architectures.join(", ")
        }
    }
}

/// Whether `config.json` names a classification head. gte-multilingual-base is an embedding model, but its
/// architecture has the name of a head without labels.
fn names_classification(architectures: &[String], names_labels: bool) -> bool {
    architectures
        .iter()
        .any(|name| name.ends_with("Classification") && (name != "NewForTokenClassification" || names_labels))
}

/// Refuses a classification head that is not supported. It needs nothing but `config.json`, so it comes
/// before the weights are fetched. `flags` may ask for another kind of model.
///
/// # Errors
///
/// As for [`class_labels`].
pub fn check_head(config: &Value, flags: &KindFlags) -> Result<(), FilesError> {
    // A wrong field is an error when the folder is read.
    let Ok(config) = ModelConfig::deserialize(config) else { return Ok(()) };
    let may_be_other =
        matches!(flags.model_type, Some(RequestedType::Embedding | RequestedType::ListwiseReranker));
    if may_be_other || !names_classification(&config.architectures, config.names_labels()) {
        return Ok(());
    }
    class_labels(&config).map(drop)
}

/// The values of `--model-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedType {
    /// `embedding`
    Embedding,
    /// `classifier`
    Classifier,
    /// `reranker`: with a classification head
    Reranker,
    /// `listwise-reranker`: a causal language model that answers yes or no, or that reads many documents at
    /// once
    ListwiseReranker,
}

impl RequestedType {
    /// Every value, in the order of the help text.
    pub const ALL: [Self; 4] = [Self::Embedding, Self::Classifier, Self::Reranker, Self::ListwiseReranker];

    /// The value as the user types it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Classifier => "classifier",
            Self::Reranker => "reranker",
            Self::ListwiseReranker => "listwise-reranker",
        }
    }
}

impl fmt::Display for RequestedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RequestedType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::as_str).join(", ");
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| format!("`{text}` is not one of {names}"))
    }
}

/// The flags that decide the kind of a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct KindFlags {
    /// `--model-type`
    pub model_type: Option<RequestedType>,
    /// `--pooling`. Without `--model-type` it asks for embeddings. For a model with a classification head it
    /// is ignored, as in TEI.
    pub pooling: Option<Pool>,
}

/// A kind, and the reason for it.
type Detected = Result<(ModelType, String), DetectError>;

/// Decides the kind of a model by the rules at the top of this file, and gives the reason in words.
///
/// # Errors
///
/// [`DetectError`] if files and flags leave the kind open or contradict each other.
pub fn detect(facts: &ModelFacts, flags: &KindFlags) -> Detected {
    match (flags.model_type, flags.pooling) {
        (Some(requested), pooling) => {
            Ok((from_flag(facts, requested, pooling)?, "`--model-type` says so".to_owned()))
        }
        (None, Some(Pool::Splade)) if facts.is_masked_model() || !facts.is_classification() => {
            Ok((splade(facts)?, "`--pooling` asks for sparse embeddings".to_owned()))
        }
        (None, Some(pool)) if !facts.is_classification() => {
            Ok((ModelType::Embedding(pool), "`--pooling` asks for embeddings".to_owned()))
        }
        (None, _) => from_files(facts),
    }
}

fn from_flag(
    facts: &ModelFacts,
    requested: RequestedType,
    pooling: Option<Pool>,
) -> Result<ModelType, DetectError> {
    let name = facts.name.clone();
    let architecture = facts.architecture();
    match (requested, pooling) {
        (RequestedType::Embedding, Some(Pool::Splade)) => splade(facts),
        (RequestedType::Embedding, Some(pool)) => Ok(ModelType::Embedding(pool)),
        (RequestedType::Embedding, None) if facts.has_module("SpladePooling") => splade(facts),
        (RequestedType::Embedding, None) if facts.has_pooling => pooling_of_files(facts),
        (RequestedType::Embedding, None) if facts.is_bert() => Ok(ModelType::Embedding(Pool::Cls)),
        (RequestedType::Embedding, None) if facts.evidence().embedder().is_some() => {
            Ok(ModelType::Embedding(Pool::LastToken))
        }
        (RequestedType::Embedding, None) => Err(DetectError::NoPooling { name, architecture }),
        (_, Some(pooling)) => Err(DetectError::PoolingWithoutEmbedding { model_type: requested, pooling }),
        (RequestedType::ListwiseReranker, None)
            if facts.is_causal()
                || facts.has_logit_score()
                || facts.kind_of_family() == Some(ModelType::ListwiseReranker) =>
        {
            Ok(ModelType::ListwiseReranker)
        }
        (RequestedType::ListwiseReranker, None) => Err(DetectError::NotCausal { name, architecture }),
        (RequestedType::Reranker, None)
            if facts.ends_in_scores
                || facts.has_unnamed_score
                || facts.kind_of_family() == Some(ModelType::Reranker) =>
        {
            Ok(ModelType::Reranker)
        }
        (_, None) if !facts.is_classification() => {
            Err(DetectError::NoClassificationHead { model_type: requested, name, architecture })
        }
        (RequestedType::Reranker, None) if facts.labels > 2 => {
            Err(DetectError::SeveralLabels { name, labels: facts.labels })
        }
        (RequestedType::Reranker, None) => Ok(ModelType::Reranker),
        (RequestedType::Classifier, None) => Ok(ModelType::Classifier),
    }
}

fn from_files(facts: &ModelFacts) -> Detected {
    let found = |model_type, reason: &str| Ok((model_type, reason.to_owned()));
    if facts.has_logit_score() {
        return found(ModelType::ListwiseReranker, "modules.json names a LogitScore");
    }
    if facts.ends_in_scores {
        return found(ModelType::Reranker, "modules.json ends in a score");
    }
    if facts.is_classification() {
        return if facts.labels == 1 {
            found(ModelType::Reranker, "config.json names a classification head with one label")
        } else {
            found(ModelType::Classifier, "config.json names a classification head with several labels")
        };
    }
    if facts.has_unnamed_score {
        return found(ModelType::Reranker, "its weights hold a classification head with one label");
    }
    if facts.has_module("SpladePooling") {
        return found(splade(facts)?, "modules.json names a SpladePooling");
    }
    if facts.has_pooling {
        return found(pooling_of_files(facts)?, "its files name a pooling");
    }
    if facts.is_bert() && !facts.is_causal() {
        let reason = "config.json names a kind of BERT, and nothing says how it pools; give `--pooling` if \
            not by its first token";
        return found(ModelType::Embedding(Pool::Cls), reason);
    }
    from_hints(facts)
}

/// Rules 5 and 7, for causal language models and models without any hints.
fn from_hints(facts: &ModelFacts) -> Detected {
    let name = facts.name.clone();
    if facts.template_has_roles && facts.is_causal() {
        let reason = "its chat template has the roles query and document";
        return Ok((ModelType::ListwiseReranker, reason.to_owned()));
    }
    if let Some(reason) = facts.evidence().unserved() {
        return Err(DetectError::Unserved { name, reason });
    }
    if let Some(embedder) = facts.evidence().embedder() {
        return Ok((ModelType::Embedding(Pool::LastToken), format!("its name is that of {}", embedder.name)));
    }
    if let Some((family, reason)) = facts.family() {
        return Ok((family.kind(), format!("it is of the family {}: {reason}", family.name)));
    }
    if !facts.is_causal() {
        return Err(DetectError::NoPooling { name, architecture: facts.architecture() });
    }
    let hints = [
        (facts.is_reranker, "config.json says `is_reranker`"),
        (facts.is_named_reranker(), "its name says so, and config.json names a causal language model"),
    ];
    match hints.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, reason)) => Ok((ModelType::ListwiseReranker, reason.to_owned())),
        None => Err(DetectError::Ambiguous { name }),
    }
}

fn splade(facts: &ModelFacts) -> Result<ModelType, DetectError> {
    if facts.is_masked_model() {
        Ok(ModelType::Embedding(Pool::Splade))
    } else {
        Err(DetectError::NoMaskedHead { name: facts.name.clone(), architecture: facts.architecture() })
    }
}

fn pooling_of_files(facts: &ModelFacts) -> Result<ModelType, DetectError> {
    let unsupported = || DetectError::UnsupportedPooling { name: facts.name.clone() };
    facts.pool.map(ModelType::Embedding).ok_or_else(unsupported)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::fake_hub::{open, reranker_files, write_files};
    use super::*;

    const LISTWISE: Result<ModelType, &str> = Ok(ModelType::ListwiseReranker);
    const RERANKER: Result<ModelType, &str> = Ok(ModelType::Reranker);
    const CLASSIFIER: Result<ModelType, &str> = Ok(ModelType::Classifier);
    const LAST_TOKEN: Result<ModelType, &str> = Ok(ModelType::Embedding(Pool::LastToken));
    const MEAN: Result<ModelType, &str> = Ok(ModelType::Embedding(Pool::Mean));
    const SPLADE: Result<ModelType, &str> = Ok(ModelType::Embedding(Pool::Splade));
    const CLS: Result<ModelType, &str> = Ok(ModelType::Embedding(Pool::Cls));

    fn model(architecture: &str, name: &str) -> ModelFacts {
        ModelFacts {
            name: name.to_owned(),
            architectures: vec![architecture.to_owned()],
            labels: 2,
            ..ModelFacts::default()
        }
    }

    fn qwen(name: &str) -> ModelFacts {
        model("Qwen3ForCausalLM", name)
    }

    fn scored(facts: ModelFacts) -> ModelFacts {
        ModelFacts { modules: vec!["Transformer".to_owned(), "LogitScore".to_owned()], ..facts }
    }

    fn pooled(facts: ModelFacts, pool: Option<Pool>) -> ModelFacts {
        ModelFacts { has_pooling: true, pool, ..facts }
    }

    fn labelled(architecture: &str, labels: usize) -> ModelFacts {
        ModelFacts { labels, ..model(architecture, "head") }
    }

    fn asked(model_type: RequestedType) -> KindFlags {
        KindFlags { model_type: Some(model_type), pooling: None }
    }

    fn pooling(pool: Pool) -> KindFlags {
        KindFlags { model_type: None, pooling: Some(pool) }
    }

    fn kind(facts: &ModelFacts, flags: KindFlags) -> Result<ModelType, DetectError> {
        detect(facts, &flags).map(|(found, _)| found)
    }

    fn check(table: &[(&str, ModelFacts, KindFlags, Result<ModelType, &str>)]) {
        for (row, facts, flags, expected) in table {
            let found = kind(facts, *flags).map_err(|error| error.to_string());
            let as_expected = match (&found, expected) {
                (Ok(found), Ok(expected)) => found == expected,
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
            check_head(&serde_json::from_str(&config).unwrap(), &KindFlags { model_type, pooling: None })
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
        let last = Some(Pool::LastToken);
        let no_flags = KindFlags::default;
        let roles = ModelFacts { template_has_roles: true, ..qwen("model") };
        let says_so = ModelFacts { is_reranker: true, ..qwen("model") };
        let both = pooled(scored(qwen("Qwen3-Reranker-0.6B")), last);
        let said_of_bert = ModelFacts { is_reranker: true, ..model("BertModel", "bert") };
        check(&[
            ("official files", scored(qwen("Qwen3-Reranker-0.6B")), no_flags(), LISTWISE),
            ("official files, renamed folder", scored(qwen("model")), no_flags(), LISTWISE),
            ("older snapshot, by its id", qwen("Qwen3-Reranker-4B"), no_flags(), LISTWISE),
            ("local folder named so", qwen("my_RERANKER_v2"), no_flags(), LISTWISE),
            ("template with roles", roles.clone(), no_flags(), LISTWISE),
            ("is_reranker", says_so.clone(), no_flags(), LISTWISE),
            ("renamed, no hints", qwen("model"), no_flags(), Err("--model-type listwise-reranker")),
            ("renamed, no hints", qwen("model"), no_flags(), Err("--pooling last-token")),
            ("Qwen3-Embedding", pooled(qwen("Qwen3-Embedding-0.6B"), last), no_flags(), LAST_TOKEN),
            (
                "embedding with both words",
                pooled(qwen("embedding-for-reranker"), last),
                no_flags(),
                LAST_TOKEN,
            ),
            ("embedding in a folder named reranker", pooled(qwen("reranker"), last), no_flags(), LAST_TOKEN),
            ("embedding without pooling", qwen("Qwen3-Embedding-0.6B"), no_flags(), Err("--pooling")),
            ("both words, no pooling", qwen("Qwen3-Embedding-vs-Reranker"), no_flags(), Err("--model-type")),
            ("pooling goes before template", pooled(roles, last), no_flags(), LAST_TOKEN),
            ("pooling goes before is_reranker", pooled(says_so, Some(Pool::Mean)), no_flags(), MEAN),
            ("LogitScore goes before pooling", both, no_flags(), LISTWISE),
            (
                "LogitScore goes before the head",
                scored(labelled("Qwen3ForSequenceClassification", 1)),
                no_flags(),
                LISTWISE,
            ),
            ("head, one label", labelled("Qwen3ForSequenceClassification", 1), no_flags(), RERANKER),
            ("head, two labels", labelled("Qwen3ForSequenceClassification", 2), no_flags(), CLASSIFIER),
            (
                "head goes before pooling",
                pooled(labelled("BertForSequenceClassification", 1), last),
                no_flags(),
                RERANKER,
            ),
            (
                "head that only the weights have",
                ModelFacts { has_unnamed_score: true, ..model("JinaBertModel", "model") },
                no_flags(),
                RERANKER,
            ),
            ("token classification", labelled("BertForTokenClassification", 9), no_flags(), CLASSIFIER),
            ("BERT", pooled(model("BertModel", "bge"), Some(Pool::Cls)), no_flags(), CLS),
            ("BERT, no pooling", model("BertModel", "bge"), no_flags(), Err("--pooling")),
            ("BERT named reranker", model("BertModel", "bge-reranker"), no_flags(), Err("--model-type")),
            ("BERT with is_reranker", said_of_bert, no_flags(), Err("BertModel")),
            ("unknown pooling mode", pooled(qwen("e"), None), no_flags(), Err("1_Pooling/config.json")),
            ("no architecture", ModelFacts::default(), no_flags(), Err("no architecture")),
        ]);
    }

    #[test]
    fn flags_win() {
        use RequestedType::{Classifier, Embedding, ListwiseReranker, Reranker};
        let last = Some(Pool::LastToken);
        let one = || labelled("BertForSequenceClassification", 1);
        let embedding_model = || pooled(qwen("Qwen3-Embedding-0.6B"), last);
        let exclusive = KindFlags { model_type: Some(ListwiseReranker), pooling: last };
        let with_pooling = KindFlags { model_type: Some(Embedding), pooling: Some(Pool::Mean) };
        check(&[
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
            ("no head, asked to re-rank", scored(qwen("r")), asked(Reranker), Err("listwise-reranker")),
            ("no head, asked to classify", qwen("r"), asked(Classifier), Err("classification head")),
            ("head, asked to generate", one(), asked(ListwiseReranker), Err("--model-type reranker")),
            ("flags that exclude each other", qwen("r"), exclusive, Err("--pooling last-token")),
        ]);
    }

    #[test]
    fn tei_s_models() {
        let of = |model_type: &str, architecture: &str| ModelFacts {
            model_type: model_type.to_owned(),
            ..model(architecture, "m")
        };
        let with = |class: &str, facts: ModelFacts| ModelFacts { modules: vec![class.to_owned()], ..facts };
        let no_flags = KindFlags::default;
        let named = |facts: ModelFacts, name: &str| ModelFacts { name: name.to_owned(), ..facts };
        let gte = || of("new", "NewForTokenClassification");
        let splade = || with("SpladePooling", of("bert", "BertForMaskedLM"));
        let modular = || ModelFacts {
            ends_in_scores: true,
            ..pooled(of("modernbert", "ModernBertModel"), Some(Pool::Cls))
        };
        check(&[
            ("BERT", of("bert", "BertModel"), no_flags(), CLS),
            ("XLM-RoBERTa", of("xlm-roberta", "XLMRobertaModel"), no_flags(), CLS),
            (
                "ModernBERT, asked to embed",
                of("modernbert", "ModernBertModel"),
                asked(RequestedType::Embedding),
                CLS,
            ),
            ("masked model", of("bert", "BertForMaskedLM"), no_flags(), CLS),
            ("the flag goes before", of("bert", "BertModel"), pooling(Pool::Mean), MEAN),
            ("MPNet", of("mpnet", "MPNetModel"), no_flags(), Err("--pooling")),
            (
                "BERT named re-ranker",
                named(of("bert", "BertModel"), "bge-reranker"),
                no_flags(),
                Err("--pooling"),
            ),
            ("gte-multilingual-base", pooled(gte(), Some(Pool::Cls)), no_flags(), CLS),
            ("gte with labels", ModelFacts { names_labels: true, ..gte() }, no_flags(), CLASSIFIER),
            ("splade by modules", splade(), no_flags(), SPLADE),
            ("splade by modules, asked to embed", splade(), asked(RequestedType::Embedding), SPLADE),
            ("splade by flag", of("bert", "BertForMaskedLM"), pooling(Pool::Splade), SPLADE),
            ("splade without head", of("bert", "BertModel"), pooling(Pool::Splade), Err("ForMaskedLM")),
            (
                "splade without head",
                with("SpladePooling", of("bert", "BertModel")),
                no_flags(),
                Err("BertModel"),
            ),
            (
                "splade asked of a head",
                labelled("BertForSequenceClassification", 1),
                pooling(Pool::Splade),
                RERANKER,
            ),
            ("modular cross-encoder", modular(), no_flags(), RERANKER),
            ("modular cross-encoder, asked", modular(), asked(RequestedType::Reranker), RERANKER),
            ("modular cross-encoder, pooling given", modular(), pooling(Pool::Mean), MEAN),
        ]);
    }

    #[test]
    fn the_roles_are_found_as_literals() {
        let table = [
            (r#"{{ messages | selectattr("role", "eq", "query") }}{{ m["document"] }}"#, true),
            ("{% if m.role == 'query' %}{% elif m.role == 'document' %}{% endif %}", true),
            ("{% if m.role == 'user' %}Answer the query about the document{% endif %}", false),
            (r#"{% if m.role == "query" %}"#, false),
            ("", false),
        ];
        for (template, expected) in table {
            assert_eq!(template_has_roles(template), expected, "{template}");
        }
    }

    #[test]
    fn facts_of_a_folder_decide_as_the_table_does() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("renamed");
        let mut files = reranker_files();
        write_files(&root, &files);
        let kind =
            |root: &std::path::Path| kind(&ModelFacts::from(&open(root).unwrap()), KindFlags::default());
        assert_eq!(kind(&root), Ok(ModelType::ListwiseReranker));
        for extra in ["modules.json", "1_LogitScore/config.json", "chat_template.jinja"] {
            files.remove(extra);
        }
        let older = folder.path().join("Qwen3-Reranker-0.6B");
        write_files(&older, &files);
        assert_eq!(kind(&older), Ok(ModelType::ListwiseReranker));
        let renamed = folder.path().join("model");
        write_files(&renamed, &files);
        assert_eq!(kind(&renamed), Err(DetectError::Ambiguous { name: "model".to_owned() }));
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
        let qwen = || qwen("model");
        let table = [
            (scored(qwen()), KindFlags::default(), "LogitScore"),
            (
                scored(qwen()),
                KindFlags { model_type: Some(RequestedType::ListwiseReranker), pooling: None },
                "--model-type",
            ),
            (qwen(), pooling(Pool::Mean), "--pooling"),
            (labelled("Qwen3ForSequenceClassification", 1), KindFlags::default(), "one label"),
            (labelled("Qwen3ForSequenceClassification", 3), KindFlags::default(), "several labels"),
            (pooled(qwen(), Some(Pool::LastToken)), KindFlags::default(), "a pooling"),
            (
                ModelFacts { template_has_roles: true, is_reranker: true, ..qwen() },
                KindFlags::default(),
                "chat template",
            ),
            (ModelFacts { is_reranker: true, ..qwen() }, KindFlags::default(), "is_reranker"),
            (
                ModelFacts { has_unnamed_score: true, ..model("JinaBertModel", "jina-reranker-v1-tiny-en") },
                KindFlags::default(),
                "its weights hold",
            ),
            (ModelFacts { name: "My-Reranker".to_owned(), ..qwen() }, KindFlags::default(), "its name"),
        ];
        for (facts, flags, expected) in table {
            let (_, reason) = detect(&facts, &flags).unwrap();
            assert!(reason.contains(expected), "{reason}");
        }
    }
}

//! The flags that decide what a model is, and the table of the models that each flag is for.
//!
//! Input: the flags of the command line, typed. Output: a [`Refusal`] for a flag that would have no effect.
//! What must hold: a flag that does not apply is an error that names it; an empty value counts as not given.

use std::path::PathBuf;

use text_embeddings_backend_core::{BackendKind, ModelType, Pool, WeightChoices};

use super::{Calibration, Refusal, RequestedType, limits::LengthFlags};
use crate::families::{Family, ScoreRule};
use crate::tokenization::NamedAnswer;

/// The flags that decide what a model is. Values that are empty on the command line are absent here, except
/// for texts that may be empty.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the other fields have the names of their flags")]
pub struct ModelFlags {
    pub model_type: Option<RequestedType>,
    pub pooling: Option<Pool>,
    pub backend: BackendKind,
    /// `--dense-path`: the folder of the only dense module; absent: the dense modules of modules.json.
    pub dense_path: Option<String>,
    /// `--lora-task` and `--cutoff-layers`
    pub weights: WeightChoices,
    /// `--default-prompt`, which may be empty: no prompt.
    pub default_prompt: Option<String>,
    pub default_prompt_name: Option<String>,
    /// `--no-cosine-rerank` and `--maxsim-rerank`
    pub embedder_ranking: EmbedderRanking,
    /// `--default-instruction`, which may be empty: no instruction.
    pub default_instruction: Option<String>,
    pub chat_template: Option<PromptFlag>,
    /// `--parse-special-tokens`: whether control tokens in a client's text take effect.
    pub parse_special_tokens: bool,
    /// `--ignore-instruction`: whether a request's instruction is ignored if the prompt has no place for one.
    pub ignore_instruction: bool,
    pub rerank_true_token: Option<NamedAnswer>,
    pub rerank_false_token: Option<NamedAnswer>,
    pub rerank_activation: Option<ScoreRule>,
    pub calibration: Option<Calibration>,
    /// The flags about lengths.
    pub lengths: LengthFlags,
    /// The flags of [`FLAGS`] that were given, by name, in any order.
    pub given: Vec<&'static str>,
}

/// How an embedding model re-ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EmbedderRanking {
    /// By the cosine of whole texts' vectors.
    #[default]
    Cosine,
    /// By the vectors of tokens.
    MaxSim,
    /// Not at all, as text-embeddings-inference.
    Refused,
}

/// `--chat-template`: where a re-ranker's prompt comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptFlag {
    /// The prompt of a family.
    Builtin(&'static Family),
    /// A Jinja file with the roles system, query and document.
    File {
        /// Its path.
        path: PathBuf,
        /// Its text.
        source: String,
    },
}

/// The kinds of models that a flag is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KindScope {
    Any,
    Embedders,
    Rerankers,
    /// Re-rankers, and embedding models that re-rank by cosine.
    Ranking,
    /// Re-rankers that answer a prompt.
    Generative,
    /// Re-rankers and deciders.
    Prompted,
}

impl KindScope {
    fn has_kind(self, model_type: ModelType) -> bool {
        match self {
            Self::Any => true,
            Self::Embedders => matches!(model_type, ModelType::Embedding(_)),
            Self::Rerankers => matches!(model_type, ModelType::Reranker | ModelType::ListwiseReranker),
            Self::Ranking => {
                Self::Rerankers.has_kind(model_type)
                    || matches!(model_type, ModelType::Embedding(pool) if pool != Pool::Splade)
            }
            Self::Generative => model_type == ModelType::ListwiseReranker,
            Self::Prompted => Self::Rerankers.has_kind(model_type) || model_type == ModelType::Decider,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Any => "all models",
            Self::Embedders => "embedding models",
            Self::Rerankers => "re-rankers",
            Self::Ranking => "models that re-rank",
            Self::Generative => "generative re-rankers",
            Self::Prompted => "re-rankers and deciders",
        }
    }
}

/// A flag, and the models, backends and devices that it is for.
#[derive(Debug)]
pub struct FlagScope {
    /// The flag.
    pub name: &'static str,
    kinds: KindScope,
    backends: &'static [BackendKind],
    /// Whether it is about the CPU only.
    on_cpu: bool,
}

const fn on_any_device(name: &'static str, kinds: KindScope, backends: &'static [BackendKind]) -> FlagScope {
    FlagScope { name, kinds, backends, on_cpu: false }
}

const CANDLE: &[BackendKind] = &[BackendKind::Candle];
const PYTHON: &[BackendKind] = &[BackendKind::Python];

/// Every flag that is not for all models. The first one that does not apply is named in the error.
pub const FLAGS: [FlagScope; 19] = [
    on_any_device("--onnx-file", KindScope::Any, &[BackendKind::Ort]),
    on_any_device("--python", KindScope::Any, PYTHON),
    on_any_device("--trust-remote-code", KindScope::Any, PYTHON),
    FlagScope { name: "--instruction-set", kinds: KindScope::Any, backends: CANDLE, on_cpu: true },
    FlagScope { name: "--pin-threads", kinds: KindScope::Any, backends: CANDLE, on_cpu: true },
    on_any_device("--default-instruction", KindScope::Rerankers, &BackendKind::ALL),
    on_any_device("--chat-template", KindScope::Prompted, &BackendKind::ALL),
    on_any_device("--rerank-activation", KindScope::Rerankers, &BackendKind::ALL),
    on_any_device("--calibration", KindScope::Prompted, &BackendKind::ALL),
    on_any_device("--cutoff-layers", KindScope::Rerankers, CANDLE),
    on_any_device("--min-score", KindScope::Ranking, &BackendKind::ALL),
    on_any_device("--ignore-instruction", KindScope::Ranking, &BackendKind::ALL),
    on_any_device("--rerank-true-token", KindScope::Generative, &BackendKind::ALL),
    on_any_device("--default-prompt", KindScope::Embedders, &BackendKind::ALL),
    on_any_device("--default-prompt-name", KindScope::Embedders, &BackendKind::ALL),
    on_any_device("--no-cosine-rerank", KindScope::Embedders, &BackendKind::ALL),
    on_any_device("--maxsim-rerank", KindScope::Embedders, CANDLE),
    on_any_device("--dense-path", KindScope::Embedders, &[BackendKind::Candle, BackendKind::Ort]),
    on_any_device("--lora-task", KindScope::Embedders, CANDLE),
];

impl ModelFlags {
    /// The family that `--chat-template` names.
    pub fn named_family(&self) -> Option<&'static Family> {
        match self.chat_template {
            Some(PromptFlag::Builtin(family)) => Some(family),
            _ => None,
        }
    }

    fn given_scopes(&self) -> impl Iterator<Item = &'static FlagScope> {
        FLAGS.iter().filter(|flag| self.given.contains(&flag.name))
    }

    /// Refuses flags that the chosen backend, or the `device` of this build (`cpu`, `cuda`, `metal`), does
    /// not obey. It needs no model.
    ///
    /// # Errors
    ///
    /// [`Refusal::Kind`].
    pub fn check_backend(&self, device: &'static str) -> Result<(), Refusal> {
        let backend = self.backend;
        for FlagScope { name: flag, backends, on_cpu, .. } in self.given_scopes() {
            if !backends.contains(&backend) {
                let others: Vec<_> = backends.iter().map(|kind| format!("`--backend {kind}`")).collect();
                return Err(Refusal::Kind(format!(
                    "`{flag}` is for {}, but `--backend {backend}` is chosen: leave it out",
                    others.join(" or ")
                )));
            }
            if *on_cpu && device != "cpu" {
                return Err(Refusal::Kind(format!(
                    "`{flag}` is for the CPU, but {device} computes: leave it out"
                )));
            }
        }
        Ok(())
    }

    /// Refuses flags that have no meaning for a model of this kind.
    pub(crate) fn check_kind(&self, model_type: ModelType, model_id: &str) -> Result<(), Refusal> {
        match self.given_scopes().find(|flag| !flag.kinds.has_kind(model_type)) {
            Some(FlagScope { name: flag, kinds, .. }) => {
                let of = kinds.as_str();
                Err(Refusal::Kind(format!(
                    "`{flag}` is for {of}, but `{model_id}` is served as {model_type}: leave it out, or see \
                     `--model-type`"
                )))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(flags: &[&'static str]) -> ModelFlags {
        ModelFlags { given: flags.to_vec(), ..ModelFlags::default() }
    }

    #[test]
    fn a_flag_of_another_backend_is_refused() {
        use BackendKind::{Candle, Ort, Python};
        for (flag, obeying) in [
            ("--onnx-file", &[Ort][..]),
            ("--python", &[Python]),
            ("--trust-remote-code", &[Python]),
            ("--dense-path", &[Candle, Ort]),
            ("--lora-task", &[Candle]),
            ("--cutoff-layers", &[Candle]),
            ("--instruction-set", &[Candle]),
            ("--pin-threads", &[Candle]),
            ("--default-prompt", &BackendKind::ALL),
        ] {
            for backend in BackendKind::ALL {
                let flags = ModelFlags { backend, ..given(&[flag]) };
                let message = flags.check_backend("cpu").err().map(|error| error.to_string());
                assert_eq!(message.is_none(), obeying.contains(&backend), "{flag} {backend}");
                let Some(message) = message else { continue };
                assert!(
                    message.starts_with(&format!("`{flag}` is for `--backend {}`", obeying[0])),
                    "{message}"
                );
                let end = format!("but `--backend {backend}` is chosen: leave it out");
                assert!(message.ends_with(&end), "{message}");
            }
        }
        for backend in BackendKind::ALL {
            assert!(ModelFlags { backend, ..given(&[]) }.check_backend("cuda").is_ok());
        }
        let both = given(&["--dense-path"]);
        let message =
            ModelFlags { backend: Python, ..both }.check_backend("cpu").err().map(|it| it.to_string());
        assert!(message.is_some_and(|it| it.contains("`--backend candle` or `--backend ort`")));
    }

    #[test]
    fn a_flag_about_the_cpu_is_refused_on_another_device() {
        for (flag, device, expected) in [
            ("--pin-threads", "cpu", None),
            (
                "--pin-threads",
                "cuda",
                Some("`--pin-threads` is for the CPU, but cuda computes: leave it out"),
            ),
            (
                "--instruction-set",
                "metal",
                Some("`--instruction-set` is for the CPU, but metal computes: leave it out"),
            ),
            ("--lora-task", "cuda", None),
        ] {
            let message = given(&[flag]).check_backend(device).err().map(|error| error.to_string());
            assert_eq!(message.as_deref(), expected);
        }
    }

    #[test]
    fn a_flag_of_another_kind_is_refused() {
        let (embedding, cls) = (ModelType::Embedding(Pool::LastToken), ModelType::Embedding(Pool::Cls));
        let table = [
            (ModelType::Embedding(Pool::Splade), &["--default-prompt"][..], None),
            (cls, &["--default-prompt", "--dense-path", "--lora-task"], None),
            (embedding, &["--default-prompt-name"], None),
            (embedding, &["--min-score", "--ignore-instruction"], None),
            (
                ModelType::Embedding(Pool::Splade),
                &["--min-score"],
                Some("`--min-score` is for models that re-rank, but `m`"),
            ),
            (
                embedding,
                &["--default-instruction"],
                Some("`--default-instruction` is for re-rankers, but `m`"),
            ),
            (embedding, &["--chat-template"], Some("is for re-rankers and deciders, but `m`")),
            (ModelType::Decider, &["--chat-template"], None),
            (ModelType::Decider, &["--min-score"], Some("`--min-score` is for models that re-rank, but `m`")),
            (ModelType::Classifier, &["--default-instruction"], Some("is served as classifier")),
            (ModelType::Classifier, &["--ignore-instruction"], Some("is for models that re-rank")),
            (
                ModelType::Classifier,
                &["--default-prompt"],
                Some("`--default-prompt` is for embedding models"),
            ),
            (ModelType::Reranker, &["--default-instruction", "--chat-template", "--cutoff-layers"], None),
            (
                ModelType::Reranker,
                &["--default-prompt-name"],
                Some("`--default-prompt-name` is for embedding"),
            ),
            (ModelType::Reranker, &["--rerank-true-token"], Some("is for generative re-rankers, but `m`")),
            (ModelType::Reranker, &["--lora-task"], Some("`--lora-task` is for embedding models")),
            (ModelType::ListwiseReranker, &["--dense-path"], Some("`--dense-path` is for embedding models")),
            (ModelType::ListwiseReranker, &["--rerank-true-token", "--rerank-activation"], None),
            (cls, &["--cutoff-layers"], Some("`--cutoff-layers` is for re-rankers")),
            (cls, &["--rerank-activation"], Some("`--rerank-activation` is for re-rankers")),
        ];
        for (model_type, flags, expected) in table {
            let message = given(flags).check_kind(model_type, "m").map_err(|error| error.to_string()).err();
            assert_eq!(message.is_some(), expected.is_some(), "{flags:?}: {message:?}");
            let message = message.unwrap_or_default();
            assert!(message.contains(expected.unwrap_or_default()), "{flags:?}: {message}");
        }
    }
}

//! A re-ranker: how it reads query and document, its answers, its score, its instruction, and the source of
//! each.
//!
//! Input: flags, the model's files and its tokenizer. Output: a [`Reranker`] and its head. What must hold:
//! flags take precedence over the repository's files, and these over the model's family; a model is refused
//! if its prompt is not known or two sources contradict each other, because wrong scores come without an
//! error.

mod answers;
mod prompt;

use std::fmt;

use text_embeddings_backend_core::{Activation, Head, ModelType, TokenHead};
use tokenizers::Tokenizer;

use self::answers::{answer_words, find_answers};
use self::prompt::{FoundPrompt, find_prompt, list_family, no_prompt, refuse_prompt_flags};
use super::{ModelFlags, Refusal, RerankScoring, Sourced};
use crate::families::{Family, ScoreRule};
use crate::files::{
    Expansion, LateInteraction, Marking, ModelFolder, class_labels, positive_label, scores_head,
};
use crate::templates::PromptTemplate;
use crate::tokenization::{ExpansionToken, LateTokens, Marker, Side, SideTokens};

pub use self::prompt::Reading;
pub(super) use self::prompt::recommended_limits;

/// A re-ranker, and where each decision about it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reranker {
    /// Whether it answers a prompt, instead of ending in a classification head: `listwise-reranker` on the
    /// command line.
    pub is_generative: bool,
    /// The family, and the reason for it.
    pub family: Option<Sourced<&'static Family>>,
    /// How it reads query and document.
    pub reading: Reading,
    /// Where the prompt comes from.
    pub prompt_source: String,
    /// A generative re-ranker's answers with their source, in words.
    pub answers: Option<String>,
    /// The label of each class of its head. `["yes"]` for a generative re-ranker.
    pub labels: Vec<String>,
    /// How its prompts give raw scores.
    pub scoring: RerankScoring,
    /// How it makes tokens of queries and documents, if it reads them apart.
    pub late: Option<LateTokens>,
    /// The rule from raw scores to scores. For a sum over the vectors of a query, it takes the mean.
    pub score: Sourced<ScoreRule>,
    /// The function that sentence-transformers applies to the raw score, such as `identity`; absent for a
    /// head with several classes.
    pub score_activation: Option<String>,
    /// The number of layers after which a layer-wise re-ranker scores.
    pub cutoff_layers: Option<usize>,
    /// The instruction of requests without one. If absent, they get the template's form without an
    /// instruction.
    pub instruction: Option<String>,
}

impl Reranker {
    /// Decides prompt, answers, score and instruction.
    pub(super) fn resolve(
        files: &ModelFolder,
        tokenizer: &Tokenizer,
        flags: &ModelFlags,
        model_type: ModelType,
    ) -> Result<(Self, Head), Refusal> {
        if let Some(late) = &files.late_interaction {
            return late_reranker(late, files, tokenizer, flags);
        }
        let is_generative = model_type == ModelType::ListwiseReranker;
        let ClassHead { head, labels, positive } = class_head(files, is_generative)?;
        let cutoff_layers = files.description.cutoff_layers;
        let base = Self { is_generative, labels, cutoff_layers, ..Self::default() };
        if let Some(family) = list_family(files, tokenizer, flags)? {
            let reading = Reading::Template(PromptTemplate::builtin(family.value));
            let model = Self {
                prompt_source: format!("that of the family {}: {}", family.value.name, family.source),
                scoring: RerankScoring::Lists,
                score: score_rule(flags, Some(family.value), None),
                instruction: default_instruction(files, flags, &reading, Some(family.value))?,
                family: Some(family),
                reading,
                ..base
            };
            return Ok((model, Head::PROJECTOR));
        }
        let FoundPrompt { family, agrees, reading } = find_prompt(files, tokenizer, flags, is_generative)?;
        let family = if agrees || flags.named_family().is_some() { family } else { None };
        let row = family.as_ref().map(|family| family.value);
        let answers = if is_generative { Some(find_answers(files, tokenizer, flags, row)?) } else { None };
        let activation = score_activation(files, &base.labels);
        let model = Self {
            answers: answers.as_ref().map(|answers| answer_words(answers, tokenizer)),
            scoring: RerankScoring::Logits { positive },
            score: score_rule(flags, row, activation.as_deref()),
            score_activation: activation,
            instruction: default_instruction(files, flags, &reading.value, row)?,
            reading: reading.value,
            prompt_source: reading.source,
            family,
            ..base
        };
        let head = head.or(answers.map(|answers| Head::answers(answers.value)));
        // A re-ranker without a classification head is generative, so that it has answers.
        Ok((model, head.ok_or_else(|| no_prompt(files))?))
    }

    /// The instruction of requests without one, as `/info` tells it; absent if the model takes none.
    pub fn shown_instruction(&self) -> Option<&str> {
        let takes_instruction = match &self.reading {
            Reading::Joined => false,
            Reading::Template(template) => template.has_instruction(),
        };
        if takes_instruction { Some(self.instruction.as_deref().unwrap_or_default()) } else { None }
    }

    /// The default score, between 0 and 1 as in TEI. `per_vector` is the raw score, or its mean over the
    /// query's vectors if it is a sum.
    pub fn default_score(&self, raw: f32, per_vector: f32) -> f32 {
        let rule = self.score.value;
        rule.apply(if rule == ScoreRule::Identity { raw } else { per_vector })
    }

    /// Whether a document's score depends on the other documents of its request.
    pub fn reads_lists(&self) -> bool {
        self.scoring == RerankScoring::Lists
    }
}

impl fmt::Display for Reranker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.family {
            Some(family) => {
                write!(f, "The re-ranker is of the family {}: {}; ", family.value.name, family.source)?;
            }
            None if self.late.is_some() => {
                f.write_str("It compares queries and documents token by token; ")?;
            }
            None => f.write_str("The re-ranker is of no known family; ")?,
        }
        write!(f, "the prompt is {}; ", self.prompt_source)?;
        if let Some(answers) = &self.answers {
            write!(f, "raw scores are the logit of {answers}; ")?;
        }
        if let Some(layers) = self.cutoff_layers {
            write!(f, "it scores after {layers} layers; ")?;
        }
        if self.reads_lists() {
            f.write_str(
                "documents of a request are read together and compared by their vectors, so that a score \
                 depends on the others; ",
            )?;
        }
        if self.scoring == RerankScoring::MaxSim {
            f.write_str(
                "raw scores are the sum of the best cosines of the query's vectors, and x is their mean; ",
            )?;
        }
        write!(f, "scores are {} of the raw score x, by {}", self.score.value, self.score.source)
    }
}

/// A re-ranker that reads queries and documents apart.
fn late_reranker(
    late: &LateInteraction,
    files: &ModelFolder,
    tokenizer: &Tokenizer,
    flags: &ModelFlags,
) -> Result<(Reranker, Head), Refusal> {
    refuse_prompt_flags(files, flags)?;
    let model = Reranker {
        labels: vec!["LABEL_0".to_owned()],
        prompt_source: if late.markers.iter().all(String::is_empty) {
            "none: queries and documents are read as they are".to_owned()
        } else {
            "a marker in front of each query and document".to_owned()
        },
        scoring: RerankScoring::MaxSim,
        late: Some(late_tokens(late, files, tokenizer)?),
        score: match flags.rerank_activation {
            Some(rule) => Sourced::new(rule, "`--rerank-activation`"),
            None => Sourced::new(ScoreRule::COSINE, "the rule for late interaction"),
        },
        instruction: default_instruction(files, flags, &Reading::Joined, None)?,
        ..Reranker::default()
    };
    let tokens = Some(TokenHead::Modules(files.head_modules.clone()));
    Ok((model, Head { whole: None, tokens, sparse: None }))
}

/// The ids of markers, expansion and skipped tokens.
fn late_tokens(
    late: &LateInteraction,
    files: &ModelFolder,
    tokenizer: &Tokenizer,
) -> Result<LateTokens, Refusal> {
    let query = side_tokens(Side::Query, late, files, tokenizer)?;
    let document = side_tokens(Side::Document, late, files, tokenizer)?;
    let expansion = match &late.expansion {
        None => None,
        Some(Expansion { is_attended, length, token }) => {
            let token = token.clone().unwrap_or_default();
            let Some(id) = tokenizer.token_to_id(&token) else {
                return Err(no_late_token("token that fills queries", &token));
            };
            let length = (*length).min(max_positions(files));
            if !is_attended {
                check_unattended(files, length)?;
            }
            Some(ExpansionToken { id, is_attended: *is_attended, length })
        }
    };
    let skipped = late.skipped.iter().filter_map(|word| tokenizer.token_to_id(word)).collect();
    Ok(LateTokens { query, document, expansion, skipped })
}

/// The refusal of a tokenizer without a token of the late-interaction model.
fn no_late_token(what: &str, token: &str) -> Refusal {
    Refusal::Other(format!(
        "the late-interaction model's {what} is `{token}`, which is not a token of tokenizer.json: its vectors would \
         be others; download the tokenizer again"
    ))
}

fn side_tokens(
    side: Side,
    late: &LateInteraction,
    files: &ModelFolder,
    tokenizer: &Tokenizer,
) -> Result<SideTokens, Refusal> {
    let marker = &late.markers[side as usize];
    let id = match late.marking {
        Marking::Token => {
            let spellings = [marker.as_str(), marker.trim_end()];
            let found = spellings.into_iter().find_map(|marker| tokenizer.token_to_id(marker));
            if found.is_none() && !marker.is_empty() {
                return Err(no_late_token("marker", marker));
            }
            found
        }
        Marking::Prompt => tokenizer.token_to_id(marker),
    };
    let follows_specials = late.marking == Marking::Prompt;
    let length = late.lengths[side as usize].or(files.model_max_length).unwrap_or(usize::MAX);
    Ok(SideTokens {
        marker: id.map(|id| Marker { id, follows_specials }),
        prompt: if follows_specials { marker.clone() } else { String::new() },
        max_length: length.min(max_positions(files)),
    })
}

/// The most tokens for which the model has positions.
fn max_positions(files: &ModelFolder) -> usize {
    files.description.max_length.unwrap_or(usize::MAX)
}

/// Refuses tokens to which no token attends where they would see nothing, or change the other tokens: a delta
/// rule knows no such tokens, and a convolution with the token in its middle reaches the first of them.
fn check_unattended(files: &ModelFolder, query_length: usize) -> Result<(), Refusal> {
    let model_type = files.config.model_type.as_deref().unwrap_or_default();
    let window = files.config.raw["local_attention"].as_u64().unwrap_or(128) as usize;
    let mixes =
        model_type.starts_with("qwen3_5") || model_type.starts_with("lfm2") && !files.description.is_causal;
    if mixes || model_type == "modernbert" && query_length > window / 2 {
        return Err(Refusal::Other(format!(
            "the files fill queries up to {query_length} tokens that are not attended to, which is not supported for \
             Qwen3.5, for bidirectional LFM2, and beyond half a window of ModernBERT: give \
             `attend_to_expansion_tokens` or `do_query_expansion` of config_sentence_transformers.json another \
             value only if the model was trained so"
        )));
    }
    Ok(())
}

/// The classification head of a re-ranker, if it has one, and the labels of its classes.
struct ClassHead {
    head: Option<Head>,
    labels: Vec<String>,
    positive: Option<usize>,
}

/// The head by the files. A generative re-ranker has none: its answers are its head.
fn class_head(files: &ModelFolder, is_generative: bool) -> Result<ClassHead, Refusal> {
    let one_label = |label: &str, head| ClassHead { head, labels: vec![label.to_owned()], positive: None };
    if is_generative {
        return Ok(one_label("yes", None));
    }
    if files.ends_in_scores {
        return Ok(one_label("LABEL_0", Some(scores_head(files)?)));
    }
    if files.has_unnamed_score || has_family_head(files) {
        return Ok(one_label("LABEL_0", Some(Head::classification(1))));
    }
    let labels = class_labels(&files.config)?;
    let positive = if labels.len() == 2 { Some(positive_label(&files.name(), &labels)?) } else { None };
    Ok(ClassHead { head: Some(Head::classification(labels.len())), labels, positive })
}

/// Whether the checkpoint has a head that only the architecture of its family describes.
fn has_family_head(files: &ModelFolder) -> bool {
    let is_named = files.config.architectures.iter().any(|name| name.ends_with("Classification"));
    let family = files.evidence().family();
    !is_named && family.is_some_and(|(family, _)| family.kind() == ModelType::Reranker)
}

/// The rule of default scores: by flag, family, else the sigmoid as in TEI. Its source says so if
/// sentence-transformers applies another function, the model's own `activation`.
fn score_rule(flags: &ModelFlags, family: Option<&Family>, activation: Option<&str>) -> Sourced<ScoreRule> {
    if let Some(rule) = flags.rerank_activation {
        return Sourced::new(rule, "`--rerank-activation`");
    }
    if let Some((rule, path)) = flags.calibration.as_ref().and_then(|it| Some((it.score?, &it.path))) {
        return Sourced::new(rule, format!("`--calibration {}`", path.display()));
    }
    let (rule, mut source) = match family {
        Some(family) => (family.score, format!("the family {}", family.name)),
        None => (ScoreRule::SIGMOID, "the rule for all re-rankers".to_owned()),
    };
    if let Some(activation) = activation
        && activation != rule.to_string()
    {
        source += "; sentence-transformers applies the model's own activation, ";
        source += activation;
        source += ", instead";
    }
    Sourced::new(rule, source)
}

/// sentence-transformers' function in a word, such as `identity`, or by its name in the files if it is not
/// known here. As there, it is the sigmoid if the files name none.
fn score_activation(files: &ModelFolder, labels: &[String]) -> Option<String> {
    if labels.len() != 1 {
        return None;
    }
    let named = files.score_activation.as_deref();
    let known = named.map_or(Some(Activation::Sigmoid), Activation::from_torch);
    known.map(|activation| activation.to_string()).or_else(|| named.map(str::to_owned))
}

/// The instruction of requests without one: by flag, else by the repository's default prompt, the template or
/// the family. Absent if the template has a form of its own for such requests, or no place for an
/// instruction.
fn default_instruction(
    files: &ModelFolder,
    flags: &ModelFlags,
    reading: &Reading,
    family: Option<&Family>,
) -> Result<Option<String>, Refusal> {
    let flag = flags.default_instruction.as_deref();
    let is_given = flag.is_some_and(|instruction| !instruction.is_empty());
    let named = files.default_prompt_name.as_ref().and_then(|name| files.prompts.get(name));
    let template = match reading {
        Reading::Joined if is_given => {
            return Err(Refusal::Instruction(format!(
                "`--default-instruction` has no place in `{}`, which reads query and document without a prompt: leave \
                 it out, or give `--chat-template FILE`",
                files.model_id
            )));
        }
        Reading::Template(template) if template.has_instruction() => template,
        Reading::Template(_) if is_given => {
            let message = "`--default-instruction` has no place in this model's prompt: leave it out, or choose \
                           another prompt with `--chat-template`";
            return Err(Refusal::Instruction(message.to_owned()));
        }
        Reading::Joined => {
            return match named.filter(|prompt| !prompt.is_empty()) {
                Some(prompt) => Err(Refusal::Instruction(format!(
                    "`default_prompt_name` of config_sentence_transformers.json puts `{prompt}` before each query, \
                     which is not supported for a re-ranker that reads query and document without a prompt: remove \
                     it there, and put the text into the queries"
                ))),
                None => Ok(None),
            };
        }
        Reading::Template(_) => return Ok(None),
    };
    let has_bare_form = template.has_bare_form();
    let of_family = if has_bare_form { None } else { family.and_then(|family| family.default_instruction) };
    let instruction = flag.or(named.map(String::as_str)).or(template.default_instruction()).or(of_family);
    if instruction.is_none() && !has_bare_form {
        let message = "the model's chat template wants an instruction, and neither it nor the repository has one: give \
                       `--default-instruction`";
        return Err(Refusal::Instruction(message.to_owned()));
    }
    Ok(instruction.map(str::to_owned))
}

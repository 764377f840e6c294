//! A file's tensors under their names in `transformers`, without the changes that llama.cpp's converter made.
//!
//! What must hold: a tensor without an entry in its architecture's row is an error, because dropping it would
//! silently change scores.

use super::{
    File,
    architectures::{DENSE, DIVISORS, DecoderStyle, GgufArchitecture, TransformerKind},
};
use crate::{CheckpointError, Tensor, insert};
use std::collections::BTreeMap;

/// The special tokens around texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separators {
    /// Those that switches in the file name.
    Switched,
    /// `RoBERTa`'s: two between the texts of a pair.
    Double,
    /// BERT's: one after each text.
    Single,
}

/// The special tokens around the texts of a file's model.
pub fn separators(file: &File) -> Separators {
    match GgufArchitecture::from_file(file).map(|architecture| architecture.body) {
        Ok(
            TransformerKind::Bert
            | TransformerKind::Nomic
            | TransformerKind::JinaAlibi
            | TransformerKind::JinaRotary,
        ) => Separators::Double,
        Ok(TransformerKind::Modern) => Separators::Single,
        Ok(TransformerKind::Decoder(_)) | Err(_) => Separators::Switched,
    }
}

/// The ids of the answer tokens, if the re-ranker's head is two rows of the output embedding. Its labels are
/// then tokens of the model.
pub(super) fn answers(file: &File) -> Option<Vec<usize>> {
    let TransformerKind::Decoder(_) = GgufArchitecture::from_file(file).ok()?.body else { return None };
    let labels = labels(file)?;
    let tokens = file.metadata.texts("tokenizer.ggml.tokens")?;
    if labels != ["yes", "no"] || file.shape("cls.output.weight")?.first() != Some(&labels.len()) {
        return None;
    }
    labels.iter().map(|label| tokens.iter().position(|token| token == label)).collect()
}

/// The labels of the head that computes scores.
pub(super) fn labels(file: &File) -> Option<&[String]> {
    file.metadata.texts(&format!("{}.classifier.output_labels", file.architecture()))
}

/// The tensors under their names in `transformers`, with their values in the order of `transformers`.
pub(crate) fn tensors(file: &File) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    let architecture = GgufArchitecture::from_file(file)?;
    let answers = answers(file);
    let vocabulary = file.shape("token_embd.weight").and_then(|shape| shape.first()).copied().unwrap_or(0);
    let count = |name: &str| file.metadata.number(&format!("{}.attention.{name}", architecture.name));
    let heads = |name: &str| count(name).or_else(|| count("head_count")).unwrap_or(0);
    let mut found = BTreeMap::new();
    let elsewhere: &[&str] = match architecture.body {
        TransformerKind::Decoder(DecoderStyle::Gemma) => &DENSE,
        TransformerKind::Decoder(_) => &[DIVISORS],
        _ => &[],
    };
    for (name, tensor) in file.tensors.iter().filter(|(name, _)| !elsewhere.contains(&name.as_str())) {
        let mut tensor = tensor.clone();
        let Some(mut translated) = architecture.translate(name) else {
            return Err(file.unsupported(format!(
                "the tensor `{name}` is not part of the architecture {}: the model uses a feature that is not \
                 supported",
                architecture.name
            )));
        };
        // The matrices of experts, one below the other.
        if tensor.shape().len() == 3 && architecture.body == TransformerKind::Nomic {
            tensor = tensor.flattened();
        }
        if architecture.body == (TransformerKind::Decoder(DecoderStyle::Interleaved)) {
            let heads = match name.rsplit('.').nth(1) {
                Some("attn_q") => Some(heads("head_count")),
                Some("attn_k") => Some(heads("head_count_kv")),
                _ => None,
            };
            if let Some(heads) = heads {
                if heads == 0 || tensor.shape().len() != 2 || tensor.rows() % (2 * heads) != 0 {
                    return Err(
                        file.damaged(format!("the tensor `{name}` does not have rows for {heads} heads"))
                    );
                }
                tensor = tensor.interleaved(heads);
            }
        }
        if name == "cls.output.weight"
            && let Some(answers) = &answers
        {
            tensor = tensor.picked(vocabulary, answers.clone());
            "lm_head.weight".clone_into(&mut translated);
        }
        insert(&mut found, translated, tensor)?;
    }
    Ok(found)
}

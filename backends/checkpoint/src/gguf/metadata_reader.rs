//! The metadata of one architecture, with checks, and the parts of a configuration that all kinds share.

use super::File;
use crate::CheckpointError;
use serde_json::{Value, json};
use std::fmt::Debug;

/// The field that says that the tensors have the values that llama.cpp's converter gives them, where
/// [`Tensor`](crate::Tensor) cannot undo its change: weights of Gemma's and Qwen3.5's norms are larger by 1,
/// heads of Qwen3.5's values are in another order and its decays are those that are used, the taps of LFM2's
/// convolutions are a matrix, experts have no bias and the second matrix of their MLPs is transposed, and the
/// halves of Jina's gated MLPs may be two matrices (`"separate"` instead of `true`).
pub const CONVERTED: &str = "llama_cpp_converted";

pub(super) struct MetadataReader<'f> {
    pub(super) file: &'f File,
    /// The architecture. The names of its metadata begin with it.
    pub(super) name: &'static str,
}

impl MetadataReader<'_> {
    /// The full name of an entry.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// The error for a missing entry.
    pub(super) fn missing(&self, name: &str) -> CheckpointError {
        self.file.damaged(format!("its metadata entry `{}` is missing or not a number", self.key(name)))
    }

    /// A whole number that must be there.
    pub(super) fn number(&self, name: &str) -> Result<usize, CheckpointError> {
        self.number_if_given(name).ok_or_else(|| self.missing(name))
    }

    /// A number that must be there.
    pub(super) fn real(&self, name: &str) -> Result<f64, CheckpointError> {
        self.real_if_given(name).ok_or_else(|| self.missing(name))
    }

    pub(super) fn number_if_given(&self, name: &str) -> Option<usize> {
        self.file.metadata.number(&self.key(name))
    }

    pub(super) fn real_if_given(&self, name: &str) -> Option<f64> {
        self.file.metadata.real(&self.key(name))
    }

    pub(super) fn real_or(&self, name: &str, default: f64) -> f64 {
        self.real_if_given(name).unwrap_or(default)
    }

    /// llama.cpp's number of the pooling.
    pub(super) fn pooling(&self) -> Option<usize> {
        self.number_if_given("pooling_type")
    }

    /// The number of rows of the matrix `tensor`.
    pub(super) fn rows(&self, tensor: &str) -> Result<usize, CheckpointError> {
        match self.file.shape(tensor) {
            Some([rows, _]) => Ok(*rows),
            _ => Err(self.file.damaged(format!("it has no matrix `{tensor}`"))),
        }
    }

    /// The period of layers without a window: with 3, every third layer has none.
    pub(super) fn pattern(&self) -> Result<Option<usize>, CheckpointError> {
        let key = self.key("attention.sliding_window_pattern");
        match (self.file.metadata.get(&key), self.file.metadata.number(&key)) {
            (Some(_), None) => Err(self
                .file
                .unsupported(format!("`{key}` is not a number of layers, which is not supported"))),
            (_, number) => Ok(number),
        }
    }

    /// The error for an entry with a value that is not supported.
    fn refused_value(&self, name: &str, value: impl Debug) -> CheckpointError {
        self.file.unsupported(format!("`{}` is {value:?}, which is not supported", self.key(name)))
    }

    /// Refuses every scaling of rotary positions. llama.cpp uses a factor without a type, too.
    pub(super) fn check_scaling(&self) -> Result<(), CheckpointError> {
        let scaling = self.file.metadata.text(&self.key("rope.scaling.type"));
        if let Some(kind) = scaling.filter(|kind| *kind != "none") {
            return Err(self.refused_value("rope.scaling.type", kind));
        }
        for name in ["rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor"] {
            // 0 means that there is no factor.
            if let Some(factor) = self.real_if_given(name).filter(|factor| ![0.0, 1.0].contains(factor)) {
                return Err(self.refused_value(name, factor));
            }
        }
        Ok(())
    }

    /// The values of a head, if the heads share a hidden state; 0 without heads.
    pub(super) fn equal_heads(&self) -> Result<usize, CheckpointError> {
        let (hidden, heads) = (self.number("embedding_length")?, self.number("attention.head_count")?);
        Ok(hidden.checked_div(heads).unwrap_or(0))
    }

    /// Refuses every form of rotary positions except the plain one over all `head` values of a head.
    pub(super) fn check_rotary(&self, head: usize) -> Result<(), CheckpointError> {
        self.check_scaling()?;
        match self.file.metadata.number(&self.key("rope.dimension_count")) {
            Some(rotated) if rotated != head => Err(self.file.unsupported(format!(
                "`{}` is {rotated} and a head has {head} values, which is not supported",
                self.key("rope.dimension_count")
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a metadata number that contradicts the shape of a matrix. The file's length bounds the shapes,
    /// so it also bounds the memory that depends on these numbers.
    pub(super) fn check(
        &self,
        number: &str,
        tensor: &str,
        shape: [Option<usize>; 2],
    ) -> Result<(), CheckpointError> {
        let Some(found) = self.file.shape(tensor) else {
            return Err(self.file.damaged(format!("it has no tensor `{tensor}`")));
        };
        let fits = found.len() == 2
            && shape.iter().zip(found).all(|(size, found)| size.is_none_or(|size| size == *found));
        if fits {
            return Ok(());
        }
        Err(self.file.damaged(format!(
            "`{}` does not fit the shape {found:?} of the tensor `{tensor}`",
            self.key(number)
        )))
    }

    /// The fields that all architectures have. The first matrix of an MLP has `parts` times the rows of the
    /// inner size.
    pub(super) fn sizes(&self, parts: usize) -> Result<Value, CheckpointError> {
        let hidden = self.number("embedding_length")?;
        let (layers, inner) = (self.number("block_count")?, self.number("feed_forward_length")?);
        self.check("embedding_length", "token_embd.weight", [None, Some(hidden)])?;
        self.check("feed_forward_length", "blk.0.ffn_up.weight", [inner.checked_mul(parts), Some(hidden)])?;
        if self.file.layers() != layers {
            return Err(self.file.damaged(format!(
                "`{}` is {layers}, but there are tensors of {} layers",
                self.key("block_count"),
                self.file.layers()
            )));
        }
        Ok(json!({
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": self.number("attention.head_count")?,
            "vocab_size": self.rows("token_embd.weight")?,
        }))
    }
}

/// The fields of both objects; fields of `second` win.
pub(super) fn joined(first: Value, second: Value) -> Value {
    match (first, second) {
        (Value::Object(mut first), Value::Object(second)) => {
            first.extend(second);
            first.into()
        }
        (first, _) => first,
    }
}

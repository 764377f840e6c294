//! Translates a GGUF file's metadata into the content of a `config.json`.
//!
//! What must hold: a metadata setting that the configuration here cannot express is refused by name. A
//! re-ranker whose head the converter left out is refused as well, because its scores would mean nothing.

use super::{
    File,
    translate::{GgufArchitecture, TransformerKind, answers, labels},
};
use crate::CheckpointError;
use serde_json::{Map, Value, json};

/// The value of `pooling_type` for a re-ranker.
const RANK: usize = 4;
/// The smallest width at which models of Qwen3 no longer share the token embedding with the output embedding.
const UNTIED_QWEN3: usize = 4096;

/// The content of the `config.json` that belongs to the model of `file`.
///
/// # Errors
///
/// [`CheckpointError`] naming the file, and the metadata or tensor that is missing or not supported.
pub fn config(file: &File) -> Result<Value, CheckpointError> {
    let architecture = GgufArchitecture::of(file)?;
    let reader = MetadataReader { file, name: architecture.name };
    let (config, causal) = match architecture.body {
        TransformerKind::Decoder { .. } => (decoder(&reader)?, true),
        TransformerKind::Bert => (bert(&reader)?, false),
        TransformerKind::Nomic => (nomic(&reader)?, false),
    };
    if file.metadata.switch(&reader.key("attention.causal")).is_some_and(|is_causal| is_causal != causal) {
        return Err(file.unsupported(format!(
            "`{}` is {}, which is not supported",
            reader.key("attention.causal"),
            !causal
        )));
    }
    check_head(&reader, causal)?;
    let Value::Object(mut config) = config else { return Ok(config) };
    config.insert("model_type".to_owned(), architecture.model_type.into());
    if let Some(name) = file.metadata.text("general.name") {
        config.insert("_name_or_path".to_owned(), name.replace([' ', '/'], "-").into());
    }
    head(&reader, architecture, causal, &mut config);
    Ok(config.into())
}

/// Writes the class of the model, and the labels of the file's head.
fn head(
    reader: &MetadataReader<'_>,
    architecture: &GgufArchitecture,
    causal: bool,
    config: &mut Map<String, Value>,
) {
    let file = reader.file;
    let scores = file.shape("cls.output.weight").and_then(|shape| shape.first()).copied();
    let kind = match scores {
        Some(_) if answers(file).is_some() => "ForCausalLM",
        Some(rows) => {
            let named = labels(file).filter(|labels| labels.len() == rows);
            let label =
                |row: usize| named.map_or_else(|| format!("LABEL_{row}"), |labels| labels[row].clone());
            let labels = (0..rows).map(|row| (row.to_string(), label(row).into()));
            config.insert("id2label".to_owned(), Value::Object(labels.collect()));
            "ForSequenceClassification"
        }
        None if causal => "ForCausalLM",
        None => "Model",
    };
    config.insert("architectures".to_owned(), json!([format!("{}{kind}", architecture.class)]));
    if reader.pooling() == Some(RANK) {
        config.insert("is_reranker".to_owned(), true.into());
    }
}

/// Refuses a re-ranker whose head is missing.
fn check_head(reader: &MetadataReader<'_>, causal: bool) -> Result<(), CheckpointError> {
    let file = reader.file;
    let has = |name: &str| file.shape(name).is_some();
    let left_out = |what: &str| {
        Err(file.unsupported(format!(
            "its head was left out when it was converted ({what}): it cannot score; choose another file, or convert the \
             model again with a current convert_hf_to_gguf.py"
        )))
    };
    let name = file.metadata.text("general.name").unwrap_or_default();
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    let speaks = |of: &str| [name, &*stem].iter().any(|name| name.to_lowercase().contains(of));
    let is_reranker = speaks("rerank") && !speaks("embed");
    let output = has("output.weight");
    match (has("cls.output.weight"), reader.pooling()) {
        (true, _) if !causal && !has("cls.weight") => {
            left_out("it has `cls.output.weight` and no `cls.weight`")
        }
        (false, Some(RANK)) if !(causal && output) => {
            left_out("its pooling type says re-ranker, but it has no `cls.output.weight`")
        }
        (false, None | Some(0)) if !causal && is_reranker => left_out("it has no `cls.output.weight`"),
        (false, _) if causal && is_reranker && !output => {
            let width = file.shape("token_embd.weight").map_or(0, |shape| shape[shape.len() - 1]);
            if reader.name == "qwen3" && width >= UNTIED_QWEN3 {
                return left_out("it has neither `cls.output.weight` nor `output.weight`");
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Reads the metadata of one architecture.
struct MetadataReader<'f> {
    file: &'f File,
    /// The architecture. The names of its metadata begin with it.
    name: &'static str,
}

impl MetadataReader<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    fn missing(&self, name: &str) -> CheckpointError {
        self.file.damaged(format!("its metadata entry `{}` is missing or not a number", self.key(name)))
    }

    fn number(&self, name: &str) -> Result<usize, CheckpointError> {
        self.file.metadata.number(&self.key(name)).ok_or_else(|| self.missing(name))
    }

    fn real(&self, name: &str) -> Result<f64, CheckpointError> {
        self.file.metadata.real(&self.key(name)).ok_or_else(|| self.missing(name))
    }

    fn pooling(&self) -> Option<usize> {
        self.file.metadata.number(&self.key("pooling_type"))
    }

    /// The number of rows of the matrix `tensor`.
    fn rows(&self, tensor: &str) -> Result<usize, CheckpointError> {
        match self.file.shape(tensor) {
            Some([rows, _]) => Ok(*rows),
            _ => Err(self.file.damaged(format!("it has no matrix `{tensor}`"))),
        }
    }

    /// Refuses every form of rotary positions except the plain one over all `head` values of a head.
    fn check_rotary(&self, head: usize) -> Result<(), CheckpointError> {
        let scaling = self.file.metadata.text(&self.key("rope.scaling.type"));
        if let Some(kind) = scaling.filter(|kind| *kind != "none") {
            return Err(self.file.unsupported(format!(
                "`{}` is {kind:?}, which is not supported",
                self.key("rope.scaling.type")
            )));
        }
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
    fn check(&self, number: &str, tensor: &str, shape: [Option<usize>; 2]) -> Result<(), CheckpointError> {
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

    /// The fields that all architectures have.
    fn sizes(&self) -> Result<Value, CheckpointError> {
        let hidden = self.number("embedding_length")?;
        let (layers, inner) = (self.number("block_count")?, self.number("feed_forward_length")?);
        self.check("embedding_length", "token_embd.weight", [None, Some(hidden)])?;
        self.check("feed_forward_length", "blk.0.ffn_up.weight", [Some(inner), Some(hidden)])?;
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

fn joined(first: Value, second: Value) -> Value {
    match (first, second) {
        (Value::Object(mut first), Value::Object(second)) => {
            first.extend(second);
            first.into()
        }
        (first, _) => first,
    }
}

fn decoder(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    let file = reader.file;
    let (hidden, heads) = (reader.number("embedding_length")?, reader.number("attention.head_count")?);
    let key = file.metadata.number(&reader.key("attention.key_length"));
    let head = key.or_else(|| hidden.checked_div(heads)).unwrap_or(0);
    let value = file.metadata.number(&reader.key("attention.value_length")).unwrap_or(head);
    if value != head {
        return Err(file.unsupported(format!(
            "a head has {head} values in its keys and {value} in its values: different sizes are not supported"
        )));
    }
    reader.check_rotary(head)?;
    let context = reader.number("context_length")?;
    let window = file.metadata.number(&reader.key("attention.sliding_window"));
    if let Some(window) = window.filter(|window| (1..context).contains(window)) {
        return Err(file.unsupported(format!(
            "`{}` is {window}, which is not supported",
            reader.key("attention.sliding_window")
        )));
    }
    if file.metadata.get(&reader.key("expert_count")).is_some() {
        return Err(file.unsupported(format!("`{}`: experts are not supported", reader.key("expert_count"))));
    }
    let pairs = match file.metadata.get(&reader.key("attention.head_count_kv")) {
        Some(_) => reader.number("attention.head_count_kv")?,
        None => heads,
    };
    for (number, tensor, heads) in [
        ("attention.head_count", "blk.0.attn_q.weight", heads),
        ("attention.head_count_kv", "blk.0.attn_k.weight", pairs),
    ] {
        reader.check(number, tensor, [heads.checked_mul(head), Some(hidden)])?;
        if heads == 0 || head == 0 || heads.checked_mul(head).is_none() {
            return Err(file.damaged(format!("`{}` cannot be {heads}", reader.key(number))));
        }
    }
    // Without an output embedding, llama.cpp uses the token embedding. A re-ranker's head replaces both.
    let tied = file.shape("output.weight").is_none() && answers(file).is_none();
    let theta = file.metadata.real(&reader.key("rope.freq_base")).unwrap_or(10_000.0);
    Ok(joined(
        reader.sizes()?,
        json!({
            "num_key_value_heads": pairs,
            "head_dim": head,
            "rms_norm_eps": reader.real("attention.layer_norm_rms_epsilon")?,
            "rope_theta": theta,
            "max_position_embeddings": context,
            "hidden_act": "silu",
            "attention_bias": reader.name != "qwen2" && file.shape("blk.0.attn_q.bias").is_some(),
            "tie_word_embeddings": tied,
        }),
    ))
}

fn bert(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    let types = if reader.file.shape("token_types.weight").is_some() {
        reader.rows("token_types.weight")?
    } else {
        0
    };
    Ok(joined(
        reader.sizes()?,
        json!({
            "layer_norm_eps": reader.real("attention.layer_norm_epsilon")?,
            "max_position_embeddings": reader.rows("position_embd.weight")?,
            "type_vocab_size": types,
            "hidden_act": "gelu",
        }),
    ))
}

fn nomic(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    let (hidden, heads) = (reader.number("embedding_length")?, reader.number("attention.head_count")?);
    reader.check_rotary(hidden.checked_div(heads).unwrap_or(0))?;
    let types = if reader.file.shape("token_types.weight").is_some() {
        reader.rows("token_types.weight")?
    } else {
        0
    };
    let has = |name: &str| reader.file.shape(&format!("blk.0.{name}.bias")).is_some();
    Ok(joined(
        reader.sizes()?,
        json!({
            "layer_norm_eps": reader.real("attention.layer_norm_epsilon")?,
            "max_position_embeddings": reader.number("context_length")?,
            "type_vocab_size": types,
            "hidden_act": "silu",
            "activation_function": if reader.file.shape("blk.0.ffn_gate.weight").is_some() { "swiglu" } else { "gelu" },
            "rotary_emb_base": reader.real("rope.freq_base")?,
            "rotary_emb_fraction": 1.0,
            "qkv_proj_bias": has("attn_qkv"),
            "mlp_fc1_bias": has("ffn_up"),
            "mlp_fc2_bias": has("ffn_down"),
        }),
    ))
}

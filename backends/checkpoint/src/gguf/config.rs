//! Translates a GGUF file's metadata into the content of a `config.json`.
//!
//! What must hold: a metadata setting that the configuration here cannot express is refused by name. A
//! re-ranker whose head the converter left out is refused as well, because its scores would mean nothing.

use super::{
    File,
    architectures::{DIVISORS, DecoderStyle, GgufArchitecture, SAFETENSORS, Sight, TransformerKind},
    hybrid,
    metadata_reader::{CONVERTED, MetadataReader, joined},
    translate::{answers, labels},
};
use crate::{CheckpointError, encoding::F32};
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
    let architecture = GgufArchitecture::from_file(file)?;
    let reader = MetadataReader { file, name: architecture.name };
    let config = match architecture.body {
        TransformerKind::Decoder(DecoderStyle::Delta) => hybrid::delta_config(&reader)?,
        TransformerKind::Decoder(DecoderStyle::Convolution) => hybrid::convolution_config(&reader)?,
        TransformerKind::Decoder(style) => decoder(&reader, style)?,
        TransformerKind::Bert => bert(&reader)?,
        TransformerKind::Nomic => nomic(&reader)?,
        TransformerKind::JinaAlibi => jina_alibi(&reader)?,
        TransformerKind::JinaRotary => jina_rotary(&reader)?,
        TransformerKind::Modern => modern(&reader)?,
    };
    let is_causal = file.metadata.switch(&reader.key("attention.causal"));
    let (causal, model_type) = match (architecture.sight, is_causal) {
        (Sight::Back(_), None | Some(true)) => (true, architecture.model_type),
        (Sight::Back(bidirectional), Some(false)) => (false, bidirectional),
        (Sight::Both, None | Some(false)) => (false, architecture.model_type),
        (Sight::Both, Some(true)) => {
            let key = reader.key("attention.causal");
            return Err(file.unsupported(format!("`{key}` is true, which is not supported")));
        }
    };
    check_head(&reader, architecture, causal)?;
    let Value::Object(mut config) = config else { return Ok(config) };
    config.insert("model_type".to_owned(), model_type.into());
    if matches!(architecture.body, TransformerKind::Decoder(_)) {
        config.insert("is_causal".to_owned(), causal.into());
    }
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
            let labels = (0..rows).map(|row| {
                let label = named.map_or_else(|| format!("LABEL_{row}"), |labels| labels[row].clone());
                (row.to_string(), label.into())
            });
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
fn check_head(
    reader: &MetadataReader<'_>,
    architecture: &GgufArchitecture,
    causal: bool,
) -> Result<(), CheckpointError> {
    let file = reader.file;
    let is_decoder = matches!(architecture.body, TransformerKind::Decoder(_));
    let left_out = |what: &str| {
        Err(file.unsupported(format!(
            "its head was left out when it was converted ({what}): it cannot score; choose another file, or convert the \
             model again with a current convert_hf_to_gguf.py"
        )))
    };
    let name = file.metadata.text("general.name").unwrap_or_default();
    let stem = file.source.path.file_stem().unwrap_or_default().to_string_lossy();
    let is_square = file.shape("cls.weight").is_none_or(|shape| shape.first() == shape.last());
    let speaks = |of: &str| [name, &*stem].iter().any(|name| name.to_lowercase().contains(of));
    let is_reranker = speaks("rerank") && !speaks("embed");
    let (has_dense, output) = (file.has_tensor("cls.weight"), file.has_tensor("output.weight"));
    match (file.has_tensor("cls.output.weight"), reader.pooling()) {
        (true, _) if reader.name == "bert" && has_dense && !file.has_tensor("token_types.weight") => {
            Err(file.unsupported(format!(
                "it is a DistilBERT with a head, whose activation llama.cpp does not know: {SAFETENSORS}"
            )))
        }
        (false, _) if !is_decoder && !is_square => Err(file.unsupported(format!(
            "its classifier (`cls.weight`) lacks the dense layer before it: {SAFETENSORS}"
        ))),
        (true, _) if !is_decoder && !has_dense => left_out("it has `cls.output.weight` and no `cls.weight`"),
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

fn decoder(reader: &MetadataReader<'_>, style: DecoderStyle) -> Result<Value, CheckpointError> {
    let (file, is_gemma) = (reader.file, style == DecoderStyle::Gemma);
    let (hidden, heads) = (reader.number("embedding_length")?, reader.number("attention.head_count")?);
    let key = reader.number_if_given("attention.key_length");
    let head = key.or_else(|| hidden.checked_div(heads)).unwrap_or(0);
    let value = reader.number_if_given("attention.value_length").unwrap_or(head);
    if value != head {
        return Err(file.unsupported(format!(
            "a head has {head} values in its keys and {value} in its values: different sizes are not supported"
        )));
    }
    reader.check_rotary(head)?;
    let context = reader.number("context_length")?;
    let window = reader.number_if_given("attention.sliding_window");
    let window = window.filter(|window| (1..context).contains(window));
    if !is_gemma && let Some(window) = window {
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
    let theta = reader.real_or("rope.freq_base", 10_000.0);
    let config = joined(
        reader.sizes(1)?,
        json!({
            "num_key_value_heads": pairs,
            "head_dim": head,
            "rms_norm_eps": reader.real("attention.layer_norm_rms_epsilon")?,
            "rope_theta": theta,
            "rope_scaling": divisors(file, head)?.map(|divisors| json!({
                "rope_type": "longrope", "short_factor": divisors, "long_factor": divisors,
                "original_max_position_embeddings": context, "attention_factor": 1.0,
            })),
            "max_position_embeddings": context,
            "hidden_act": if is_gemma { "gelu_pytorch_tanh" } else { "silu" },
            "attention_bias": reader.name != "qwen2" && file.has_tensor("blk.0.attn_q.bias"),
            "tie_word_embeddings": tied,
        }),
    );
    if !is_gemma {
        return Ok(config);
    }
    // The defaults are llama.cpp's.
    let pattern = reader.pattern()?.unwrap_or(6);
    let base = reader.real_or("rope.freq_base_swa", 10_000.0);
    Ok(joined(
        config,
        json!({
            CONVERTED: true,
            "query_pre_attn_scalar": head,
            "sliding_window": window,
            "sliding_window_pattern": pattern,
            "rope_local_base_freq": base,
            "final_logit_softcapping": reader.real_if_given("final_logit_softcapping"),
            "use_bidirectional_attention":
                reader.name == "gemma-embedding" || file.metadata.switch(&reader.key("attention.causal")) == Some(false),
        }),
    ))
}

/// The divisors of the rotary frequencies, which the converter computes from the scaling of Llama 3.
fn divisors(file: &File, head: usize) -> Result<Option<Vec<f32>>, CheckpointError> {
    let Some(tensor) = file.tensors.get(DIVISORS) else { return Ok(None) };
    if tensor.shape() != [head / 2] || *tensor.encoding() != F32 {
        return Err(
            file.damaged(format!("its tensor `{DIVISORS}` does not have {} numbers in F32", head / 2))
        );
    }
    let mut divisors = vec![0.0; head / 2];
    F32.widen(&tensor.read_stored(0..1)?, &mut divisors);
    if divisors.iter().all(|divisor| divisor.is_normal() && *divisor > 0.0) {
        return Ok(Some(divisors));
    }
    Err(file.damaged(format!("its tensor `{DIVISORS}` has numbers that cannot be divisors")))
}

fn modern(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    let file = reader.file;
    reader.check_rotary(reader.equal_heads()?)?;
    // Without a window, every layer attends to the whole text. Defaults of the others are llama.cpp's.
    let window = reader.number_if_given("attention.sliding_window").filter(|window| *window > 0);
    let every = if window.is_some() { reader.pattern()?.unwrap_or(3) } else { 1 };
    let pooling = match reader.number_if_given("classifier.pooling_type") {
        None | Some(1) => "mean",
        Some(2) => "cls",
        Some(other) => {
            let key = reader.key("classifier.pooling_type");
            return Err(
                file.unsupported(format!("`{key}` is {other}; only 1 (mean) and 2 (cls) are supported"))
            );
        }
    };
    Ok(joined(
        reader.sizes(2)?,
        json!({
            "norm_eps": reader.real("attention.layer_norm_epsilon")?,
            "max_position_embeddings": reader.number("context_length")?,
            "hidden_activation": file.metadata.text(&reader.key("hidden_act")).unwrap_or("gelu"),
            "local_attention": window.unwrap_or(0),
            "global_attn_every_n_layers": every,
            "global_rope_theta": reader.real("rope.freq_base")?,
            "local_rope_theta": reader.real_or("rope.freq_base_swa", 10_000.0),
            "classifier_pooling": pooling,
            "classifier_bias": file.has_tensor("cls.bias"),
            "norm_bias": file.has_tensor("output_norm.bias"),
            "attention_bias": file.has_tensor("blk.0.attn_qkv.bias"),
            "mlp_bias": file.has_tensor("blk.0.ffn_up.bias"),
        }),
    ))
}

/// The fields of BERT and its kinds. The first matrix of an MLP has `parts` times the rows of the inner size.
fn encoder(
    reader: &MetadataReader<'_>,
    parts: usize,
    max_positions: usize,
) -> Result<Value, CheckpointError> {
    let types = match reader.file.shape("token_types.weight") {
        Some(_) => reader.rows("token_types.weight")?,
        None => 0,
    };
    Ok(joined(
        reader.sizes(parts)?,
        json!({
            "layer_norm_eps": reader.real("attention.layer_norm_epsilon")?,
            "max_position_embeddings": max_positions,
            "type_vocab_size": types,
            "hidden_act": "gelu",
        }),
    ))
}

fn bert(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    encoder(reader, 1, reader.rows("position_embd.weight")?)
}

/// Jina's BERT. Former converters wrote the halves of its gated MLPs as two matrices.
fn jina_alibi(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    let is_separate = reader.file.has_tensor("blk.0.ffn_gate.weight");
    let converted = if is_separate { json!("separate") } else { json!(true) };
    let mut config = joined(
        encoder(reader, if is_separate { 1 } else { 2 }, reader.number("context_length")?)?,
        json!({
            CONVERTED: converted,
            "position_embedding_type": "alibi",
            "feed_forward_type": "geglu",
        }),
    );
    if reader.file.has_tensor("blk.0.attn_q_norm.weight") {
        config["auto_map"] = json!({ "AutoConfig": "jinaai/jina-bert-v2-qk-post-norm--configuration_bert" });
    }
    Ok(config)
}

/// jina-embeddings-v3. Its positions are counted as `RoBERTa`'s, from 2.
fn jina_rotary(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    reader.check_rotary(reader.equal_heads()?)?;
    Ok(joined(
        encoder(reader, 1, reader.number("context_length")?.saturating_add(2))?,
        json!({ "pad_token_id": 1, "rotary_emb_base": reader.real("rope.freq_base")? }),
    ))
}

fn nomic(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    reader.check_rotary(reader.equal_heads()?)?;
    let config = joined(
        encoder(reader, 1, reader.number("context_length")?)?,
        json!({
            "activation_function": if reader.file.has_tensor("blk.0.ffn_gate.weight") { "swiglu" } else { "gelu" },
            "rotary_emb_base": reader.real("rope.freq_base")?,
            "rotary_emb_fraction": 1.0,
            "qkv_proj_bias": reader.file.has_tensor("blk.0.attn_qkv.bias"),
            "mlp_fc1_bias": reader.file.has_tensor("blk.0.ffn_up.bias"),
            "mlp_fc2_bias": reader.file.has_tensor("blk.0.ffn_down.bias"),
        }),
    );
    match reader.number_if_given("moe_every_n_layers") {
        None | Some(0) => Ok(config),
        Some(every) => Ok(joined(
            config,
            json!({
                CONVERTED: true,
                "moe_every_n_layers": every,
                "num_experts": reader.number("expert_count")?,
                "moe_top_k": reader.number("expert_used_count")?,
            }),
        )),
    }
}

//! Qwen3 up to its last hidden states (transformers, `modeling_qwen3.py`).
//!
//! Input: a packed batch. Output: the hidden states, after the final norm, of the rows that are asked for; in the last
//! layer only these have queries, an output projection and an MLP. What becomes of them is `heads.rs`'s.

use super::{INPUT_EMBEDDING, Model, OUTPUT_EMBEDDING, Shape};
use crate::{
    attention::{Heads, QuerySpan, queries_at},
    load::{Checkpoint, Progress},
    operations::{Norm, Operations, Precision, Result, Rotation, Rows},
    pass::Pass,
    rope::RopeTable,
};
use serde::Deserialize;
use text_embeddings_backend_core::{BackendError, Batch};

/// `config.json`, under the checkpoint's names.
#[derive(Debug, Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    rms_norm_eps: f32,
    hidden_act: String,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    is_causal: Option<bool>,
    pad_token_id: Option<i64>,
    #[serde(default)]
    layer_types: Option<Vec<String>>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<RopeParameters>,
    #[serde(rename = "quantization_config")]
    quantization: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
}

impl Config {
    /// Reads the configuration and refuses what this file does not compute.
    fn parse(config: &serde_json::Value) -> Result<Self> {
        let config: Self = serde_json::from_value(config.clone())
            .map_err(|error| BackendError::Load(format!("config.json: {error}")))?;
        let full = |kind: &String| kind == "full_attention";
        let default = |rope: &RopeParameters| rope.rope_type.as_deref().is_none_or(|kind| kind == "default");
        let rope = [&config.rope_scaling, &config.rope_parameters];
        let unsupported = [
            (config.hidden_act != "silu", format!("hidden_act {:?}", config.hidden_act)),
            (config.attention_bias, "attention_bias true".to_owned()),
            (config.use_sliding_window, "use_sliding_window true".to_owned()),
            (config.is_causal == Some(false), "is_causal false".to_owned()),
            (
                !config.layer_types.iter().flatten().all(full),
                "layer_types other than full_attention".to_owned(),
            ),
            (!rope.iter().copied().flatten().all(default), "a rope type other than default".to_owned()),
            (config.quantization.is_some(), "quantization_config".to_owned()),
        ];
        if let Some((_, setting)) = unsupported.into_iter().find(|(is_set, _)| *is_set) {
            return Err(BackendError::Load(format!("config.json: {setting} is not supported for qwen3")));
        }
        let shapes =
            [config.hidden_size, config.num_key_value_heads, config.num_hidden_layers, config.head_dim];
        if shapes.contains(&0)
            || !config.num_attention_heads.is_multiple_of(config.num_key_value_heads)
            || !config.head_dim.is_multiple_of(2)
        {
            return Err(BackendError::Load(
                "config.json: sizes must be positive, head_dim even, and num_attention_heads a multiple of \
                 num_key_value_heads"
                    .to_owned(),
            ));
        }
        Ok(config)
    }

    fn rope_theta(&self) -> Result<f64> {
        let nested = [&self.rope_parameters, &self.rope_scaling]
            .into_iter()
            .flatten()
            .find_map(|rope| rope.rope_theta);
        nested.or(self.rope_theta).ok_or_else(|| {
            BackendError::Load("config.json: neither rope_theta nor rope_parameters is given".to_owned())
        })
    }

    fn heads(&self) -> Heads {
        Heads { queries: self.num_attention_heads, keys: self.num_key_value_heads, size: self.head_dim }
    }
}

/// One transformer layer.
struct Layer<O: Operations> {
    /// Of all products but the last.
    precision: Precision,
    /// Of the last, which takes in gated activations.
    down_precision: Precision,
    input_norm: Norm<O::Vector>,
    query: O::Matrix,
    key_value: O::Matrix,
    query_norm: Norm<O::Vector>,
    key_norm: Norm<O::Vector>,
    output: O::Matrix,
    mlp_norm: Norm<O::Vector>,
    gate_up: O::GatedMatrix,
    down: O::Matrix,
}

/// Where the rows of a layer's result stand.
struct Places {
    /// In the batch.
    spans: Vec<QuerySpan>,
    /// In their texts.
    positions: Vec<usize>,
    /// Among the rows that are computed.
    computed: Vec<usize>,
}

impl Places {
    fn new(pass: &Pass<'_>, positions: &[usize], rows: &[usize]) -> Self {
        Self {
            spans: queries_at(pass.batch(), rows),
            positions: rows.iter().map(|&row| positions[row]).collect(),
            computed: rows.iter().map(|&row| pass.places()[row]).collect(),
        }
    }

    /// What operations ask for. Beside the batch stands which row of keys and values is each of its rows'.
    fn rows<'a>(
        &'a self,
        (batch, places): (&'a Batch, &'a [usize]),
        table: &'a RopeTable,
        heads: Heads,
    ) -> Rows<'a> {
        let rotation = Rotation { table, positions: &self.positions };
        Rows { batch, places, spans: &self.spans, rotation, heads }
    }
}

/// The rows of a layer's result where these are not all.
struct Wanted<'a, O: Operations> {
    /// Their places among the rows that are computed.
    places: &'a [usize],
    rows: O::Rows<'a>,
}

/// The model.
pub(crate) struct Qwen3<O: Operations> {
    embedding: O::Table,
    layers: Vec<Layer<O>>,
    norm: Norm<O::Vector>,
    heads: Heads,
    rope: RopeTable,
    shape: Shape,
}

impl<O: Operations> Qwen3<O> {
    /// Takes the model's tensors out of `checkpoint`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] naming the setting or the tensor that is missing or not supported.
    pub(crate) fn load(config: &serde_json::Value, checkpoint: &Checkpoint, operations: &O) -> Result<Self> {
        let config = Config::parse(config)?;
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = checkpoint.tensor(INPUT_EMBEDDING, &[vocabulary, hidden])?;
        let output_embedding = if config.tie_word_embeddings { INPUT_EMBEDDING } else { OUTPUT_EMBEDDING };
        let mut progress = Progress::new(config.num_hidden_layers);
        let layers = (0..config.num_hidden_layers)
            .map(|index| {
                let layer = Layer::load(&config, checkpoint, index, operations)?;
                progress.layer_loaded();
                Ok(layer)
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            embedding: operations.table(embedding)?,
            layers,
            norm: load_norm(&config, checkpoint, ("norm.weight", hidden), operations)?,
            heads: config.heads(),
            rope: RopeTable::new(config.head_dim, config.rope_theta()?),
            shape: Shape {
                vocabulary,
                hidden,
                output_embedding,
                layers: config.num_hidden_layers,
                keys_values: 2 * config.num_key_value_heads * config.head_dim,
                // Some configurations say -1 for none.
                padding: config.pad_token_id.and_then(|id| u32::try_from(id).ok()),
            },
        })
    }
}

fn load_norm<O: Operations>(
    config: &Config,
    checkpoint: &Checkpoint,
    (name, size): (&str, usize),
    operations: &O,
) -> Result<Norm<O::Vector>> {
    let weight = operations.vector(checkpoint.tensor(name, &[size])?.row(0))?;
    Ok(Norm { weight, epsilon: config.rms_norm_eps })
}

impl<O: Operations> Layer<O> {
    fn load(config: &Config, checkpoint: &Checkpoint, index: usize, operations: &O) -> Result<Self> {
        let prefix = format!("layers.{index}");
        // All others build on the first: its errors are the ones that grow.
        let (precision, down_precision) = match index {
            0 => (Precision::High, Precision::High),
            _ => (Precision::Low, Precision::Spread),
        };
        let Heads { queries, keys, size } = config.heads();
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let norm = |name: &str, size| {
            load_norm(config, checkpoint, (&format!("{prefix}.{name}.weight"), size), operations)
        };
        let tensor = |name: &str, outputs, inputs| {
            checkpoint.tensor(&format!("{prefix}.{name}.weight"), &[outputs, inputs])
        };
        Ok(Self {
            precision,
            down_precision,
            input_norm: norm("input_layernorm", hidden)?,
            query: operations.matrix(vec![tensor("self_attn.q_proj", queries * size, hidden)?], precision)?,
            key_value: operations.matrix(
                vec![
                    tensor("self_attn.k_proj", keys * size, hidden)?,
                    tensor("self_attn.v_proj", keys * size, hidden)?,
                ],
                precision,
            )?,
            query_norm: norm("self_attn.q_norm", size)?,
            key_norm: norm("self_attn.k_norm", size)?,
            output: operations
                .matrix(vec![tensor("self_attn.o_proj", hidden, queries * size)?], precision)?,
            mlp_norm: norm("post_attention_layernorm", hidden)?,
            gate_up: operations.gated_matrix(
                tensor("mlp.gate_proj", inner, hidden)?,
                tensor("mlp.up_proj", inner, hidden)?,
                precision,
            )?,
            down: operations.matrix(vec![tensor("mlp.down_proj", hidden, inner)?], down_precision)?,
        })
    }

    /// `hidden` `[computed, hidden]` to `[rows, hidden]`: all rows if `wanted` is absent, else those.
    fn forward<'a>(
        &self,
        operations: &mut O,
        mut hidden: O::Tensor,
        pass: &mut Pass<'_>,
        (all, wanted): (&O::Rows<'a>, Option<&Wanted<'a, O>>),
    ) -> Result<O::Tensor> {
        let mut normed = operations.norm_operand(&hidden, &self.input_norm, self.precision)?; // [computed, hidden]
        let mut keys_values = operations.linear(&normed, &self.key_value)?; // [computed, 2 · key heads · size]
        operations.norm_and_rotate(&mut keys_values, &self.key_norm, all)?;
        pass.exchange(operations, &mut keys_values)?; // [tokens, 2 · key heads · size]
        let mut rows = all;
        if let Some(wanted) = wanted {
            hidden = operations.select(&hidden, wanted.places)?;
            normed = operations.norm_operand(&hidden, &self.input_norm, self.precision)?; // [rows, hidden]
            rows = &wanted.rows;
        }
        let queries = operations.linear(&normed, &self.query)?; // [rows, heads · size]
        let context =
            operations.attention((&queries, &self.query_norm), &keys_values, rows, self.precision)?; // [rows, heads · size]
        drop((normed, keys_values, queries));
        operations.add_linear(&context, &self.output, &mut hidden)?; // [rows, hidden]
        let normed = operations.norm_operand(&hidden, &self.mlp_norm, self.precision)?;
        let activated = operations.swiglu(&normed, &self.gate_up, self.down_precision)?; // [rows, inner]
        operations.add_linear(&activated, &self.down, &mut hidden)?;
        Ok(hidden)
    }
}

impl<O: Operations> Model<O> for Qwen3<O> {
    fn forward(&mut self, operations: &mut O, pass: &mut Pass<'_>, rows: &[usize]) -> Result<O::Tensor> {
        let positions: Vec<usize> = pass.batch().positions().collect();
        self.rope.extend_to(positions.iter().max().map_or(0, |last| last + 1));
        let all = Places::new(pass, &positions, pass.computed());
        let wanted = (rows.len() < all.positions.len()).then(|| Places::new(pass, &positions, rows));
        // The pass changes from layer to layer, but not in this.
        let places = pass.places().to_vec();
        let batch = (pass.batch(), &places[..]);
        let all_rows = operations.rows(all.rows(batch, &self.rope, self.heads))?;
        let wanted = match &wanted {
            Some(wanted) => {
                let rows = operations.rows(wanted.rows(batch, &self.rope, self.heads))?;
                Some(Wanted { places: &wanted.computed, rows })
            }
            None => None,
        };
        let ids: Vec<u32> = pass.computed().iter().map(|&row| pass.batch().token_ids()[row]).collect();
        let mut hidden = operations.embed(&self.embedding, &ids)?; // [computed, hidden]
        for (index, layer) in self.layers.iter().enumerate() {
            let is_last = index + 1 == self.layers.len();
            let wanted = wanted.as_ref().filter(|_| is_last);
            hidden = layer.forward(operations, hidden, pass, (&all_rows, wanted))?;
        }
        operations.norm(&hidden, &self.norm) // [rows, hidden]
    }

    fn shape(&self) -> Shape {
        self.shape
    }
}

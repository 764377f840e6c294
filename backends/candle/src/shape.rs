//! A model without its weights: its size, and the work of a forward pass, counted from `config.json`.
//!
//! Input: the content of `config.json`. Output: a [`ModelShape`]. What must hold: parameters are the values
//! that loading takes from the checkpoint, and multiplications are those that the operations report when they
//! run; tests compare both for every architecture's fixture. Norms and biases are left out: they are less
//! than 1 % of a model.

use crate::{
    attention::Heads,
    cpu::{Arithmetic, CpuOperations},
    kept::{HostValues, Kept},
    kernels::{InstructionSet, pack::OperandFormat, threads::Threads},
    models,
    operations::Result,
    plan::{
        AttentionPlan, DisentangledPlan, LayerPlan, MatrixPart, MatrixPlan, MixerPlan, MlpPlan, Plan,
        Position, TablePlan, View,
    },
    prefix_cache::PrefixCache,
    token_shape,
};
use std::collections::BTreeMap;
use text_embeddings_backend_core::{DType, Description, WeightChoices};

/// The bytes of a value in four bits, with the factors of its group.
const NIBBLE_BYTES: f64 = 0.6;

/// A model without its weights.
#[derive(Debug, Clone)]
pub struct ModelShape {
    pub(crate) plan: Plan,
}

/// How a checkpoint stores its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredValues {
    /// Bits of a value.
    pub bits: u64,
    /// Whether they are bfloat16, which stays packed as it is in every arithmetic.
    pub are_bfloat16: bool,
}

/// Multiplications of a forward pass, each with its addition.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PassWork {
    /// In products with weights.
    pub products: f64,
    /// The part of them that keeps at least 16 bits in arithmetic of fewer.
    pub precise: f64,
    /// Of queries with keys, and of weights with values; in recurrent layers, of the states.
    pub attention: f64,
}

impl PassWork {
    /// All multiplications.
    pub fn all_multiplications(&self) -> f64 {
        self.products + self.attention
    }
}

/// The description of a model from its `config.json`.
///
/// # Errors
///
/// As [`ModelShape::from_config`], and if a choice is not supported.
pub fn describe(config: &serde_json::Value, choices: &WeightChoices) -> Result<Description> {
    let shape = ModelShape { plan: models::plan(config, choices)? };
    let plan = &shape.plan;
    Ok(Description {
        max_length: plan.max_length,
        has_token_types: plan.has_token_types(),
        is_causal: plan.packing().shares_prefixes,
        hidden: plan.hidden,
        vocabulary: plan.vocabulary,
        cutoff_layers: plan.layer_heads.is_some().then_some(plan.layers.len()),
        token_work: Some(shape.token_work()),
    })
}

/// The bytes of a batch's activations, and of the keys, values and states that are copied for the cache.
pub(crate) fn activation_bytes<K: Kept>(
    values_per_token: usize,
    cache: &PrefixCache<K>,
    tokens: usize,
) -> usize {
    // Each layer copies at most as many of the tokens to keep as the cache has room for.
    let kept = cache.max_tokens().min(tokens) * cache.token_bytes();
    let states = cache.max_states().min(tokens) * cache.state_bytes();
    let values = tokens.saturating_mul(values_per_token * size_of::<f32>());
    values.saturating_add(kept).saturating_add(states)
}

/// A matrix that rows of a batch are multiplied with.
struct RowProduct<'a> {
    parts: Vec<&'a MatrixPart>,
    /// The share of the rows that is multiplied with it: less than 1 for an expert.
    share: f64,
    /// Whether the last layer computes it for rows that no answer needs, too.
    is_of_all_rows: bool,
    /// Whether it keeps at least 16 bits in arithmetic of fewer.
    is_precise: bool,
}

impl<'a> RowProduct<'a> {
    fn from_matrix(matrix: &'a MatrixPlan) -> Self {
        Self::from_parts(matrix.parts.iter().collect())
    }

    fn from_parts(parts: Vec<&'a MatrixPart>) -> Self {
        Self { parts, share: 1.0, is_of_all_rows: false, is_precise: false }
    }

    fn of_all_rows(self) -> Self {
        Self { is_of_all_rows: true, ..self }
    }

    fn kept_precise(self) -> Self {
        Self { is_precise: true, ..self }
    }

    fn value_count(&self) -> f64 {
        self.parts.iter().map(|part| part_values(part)).sum()
    }
}

/// Counts are of this type because an impossible configuration has more values than 64 bits count.
fn part_values(part: &MatrixPart) -> f64 {
    part.rows.len() as f64 * part.shape[1] as f64
}

fn table_values(table: &TablePlan) -> f64 {
    table.shape[0] as f64 * table.shape[1] as f64
}

impl ModelShape {
    /// The shape of the model that `config` (the content of `config.json`) describes.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`](text_embeddings_backend_core::BackendError::Load) and
    /// [`BackendError::Architecture`](text_embeddings_backend_core::BackendError::Architecture) if a setting
    /// or the architecture is not supported.
    pub fn from_config(config: &serde_json::Value) -> Result<Self> {
        Ok(Self { plan: models::plan(config, &WeightChoices::default())? })
    }

    /// Values per hidden state.
    pub fn hidden_size(&self) -> usize {
        self.plan.hidden
    }

    /// Rows of the token embedding.
    pub fn vocabulary_size(&self) -> usize {
        self.plan.vocabulary
    }

    /// The number of layers that a token passes through.
    pub fn layer_count(&self) -> usize {
        self.layer_order().len()
    }

    /// The longest input, in tokens, that the positions allow.
    pub fn max_length(&self) -> Option<usize> {
        self.plan.max_length
    }

    /// Whether texts share the rows of a common beginning.
    pub fn shares_prefixes(&self) -> bool {
        self.plan.packing().shares_prefixes
    }

    /// The values of all tables and matrices up to the last hidden states. A tensor that is used twice counts
    /// once.
    pub fn parameter_count(&self) -> f64 {
        let mut values: BTreeMap<(&str, usize), f64> = BTreeMap::new();
        let disentangled = self.plan.layers.iter().filter_map(|layer| layer_positions(layer));
        let tables = disentangled.clone().map(|it| &it.table).chain(self.kept_tables());
        values.extend(tables.map(|table| ((&*table.tensor, 0), table_values(table))));
        let of_positions =
            disentangled.flat_map(|it| it.keys.iter().chain(&it.queries)).map(RowProduct::from_matrix);
        let layers = (0..self.plan.layers.len()).flat_map(|index| self.layer_products(index));
        for part in
            layers.chain(self.first_projection()).chain(of_positions).flat_map(|product| product.parts)
        {
            values.insert((&part.weight, part.rows.start), part_values(part));
        }
        for view in &self.plan.views {
            if let Position::Buckets { table, buckets } = &view.position {
                values.insert((table, 0), (buckets.count * view.heads.queries) as f64);
            }
        }
        values.into_values().sum::<f64>() + self.convolution_values()
    }

    /// The bytes of the weights in memory, in this arithmetic.
    pub fn weight_bytes(&self, dtype: DType, stored: StoredValues, set: InstructionSet) -> u64 {
        let wide = if stored.are_bfloat16 { 2.0 } else { 4.0 };
        let precise = if Arithmetic::of_dtype(set, dtype).high == OperandFormat::F32 { wide } else { 2.0 };
        let low = match dtype {
            DType::Int8 => 1.0,
            DType::Int4 => NIBBLE_BYTES,
            _ => precise,
        };
        let of_table = if dtype == DType::Int4 { NIBBLE_BYTES } else { stored.bits as f64 / 8.0 };
        let tables: f64 = self.kept_tables().map(table_values).sum();
        let mut bytes = of_table * tables + precise * self.first_values();
        for (index, layer) in self.plan.layers.iter().enumerate() {
            for product in self.layer_products(index) {
                let each = if product.is_precise { precise } else { low };
                bytes += each * product.value_count();
            }
            // Instead of the table of positions, its products with matrices stay in memory.
            let positions = layer_positions(layer).map_or(0.0, |it| it.position_scores(1, 1));
            bytes += precise * positions * self.plan.hidden as f64;
        }
        bytes as u64
    }

    /// The bytes of a batch's activations, and of the keys, values and states that are copied for a cache of
    /// at most `cache_bytes`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`](text_embeddings_backend_core::BackendError::Load) for an arithmetic that the
    /// CPU does not have.
    pub fn batch_bytes(
        &self,
        tokens: usize,
        dtype: DType,
        cache_bytes: usize,
        set: InstructionSet,
    ) -> Result<u64> {
        let operations = CpuOperations::on(Threads::start(1)?, set, dtype)?;
        let budget = if self.shares_prefixes() { cache_bytes } else { 0 };
        let cache = PrefixCache::<HostValues>::new(budget, token_shape(&self.plan, &operations));
        Ok(activation_bytes(self.plan.values_per_token(), &cache, tokens) as u64)
    }

    /// The bytes of the logits that the head of a SPLADE model holds at a time, on all threads.
    pub fn logit_bytes(&self, threads: usize) -> u64 {
        self.plan.logit_bytes(threads) as u64
    }

    /// The work of a text of this many tokens. In the last layer, only `answer_rows` of them are computed
    /// behind keys and values.
    pub fn text_work(&self, tokens: usize, answer_rows: usize) -> PassWork {
        let order = self.layer_order();
        let first = tokens as f64 * self.first_values();
        let mut work = PassWork { products: first, precise: first, attention: 0.0 };
        let seen: Vec<f64> = self.plan.views.iter().map(|view| seen_by(view, tokens, tokens)).collect();
        for (place, &index) in order.iter().enumerate() {
            let is_last = place + 1 == order.len();
            let rows = if is_last { answer_rows.min(tokens) } else { tokens };
            let layer = &self.plan.layers[index];
            for product in self.layer_products(index) {
                let rows = if product.is_of_all_rows { tokens } else { rows };
                let multiplications = rows as f64 * product.share * product.value_count();
                work.products += multiplications;
                work.precise += if product.is_precise { multiplications } else { 0.0 };
            }
            work.attention += match &layer.mixer {
                MixerPlan::Attention(AttentionPlan { view, .. }) if rows == tokens => {
                    self.attention_work(layer, *view, seen[*view], [rows, tokens])
                }
                MixerPlan::Attention(AttentionPlan { view, .. }) => {
                    let seen = seen_by(&self.plan.views[*view], rows, tokens);
                    self.attention_work(layer, *view, seen, [rows, tokens])
                }
                // As `cpu/timed` counts them.
                MixerPlan::Delta(delta) => {
                    let sizes = delta.sizes;
                    let state = sizes.value_heads * sizes.key_size * sizes.value_size;
                    tokens as f64 * (3.5 * state as f64 + (sizes.taps * sizes.channel_count()) as f64)
                }
                MixerPlan::Convolution(convolution) => (tokens * convolution.taps * convolution.width) as f64,
            };
        }
        work
    }

    /// The multiplications of a token with weights.
    pub fn token_work(&self) -> u64 {
        self.text_work(1, 1).products as u64
    }

    /// The multiplications of queries with keys and positions, and of weights with values.
    fn attention_work(&self, layer: &LayerPlan, view: usize, seen: f64, [rows, tokens]: [usize; 2]) -> f64 {
        let Heads { queries, size, .. } = self.plan.views[view].heads;
        let positions = layer_positions(layer).map_or(0.0, |it| it.position_scores(rows, tokens));
        queries as f64 * size as f64 * (2.0 * seen + positions)
    }

    /// The products of each row in a layer.
    fn layer_products(&self, index: usize) -> Vec<RowProduct<'_>> {
        let layer = &self.plan.layers[index];
        let mut products = match &layer.mixer {
            MixerPlan::Attention(attention) => {
                let mut products = vec![
                    RowProduct::from_matrix(&attention.key_value).of_all_rows(),
                    RowProduct::from_matrix(&attention.query),
                    RowProduct::from_matrix(&attention.output),
                ];
                products.extend(attention.gate.as_ref().map(RowProduct::from_matrix));
                products
            }
            MixerPlan::Delta(delta) => vec![
                RowProduct::from_matrix(&delta.query_key_value).of_all_rows(),
                RowProduct::from_matrix(&delta.rates).of_all_rows().kept_precise(),
                RowProduct::from_matrix(&delta.gate),
                RowProduct::from_matrix(&delta.output),
            ],
            MixerPlan::Convolution(convolution) => vec![
                RowProduct::from_matrix(&convolution.input).of_all_rows(),
                RowProduct::from_matrix(&convolution.gate),
                RowProduct::from_matrix(&convolution.output),
            ],
        };
        match &layer.mlp {
            MlpPlan::Plain { up, down, .. } => products.extend([up, down].map(RowProduct::from_matrix)),
            MlpPlan::Gated { gate, up, down, .. } => {
                products.extend([RowProduct::from_parts(vec![gate, up]), RowProduct::from_matrix(down)]);
            }
            MlpPlan::Experts(experts) => {
                products.push(RowProduct::from_matrix(&experts.router).kept_precise());
                let share = experts.top as f64 / experts.mlps.len().max(1) as f64;
                for [up, down] in &experts.mlps {
                    let up = RowProduct { share, ..RowProduct::from_matrix(up).kept_precise() };
                    products.extend([up, RowProduct { share, ..RowProduct::from_matrix(down) }]);
                }
            }
        }
        // The first layer of architectures without norms of sums keeps its precision (`layer.rs`).
        if index == 0 && layer.mlp_norms.sum.is_none() {
            products = products.into_iter().map(RowProduct::kept_precise).collect();
        }
        if let Some(gate) = self.plan.input_gates.get(index) {
            products.extend(
                [&gate.projection, &gate.gate, &gate.output]
                    .map(|it| RowProduct::from_matrix(it).kept_precise()),
            );
        }
        products
    }

    /// Values of a layer's matrices.
    pub(crate) fn layer_values(&self, index: usize) -> f64 {
        self.layer_products(index).iter().map(RowProduct::value_count).sum()
    }

    fn first_projection(&self) -> Option<RowProduct<'_>> {
        self.plan.embeddings.projection.as_ref().map(RowProduct::from_matrix)
    }

    /// Values of the convolution next to the first layer.
    fn convolution_values(&self) -> f64 {
        let hidden = self.plan.hidden as f64;
        self.plan.convolution.as_ref().map_or(0.0, |it| it.taps as f64 * hidden * hidden)
    }

    /// Values of the matrices outside of layers.
    fn first_values(&self) -> f64 {
        self.convolution_values() + self.first_projection().map_or(0.0, |product| product.value_count())
    }

    /// The indices of the layers in the order in which they run.
    fn layer_order(&self) -> Vec<usize> {
        self.plan.repeated.clone().unwrap_or_else(|| (0..self.plan.layers.len()).collect())
    }

    /// The tables that stay in memory.
    fn kept_tables(&self) -> impl Iterator<Item = &TablePlan> {
        self.plan.embeddings.tables.iter().chain(self.plan.kinds.iter().map(|kinds| &kinds.table))
    }
}

/// `DeBERTa`'s relative positions of a layer, if it has them.
fn layer_positions(layer: &LayerPlan) -> Option<&DisentangledPlan> {
    match &layer.mixer {
        MixerPlan::Attention(attention) => attention.disentangled.as_ref(),
        MixerPlan::Delta(_) | MixerPlan::Convolution(_) => None,
    }
}

/// The number of keys that the last `rows` queries of a text see, added up.
fn seen_by(view: &View, rows: usize, tokens: usize) -> f64 {
    (tokens - rows..tokens).map(|at| view.mask.visible(at, 0, tokens).len()).sum::<usize>() as f64
}

impl DisentangledPlan {
    /// The scores with positions of `queries` queries and `keys` keys, in each head.
    fn position_scores(&self, queries: usize, keys: usize) -> f64 {
        let with_queries = if self.keys.is_some() { queries } else { 0 };
        let with_keys = if self.queries.is_some() { keys } else { 0 };
        2.0 * self.bucket.span as f64 * (with_queries + with_keys) as f64
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::json;

    #[test]
    fn well_known_models_have_their_published_parameters() {
        // The numbers are transformers' `model.num_parameters()`, less norms and biases.
        let bert = |layers: usize, hidden: usize, inner: usize, vocabulary: usize| {
            json!({"model_type": "bert", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner,
                   "num_attention_heads": 12, "vocab_size": vocabulary, "max_position_embeddings": 512,
                   "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12})
        };
        let qwen3 = |layers: usize, hidden: usize, inner: usize, heads: usize, vocabulary: usize| {
            json!({"model_type": "qwen3", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner,
                   "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": vocabulary,
                   "max_position_embeddings": 40_960, "hidden_act": "silu", "rms_norm_eps": 1e-6,
                   "rope_theta": 1e6, "tie_word_embeddings": true})
        };
        for (name, config, parameters, vectors) in [
            // Of each layer: two norms of 1024 values, two of 128; and the last norm.
            (
                "Qwen3-Reranker-0.6B",
                qwen3(28, 1024, 3072, 16, 151_669),
                595_776_512,
                28 * (2 * 1024 + 2 * 128) + 1024,
            ),
            (
                "Qwen3-Embedding-4B",
                qwen3(36, 2560, 9728, 32, 151_665),
                4_021_774_336,
                36 * (2 * 2560 + 2 * 128) + 2560,
            ),
            // Without the pooler. Of each layer: nine vectors as wide as the states, and one inner bias.
            ("bert-base-uncased", bert(12, 768, 3072, 30_522), 108_891_648, 12 * (9 * 768 + 3072) + 2 * 768),
            ("all-MiniLM-L6-v2", bert(6, 384, 1536, 30_522), 22_565_376, 6 * (9 * 384 + 1536) + 2 * 384),
        ] {
            let shape = ModelShape::from_config(&config).unwrap();
            assert_eq!(shape.parameter_count() as usize + vectors, parameters, "{name}");
            // A token is multiplied with all but the tables: of tokens, in BERT of positions and types, too.
            let positions = config["type_vocab_size"].as_u64().map_or(0, |types| 512 + types as usize);
            let table_rows = shape.vocabulary_size() + positions;
            let expected = parameters - vectors - table_rows * shape.hidden_size();
            assert_eq!(shape.token_work() as usize, expected, "{name}");
        }
    }

    #[test]
    fn the_work_and_the_memory_of_qwen3_are_those_of_its_document() {
        let config = json!({"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024,
            "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 151_669, "max_position_embeddings": 40_960, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true});
        let shape = ModelShape::from_config(&config).unwrap();
        assert_eq!((shape.hidden_size(), shape.layer_count(), shape.vocabulary_size()), (1024, 28, 151_669));
        let work = shape.text_work(128, 128);
        // 0.88 GFLOP for each token (docs/performance-details.md), and attention by hand: each query sees
        // half of the keys.
        assert!((2.0 * work.products / 128.0 / 1e9 - 0.881).abs() < 1e-3, "{work:?}");
        assert!((work.attention - 28.0 * 2.0 * 16.0 * 128.0 * f64::from(128 * 129 / 2)).abs() < 1.0);
        let one = shape.text_work(128, 1);
        let of_layer = (2 * 16 * 128 + 3 * 3072) * 1024;
        assert!((work.products - one.products - f64::from(127 * of_layer)).abs() < 1.0);
        let stored = StoredValues { bits: 16, are_bfloat16: true };
        let best = InstructionSet::best();
        let bytes = |dtype| shape.weight_bytes(dtype, stored, best) as f64 / 1e9;
        assert!((bytes(DType::BFloat16) - 0.88 - 0.31).abs() < 0.01, "{}", bytes(DType::BFloat16));
        assert!((bytes(DType::Int8) - 0.46 - 0.31).abs() < 0.01, "{}", bytes(DType::Int8));
        let windows = json!({"model_type": "modernbert", "num_hidden_layers": 3, "hidden_size": 64,
            "intermediate_size": 96, "num_attention_heads": 2, "vocab_size": 100, "local_attention": 128,
            "global_attn_every_n_layers": 3, "max_position_embeddings": 8192, "pad_token_id": 0,
            "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "norm_eps": 1e-5,
            "hidden_activation": "gelu"});
        let shape = ModelShape::from_config(&windows).unwrap();
        // One token sees itself, in three layers of 64 values.
        assert!((shape.text_work(1, 1).attention - f64::from(3 * 2 * 64)).abs() < 1e-9);
        let (short, long) = (shape.text_work(128, 128).attention, shape.text_work(4096, 4096).attention);
        // Keys of one layer grow with the square, of two with the text.
        assert!(long / short < 0.5 * 1024.0 && long / short > 0.3 * 1024.0, "{}", long / short);
    }

    #[test]
    fn an_impossible_configuration_is_counted_without_memory() {
        let most = 1 << 24;
        let config = json!({"model_type": "qwen3", "num_hidden_layers": 10_000, "hidden_size": most,
            "intermediate_size": most, "num_attention_heads": 10_000, "num_key_value_heads": 10_000,
            "head_dim": most, "vocab_size": most, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "tie_word_embeddings": true});
        let shape = ModelShape::from_config(&config).unwrap();
        assert!(shape.parameter_count() > 1e20);
        let stored = StoredValues { bits: 32, are_bfloat16: false };
        assert_eq!(shape.weight_bytes(DType::Float32, stored, InstructionSet::best()), u64::MAX);
        assert!(shape.text_work(512, 1).all_multiplications() > 1e22);
        let batch = shape.batch_bytes(usize::MAX, DType::Float32, usize::MAX, InstructionSet::best());
        assert_eq!(batch.unwrap(), u64::MAX);
    }
}

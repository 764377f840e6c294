//! Small Qwen3 checkpoints with seeded random weights, written to a temporary folder.
//!
//! Input: a seed, and the storage type of tensors. Output: files, and the weights as they were stored, so
//! that a test can compute with them. What must hold: sizes are odd where possible; the same seed gives the
//! same weights, whatever the tensors are called.

use super::*;
use candle_core::DType;
use tempfile::TempDir;

pub(super) const VOCABULARY: usize = 97;
pub(super) const HIDDEN: usize = 44;

/// The sizes of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) hidden: usize,
    pub(super) heads: Heads,
    pub(super) inner: usize,
    pub(super) layers: usize,
}

const SMALL: Sizes =
    Sizes { hidden: HIDDEN, heads: Heads { queries: 6, keys: 3, size: 10 }, inner: 70, layers: 2 };

/// A model folder.
pub(super) struct RandomModel {
    folder: TempDir,
    rng: StdRng,
    /// `config.json`.
    pub(super) config: serde_json::Value,
    /// The files written so far.
    pub(super) weights: Vec<PathBuf>,
}

impl RandomModel {
    /// A model without an output embedding. The names of its tensors begin with `prefix`.
    pub(super) fn new(seed: u64, prefix: &str, dtype: DType) -> Self {
        Self::with_sizes(seed, prefix, dtype, SMALL)
    }

    /// The same with these sizes.
    pub(super) fn with_sizes(seed: u64, prefix: &str, dtype: DType, sizes: Sizes) -> Self {
        let Sizes { hidden, heads: Heads { queries, keys, size }, inner, layers } = sizes;
        let config = serde_json::json!({
            "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": queries, "num_key_value_heads": keys, "head_dim": size,
            "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 1e6, "tie_word_embeddings": true
        });
        let folder = tempfile::tempdir().unwrap();
        let mut model = Self { folder, rng: StdRng::seed_from_u64(seed), config, weights: Vec::new() };
        let mut tensors = vec![("embed_tokens.weight".to_owned(), vec![VOCABULARY, hidden])];
        for layer in 0..layers {
            for (name, shape) in [
                ("input_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![queries * size, hidden]),
                ("self_attn.k_proj", vec![keys * size, hidden]),
                ("self_attn.v_proj", vec![keys * size, hidden]),
                ("self_attn.q_norm", vec![size]),
                ("self_attn.k_norm", vec![size]),
                ("self_attn.o_proj", vec![hidden, queries * size]),
                ("post_attention_layernorm", vec![hidden]),
                ("mlp.gate_proj", vec![inner, hidden]),
                ("mlp.up_proj", vec![inner, hidden]),
                ("mlp.down_proj", vec![hidden, inner]),
            ] {
                tensors.push((format!("layers.{layer}.{name}.weight"), shape));
            }
        }
        tensors.push(("norm.weight".to_owned(), vec![hidden]));
        let tensors = tensors.into_iter().map(|(name, shape)| {
            let values = model.values(shape.iter().product(), if shape.len() == 1 { 1.0 } else { 0.0 });
            (format!("{prefix}{name}"), values, shape)
        });
        let tensors = tensors.collect::<Vec<_>>();
        model.weights = vec![model.write("model.safetensors", &tensors, dtype)];
        model
    }

    /// Random values around `middle`.
    pub(super) fn values(&mut self, count: usize, middle: f32) -> Vec<f32> {
        (0..count).map(|_| middle + self.rng.random_range(-0.4..0.4)).collect()
    }

    /// Writes a safetensors file into the folder.
    pub(super) fn write(
        &self,
        file: &str,
        tensors: &[(String, Vec<f32>, Vec<usize>)],
        dtype: DType,
    ) -> PathBuf {
        let path = self.folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let tensor = |values: &[f32], shape: &[usize]| {
            Tensor::from_slice(values, shape, &Device::Cpu).and_then(|tensor| tensor.to_dtype(dtype)).unwrap()
        };
        let tensors: HashMap<_, _> =
            tensors.iter().map(|(name, values, shape)| (name.clone(), tensor(values, shape))).collect();
        candle_core::safetensors::save(&tensors, &path).unwrap();
        path
    }

    /// Adds a file with one `f32` tensor to the checkpoint.
    pub(super) fn add(&mut self, name: &str, values: &[f32], shape: &[usize]) {
        let path = self.write(
            &format!("{name}.safetensors"),
            &[(name.to_owned(), values.to_vec(), shape.to_vec())],
            DType::F32,
        );
        self.weights.push(path);
    }

    /// Adds a random `score.weight` and returns its rows.
    pub(super) fn add_score(&mut self, labels: usize) -> Vec<Vec<f32>> {
        let score = self.values(labels * HIDDEN, 0.0);
        self.add("score.weight", &score, &[labels, HIDDEN]);
        score.chunks(HIDDEN).map(<[f32]>::to_vec).collect()
    }

    /// Writes a dense module with random weights to a folder of its own. Returns the weights, too.
    pub(super) fn dense(
        &mut self,
        folder: &str,
        (inputs, outputs): (usize, usize),
        bias: bool,
        activation: Activation,
    ) -> (DenseModule, Vec<f32>, Vec<f32>) {
        let weight = self.values(outputs * inputs, 0.0);
        let offsets = self.values(outputs, 0.0);
        let mut tensors = vec![("linear.weight".to_owned(), weight.clone(), vec![outputs, inputs])];
        if bias {
            tensors.push(("linear.bias".to_owned(), offsets.clone(), vec![outputs]));
        }
        let weights = self.write(&format!("{folder}/model.safetensors"), &tensors, DType::F32);
        let offsets = if bias { offsets } else { vec![0.0; outputs] };
        let module = DenseModule {
            weights: weights.into(),
            in_features: inputs,
            out_features: outputs,
            bias,
            activation,
        };
        (module, weight, offsets)
    }

    /// The options for loading it with this head.
    pub(super) fn options(&self, head: Head) -> LoadOptions {
        LoadOptions {
            dtype: Some(crate::DType::Float32),
            threads: 2,
            ..LoadOptions::new(
                self.config.clone(),
                self.weights.iter().cloned().map(ModelFile::Disk).collect(),
                head,
            )
        }
    }
}

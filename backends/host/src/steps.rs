//! Steps of a head: matrices with an activation, and norms, for a few vectors in main memory.
//!
//! Input: vectors, one after the other. Output: vectors, perhaps of another length. What must hold: the first
//! step takes the model's vectors, every later step takes the results of the step before it. The device
//! computes products; the few values of activations and norms are computed here.

use crate::{HeadDevice, HostMatrix};
use std::slice;
use text_embeddings_backend_core::{
    Activation, BackendError, DenseModule, HeadModule, LayerNormModule, ModelFile, amount,
};
use text_embeddings_checkpoint::{CheckpointError, Tensor, Tensors};

/// A step with its weights. `M` is a matrix, where the device's products read it.
#[derive(Debug)]
pub enum Step<M> {
    /// `activation(matrix · x + bias)`
    Dense {
        /// The matrix with its bias.
        matrix: M,
        /// Values per result.
        outputs: usize,
        /// The activation.
        activation: Activation,
    },
    /// A norm of each vector.
    Norm {
        /// Whether the mean is subtracted first: a layer norm. Otherwise the divisor is the root of the mean
        /// square.
        is_centred: bool,
        /// The factors.
        weight: Vec<f32>,
        /// The addends.
        bias: Vec<f32>,
        /// Added to the variance or the mean square.
        epsilon: f32,
    },
}

/// Steps that run one after the other.
#[derive(Debug)]
pub struct Steps<M> {
    list: Vec<Step<M>>,
    /// Values per vector at the input.
    pub inputs: usize,
    /// Values per vector at the output.
    pub outputs: usize,
}

/// The epsilon of sentence-transformers' `LayerNorm` module, which is torch's default.
const MODULE_EPSILON: f32 = 1e-5;

impl<M> Steps<M> {
    /// No steps, for vectors of `width` values.
    pub fn none(width: usize) -> Self {
        Self { list: Vec::new(), inputs: width, outputs: width }
    }

    /// Adds a step after the last one.
    pub fn push(&mut self, step: Step<M>) {
        self.outputs = step.output_width(self.outputs);
        self.list.push(step);
    }

    /// Loads sentence-transformers' modules after the last step. `place` puts a matrix where products read
    /// it.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] naming the file if a module does not fit the one before it, or if its weights
    /// are missing or of another shape.
    pub fn load_modules(
        &mut self,
        modules: &[HeadModule],
        place: impl Fn(HostMatrix) -> Result<M, BackendError>,
    ) -> Result<(), BackendError> {
        for module in modules {
            let (weights, takes) = match module {
                HeadModule::Dense(DenseModule { weights, in_features, .. }) => (weights, *in_features),
                HeadModule::LayerNorm(LayerNormModule { weights, size }) => (weights, *size),
            };
            if takes != self.outputs {
                return Err(BackendError::Load(format!(
                    "the module of {} takes vectors of {}, but what comes before it gives {}: correct \
                     in_features in its config.json, or the order in modules.json",
                    weights.path().display(),
                    amount(takes, "value"),
                    self.outputs
                )));
            }
            self.push(match module {
                HeadModule::Dense(module) => Step::Dense {
                    matrix: place(load_dense(module)?)?,
                    outputs: module.out_features,
                    activation: module.activation,
                },
                HeadModule::LayerNorm(module) => load_layer_norm(module)?,
            });
        }
        Ok(())
    }

    /// Runs vectors, one after the other, through all steps.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if a product fails.
    pub fn run<D: HeadDevice<Matrix = M>>(
        &self,
        device: &mut D,
        mut vectors: Vec<f32>,
    ) -> Result<Vec<f32>, BackendError> {
        if vectors.is_empty() {
            return Ok(vectors);
        }
        let mut width = self.inputs;
        for step in &self.list {
            match step {
                Step::Dense { matrix, activation, .. } => {
                    vectors = device.multiply_matrix(matrix, &vectors, width, |products| {
                        products.iter().map(|&product| apply_activation(*activation, product)).collect()
                    })?;
                }
                Step::Norm { .. } => {
                    vectors.chunks_exact_mut(width).for_each(|vector| step.normalise_vector(vector));
                }
            }
            width = step.output_width(width);
        }
        Ok(vectors)
    }
}

impl<M> Step<M> {
    fn output_width(&self, inputs: usize) -> usize {
        match self {
            Self::Dense { outputs, .. } => *outputs,
            Self::Norm { .. } => inputs,
        }
    }

    /// Replaces a vector by its norm; nothing if this step is not a norm.
    fn normalise_vector(&self, vector: &mut [f32]) {
        let Self::Norm { is_centred, weight, bias, epsilon } = self else { return };
        let count = vector.len() as f64;
        let sum: f64 = vector.iter().map(|&value| f64::from(value)).sum();
        let mean = if *is_centred { sum / count } else { 0.0 };
        let squares: f64 = vector.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum();
        let scale = 1.0 / (squares / count + f64::from(*epsilon)).sqrt();
        for ((value, &weight), &bias) in vector.iter_mut().zip(weight).zip(bias) {
            *value = ((f64::from(*value) - mean) * scale * f64::from(weight) + f64::from(bias)) as f32;
        }
    }
}

/// An activation of one value, computed in double precision.
pub fn apply_activation(activation: Activation, x: f32) -> f32 {
    let wide = f64::from(x);
    match activation {
        Activation::Identity => x,
        Activation::Silu => (wide / (1.0 + (-wide).exp())) as f32,
        Activation::Gelu => (wide * 0.5 * (1.0 + libm::erf(wide / std::f64::consts::SQRT_2))) as f32,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            (0.5 * wide * (1.0 + inner.tanh())) as f32
        }
        Activation::Relu => x.max(0.0) + x * 0.0,
        Activation::Tanh => wide.tanh() as f32,
        Activation::Sigmoid => (1.0 / (1.0 + (-wide).exp())) as f32,
    }
}

fn load_dense(module: &DenseModule) -> Result<HostMatrix, BackendError> {
    let DenseModule { ref weights, in_features: inputs, out_features: outputs, bias, .. } = *module;
    if inputs == 0 || outputs == 0 {
        return Err(BackendError::Load(format!(
            "the dense module of {} has no inputs or no outputs: in_features and out_features in its \
             config.json must be positive",
            weights.path().display()
        )));
    }
    let tensors = open(weights)?;
    let prefix = if tensors.has("weight") { "" } else { "linear." };
    let weight = values(&tensors, &format!("{prefix}weight"), &[outputs, inputs])?;
    let bias = if bias { Some(values(&tensors, &format!("{prefix}bias"), &[outputs])?) } else { None };
    tensors.finish(&[]).map_err(load_error)?;
    Ok(HostMatrix { weight, inputs, bias })
}

fn load_layer_norm<M>(module: &LayerNormModule) -> Result<Step<M>, BackendError> {
    let tensors = open(&module.weights)?;
    let weight = values(&tensors, "norm.weight", &[module.size])?;
    let bias = values(&tensors, "norm.bias", &[module.size])?;
    tensors.finish(&[]).map_err(load_error)?;
    Ok(Step::Norm { is_centred: true, weight, bias, epsilon: MODULE_EPSILON })
}

fn open(file: &ModelFile) -> Result<Tensors, BackendError> {
    Tensors::open(slice::from_ref(file)).map_err(load_error)
}

/// The values of a tensor of this shape, row after row.
fn values(tensors: &Tensors, name: &str, shape: &[usize]) -> Result<Vec<f32>, BackendError> {
    let tensor = tensors.request_tensor(name, shape).map_err(load_error)?;
    let bytes = Tensor::read(tensor, name, 0..tensor.rows()).map_err(load_error)?;
    let mut values = vec![0.0; shape.iter().product()];
    tensor.encoding().widen(&bytes, &mut values);
    Ok(values)
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands it on so")]
fn load_error(error: CheckpointError) -> BackendError {
    BackendError::Load(error.to_string())
}

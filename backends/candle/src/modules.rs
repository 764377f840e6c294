//! Steps of a head: matrices with an activation, and norms, for a few vectors in main memory.
//!
//! Input: vectors, one after the other. Output: vectors, perhaps of another length. What must hold: the first
//! step takes the model's vectors, every later step takes the results of the step before it. The device
//! computes products; the few values of activations and norms are computed here.

use crate::{
    load::Checkpoint,
    operations::{NormKind, Operations, Part, Precision, Result},
    plan,
    transformer::Weights,
};
use std::path::Path;
use text_embeddings_backend_core::{
    Activation, BackendError, DenseModule, HeadModule, LayerNormModule, amount,
};

/// A step with its weights.
pub(crate) enum Step<O: Operations> {
    /// `activation(matrix · x + bias)`
    Dense {
        /// The matrix with its bias.
        matrix: O::Matrix,
        /// Values per result.
        outputs: usize,
        /// The activation.
        activation: Activation,
    },
    /// A norm of each vector.
    Norm {
        /// The norm's divisor.
        kind: NormKind,
        /// The factors.
        weight: Vec<f32>,
        /// The addends.
        bias: Vec<f32>,
        /// Added to the variance or the mean square.
        epsilon: f32,
    },
}

/// Steps that run one after the other.
pub(crate) struct Steps<O: Operations> {
    steps: Vec<Step<O>>,
    /// Values per vector at the input, and at the output.
    pub(crate) widths: (usize, usize),
}

/// The epsilon of sentence-transformers' `LayerNorm` module, which is torch's default.
const MODULE_EPSILON: f32 = 1e-5;

impl<O: Operations> Steps<O> {
    /// Loads sentence-transformers' modules, for vectors of `width` values.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] naming the file if a module does not fit the one before it, or if its weights
    /// are missing or of another shape.
    pub(crate) fn of_modules(modules: &[HeadModule], width: usize, operations: &O) -> Result<Self> {
        let mut given = width;
        let mut steps = Vec::with_capacity(modules.len());
        for module in modules {
            let (weights, takes) = match module {
                HeadModule::Dense(DenseModule { weights, in_features, .. }) => (weights, *in_features),
                HeadModule::LayerNorm(LayerNormModule { weights, size }) => (weights, *size),
            };
            if takes != given {
                return Err(BackendError::Load(format!(
                    "the module of {} takes vectors of {}, but what comes before it gives \
                     {given}: correct in_features in its config.json, or the order in modules.json",
                    weights.display(),
                    amount(takes, "value"),
                )));
            }
            let step = match module {
                HeadModule::Dense(module) => dense(module, operations)?,
                HeadModule::LayerNorm(module) => layer_norm(module)?,
            };
            given = step.outputs(given);
            steps.push(step);
        }
        Ok(Self { steps, widths: (width, given) })
    }

    /// Loads the checkpoint's steps, for vectors of `width` values.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] naming the tensor that is missing or of another shape.
    pub(crate) fn of_plan(steps: &[plan::StepPlan], width: usize, weights: &Weights<'_, O>) -> Result<Self> {
        let mut given = width;
        let load = |step: &plan::StepPlan| {
            let step = match step {
                plan::StepPlan::Dense(matrix, activation) => Step::Dense {
                    // As exact as the last layer's result. It is computed only once per text.
                    matrix: weights.matrix(matrix, Precision::High)?,
                    outputs: matrix.outputs(),
                    activation: *activation,
                },
                plan::StepPlan::Norm(norm) => {
                    let plan::NormPlan { name, kind, size, bias, epsilon, .. } = norm;
                    let weight = weights.checkpoint.vector(&format!("{name}.weight"), *size)?;
                    let bias = bias
                        .then(|| weights.checkpoint.vector(&format!("{name}.bias"), *size))
                        .transpose()?;
                    let bias = bias.unwrap_or_else(|| vec![0.0; *size]);
                    Step::Norm { kind: *kind, weight, bias, epsilon: *epsilon }
                }
            };
            given = step.outputs(given);
            Ok(step)
        };
        let steps = steps.iter().map(load).collect::<Result<_>>()?;
        Ok(Self { steps, widths: (width, given) })
    }

    /// Runs vectors, one after the other, through all steps.
    pub(crate) fn run(&self, operations: &mut O, mut vectors: Vec<f32>) -> Result<Vec<f32>> {
        if vectors.is_empty() {
            return Ok(vectors);
        }
        let mut width = self.widths.0;
        for step in &self.steps {
            vectors = step.run(operations, vectors, width)?;
            width = step.outputs(width);
        }
        Ok(vectors)
    }
}

impl<O: Operations> Step<O> {
    fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Dense { outputs, .. } => *outputs,
            Self::Norm { .. } => inputs,
        }
    }

    /// Runs vectors of `width` values, one after the other, through this step.
    pub(crate) fn run(&self, operations: &mut O, mut vectors: Vec<f32>, width: usize) -> Result<Vec<f32>> {
        match self {
            Self::Dense { matrix, activation, .. } => {
                let x = operations.tensor(&vectors, width)?;
                let x = operations.operand(&x, Precision::High)?; // [vectors, inputs]
                let product = operations.linear(&x, matrix)?; // [vectors, outputs]
                let mut values = operations.values(&product)?.into_owned();
                for value in &mut values {
                    *value = apply(*activation, *value);
                }
                Ok(values)
            }
            Self::Norm { kind, weight, bias, epsilon } => {
                vectors
                    .chunks_exact_mut(width)
                    .for_each(|vector| norm(*kind, (weight, bias), *epsilon, vector));
                Ok(vectors)
            }
        }
    }
}

/// An activation of one value, with the standard library's precision.
fn apply(activation: Activation, x: f32) -> f32 {
    let wide = f64::from(x);
    match activation {
        Activation::Identity => x,
        Activation::Silu => (wide / (1.0 + (-wide).exp())) as f32,
        Activation::Gelu => {
            (wide * 0.5 * (1.0 + candle_core::cpu::erf::erf_f64(wide / std::f64::consts::SQRT_2))) as f32
        }
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            (0.5 * wide * (1.0 + inner.tanh())) as f32
        }
        Activation::Relu => x.max(0.0) + x * 0.0,
        Activation::Tanh => wide.tanh() as f32,
        Activation::Sigmoid => (1.0 / (1.0 + (-wide).exp())) as f32,
    }
}

fn norm(kind: NormKind, (weight, bias): (&[f32], &[f32]), epsilon: f32, vector: &mut [f32]) {
    let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / weight.len() as f64;
    let mean = match kind {
        NormKind::Layer => mean_of(&mut vector.iter().map(|&value| f64::from(value))),
        NormKind::Rms => 0.0,
    };
    let variance = mean_of(&mut vector.iter().map(|&value| (f64::from(value) - mean).powi(2)));
    let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
    for ((value, &weight), &bias) in vector.iter_mut().zip(weight).zip(bias) {
        *value = ((f64::from(*value) - mean) * scale * f64::from(weight) + f64::from(bias)) as f32;
    }
}

/// A dense module's weights.
pub(crate) fn dense<O: Operations>(module: &DenseModule, operations: &O) -> Result<Step<O>> {
    let DenseModule { ref weights, in_features: inputs, out_features: outputs, bias, activation } = *module;
    if inputs == 0 || outputs == 0 {
        return Err(BackendError::Load(format!(
            "the dense module of {} has no inputs or no outputs: in_features and out_features in its \
             config.json must be positive",
            weights.display()
        )));
    }
    let (checkpoint, prefix) = open(weights)?;
    let weight = checkpoint.tensor(&format!("{prefix}weight"), &[outputs, inputs])?;
    let bias = bias.then(|| checkpoint.vector(&format!("{prefix}bias"), outputs)).transpose()?;
    checkpoint.finish(&[])?;
    // As exact as the last layer's result. It is computed only once per text.
    let matrix = operations.matrix(vec![Part { weight, bias }], Precision::High)?;
    Ok(Step::Dense { matrix, outputs, activation })
}

/// The file of a dense module, and the prefix of `weight` in its tensor names.
fn open(path: &Path) -> Result<(Checkpoint, &'static str)> {
    let checkpoint = Checkpoint::open(&[path.to_path_buf()])?;
    let prefix = if checkpoint.has("weight") { "" } else { "linear." };
    Ok((checkpoint, prefix))
}

fn layer_norm<O: Operations>(module: &LayerNormModule) -> Result<Step<O>> {
    let checkpoint = Checkpoint::open(std::slice::from_ref(&module.weights))?;
    let weight = checkpoint.vector("norm.weight", module.size)?;
    let bias = checkpoint.vector("norm.bias", module.size)?;
    checkpoint.finish(&[])?;
    Ok(Step::Norm { kind: NormKind::Layer, weight, bias, epsilon: MODULE_EPSILON })
}

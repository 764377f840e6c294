//! A transformer layer: attention, then an MLP, each with its norms and residual.

use super::weights::Weights;
use crate::{
    attention::Heads,
    operations::{Attention, Disentangled, Norm, Operations, Precision, Result},
    pass::Pass,
    plan,
};
use text_embeddings_backend_core::Activation;

/// A layer with its weights.
pub(super) struct Layer<O: Operations> {
    /// The index of its kind of attention among the model's kinds.
    pub(super) view: usize,
    precisions: Precisions,
    query: O::Matrix,
    key_value: O::Matrix,
    output: O::Matrix,
    head_norms: HeadNorms<O>,
    disentangled: Option<Disentangled<O::Matrix>>,
    attention_norms: Norms<O>,
    mlp: Mlp<O>,
    mlp_norms: Norms<O>,
}

/// The norms around a block.
struct Norms<O: Operations> {
    input: Option<Norm<O::Vector>>,
    output: Option<Norm<O::Vector>>,
    sum: Option<Norm<O::Vector>>,
    second_sum: Option<Norm<O::Vector>>,
}

/// Norms of queries and keys.
enum HeadNorms<O: Operations> {
    None,
    EachHead { query: Norm<O::Vector>, key: Norm<O::Vector> },
    AllHeads { query: Norm<O::Vector>, key: Norm<O::Vector> },
}

enum Mlp<O: Operations> {
    Plain { up: O::Matrix, down: O::Matrix, activation: Activation, inner: Precision },
    Gated { gate_up: O::GatedMatrix, down: O::Matrix, activation: Activation, inner: Precision },
    Experts(Experts<O>),
}

struct Experts<O: Operations> {
    router: O::Matrix,
    /// Up and down.
    mlps: Vec<[O::Matrix; 2]>,
    /// One row, if there is a bias.
    bias: Option<O::Table>,
    top: usize,
    activation: Activation,
    inner: Precision,
}

/// The residual stream between two layers.
pub(super) struct Stream<O: Operations> {
    /// `[computed, hidden]`
    pub(super) hidden: O::Tensor,
    /// The same as an operand of the next layer's products, if the previous layer ended with a norm.
    pub(super) operand: Option<O::Operand>,
}

/// The rows of a layer's result, if not all computed rows are needed.
pub(super) struct LastRows<'a, 'r, O: Operations> {
    /// Their indices among the computed rows.
    pub(super) places: &'a [usize],
    /// The rows.
    pub(super) rows: &'a O::Rows<'r>,
}

impl<O: Operations> Norms<O> {
    fn load(norms: &plan::NormsPlan, weights: &Weights<'_, O>) -> Result<Self> {
        Ok(Self {
            input: weights.optional_norm(norms.input.as_ref())?,
            output: weights.optional_norm(norms.output.as_ref())?,
            sum: weights.optional_norm(norms.sum.as_ref())?,
            second_sum: weights.optional_norm(norms.second_sum.as_ref())?,
        })
    }
}

/// The precision of a layer's products in 8-bit arithmetic.
#[derive(Debug, Clone, Copy)]
struct Precisions {
    /// For products with the residual stream.
    input: Precision,
    /// For attention's output projection.
    context: Precision,
    /// For the MLP's second product.
    inner: Precision,
}

impl Precisions {
    fn of(layer: &plan::LayerPlan, index: usize) -> Self {
        match (index, &layer.mlp_norms.sum) {
            // A norm of the residual stream itself keeps a few columns large in every layer. It also keeps
            // the first layer's errors no larger than other layers' errors.
            (_, Some(_)) => {
                Self { input: Precision::Spread, context: Precision::Low, inner: Precision::Spread }
            }
            // In other architectures, all layers build on the first, so its errors are the ones that grow.
            (0, None) => Self { input: Precision::High, context: Precision::High, inner: Precision::High },
            (_, None) => Self { input: Precision::Low, context: Precision::Low, inner: Precision::Spread },
        }
    }
}

impl<O: Operations> Layer<O> {
    pub(super) fn load(
        layer: &plan::LayerPlan,
        index: usize,
        heads: Heads,
        weights: &mut Weights<'_, O>,
    ) -> Result<Self> {
        let precisions = Precisions::of(layer, index);
        let plan::AttentionPlan { query, key_value, output, norms, disentangled } = &layer.attention;
        let disentangled =
            disentangled.as_ref().map(|disentangled| weights.disentangled(disentangled, heads));
        Ok(Self {
            view: layer.view,
            precisions,
            query: weights.matrix(query, precisions.input)?,
            key_value: weights.matrix(key_value, precisions.input)?,
            output: weights.matrix(output, precisions.context)?,
            head_norms: match norms {
                plan::HeadNormsPlan::None => HeadNorms::None,
                plan::HeadNormsPlan::EachHead(query, key) => {
                    HeadNorms::EachHead { query: weights.norm(query)?, key: weights.norm(key)? }
                }
                plan::HeadNormsPlan::AllHeads(query, key) => {
                    HeadNorms::AllHeads { query: weights.norm(query)?, key: weights.norm(key)? }
                }
            },
            disentangled: disentangled.transpose()?,
            attention_norms: Norms::load(&layer.attention_norms, weights)?,
            mlp: Mlp::load(&layer.mlp, precisions, weights)?,
            mlp_norms: Norms::load(&layer.mlp_norms, weights)?,
        })
    }

    /// The precision of its first products, if these take the residual stream without a norm.
    pub(super) fn takes_stream(&self) -> Option<Precision> {
        self.attention_norms.input.is_none().then_some(self.precisions.input)
    }

    /// From `[computed, hidden]` to `[rows, hidden]`: the rows of `wanted`, or all rows if it is absent.
    /// `next` is the next layer's [`Layer::takes_stream`]. If it is present, the result may come with the
    /// operand for the next layer.
    pub(super) fn forward<'r>(
        &self,
        operations: &mut O,
        Stream { mut hidden, operand }: Stream<O>,
        pass: &mut Pass<'_, O::Kept>,
        (all, wanted): (&O::Rows<'r>, Option<&LastRows<'_, 'r, O>>),
        next: Option<Precision>,
    ) -> Result<Stream<O>> {
        let mut operand = match operand {
            Some(operand) => operand,
            None => self.attention_norms.operand(operations, &hidden, self.precisions.input)?,
        }; // [computed, hidden]
        // [computed, 2 · key heads · size]
        let mut keys_values = operations.linear(&operand, &self.key_value)?;
        let key_norm = match &self.head_norms {
            HeadNorms::None => None,
            HeadNorms::EachHead { key, .. } => Some(key),
            HeadNorms::AllHeads { key, .. } => {
                operations.norm_columns(&mut keys_values, key)?;
                None
            }
        };
        operations.turn_keys(&mut keys_values, key_norm, all)?;
        pass.exchange(operations, &mut keys_values)?; // [tokens, 2 · key heads · size]
        let mut rows = all;
        if let Some(wanted) = wanted {
            hidden = operations.select(&hidden, wanted.places)?;
            // [rows, hidden]
            operand = self.attention_norms.operand(operations, &hidden, self.precisions.input)?;
            rows = wanted.rows;
        }
        let mut queries = operations.linear(&operand, &self.query)?; // [rows, heads · size]
        let query_norm = match &self.head_norms {
            HeadNorms::None => None,
            HeadNorms::EachHead { query, .. } => Some(query),
            HeadNorms::AllHeads { query, .. } => {
                operations.norm_columns(&mut queries, query)?;
                None
            }
        };
        let attention = Attention {
            queries: &queries,
            query_norm,
            keys_values: &keys_values,
            disentangled: self.disentangled.as_ref(),
        };
        let context = operations.attention(attention, rows, self.precisions.context)?; // [rows, heads · size]
        drop((operand, keys_values, queries));
        let before =
            self.attention_norms.second_sum.as_ref().map(|_| operations.copy(&hidden)).transpose()?;
        self.attention_norms.add(operations, &mut hidden, |operations, hidden| match hidden {
            Some(hidden) => operations.add_linear(&context, &self.output, hidden).map(|()| None),
            None => operations.linear(&context, &self.output).map(Some),
        })?; // [rows, hidden]
        drop(context);
        let operand = self.between(operations, &mut hidden, before.as_ref())?;
        drop(before);
        if let Mlp::Experts(experts) = &self.mlp {
            experts.forward(operations, &operand, &mut hidden)?;
        } else {
            self.mlp_norms.add(operations, &mut hidden, |operations, hidden| {
                self.mlp.forward(operations, operand, hidden)
            })?;
        }
        let operand = match (&self.mlp_norms.sum, next) {
            (None, _) => None,
            (Some(norm), Some(precision)) => Some(operations.norm_in_place(&mut hidden, norm, precision)?),
            (Some(norm), None) => {
                hidden = operations.norm(&hidden, norm)?;
                None
            }
        };
        Ok(Stream { hidden, operand })
    }

    /// Prepares the MLP: turns attention's sum into the residual that the MLP adds to, and returns the MLP's
    /// input.
    fn between(
        &self,
        operations: &mut O,
        hidden: &mut O::Tensor,
        before: Option<&O::Tensor>,
    ) -> Result<O::Operand> {
        let precision = self.mlp.precision(self.precisions.input);
        let mut operand = None;
        if let Some(norm) = &self.attention_norms.sum {
            operand = Some(operations.norm_in_place(hidden, norm, precision)?);
        }
        if let (Some(norm), Some(before)) = (&self.attention_norms.second_sum, before) {
            operations.add(before, None, hidden)?;
            operand = Some(operations.norm_in_place(hidden, norm, precision)?);
        }
        match (&self.mlp_norms.input, operand) {
            (Some(norm), _) => operations.norm_operand(hidden, norm, precision),
            (None, Some(operand)) => Ok(operand),
            (None, None) => operations.operand(hidden, precision),
        }
    }
}

impl<O: Operations> Norms<O> {
    /// The block's input.
    fn operand(&self, operations: &mut O, hidden: &O::Tensor, precision: Precision) -> Result<O::Operand> {
        match &self.input {
            Some(norm) => operations.norm_operand(hidden, norm, precision),
            None => operations.operand(hidden, precision),
        }
    }

    /// Adds the block's result to `hidden`. If `block` is given the sum, it adds the result itself; else it
    /// returns the result.
    fn add(
        &self,
        operations: &mut O,
        hidden: &mut O::Tensor,
        block: impl FnOnce(&mut O, Option<&mut O::Tensor>) -> Result<Option<O::Tensor>>,
    ) -> Result<()> {
        if self.output.is_none() {
            return block(operations, Some(hidden)).map(drop);
        }
        match block(operations, None)? {
            Some(result) => operations.add(&result, self.output.as_ref(), hidden),
            None => Ok(()),
        }
    }
}

impl<O: Operations> Mlp<O> {
    fn load(
        mlp: &plan::MlpPlan,
        Precisions { input, inner, .. }: Precisions,
        weights: &Weights<'_, O>,
    ) -> Result<Self> {
        Ok(match mlp {
            plan::MlpPlan::Plain { up, down, activation } => Self::Plain {
                up: weights.matrix(up, input)?,
                down: weights.matrix(down, inner)?,
                activation: *activation,
                inner,
            },
            plan::MlpPlan::Gated { gate, up, down, activation } => {
                let gate_up =
                    weights.operations.gated_matrix(weights.part(gate)?, weights.part(up)?, input)?;
                Self::Gated { gate_up, down: weights.matrix(down, inner)?, activation: *activation, inner }
            }
            plan::MlpPlan::Experts(experts) => {
                let expert = |[up, down]: &[plan::MatrixPlan; 2]| -> Result<_> {
                    Ok([weights.matrix(up, Precision::High)?, weights.matrix(down, inner)?])
                };
                Self::Experts(Experts {
                    router: weights.matrix(&experts.router, Precision::High)?,
                    mlps: experts.mlps.iter().map(expert).collect::<Result<_>>()?,
                    bias: experts.bias.as_ref().map(|bias| weights.row(bias, experts.hidden)).transpose()?,
                    top: experts.top,
                    activation: experts.activation,
                    inner,
                })
            }
        })
    }

    /// The precision of the MLP's input, in a layer whose inputs have this precision.
    fn precision(&self, layer: Precision) -> Precision {
        // A router's error would choose another expert.
        if let Self::Experts(_) = self { Precision::High } else { layer }
    }

    /// From `operand` `[rows, hidden]` to `[rows, hidden]`, which is added to `sum` if `sum` is given.
    fn forward(
        &self,
        operations: &mut O,
        operand: O::Operand,
        sum: Option<&mut O::Tensor>,
    ) -> Result<Option<O::Tensor>> {
        let (activated, down) = match self {
            Self::Plain { up, down, activation, inner } => {
                (operations.activated(&operand, up, *activation, *inner)?, down)
            }
            Self::Gated { gate_up, down, activation, inner } => {
                (operations.gated(&operand, gate_up, *activation, *inner)?, down)
            }
            Self::Experts(_) => return Ok(None),
        }; // [rows, inner]
        drop(operand);
        match sum {
            Some(sum) => operations.add_linear(&activated, down, sum).map(|()| None),
            None => operations.linear(&activated, down).map(Some),
        }
    }
}

impl<O: Operations> Experts<O> {
    /// Adds the MLPs of each row's experts to `hidden`. `operand` is `hidden` as an operand of products.
    fn forward(&self, operations: &mut O, operand: &O::Operand, hidden: &mut O::Tensor) -> Result<()> {
        let logits = operations.linear(operand, &self.router)?; // [rows, experts]
        let logits = operations.values(&logits)?.into_owned();
        let mut chosen = vec![(Vec::new(), Vec::new()); self.mlps.len()];
        for (row, logits) in logits.chunks_exact(self.mlps.len()).enumerate() {
            for (expert, share) in shares(logits, self.top) {
                chosen[expert].0.push(row);
                chosen[expert].1.push(share);
            }
        }
        // Collects all inputs before the first sum changes `hidden`.
        let inputs = chosen.iter().map(|(rows, _)| {
            if rows.is_empty() { Ok(None) } else { operations.select(hidden, rows).map(Some) }
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        for (([up, down], input), (rows, factors)) in self.mlps.iter().zip(inputs).zip(&chosen) {
            let Some(input) = input else { continue };
            let operand = operations.operand(&input, Precision::High)?;
            let activated = operations.activated(&operand, up, self.activation, self.inner)?;
            let result = operations.linear(&activated, down)?;
            operations.add_rows(&result, rows, factors, hidden)?;
        }
        let Some(bias) = &self.bias else { return Ok(()) };
        let zeros = vec![0; logits.len() / self.mlps.len()];
        let bias = operations.embed(&[(bias, &zeros)], 1.0, None)?;
        operations.add(&bias, None, hidden)
    }
}

/// The `top` largest values of a softmax over `logits`, with their indices. Of equal values, the first ones
/// count.
fn shares(logits: &[f32], top: usize) -> Vec<(usize, f32)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    let mut shares: Vec<(usize, f32)> = exponentials.iter().map(|value| value / sum).enumerate().collect();
    shares.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    shares.truncate(top);
    shares
}

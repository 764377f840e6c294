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
    /// Its kind of attention, among the model's.
    pub(super) view: usize,
    precisions: Precisions,
    query: O::Matrix,
    key_value: O::Matrix,
    output: O::Matrix,
    head_norms: HeadNorms<O>,
    disentangled: Option<Disentangled<O>>,
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
    /// One row.
    bias: O::Table,
    top: usize,
    activation: Activation,
    inner: Precision,
}

/// The residual stream between two layers.
pub(super) struct Stream<O: Operations> {
    /// `[computed, hidden]`
    pub(super) hidden: O::Tensor,
    /// The same, ready for the next layer's products, where a norm ended the layer before.
    pub(super) operand: Option<O::Operand>,
}

/// The rows of a layer's result where these are not all.
pub(super) struct Wanted<'a, 'r, O: Operations> {
    /// Their places among the rows that are computed.
    pub(super) places: &'a [usize],
    /// The rows.
    pub(super) rows: &'a O::Rows<'r>,
}

impl<O: Operations> Norms<O> {
    fn load(norms: &plan::Norms, weights: &Weights<'_, O>) -> Result<Self> {
        Ok(Self {
            input: weights.optional_norm(norms.input.as_ref())?,
            output: weights.optional_norm(norms.output.as_ref())?,
            sum: weights.optional_norm(norms.sum.as_ref())?,
            second_sum: weights.optional_norm(norms.second_sum.as_ref())?,
        })
    }
}

/// How exact a layer's products are in arithmetic of bytes.
#[derive(Debug, Clone, Copy)]
struct Precisions {
    /// Of products with the residual stream.
    input: Precision,
    /// Of attention's output projection.
    context: Precision,
    /// Of the MLP's second product.
    inner: Precision,
}

impl Precisions {
    fn of(layer: &plan::Layer, index: usize) -> Self {
        match (index, &layer.mlp_norms.sum) {
            // The norm on the residual stream itself keeps a few columns large in every layer, and the errors
            // of the first layer no larger than those of the others.
            (_, Some(_)) => {
                Self { input: Precision::Spread, context: Precision::Low, inner: Precision::Spread }
            }
            // Elsewhere all other layers build on the first: its errors are the ones that grow.
            (0, None) => Self { input: Precision::High, context: Precision::High, inner: Precision::High },
            (_, None) => Self { input: Precision::Low, context: Precision::Low, inner: Precision::Spread },
        }
    }
}

impl<O: Operations> Layer<O> {
    pub(super) fn load(
        layer: &plan::Layer,
        index: usize,
        heads: Heads,
        weights: &mut Weights<'_, O>,
    ) -> Result<Self> {
        let precisions = Precisions::of(layer, index);
        let plan::Attention { query, key_value, output, norms, disentangled } = &layer.attention;
        let disentangled =
            disentangled.as_ref().map(|disentangled| weights.disentangled(disentangled, heads));
        Ok(Self {
            view: layer.view,
            precisions,
            query: weights.matrix(query, precisions.input)?,
            key_value: weights.matrix(key_value, precisions.input)?,
            output: weights.matrix(output, precisions.context)?,
            head_norms: match norms {
                plan::HeadNorms::None => HeadNorms::None,
                plan::HeadNorms::EachHead(query, key) => {
                    HeadNorms::EachHead { query: weights.norm(query)?, key: weights.norm(key)? }
                }
                plan::HeadNorms::AllHeads(query, key) => {
                    HeadNorms::AllHeads { query: weights.norm(query)?, key: weights.norm(key)? }
                }
            },
            disentangled: disentangled.transpose()?,
            attention_norms: Norms::load(&layer.attention_norms, weights)?,
            mlp: Mlp::load(&layer.mlp, precisions, weights)?,
            mlp_norms: Norms::load(&layer.mlp_norms, weights)?,
        })
    }

    /// The precision of its first products, if they take the residual stream as it is.
    pub(super) fn takes_stream(&self) -> Option<Precision> {
        self.attention_norms.input.is_none().then_some(self.precisions.input)
    }

    /// `[computed, hidden]` to `[rows, hidden]`: all rows if `wanted` is absent, else those. With `next`,
    /// what [`Layer::takes_stream`] says of the next layer, the result may come with its operand.
    pub(super) fn forward<'r>(
        &self,
        operations: &mut O,
        Stream { mut hidden, operand }: Stream<O>,
        pass: &mut Pass<'_, O::Kept>,
        (all, wanted): (&O::Rows<'r>, Option<&Wanted<'_, 'r, O>>),
        next: Option<Precision>,
    ) -> Result<Stream<O>> {
        let mut operand = match operand {
            Some(operand) => operand,
            None => self.attention_norms.operand(operations, &hidden, self.precisions.input)?,
        }; // [computed, hidden]
        let mut keys_values = operations.linear(&operand, &self.key_value)?; // [computed, 2 · key heads · size]
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
            operand = self.attention_norms.operand(operations, &hidden, self.precisions.input)?; // [rows, hidden]
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

    /// The MLP's input, and the residual that it is added to, from attention's sum.
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

    /// Adds the block's result to `hidden`: `block` adds it itself if it is given the sum, else it gives it.
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
        mlp: &plan::Mlp,
        Precisions { input, inner, .. }: Precisions,
        weights: &Weights<'_, O>,
    ) -> Result<Self> {
        Ok(match mlp {
            plan::Mlp::Plain { up, down, activation } => Self::Plain {
                up: weights.matrix(up, input)?,
                down: weights.matrix(down, inner)?,
                activation: *activation,
                inner,
            },
            plan::Mlp::Gated { gate, up, down, activation } => {
                let gate_up =
                    weights.operations.gated_matrix(weights.part(gate)?, weights.part(up)?, input)?;
                Self::Gated { gate_up, down: weights.matrix(down, inner)?, activation: *activation, inner }
            }
            plan::Mlp::Experts(experts) => {
                let expert = |[up, down]: &[plan::Matrix; 2]| -> Result<_> {
                    Ok([weights.matrix(up, Precision::High)?, weights.matrix(down, inner)?])
                };
                Self::Experts(Experts {
                    router: weights.matrix(&experts.router, Precision::High)?,
                    mlps: experts.mlps.iter().map(expert).collect::<Result<_>>()?,
                    bias: weights.row(&experts.bias, experts.hidden)?,
                    top: experts.top,
                    activation: experts.activation,
                    inner,
                })
            }
        })
    }

    /// What its input must be made for, in a layer with this precision of inputs.
    fn precision(&self, layer: Precision) -> Precision {
        // A router that errs takes another expert.
        if let Self::Experts(_) = self { Precision::High } else { layer }
    }

    /// `operand` `[rows, hidden]` to `[rows, hidden]`, added to `sum` if that is given.
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
    /// Adds to each row of `hidden`, of which `operand` is the same for products, the MLPs of its experts.
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
        // All inputs before the first sum changes them.
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
        let zeros = vec![0; logits.len() / self.mlps.len()];
        let bias = operations.embed(&[(&self.bias, &zeros)], 1.0, None)?;
        operations.add(&bias, None, hidden)
    }
}

/// The `top` largest of a softmax over `logits`, of equal ones the first, with their index.
fn shares(logits: &[f32], top: usize) -> Vec<(usize, f32)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    let mut shares: Vec<(usize, f32)> = exponentials.iter().map(|value| value / sum).enumerate().collect();
    shares.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    shares.truncate(top);
    shares
}

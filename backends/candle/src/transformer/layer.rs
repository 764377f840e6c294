//! A transformer layer: a mixer of tokens, then an MLP, each with its norms and residual.

use super::{
    attention::{AttentionMixer, AttentionProducts},
    delta::{DeltaMixer, DeltaProducts},
    experts::Experts,
    layer_parts::{LayerRows, Precisions},
    short_convolution::ConvolutionMixer,
    weights::Weights,
};
use crate::{
    operations::{Norm, Operations, Precision, Result},
    pass::Pass,
    plan,
};
use text_embeddings_backend_core::Activation;

/// A layer with its weights.
pub(super) struct Layer<O: Operations> {
    precisions: Precisions,
    mixer: Mixer<O>,
    output: O::Matrix,
    attention_norms: Norms<O>,
    mlp: Mlp<O>,
    mlp_norms: Norms<O>,
}

/// The block in which tokens see other tokens.
enum Mixer<O: Operations> {
    Attention(AttentionMixer<O>),
    Delta(DeltaMixer<O>),
    Convolution(ConvolutionMixer<O>),
}

/// A mixer after its products of all computed rows.
enum Mixed<'a, O: Operations> {
    Attention(&'a AttentionMixer<O>, AttentionProducts<O>),
    Delta(&'a DeltaMixer<O>, DeltaProducts<O>),
    Convolution(&'a ConvolutionMixer<O>, O::Tensor),
}

/// The norms around a block.
struct Norms<O: Operations> {
    input: Option<Norm<O::Vector>>,
    output: Option<Norm<O::Vector>>,
    sum: Option<Norm<O::Vector>>,
    second_sum: Option<Norm<O::Vector>>,
}

enum Mlp<O: Operations> {
    Plain { up: O::Matrix, down: O::Matrix, activation: Activation, inner: Precision },
    Gated { gate_up: O::GatedMatrix, down: O::Matrix, activation: Activation, inner: Precision },
    Experts(Experts<O>),
}

/// The residual stream between two layers.
pub(super) struct Stream<O: Operations> {
    /// `[computed, hidden]`
    pub(super) hidden: O::Tensor,
    /// The same as an operand of the next layer's products, if the previous layer ended with a norm.
    pub(super) operand: Option<O::Operand>,
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

impl<O: Operations> Layer<O> {
    pub(super) fn load(
        layer: &plan::LayerPlan,
        index: usize,
        views: &[plan::View],
        weights: &mut Weights<'_, O>,
    ) -> Result<Self> {
        let keeps_four_bits = weights.keeps_four_bits(&layer.mlp)?;
        let precisions = Precisions::for_layer(layer, index, keeps_four_bits);
        let (mixer, output) = match &layer.mixer {
            plan::MixerPlan::Attention(attention) => {
                let heads = views[attention.view].heads;
                let loaded = AttentionMixer::load_weights(attention, precisions, heads, weights)?;
                (Mixer::Attention(loaded), &attention.output)
            }
            plan::MixerPlan::Delta(delta) => {
                (Mixer::Delta(DeltaMixer::load_weights(delta, precisions, weights)?), &delta.output)
            }
            plan::MixerPlan::Convolution(convolution) => {
                let loaded = ConvolutionMixer::load_weights(convolution, precisions, weights)?;
                (Mixer::Convolution(loaded), &convolution.output)
            }
        };
        Ok(Self {
            precisions,
            mixer,
            output: weights.matrix(output, precisions.context)?,
            attention_norms: Norms::load(&layer.attention_norms, weights)?,
            mlp: Mlp::load(&layer.mlp, precisions, weights)?,
            mlp_norms: Norms::load(&layer.mlp_norms, weights)?,
        })
    }

    /// The precision of its first products, if these take the residual stream without a norm.
    pub(super) fn takes_stream(&self) -> Option<Precision> {
        self.attention_norms.input.is_none().then_some(self.precisions.input)
    }

    /// The index of its kind of attention among the model's kinds, if it has attention.
    pub(super) fn attention_view(&self) -> Option<usize> {
        if let Mixer::Attention(attention) = &self.mixer { Some(attention.view) } else { None }
    }

    /// From `[computed, hidden]` to `[rows, hidden]`: the wanted rows, or all rows. `next` is the next
    /// layer's [`Layer::takes_stream`]. If it is present, the result may come with the operand for the next
    /// layer.
    pub(super) fn forward(
        &self,
        operations: &mut O,
        mut stream: Stream<O>,
        pass: &mut Pass<'_, O::Kept>,
        rows: &LayerRows<'_, '_, O>,
        next: Option<Precision>,
    ) -> Result<Stream<O>> {
        let context = self.mix_tokens(operations, &mut stream, pass, rows)?;
        let Stream { mut hidden, .. } = stream;
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
            experts.add_results(operations, &operand, &mut hidden)?;
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

    /// The context of the wanted rows. The stream's `[computed, hidden]` becomes `[rows, hidden]`.
    fn mix_tokens(
        &self,
        operations: &mut O,
        Stream { hidden, operand }: &mut Stream<O>,
        pass: &mut Pass<'_, O::Kept>,
        rows: &LayerRows<'_, '_, O>,
    ) -> Result<O::Operand> {
        let input = self.precisions.input;
        let mut operand = match operand.take() {
            Some(operand) => operand,
            None => self.attention_norms.operand(operations, hidden, input)?,
        }; // [computed, hidden]
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => {
                Mixed::Attention(attention, attention.shared_products(operations, &operand, pass, rows)?)
            }
            Mixer::Delta(delta) => {
                let exact = self.attention_norms.operand(operations, hidden, DeltaMixer::<O>::RATES)?;
                Mixed::Delta(delta, delta.shared_products(operations, &operand, &exact)?)
            }
            Mixer::Convolution(convolution) => {
                Mixed::Convolution(convolution, convolution.gated_inputs(operations, &operand)?)
            }
        };
        if let Some(wanted) = rows.wanted {
            *hidden = operations.select(hidden, wanted.places)?;
            // [rows, hidden]
            operand = self.attention_norms.operand(operations, hidden, input)?;
        }
        match mixed {
            Mixed::Attention(attention, products) => {
                attention.attention_context(operations, &operand, products, rows)
            }
            Mixed::Delta(delta, products) => delta.delta_context(operations, &operand, &products, pass, rows),
            Mixed::Convolution(convolution, values) => {
                convolution.convolution_context(operations, &operand, &values, pass, rows)
            }
        }
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
            plan::MlpPlan::Experts(experts) => Self::Experts(Experts::load_weights(experts, inner, weights)?),
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

//! Attention as the mixer of a layer: its weights, and its products.

use super::{
    layer::{LayerRows, Precisions},
    weights::Weights,
};
use crate::{
    attention::Heads,
    operations::{self, Disentangled, Norm, Operations, Precision, Result},
    pass::Pass,
    plan,
};

/// Attention with its weights.
pub(super) struct AttentionMixer<O: Operations> {
    /// The index of its kind among the model's kinds.
    pub(super) view: usize,
    query: O::Matrix,
    key_value: O::Matrix,
    gate: Option<O::Matrix>,
    head_norms: HeadNorms<O>,
    disentangled: Option<Disentangled<O::Matrix>>,
    /// The precision of the context.
    context: Precision,
}

/// Norms of queries and keys.
enum HeadNorms<O: Operations> {
    None,
    /// Values are normalised if there is a norm for them.
    EachHead {
        query: Norm<O::Vector>,
        key: Norm<O::Vector>,
        value: Option<Norm<O::Vector>>,
    },
    AllHeads {
        query: Norm<O::Vector>,
        key: Norm<O::Vector>,
    },
}

impl<O: Operations> AttentionMixer<O> {
    pub(super) fn load_weights(
        plan: &plan::AttentionPlan,
        precisions: Precisions,
        heads: Heads,
        weights: &mut Weights<'_, O>,
    ) -> Result<Self> {
        let plan::AttentionPlan { view, query, key_value, norms, gate, disentangled, .. } = plan;
        let disentangled =
            disentangled.as_ref().map(|disentangled| weights.disentangled(disentangled, heads));
        Ok(Self {
            view: *view,
            query: weights.matrix(query, precisions.input)?,
            key_value: weights.matrix(key_value, precisions.input)?,
            gate: gate.as_ref().map(|gate| weights.matrix(gate, precisions.input)).transpose()?,
            head_norms: match norms {
                plan::HeadNormsPlan::None => HeadNorms::None,
                plan::HeadNormsPlan::EachHead { query, key, value_epsilon } => HeadNorms::EachHead {
                    query: weights.norm(query)?,
                    key: weights.norm(key)?,
                    value: match *value_epsilon {
                        Some(epsilon) => Some(Norm {
                            kind: plan::NormKind::Rms,
                            weight: weights.operations.vector(vec![1.0; heads.size])?,
                            bias: None,
                            epsilon,
                        }),
                        None => None,
                    },
                },
                plan::HeadNormsPlan::AllHeads(query, key) => {
                    HeadNorms::AllHeads { query: weights.norm(query)?, key: weights.norm(key)? }
                }
            },
            disentangled: disentangled.transpose()?,
            context: precisions.context,
        })
    }

    /// From `operand` `[computed, hidden]` to the batch's keys and values, `[tokens, 2 · key heads · size]`.
    pub(super) fn keys_values(
        &self,
        operations: &mut O,
        operand: &O::Operand,
        pass: &mut Pass<'_, O::Kept>,
        rows: &LayerRows<'_, '_, O>,
    ) -> Result<O::Tensor> {
        // [computed, 2 · key heads · size]
        let mut keys_values = operations.linear(operand, &self.key_value)?;
        let key_norm = match &self.head_norms {
            HeadNorms::None => None,
            HeadNorms::EachHead { key, value, .. } => {
                if let Some(value) = value {
                    operations.norm_values(&mut keys_values, value, &rows.all[self.view])?;
                }
                Some(key)
            }
            HeadNorms::AllHeads { key, .. } => {
                operations.norm_columns(&mut keys_values, key)?;
                None
            }
        };
        operations.turn_keys(&mut keys_values, key_norm, &rows.all[self.view])?;
        pass.exchange(operations, &mut keys_values)?; // [tokens, 2 · key heads · size]
        Ok(keys_values)
    }

    /// From `operand` `[rows, hidden]` to the context, `[rows, heads · size]`.
    pub(super) fn attention_context(
        &self,
        operations: &mut O,
        operand: &O::Operand,
        keys_values: &O::Tensor,
        rows: &LayerRows<'_, '_, O>,
    ) -> Result<O::Operand> {
        let mut queries = operations.linear(operand, &self.query)?; // [rows, heads · size]
        let query_norm = match &self.head_norms {
            HeadNorms::None => None,
            HeadNorms::EachHead { query, .. } => Some(query),
            HeadNorms::AllHeads { query, .. } => {
                operations.norm_columns(&mut queries, query)?;
                None
            }
        };
        let gate = self.gate.as_ref().map(|gate| operations.linear(operand, gate)).transpose()?;
        let attention = operations::Attention {
            queries: &queries,
            query_norm,
            keys_values,
            gate: gate.as_ref(),
            disentangled: self.disentangled.as_ref(),
        };
        let wanted = rows.wanted.and_then(|wanted| wanted.rows);
        operations.attention(attention, wanted.unwrap_or(&rows.all[self.view]), self.context)
    }
}

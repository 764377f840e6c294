//! Attention as the mixer of a layer: its weights, and its products.

use super::{
    layer_parts::{LayerRows, Precisions},
    weights::Weights,
};
use crate::{
    attention::Heads,
    operations::{self, AttentionMatrices, Disentangled, Norm, Operations, Precision, Result},
    pass::Pass,
    plan,
};

/// Attention with its weights.
pub(super) struct AttentionMixer<O: Operations> {
    /// The index of its kind among the model's kinds.
    pub(super) view: usize,
    matrices: AttentionMatrices<O::Matrix>,
    gate: Option<O::Matrix>,
    head_norms: HeadNorms<O>,
    disentangled: Option<Disentangled<O::Matrix>>,
    context: Precision,
}

/// The products of all computed rows.
pub(super) struct AttentionProducts<O: Operations> {
    /// `[computed, heads · size]`, unless they are computed later.
    queries: Option<O::Tensor>,
    /// `[tokens, 2 · key heads · size]`
    keys_values: O::Tensor,
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
            matrices: weights.attention_matrices(query, key_value, precisions.input)?,
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

    /// From `operand` `[computed, hidden]` to the batch's keys and values. Queries come with them if the
    /// device computes both at once, and if queries of all computed rows are wanted.
    pub(super) fn shared_products(
        &self,
        operations: &mut O,
        operand: &O::Operand,
        pass: &mut Pass<'_, O::Kept>,
        rows: &LayerRows<'_, '_, O>,
    ) -> Result<AttentionProducts<O>> {
        // Norms of all heads change their products in place, which must then have no other columns.
        let takes_both = self.matrices.joined.is_some()
            && rows.wanted.is_none()
            && matches!(self.head_norms, HeadNorms::None | HeadNorms::EachHead { value: None, .. });
        let both = if takes_both { operations.linear_joined(operand, &self.matrices)? } else { None };
        // [computed, heads · size], [computed, 2 · key heads · size]
        let (queries, mut keys_values) = match both {
            Some([queries, keys_values]) => (Some(queries), keys_values),
            None => (None, operations.linear(operand, &self.matrices.key_value)?),
        };
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
        Ok(AttentionProducts { queries, keys_values })
    }

    /// From `operand` `[rows, hidden]` to the context, `[rows, heads · size]`.
    pub(super) fn attention_context(
        &self,
        operations: &mut O,
        operand: &O::Operand,
        products: AttentionProducts<O>,
        rows: &LayerRows<'_, '_, O>,
    ) -> Result<O::Operand> {
        let AttentionProducts { queries, keys_values } = products;
        let mut queries = match queries {
            Some(queries) => queries,
            None => operations.linear(operand, &self.matrices.query)?,
        }; // [rows, heads · size]
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
            keys_values: &keys_values,
            gate: gate.as_ref(),
            disentangled: self.disentangled.as_ref(),
        };
        let wanted = rows.wanted.and_then(|wanted| wanted.rows);
        operations.attention(attention, wanted.unwrap_or(&rows.all[self.view]), self.context)
    }
}

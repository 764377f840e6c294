//! Loads a plan's tensors onto a device.

use crate::{
    attention::Heads,
    bias::Buckets,
    load::{Checkpoint, Part, Weight},
    operations::{AttentionMatrices, Disentangled, Lookup, Norm, Operations, Precision, Result},
    plan::{self, NormKind},
};
use text_embeddings_backend_core::BackendError;

/// A checkpoint that is being loaded onto a device.
pub(crate) struct Weights<'a, O> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) operations: &'a mut O,
}

impl<O: Operations> Weights<'_, O> {
    /// A table of vectors.
    pub(crate) fn table(&self, table: &plan::TablePlan) -> Result<O::Table> {
        self.operations.table(self.checkpoint.tensor(&table.tensor, &table.shape)?)
    }

    /// A table of one row, stored as a vector.
    pub(crate) fn row(&self, name: &str, size: usize) -> Result<O::Table> {
        self.operations.table(self.checkpoint.tensor(name, &[size])?)
    }

    pub(crate) fn norm(&self, norm: &plan::NormPlan) -> Result<Norm<O::Vector>> {
        let (weight, bias) = self.norm_values(norm)?;
        let bias = match norm.kind {
            NormKind::Layer => Some(bias.unwrap_or_else(|| vec![0.0; norm.size])),
            NormKind::Rms => bias,
        };
        let bias = bias.map(|bias| self.operations.vector(bias)).transpose()?;
        let weight = self.operations.vector(weight)?;
        Ok(Norm { kind: norm.kind, weight, bias, epsilon: norm.epsilon })
    }

    /// The weight that a norm multiplies with, and its bias if it has one.
    pub(crate) fn norm_values(&self, norm: &plan::NormPlan) -> Result<(Vec<f32>, Option<Vec<f32>>)> {
        let &plan::NormPlan { ref name, size, bias, add_one, ref order, .. } = norm;
        let read_ordered = |tensor: &str| -> Result<Vec<f32>> {
            let stored = self.checkpoint.vector(&format!("{name}.{tensor}"), size)?;
            if order.is_empty() {
                return Ok(stored);
            }
            Ok(order.iter().flat_map(|range| &stored[range.clone()]).copied().collect())
        };
        let mut weight = read_ordered("weight")?;
        if add_one {
            for weight in &mut weight {
                *weight += 1.0;
            }
        }
        Ok((weight, bias.then(|| read_ordered("bias")).transpose()?))
    }

    pub(crate) fn optional_norm(&self, norm: Option<&plan::NormPlan>) -> Result<Option<Norm<O::Vector>>> {
        norm.map(|norm| self.norm(norm)).transpose()
    }

    pub(crate) fn matrix(&self, matrix: &plan::MatrixPlan, precision: Precision) -> Result<O::Matrix> {
        self.operations.matrix(self.parts_of(matrix)?, precision)
    }

    /// The weights of a layer's queries, and of its keys and values.
    pub(super) fn attention_matrices(
        &self,
        query: &plan::MatrixPlan,
        key_value: &plan::MatrixPlan,
        precision: Precision,
    ) -> Result<AttentionMatrices<O::Matrix>> {
        self.operations.attention_matrices(self.parts_of(query)?, self.parts_of(key_value)?, precision)
    }

    fn parts_of(&self, matrix: &plan::MatrixPlan) -> Result<Vec<Part>> {
        matrix.parts.iter().map(|part| self.part(part)).collect()
    }

    /// Whether an MLP's input is multiplied with the four bits in which the checkpoint stores the weights.
    pub(super) fn keeps_four_bits(&self, mlp: &plan::MlpPlan) -> Result<bool> {
        let first = match mlp {
            plan::MlpPlan::Plain { up, .. } => up.parts.first(),
            plan::MlpPlan::Gated { gate, .. } => Some(gate),
            plan::MlpPlan::Experts(_) => None,
        };
        let Some(part) = first.filter(|part| self.operations.keeps_four_bits() && !part.transposed) else {
            return Ok(false);
        };
        // One row says how all are stored.
        let row = part.rows.start..part.rows.start + 1;
        Ok(self.checkpoint.tensor_rows(&part.weight, &part.shape, row)?.has_four_bits())
    }

    /// DeBERTa's relative positions: for each head, the products of the table with the layer's matrices.
    pub(crate) fn disentangled(
        &mut self,
        plan: &plan::DisentangledPlan,
        heads: Heads,
    ) -> Result<Disentangled<O::Matrix>> {
        let &plan::DisentangledPlan { ref table, ref norm, ref keys, ref queries, bucket } = plan;
        let table = self.table(table)?;
        let ids: Vec<u32> = (0..2 * bucket.span as u32).collect();
        let norm = self.optional_norm(norm.as_ref())?;
        let lookup = Lookup { table: &table, ids: &ids };
        let positions = self.operations.embed(&[lookup], 1.0, norm.as_ref())?; // [buckets, hidden]
        let operand = self.operations.operand(&positions, Precision::High)?;
        let mut of_heads = |matrix: &Option<plan::MatrixPlan>| -> Result<Option<Vec<O::Matrix>>> {
            let Some(matrix) = matrix else { return Ok(None) };
            let matrix = self.matrix(matrix, Precision::High)?;
            let product = self.operations.linear(&operand, &matrix)?; // [buckets, heads · size]
            let values = self.operations.values(&product)?.into_owned();
            let rows = values.chunks_exact(heads.queries * heads.size);
            (0..heads.queries)
                .map(|head| {
                    let values = rows.clone().flat_map(|row| &row[head * heads.size..][..heads.size]);
                    let values: Vec<f32> = values.copied().collect();
                    let weight = Weight::from_values(&values, heads.size);
                    self.operations.matrix(vec![Part { weight, bias: None }], Precision::High)
                })
                .collect::<Result<_>>()
                .map(Some)
        };
        let (position_keys, position_queries) = (of_heads(keys)?, of_heads(queries)?);
        Ok(Disentangled { buckets: buckets(bucket), position_keys, position_queries })
    }

    pub(crate) fn part(&self, part: &plan::MatrixPart) -> Result<Part> {
        let stored = self.checkpoint.tensor_rows(&part.weight, &part.shape, part.rows.clone())?;
        let weight = if part.transposed { transposed(&stored) } else { stored };
        let bias = part.bias.as_ref().map(|bias| {
            Ok::<_, BackendError>(self.checkpoint.vector(bias, part.shape[0])?[part.rows.clone()].to_vec())
        });
        Ok(Part { weight, bias: bias.transpose()? })
    }
}

/// The columns of a matrix as rows.
fn transposed(matrix: &Weight) -> Weight {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    let mut values = vec![0.0; rows * columns];
    for row in 0..rows {
        for (column, value) in matrix.row(row).into_iter().enumerate() {
            values[column * rows + row] = value;
        }
    }
    Weight::from_values(&values, rows)
}

/// The rows of DeBERTa's table by distance, query position minus key position (transformers,
/// `make_log_bucket_position`).
fn buckets(plan::LogBuckets { span, buckets, max_distance }: plan::LogBuckets) -> Buckets {
    let reach = 2 * max_distance.max(span);
    let rows = (-(reach as i64)..=reach as i64).map(|distance| {
        let bucket = buckets.map_or(distance, |buckets| log_bucket(distance, buckets, max_distance));
        (bucket + span as i64).clamp(0, 2 * span as i64 - 1) as u32
    });
    Buckets { of_distance: rows.collect(), reach }
}

/// The distance itself up to half of the buckets; beyond it, one that grows with the logarithm.
fn log_bucket(distance: i64, buckets: usize, max_distance: usize) -> i64 {
    let middle = (buckets / 2) as i64;
    if distance.abs() <= middle {
        return distance;
    }
    let share = (distance.unsigned_abs() as f32 / middle as f32).ln()
        / ((max_distance - 1) as f32 / middle as f32).ln();
    distance.signum() * ((share * (middle - 1) as f32).ceil() as i64 + middle)
}

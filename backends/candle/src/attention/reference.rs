//! Attention in candle tensors: slow and obvious.

use super::{Heads, QuerySpan};
use candle_core::{D, Result, Tensor};
use text_embeddings_backend_core::Batch;

/// Queries whose scores exist at a time, so that memory stays linear in a long text's tokens.
const QUERIES_PER_STEP: usize = 256;

/// See [`crate::operations::Operations::attention`]; the queries are turned already.
pub(crate) fn attention(
    (queries, spans): (&Tensor, &[QuerySpan]),
    (keys_values, places): (&Tensor, &[usize]),
    heads: Heads,
    batch: &Batch,
) -> Result<Tensor> {
    let places: Vec<u32> = places.iter().map(|&place| place as u32).collect();
    let keys_values = keys_values.index_select(&Tensor::new(places, keys_values.device())?, 0)?;
    let mut out = Vec::new();
    for span in spans {
        let path = batch.path(span.segment);
        let parts: Vec<Tensor> = path
            .iter()
            .map(|&segment| batch.segments()[segment].rows.clone())
            .map(|rows| keys_values.narrow(0, rows.start, rows.len()))
            .collect::<Result<_>>()?;
        let seen = Tensor::cat(&parts, 0)?; // [keys, 2 · key heads · size]
        let keys = by_head(&seen.narrow(1, 0, heads.keys * heads.size)?, heads.keys, heads)?;
        let values =
            by_head(&seen.narrow(1, heads.keys * heads.size, heads.keys * heads.size)?, heads.keys, heads)?;
        let position = batch.segments()[span.segment].position + span.offset;
        for from in (0..span.rows.len()).step_by(QUERIES_PER_STEP) {
            let count = QUERIES_PER_STEP.min(span.rows.len() - from);
            let queries = by_head(&queries.narrow(0, span.rows.start + from, count)?, heads.queries, heads)?;
            let scores = (queries.matmul(&keys.t()?)? / (heads.size as f64).sqrt())?; // [heads, count, keys]
            let scores =
                scores.broadcast_add(&causal_mask(position + from, count, keys.dim(1)?, keys.device())?)?;
            let max = scores.max_keepdim(D::Minus1)?;
            let weights = scores.broadcast_sub(&max)?.exp()?;
            let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
            let context = weights.matmul(&values)?; // [heads, count, size]
            out.push(context.transpose(0, 1)?.reshape((count, heads.queries * heads.size))?);
        }
    }
    Tensor::cat(&out, 0)
}

/// `[rows, heads · size]` as `[query heads, rows, size]`; a key head is repeated for the query heads that share it.
fn by_head(x: &Tensor, count: usize, heads: Heads) -> Result<Tensor> {
    let repeats = heads.queries / count;
    let rows = x.dim(0)?;
    let x = x.reshape((rows, count, heads.size))?.transpose(0, 1)?; // [count, rows, size]
    let x = x.unsqueeze(1)?.repeat((1, repeats, 1, 1))?;
    x.reshape((heads.queries, rows, heads.size))?.contiguous()
}

/// Zero where the query at `position + row` sees a key, else minus infinity: `[count, keys]`.
fn causal_mask(position: usize, count: usize, keys: usize, device: &candle_core::Device) -> Result<Tensor> {
    let value = |row: usize, key: usize| if key <= position + row { 0.0 } else { f32::NEG_INFINITY };
    let values: Vec<f32> = (0..count).flat_map(|row| (0..keys).map(move |key| value(row, key))).collect();
    Tensor::from_vec(values, (count, keys), device)
}

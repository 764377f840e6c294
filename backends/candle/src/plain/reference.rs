//! Attention in candle tensors: slow and obvious.

use crate::{
    attention::{Heads, Scoring},
    operations::Rows,
};
use candle_core::{D, Device, Result, Tensor};

/// The number of queries whose scores exist at a time, so that memory stays linear in a text's length.
const QUERIES_PER_STEP: usize = 256;

/// See [`crate::operations::Operations::attention`]. Here, queries are already normalised and rotated.
pub(crate) fn attention(
    queries: &Tensor,
    keys_values: &Tensor,
    &Rows { batch, places, spans, heads, scoring, .. }: &Rows<'_>,
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
        // [keys, 2 · key heads · size]
        let seen = Tensor::cat(&parts, 0)?.narrow(0, 0, batch.attended_tokens(span.segment))?;
        let keys = by_head(&seen.narrow(1, 0, heads.keys * heads.size)?, heads.keys, heads)?;
        let values =
            by_head(&seen.narrow(1, heads.keys * heads.size, heads.keys * heads.size)?, heads.keys, heads)?;
        let position = batch.segments()[span.segment].position + span.offset;
        for from in (0..span.rows.len()).step_by(QUERIES_PER_STEP) {
            let count = QUERIES_PER_STEP.min(span.rows.len() - from);
            let queries = by_head(&queries.narrow(0, span.rows.start + from, count)?, heads.queries, heads)?;
            // [heads, count, keys]
            let mut scores = (queries.matmul(&keys.t()?)? / f64::from(scoring.divisor))?;
            if let Some(cap) = scoring.soft_cap {
                scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
            }
            let (device, keys) = (keys.device(), keys.dim(1)?);
            let scores = (scores + added(&scoring, position + from, heads.queries, count, keys, device)?)?;
            let max = scores.max_keepdim(D::Minus1)?;
            let weights = scores.broadcast_sub(&max)?.exp()?;
            let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
            let context = weights.matmul(&values)?; // [heads, count, size]
            out.push(context.transpose(0, 1)?.reshape((count, heads.queries * heads.size))?);
        }
    }
    Tensor::cat(&out, 0)
}

/// `[rows, heads · size]` as `[query heads, rows, size]`. Each key head is repeated for the query heads that
/// share it.
fn by_head(x: &Tensor, count: usize, heads: Heads) -> Result<Tensor> {
    let repeats = heads.queries / count;
    let rows = x.dim(0)?;
    let x = x.reshape((rows, count, heads.size))?.transpose(0, 1)?; // [count, rows, size]
    let x = x.unsqueeze(1)?.repeat((1, repeats, 1, 1))?;
    x.reshape((heads.queries, rows, heads.size))?.contiguous()
}

/// The bias, or minus infinity if the query at `position + row` does not see the key: `[heads, count, keys]`.
fn added(
    scoring: &Scoring<'_>,
    position: usize,
    heads: usize,
    count: usize,
    keys: usize,
    device: &Device,
) -> Result<Tensor> {
    let value = |head: usize, row: usize, key: usize| {
        let query = (position + row) as i64;
        let distance = key as i64 - query;
        let is_seen = -distance <= scoring.mask.before.min(1 << 40) as i64
            && distance <= scoring.mask.after.min(1 << 40) as i64;
        let bias = scoring
            .bias
            .map_or(0.0, |bias| bias.biases_of(head, position + row, key, 1)[0] / scoring.divisor);
        if is_seen { bias } else { f32::NEG_INFINITY }
    };
    let rows = (0..heads).flat_map(|head| (0..count).map(move |row| (head, row)));
    let values: Vec<f32> =
        rows.flat_map(|(head, row)| (0..keys).map(move |key| value(head, row, key))).collect();
    Tensor::from_vec(values, (heads, count, keys), device)
}

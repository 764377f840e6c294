//! The operations on the CPU: slices, kernels, threads.
//!
//! Weights stay in the checkpoint's type in the mapped file; all arithmetic is `f32`. Activations come from a store of
//! buffers that are used again, so that a forward pass asks the system for memory only while batches grow.

use crate::{
    attention::{
        Heads, QuerySpan,
        cpu::{self, PackedKeys},
    },
    kernels::{
        InstructionSet, elementwise,
        matmul::{Compute, MappedMatrix},
        threads::Threads,
    },
    load::StoredTensor,
    operations::{Norm, Operations, Result, Rotation},
};
use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
};
use text_embeddings_backend_core::{BackendError, Batch};

/// Rows that a thread takes at a time in row-wise operations.
const ROWS_PER_ITEM: usize = 32;
/// Rows of an MLP's inner activations that exist at a time: enough to serve a weight's packing, few enough to stay
/// near the cache.
const ROWS_PER_MLP: usize = 768;

type Buffers = Arc<Mutex<Vec<Vec<f32>>>>;

/// Activations `[rows, columns]`, row after row. Their memory goes back to the store when they are dropped.
pub(crate) struct Activations {
    values: Vec<f32>,
    columns: usize,
    store: Buffers,
}

impl Activations {
    fn rows(&self) -> usize {
        self.values.len() / self.columns
    }
}

impl Drop for Activations {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.values);
        self.store.lock().unwrap_or_else(PoisonError::into_inner).push(values);
    }
}

/// The CPU's operations.
pub(crate) struct CpuOperations {
    compute: Arc<Compute>,
    store: Buffers,
    packed_rows: Vec<f32>,
    packed_keys: PackedKeys,
}

impl CpuOperations {
    /// Starts the compute threads.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if the system refuses a thread.
    pub(crate) fn start(threads: usize, set: InstructionSet) -> Result<Self> {
        let threads = Threads::start(threads).map_err(|error| {
            BackendError::Load(format!("cannot start {threads} compute threads: {error}"))
        })?;
        let compute = Arc::new(Compute { set, threads });
        Ok(Self {
            compute,
            store: Buffers::default(),
            packed_rows: Vec::new(),
            packed_keys: PackedKeys::default(),
        })
    }

    /// Activations of unspecified content: the smallest free buffer that is large enough, else the largest, grown.
    fn activations(&self, rows: usize, columns: usize) -> Activations {
        let len = rows * columns;
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let best = (0..store.len()).min_by_key(|&i| {
            let capacity = store[i].capacity();
            if capacity >= len { (0, capacity) } else { (1, usize::MAX - capacity) }
        });
        let mut values = best.map(|i| store.swap_remove(i)).unwrap_or_default();
        values.resize(len, 0.0);
        Activations { values, columns, store: self.store.clone() }
    }

    /// Runs `body` on pieces of the same rows of `x` and `out`, which have so many columns.
    fn by_rows(
        &self,
        x: &[f32],
        out: &mut [f32],
        columns: (usize, usize),
        body: impl Fn(&[f32], &mut [f32]) + Sync,
    ) {
        let items = x.chunks(ROWS_PER_ITEM * columns.0).zip(out.chunks_mut(ROWS_PER_ITEM * columns.1));
        self.compute.threads.for_each(items, |(x, out)| body(x, out));
    }
}

/// A weight as parts in mapped files.
pub(crate) struct CpuMatrix {
    parts: Vec<MappedMatrix>,
}

impl CpuMatrix {
    fn outputs(&self) -> usize {
        self.parts.iter().map(MappedMatrix::rows).sum()
    }
}

impl Operations for CpuOperations {
    type Tensor = Activations;
    type Matrix = CpuMatrix;
    type Vector = Vec<f32>;

    fn matrix(&self, parts: Vec<StoredTensor>) -> Result<CpuMatrix> {
        let mapped = |part: StoredTensor| MappedMatrix::new(part.file, part.bytes, part.stored, part.columns);
        Ok(CpuMatrix { parts: parts.into_iter().map(mapped).collect() })
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Activations> {
        let mut out = self.activations(values.len() / columns, columns);
        out.values.copy_from_slice(values);
        Ok(out)
    }

    fn values<'a>(&mut self, x: &'a Activations) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Borrowed(&x.values))
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        let compute = self.compute.clone();
        compute.threads.enter(|| pass(self))
    }

    fn embed(&mut self, table: &CpuMatrix, ids: &[u32]) -> Result<Activations> {
        let table = &table.parts[0];
        let mut out = self.activations(ids.len(), table.columns());
        for (&id, out) in ids.iter().zip(out.values.chunks_exact_mut(table.columns())) {
            if id as usize >= table.rows() {
                return Err(BackendError::Inference(format!(
                    "token {id} is outside the model's vocabulary of {}: tokenizer.json is of another model",
                    table.rows()
                )));
            }
            table.widen_row(id as usize, out);
        }
        Ok(out)
    }

    fn norm(&mut self, x: &Activations, norm: &Norm<Vec<f32>>) -> Result<Activations> {
        let mut out = self.activations(x.rows(), x.columns);
        self.by_rows(&x.values, &mut out.values, (x.columns, x.columns), |x, out| {
            elementwise::rms_norm(self.compute.set, x, &norm.weight, norm.epsilon, out);
        });
        Ok(out)
    }

    fn linear(&mut self, x: &Activations, weight: &CpuMatrix) -> Result<Activations> {
        let mut out = self.activations(x.rows(), weight.outputs());
        self.compute.matmul(&x.values, &weight.parts, &mut out.values, false, &mut self.packed_rows);
        Ok(out)
    }

    fn add_linear(&mut self, x: &Activations, weight: &CpuMatrix, sum: &mut Activations) -> Result<()> {
        self.compute.matmul(&x.values, &weight.parts, &mut sum.values, true, &mut self.packed_rows);
        Ok(())
    }

    fn add_swiglu(
        &mut self,
        x: &Activations,
        gate_up: &CpuMatrix,
        down: &CpuMatrix,
        sum: &mut Activations,
    ) -> Result<()> {
        let inner = gate_up.outputs() / 2;
        let rows = ROWS_PER_MLP.min(x.rows());
        let (mut gates_ups, mut activated) =
            (self.activations(rows, 2 * inner), self.activations(rows, inner));
        let pieces = x.values.chunks(rows * x.columns).zip(sum.values.chunks_mut(rows * sum.columns));
        for (x_rows, sum_rows) in pieces {
            let rows = x_rows.len() / x.columns;
            let gates_ups = &mut gates_ups.values[..rows * 2 * inner];
            let activated = &mut activated.values[..rows * inner];
            self.compute.matmul(x_rows, &gate_up.parts, gates_ups, false, &mut self.packed_rows);
            self.by_rows(gates_ups, activated, (2 * inner, inner), |gates_ups, activated| {
                elementwise::swiglu(self.compute.set, gates_ups, inner, activated);
            });
            self.compute.matmul(activated, &down.parts, sum_rows, true, &mut self.packed_rows);
        }
        Ok(())
    }

    fn norm_and_rotate(
        &mut self,
        x: &mut Activations,
        heads: usize,
        norm: &Norm<Vec<f32>>,
        rotation: Rotation<'_>,
    ) -> Result<()> {
        let columns = x.columns;
        let rows = x.values.chunks_mut(ROWS_PER_ITEM * columns).zip(rotation.positions.chunks(ROWS_PER_ITEM));
        self.compute.threads.for_each(rows, |(rows, positions)| {
            for (row, &position) in rows.chunks_exact_mut(columns).zip(positions) {
                let heads = &mut row[..heads * norm.weight.len()];
                let angles = rotation.table.at(position);
                elementwise::norm_and_rotate(self.compute.set, heads, &norm.weight, norm.epsilon, angles);
            }
        });
        Ok(())
    }

    fn attention(
        &mut self,
        (queries, spans): (&Activations, &[QuerySpan]),
        keys_values: &Activations,
        heads: Heads,
        batch: &Batch,
    ) -> Result<Activations> {
        self.packed_keys.pack(&self.compute, &keys_values.values, heads, batch);
        let mut out = self.activations(queries.rows(), queries.columns);
        cpu::attention(
            &self.compute,
            (&queries.values, spans),
            &self.packed_keys,
            heads,
            batch,
            &mut out.values,
        );
        Ok(out)
    }

    fn select(&mut self, x: &Activations, rows: &[usize]) -> Result<Activations> {
        let mut out = self.activations(rows.len(), x.columns);
        for (&row, out) in rows.iter().zip(out.values.chunks_exact_mut(x.columns)) {
            out.copy_from_slice(&x.values[row * x.columns..(row + 1) * x.columns]);
        }
        Ok(out)
    }

    fn dot(&mut self, x: &Activations, vector: &Vec<f32>) -> Result<Vec<f32>> {
        let dot =
            |row: &[f32]| -> f64 { row.iter().zip(vector).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
        Ok(x.values.chunks_exact(x.columns).map(|row| dot(row) as f32).collect())
    }
}

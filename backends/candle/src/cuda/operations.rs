//! The operations on a GPU: see [`super`].

use super::{
    CudaOperations,
    accelerator::{Accelerator, FlashInput, has_flash_size},
    kept::DeviceValues,
    launches::{MAX_LOOKUPS, ScatteredRows, UploadedLookup, list_addresses},
    outputs_of,
    sequences::Sequences,
    shared::{Appended, CudaRows, Path, SharedByLayers, Turns},
    tensor::CudaTensor,
};
use crate::{
    errors::failed,
    kept::KeptRow,
    load::{Part, Weight},
    operations::{Attention, AttentionMatrices, Lookup, Norm, Operations, Precision, Result, Rows},
    pass::refuse_unknown,
    plain::{
        TensorMatrix, norm_values,
        padded::{GroupLimits, PaddedAttention},
    },
};
use candle_core::{DType, Tensor};
use std::{borrow::Cow, sync::Arc, thread};
use text_embeddings_backend_core::Activation;

impl<A: Accelerator> Operations for CudaOperations<A> {
    type Tensor = CudaTensor;
    type Operand = CudaTensor;
    type Table = Tensor;
    type Matrix = TensorMatrix;
    /// `[2 · outputs, inputs]`: the gate's rows, then the other matrix's.
    type GatedMatrix = TensorMatrix;
    type Vector = Tensor;
    type Rows<'a> = CudaRows;
    type Kept = DeviceValues<A>;

    fn table(&self, values: Weight) -> Result<Tensor> {
        self.plain.table(values)
    }

    fn matrix(&self, parts: Vec<Part>, precision: Precision) -> Result<TensorMatrix> {
        self.plain.matrix(parts, precision)
    }

    fn attention_matrices(
        &self,
        query: Vec<Part>,
        key_value: Vec<Part>,
        precision: Precision,
    ) -> Result<AttentionMatrices<TensorMatrix>> {
        let queries = query.iter().map(|part| part.weight.rows()).sum();
        let joined = self.matrix(query.into_iter().chain(key_value).collect(), precision)?;
        let outputs = joined.weight.dim(0).map_err(failed)?;
        Ok(AttentionMatrices {
            query: outputs_of(&joined, 0..queries).map_err(failed)?,
            key_value: outputs_of(&joined, queries..outputs).map_err(failed)?,
            joined: Some(joined),
        })
    }

    fn gated_matrix(&self, gate: Part, up: Part, precision: Precision) -> Result<TensorMatrix> {
        self.plain.matrix(vec![gate, up], precision)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Tensor> {
        self.plain.vector(values)
    }

    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<CudaTensor> {
        self.plain.tensor(values, columns).map(CudaTensor::from)
    }

    fn values<'a>(&mut self, x: &'a CudaTensor) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Owned(self.memory.read_words(&self.to_exact(x)?)?.into_iter().map(f32::from_bits).collect()))
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        self.shared = SharedByLayers::default();
        self.memory.begin_pass();
        pass(self)
    }

    /// Each thread has a stream of its own. A thread that goes on where another one stopped waits for it.
    fn bind_thread(&mut self, waits: bool) -> Result<()> {
        let this = thread::current().id();
        let is_other = self.thread.replace(this).is_some_and(|last| last != this);
        self.plain.bind_thread(waits || is_other)
    }

    fn trim_memory(&mut self) -> bool {
        self.shared = SharedByLayers::default();
        self.memory.trim_chunks().is_ok()
    }

    fn embed(
        &mut self,
        lookups: &[Lookup<'_, Tensor>],
        scale: f32,
        norm: Option<&Norm<Tensor>>,
    ) -> Result<CudaTensor> {
        let is_of_one_type = lookups.windows(2).all(|pair| pair[0].table.dtype() == pair[1].table.dtype());
        if !(1..=MAX_LOOKUPS).contains(&lookups.len()) || !is_of_one_type {
            return self.plain.embed(lookups, scale, norm).map(CudaTensor::from);
        }
        let mut uploaded = Vec::with_capacity(lookups.len());
        for &Lookup { table, ids } in lookups {
            // A GPU does not answer a wrong id with an error. It stops computing for good.
            refuse_unknown(ids, table.dim(0).map_err(failed)?)?;
            uploaded.push(UploadedLookup { table, ids: self.memory.place_list(ids.iter().copied())? });
        }
        self.launches.embed(&uploaded, scale, norm)
    }

    fn norm(&mut self, x: &CudaTensor, norm: &Norm<Tensor>) -> Result<CudaTensor> {
        let out = self.empty_like(x, DType::F32)?;
        self.launches.norm(&*self.to_exact(x)?, norm, self.dtype, None, Some(&out))?;
        Ok(out)
    }

    fn operand(&mut self, x: &CudaTensor, _: Precision) -> Result<CudaTensor> {
        self.to_dtype(x, self.dtype)
    }

    fn norm_operand(&mut self, x: &CudaTensor, norm: &Norm<Tensor>, _: Precision) -> Result<CudaTensor> {
        let operand = self.empty_like(x, self.dtype)?;
        self.launches.norm(&*self.to_exact(x)?, norm, self.dtype, Some(&operand), None)?;
        Ok(operand)
    }

    fn norm_in_place(&mut self, x: &mut CudaTensor, norm: &Norm<Tensor>, _: Precision) -> Result<CudaTensor> {
        *x = self.to_exact(x)?;
        let operand = self.empty_like(x, self.dtype)?;
        self.launches.norm(x, norm, self.dtype, Some(&operand), Some(x))?;
        Ok(operand)
    }

    fn norm_columns(&mut self, x: &mut CudaTensor, norm: &Norm<Tensor>) -> Result<()> {
        self.launches.norm_columns(x, norm)
    }

    fn add(&mut self, x: &CudaTensor, norm: Option<&Norm<Tensor>>, sum: &mut CudaTensor) -> Result<()> {
        *sum = self.to_exact(sum)?;
        self.launches.add_norm(x, norm, sum)
    }

    fn linear(&mut self, x: &CudaTensor, weight: &TensorMatrix) -> Result<CudaTensor> {
        let product = self.product(x, weight, self.dtype)?;
        self.add_bias(&product, weight)?;
        Ok(product)
    }

    fn linear_joined(
        &mut self,
        x: &CudaTensor,
        weights: &AttentionMatrices<TensorMatrix>,
    ) -> Result<Option<[CudaTensor; 2]>> {
        let Some(joined) = &weights.joined else { return Ok(None) };
        let product = self.linear(x, joined)?;
        let queries = weights.query.weight.dim(0).map_err(failed)?;
        let others = weights.key_value.weight.dim(0).map_err(failed)?;
        let parts = [product.narrow(1, 0, queries), product.narrow(1, queries, others)];
        let [queries, keys_values] = parts.map(|part| product.with_view(part));
        Ok(Some([queries?, keys_values?]))
    }

    fn linear_exact(&mut self, x: &CudaTensor, weight: &TensorMatrix) -> Result<CudaTensor> {
        let product = self.product(x, weight, DType::F32)?;
        self.add_bias(&product, weight)?;
        Ok(product)
    }

    fn add_linear(&mut self, x: &CudaTensor, weight: &TensorMatrix, sum: &mut CudaTensor) -> Result<()> {
        *sum = self.to_exact(sum)?;
        self.multiply_into(x, weight, sum, true)?;
        self.add_bias(sum, weight)
    }

    fn activated(
        &mut self,
        x: &CudaTensor,
        weight: &TensorMatrix,
        activation: Activation,
        _: Precision,
    ) -> Result<CudaTensor> {
        let product = self.product(x, weight, self.dtype)?;
        self.launches.activate(&product, weight.bias.as_ref(), activation)?;
        Ok(product)
    }

    fn gated(
        &mut self,
        x: &CudaTensor,
        gate_up: &TensorMatrix,
        activation: Activation,
        _: Precision,
    ) -> Result<CudaTensor> {
        let product = self.product(x, gate_up, self.dtype)?; // [rows, 2 · outputs]
        self.launches.gate(&product, gate_up.bias.as_ref(), activation)
    }

    fn rows(&mut self, rows: Rows<'_>) -> Result<CudaRows> {
        let accelerator = self.memory.accelerator();
        let turns = rows.angles.map(|angles| Turns::new(angles, &self.memory)).transpose()?.map(Arc::new);
        let sequences = if accelerator.has_flash() && has_flash_size(rows.heads) {
            Sequences::new(&rows, |words| self.memory.place_list(words))?
        } else {
            None
        };
        let attention = if let Some(sequences) = sequences {
            self.proof.compare_kernel(&self.memory, self.dtype, rows.heads.size, rows.scoring.mask)?;
            Path::Flash(sequences)
        } else {
            if !std::mem::replace(&mut self.is_told, true) {
                tracing::info!(
                    "Some of this model's layers compute attention by general kernels: flash attention has no biases, \
                     soft caps or heads of this size, or this build lacks it"
                );
            }
            Path::General(
                PaddedAttention::new(&rows, GroupLimits::GPU, accelerator.device()).map_err(failed)?,
            )
        };
        Ok(CudaRows { heads: rows.heads, turns, attention })
    }

    /// Only notes how keys are turned: the kernels that copy their rows do it.
    fn turn_keys(&mut self, _: &mut CudaTensor, norm: Option<&Norm<Tensor>>, rows: &CudaRows) -> Result<()> {
        self.shared.key_turn = rows.turned_heads(rows.heads.keys, norm);
        Ok(())
    }

    fn norm_values(
        &mut self,
        keys_values: &mut CudaTensor,
        norm: &Norm<Tensor>,
        rows: &CudaRows,
    ) -> Result<()> {
        self.flushed_plain()?;
        norm_values(keys_values, norm, rows.heads).map_err(failed)
    }

    fn gate_rows(&mut self, x: &mut CudaTensor, factors: &CudaTensor, activation: Activation) -> Result<()> {
        let factors = self.to_exact(factors)?;
        *x = self.change_exact(x, |plain, x| plain.gate_rows(x, &factors, activation))?;
        Ok(())
    }

    fn scale_values(&mut self, x: &mut CudaTensor, factor: f32) -> Result<()> {
        *x = self.change_exact(x, |plain, x| plain.scale_values(x, factor))?;
        Ok(())
    }

    fn keep(&mut self, x: &CudaTensor, rows: &[usize]) -> Result<DeviceValues<A>> {
        let rows = self.indices(rows)?;
        let values = self.gather_turned(x, None, Some(&rows), self.shared.key_turn.as_ref())?;
        Ok(DeviceValues::new(values, &self.memory))
    }

    /// Only notes where the rows are: attention gathers them together with the rows of `x`, so that each row
    /// is copied once. The places in all layers go to the device once.
    fn append(
        &mut self,
        x: &mut CudaTensor,
        rows: &[KeptRow<'_, DeviceValues<A>>],
        layer: usize,
    ) -> Result<()> {
        if let Some(appended) = &mut self.shared.appended {
            appended.layer = layer;
            return Ok(());
        }
        let row_bytes = x.dim(1).map_err(failed)? * self.dtype.size_in_bytes();
        let mut places = Vec::with_capacity(rows.len());
        for KeptRow { layers, row } in rows {
            places.push(DeviceValues::place_of_row(layers, *row, row_bytes)?);
        }
        let places = self.memory.place_list(list_addresses(places.into_iter().flatten()))?;
        self.shared.appended = Some(Appended { places, count: rows.len(), layer });
        Ok(())
    }

    fn kept_bytes(&self) -> usize {
        self.dtype.size_in_bytes()
    }

    fn attention(
        &mut self,
        attention: Attention<'_, Self>,
        rows: &CudaRows,
        _: Precision,
    ) -> Result<CudaTensor> {
        let (count, columns) = attention.queries.dims2().map_err(failed)?;
        let queries = match rows.turned_heads(rows.heads.queries, attention.query_norm) {
            Some(turn) => {
                let turned = self.empty_like(attention.queries, self.dtype)?;
                let from = ScatteredRows { own: attention.queries, others: None, layer: 0 };
                self.launches.gather_turned(&from, None, &turn, &turned)?;
                turned
            }
            None => attention.queries.clone(),
        };
        let key_turn = self.shared.key_turn.take();
        let appended = self.shared.appended.as_ref();
        let sequences = match &rows.attention {
            Path::Flash(sequences) => sequences,
            Path::General(padded) => {
                let keys_values =
                    self.gather_turned(attention.keys_values, appended, None, key_turn.as_ref())?;
                let (queries, keys_values) = (self.to_exact(&queries)?, self.to_exact(&keys_values)?);
                let context =
                    self.flushed_plain()?.attend(padded, &queries, &keys_values, attention.disentangled)?;
                let context = self.to_dtype(&context.into(), self.dtype)?;
                return self.gate_context(context, attention.gate);
            }
        };
        let keys_values = self.gather_turned(
            attention.keys_values,
            appended,
            sequences.gathered.as_ref(),
            key_turn.as_ref(),
        )?;
        let context = self.memory.empty_tensor(count, columns, self.dtype)?;
        let sums = self.memory.empty_tensor(rows.heads.queries, count, DType::F32)?;
        let input = FlashInput {
            heads: rows.heads,
            queries: &queries,
            keys_values: &keys_values,
            context: &context,
            sums: &sums,
        };
        self.memory.send_lists()?;
        self.memory.accelerator().attend_sequences(&input, sequences).map_err(failed)?;
        self.gate_context(context, attention.gate)
    }

    fn copy(&mut self, x: &CudaTensor) -> Result<CudaTensor> {
        // Sums are written in place, so a second handle to the same memory would change, too.
        let out = self.empty_like(x, x.dtype())?;
        let from = ScatteredRows { own: x, others: None, layer: 0 };
        self.launches.gather_rows(&from, None, &out)?;
        Ok(out)
    }

    fn select(&mut self, x: &CudaTensor, rows: &[usize]) -> Result<CudaTensor> {
        let rows = self.indices(rows)?;
        self.gather_turned(x, None, Some(&rows), None)
    }

    fn add_rows(
        &mut self,
        x: &CudaTensor,
        rows: &[usize],
        factors: &[f32],
        sum: &mut CudaTensor,
    ) -> Result<()> {
        let x = self.to_exact(x)?;
        *sum = self.change_exact(sum, |plain, sum| plain.add_rows(&x, rows, factors, sum))?;
        Ok(())
    }

    fn means(&mut self, x: &CudaTensor, _: usize, texts: &[Vec<usize>]) -> Result<Vec<f32>> {
        let mut starts = vec![0];
        for text in texts {
            starts.push(starts[starts.len() - 1] + text.len());
        }
        let (starts, rows) = (self.indices(&starts)?, self.indices(&texts.concat())?);
        let means = self.launches.mean_rows(&*self.to_exact(x)?, &starts, &rows)?;
        Ok(self.values(&means)?.into_owned())
    }
}

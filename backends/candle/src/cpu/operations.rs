//! The operations of a forward pass with kernels. Weights are packed when they are loaded; see [`super`].

use super::{
    Activations, CpuOperations, PackedActivations,
    attention::{self, Keys, Queries},
    heads::turn_heads,
    table::EmbeddingTable,
};
use crate::{
    delta::DeltaRule,
    kept::{HostValues, KeptRow},
    kernels::{
        activation, elementwise,
        epilogue::Epilogue,
        matrix::{ColumnOrder, Matrix},
        pack::OperandFormat,
    },
    load::{Part, Weight},
    operations::{
        Attention, ConvolutionInput, DeltaInput, Lookup, Norm, Operations, Precision, Result, Rows,
    },
    pass::refuse_unknown,
    plan::DeltaSizes,
    short_convolution::ShortConvolution,
};
use std::borrow::Cow;
use text_embeddings_backend_core::{Activation, Batch, RowsToCompute};

impl Operations for CpuOperations {
    type Tensor = Activations;
    type Operand = PackedActivations;
    type Table = EmbeddingTable;
    type Matrix = Matrix;
    type GatedMatrix = Matrix;
    type Vector = Vec<f32>;
    type Rows<'a> = Rows<'a>;
    type Kept = HostValues;

    fn table(&self, values: Weight) -> Result<EmbeddingTable> {
        if self.arithmetic.int4 {
            return Ok(EmbeddingTable::compact(&self.compute, values));
        }
        Ok(EmbeddingTable::Stored(values))
    }

    fn matrix(&self, parts: Vec<Part>, precision: Precision) -> Result<Matrix> {
        Ok(self.weight(parts, precision, ColumnOrder::Plain))
    }

    fn gated_matrix(&self, gate: Part, up: Part, precision: Precision) -> Result<Matrix> {
        Ok(self.weight(vec![gate, up], precision, ColumnOrder::Gated))
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Activations> {
        let mut out = self.activations(values.len() / columns, columns);
        out.values_mut().copy_from_slice(values);
        Ok(out)
    }

    fn values<'a>(&mut self, x: &'a Activations) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Borrowed(x.values()))
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        let compute = self.compute.clone();
        compute.threads.enter(|| pass(self))
    }

    fn run_parts<R: Send>(
        &mut self,
        batch: &Batch,
        rows: impl FnOnce() -> RowsToCompute,
        pass: impl Fn(&mut Self, &Batch) -> R + Send + Sync,
    ) -> Vec<(Vec<usize>, R)> {
        self.compute_parts(batch, rows, pass)
    }

    fn embed(
        &mut self,
        lookups: &[Lookup<'_, EmbeddingTable>],
        scale: f32,
        norm: Option<&Norm<Vec<f32>>>,
    ) -> Result<Activations> {
        timed!(self, embedding(lookups, norm.is_some()));
        for Lookup { table, ids } in lookups {
            refuse_unknown(ids, table.rows())?;
        }
        let Some((Lookup { table: first, ids }, others)) = lookups.split_first() else {
            unreachable!("a plan has a table for the token ids");
        };
        let mut out = self.activations(ids.len(), first.columns());
        let set = self.compute.set;
        self.each_rows(&mut out, |from, rows| {
            let (mut other, mut sum) = (vec![0.0; first.columns()], vec![0.0; first.columns()]);
            for (row, out) in (from..).zip(rows.chunks_exact_mut(first.columns())) {
                first.widen_row(ids[row] as usize, out);
                for Lookup { table, ids } in others {
                    table.widen_row(ids[row] as usize, &mut other);
                    elementwise::add(set, out, &other);
                }
                if scale.to_bits() != 1.0_f32.to_bits() {
                    for value in &mut *out {
                        *value *= scale;
                    }
                }
                if let Some(norm) = norm {
                    sum.copy_from_slice(out);
                    self.norm_rows(norm, &sum, out);
                }
            }
        });
        Ok(out)
    }

    fn norm(&mut self, x: &Activations, norm: &Norm<Vec<f32>>) -> Result<Activations> {
        timed!(self, norm(x.values().len()));
        let mut out = self.activations(x.rows(), x.columns);
        self.each_rows(&mut out, |from, out| {
            self.norm_rows(norm, &x.values()[from * x.columns..][..out.len()], out);
        });
        Ok(out)
    }

    fn operand(&mut self, x: &Activations, precision: Precision) -> Result<PackedActivations> {
        timed!(self, conversion(x, self.arithmetic, precision));
        let spreads = self.arithmetic.spreads(precision);
        Ok(self.pack(x.values(), x.columns, precision, |row, out| {
            if !spreads {
                return row;
            }
            out.copy_from_slice(row);
            elementwise::spread(self.compute.set, out);
            out
        }))
    }

    fn norm_operand(
        &mut self,
        x: &Activations,
        norm: &Norm<Vec<f32>>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        timed!(self, norm_conversion(x, self.arithmetic.format(precision), 1));
        let spreads = self.arithmetic.spreads(precision);
        Ok(self.pack(x.values(), x.columns, precision, |row, out| {
            self.norm_rows(norm, row, out);
            if spreads {
                elementwise::spread(self.compute.set, out);
            }
            out
        }))
    }

    fn norm_in_place(
        &mut self,
        x: &mut Activations,
        norm: &Norm<Vec<f32>>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        timed!(self, norm_conversion(x, self.arithmetic.format(precision), 2));
        Ok(self.pack_normed(x, norm, precision))
    }

    fn norm_columns(&mut self, x: &mut Activations, norm: &Norm<Vec<f32>>) -> Result<()> {
        let (columns, width) = (x.columns, norm.weight.len());
        timed!(self, norm(x.rows() * width));
        self.each_rows(x, |_, rows| {
            let mut normed = vec![0.0; width];
            for row in rows.chunks_exact_mut(columns) {
                self.norm_rows(norm, &row[..width], &mut normed);
                row[..width].copy_from_slice(&normed);
            }
        });
        Ok(())
    }

    fn add(&mut self, x: &Activations, norm: Option<&Norm<Vec<f32>>>, sum: &mut Activations) -> Result<()> {
        timed!(self, sum(x, norm.is_some()));
        let columns = x.columns;
        self.each_rows(sum, |from, sum| {
            let x = &x.values()[from * columns..][..sum.len()];
            let Some(norm) = norm else {
                return elementwise::add(self.compute.set, sum, x);
            };
            let mut normed = vec![0.0; columns];
            for (row, sum) in x.chunks_exact(columns).zip(sum.chunks_exact_mut(columns)) {
                self.norm_rows(norm, row, &mut normed);
                elementwise::add(self.compute.set, sum, &normed);
            }
        });
        Ok(())
    }

    fn linear(&mut self, x: &PackedActivations, weight: &Matrix) -> Result<Activations> {
        timed!(self, product("product", x, weight, 1));
        let mut out = self.activations(x.operand.rows(), weight.outputs());
        self.compute.product(&x.operand, weight, out.values_mut());
        Ok(out)
    }

    fn add_linear(&mut self, x: &PackedActivations, weight: &Matrix, sum: &mut Activations) -> Result<()> {
        timed!(self, product("product, sum", x, weight, 2));
        self.compute.add_product(&x.operand, weight, sum.values_mut());
        Ok(())
    }

    fn activated(
        &mut self,
        x: &PackedActivations,
        weight: &Matrix,
        activation: Activation,
        precision: Precision,
    ) -> Result<PackedActivations> {
        Ok(self.after(x, weight, Epilogue::Activate(activation), precision))
    }

    fn gated(
        &mut self,
        x: &PackedActivations,
        gate_up: &Matrix,
        activation: Activation,
        precision: Precision,
    ) -> Result<PackedActivations> {
        Ok(self.after(x, gate_up, Epilogue::Gate(activation), precision))
    }

    fn rows<'a>(&mut self, rows: Rows<'a>) -> Result<Rows<'a>> {
        Ok(rows)
    }

    fn turn_keys(
        &mut self,
        keys_values: &mut Activations,
        norm: Option<&Norm<Vec<f32>>>,
        rows: &Rows<'_>,
    ) -> Result<()> {
        self.turn_key_heads(keys_values, norm, rows);
        Ok(())
    }

    fn norm_values(
        &mut self,
        keys_values: &mut Activations,
        norm: &Norm<Vec<f32>>,
        rows: &Rows<'_>,
    ) -> Result<()> {
        self.norm_value_heads(keys_values, norm, rows.heads);
        Ok(())
    }

    fn gate_rows(
        &mut self,
        x: &mut Activations,
        factors: &Activations,
        activation: Activation,
    ) -> Result<()> {
        timed!(self, weighted_sum(x));
        let columns = x.columns;
        self.each_rows(x, |from, rows| {
            let factors = &factors.values()[from * columns..][..rows.len()];
            activation::gate_by(self.compute.set, rows, factors, activation);
        });
        Ok(())
    }

    fn scale_values(&mut self, x: &mut Activations, factor: f32) -> Result<()> {
        timed!(self, copied("scaling", x.values().len()));
        self.each_rows(x, |_, rows| rows.iter_mut().for_each(|value| *value *= factor));
        Ok(())
    }

    fn keep(&mut self, x: &Activations, rows: &[usize]) -> Result<HostValues> {
        let count = rows.len() * x.columns;
        timed!(self, copied("kept rows", count));
        let mut kept = match self.arithmetic.attention {
            OperandFormat::Bf16 => HostValues::Bf16(Vec::with_capacity(count)),
            _ => HostValues::F32(Vec::with_capacity(count)),
        };
        for row in rows {
            kept.extend(&x.values()[row * x.columns..][..x.columns]);
        }
        Ok(kept)
    }

    fn append(&mut self, x: &mut Activations, rows: &[KeptRow<'_, HostValues>], layer: usize) -> Result<()> {
        let (before, columns) = (x.values().len(), x.columns);
        timed!(self, copied("kept rows", rows.len() * columns));
        x.values.resize(before + rows.len() * columns);
        for (KeptRow { layers, row }, out) in
            rows.iter().zip(x.values_mut()[before..].chunks_exact_mut(columns))
        {
            layers[layer].read(*row, out);
        }
        Ok(())
    }

    fn keeps_four_bits(&self) -> bool {
        self.arithmetic.int4
    }

    fn kept_bytes(&self) -> usize {
        self.arithmetic.kept_bytes()
    }

    fn attention(
        &mut self,
        Attention { queries, query_norm, keys_values, gate, disentangled }: Attention<'_, Self>,
        rows: &Rows<'_>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        timed!(self, attention(queries, keys_values, rows, self.arithmetic, precision));
        let &Rows { batch, places, spans, angles, heads, scoring } = rows;
        self.packed_keys.pack(&self.compute, keys_values.values(), places, heads, batch);
        let disentangled = disentangled.map(|disentangled| {
            self.disentangled_scores(disentangled, queries, keys_values, places, heads.size)
        });
        let format = self.arithmetic.format(precision);
        let words = self.words(format, queries.rows(), queries.columns);
        let turn = |row: usize, values: &mut [f32]| {
            let angles = angles.map(|angles| angles[row]);
            turn_heads(self.compute.set, values, heads.size, query_norm, angles);
        };
        let queries = Queries { values: queries.values(), spans, turn, gate: gate.map(Activations::values) };
        let disentangled = disentangled.as_ref();
        let keys = Keys { packed: &self.packed_keys, batch, heads, scoring, disentangled };
        let operand = attention::attention(&self.compute, &queries, keys, format, words);
        Ok(PackedActivations { operand, stores: self.stores.clone() })
    }

    fn delta_rule(
        &mut self,
        input: DeltaInput<'_, Self>,
        rule: &DeltaRule,
        precision: Precision,
    ) -> Result<(PackedActivations, Vec<Vec<f32>>)> {
        timed!(self, delta_rule(input.channels, rule.sizes));
        self.delta_steps(input, rule, precision)
    }

    fn short_convolution(
        &mut self,
        input: ConvolutionInput<'_, Self>,
        rule: &ShortConvolution,
        precision: Precision,
    ) -> Result<(PackedActivations, Vec<Vec<f32>>)> {
        timed!(self, short_convolution(input.values, rule.taps.len()));
        self.convolution_steps(input, rule, precision)
    }

    fn delta_state_values(&self, sizes: DeltaSizes) -> usize {
        self.delta_state(sizes)
    }

    fn copy(&mut self, x: &Activations) -> Result<Activations> {
        self.tensor(x.values(), x.columns)
    }

    fn select(&mut self, x: &Activations, rows: &[usize]) -> Result<Activations> {
        timed!(self, copied("selection of rows", rows.len() * x.columns));
        let mut out = self.activations(rows.len(), x.columns);
        for (&row, out) in rows.iter().zip(out.values_mut().chunks_exact_mut(x.columns)) {
            out.copy_from_slice(&x.values()[row * x.columns..(row + 1) * x.columns]);
        }
        Ok(out)
    }

    fn means(&mut self, x: &Activations, columns: usize, texts: &[Vec<usize>]) -> Result<Vec<f32>> {
        Ok(self.text_means(x.values(), columns, texts))
    }

    fn add_rows(
        &mut self,
        x: &Activations,
        rows: &[usize],
        factors: &[f32],
        sum: &mut Activations,
    ) -> Result<()> {
        timed!(self, weighted_sum(x));
        let columns = x.columns;
        for ((x, &row), &factor) in x.values().chunks_exact(columns).zip(rows).zip(factors) {
            let sum = &mut sum.values_mut()[row * columns..][..columns];
            sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
        }
        Ok(())
    }
}

//! Matrices of quantised checkpoints: `quantization_config` of config.json.
//!
//! Input: a matrix's usual name, `NAME.weight`. Output: its values, widened when the matrix is requested.
//! What must hold: the values equal, in `f32`, the values that the method's own code computes with; an
//! unknown scheme, shape or type is an error that names it, never a wrong value.
//!
//! Sources: `compressed_tensors` (`pack_to_int32`), `AutoAWQ` (`packing_utils.py`), `AutoGPTQ`
//! (`qlinear_cuda.py`), and transformers for FP8 (`finegrained_fp8.py`).

use super::{Checkpoint, Scheme, Weight, failed};
use text_embeddings_backend_core::BackendError;
use text_embeddings_checkpoint::Tensor;

/// For each of eight consecutive outputs, the index of its four bits in a word of AWQ.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Bits of a packed word.
const WORD: u32 = 32;
/// How names of scales and zeros of activations, keys and values begin.
const ACTIVATIONS: [&str; 7] = ["activation", "input", "output", "q", "k", "v", "kv"];

/// Packed values of `bits` bits, as words `[rows, columns]`. Each word holds several neighbouring values.
struct Packed {
    words: Vec<u32>,
    columns: usize,
    bits: u32,
}

impl Packed {
    fn per_word(bits: u32) -> usize {
        (WORD / bits) as usize
    }

    /// The value at `place` of a word.
    fn at(&self, row: usize, column: usize, place: usize) -> i32 {
        let word = self.words[row * self.columns + column] >> (self.bits * place as u32);
        (word & ((1 << self.bits) - 1)).cast_signed()
    }

    /// The value at a row and a column, if words pack neighbours of one column.
    fn down(&self, row: usize, column: usize) -> i32 {
        let per_word = Self::per_word(self.bits);
        self.at(row / per_word, column, row % per_word)
    }

    /// The value at a row and a column, if words pack neighbours of one row.
    fn across(&self, row: usize, column: usize) -> i32 {
        let per_word = Self::per_word(self.bits);
        self.at(row, column / per_word, column % per_word)
    }

    /// Like [`Packed::across`], in AWQ's order.
    fn across_in_order(&self, row: usize, column: usize) -> i32 {
        self.at(row, column / AWQ_ORDER.len(), AWQ_ORDER[column % AWQ_ORDER.len()])
    }
}

impl Checkpoint {
    /// From now on, matrices may be quantised by this scheme. Scales of activations are not needed, because
    /// `--dtype` alone decides how activations are quantised.
    pub(crate) fn quantised_as(self, scheme: Option<Scheme>) -> Self {
        if scheme.is_some() {
            for (name, _) in self.tensors.iter().filter(|(name, _)| is_about_activations(name)) {
                self.tensors.mark_used(name);
            }
        }
        Self { scheme, ..self }
    }

    /// The matrix `name`, if it is quantised.
    pub(super) fn quantised(&self, name: &str, shape: &[usize]) -> Result<Option<Weight>, BackendError> {
        let (Some(scheme), Some(base), &[outputs, inputs]) =
            (self.scheme, name.strip_suffix(".weight"), shape)
        else {
            return Ok(None);
        };
        let is_plain = self.has(name)
            && !["weight_scale", "weight_scale_inv"].iter().any(|scale| self.has(&part_name(base, scale)));
        if is_plain {
            return Ok(None);
        }
        match scheme {
            Scheme::Fp8 { block } => self.fp8(base, [outputs, inputs], block),
            Scheme::CompressedTensors { bits, group, has_zeros, is_ordered } => {
                self.require(has_zeros, "symmetric", &part_name(base, "weight_zero_point"))?;
                self.require(is_ordered, "actorder", &part_name(base, "weight_g_idx"))?;
                if self.has(&part_name(base, "weight_packed")) {
                    self.compressed(base, [outputs, inputs], bits, group)
                } else {
                    self.bytes(base, [outputs, inputs], group)
                }
            }
            Scheme::Gptq { bits, group, zero, is_ordered } => {
                self.require(is_ordered, "desc_act", &part_name(base, "g_idx"))?;
                self.gptq(base, [outputs, inputs], bits, group, zero)
            }
            Scheme::Awq { group } => self.awq(base, [outputs, inputs], group),
        }
        .map(Some)
    }

    fn fp8(
        &self,
        base: &str,
        [outputs, inputs]: [usize; 2],
        block: Option<[usize; 2]>,
    ) -> Result<Weight, BackendError> {
        let bytes = self.stored(&part_name(base, "weight"), "F8_E4M3", &[outputs, inputs])?;
        let [rows, columns] = block.unwrap_or([1, inputs]);
        let scales = self.scales(base, [outputs.div_ceil(rows), inputs.div_ceil(columns)])?;
        Ok(Weight::from_rows([outputs, inputs], |row, out| {
            for (column, (out, &byte)) in out.iter_mut().zip(&bytes[row * inputs..]).enumerate() {
                *out = e4m3(byte) * scales.scale_at(row / rows, column / columns);
            }
        }))
    }

    fn bytes(
        &self,
        base: &str,
        [outputs, inputs]: [usize; 2],
        group: Option<usize>,
    ) -> Result<Weight, BackendError> {
        let bytes = self.stored(&part_name(base, "weight"), "I8", &[outputs, inputs])?;
        let group = group.unwrap_or(inputs);
        let groups = inputs.div_ceil(group);
        let scales = self.scales(base, [outputs, groups])?;
        let zeros = part_name(base, "weight_zero_point");
        let zeros = if self.has(&zeros) { self.stored(&zeros, "I8", &scales.shape)? } else { Vec::new() };
        let places = self.groups(&part_name(base, "weight_g_idx"), inputs, group, groups)?;
        let widened = Weight::from_rows([outputs, inputs], |row, out| {
            for ((out, &byte), &group) in out.iter_mut().zip(&bytes[row * inputs..]).zip(&places) {
                let zero = zeros.get(scales.place(row, group)).map_or(0, |zero| zero.cast_signed());
                *out = (f32::from(byte.cast_signed()) - f32::from(zero)) * scales.scale_at(row, group);
            }
        });
        let steps: Vec<f32> = (0..outputs).map(|row| scales.scale_at(row, 0)).collect();
        let are_steps = groups == 1 && zeros.is_empty() && steps.iter().all(|step| step.is_normal());
        Ok(if are_steps { widened.with_steps(steps) } else { widened })
    }

    fn compressed(
        &self,
        base: &str,
        [outputs, inputs]: [usize; 2],
        bits: u32,
        group: Option<usize>,
    ) -> Result<Weight, BackendError> {
        self.tensors.mark_used(&part_name(base, "weight_shape"));
        let (per_word, group) = (Packed::per_word(bits), group.unwrap_or(inputs));
        let groups = inputs.div_ceil(group);
        let packed =
            self.packed(&part_name(base, "weight_packed"), [outputs, inputs.div_ceil(per_word)], bits)?;
        let scales = self.scales(base, [outputs, groups])?;
        let zeros = part_name(base, "weight_zero_point");
        let zeros = if self.has(&zeros) {
            Some(self.packed(&zeros, [outputs.div_ceil(per_word), groups], bits)?)
        } else {
            None
        };
        let places = self.groups(&part_name(base, "weight_g_idx"), inputs, group, groups)?;
        Ok(Weight::from_rows([outputs, inputs], |row, out| {
            for (column, (out, &group)) in out.iter_mut().zip(&places).enumerate() {
                // Values and zeros are stored unsigned: the stored number is larger by half of the range.
                let zero = zeros.as_ref().map_or(1 << (bits - 1), |zeros| zeros.down(row, group));
                *out = (packed.across(row, column) - zero) as f32 * scales.scale_at(row, group);
            }
        }))
    }

    fn gptq(
        &self,
        base: &str,
        [outputs, inputs]: [usize; 2],
        bits: u32,
        group: Option<usize>,
        zero: i32,
    ) -> Result<Weight, BackendError> {
        let (per_word, group) = (Packed::per_word(bits), group.unwrap_or(inputs));
        let groups = inputs.div_ceil(group);
        let packed = self.packed(&part_name(base, "qweight"), [inputs.div_ceil(per_word), outputs], bits)?;
        let zeros = self.packed(&part_name(base, "qzeros"), [groups, outputs.div_ceil(per_word)], bits)?;
        let scales = self.tensor(&part_name(base, "scales"), &[groups, outputs])?;
        let places = self.groups(&part_name(base, "g_idx"), inputs, group, groups)?;
        let scales: Vec<Vec<f32>> = (0..groups).map(|group| scales.row(group)).collect();
        self.pass_over_zeros(&part_name(base, "bias"), outputs)?;
        Ok(Weight::from_rows([outputs, inputs], |row, out| {
            for (column, (out, &group)) in out.iter_mut().zip(&places).enumerate() {
                let zero = (zeros.across(group, row) + zero) & ((1 << bits) - 1);
                *out = (packed.down(column, row) - zero) as f32 * scales[group][row];
            }
        }))
    }

    fn awq(
        &self,
        base: &str,
        [outputs, inputs]: [usize; 2],
        group: Option<usize>,
    ) -> Result<Weight, BackendError> {
        let group = group.unwrap_or(inputs);
        let (groups, words) = (inputs.div_ceil(group), outputs.div_ceil(AWQ_ORDER.len()));
        let packed = self.packed(&part_name(base, "qweight"), [inputs, words], 4)?;
        let zeros = self.packed(&part_name(base, "qzeros"), [groups, words], 4)?;
        let scales = self.tensor(&part_name(base, "scales"), &[groups, outputs])?;
        let scales: Vec<Vec<f32>> = (0..groups).map(|group| scales.row(group)).collect();
        Ok(Weight::from_rows([outputs, inputs], |row, out| {
            for (column, out) in out.iter_mut().enumerate() {
                let group = column / group;
                let value = packed.across_in_order(column, row) - zeros.across_in_order(group, row);
                *out = value as f32 * scales[group][row];
            }
        }))
    }

    /// Passes over a bias of zeros: `AutoGPTQ` stores one where a model has none.
    fn pass_over_zeros(&self, name: &str, outputs: usize) -> Result<(), BackendError> {
        if let Some(tensor) = self.tensors.get(name)
            && tensor.shape() == [outputs]
            && super::weight(name, tensor, 0..1)?.row(0).iter().all(|value| *value == 0.0)
        {
            self.tensors.mark_used(name);
        }
        Ok(())
    }

    /// The group of each input: from the tensor `name` if the checkpoint has it, else consecutive groups.
    fn groups(
        &self,
        name: &str,
        inputs: usize,
        group: usize,
        groups: usize,
    ) -> Result<Vec<usize>, BackendError> {
        if !self.has(name) {
            return Ok((0..inputs).map(|input| input / group).collect());
        }
        let words = self.words(name, &[inputs])?;
        let places: Vec<usize> = words.into_iter().map(|word| word as usize).collect();
        match places.iter().find(|place| **place >= groups) {
            Some(place) => Err(BackendError::Load(format!(
                "tensor `{name}` names the group {place}, but there are {groups}"
            ))),
            None => Ok(places),
        }
    }

    /// The scales of a matrix, `[rows, columns]`. A single row or column holds for all.
    fn scales(&self, base: &str, [rows, columns]: [usize; 2]) -> Result<Scales, BackendError> {
        let names = ["weight_scale", "weight_scale_inv"].map(|part| part_name(base, part));
        let name = self.first_of(&names)?;
        let shape = self.tensors.get(name).ok_or_else(|| super::missing(name))?.shape().to_vec();
        let size = match shape[..] {
            [] | [1] | [1, 1] => [1, 1],
            [all] | [all, 1] if all == rows => [rows, 1],
            [first, second] if [first, second] == [rows, columns] => [rows, columns],
            _ => {
                return Err(BackendError::Load(format!(
                    "tensor `{name}` has shape {shape:?}, but quantization_config asks for \
                     [{rows}, {columns}]"
                )));
            }
        };
        let values = self.tensor(name, &shape)?;
        let values = (0..values.rows()).flat_map(|row| values.row(row)).collect();
        Ok(Scales { values, size, shape })
    }

    /// Packed words `[rows, columns]`.
    fn packed(&self, name: &str, [rows, columns]: [usize; 2], bits: u32) -> Result<Packed, BackendError> {
        Ok(Packed { words: self.words(name, &[rows, columns])?, columns, bits })
    }

    fn words(&self, name: &str, shape: &[usize]) -> Result<Vec<u32>, BackendError> {
        let bytes = self.stored(name, "I32", shape)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// The bytes of a tensor, which must have this type and shape.
    fn stored(&self, name: &str, encoding: &str, shape: &[usize]) -> Result<Vec<u8>, BackendError> {
        let Some(tensor) = self.tensors.get(name) else { return Err(super::missing(name)) };
        self.tensors.mark_used(name);
        let found = (tensor.encoding().name, tensor.shape());
        if found != (encoding, shape) {
            return Err(BackendError::Load(format!(
                "tensor `{name}` in {} is {} {:?}, but quantization_config asks for {encoding} {shape:?}",
                tensor.path().display(),
                found.0,
                found.1
            )));
        }
        Tensor::read_stored(tensor, 0..tensor.rows()).map_err(failed)
    }

    /// Refuses a checkpoint without the tensor `name` if a setting needs it.
    fn require(&self, is_needed: bool, setting: &str, name: &str) -> Result<(), BackendError> {
        if !is_needed || self.has(name) {
            return Ok(());
        }
        Err(BackendError::Load(format!(
            "the checkpoint has no tensor `{name}`, which {setting} in quantization_config needs: \
             download it again"
        )))
    }
}

struct Scales {
    values: Vec<f32>,
    /// Rows and columns. A single row or column holds for all.
    size: [usize; 2],
    /// As the tensor has it.
    shape: Vec<usize>,
}

impl Scales {
    fn place(&self, row: usize, column: usize) -> usize {
        let [rows, columns] = self.size;
        row.min(rows - 1) * columns + column.min(columns - 1)
    }

    fn scale_at(&self, row: usize, column: usize) -> f32 {
        self.values[self.place(row, column)]
    }
}

/// Whether a tensor of this name is a scale or a zero of activations, or of keys and values.
fn is_about_activations(name: &str) -> bool {
    let part = name.rsplit('.').next().unwrap_or(name);
    let stem = part.strip_suffix("_scale").or_else(|| part.strip_suffix("_zero_point"));
    stem.is_some_and(|stem| ACTIVATIONS.contains(&stem))
}

/// Whether one of these bytes of E4M3 is no number.
pub(super) fn has_nan(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| byte & 0x7f == 0x7f)
}

/// A byte of E4M3 (OCP 8-bit floating point: four bits of exponent, three of fraction, no infinities).
fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2_f32.powi(-9),
        _ => (1.0 + fraction / 8.0) * 2_f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

/// The name of a matrix's weight, scales, or other part.
fn part_name(base: &str, part: &str) -> String {
    format!("{base}.{part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_e4m3_are_those_of_its_definition() {
        for (byte, expected) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xfe, -448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3(byte).to_bits(), f32::to_bits(expected), "{byte:#x}");
        }
        for byte in 0..=u8::MAX {
            assert_eq!(has_nan(&[0, byte]), e4m3(byte).is_nan());
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan() && e4m3(0x80).is_sign_negative());
    }
}

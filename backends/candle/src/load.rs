//! A checkpoint's tensors by name.
//!
//! Input: files in any format that `backends/checkpoint` reads. Output: [`Weight`]s, read when they are
//! requested. This module hides differences of spelling: some checkpoints name their tensors `bert.encoder…`,
//! some `encoder…`, and old ones write `gamma` for `weight`; models always request `encoder….weight`. What
//! must hold: a tensor that is missing, has another shape, or has a type that cannot be computed with is an
//! error that names the tensor and the file. So is a tensor that no model requested.

mod adapters;
mod quantised;
mod scheme;

pub(crate) use crate::kernels::stored::StoredMatrix as Weight;
use crate::{
    kernels::pack::Stored,
    plan::{Adapters, Plan},
};
pub(crate) use scheme::Scheme;
use std::{
    ops::Range,
    path::PathBuf,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{BackendError, ModelFile, amount};
use text_embeddings_checkpoint::{
    BF16, CheckpointError, Encoding, F16, F32, Tensor, Tensors, UNSCALED_BYTES,
};

/// The output embedding of a decoder that stores it apart from its token embedding.
pub(crate) const LM_HEAD: &str = "lm_head.weight";
/// How often a long load logs its progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// How many values are searched for a NaN at once; at least a row.
const SEARCHED: usize = 1 << 18;

/// Logs how many of a model's layers are loaded, if loading takes long.
pub(crate) struct LoadProgress {
    layers: usize,
    loaded: usize,
    every: Duration,
    told: Instant,
}

impl LoadProgress {
    /// The progress of loading `layers` layers.
    pub(crate) fn new(layers: usize) -> Self {
        Self { layers, loaded: 0, every: PROGRESS_EVERY, told: Instant::now() }
    }

    /// Counts one more loaded layer.
    pub(crate) fn layer_loaded(&mut self) {
        if let Some(line) = self.line() {
            tracing::info!("{line}");
        }
    }

    /// Counts a layer. Returns the line to log, if it is time for one.
    fn line(&mut self) -> Option<String> {
        self.loaded += 1;
        if self.told.elapsed() < self.every {
            return None;
        }
        self.told = Instant::now();
        Some(format!("Loaded {} of {}", self.loaded, amount(self.layers, "layer")))
    }
}

/// The open files of a model.
pub(crate) struct Checkpoint {
    tensors: Tensors,
    /// If there are no files: how their values would be stored, which are made up on request.
    made_up: Option<Stored>,
    adapters: Option<Adapters>,
    scheme: Option<Scheme>,
    unscaled_bytes: bool,
}

impl Checkpoint {
    /// Opens the files, whatever their format, and reads their lists of tensors.
    pub(crate) fn open(files: &[ModelFile]) -> Result<Self, BackendError> {
        Tensors::open(files).map(Self::from_tensors).map_err(failed)
    }

    fn from_tensors(tensors: Tensors) -> Self {
        Self { tensors, made_up: None, adapters: None, scheme: None, unscaled_bytes: false }
    }

    /// A checkpoint that has every tensor, of random values: a model of them takes as long as one that was
    /// trained.
    pub(crate) fn made_up(stored: Stored) -> Self {
        Self { made_up: Some(stored), ..Self::from_tensors(Tensors::default()) }
    }

    /// From now on, tensors of bytes can be read if `are_values`: the bytes are the values themselves.
    pub(crate) fn with_unscaled_bytes(self, are_values: bool) -> Self {
        Self { unscaled_bytes: are_values, ..self }
    }

    /// Gives the tensors the names of `plan`: removes the first of its prefixes that a name begins with, and
    /// replaces old spellings. Of a tied model, safetensors' `save_model` stores the output embedding only.
    /// It is an error if two tensors then have the same name.
    pub(crate) fn renamed_for(self, plan: &Plan) -> Result<Self, BackendError> {
        let renamed = self.tensors.renamed(|name| {
            let short = plan.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
            match short.rsplit_once('.') {
                Some((norm, "gamma")) => format!("{norm}.weight"),
                Some((norm, "beta")) => format!("{norm}.bias"),
                _ => short.to_owned(),
            }
        });
        let mut tensors = renamed.map_err(failed)?;
        if !tensors.has(plan.output_embedding) {
            let renamed = tensors.renamed(|name| {
                if name == LM_HEAD { plan.output_embedding.to_owned() } else { name.to_owned() }
            });
            tensors = renamed.map_err(failed)?;
        }
        Ok(Self::from_tensors(tensors))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.has(name)
    }

    /// The first of these names that a tensor has.
    pub(crate) fn first_of<'n>(&self, names: &'n [String]) -> Result<&'n str, BackendError> {
        let found = names.iter().find(|name| self.has(name)).map(String::as_str);
        found.ok_or_else(|| missing(names.first().map_or("", String::as_str)))
    }

    /// The values of a tensor of one dimension.
    pub(crate) fn vector(&self, name: &str, size: usize) -> Result<Vec<f32>, BackendError> {
        Ok(self.tensor(name, &[size])?.row(0))
    }

    /// The values of a tensor of one dimension, in double precision. They may be stored as whole numbers.
    pub(crate) fn read_numbers(&self, name: &str, size: usize) -> Result<Vec<f64>, BackendError> {
        let tensor = self.tensors.request_tensor(name, &[size]).map_err(failed)?;
        tensor.read_numbers(name).map_err(failed)
    }

    /// Whether all matrices are stored in this type. Vectors do not count: llama.cpp's converter always
    /// stores them as F32, and they are computed with as stored.
    pub(crate) fn is_stored_as(&self, encoding: &Encoding) -> bool {
        self.tensors
            .iter()
            .filter(|(_, tensor)| tensor.shape().len() > 1)
            .all(|(_, tensor)| tensor.encoding() == encoding)
    }

    /// Whether a matrix is stored in a type whose values are multiplied by scales.
    pub(crate) fn has_scaled_matrix(&self) -> bool {
        self.tensors.iter().filter(|(_, tensor)| tensor.shape().len() > 1).any(|(_, tensor)| {
            let name = tensor.encoding().name;
            name.starts_with("F8") || ["I8", "U8", "I32"].contains(&name)
        })
    }

    /// The tensor `name`, which must have this shape.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Weight, BackendError> {
        let columns = shape.last().copied().unwrap_or(1).max(1);
        self.tensor_rows(name, shape, 0..shape.iter().product::<usize>() / columns)
    }

    /// Some rows of the tensor `name`, which must have this shape. All dimensions but the last one count
    /// rows.
    pub(crate) fn tensor_rows(
        &self,
        name: &str,
        shape: &[usize],
        rows: Range<usize>,
    ) -> Result<Weight, BackendError> {
        if let Some(adapters) = &self.adapters
            && let Some(adapted) = self.adapted(name, shape, adapters)?
        {
            return Ok(adapted.narrow(rows));
        }
        self.stored_rows(name, shape, rows)
    }

    /// Some rows of a tensor without its adapter.
    fn stored_rows(&self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Weight, BackendError> {
        if let Some(stored) = self.made_up {
            return Ok(Weight::made_up(stored, [rows.len(), shape.last().copied().unwrap_or(1)]));
        }
        if let Some(quantised) = self.quantised(name, shape)? {
            return Ok(quantised.narrow(rows));
        }
        if !self.has(name) {
            return Err(self.absent(name));
        }
        let tensor = self.tensors.request_tensor(name, shape).map_err(failed)?;
        if self.unscaled_bytes && *tensor.encoding() == UNSCALED_BYTES {
            let bytes = tensor.read_stored(rows).map_err(failed)?;
            return Ok(Weight::new(bytes, Stored::Blocks(&UNSCALED_BYTES), tensor.columns()));
        }
        weight(name, tensor, rows)
    }

    /// The shapes of the tensors that were requested so far.
    #[cfg(test)]
    pub(crate) fn requested_shapes(&self) -> Vec<Vec<usize>> {
        self.tensors.requested_tensors().into_iter().map(|tensor| tensor.shape().to_vec()).collect()
    }

    /// Ends the loading. Every tensor must have been requested, except tensors whose names begin with one of
    /// `ignored`.
    /// Ignoring one could change scores silently.
    pub(crate) fn finish(self, ignored: &[String]) -> Result<(), BackendError> {
        self.tensors.finish(ignored).map_err(failed)
    }

    /// The error for a tensor that is missing, or that is there only in quantised form.
    fn absent(&self, name: &str) -> BackendError {
        let base = name.strip_suffix("weight").unwrap_or(name);
        let mut packed = ["qweight", "weight_packed"].into_iter().map(|part| format!("{base}{part}"));
        match packed.find(|packed| self.scheme.is_none() && self.has(packed)) {
            None => missing(name),
            Some(packed) => BackendError::Load(format!(
                "the checkpoint has the tensor `{packed}`, but config.json has no `quantization_config` that says \
                 how it is quantised: add it (GPTQ's is in quantize_config.json)"
            )),
        }
    }

    /// The file and the name of a tensor that holds a NaN or an infinite value, if there is one: it explains
    /// a score that is not a number. Reads all tensors, and skips rows that cannot be read.
    pub(crate) fn find_broken(&self) -> Option<(PathBuf, String)> {
        let (name, tensor) = self.tensors.iter().find(|(name, tensor)| {
            let step = (SEARCHED / tensor.columns().max(1)).max(1);
            (0..tensor.rows()).step_by(step).any(|start| {
                let rows = start..tensor.rows().min(start + step);
                if tensor.encoding().name == "F8_E4M3" {
                    return tensor.read_stored(rows).is_ok_and(|bytes| quantised::has_nan(&bytes));
                }
                let Ok(read) = weight(name, tensor, rows.clone()) else { return false };
                (0..rows.len()).any(|row| read.row(row).iter().any(|value| !value.is_finite()))
            })
        })?;
        Some((tensor.path().to_path_buf(), name.clone()))
    }
}

/// Some rows of a tensor in memory.
fn weight(name: &str, tensor: &Tensor, rows: Range<usize>) -> Result<Weight, BackendError> {
    let bytes = tensor.read(name, rows).map_err(failed)?;
    let plain = [(&F32, Stored::F32), (&F16, Stored::F16), (&BF16, Stored::Bf16)];
    let stored = plain.into_iter().find(|(encoding, _)| *encoding == tensor.encoding());
    let stored = stored.map_or(Stored::Blocks(tensor.encoding()), |(_, stored)| stored);
    Ok(Weight::new(bytes, stored, tensor.columns()))
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands it on so")]
fn failed(error: CheckpointError) -> BackendError {
    BackendError::Load(error.to_string())
}

fn missing(name: &str) -> BackendError {
    failed(CheckpointError::Missing { name: name.to_owned() })
}

/// A part of a matrix, as the checkpoint stores it.
pub(crate) struct Part {
    /// `[outputs, inputs]`
    pub(crate) weight: Weight,
    /// `[outputs]`
    pub(crate) bias: Option<Vec<f32>>,
}

impl Part {
    /// The bias, zeros without one.
    pub(crate) fn into_bias(self) -> Vec<f32> {
        self.bias.unwrap_or_else(|| vec![0.0; self.weight.rows()])
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn a_long_load_says_how_far_it_is_and_a_short_one_nothing() {
        let mut short = LoadProgress::new(3);
        assert_eq!([(); 3].map(|()| short.line()), [const { None }; 3]);
        let mut long = LoadProgress { every: Duration::ZERO, ..LoadProgress::new(2) };
        let lines = [(); 2].map(|()| long.line());
        assert_eq!(lines, ["Loaded 1 of 2 layers", "Loaded 2 of 2 layers"].map(|line| Some(line.to_owned())));
    }

    /// A checkpoint of one tensor `[2, 2]` in a file that can be changed.
    fn checkpoint() -> (tempfile::NamedTempFile, Checkpoint) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let values: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 2], &values).unwrap();
        safetensors::serialize_to_file([("w", view)], None, file.path()).unwrap();
        let checkpoint = Checkpoint::open(&[file.path().into()]).unwrap();
        (file, checkpoint)
    }

    #[test]
    fn a_tensor_that_was_read_survives_whatever_happens_to_its_file() {
        let (file, checkpoint) = checkpoint();
        let rows = checkpoint.tensor_rows("w", &[2, 2], 1..2).unwrap();
        let whole = checkpoint.tensor("w", &[2, 2]).unwrap();
        std::fs::File::options().write(true).open(file.path()).unwrap().set_len(0).unwrap();
        assert_eq!((rows.rows(), rows.row(0), whole.row(1)), (1, vec![3.0, 4.0], vec![3.0, 4.0]));
        let message = checkpoint.tensor("w", &[2, 2]).err().unwrap().to_string();
        assert!(
            message.contains("cannot read") && message.contains(&*file.path().to_string_lossy()),
            "{message}"
        );
    }
}

//! A checkpoint's tensors by name.
//!
//! Input: safetensors files. Output: [`Weight`]s, read when they are requested. Spellings end here: some checkpoints name
//! their tensors `bert.encoder…`, some `encoder…`, and old ones write `gamma` for `weight`; models ask for
//! `encoder….weight`. What must hold: a tensor that is missing, has another shape or a type that cannot be computed with,
//! and one that no model asked for, is an error that names tensor and file.

mod adapters;

pub(crate) use crate::kernels::stored::StoredMatrix as Weight;
use crate::{
    kernels::pack::{self, Stored},
    plan::Adapters,
};
use candle_core::DType;
use safetensors::{Dtype, tensor::Metadata};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::BackendError;

/// How often a long load says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// The longest header of a safetensors file, in bytes, by the format's own definition.
const LONGEST_HEADER: u64 = 100_000_000;
/// How many bytes are searched for a NaN at once: whole values of each type.
const SEARCHED: usize = 1 << 20;

/// How far the loading of a model's layers is, in the log of one that takes long.
pub(crate) struct Progress {
    layers: usize,
    loaded: usize,
    every: Duration,
    told: Instant,
}

impl Progress {
    /// Of so many layers.
    pub(crate) fn new(layers: usize) -> Self {
        Self { layers, loaded: 0, every: PROGRESS_EVERY, told: Instant::now() }
    }

    /// One more is loaded.
    pub(crate) fn layer_loaded(&mut self) {
        if let Some(line) = self.line() {
            tracing::info!("{line}");
        }
    }

    /// Counts a layer; what to tell, if it is time.
    fn line(&mut self) -> Option<String> {
        self.loaded += 1;
        if self.told.elapsed() < self.every {
            return None;
        }
        self.told = Instant::now();
        Some(format!("Loaded {} of {} layers", self.loaded, self.layers))
    }
}

/// The open files of a model.
pub(crate) struct Checkpoint {
    tensors: BTreeMap<String, Entry>,
    unused: RefCell<BTreeSet<String>>,
    adapters: Option<Adapters>,
}

struct Entry {
    path: Arc<PathBuf>,
    values: Values,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Where a tensor's values are.
enum Values {
    /// In a file, at these bytes.
    File(Arc<File>, Range<u64>),
    Memory(Vec<u8>),
}

impl Entry {
    /// Some bytes of the values. The file may have become shorter since it was opened.
    fn read(&self, bytes: Range<usize>) -> Result<Vec<u8>, BackendError> {
        match &self.values {
            Values::Memory(values) => Ok(values[bytes].to_vec()),
            Values::File(file, place) => {
                let mut values = vec![0; bytes.len()];
                let read = file.read_exact_at(&mut values, place.start + bytes.start as u64);
                read.map_err(|error| unreadable(&self.path, &error))?;
                Ok(values)
            }
        }
    }

    /// The bytes of all values.
    fn len(&self) -> usize {
        match &self.values {
            Values::Memory(values) => values.len(),
            Values::File(_, place) => (place.end - place.start) as usize,
        }
    }
}

impl Checkpoint {
    /// Opens the files and reads their headers.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] naming the file if one cannot be read, is not a complete safetensors file, or repeats a
    /// tensor.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, BackendError> {
        let mut tensors = BTreeMap::new();
        for path in paths {
            add_tensors(&mut tensors, path)?;
        }
        Ok(Self::of(tensors))
    }

    /// Reads a file of `torch.save`, which must hold a dictionary of tensors and nothing that would run code.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] naming the file if it cannot be read so.
    pub(crate) fn open_pickle(path: &Path) -> Result<Self, BackendError> {
        let failed = |error: &dyn std::fmt::Display| unreadable(path, error);
        let mut tensors = BTreeMap::new();
        for (name, tensor) in candle_core::pickle::read_all(path).map_err(|error| failed(&error))? {
            let values =
                tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all()?.to_vec1::<f32>());
            let values = values.map_err(|error| failed(&error))?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let entry = Entry {
                path: Arc::new(path.to_path_buf()),
                values: Values::Memory(bytes),
                dtype: Dtype::F32,
                shape: tensor.dims().to_vec(),
            };
            insert(&mut tensors, &name, entry)?;
        }
        Ok(Self::of(tensors))
    }

    fn of(tensors: BTreeMap<String, Entry>) -> Self {
        let unused = RefCell::new(tensors.keys().cloned().collect());
        Self { tensors, unused, adapters: None }
    }

    /// The same tensors without the first of `prefixes` that their name begins with, and under their new spellings.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if two have the same name then.
    pub(crate) fn without_prefixes(self, prefixes: &[&str]) -> Result<Self, BackendError> {
        let mut tensors = BTreeMap::new();
        for (name, entry) in self.tensors {
            let short = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
            let short = match short.rsplit_once('.') {
                Some((norm, "gamma")) => format!("{norm}.weight"),
                Some((norm, "beta")) => format!("{norm}.bias"),
                _ => short.to_owned(),
            };
            insert(&mut tensors, &short, entry)?;
        }
        Ok(Self::of(tensors))
    }

    /// Whether there is a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The first of these names that there is a tensor of.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if there is none.
    pub(crate) fn first_of<'n>(&self, names: &'n [String]) -> Result<&'n str, BackendError> {
        let found = names.iter().find(|name| self.has(name)).map(String::as_str);
        found.ok_or_else(|| missing(names.first().map_or("", String::as_str)))
    }

    /// A tensor of one dimension as values.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::tensor`].
    pub(crate) fn vector(&self, name: &str, size: usize) -> Result<Vec<f32>, BackendError> {
        Ok(self.tensor(name, &[size])?.row(0))
    }

    /// Whether all tensors are stored as `dtype`.
    pub(crate) fn is_stored_as(&self, dtype: Dtype) -> bool {
        self.tensors.values().all(|entry| entry.dtype == dtype)
    }

    /// The tensor `name`, which must have this shape.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if it is missing, has another shape or an unsupported type, or cannot be read.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Weight, BackendError> {
        let columns = shape.last().copied().unwrap_or(1).max(1);
        self.tensor_rows(name, shape, 0..shape.iter().product::<usize>() / columns)
    }

    /// Some rows of the tensor `name`, which must have this shape: of several dimensions, all but the last count rows.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::tensor`].
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
        let Some(entry) = self.tensors.get(name) else {
            return Err(missing(name));
        };
        self.unused.borrow_mut().remove(name);
        let path = entry.path.display();
        if entry.shape != shape {
            return Err(BackendError::Load(format!(
                "tensor `{name}` in {path} has shape {:?}, but config.json asks for {shape:?}",
                entry.shape
            )));
        }
        let stored = match entry.dtype {
            Dtype::F32 => Stored::F32,
            Dtype::F16 => Stored::F16,
            Dtype::BF16 => Stored::Bf16,
            other => {
                return Err(BackendError::Load(format!(
                    "tensor `{name}` in {path} is stored as {other:?}: only F32, F16 and BF16 checkpoints are supported"
                )));
            }
        };
        let columns = shape.last().copied().unwrap_or(1);
        let size = columns * stored.size();
        Ok(Weight::new(entry.read(rows.start * size..rows.end * size)?, stored, columns))
    }

    /// Ends the loading: every tensor must have been asked for, but for those whose names begin with one of `ignored`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] naming a tensor that the model does not know: ignoring it would change scores silently.
    pub(crate) fn finish(self, ignored: &[String]) -> Result<(), BackendError> {
        let unused = self.unused.into_inner();
        match unused.iter().find(|name| !ignored.iter().any(|ignored| name.starts_with(ignored.as_str()))) {
            Some(name) => Err(BackendError::Load(format!(
                "tensor `{name}` in {} is not part of this architecture: the model needs something that is not supported",
                self.tensors[name].path.display()
            ))),
            None => Ok(()),
        }
    }

    /// The file and the name of a tensor that holds a value which is not a number, if there is one: the explanation
    /// of a score that is none either. Reads everything; what cannot be read explains it too.
    pub(crate) fn find_nan(&self) -> Option<(PathBuf, String)> {
        let has_nan = |entry: &&Entry| {
            let nan = |stored: Stored| {
                (0..entry.len()).step_by(SEARCHED).any(|start| {
                    let bytes = entry.read(start..entry.len().min(start + SEARCHED));
                    bytes.is_ok_and(|bytes| {
                        let mut values = vec![0.0; bytes.len() / stored.size()];
                        pack::widen(stored, &bytes, &mut values);
                        values.iter().any(|value| value.is_nan())
                    })
                })
            };
            match entry.dtype {
                Dtype::F32 => nan(Stored::F32),
                Dtype::F16 => nan(Stored::F16),
                Dtype::BF16 => nan(Stored::Bf16),
                _ => false,
            }
        };
        let (name, entry) = self.tensors.iter().find(|(_, entry)| has_nan(entry))?;
        Some((entry.path.to_path_buf(), name.clone()))
    }
}

fn add_tensors(tensors: &mut BTreeMap<String, Entry>, path: &Path) -> Result<(), BackendError> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let (start, metadata) = header(&file).map_err(|error| {
        BackendError::Load(format!(
            "{} is not a complete safetensors file ({error}): download it again",
            path.display()
        ))
    })?;
    let (file, path) = (Arc::new(file), Arc::new(path.to_path_buf()));
    for (name, info) in metadata.tensors() {
        let (first, end) = info.data_offsets;
        let entry = Entry {
            path: path.clone(),
            values: Values::File(file.clone(), start + first as u64..start + end as u64),
            dtype: info.dtype,
            shape: info.shape.clone(),
        };
        insert(tensors, &name, entry)?;
    }
    Ok(())
}

/// Where a safetensors file's values begin, and what they are: together they are the whole file.
fn header(mut file: &File) -> io::Result<(u64, Metadata)> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER {
        return Err(io::Error::other("its header is too long"));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    // This checks that the tensors follow each other without a gap, and that each has the bytes of its shape and type.
    let metadata: Metadata = serde_json::from_slice(&header)?;
    let start = 8 + length;
    if file.metadata()?.len() != start + metadata.data_len() as u64 {
        return Err(io::Error::other("its length is not that of its header and its tensors"));
    }
    Ok((start, metadata))
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> BackendError {
    BackendError::Load(format!("cannot read {}: {error}", path.display()))
}

/// Adds a tensor.
///
/// # Errors
///
/// [`BackendError::Load`] if there is one of this name.
fn insert(tensors: &mut BTreeMap<String, Entry>, name: &str, entry: Entry) -> Result<(), BackendError> {
    let path = entry.path.clone();
    match tensors.insert(name.to_owned(), entry) {
        None => Ok(()),
        Some(earlier) => Err(BackendError::Load(format!(
            "tensor `{name}` is in the checkpoint twice: in {} and in {}",
            earlier.path.display(),
            path.display()
        ))),
    }
}

fn missing(name: &str) -> BackendError {
    BackendError::Load(format!(
        "the checkpoint has no tensor `{name}`: it is incomplete or of another model; download it again"
    ))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn a_long_load_says_how_far_it_is_and_a_short_one_nothing() {
        let mut short = Progress::new(3);
        assert_eq!([(); 3].map(|()| short.line()), [const { None }; 3]);
        let mut long = Progress { every: Duration::ZERO, ..Progress::new(2) };
        let lines = [(); 2].map(|()| long.line());
        assert_eq!(lines, ["Loaded 1 of 2 layers", "Loaded 2 of 2 layers"].map(|line| Some(line.to_owned())));
    }

    /// A checkpoint of one tensor `[2, 2]` in a file that can be changed.
    fn checkpoint() -> (tempfile::NamedTempFile, Checkpoint) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let values: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(Dtype::F32, vec![2, 2], &values).unwrap();
        safetensors::serialize_to_file([("w", view)], None, file.path()).unwrap();
        let checkpoint = Checkpoint::open(&[file.path().to_owned()]).unwrap();
        (file, checkpoint)
    }

    #[test]
    fn a_tensor_that_was_read_survives_whatever_happens_to_its_file() {
        let (file, checkpoint) = checkpoint();
        let rows = checkpoint.tensor_rows("w", &[2, 2], 1..2).unwrap();
        let whole = checkpoint.tensor("w", &[2, 2]).unwrap();
        File::options().write(true).open(file.path()).unwrap().set_len(0).unwrap();
        assert_eq!((rows.rows(), rows.row(0), whole.row(1)), (1, vec![3.0, 4.0], vec![3.0, 4.0]));
        let message = checkpoint.tensor("w", &[2, 2]).err().unwrap().to_string();
        assert!(
            message.contains("cannot read") && message.contains(&*file.path().to_string_lossy()),
            "{message}"
        );
    }

    #[test]
    fn a_file_that_is_not_whole_is_refused() {
        let (file, _) = checkpoint();
        let whole = std::fs::read(file.path()).unwrap();
        let longer = [whole.as_slice(), &[0]].concat();
        for content in [&whole[..whole.len() - 1], &longer, &whole[..20], &whole[..3], &[0xff; 16]] {
            std::fs::write(file.path(), content).unwrap();
            let message = Checkpoint::open(&[file.path().to_owned()]).err().unwrap().to_string();
            assert!(message.contains("is not a complete safetensors file"), "{message}");
        }
    }
}

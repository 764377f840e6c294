//! The tensors of a model's files, by name.
//!
//! Input: files of any format. Output: tensors of the requested names and shapes. What must hold: a tensor
//! that is missing or has another shape is an error that names it and its file. So is a tensor that was
//! not requested, because ignoring it could change the model's results silently.

use crate::{CheckpointError, ModelFile, Tensor};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

/// The tensors of some files, and whether each was requested.
#[derive(Debug, Default)]
pub struct Tensors {
    by_name: BTreeMap<String, Tensor>,
    unused: RefCell<BTreeSet<String>>,
}

impl Tensors {
    /// Opens the files, whatever their format, and reads their lists of tensors.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`] naming the file if one cannot be read, is not complete, or repeats a tensor.
    pub fn open(files: &[ModelFile]) -> Result<Self, CheckpointError> {
        let mut by_name = BTreeMap::new();
        for file in files {
            for (name, tensor) in crate::open(file.clone())?.tensors {
                insert_tensor(&mut by_name, name, tensor)?;
            }
        }
        Ok(Self::new(by_name))
    }

    fn new(by_name: BTreeMap<String, Tensor>) -> Self {
        let unused = RefCell::new(by_name.keys().cloned().collect());
        Self { by_name, unused }
    }

    /// The same tensors, each under the name that `rename` makes of its own.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Refused`] if two tensors then have the same name.
    pub fn renamed(self, rename: impl Fn(&str) -> String) -> Result<Self, CheckpointError> {
        let mut by_name = BTreeMap::new();
        for (name, tensor) in self.by_name {
            insert_tensor(&mut by_name, rename(&name), tensor)?;
        }
        Ok(Self::new(by_name))
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The tensor of this name. It does not count as requested.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name)
    }

    /// All tensors by name. They do not count as requested.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Tensor)> {
        self.by_name.iter()
    }

    /// Counts a tensor as requested, if it is there.
    pub fn mark_used(&self, name: &str) {
        self.unused.borrow_mut().remove(name);
    }

    /// The tensor `name`, which must have this shape.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Missing`], or [`CheckpointError::Refused`] for another shape.
    pub fn request_tensor(&self, name: &str, shape: &[usize]) -> Result<&Tensor, CheckpointError> {
        let tensor = self.get(name).ok_or_else(|| CheckpointError::Missing { name: name.to_owned() })?;
        self.mark_used(name);
        if tensor.shape() == shape {
            return Ok(tensor);
        }
        Err(CheckpointError::Refused(format!(
            "tensor `{name}` in {} has shape {:?}, but config.json asks for {shape:?}",
            tensor.path().display(),
            tensor.shape()
        )))
    }

    /// The tensors that were requested so far.
    pub fn requested_tensors(&self) -> Vec<&Tensor> {
        let unused = self.unused.borrow();
        self.by_name.iter().filter(|(name, _)| !unused.contains(*name)).map(|(_, tensor)| tensor).collect()
    }

    /// Every tensor must have been requested, except tensors whose names begin with one of `ignored`.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Refused`] naming another one.
    pub fn finish(self, ignored: &[String]) -> Result<(), CheckpointError> {
        let mut unused = self.unused.into_inner().into_iter();
        match unused.find(|name| !ignored.iter().any(|prefix| name.starts_with(prefix.as_str()))) {
            Some(name) => {
                let path = self.by_name[&name].path().display();
                Err(CheckpointError::Refused(format!(
                    "tensor `{name}` in {path} is not part of this architecture: the model needs something that is \
                     not supported"
                )))
            }
            None => Ok(()),
        }
    }
}

fn insert_tensor(
    tensors: &mut BTreeMap<String, Tensor>,
    name: String,
    tensor: Tensor,
) -> Result<(), CheckpointError> {
    if let Some(earlier) = tensors.get(&name) {
        let (earlier, path) = (earlier.path().display(), tensor.path().display());
        return Err(CheckpointError::Refused(format!(
            "tensor `{name}` is in the checkpoint twice: in {earlier} and in {path}"
        )));
    }
    tensors.insert(name, tensor);
    Ok(())
}

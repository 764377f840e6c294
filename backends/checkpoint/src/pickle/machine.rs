//! Runs the programs of pickles, but only as far as they build dictionaries of tensors.
//!
//! A pickle is a program for a stack machine. Python's machine calls every function that the program names.
//! This machine knows four of `PyTorch`'s functions by name, builds their values itself, and refuses all
//! other functions by name. What must hold: the time and memory of each instruction are proportional to its
//! own bytes, so that the length of the program bounds both. Values are shared, never copied, and tuples are
//! nested at most [`MAX_TUPLE`] deep.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

/// The most values on the stack. Python's own writer puts at most 2000 there for one dictionary.
const MAX_STACK: usize = 1 << 16;
/// The deepest nesting of tuples. A tensor needs two levels.
const MAX_TUPLE: usize = 8;
/// What to do about a file that holds something else.
const REMEDY: &str = "save `model.state_dict()`, or better as safetensors";

#[derive(Clone)]
pub(super) enum PickleValue {
    /// A mark on the stack.
    Mark,
    /// Something that no tensor needs.
    Other,
    Number(i64),
    Text(Rc<str>),
    /// A class or function, as `module name`.
    Global(Rc<str>),
    Tuple(Rc<Tuple>),
    /// A list of texts. Other items are dropped.
    List(Rc<RefCell<Vec<Rc<str>>>>),
    /// A dictionary of tensors by name. Other items are dropped.
    Dictionary(Rc<RefCell<Views>>),
    Storage(Rc<Storage>),
    Tensor(Rc<StorageView>),
}

pub(super) type Views = Vec<(Rc<str>, Rc<StorageView>)>;

pub(super) struct Tuple {
    items: Vec<PickleValue>,
    depth: usize,
}

/// Values that tensors share, as a contiguous run in the file.
pub(super) struct Storage {
    /// The class. It determines the type.
    pub(super) class: Rc<str>,
    /// Its name in the file.
    pub(super) key: Rc<str>,
    pub(super) values: u64,
}

/// A tensor: a view of some values of a storage.
pub(super) struct StorageView {
    pub(super) storage: Rc<Storage>,
    /// The index of its first value in the storage.
    pub(super) offset: u64,
    pub(super) shape: Vec<usize>,
    /// The distance of neighbours in each dimension, in values.
    pub(super) strides: Vec<usize>,
}

impl PickleValue {
    /// The tensors of a dictionary, by name.
    pub(super) fn into_tensors(self) -> Result<Views, String> {
        match self {
            Self::Dictionary(items) if !items.borrow().is_empty() => Ok(items.take()),
            _ => Err("it does not hold a dictionary of tensors: save `model.state_dict()`".to_owned()),
        }
    }
}

pub(super) struct PickleMachine<'p> {
    program: &'p [u8],
    position: usize,
    stack: Vec<PickleValue>,
    memory: HashMap<u32, PickleValue>,
}

impl<'p> PickleMachine<'p> {
    pub(super) fn new(program: &'p [u8]) -> Self {
        Self { program, position: 0, stack: Vec::new(), memory: HashMap::new() }
    }

    /// The position where the next pickle begins.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn run(&mut self) -> Result<PickleValue, String> {
        self.stack.clear();
        self.memory.clear();
        loop {
            let [code] = self.bytes()?;
            if code == b'.' {
                return self.pop();
            }
            self.step(code)?;
            if self.stack.len() > MAX_STACK {
                return Err("its pickle piles up more values than a dictionary of tensors needs".to_owned());
            }
        }
    }

    fn step(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            0x80 => return self.bytes::<1>().map(drop),
            b'(' => PickleValue::Mark,
            b'N' | 0x88 | 0x89 => PickleValue::Other,
            b'G' => {
                self.bytes::<8>()?;
                PickleValue::Other
            }
            b'J' => PickleValue::Number(i32::from_le_bytes(self.bytes()?).into()),
            b'K' => PickleValue::Number(u8::from_le_bytes(self.bytes()?).into()),
            b'M' => PickleValue::Number(u16::from_le_bytes(self.bytes()?).into()),
            0x8a => self.long()?,
            b'X' => {
                let length = u32::from_le_bytes(self.bytes()?);
                self.text(length as usize)?
            }
            0x8c => {
                let [length] = self.bytes()?;
                self.text(length.into())?
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                PickleValue::Global(format!("{module} {name}").into())
            }
            b'}' => PickleValue::Dictionary(Rc::default()),
            b']' => PickleValue::List(Rc::default()),
            b')' => tuple(Vec::new())?,
            0x85..=0x87 => {
                let start = self.stack.len().checked_sub(usize::from(code - 0x84)).ok_or_else(unbalanced)?;
                tuple(self.stack.split_off(start))?
            }
            b't' => tuple(self.marked()?)?,
            b'q' | b'r' => {
                let place = self.place(code == b'r')?;
                return self.remember(place);
            }
            b'h' | b'j' => {
                let place = self.place(code == b'j')?;
                self.recall(place)?
            }
            b'Q' => storage(&self.pop()?)?,
            b'R' => {
                let arguments = self.pop()?;
                call(&self.pop()?, &arguments)?
            }
            // `BUILD` sets the attributes of an object. The attributes of a dictionary do not affect its
            // tensors.
            b'b' => return self.pop().map(drop),
            b's' => {
                let items = [self.pop()?, self.pop()?];
                let [value, key] = items;
                return self.set(&[key, value]);
            }
            b'u' => {
                let items = self.marked()?;
                return self.set(&items);
            }
            b'a' => {
                let item = self.pop()?;
                return self.append(&[item]);
            }
            b'e' => {
                let items = self.marked()?;
                return self.append(&items);
            }
            _ => {
                return Err(format!(
                    "its pickle has the instruction {code:#04x} at byte {}, which no dictionary of tensors needs: \
                     {REMEDY}",
                    self.position - 1
                ));
            }
        };
        self.stack.push(value);
        Ok(())
    }

    /// The place of a value in the memo, a byte or, if `is_long`, four.
    fn place(&mut self, is_long: bool) -> Result<u32, String> {
        let bytes = if is_long { self.bytes()? } else { [self.bytes::<1>()?[0], 0, 0, 0] };
        Ok(u32::from_le_bytes(bytes))
    }

    fn slice(&mut self, length: usize) -> Result<&'p [u8], String> {
        let found = self.program[self.position..].get(..length).ok_or("its pickle breaks off")?;
        self.position += length;
        Ok(found)
    }

    fn bytes<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], String> {
        let mut bytes = [0; LENGTH];
        bytes.copy_from_slice(self.slice(LENGTH)?);
        Ok(bytes)
    }

    fn text(&mut self, length: usize) -> Result<PickleValue, String> {
        Ok(PickleValue::Text(String::from_utf8_lossy(self.slice(length)?).into()))
    }

    fn line(&mut self) -> Result<&'p str, String> {
        let rest = &self.program[self.position..];
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or("its pickle breaks off")?;
        let line =
            std::str::from_utf8(&rest[..length]).map_err(|_| "its pickle has a name that is not UTF-8")?;
        self.position += length + 1;
        Ok(line)
    }

    /// A number of any length. Only the magic number of old files has more than eight bytes.
    fn long(&mut self) -> Result<PickleValue, String> {
        let [length] = self.bytes()?;
        let digits = self.slice(length.into())?;
        if digits.len() > 8 {
            return Ok(PickleValue::Other);
        }
        let sign = if digits.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
        let mut bytes = [sign; 8];
        bytes[..digits.len()].copy_from_slice(digits);
        Ok(PickleValue::Number(i64::from_le_bytes(bytes)))
    }

    fn pop(&mut self) -> Result<PickleValue, String> {
        self.stack.pop().ok_or_else(unbalanced)
    }

    /// The values above the last mark. Removes them and the mark.
    fn marked(&mut self) -> Result<Vec<PickleValue>, String> {
        let mark =
            self.stack.iter().rposition(|value| matches!(value, PickleValue::Mark)).ok_or_else(unbalanced)?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(items)
    }

    fn remember(&mut self, place: u32) -> Result<(), String> {
        let value = self.stack.last().ok_or_else(unbalanced)?.clone();
        self.memory.insert(place, value);
        Ok(())
    }

    fn recall(&self, place: u32) -> Result<PickleValue, String> {
        self.memory.get(&place).cloned().ok_or_else(unbalanced)
    }

    /// Inserts alternating keys and values into the dictionary on top of the stack.
    fn set(&mut self, items: &[PickleValue]) -> Result<(), String> {
        let Some(PickleValue::Dictionary(dictionary)) = self.stack.last() else { return Err(unbalanced()) };
        let (pairs, []) = items.as_chunks::<2>() else { return Err(unbalanced()) };
        for [key, value] in pairs {
            if let (PickleValue::Text(key), PickleValue::Tensor(view)) = (key, value) {
                dictionary.borrow_mut().push((key.clone(), view.clone()));
            }
        }
        Ok(())
    }

    fn append(&mut self, items: &[PickleValue]) -> Result<(), String> {
        let Some(PickleValue::List(list)) = self.stack.last() else { return Err(unbalanced()) };
        let texts = items.iter().filter_map(|item| match item {
            PickleValue::Text(text) => Some(text.clone()),
            _ => None,
        });
        list.borrow_mut().extend(texts);
        Ok(())
    }
}

fn unbalanced() -> String {
    "its pickle is not a valid program".to_owned()
}

fn tuple(items: Vec<PickleValue>) -> Result<PickleValue, String> {
    let depth = 1 + items
        .iter()
        .map(|item| match item {
            PickleValue::Tuple(tuple) => tuple.depth,
            _ => 0,
        })
        .max()
        .unwrap_or(0);
    if depth > MAX_TUPLE {
        return Err("its pickle nests tuples deeper than any tensor needs".to_owned());
    }
    Ok(PickleValue::Tuple(Rc::new(Tuple { items, depth })))
}

fn items(value: &PickleValue) -> &[PickleValue] {
    match value {
        PickleValue::Tuple(tuple) => &tuple.items,
        _ => &[],
    }
}

/// The storage of a persistent id `('storage', class, key, device, values)`. Old files have a sixth item.
fn storage(name: &PickleValue) -> Result<PickleValue, String> {
    match items(name) {
        [
            PickleValue::Text(kind),
            PickleValue::Global(class),
            PickleValue::Text(key),
            _device,
            PickleValue::Number(values),
            rest @ ..,
        ] if &**kind == "storage" && *values >= 0 && matches!(rest, [] | [PickleValue::Other]) => {
            let (class, key, values) = (class.clone(), key.clone(), *values as u64);
            Ok(PickleValue::Storage(Rc::new(Storage { class, key, values })))
        }
        _ => Err("its pickle refers to an external object that is not a tensor's storage".to_owned()),
    }
}

/// The result of one of the four functions.
fn call(function: &PickleValue, arguments: &PickleValue) -> Result<PickleValue, String> {
    let PickleValue::Global(function) = function else { return Err(unbalanced()) };
    match (&**function, items(arguments)) {
        ("collections OrderedDict", []) => Ok(PickleValue::Dictionary(Rc::default())),
        (
            "torch._utils _rebuild_tensor_v2",
            [PickleValue::Storage(storage), PickleValue::Number(offset), shape, strides, rest @ ..],
        ) => {
            // Behind whether it has a gradient, and its hooks: marks, such as one that negates all values.
            if rest.len() > 2 {
                return Err(format!("its pickle has a tensor with marks, which are not supported: {REMEDY}"));
            }
            let (offset, shape, strides) = (u64::try_from(*offset).ok(), sizes(shape), sizes(strides));
            let (Some(offset), Some(shape), Some(strides)) = (offset, shape, strides) else {
                return Err("its pickle has a tensor whose sizes are not numbers".to_owned());
            };
            Ok(PickleValue::Tensor(Rc::new(StorageView { storage: storage.clone(), offset, shape, strides })))
        }
        ("torch._utils _rebuild_parameter", [PickleValue::Tensor(view), ..]) => {
            Ok(PickleValue::Tensor(view.clone()))
        }
        ("torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_parameter", _) => Err(unbalanced()),
        (other, _) => Err(format!(
            "its pickle calls `{}`, and this server does not run code from files: {REMEDY}",
            other.replace(' ', ".")
        )),
    }
}

fn sizes(value: &PickleValue) -> Option<Vec<usize>> {
    let PickleValue::Tuple(tuple) = value else { return None };
    let sizes = tuple.items.iter().map(|item| match item {
        PickleValue::Number(size) => usize::try_from(*size).ok(),
        _ => None,
    });
    sizes.collect()
}

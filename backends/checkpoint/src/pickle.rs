//! Files of `torch.save`: a dictionary of tensors, as a pickle with the values next to it.
//!
//! Since `PyTorch` 1.6 such a file is a zip archive whose members are not compressed: `data.pkl`, and a
//! member `data/KEY` with the values of each storage. Older files are five pickles in a row, followed by the
//! storages. What must hold: the pickle's program makes tensors and nothing else ([`machine`]); tensors are
//! views of storages, and no view reaches beyond its storage.

mod machine;

use self::machine::{PickleMachine, PickleValue, Storage, StorageView};
use crate::{CheckpointError, Content, Source, Tensor, encoding::Encoding, insert, tensor::ByteRange};
use std::{
    collections::{BTreeMap, HashMap},
    io::{Cursor, Read, Seek},
    sync::Arc,
};
use zip::{CompressionMethod, ZipArchive};

/// The first bytes of a zip archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// The first bytes of the older format: a pickle of its magic number.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
/// The longest pickle, in bytes. A pickle has about 200 bytes per tensor.
const MAX_PICKLE: u64 = 16 << 20;
/// The most members of an archive. It has one per tensor and a few more.
const MAX_MEMBERS: usize = 1 << 20;

/// Whether a file with these first bytes comes from `torch.save`.
pub(crate) fn is_pickle(start: &[u8]) -> bool {
    start.starts_with(ZIP) || start.starts_with(LEGACY)
}

pub(crate) fn tensors(source: &Arc<Source>) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    if source.start(ZIP.len() as u64)? == ZIP { zipped(source) } else { legacy(source) }
}

/// The places of an archive's members by name.
fn members(source: &Source) -> Result<HashMap<String, ByteRange>, CheckpointError> {
    match &source.content {
        Content::File(file) => members_of_archive(source, file),
        Content::Memory(bytes) => members_of_archive(source, Cursor::new(bytes)),
    }
}

fn members_of_archive(
    source: &Source,
    archive: impl Read + Seek,
) -> Result<HashMap<String, ByteRange>, CheckpointError> {
    let unreadable =
        |error: &dyn std::fmt::Display| source.damaged(format!("its zip archive is not readable: {error}"));
    let mut archive = ZipArchive::new(archive).map_err(|error| unreadable(&error))?;
    if archive.len() > MAX_MEMBERS {
        return Err(source.damaged(format!("its zip archive has {} members", archive.len())));
    }
    let mut members = HashMap::new();
    for index in 0..archive.len() {
        let member = archive.by_index_raw(index).map_err(|error| unreadable(&error))?;
        let name = member.name().map_err(|error| unreadable(&error))?.into_owned();
        if member.compression() != CompressionMethod::Stored || member.encrypted() {
            return Err(source.unsupported(format!(
                "the member `{name}` of its zip archive is compressed or encrypted, which `torch.save` never does: save \
                 the model again"
            )));
        }
        let place = member.data_start().and_then(|start| {
            let end = start.checked_add(member.size())?;
            (end <= source.length).then_some(ByteRange { start, end })
        });
        let Some(place) = place else {
            return Err(source
                .damaged(format!("the member `{name}` of its zip archive ends beyond the end of the file")));
        };
        // `torch.save` puts all members into one folder, whose name varies.
        let name = name.split_once('/').map_or(name.as_str(), |(_folder, name)| name).to_owned();
        members.insert(name, place);
    }
    Ok(members)
}

fn zipped(source: &Arc<Source>) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    let members = members(source)?;
    let Some(pickle) = members.get("data.pkl") else {
        return Err(source.unsupported(
            "its zip archive has no `data.pkl`: `torch.save` did not write it, or it is a `torch.jit.save` file",
        ));
    };
    if let Some(order) = members.get("byteorder") {
        let order = source.read(order.start, (order.end - order.start).min(16) as usize)?;
        if order != b"little" {
            return Err(source.unsupported("its values are big-endian, which is not supported"));
        }
    }
    let program = program(source, pickle)?;
    let mut machine = PickleMachine::new(&program);
    let result = machine.run().map_err(|reason| source.unsupported(reason))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in result.into_tensors().map_err(|reason| source.unsupported(reason))? {
        let Some(place) = members.get(&format!("data/{}", view.storage.key)) else {
            return Err(source.damaged(format!("the values of the tensor `{name}` are missing")));
        };
        let tensor = tensor(source, &name, &view, place)?;
        insert(&mut tensors, name.to_string(), tensor)?;
    }
    Ok(tensors)
}

fn program(source: &Source, place: &ByteRange) -> Result<Vec<u8>, CheckpointError> {
    let length = place.end - place.start;
    if length > MAX_PICKLE {
        return Err(source.damaged(format!(
            "its pickle has {length} bytes, more than any dictionary of tensors needs ({MAX_PICKLE})"
        )));
    }
    source.read(place.start, length as usize)
}

/// A view as a tensor. `place` holds the values of its storage.
fn tensor(
    source: &Arc<Source>,
    name: &str,
    view: &StorageView,
    place: &ByteRange,
) -> Result<Tensor, CheckpointError> {
    let StorageView { storage, offset, shape, strides } = view;
    let encoding = encoding(source, name, storage)?;
    let size = encoding.bytes as u64;
    let stated = storage.values.checked_mul(size).and_then(|bytes| place.start.checked_add(bytes));
    let start = offset.checked_mul(size).and_then(|bytes| place.start.checked_add(bytes));
    match (start, stated) {
        (Some(start), Some(end)) if start <= end && end <= place.end => {
            Tensor::strided(source, name, ByteRange { start, end }, encoding, shape.clone(), strides.clone())
        }
        _ => Err(source.damaged(format!("the tensor `{name}` does not fit its storage"))),
    }
}

fn encoding(source: &Source, name: &str, storage: &Storage) -> Result<&'static Encoding, CheckpointError> {
    let found = match &*storage.class {
        "torch FloatStorage" => "F32",
        "torch HalfStorage" => "F16",
        "torch BFloat16Storage" => "BF16",
        "torch DoubleStorage" => "F64",
        "torch LongStorage" => "I64",
        "torch IntStorage" => "I32",
        "torch ShortStorage" => "I16",
        "torch CharStorage" => "I8",
        "torch ByteStorage" => "U8",
        "torch BoolStorage" => "BOOL",
        other => other,
    };
    Encoding::named(found).ok_or_else(|| {
        source.unsupported(format!("the tensor `{name}` is of `{}`, which is not supported", storage.class))
    })
}

/// Reads the format before `PyTorch` 1.6: magic number, version, system facts, dictionary and keys of
/// storages; then for each storage the number of its values and the values.
fn legacy(source: &Arc<Source>) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    let program = source.start(MAX_PICKLE)?;
    let mut machine = PickleMachine::new(&program);
    let mut next = || machine.run().map_err(|reason| source.unsupported(reason));
    let [_magic, _version, _system] = [next()?, next()?, next()?];
    let result = next()?;
    let keys = next()?;
    let PickleValue::List(keys) = keys else {
        return Err(source.damaged("it has no list of storages"));
    };
    let views = result.into_tensors().map_err(|reason| source.unsupported(reason))?;
    let storages: HashMap<_, _> =
        views.iter().map(|(name, view)| (view.storage.key.clone(), (name, &view.storage))).collect();
    let mut places = HashMap::new();
    let mut start = machine.position() as u64;
    for key in keys.borrow().iter() {
        let Some((name, storage)) = storages.get(key) else {
            return Err(source.unsupported("it holds values that belong to no tensor"));
        };
        if source.length.saturating_sub(start) < 8 {
            return Err(source.damaged("it ends before its values"));
        }
        let mut count = [0; 8];
        count.copy_from_slice(&source.read(start, 8)?);
        let count = u64::from_le_bytes(count);
        start += 8;
        let bytes = count.checked_mul(encoding(source, name, storage)?.bytes as u64);
        let Some(end) = bytes.and_then(|bytes| start.checked_add(bytes)).filter(|end| *end <= source.length)
        else {
            return Err(
                source.damaged(format!("the values of the tensor `{name}` end beyond the end of the file"))
            );
        };
        places.insert(key.clone(), ByteRange { start, end });
        start = end;
    }
    let mut tensors = BTreeMap::new();
    for (name, view) in &views {
        let Some(place) = places.get(&view.storage.key) else {
            return Err(source.damaged(format!("the values of the tensor `{name}` are missing")));
        };
        insert(&mut tensors, name.to_string(), tensor(source, name, view, place)?)?;
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::{Format, open};
    use serde_json::Value;
    use std::{
        io::{Cursor, Write},
        path::{Path, PathBuf},
    };
    use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

    /// A file that `torch.save` wrote (`integration_tests/reference/pickles.py`).
    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../integration_tests/reference/fixtures/pickles")
            .join(name)
    }

    #[test]
    fn views_of_storages_have_the_values_that_torch_gives_them() {
        let expected: Value =
            serde_json::from_slice(&std::fs::read(fixture("expected.json")).unwrap()).unwrap();
        for file in ["zip.bin", "legacy.bin"] {
            let checkpoint = open(fixture(file)).unwrap();
            assert_eq!(checkpoint.format, Format::Pickle);
            for (name, tensor) in &checkpoint.tensors {
                let Some(expected) = expected.get(name) else {
                    let message = tensor.read(name, 0..1).err().unwrap().to_string();
                    assert!(message.contains("`whole` is stored as I64"), "{message}");
                    continue;
                };
                assert_eq!(serde_json::to_value(tensor.shape()).unwrap(), expected["shape"], "{file} {name}");
                let wanted: Vec<f32> = serde_json::from_value(expected["values"].clone()).unwrap();
                // All at once, and row by row.
                let rows = 0..tensor.rows();
                for parts in [vec![rows.clone()], rows.map(|row| row..row + 1).collect()] {
                    let mut values = Vec::new();
                    for part in parts {
                        let read = tensor.read(name, part).unwrap();
                        let mut widened = vec![0.0; read.len() / tensor.encoding().bytes];
                        tensor.encoding().widen(&read, &mut widened);
                        values.extend(widened);
                    }
                    assert_eq!(values, wanted, "{file} {name}");
                }
            }
            assert_eq!(checkpoint.tensors.len(), 10);
        }
    }

    /// An archive with these members.
    fn archive(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in members {
            let options = SimpleFileOptions::default().compression_method(method);
            archive.start_file(format!("archive/{name}"), options).unwrap();
            archive.write_all(content).unwrap();
        }
        archive.finish().unwrap().into_inner()
    }

    fn message(content: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pytorch_model.bin");
        std::fs::write(&path, content).unwrap();
        open(&path).err().unwrap().to_string()
    }

    #[test]
    fn a_pickle_that_is_no_dictionary_of_tensors_is_refused() {
        let pickled = |program: &[u8]| archive(&[("data.pkl", program)], CompressionMethod::Stored);
        let system = b"\x80\x02cposix\nsystem\nX\x02\0\0\0id\x85R.";
        // Each tuple holds the previous one twice. A copy or a printout would have 2^40 values.
        let doubling: Vec<u8> = [b"\x80\x02)".as_slice(), &b"q\0h\0\x86".repeat(40), b"."].concat();
        let pile: Vec<u8> = [b"\x80\x02".as_slice(), &b"N".repeat(100_000), b"."].concat();
        let storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ";
        let marked = |rest: &[u8], marks: &[u8]| {
            let start = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(";
            let program = [start.as_slice(), storage, rest, b"\x89}", marks, b"tRs."].concat();
            archive(&[("data.pkl", &program), ("data/0", &[0; 16])], CompressionMethod::Stored)
        };
        let tensor = |rest: &[u8]| marked(rest, b"");
        let whole = std::fs::read(fixture("zip.bin")).unwrap();
        let old = std::fs::read(fixture("legacy.bin")).unwrap();
        let table: Vec<(&str, Vec<u8>, &str)> = vec![
            ("code", pickled(system), "calls `posix.system`"),
            ("a whole module", std::fs::read(fixture("module.bin")).unwrap(), "save `model.state_dict()`"),
            (
                "a view larger than its storage",
                std::fs::read(fixture("expanded.bin")).unwrap(),
                "does not fit",
            ),
            ("doubling tuples", pickled(&doubling), "nests tuples"),
            ("a pile", pickled(&pile), "piles up more values"),
            ("no tensors", pickled(b"\x80\x02}."), "not hold a dictionary of tensors"),
            ("a long text", pickled(b"\x80\x02X\xff\xff\xff\xff"), "breaks off"),
            ("nothing", pickled(b""), "breaks off"),
            ("no end", pickled(b"\x80\x02}"), "breaks off"),
            ("an empty stack", pickled(b"\x80\x02R."), "not a valid program"),
            ("a newer instruction", pickled(b"\x80\x04\x95"), "instruction 0x95"),
            ("an offset beyond", tensor(b"K\x05K\x04\x85K\x01\x85"), "does not fit its storage"),
            ("a stride beyond", tensor(b"K\x00K\x02\x85K\x04\x85"), "reaches beyond"),
            ("a stride and no dimension", tensor(b"K\x00)K\x04\x85"), "strides"),
            ("a shape beyond", tensor(b"K\x00K\x05\x85K\x01\x85"), "reaches beyond"),
            (
                "an endless shape",
                tensor(b"K\x00J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x87K\x00K\x00K\x00\x87"),
                "does not fit",
            ),
            (
                "a tensor whose values are negated",
                marked(b"K\x00K\x04\x85K\x01\x85", b"}X\x03\0\0\0neg\x88s"),
                "tensor with marks",
            ),
            ("a negative shape", tensor(b"K\x00J\xff\xff\xff\xff\x85K\x01\x85"), "sizes are not numbers"),
            (
                "no values",
                archive(&[("data.pkl", b"\x80\x02}.")], CompressionMethod::Stored),
                "not hold a dictionary",
            ),
            ("no pickle", archive(&[("x", b"")], CompressionMethod::Stored), "no `data.pkl`"),
            ("cut archive", whole[..whole.len() - 30].to_vec(), "zip archive is not readable"),
            ("cut old file", old[..old.len() - 1].to_vec(), "end beyond the end of the file"),
            ("old file without values", old[..600].to_vec(), "breaks off"),
        ];
        for (row, content, part) in table {
            let message = message(&content);
            assert!(message.contains(part) && message.contains("pytorch_model.bin"), "{row}: {message}");
        }
        let mut flagged = archive(&[("data.pkl", b"\x80\x02}.")], CompressionMethod::Stored);
        // The compression method, in the member's own header and in the archive's directory.
        let list = flagged.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
        flagged[8] = 8;
        flagged[list + 10] = 8;
        assert!(message(&flagged).contains("compressed or encrypted"), "{}", message(&flagged));
    }
}

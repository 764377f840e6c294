//! The safetensors format: eight bytes with the length of a header, the header in JSON, then the values.

use crate::{CheckpointError, Source, Tensor, encoding::Encoding, insert, tensor::ByteRange};
use safetensors::tensor::Metadata;
use std::{collections::BTreeMap, sync::Arc};

/// The first eight bytes hold the length of the header, little-endian.
const LENGTH_BYTES: u64 = 8;
/// The longest header, in bytes, as the format defines it.
const MAX_HEADER: u64 = 100_000_000;

pub(crate) fn tensors(source: &Arc<Source>) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    let actual = source.length;
    let Ok(length) = <[u8; LENGTH_BYTES as usize]>::try_from(source.start(LENGTH_BYTES)?) else {
        return Err(source.damaged(format!("it has only {actual} bytes, too few for a safetensors header")));
    };
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(source.damaged("it does not start with a safetensors header"));
    }
    let start = LENGTH_BYTES + length;
    let wrong_length = |expected: u64| {
        CheckpointError::Refused(format!(
            "{} has {actual} bytes where its header promises {expected}: delete it and download it again",
            source.path.display()
        ))
    };
    if actual < start {
        return Err(wrong_length(start));
    }
    let header = source.read(LENGTH_BYTES, length as usize)?;
    // Deserializing checks that the tensors follow each other without gaps and that each has the bytes of its
    // shape and type.
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|error| source.damaged(format!("its safetensors header is not readable: {error}")))?;
    let expected = start.saturating_add(metadata.data_len() as u64);
    if actual != expected {
        return Err(wrong_length(expected));
    }
    let mut tensors = BTreeMap::new();
    for (name, info) in metadata.tensors() {
        let kind = format!("{:?}", info.dtype);
        let Some(encoding) = Encoding::named(&kind) else {
            return Err(source.unsupported(format!("the tensor `{name}` has the unknown type {kind}")));
        };
        let (first, end) = info.data_offsets;
        let place = ByteRange { start: start + first as u64, end: start + end as u64 };
        let tensor = Tensor::new(source, &name, place, encoding, info.shape.clone())?;
        insert(&mut tensors, name, tensor)?;
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use crate::open;

    #[test]
    fn a_file_that_is_not_whole_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let header = br#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
        let whole = [&(header.len() as u64).to_le_bytes(), header.as_slice(), &[0; 16]].concat();
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(open(&path).unwrap().tensors["w"].shape(), [2, 2]);
        let longer = [whole.as_slice(), &[0]].concat();
        let (short, promised) = (&whole[..whole.len() - 1], "header promises");
        let table: [(&[u8], &str); 5] = [
            (short, promised),
            (&longer, promised),
            (&whole[..20], promised),
            (&whole[..3], "only 3 bytes"),
            (&[0xff; 16], "does not start with a safetensors header"),
        ];
        for (content, part) in table {
            std::fs::write(&path, content).unwrap();
            let message = open(&path).err().unwrap().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}

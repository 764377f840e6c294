#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
use super::*;

const U32: u32 = 4;
const TEXT: u32 = 8;
const LIST: u32 = 9;

/// Builds the bytes of a file, part by part.
#[derive(Default, Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn header(version: u32, tensors: u64, metadata: u64) -> Self {
        Self(MAGIC.to_vec()).u32(version).u64(tensors).u64(metadata)
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn text(self, text: &str) -> Self {
        let mut longer = self.u64(text.len() as u64);
        longer.0.extend(text.as_bytes());
        longer
    }

    fn info(self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
        let named = self.text(name).u32(shape.len() as u32);
        shape.iter().fold(named, |bytes, size| bytes.u64(*size)).u32(kind).u64(offset)
    }

    /// Zeros up to the next multiple of 32, then the bytes of the tensors.
    fn values(mut self, length: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + length, 0);
        self.0
    }
}

fn opened(content: &[u8]) -> Result<File, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, content).unwrap();
    File::open(&path).map_err(|error| error.to_string())
}

#[test]
fn what_a_file_says_is_read_and_its_tensors_are_where_it_says() {
    let content = Bytes::header(3, 2, 2)
        .text("general.architecture")
        .u32(TEXT)
        .text("qwen3")
        .text("numbers")
        .u32(LIST)
        .u32(U32)
        .u64(2)
        .u32(7)
        .u32(9)
        .info("a", &[2, 3], 0, 0)
        .info("b", &[32], 8, 32)
        .values(32 + 34);
    let file = opened(&content).unwrap();
    assert_eq!((file.architecture(), file.metadata.numbers("numbers")), ("qwen3", Some(vec![7, 9])));
    assert_eq!((file.shape("a"), file.shape("b")), (Some([3, 2].as_slice()), Some([32].as_slice())));
    assert!(opened(&content[..content.len() - 1]).unwrap_err().contains("`b`"));
}

#[test]
fn a_matrix_of_one_row_may_be_written_as_a_vector() {
    for shape in [&[8][..], &[8, 1]] {
        let content = Bytes::header(3, 2, 0).info("cls.output.weight", shape, 0, 0);
        let file = opened(&content.info("other.weight", &[8], 0, 32).values(64)).unwrap();
        assert_eq!(file.shape("cls.output.weight"), Some([1, 8].as_slice()));
        assert_eq!(file.shape("other.weight"), Some([8].as_slice()));
    }
}

#[test]
fn counts_and_places_that_cannot_be_are_refused_before_memory_is_taken() {
    let one = |shape: &[u64], kind, offset| Bytes::header(3, 1, 0).info("w", shape, kind, offset).values(64);
    let value = |name: &str, kind: u32| Bytes::header(3, 0, 1).text(name).u32(kind);
    let alignment = |number| value("general.alignment", U32).u32(number).values(0);
    let twice = || Bytes::header(3, 0, 2).text("x").u32(U32).u32(1).text("x").u32(U32).u32(1).values(0);
    let tensors_twice = || Bytes::header(3, 2, 0).info("w", &[8], 0, 0).info("w", &[8], 0, 32).values(64);
    let table = [
        ("version 1", Bytes::header(1, 0, 0).0, "GGUF version is 1;"),
        ("big-endian", Bytes::header(3_u32.swap_bytes(), 0, 0).0, "big-endian"),
        ("only a magic number", MAGIC.to_vec(), "ends at byte 4"),
        ("tensors without end", Bytes::header(3, u64::MAX, 0).0, "18446744073709551615 tensors"),
        ("metadata without end", Bytes::header(3, 0, 1 << 40).0, "1099511627776 metadata"),
        ("more tensors than there are", Bytes::header(3, 1 << 20, 0).0, "ends at byte"),
        ("a name of gigabytes", Bytes::header(3, 0, 1).u64(1 << 33).0, "claims to have 8589934592 bytes"),
        ("a text of gigabytes", value("x", TEXT).u64(1 << 33).0, "claims to have 8589934592 bytes"),
        ("a text longer than the file", value("x", TEXT).u64(1 << 20).0, "ends at byte"),
        (
            "a list without end",
            value("x", LIST).u32(U32).u64(u64::MAX).0,
            "a list of 18446744073709551615 items",
        ),
        ("texts without end", value("x", LIST).u32(TEXT).u64(1 << 40).0, "a list of 1099511627776 items"),
        ("a list of lists", value("x", LIST).u32(LIST).u64(1).0, "a list of lists"),
        ("an unknown kind of value", value("x", 13).u64(0).0, "unknown type 13"),
        ("metadata twice", twice(), "metadata `x` twice"),
        (
            "a text for a number",
            value("llama.pooling_type", TEXT).text("mean").0,
            "`llama.pooling_type` are not a whole number",
        ),
        ("a number for a text", value("llama.rope.scaling.type", U32).u32(1).0, "are not a text"),
        ("a number for a switch", value("bert.attention.causal", U32).u32(1).0, "are not true or false"),
        ("a text for a base", value("gemma3.rope.freq_base_swa", TEXT).text("1").0, "are not a number"),
        (
            "a text for labels",
            value("bert.classifier.output_labels", TEXT).text("a").0,
            "are not a list of texts",
        ),
        ("alignment 0", alignment(0), "not a power of two"),
        ("alignment 48", alignment(48), "not a power of two"),
        ("alignment of gigabytes", alignment(1 << 31), "not a power of two"),
        ("five dimensions", one(&[1; 5], 0, 0), "5 dimensions"),
        ("an unknown type", one(&[8], 99, 0), "unknown type 99"),
        ("a type that is gone", one(&[32], 4, 0), "unknown type 4"),
        ("half a block", one(&[16], 8, 0), "block size of Q8_0"),
        ("a shape that overflows", one(&[1 << 40, 1 << 40], 0, 0), "does not fit its place"),
        ("a size that is negative", one(&[1 << 63], 0, 0), "impossible shape"),
        (
            "a shape that overflows with nothing in it",
            one(&[0, 1 << 40, 1 << 40], 0, 0),
            "does not fit its place",
        ),
        ("values behind the end", one(&[16], 0, 32), "does not fit its place"),
        ("a place behind the end", one(&[1], 0, 1 << 40), "begins beyond the end"),
        ("a place that overflows", one(&[1], 0, u64::MAX - 31), "begins beyond the end"),
        ("a place that is not aligned", one(&[1], 0, 4), "is not aligned"),
        ("tensors twice", tensors_twice(), "tensor `w` twice"),
    ];
    for (row, content, part) in table {
        let message = opened(&content).unwrap_err();
        assert!(message.contains(part) && message.contains("model.gguf"), "{row}: {message}");
    }
}

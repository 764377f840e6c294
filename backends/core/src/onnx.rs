//! Reads the facts that an ONNX file states about itself, without its values.
//!
//! Input: the file, a protobuf message `ModelProto` (<https://onnx.ai/onnx/repo-docs/IR.html>). Output: a
//! [`Graph`]. What must hold: whatever the file says, only names of bounded length are held in memory; a
//! message that does not end at its stated length is an error; values are skipped.

use crate::DType;
use std::{
    collections::BTreeSet,
    io::{self, BufReader, Read, Seek, SeekFrom},
};

/// The longest accepted name, in bytes.
const MAX_NAME: u64 = 1024;
/// The most external files of values, and the most outputs.
const MAX_NAMES: usize = 1024;
/// The deepest nesting of graphs: branches and loops have graphs of their own.
const MAX_DEPTH: usize = 16;

/// Operators that multiply 8-bit integers, or quantise the inputs of such operators.
const INTEGER: [&str; 11] = [
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QAttention",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
];
/// Operators that compute the range of a whole tensor at run time. If the tensor holds several texts, the
/// rounding of one depends on the others.
const DYNAMIC: [&str; 3] = ["DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"];

/// The facts about a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// The names of its outputs.
    pub outputs: Vec<String>,
    /// The files next to it that hold values, by the names in the graph. The names are arbitrary, untrusted
    /// text.
    pub values: BTreeSet<String>,
    /// The arithmetic: int8 if the graph multiplies 8-bit integers, otherwise the type of most of its values.
    pub dtype: DType,
    /// Whether the rounding of a text depends on the texts in the same batch.
    pub is_shared: bool,
}

/// Reads a graph from a file.
///
/// # Errors
///
/// A reason in words if the file cannot be read or is not a complete graph.
pub fn read_graph(file: impl Read + Seek) -> Result<Graph, String> {
    let mut reader = GraphReader::new(file).map_err(|error| error.to_string())?;
    reader.model().map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends in the middle of a value".to_owned(),
        _ => error.to_string(),
    })
}

/// A field's value: a number, or the length of the bytes that come next.
enum FieldValue {
    Number(u64),
    Bytes(u64),
    /// A number of 4 or 8 bytes. This reader never needs one.
    Fixed,
}

/// A message that is read for the messages in it.
#[derive(Clone, Copy)]
enum OnnxMessage {
    Model,
    /// A function of the model, which contains only nodes.
    Function,
    Graph,
    Node,
    Attribute,
    /// The values of a sparse tensor, and their indices.
    SparseTensor,
}

/// The facts found so far.
#[derive(Default)]
struct Found {
    is_graph: bool,
    outputs: Vec<String>,
    values: BTreeSet<String>,
    /// Bytes of values stored as float32, float16 and bfloat16.
    sizes: [u64; 3],
    is_integer: bool,
    is_dynamic: bool,
}

struct GraphReader<R> {
    file: BufReader<R>,
    position: u64,
    length: u64,
    found: Found,
}

impl<R: Read + Seek> GraphReader<R> {
    fn new(file: R) -> io::Result<Self> {
        let mut file = BufReader::new(file);
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { file, position: 0, length, found: Found::default() })
    }

    fn model(&mut self) -> io::Result<Graph> {
        self.message(OnnxMessage::Model, self.length, 0)?;
        let found = &mut self.found;
        if !found.is_graph || found.outputs.is_empty() {
            return Err(damaged("it holds no graph with outputs"));
        }
        let largest = found.sizes.iter().copied().max().unwrap_or_default();
        let dtype = match found.sizes {
            _ if found.is_integer => DType::Int8,
            [float, _, _] if float == largest => DType::Float32,
            [_, half, _] if half == largest => DType::Float16,
            _ => DType::BFloat16,
        };
        let (outputs, values) = (std::mem::take(&mut found.outputs), std::mem::take(&mut found.values));
        Ok(Graph { outputs, values, dtype, is_shared: found.is_dynamic })
    }

    /// Reads a message within `depth` graphs that are parts of other graphs.
    fn message(&mut self, message: OnnxMessage, length: u64, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(damaged("its graphs are nested too deep"));
        }
        let end = self.end(length)?;
        while let Some((field, length)) = self.field_of_bytes(end)? {
            match (message, field) {
                (OnnxMessage::Model, 7) => {
                    self.found.is_graph = true;
                    self.message(OnnxMessage::Graph, length, depth)?;
                }
                (OnnxMessage::Model, 25) => self.message(OnnxMessage::Function, length, depth)?,
                (OnnxMessage::Graph, 1) | (OnnxMessage::Function, 7) => {
                    self.message(OnnxMessage::Node, length, depth)?;
                }
                (OnnxMessage::Graph, 12) if depth == 0 => {
                    let [name] = self.texts(length, [1])?;
                    self.found.outputs.push(name);
                    if self.found.outputs.len() > MAX_NAMES {
                        return Err(damaged("it has too many outputs"));
                    }
                }
                (OnnxMessage::Graph, 15) => self.message(OnnxMessage::SparseTensor, length, depth)?,
                (OnnxMessage::Node, 4) => {
                    let operator = self.text(length)?;
                    self.found.is_integer |= INTEGER.contains(&operator.as_str());
                    self.found.is_dynamic |= DYNAMIC.contains(&operator.as_str());
                }
                (OnnxMessage::Node, 5) => self.message(OnnxMessage::Attribute, length, depth)?,
                (OnnxMessage::Attribute, 6 | 11) => self.message(OnnxMessage::Graph, length, depth + 1)?,
                (OnnxMessage::Graph, 5)
                | (OnnxMessage::SparseTensor, 1 | 2)
                | (OnnxMessage::Attribute, 5 | 10) => {
                    self.tensor(length)?;
                }
                _ => self.advance(length)?,
            }
        }
        Ok(())
    }

    fn tensor(&mut self, length: u64) -> io::Result<()> {
        let end = self.end(length)?;
        let (mut values, mut kind) = (1_u64, 0);
        while let Some((field, value)) = self.field(end)? {
            match (field, value) {
                (1, FieldValue::Number(size)) => values = values.saturating_mul(size),
                // The dimensions as one packed run of numbers.
                (1, FieldValue::Bytes(length)) => {
                    let end = self.end(length)?;
                    while self.position < end {
                        values = values.saturating_mul(self.number(end)?);
                    }
                }
                (2, FieldValue::Number(number)) => kind = number,
                (13, FieldValue::Bytes(length)) => self.place_of_values(length)?,
                (_, FieldValue::Bytes(length)) => self.advance(length)?,
                (_, FieldValue::Number(_) | FieldValue::Fixed) => {}
            }
        }
        // The numbers of `TensorProto.DataType`.
        if let Some((slot, size)) = [(1, 0, 4), (10, 1, 2), (16, 2, 2)]
            .into_iter()
            .find_map(|(known, slot, size)| (known == kind).then_some((slot, size)))
        {
            self.found.sizes[slot] = self.found.sizes[slot].saturating_add(values.saturating_mul(size));
        }
        Ok(())
    }

    /// An entry of `external_data`: `location` names the file.
    fn place_of_values(&mut self, length: u64) -> io::Result<()> {
        let [key, place] = self.texts(length, [1, 2])?;
        if key == "location" {
            self.found.values.insert(place);
        }
        if self.found.values.len() > MAX_NAMES {
            return Err(damaged("it names too many files of values"));
        }
        Ok(())
    }

    /// The texts in these fields of a message; empty without such a field.
    fn texts<const COUNT: usize>(
        &mut self,
        length: u64,
        fields: [u64; COUNT],
    ) -> io::Result<[String; COUNT]> {
        let end = self.end(length)?;
        let mut texts = [const { String::new() }; COUNT];
        while let Some((field, length)) = self.field_of_bytes(end)? {
            match fields.iter().position(|wanted| *wanted == field) {
                Some(place) => texts[place] = self.text(length)?,
                None => self.advance(length)?,
            }
        }
        Ok(texts)
    }

    /// The next field of bytes, with its number and their length. Numbers before it are passed over.
    fn field_of_bytes(&mut self, end: u64) -> io::Result<Option<(u64, u64)>> {
        while let Some((field, value)) = self.field(end)? {
            if let FieldValue::Bytes(length) = value {
                return Ok(Some((field, length)));
            }
        }
        Ok(None)
    }

    /// The next field, with its number, of a message that ends at `end`. `None` at the end.
    fn field(&mut self, end: u64) -> io::Result<Option<(u64, FieldValue)>> {
        if self.position == end {
            return Ok(None);
        }
        let tag = self.number(end)?;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.number(end)?),
            1 => self.fixed(8, end)?,
            2 => {
                let length = self.number(end)?;
                if length > end - self.position {
                    return Err(damaged("a value is longer than its enclosing message"));
                }
                FieldValue::Bytes(length)
            }
            5 => self.fixed(4, end)?,
            _ => return Err(damaged("it does not have the form of an ONNX file")),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn fixed(&mut self, size: u64, end: u64) -> io::Result<FieldValue> {
        if size > end - self.position {
            return Err(damaged("a value is longer than its enclosing message"));
        }
        self.advance(size)?;
        Ok(FieldValue::Fixed)
    }

    /// A varint: up to ten bytes with seven bits each, lowest bits first.
    fn number(&mut self, end: u64) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            if self.position >= end {
                return Err(damaged("a number is longer than its enclosing message"));
            }
            let mut byte = [0];
            self.file.read_exact(&mut byte)?;
            self.position += 1;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged("a number has more than 64 bits"))
    }

    fn text(&mut self, length: u64) -> io::Result<String> {
        if length > MAX_NAME {
            return Err(damaged("a name is too long"));
        }
        let mut text = vec![0; length as usize];
        self.file.read_exact(&mut text)?;
        self.position += length;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn advance(&mut self, bytes: u64) -> io::Result<()> {
        self.position += bytes;
        self.file.seek_relative(bytes as i64)
    }

    /// The end of a message of `length` bytes that begins here. [`GraphReader::field`] has checked the length
    /// against the enclosing message.
    fn end(&self, length: u64) -> io::Result<u64> {
        let end = self.position.checked_add(length).filter(|end| *end <= self.length);
        end.ok_or_else(|| damaged("a value is longer than its enclosing message"))
    }
}

fn damaged(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::io::Cursor;

    fn number(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
        [number(field << 3 | 2), number(content.len() as u64), content.to_vec()].concat()
    }

    fn tensor(kind: u64, dimensions: &[u64], place: Option<&str>) -> Vec<u8> {
        let dimensions: Vec<u8> =
            dimensions.iter().flat_map(|&size| [number(1 << 3), number(size)].concat()).collect();
        let place = place.map(|place| {
            let entry = |key: &str, value: &str| {
                bytes(13, &[bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat())
            };
            [entry("location", place), entry("offset", "4096")].concat()
        });
        [dimensions, number(2 << 3), number(kind), bytes(9, b"raw"), place.unwrap_or_default()].concat()
    }

    fn node(operator: &str) -> Vec<u8> {
        bytes(1, &bytes(4, operator.as_bytes()))
    }

    fn model(graph: &[Vec<u8>]) -> Vec<u8> {
        let output = bytes(12, &[bytes(1, b"logits"), bytes(2, b"type")].concat());
        [number(1 << 3), number(10), bytes(7, &[graph.concat(), output].concat())].concat()
    }

    fn read(file: &[u8]) -> Result<Graph, String> {
        read_graph(Cursor::new(file))
    }

    #[test]
    fn arithmetic_and_files_are_found_wherever_they_are() {
        let inner = |nodes: Vec<u8>| bytes(1, &[bytes(4, b"If"), bytes(5, &bytes(6, &nodes))].concat());
        let (float, half) = (bytes(5, &tensor(1, &[8, 8], None)), bytes(5, &tensor(10, &[20, 20], None)));
        let (bfloat, whole) = (bytes(5, &tensor(16, &[300, 2], None)), bytes(5, &tensor(7, &[999], None)));
        let table: [(&[Vec<u8>], DType, bool); 9] = [
            (&[node("MatMul"), float.clone()], DType::Float32, false),
            (&[], DType::Float32, false),
            (&[float.clone(), half.clone(), whole], DType::Float16, false),
            (&[float.clone(), half, bfloat], DType::BFloat16, false),
            (&[float.clone(), node("MatMulInteger"), node("DynamicQuantizeLinear")], DType::Int8, true),
            (&[node("QLinearMatMul"), node("QuantizeLinear")], DType::Int8, false),
            (&[node("DequantizeLinear"), float], DType::Float32, false),
            (&[inner(node("DynamicQuantizeMatMul"))], DType::Int8, true),
            (&[inner(inner(node("QGemm")))], DType::Int8, false),
        ];
        for (index, (graph, dtype, is_shared)) in table.into_iter().enumerate() {
            let found = read(&model(graph)).unwrap();
            assert_eq!((found.dtype, found.is_shared), (dtype, is_shared), "row {index}");
            assert_eq!((found.outputs, found.values.len()), (vec!["logits".to_owned()], 0));
        }
        let external = [
            bytes(5, &tensor(1, &[4], Some("model.onnx_data"))),
            bytes(1, &bytes(5, &bytes(5, &tensor(1, &[4], Some("../b"))))),
            bytes(15, &bytes(1, &tensor(1, &[4], Some("c")))),
        ];
        let found = read(&model(&external)).unwrap();
        assert_eq!(found.values.into_iter().collect::<Vec<_>>(), ["../b", "c", "model.onnx_data"]);
        // Dimensions as one packed run, with a product that overflows.
        let run = bytes(
            5,
            &[bytes(1, &[number(u64::MAX), number(3)].concat()), number(2 << 3), number(10)].concat(),
        );
        assert_eq!(read(&model(&[run])).unwrap().dtype, DType::Float16);
    }

    #[test]
    fn a_file_that_is_cut_or_nests_for_ever_is_refused() {
        let whole = model(&[node("MatMul"), bytes(5, &tensor(1, &[4], Some("data")))]);
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "{end} of {} bytes", whole.len());
        }
        let mut graph = node("MatMul");
        for _ in 0..20 {
            graph = bytes(1, &bytes(5, &bytes(6, &graph)));
        }
        let long = bytes(5, &bytes(13, &bytes(2, &[b'x'; 2000])));
        for (file, part) in [
            (model(&[graph]), "nested too deep"),
            (model(&[long]), "a name is too long"),
            (b"version https://git-lfs".to_vec(), "form of an ONNX file"),
            (vec![0xff; 40], "more than 64 bits"),
            (Vec::new(), "no graph"),
            (bytes(7, b""), "no graph"),
        ] {
            let message = read(&file).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn changed_bytes_never_end_in_a_panic() {
        let whole = model(&[node("MatMulInteger"), bytes(5, &tensor(1, &[4, 4], Some("data")))]);
        let mut random = StdRng::seed_from_u64(9);
        for _ in 0..20_000 {
            let mut file = whole.clone();
            for _ in 0..random.random_range(1..4) {
                let place = random.random_range(0..file.len());
                file[place] = random.random();
            }
            drop(read(&file));
        }
    }
}

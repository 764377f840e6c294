//! The frames between the router and its worker, and the messages in them.
//!
//! A frame is the length of its header and the length of its payload (two little-endian `u32`), then the
//! header (JSON), then the payload (arrays of little-endian 4-byte values). What must hold: a length is
//! checked before memory is taken for it; bytes that do not form a frame, and messages that do not fit the
//! request, are errors.
//!
//! | from | `kind` | payload |
//! |---|---|---|
//! | worker | `hello`: its version of this protocol | none |
//! | router | `load`: the folder and how to load it | none |
//! | worker | `loaded`: where it computes, and how many values it gives | none |
//! | worker | `refused`: one sentence | none |
//! | router | `batch`: a number, and texts as a matrix, padded on the right | `u32`, each `[texts, width]`: ids, 1 for tokens and 0 for padding, token types |
//! | worker | `values`: the same number, two shapes | `f32`: the texts' scores or vectors, then the vectors of all tokens |
//! | worker | `failed`: the same number, one sentence; the worker goes on | none |

use serde::{Deserialize, Serialize};
use std::{
    fmt,
    io::{self, Read, Write},
};
use text_embeddings_backend_core::Probe;

/// The version of this protocol. Both sides must use the same.
pub(crate) const VERSION: u32 = 1;
/// The most bytes of a header: far more than the longest message, which is `load` with its probes.
const MAX_HEADER: usize = 1 << 16;
/// The most characters of a worker's message that the user sees.
const MAX_REASON: usize = 4000;

/// Messages from the router.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Request<'a> {
    /// Load a model.
    Load(Load<'a>),
    /// Compute a batch.
    Batch {
        /// The number of the batch. The answer repeats it.
        batch: u64,
        /// The number of rows of the matrices in the payload.
        texts: usize,
        /// The number of columns of these matrices.
        width: usize,
        /// Whether the vectors of the tokens are wanted.
        tokens: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Load<'a> {
    /// The model's folder.
    pub(crate) model: &'a str,
    /// `embedding` or `scores`.
    pub(crate) task: &'a str,
    /// `float32`, `bfloat16` or `float16`.
    pub(crate) dtype: String,
    /// The number of compute threads on the CPU.
    pub(crate) threads: usize,
    /// Whether Python files of the model may run.
    pub(crate) trust_remote_code: bool,
    /// The pooling of an embedding model whose files do not name one.
    pub(crate) pooling: Option<&'a str>,
    /// Texts with their ids from the router's tokenizer.
    pub(crate) probes: Vec<EncodedTexts<'a>>,
}

/// A text or a pair with its ids. The worker compares the router's tokenizer with the model's own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct EncodedTexts<'a> {
    texts: &'a [String],
    input_ids: &'a [u32],
    token_type_ids: Vec<u32>,
}

impl<'a> From<&'a Probe> for EncodedTexts<'a> {
    fn from(Probe { texts, ids, second }: &'a Probe) -> Self {
        let first = second.unwrap_or(ids.len()).min(ids.len());
        let token_type_ids = [vec![0; first], vec![1; ids.len() - first]].concat();
        Self { texts, input_ids: ids, token_type_ids }
    }
}

/// Messages from the worker.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Reply {
    /// The worker runs and can read requests.
    Hello {
        /// Its version of this protocol.
        version: u32,
        python: String,
    },
    /// The model is loaded.
    Loaded(Facts),
    /// The model cannot be served.
    Refused {
        /// One sentence.
        reason: String,
    },
    /// The values of a batch.
    Values {
        /// The number of the batch.
        batch: u64,
        /// The number of texts, and of values per text.
        whole: [usize; 2],
        /// The number of tokens, and of values per token; zeros if no token vectors are wanted.
        tokens: [usize; 2],
    },
    /// A batch failed. The worker continues.
    Failed {
        /// The number of the batch.
        batch: u64,
        /// One sentence.
        reason: String,
        /// Whether the device's memory did not suffice.
        #[serde(default)]
        out_of_memory: bool,
    },
}

/// The facts about the loaded model. They are the same after each start.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Facts {
    /// `cpu` or `cuda`.
    pub(crate) device: String,
    pub(crate) dtype: String,
    /// The number of values per text: scores, or the length of its vector.
    pub(crate) width: usize,
    /// The length of a token's vector; zero if the model has no token vectors.
    pub(crate) token_width: usize,
    /// The token that pads the matrices.
    pub(crate) padding: u32,
    /// The versions of the Python packages.
    pub(crate) versions: String,
}

/// The reason why a frame could not be read or written.
#[derive(Debug)]
pub(crate) enum FrameError {
    /// The other end closed the connection.
    Ended,
    /// No answer came in time.
    Late,
    /// The connection failed.
    Failed(io::Error),
    /// The received bytes do not form a frame, or a frame is too long.
    Wrong(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the worker ended"),
            Self::Late => f.write_str("the worker did not answer in time"),
            Self::Failed(error) => write!(f, "the connection to the worker failed: {error}"),
            Self::Wrong(what) => write!(f, "the worker sent {what}"),
        }
    }
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Self::Ended
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Late,
            _ => Self::Failed(error),
        }
    }
}

pub(crate) fn write(to: &mut impl Write, request: &Request<'_>, payload: &[u32]) -> Result<(), FrameError> {
    let header = serde_json::to_vec(request).map_err(|error| FrameError::Failed(error.into()))?;
    let lengths = (u32::try_from(header.len()), u32::try_from(size_of_val(payload)));
    let (Ok(header_length), Ok(payload_length)) = lengths else {
        return Err(FrameError::Failed(io::Error::other("a batch is too long for a frame")));
    };
    let mut bytes = Vec::with_capacity(2 * size_of::<u32>() + header.len() + size_of_val(payload));
    bytes.extend(header_length.to_le_bytes());
    bytes.extend(payload_length.to_le_bytes());
    bytes.extend(header);
    bytes.extend(payload.iter().flat_map(|value| value.to_le_bytes()));
    Ok(to.write_all(&bytes)?)
}

/// Reads a frame with at most `max_values` values in its payload.
pub(crate) fn read(from: &mut impl Read, max_values: usize) -> Result<(Reply, Vec<f32>), FrameError> {
    let mut lengths = [[0; 4]; 2];
    for length in &mut lengths {
        from.read_exact(length)?;
    }
    let [header, payload] = lengths.map(|length| u32::from_le_bytes(length) as usize);
    if header > MAX_HEADER {
        return Err(FrameError::Wrong(format!(
            "a header of {header} bytes, more than the limit of {MAX_HEADER}"
        )));
    }
    if payload % size_of::<f32>() != 0 || payload / size_of::<f32>() > max_values {
        let max_values = max_values * size_of::<f32>();
        return Err(FrameError::Wrong(format!(
            "a payload of {payload} bytes, more than the limit of {max_values}"
        )));
    }
    let mut text = vec![0; header];
    from.read_exact(&mut text)?;
    let reply = serde_json::from_slice(&text)
        .map_err(|error| FrameError::Wrong(format!("a header that is not a message: {error}")))?;
    let mut bytes = vec![0; payload];
    from.read_exact(&mut bytes)?;
    let values = bytes.chunks_exact(size_of::<f32>()).map(|bytes| {
        let mut value = [0; size_of::<f32>()];
        value.copy_from_slice(bytes);
        f32::from_le_bytes(value)
    });
    Ok((reply, values.collect()))
}

/// A message of the worker for the user, shortened and without control characters.
pub(crate) fn told(reason: &str) -> String {
    reason.chars().take(MAX_REASON).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn frame(header: &str, payload: &[u8]) -> Vec<u8> {
        let lengths = [header.len() as u32, payload.len() as u32].map(u32::to_le_bytes);
        [lengths.as_flattened(), header.as_bytes(), payload].concat()
    }

    #[test]
    fn a_frame_is_its_lengths_its_header_and_its_payload() {
        let mut bytes = Vec::new();
        let request = Request::Batch { batch: 7, texts: 1, width: 1, tokens: false };
        write(&mut bytes, &request, &[258, 1, 0]).unwrap();
        let header = r#"{"kind":"batch","batch":7,"texts":1,"width":1,"tokens":false}"#;
        let payload = [2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes, frame(header, &payload));
        let values = frame(
            r#"{"kind":"values","batch":7,"whole":[1,2],"tokens":[0,0]}"#,
            &[0, 0, 128, 63, 0, 0, 0, 192],
        );
        let expected = Reply::Values { batch: 7, whole: [1, 2], tokens: [0, 0] };
        assert_eq!(read(&mut &values[..], 2).unwrap(), (expected, vec![1.0, -2.0]));
    }

    #[test]
    fn lengths_are_checked_before_memory_is_taken() {
        let refused = r#"{"kind":"refused","reason":"no"}"#;
        let table = [
            (vec![255, 255, 255, 255, 0, 0, 0, 0], "a header of 4294967295 bytes"),
            (vec![2, 0, 0, 0, 255, 255, 255, 255], "a payload of 4294967295 bytes"),
            (frame(refused, &[0; 12]), "a payload of 12 bytes, more than the limit of 8"),
            (frame(refused, &[0; 7]), "a payload of 7 bytes"),
            (frame("Hello", &[]), "a header that is not a message"),
            (frame(r#"{"kind":"unknown"}"#, &[]), "a header that is not a message"),
            (b"Loading weights: 100%".to_vec(), "a header of 1684107084 bytes"),
        ];
        for (bytes, expected) in table {
            let error = read(&mut &bytes[..], 2).unwrap_err().to_string();
            assert!(error.starts_with("the worker sent ") && error.contains(expected), "{error}");
        }
        for length in 0..frame(refused, &[0; 8]).len() {
            let error = read(&mut &frame(refused, &[0; 8])[..length], 2).unwrap_err();
            assert!(matches!(error, FrameError::Ended), "{length}: {error}");
        }
    }

    #[test]
    fn a_text_for_the_user_has_no_control_characters_and_an_end() {
        assert_eq!(told("a\nb\u{1b}[31m"), "a b [31m");
        assert_eq!(told(&"é".repeat(MAX_REASON + 1)).chars().count(), MAX_REASON);
    }
}

//! Fuzzes the reading of a worker's answers with arbitrary bytes.

use crate::{frame::Facts, worker};

/// Reads the bytes as the answer to a batch of two texts and three tokens.
///
/// # Panics
///
/// If the result has other values than were wanted, which is the bug to find.
pub fn answer(mut bytes: &[u8]) {
    let facts = Facts {
        device: "cpu".to_owned(),
        dtype: "float32".to_owned(),
        width: 2,
        token_width: 2,
        padding: 0,
        versions: String::new(),
    };
    for tokens in [0, 3] {
        let mut from = bytes;
        if let Ok(Ok(values)) = worker::answer(&mut from, &facts, 1, 2, tokens) {
            assert_eq!([values.whole.len(), values.tokens.len()], [4, 2 * tokens]);
        }
    }
    // Reads frame after frame, as from a worker that sends unrequested answers.
    while worker::answer(&mut bytes, &facts, 1, 2, 0).is_ok() {}
}

//! The messages of gRPC in a body, by the length before each of them.
//!
//! Input: a body's bytes, however they are cut. Output: the lengths of the messages that end in them. What
//! must hold: no byte is kept.

use bytes::Buf;

/// The number of bytes before a message of gRPC, which say whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The part of a message that has passed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PartialMessage {
    /// The number of its bytes that have passed.
    pub(crate) arrived: usize,
    /// The prefix, which has the message's length.
    prefix: [u8; PREFIX],
}

impl PartialMessage {
    /// Follows the messages in the next bytes. Returns the lengths of those that ended in them.
    pub(crate) fn follow(&mut self, mut bytes: &[u8]) -> Vec<usize> {
        let mut ended = Vec::new();
        while !bytes.is_empty() {
            if self.arrived < PREFIX {
                self.prefix[self.arrived] = bytes.get_u8();
                self.arrived += 1;
            }
            if self.arrived >= PREFIX {
                let missing = (PREFIX + self.length()).saturating_sub(self.arrived);
                let taken = missing.min(bytes.len());
                bytes.advance(taken);
                self.arrived += taken;
                if taken == missing {
                    ended.push(self.arrived);
                    *self = Self::default();
                }
            }
        }
        ended
    }

    fn length(&self) -> usize {
        let [_, length @ ..] = self.prefix;
        u32::from_be_bytes(length) as usize
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        bytes.resize(PREFIX + length, 7);
        bytes
    }

    #[test]
    fn messages_are_followed_however_they_are_cut() {
        let mut rng = StdRng::seed_from_u64(rand::rng().random());
        for _ in 0..200 {
            let lengths: Vec<usize> = (0..rng.random_range(0..8)).map(|_| rng.random_range(0..40)).collect();
            let bytes: Vec<u8> = lengths.iter().flat_map(|length| message(*length)).collect();
            let ends: Vec<usize> = lengths
                .iter()
                .scan(0, |end, length| {
                    *end += PREFIX + length;
                    Some(*end)
                })
                .collect();
            let (mut part, mut at) = (PartialMessage::default(), 0);
            while at < bytes.len() {
                let next = rng.random_range(at + 1..=bytes.len());
                let ended = part.follow(&bytes[at..next]);
                let expected = (0..lengths.len()).filter(|&index| at < ends[index] && ends[index] <= next);
                let expected: Vec<usize> = expected.map(|index| PREFIX + lengths[index]).collect();
                assert_eq!(ended, expected, "{lengths:?}");
                let begun = ends.iter().rev().find(|&&end| end <= next).copied().unwrap_or(0);
                assert_eq!(part.arrived, next - begun, "{lengths:?}");
                at = next;
            }
        }
    }
}

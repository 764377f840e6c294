//! The merges of a byte-pair vocabulary that states scores instead.
//!
//! `SentencePiece` joins the two neighbouring pieces whose joined piece has the highest score, again and
//! again. `tokenizers` wants the list of such pairs, best first: every way to split a piece into two others.

use std::collections::HashSet;

use serde_json::{Value, json};

/// The most bytes of a piece. Splitting a piece at each character takes time with the square of its length.
/// `SentencePiece` makes pieces of 16 characters unless asked for more.
const MAX_PIECE: usize = 512;

/// Two pieces, and the score of the piece that they make.
struct Merge<'p> {
    left: &'p str,
    right: &'p str,
    score: f64,
}

/// The merges, best first, from each piece's text, id and score, in the order of ids.
pub(super) fn of_scores<'p>(
    pieces: impl Iterator<Item = (&'p str, usize, f64)>,
) -> Result<Vec<Value>, String> {
    let pieces: Vec<_> = pieces.collect();
    if pieces.len() > 1 && pieces.iter().all(|(.., score)| score.total_cmp(&pieces[0].2).is_eq()) {
        return Err(
            "all its tokens have the same score (`tokenizer.ggml.scores`), so the order of merges is \
                    unknown: convert the model again from a folder with `tokenizer.model`"
                .to_owned(),
        );
    }
    let known: HashSet<&str> = pieces.iter().map(|&(piece, ..)| piece).collect();
    let mut merges = Vec::new();
    for &(piece, id, score) in &pieces {
        if piece.len() > MAX_PIECE {
            return Err(format!(
                "its token {id} has {} bytes: at most {MAX_PIECE} are supported in a vocabulary of the kind \"llama\"",
                piece.len()
            ));
        }
        for (place, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(place);
            if known.contains(left) && known.contains(right) {
                merges.push(Merge { left, right, score });
            }
        }
    }
    // Of several ways to the same piece, transformers prefers the longer left piece.
    merges.sort_by(|a, b| {
        let lengths = |merge: &Merge<'_>| [merge.left, merge.right].map(|piece| piece.chars().count());
        b.score.total_cmp(&a.score).then(lengths(b).cmp(&lengths(a)))
    });
    Ok(merges.iter().map(|merge| json!([merge.left, merge.right])).collect())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn every_split_into_two_pieces_is_a_merge_and_the_best_piece_comes_first() {
        let pieces = [("a", 0, -9.0), ("b", 1, -9.0), ("ab", 2, -2.0), ("aba", 3, -1.0), ("é", 4, 0.0)];
        let merges = of_scores(pieces.into_iter()).unwrap();
        assert_eq!(merges, [json!(["ab", "a"]), json!(["a", "b"])]);
    }

    #[test]
    fn scores_that_are_all_equal_are_refused() {
        let pieces = [("a", 0, -1000.0), ("b", 1, -1000.0), ("ab", 2, -1000.0)];
        assert!(of_scores(pieces.into_iter()).unwrap_err().contains("the same score"));
    }

    #[test]
    fn a_piece_that_would_take_long_to_split_is_refused() {
        let long = "x".repeat(MAX_PIECE + 1);
        assert!(
            of_scores([(long.as_str(), 7, 0.0)].into_iter()).unwrap_err().contains("token 7 has 513 bytes")
        );
        assert!(of_scores([(&long[1..], 7, 0.0)].into_iter()).unwrap().is_empty());
    }
}

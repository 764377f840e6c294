//! Distributes documents among prompts by the rule of jina-reranker-v3's own code (`rerank` in
//! `modeling.py`).
//!
//! Input: lengths in tokens. Output: the number of documents in the next prompt, and the number to drop or
//! cut if it is too long. What must hold: a prompt holds at least one document.

/// The most documents of a prompt, the most tokens of it, and the most tokens of a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) documents: usize,
    pub(super) tokens: usize,
    pub(super) document_tokens: usize,
}

impl Room {
    /// The number of the next documents, with these lengths, that the next prompt holds; at least one. Two
    /// copies of the query take a part of the capacity; the template is not counted. A prompt ends when a
    /// document of the greatest length might no longer fit.
    pub(super) fn documents_of(self, lengths: &[usize], query: usize) -> usize {
        let mut left = self.tokens.saturating_sub(2 * query);
        lengths
            .iter()
            .enumerate()
            .position(|(index, length)| {
                left = left.saturating_sub(*length);
                index + 1 >= self.documents || left <= self.document_tokens
            })
            .map_or(lengths.len(), |last| last + 1)
    }
}

/// The number of documents that stay, at least one, if the prompt has `excess` tokens too many. The authors'
/// code does not count the template, so its prompts may be a little longer than the positions allow.
pub(super) fn without(lengths: &[usize], excess: usize) -> usize {
    let mut gone = 0;
    let last = lengths
        .iter()
        .rposition(|length| {
            gone += length.max(&1);
            gone >= excess
        })
        .unwrap_or(0);
    last.max(1)
}

/// The tokens that remain of a query, which appears twice in the prompt, and of its only document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) query: usize,
    pub(super) document: usize,
}

/// Removes `excess` tokens from the document first, and then from the query. `None` if they do not have
/// enough tokens.
pub(super) fn cut(excess: usize, query: usize, document: usize) -> Option<Cut> {
    let of_document = excess.min(document);
    let of_query = (excess - of_document).div_ceil(2);
    Some(Cut { query: query.checked_sub(of_query)?, document: document - of_document })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_shared_out_as_in_the_authors_code() {
        let room = |documents, tokens, document_tokens| Room { documents, tokens, document_tokens };
        for (room, lengths, query, expected) in [
            (room(125, 131_072, 2048), vec![100; 125], 10, 125),
            (room(125, 131_072, 2048), vec![100; 126], 10, 125),
            (room(125, 131_072, 2048), vec![2048; 100], 512, 63),
            (room(125, 1000, 2048), vec![10; 5], 10, 1),
            (room(125, 100, 20), vec![20, 20, 20, 20, 20], 0, 4),
            (room(125, 100, 20), vec![20, 20, 19, 20, 20], 0, 5),
            (room(125, 100, 20), vec![20, 20, 20, 20, 20], 10, 3),
            (room(3, 100, 20), vec![1; 9], 0, 3),
            (room(3, 0, 20), vec![5; 9], 9, 1),
            (room(3, 100, 20), vec![1; 2], 0, 2),
        ] {
            assert_eq!(room.documents_of(&lengths, query), expected, "{room:?} {lengths:?} {query}");
        }
    }

    #[test]
    fn the_last_documents_go_where_a_prompt_is_too_long_and_one_always_stays() {
        for (lengths, excess, expected) in [
            (&[10, 10, 10][..], 1, 2),
            (&[10, 10, 10], 10, 2),
            (&[10, 10, 10], 11, 1),
            (&[10, 10, 10], 99, 1),
            (&[10, 0, 0], 2, 1),
            (&[10, 0, 0], 1, 2),
        ] {
            assert_eq!(without(lengths, excess), expected, "{lengths:?} {excess}");
        }
    }

    #[test]
    fn the_document_is_cut_before_the_query() {
        assert_eq!(cut(5, 10, 8), Some(Cut { query: 10, document: 3 }));
        assert_eq!(cut(8, 10, 8), Some(Cut { query: 10, document: 0 }));
        assert_eq!(cut(11, 10, 8), Some(Cut { query: 8, document: 0 }));
        assert_eq!(cut(28, 10, 8), Some(Cut { query: 0, document: 0 }));
        assert_eq!(cut(29, 10, 8), None);
    }
}

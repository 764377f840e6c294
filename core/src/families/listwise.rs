//! The prompt of families that read many documents at once.

/// The prompt of a listwise re-ranker, and its limit on documents. The placeholders of the texts are
/// `{query}`, `{instruction}` and `{document}`. `{count}` is the number of documents in the prompt, and
/// `{number}` the number of a document, from 0.
#[derive(Debug, PartialEq, Eq)]
pub struct Listwise {
    /// The text before the first document.
    pub before: &'static str,
    /// The text before the first document if there is an instruction.
    pub before_instructed: &'static str,
    /// The text for each document.
    pub document: &'static str,
    /// The text after the last document.
    pub after: &'static str,
    /// The token in `document` whose state becomes the document's vector.
    pub document_mark: &'static str,
    /// The token in `after` whose state becomes the query's vector.
    pub query_mark: &'static str,
    /// Strings that the authors' code removes from the texts of requests, in this order.
    pub removes: &'static [&'static str],
    /// The most documents of a prompt.
    pub documents: usize,
}

//! How a family reads many documents in one prompt.

/// The prompt of a listwise re-ranker, and how many documents one holds. The texts' places are `{query}`, `{instruction}`
/// and `{document}`; `{count}` is the number of documents of the prompt, `{number}` a document's own, from 0.
#[derive(Debug, PartialEq, Eq)]
pub struct Listwise {
    /// All that stands before the first document.
    pub before: &'static str,
    /// The same where there is an instruction.
    pub before_instructed: &'static str,
    /// Each document.
    pub document: &'static str,
    /// All that stands behind the last document.
    pub after: &'static str,
    /// The token in `document` whose state becomes the document's vector.
    pub document_mark: &'static str,
    /// The token in `after` whose state becomes the query's vector.
    pub query_mark: &'static str,
    /// Strings that the authors' code takes out of the texts of requests, in this order.
    pub removes: &'static [&'static str],
    /// The most documents of a prompt.
    pub documents: usize,
}

//! Fields that are missing because the client gave them another name.
//!
//! Input: the names of a body's fields. Output: a question that names the field which may be meant. What must
//! hold: only a field that is missing is asked about.

/// Names that clients use instead of the names that are understood.
const NEAR_MISSES: [(&str, &[&str]); 8] = [
    ("query", &["q", "queries", "question", "search_query", "text_1", "source_sentence"]),
    (
        "documents",
        &[
            "document",
            "docs",
            "doc",
            "passages",
            "passage",
            "candidates",
            "contexts",
            "chunks",
            "items",
            "inputs",
            "sentences",
            "text_2",
        ],
    ),
    ("texts", &["text"]),
    (
        "inputs",
        &["input", "text", "texts", "sentence", "sentences", "documents", "prompt", "query", "queries"],
    ),
    (
        "input",
        &["inputs", "text", "texts", "sentence", "sentences", "documents", "prompt", "query", "queries"],
    ),
    ("ids", &["input_ids", "token_ids", "tokens", "inputs", "input"]),
    ("instances", &["inputs", "input", "texts", "requests"]),
    ("instruction", &["instructions", "instuction", "task", "task_instruction", "task_description"]),
];

/// Whether a body has a field.
pub(crate) fn has_field(fields: &[String], name: &str) -> bool {
    fields.iter().any(|field| field == name)
}

/// A question that names a field which may be meant as a missing one of `wanted`: by another of its names, or
/// with one letter wrong.
pub(crate) fn hint(fields: &[String], wanted: &[&str]) -> Option<String> {
    let missing = NEAR_MISSES.iter().filter(|(name, _)| wanted.contains(name) && !has_field(fields, name));
    let mut hints = missing.filter_map(|(name, misses)| {
        let field = fields.iter().find(|field| {
            let field = field.to_lowercase();
            misses.contains(&field.as_str()) || is_misspelled(&field, name)
        })?;
        Some(format!(": is `{field}` meant as `{name}`?"))
    });
    hints.next()
}

/// Whether one letter differs, is missing or is too many, or two are exchanged.
fn is_misspelled(field: &str, name: &str) -> bool {
    name.len() > 3 && field.len().abs_diff(name.len()) <= 1 && strsim::osa_distance(field, name) <= 1
}

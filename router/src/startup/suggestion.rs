//! The Hub id that a user may have meant by a model's name without its owner.
//!
//! Input: `--model-id`. Output: the id with the owner of well-known models whose names begin alike. It is
//! only shown in the message of an error, because some models of the Hub have no owner in their id.

/// How the names of well-known models begin, and their owners on the Hub.
const OWNERS: [(&str, &str); 21] = [
    ("qwen3-", "Qwen"),
    ("bge-", "BAAI"),
    ("gte-multilingual-", "Alibaba-NLP"),
    ("gte-reranker-", "Alibaba-NLP"),
    ("gte-modernbert-", "Alibaba-NLP"),
    ("gte-qwen2-", "Alibaba-NLP"),
    ("multilingual-e5-", "intfloat"),
    ("e5-", "intfloat"),
    ("all-minilm-", "sentence-transformers"),
    ("all-mpnet-", "sentence-transformers"),
    ("paraphrase-", "sentence-transformers"),
    ("ms-marco-", "cross-encoder"),
    ("ettin-reranker-", "cross-encoder"),
    ("mxbai-", "mixedbread-ai"),
    ("jina-", "jinaai"),
    ("nomic-embed-", "nomic-ai"),
    ("snowflake-arctic-", "Snowflake"),
    ("embeddinggemma-", "google"),
    ("granite-embedding-", "ibm-granite"),
    ("modernbert-", "answerdotai"),
    ("splade-", "naver"),
];

/// The error, with the Hub id that the user may have meant.
pub(super) fn with_meant_id(error: anyhow::Error, model_id: &str) -> anyhow::Error {
    match hub_id(model_id) {
        Some(meant) => anyhow::anyhow!("{error:#}; did you mean `{meant}`?"),
        None => error,
    }
}

/// The Hub id that `model_id` may stand for; absent if it has an owner, or the owner is not known.
fn hub_id(model_id: &str) -> Option<String> {
    let name = model_id.to_ascii_lowercase();
    let owner = OWNERS.iter().find(|(start, _)| name.starts_with(start) && !name.contains('/'));
    owner.map(|(_, owner)| format!("{owner}/{model_id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_well_known_name_gets_its_owner() {
        for (model_id, expected) in [
            ("Qwen3-Reranker-0.6B", Some("Qwen/Qwen3-Reranker-0.6B")),
            ("bge-m3", Some("BAAI/bge-m3")),
            ("Qwen/Qwen3-Reranker-0.6B", None),
            ("./bge-m3", None),
            ("gpt2", None),
        ] {
            assert_eq!(hub_id(model_id).as_deref(), expected, "{model_id}");
        }
    }
}

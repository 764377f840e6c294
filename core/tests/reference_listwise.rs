//! The listwise re-ranker of `integration_tests/reference/fixtures/rerankers`: kind, family and ids.
//!
//! Input: the committed folder, with the ids of its authors' own code. What must hold: documents are
//! distributed among prompts as in that code, and each prompt has exactly the expected ids; the marks are
//! tokens of the template; no text of a request yields an added token, or changes the prompt around it; no
//! prompt is longer than the longest input.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::PathBuf};
use text_embeddings_backend_core::{BackendError, Description, ModelType};
use text_embeddings_core::{
    error::Error,
    families::{self, Family},
    files::{ModelFolder, Reader},
    model::detect_kind,
    templates::PromptTemplate,
    tokenization::{
        EncodedPrompts, EncoderOptions, ListText, PromptEncoder, TextLimits, TokenLimits, Truncation,
        TruncationDirection,
    },
};
use tokenizers::Tokenizer;

const NAME: &str = "jina-reranker-v3";

#[derive(Deserialize)]
struct Expected {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    query: String,
    documents: Vec<String>,
    instruction: Option<String>,
    limits: Option<Limits>,
    prompts: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct Limits {
    max_length: Option<usize>,
    max_doc_length: Option<usize>,
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures/rerankers"))
}

fn rows() -> Vec<Row> {
    let file = fs::read(folder().join(format!("{NAME}.expected.json"))).unwrap();
    serde_json::from_slice::<Expected>(&file).unwrap().rows
}

fn family() -> &'static Family {
    families::by_name(NAME).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(folder().join(NAME).join("tokenizer.json")).unwrap()
}

fn encoder(longest: usize) -> PromptEncoder {
    let limits = TextLimits { texts: None, query: family().limits.query, document: family().limits.document };
    let options = EncoderOptions { max_input_length: longest, limits, ..EncoderOptions::default() };
    PromptEncoder::new(tokenizer(), &PromptTemplate::builtin(family()), options).unwrap()
}

fn truncation(truncate: bool, limits: TokenLimits) -> Truncation {
    Truncation { truncate, direction: TruncationDirection::Right, limits }
}

fn encode(
    encoder: &PromptEncoder,
    query: &str,
    documents: &[&str],
    truncation: Truncation,
) -> Result<EncodedPrompts, Error> {
    encoder.encode_list(&ListText { instruction: None, query, documents }, truncation, &|| false)
}

/// The ids of both marks: the documents' and the query's.
fn marks() -> [u32; 2] {
    family().list.unwrap().marks.map(|mark| tokenizer().token_to_id(mark).unwrap())
}

#[test]
fn kind_and_family_follow_from_the_architecture() {
    #[expect(clippy::unnecessary_wraps, reason = "the signature that `ModelFolder::open` takes")]
    fn describe(_: &Value) -> Result<Description, BackendError> {
        Ok(Description {
            max_length: None,
            has_token_types: false,
            is_causal: true,
            hidden: 24,
            vocabulary: 999_999,
            cutoff_layers: None,
            token_work: None,
        })
    }
    let files = ModelFolder::open(&folder().join(NAME), &Reader::default(), &describe).unwrap();
    let mut renamed = files.clone();
    renamed.root = "model".into();
    for files in [files, renamed] {
        let kind = detect_kind(&files, None, None, None).unwrap().model_type;
        assert_eq!(kind, ModelType::ListwiseReranker);
        assert_eq!(files.evidence().family().unwrap().0.name, NAME);
        // Its name alone does not decide, because no other architecture has the head for it.
        let mut other = files.clone();
        other.config.architectures = vec!["Qwen3ForCausalLM".to_owned()];
        assert_ne!(other.evidence().family().map(|(family, _)| family.name), Some(NAME));
    }
}

#[test]
fn prompts_and_their_documents_are_those_of_the_authors_code() {
    let [of_document, of_query] = marks();
    for row in rows() {
        let limit = |of: fn(&Limits) -> Option<usize>| row.limits.as_ref().and_then(of);
        let encoder = encoder(limit(|limits| limits.max_length).unwrap_or(131_072));
        assert_eq!(encoder.self_check(), Ok(()));
        let documents: Vec<&str> = row.documents.iter().map(String::as_str).collect();
        let list =
            ListText { instruction: row.instruction.as_deref(), query: &row.query, documents: &documents };
        let limits = TokenLimits { document: limit(|limits| limits.max_doc_length), ..TokenLimits::NONE };
        let encoded = encoder.encode_list(&list, truncation(true, limits), &|| false).unwrap();
        let what = format!("{:.60} and {} documents", row.query, documents.len());
        assert_eq!(encoded.prompts.len(), row.prompts.len(), "{what}");
        let mut next = 0;
        for (prompt, ids) in encoded.prompts.iter().zip(&row.prompts) {
            assert_eq!(&prompt.ids, ids, "{what}");
            let documents = prompt.marks.len() - 1;
            next += documents;
            let marked: Vec<u32> = prompt.marks.iter().map(|&mark| ids[mark]).collect();
            let mut expected = vec![of_document; documents];
            expected.push(of_query);
            assert_eq!(marked, expected, "{what}");
            let texts = prompt.ids.iter().filter(|id| [of_document, of_query].contains(id)).count();
            assert_eq!(texts, prompt.marks.len(), "{what}");
            assert!(prompt.reusable < prompt.marks[0], "{what}");
        }
        assert_eq!(next, documents.len(), "{what}");
    }
}

#[test]
fn what_comes_before_the_first_document_is_reusable() {
    let encoder = encoder(4096);
    let [one, other] = ["Mars is red.", "Bread is baked from flour, water and salt."].map(|first| {
        encode(&encoder, "red planet", &[first, "no"], truncation(true, TokenLimits::NONE))
            .unwrap()
            .prompts
            .remove(0)
    });
    let common = one.ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count();
    assert_eq!(one.reusable, common);
    assert_eq!(other.reusable, common);
}

#[test]
fn texts_are_cut_to_the_models_limits_and_to_the_requests_or_refused() {
    let encoder = encoder(131_072);
    let long = "Mars is red. ".repeat(2000);
    let tokens = |text: &str| encoder.tokenizer().encode_fast(text, false).unwrap().len();
    assert!(tokens(&long) > 2048);
    let whole = |documents: &[&str], limits| {
        let list = encode(&encoder, "planet", documents, truncation(true, limits)).unwrap();
        (list.prompts[0].ids.len(), list.truncated)
    };
    let (bare, uncut) = whole(&["", "no"], TokenLimits::NONE);
    let limit = |document| TokenLimits { document: Some(document), ..TokenLimits::NONE };
    assert_eq!(uncut, 0);
    for (limits, kept) in [(TokenLimits::NONE, 2048), (limit(100), 100), (limit(9999), 2048), (limit(0), 0)] {
        let (length, truncated) = whole(&[&long, "no"], limits);
        let no = usize::from(kept == 0);
        assert!(length.abs_diff(bare + kept) <= 2, "{length} {bare} {kept}");
        assert_eq!(truncated, 1 + no);
    }
    // When cut from the left, the end of the document stays.
    let left = Truncation { direction: TruncationDirection::Left, ..truncation(true, limit(10)) };
    let text = format!("{long}The end of Mars.");
    let prompts = encode(&encoder, "planet", &[&text], left).unwrap().prompts;
    let decoded = encoder.tokenizer().decode(&prompts[0].ids, false).unwrap();
    assert!(decoded.contains("The end of Mars.<|embed_token|>"), "{decoded}");
    // A document that must not be cut is refused, but a request's own limit always cuts.
    let strict = |query: &str, limits| encode(&encoder, query, &[&long], truncation(false, limits));
    assert_eq!(strict("q", TokenLimits::NONE).unwrap_err(), Error::TooLong { got: tokens(&long), max: 2048 });
    assert_eq!(strict("q", limit(100)).unwrap().truncated, 1);
    let enormous = "x".repeat(2048 * 250 + 1);
    let error = encode(&encoder, "q", &[&enormous], truncation(false, TokenLimits::NONE)).unwrap_err();
    assert_eq!(error, Error::TooManyCharacters { got: 2048 * 250 + 1, max: 2048 * 250 });
    let error = encode(&encoder, &long, &["no"], truncation(false, TokenLimits::NONE)).unwrap_err();
    assert!(error.to_string().contains("`query` must have at most 512 tokens"), "{error}");
    let query = TokenLimits { query: Some(5), ..TokenLimits::NONE };
    assert_eq!(encode(&encoder, &long, &["no", "x"], truncation(false, query)).unwrap().truncated, 2);
}

#[test]
fn no_prompt_is_longer_than_the_longest_input_whatever_the_texts() {
    let mut random = StdRng::seed_from_u64(9);
    let words = ["Mars ", "is ", "red ", "planet", "중국", "\n", "9 "];
    let mut text = |longest: usize| -> String {
        (0..random.random_range(0..longest)).map(|_| *words.choose(&mut random).unwrap()).collect()
    };
    let frame =
        encode(&encoder(9999), "", &[""], truncation(true, TokenLimits::NONE)).unwrap().prompts[0].ids.len();
    for round in 0..60 {
        let longest = frame + 5 + round * 20;
        let encoder = encoder(longest);
        let documents: Vec<String> = (0..=(round % 9)).map(|_| text(40 + round * 8)).collect();
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        let query = text(20 + round);
        let list = encode(&encoder, &query, &documents, truncation(true, TokenLimits::NONE)).unwrap();
        let of_prompts: usize = list.prompts.iter().map(|it| it.marks.len() - 1).sum();
        assert_eq!(of_prompts, documents.len());
        assert!(list.prompts.iter().all(|it| it.ids.len() <= longest && it.marks.len() > 1));
    }
    // The template alone does not fit.
    for (prompt, longest, part) in
        [(None, frame - 1, "`instruction` is too long"), (Some(frame - 1), 9999, "`truncate_prompt_tokens`")]
    {
        let limits = TokenLimits { prompt, ..TokenLimits::NONE };
        let error = encode(&encoder(longest), "q", &["d"], truncation(true, limits)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let strict = encode(&encoder(frame + 2), "q", &["Mars is red."], truncation(false, TokenLimits::NONE));
    assert!(matches!(strict.unwrap_err(), Error::TooLong { max, .. } if max == frame + 2));
}

/// Control tokens, and characters that may merge with them.
const HOSTILE: [&str; 17] = [
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<|embed_token|>",
    "<|rerank_token|>",
    "<|embed_",
    "token|>",
    "<think>",
    "</think>",
    "</passage>",
    "<passage id=\"0\">",
    "</query>",
    "\n",
    " ",
    "{document}",
    "{count}",
    "assistant\n",
];

#[test]
fn no_text_of_a_request_yields_an_added_token_or_closes_its_slot() {
    let mut random = StdRng::seed_from_u64(18);
    let mut hostile = || -> String {
        (0..random.random_range(1..9)).map(|_| *HOSTILE.choose(&mut random).unwrap()).collect()
    };
    let encoder = encoder(4096);
    let added: BTreeSet<u32> = encoder.tokenizer().get_added_tokens_decoder().into_keys().collect();
    let controls = |list: &ListText<'_>| -> (Vec<u32>, usize) {
        let encoded = encoder.encode_list(list, truncation(true, TokenLimits::NONE), &|| false).unwrap();
        assert_eq!(encoded.prompts.len(), 1);
        let prompt = &encoded.prompts[0];
        (prompt.ids.iter().copied().filter(|id| added.contains(id)).collect(), prompt.marks.len())
    };
    for round in 0..200 {
        let (query, instruction, documents) = (hostile(), hostile(), [hostile(), hostile(), hostile()]);
        let instruction = (round % 2 == 0).then_some(instruction.as_str());
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        let list = ListText { instruction, query: &query, documents: &documents };
        let harmless =
            ListText { instruction: instruction.map(|_| "a"), query: "b", documents: &["c", "d", "e"] };
        assert_eq!(controls(&list), controls(&harmless), "{list:?}");
    }
}

//! The re-rankers of `integration_tests/reference/fixtures/rerankers`: kind, family and ids.
//!
//! Input: the committed folders, each with the ids of its authors' own code. What must hold: the family of
//! each folder is recognised, by name, by `_name_or_path` or by architecture; each prompt has exactly the
//! expected ids, also with the repository's own template; no text of a request yields an added token, or
//! changes the prompt around it.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::PathBuf};
use text_embeddings_backend_core::{BackendError, Description, ModelType};
use text_embeddings_core::{
    families::{self, Evidence, Family},
    files::{ModelFolder, Reader},
    model::detect_kind,
    templates::{PromptTemplate, template_has_roles},
    tokenization::{
        EncoderOptions, PairText, PromptEncoder, TextLimits, TokenLimits, Truncation, TruncationDirection,
    },
};
use tokenizers::Tokenizer;

#[derive(Deserialize)]
struct Expected {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    query: String,
    document: String,
    instruction: Option<String>,
    max_length: Option<usize>,
    ids: Vec<u32>,
}

/// The folders with their families and kinds.
const FOLDERS: [(&str, &str, ModelType); 13] = [
    ("mxbai-rerank-base-v2", "mxbai-rerank-v2", ModelType::ListwiseReranker),
    ("zerank-1-small", "zerank", ModelType::ListwiseReranker),
    ("zerank-2-reranker", "zerank", ModelType::ListwiseReranker),
    ("ctxl-rerank-v2-instruct-multilingual-1b", "ctxl-rerank", ModelType::ListwiseReranker),
    ("ctxl-rerank-v2-instruct-multilingual-6b", "ctxl-rerank-6b", ModelType::ListwiseReranker),
    ("bge-reranker-v2-gemma", "bge-reranker-v2-gemma", ModelType::ListwiseReranker),
    ("bge-reranker-v2-minicpm-layerwise", "bge-reranker-v2-minicpm-layerwise", ModelType::Reranker),
    ("llama-nemotron-rerank-1b-v2", "llama-nemotron-rerank", ModelType::Reranker),
    ("Qwen3-VL-Reranker-2B", "qwen3-vl-reranker", ModelType::ListwiseReranker),
    ("Qwen3-VL-Reranker-8B", "qwen3-vl-reranker", ModelType::ListwiseReranker),
    ("Prism-Qwen3.5-Reranker-0.8B", "prism-qwen3.5-reranker", ModelType::ListwiseReranker),
    ("Prism-Qwen3.5-Reranker-4B", "prism-qwen3.5-reranker", ModelType::ListwiseReranker),
    ("jina-reranker-m0", "jina-reranker-m0", ModelType::Reranker),
];

fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures/rerankers"))
}

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

fn open(name: &str) -> ModelFolder {
    ModelFolder::open(&fixtures().join(name), &Reader::default(), &describe).unwrap()
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_file(fixtures().join(name).join("tokenizer.json")).unwrap()
}

fn rows(name: &str) -> Vec<Row> {
    let file = fs::read(fixtures().join(format!("{name}.expected.json"))).unwrap();
    serde_json::from_slice::<Expected>(&file).unwrap().rows
}

/// The prompts of a folder: its family's, and its own if it has one.
fn templates(name: &str, family: &Family) -> Vec<PromptTemplate> {
    let own = open(name).chat_template.filter(|chosen| template_has_roles(&chosen.source));
    let own = own.map(|chosen| PromptTemplate::from_chat_template(&chosen.source, &chosen.style).unwrap());
    [Some(PromptTemplate::builtin(family)), own].into_iter().flatten().collect()
}

fn encoder(name: &str, template: &PromptTemplate, longest: usize) -> PromptEncoder {
    let options = EncoderOptions {
        default_instruction: template.default_instruction().map(str::to_owned),
        max_input_length: longest,
        ..EncoderOptions::default()
    };
    PromptEncoder::new(tokenizer(name), template, options).unwrap()
}

const RIGHT: Truncation =
    Truncation { truncate: true, direction: TruncationDirection::Right, limits: TokenLimits::NONE };

#[test]
fn every_folder_of_the_fixtures_is_listed() {
    let found: BTreeSet<String> = fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        // `reference_listwise.rs` tests this folder.
        .filter(|name| name != "jina-reranker-v3")
        .collect();
    assert_eq!(found, FOLDERS.iter().map(|(name, ..)| (*name).to_owned()).collect());
}

#[test]
fn kind_and_family_follow_from_name_and_architecture() {
    for (name, family, kind) in FOLDERS {
        let files = open(name);
        assert_eq!(detect_kind(&files, None, None, None).unwrap().model_type, kind, "{name}");
        assert_eq!(files.evidence().family().unwrap().0.name, family, "{name}");
        // Recognised by `_name_or_path`, in a folder whose name does not say anything.
        let mut renamed = files.clone();
        renamed.root = "model".into();
        renamed.config.raw["_name_or_path"] = name.into();
        assert_eq!(renamed.evidence().family().unwrap().0.name, family, "{name}");
        // Another architecture with this name belongs to no family, not even to the one that takes unnamed
        // models.
        let mut other = files;
        other.config.model_type = Some("qwen2_moe".to_owned());
        other.config.architectures.clear();
        assert!(other.evidence().family().is_none(), "{name}");
    }
    let wrong = Evidence { names: vec!["zerank-1".to_owned()], architectures: &[], model_type: "mistral" };
    assert!(wrong.family().is_none() && wrong.unnamed_family().is_none());
    let unnamed = Evidence { names: vec!["model".to_owned()], architectures: &[], model_type: "qwen3" };
    assert_eq!(unnamed.unnamed_family().map(|family| family.name), Some("qwen3-reranker"));
}

#[test]
fn models_that_generate_are_refused_with_a_reason() {
    for (name, model_type, part) in [
        ("ERank-4B", "qwen3", "chain of reasoning"),
        ("lb-reranker-0.5B-v1.0", "qwen2", "generates its ranking"),
        ("LightOn-rerank-LW-4B", "qwen3_5", "generates its ranking"),
        ("UEmbed-2B", "qwen3_5", "several end tokens"),
        ("rank_zephyr_7b_v1_full", "mistral", "generates its ranking"),
        ("bge-reranker-v2.5-gemma2-lightweight", "cost_wise_gemma", "compress_ratio"),
    ] {
        let mut files = ModelFolder::default();
        files.root = name.into();
        files.config.model_type = Some(model_type.to_owned());
        files.config.architectures = vec!["XForCausalLM".to_owned()];
        let message = detect_kind(&files, None, None, None).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains(part), "{message}");
    }
}

#[test]
fn prompts_have_the_ids_of_the_authors_code() {
    for (name, family, _) in FOLDERS {
        let family = families::by_name(family).unwrap();
        assert_eq!(family.missing_token(&tokenizer(name)), None, "{name}");
        for template in templates(name, family) {
            for row in rows(name) {
                let encoder = encoder(name, &template, row.max_length.unwrap_or(4096));
                assert_eq!(encoder.self_check(), Ok(()), "{name}");
                let instruction = row.instruction.as_deref();
                let text = PairText { instruction, query: &row.query, document: &row.document };
                let encoded = encoder.encode_prompt(&text, RIGHT, None).unwrap();
                assert_eq!(encoded.ids, row.ids, "{name}: {:?} {:?}", row.query, row.document);
            }
        }
    }
}

#[test]
fn a_query_has_three_quarters_of_what_the_frame_leaves_and_the_rest_is_the_documents() {
    let (name, family) = ("mxbai-rerank-base-v2", families::by_name("mxbai-rerank-v2").unwrap());
    let template = PromptTemplate::builtin(family);
    let whole = encoder(name, &template, 4096);
    let encode = |encoder: &PromptEncoder, query: &str, document: &str, truncation| {
        encoder.encode_prompt(&PairText { instruction: None, query, document }, truncation, None)
    };
    let frame = encode(&whole, "", "", RIGHT).unwrap().ids;
    let [words, long] = [1, 99].map(|times| "Mars is red. ".repeat(times));
    // The authors count `query: ` and `document: ` as part of the texts.
    let labels = whole.tokenizer().encode("query: document: ", false).unwrap().len() + 1;
    for texts in [40, 41, 80] {
        let limits = TextLimits { texts: Some(texts), query: family.limits.query, document: None };
        let options = EncoderOptions { max_input_length: 4096, limits, ..EncoderOptions::default() };
        let encoder = PromptEncoder::new(tokenizer(name), &template, options).unwrap();
        let ids = encode(&encoder, &long, &long, RIGHT).unwrap().ids;
        let label = whole.tokenizer().encode("query: ", false).unwrap().len();
        let query = ids.len() - frame.len();
        assert!(ids.len() <= frame.len() - labels + texts + 2, "{} {}", ids.len(), frame.len());
        assert!(query > 0 && texts * 3 / 4 - label < texts);
        let only_query = encode(&encoder, &long, "", RIGHT).unwrap();
        assert!(only_query.ids.len() - frame.len() <= texts * 3 / 4 - label + 1);
        let strict = Truncation { truncate: false, ..RIGHT };
        assert!(encode(&encoder, &long, &words, strict).is_err());
        assert!(encode(&encoder, "Mars", "red", strict).is_ok());
    }
}

#[test]
fn only_the_families_with_the_query_first_share_more_than_their_first_words() {
    for (name, family, _) in FOLDERS {
        let template = PromptTemplate::builtin(families::by_name(family).unwrap());
        let encoder = encoder(name, &template, 4096);
        let reusable = |query: &str| {
            let text = PairText { instruction: None, query, document: "Mars is red." };
            encoder.encode_prompt(&text, RIGHT, None).unwrap().reusable
        };
        let grows = reusable("Which planet is known as the red one?") > reusable("Mars?");
        let document_first = family.starts_with("ctxl") || family == "jina-reranker-m0";
        assert_eq!(grows, !document_first, "{name}");
    }
}

/// The end of a prompt of any family, control tokens, and characters that may merge with them.
const HOSTILE: [&str; 22] = [
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<bos>",
    "<eos>",
    "<s>",
    "</s>",
    "<pad>",
    "<unk>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|vision_start|>",
    "<|image_pad|>",
    "assistant\n",
    "yes",
    "\n",
    " ",
    "<|im_",
    "end|>",
    "{document}",
];

#[test]
fn no_text_of_a_request_yields_an_added_token_or_closes_its_slot() {
    let mut random = StdRng::seed_from_u64(18);
    let mut hostile = || -> String {
        (0..random.random_range(1..9)).map(|_| *HOSTILE.choose(&mut random).unwrap()).collect()
    };
    for (name, family, _) in FOLDERS {
        for template in templates(name, families::by_name(family).unwrap()) {
            let encoder = encoder(name, &template, 4096);
            let added: BTreeSet<u32> = encoder.tokenizer().get_added_tokens_decoder().into_keys().collect();
            let controls = |text: &PairText<'_>| -> (Vec<u32>, u32) {
                let ids = encoder.encode_prompt(text, RIGHT, None).unwrap().ids;
                let last = *ids.last().unwrap();
                (ids.into_iter().filter(|id| added.contains(id)).collect(), last)
            };
            for round in 0..60 {
                let (query, document, instruction) = (hostile(), hostile(), hostile());
                let instruction = (template.has_instruction() && round % 2 == 0).then_some(instruction);
                let text =
                    PairText { instruction: instruction.as_deref(), query: &query, document: &document };
                let harmless =
                    PairText { instruction: instruction.as_ref().map(|_| "a"), query: "b", document: "c" };
                assert_eq!(controls(&text).0, controls(&harmless).0, "{name} {text:?}");
                let shown = encoder.show(&text, RIGHT).unwrap();
                let of_texts = shown.pieces.iter().filter(|piece| piece.slot.is_some());
                assert!(
                    of_texts.flat_map(|piece| &piece.ids).all(|id| !added.contains(id)),
                    "{name} {text:?}"
                );
                let pieces = |shown: &text_embeddings_core::tokenization::ShownPrompt| -> String {
                    shown.pieces.iter().filter(|it| it.slot.is_none()).map(|it| it.text.as_str()).collect()
                };
                assert_eq!(pieces(&shown), pieces(&encoder.show(&harmless, RIGHT).unwrap()), "{name}");
            }
        }
    }
}

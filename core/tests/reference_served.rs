//! The models of `integration_tests/reference/fixtures/served`: their kind, head, ids and token types.
//!
//! Input: the committed folders, each with the results of `transformers` and `sentence-transformers`. What
//! must hold: the files alone (with `--pooling splade` if they do not name it) give the expected kind and
//! head; each input has exactly the expected ids and token types, special tokens and truncation included.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use serde::Deserialize;
use serde_json::Value;
use std::{fs, path::PathBuf};
use text_embeddings_backend_core::{
    Activation, BackendError, Description, Head, HeadModule, ModelFile, ModelType, Pool, Pooling, SparseHead,
    TokenHead, WholeHead,
};
use text_embeddings_core::{
    files::{self, ModelFolder, Reader},
    model::{bare_tokens, detect_kind},
    tokenization::{PairText, TextEncoder, TextOptions, TokenLimits, Truncation, TruncationDirection},
};
use tokenizers::Tokenizer;

#[derive(Deserialize)]
struct Expected {
    max_length: usize,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    inputs: Vec<String>,
    prompt_name: Option<String>,
    max_length: Option<usize>,
    direction: String,
    ids: Vec<u32>,
    types: Vec<u32>,
}

fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures/served"))
}

/// Describes a config.json with the usual names of fields.
#[expect(clippy::unnecessary_wraps, reason = "the signature that `ModelFolder::open` takes")]
fn describe(config: &Value) -> Result<Description, BackendError> {
    let number = |field: &str| config[field].as_u64().map(|number| usize::try_from(number).unwrap());
    Ok(Description {
        max_length: None,
        has_token_types: number("type_vocab_size").is_some_and(|types| types > 1),
        is_causal: false,
        hidden: number("hidden_size").or(number("dim")).or(number("d_model")).unwrap(),
        vocabulary: number("vocab_size").unwrap(),
        cutoff_layers: None,
        token_work: None,
    })
}

fn open(name: &str) -> ModelFolder {
    ModelFolder::open(&fixtures().join(name), &Reader::default(), &describe).unwrap()
}

fn tokenizer_bytes(folder: &ModelFolder) -> Vec<u8> {
    match &folder.tokenizer {
        ModelFile::Disk(path) => fs::read(path).unwrap(),
        ModelFile::Memory { bytes, .. } => bytes.to_vec(),
    }
}

/// The start of a single text, or of both texts of a pair.
fn input(row: &Row) -> String {
    row.inputs.join(" | ").chars().take(60).collect()
}

#[test]
fn the_kind_follows_from_the_files() {
    let (embedding, splade) = (ModelType::Embedding, Some(Pool::Splade));
    let table = [
        ("bert-classifier-3", None, ModelType::Classifier),
        ("bert-cls-no-modules", None, embedding(Pool::Cls)),
        ("bert-cross-encoder", None, ModelType::Reranker),
        ("bert-embedding-mean", None, embedding(Pool::Mean)),
        ("bert-splade", splade, embedding(Pool::Splade)),
        ("bert-splade-saved", None, embedding(Pool::Splade)),
        ("bge-m3", None, embedding(Pool::Cls)),
        ("deberta-v2-reranker", None, ModelType::Reranker),
        ("distilbert-splade", None, embedding(Pool::Splade)),
        ("ettin-modular", None, ModelType::Reranker),
        ("harrier-like", None, embedding(Pool::LastToken)),
        ("granite-r2-like", None, embedding(Pool::Cls)),
        ("jina-v5-like", None, embedding(Pool::LastToken)),
        ("sentence-t5-like", None, embedding(Pool::Mean)),
        ("modernbert-reranker", None, ModelType::Reranker),
        ("roberta-classifier-many", None, ModelType::Classifier),
        ("potion-like", None, embedding(Pool::Mean)),
        ("static-embedding", None, embedding(Pool::Mean)),
        ("static-unlimited", None, embedding(Pool::Mean)),
        ("stella-like", None, embedding(Pool::Mean)),
        ("xlm-roberta-reranker", None, ModelType::Reranker),
    ];
    for (name, pooling, expected) in table {
        let found = detect_kind(&open(name), None, pooling, None);
        assert_eq!(found.unwrap().model_type, expected, "{name}");
    }
}

#[test]
fn heads_are_made_of_the_folders_modules() {
    let head = files::scores_head(&open("ettin-modular")).unwrap();
    let Some(WholeHead::Scores { pooling: Pooling::First, modules }) = head.whole else {
        unreachable!("a modular cross-encoder");
    };
    let [HeadModule::Dense(first), HeadModule::LayerNorm(norm), HeadModule::Dense(last)] = &modules[..]
    else {
        unreachable!("Dense, LayerNorm, Dense: {modules:?}");
    };
    assert_eq!((first.activation, first.bias, norm.size), (Activation::Gelu, false, first.out_features));
    assert_eq!((last.out_features, last.activation), (1, Activation::Identity));

    let head = files::embedding_head(&open("bge-m3"), Pool::Cls).unwrap();
    let Head {
        whole: Some(WholeHead::Vector { modules, .. }),
        tokens: Some(TokenHead::Modules(token_modules)),
        sparse: Some(SparseHead::Lexical(lexical)),
    } = head
    else {
        unreachable!("bge-m3 has all three outputs");
    };
    assert!(modules.is_empty() && lexical.weights.path().ends_with("sparse_linear.pt"));
    assert_eq!((lexical.out_features, lexical.activation), (1, Activation::Relu));
    assert!(
        matches!(&token_modules[..], [HeadModule::Dense(dense)] if dense.weights.path().ends_with("colbert_linear.pt"))
    );
    let tokens = open("bge-m3").special_tokens;
    let empty = ["cls_token", "eos_token", "pad_token", "unk_token"].map(|name| tokens[name].as_str());
    assert_eq!(empty, ["<s>", "</s>", "<pad>", "<unk>"]);

    for name in ["bert-splade", "bert-splade-saved", "distilbert-splade"] {
        assert_eq!(files::embedding_head(&open(name), Pool::Splade).unwrap(), Head::SPLADE, "{name}");
    }
    for (path, width) in [(None, 32), (Some("2_Dense_48"), 48)] {
        let reader = Reader { dense_path: path.map(str::to_owned), ..Reader::default() };
        let folder = ModelFolder::open(&fixtures().join("stella-like"), &reader, &describe).unwrap();
        let head = files::embedding_head(&folder, Pool::Mean).unwrap();
        let Some(WholeHead::Vector { modules, .. }) = head.whole else { unreachable!("an embedding model") };
        assert!(matches!(&modules[..], [HeadModule::Dense(dense)] if dense.out_features == width));
    }
    let refused = files::embedding_head(&open("ettin-modular"), Pool::Cls).unwrap_err().to_string();
    assert!(refused.contains("re-ranker and not an embedding model"), "{refused}");
}

#[test]
fn the_models_own_activation_is_read() {
    for (name, expected) in [
        ("bert-cross-encoder", Some("torch.nn.modules.linear.Identity")),
        ("ettin-modular", Some("torch.nn.modules.linear.Identity")),
        ("xlm-roberta-reranker", None),
    ] {
        assert_eq!(open(name).score_activation.as_deref(), expected, "{name}");
    }
}

#[test]
fn ids_and_token_types_are_those_of_the_reference() {
    let (mut texts, mut pairs, mut typed) = (0, 0, 0);
    for entry in fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".expected.json") else { continue };
        let expected: Expected = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let folder = open(name);
        for row in &expected.rows {
            let tokenizer = Tokenizer::from_bytes(tokenizer_bytes(&folder)).unwrap();
            let options = TextOptions {
                max_input_length: row.max_length.unwrap_or(expected.max_length),
                vocabulary: folder.description.vocabulary,
                has_token_types: folder.has_token_types,
                bare: bare_tokens(&folder, &tokenizer),
                ..TextOptions::default()
            };
            let encoder = TextEncoder::new(tokenizer, options).unwrap();
            let direction = match row.direction.as_str() {
                "left" => TruncationDirection::Left,
                _ => TruncationDirection::Right,
            };
            let truncation = Truncation { truncate: true, direction, limits: TokenLimits::NONE };
            let encoded = match &row.inputs[..] {
                [text] => {
                    texts += 1;
                    let prompt = row.prompt_name.as_ref().map_or("", |name| folder.prompts[name].as_str());
                    encoder.encode_text(prompt, text, truncation)
                }
                [query, document] => {
                    pairs += 1;
                    encoder.self_check_pairs().unwrap();
                    encoder.encode_pair(&PairText { instruction: None, query, document }, truncation, None)
                }
                inputs => unreachable!("{inputs:?}"),
            };
            let encoded = encoded.unwrap();
            assert_eq!(encoded.ids, row.ids, "{name}: {}", input(row));
            let second = encoded.second.unwrap_or(encoded.ids.len());
            let types: Vec<u32> = (0..encoded.ids.len()).map(|index| u32::from(index >= second)).collect();
            // Tokenizers of models without types give types, too.
            assert!(!folder.has_token_types || types == row.types, "{name}: {}", input(row));
            typed += usize::from(encoded.second.is_some());
        }
    }
    assert!(texts > 50 && pairs > 50 && typed > 20, "{texts} {pairs} {typed}");
}

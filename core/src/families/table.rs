//! The table of families, with one declaration each.
//!
//! Each row names the source of its text. To add a family, add a row, a fixture with reference scores
//! (`integration_tests/reference/architectures/rerankers.py`) and a line in `docs/rerankers.md`.

use super::{
    AnswerName, Answers, Embedder, Family, FamilyAnswer, Limits, ListRules, QueryLimit, ScoreRule, Unserved,
};
use crate::templates::Slot;

/// Every family, in the order of the help text.
pub static ALL: &[&Family] = &[
    &QWEN3_RERANKER,
    &QWEN3_RERANKER_EVALUATION,
    &MXBAI_RERANK_V2,
    &ZERANK,
    &CTXL_RERANK,
    &CTXL_RERANK_MISTRAL,
    &BGE_RERANKER_GEMMA,
    &BGE_RERANKER_MINICPM,
    &LLAMA_NEMOTRON,
    &QWEN3_VL_RERANKER,
    &PRISM_RERANKER,
    &JINA_RERANKER_M0,
    &JINA_RERANKER_V3,
];

/// An empty row with the defaults of all fields.
const NONE: Family = Family {
    name: "",
    names: &[],
    architectures: &[],
    model_types: &[],
    takes_unnamed: false,
    prompt: &[],
    instructed: None,
    control_tokens: &[],
    last_token: None,
    strips: &[],
    empty: "",
    default_instruction: None,
    answers: None,
    list: None,
    score: ScoreRule::SIGMOID,
    limits: Limits::DEFAULT,
};

/// The control tokens of a conversation in Qwen's format.
const TURNS: &[&str] = &["<|im_start|>", "<|im_end|>"];

/// Qwen3-Reranker's system turn, and the beginning of the user's turn.
macro_rules! judge {
    ($($rest:expr),*) => {
        concat!(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
            "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n",
            $($rest),*
        )
    };
}

/// The strings of mxbai-rerank-v2 around the query.
macro_rules! mxbai {
    ($query:expr) => {
        &[
            concat!(
                "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n",
                "<|im_start|>user\n"
            ),
            $query,
            "\n",
            "document: {document}",
            "\n",
            concat!(
                "You are a search relevance expert who evaluates how well documents match search queries. For each ",
                "query-document pair, carefully analyze the semantic relationship between them, then provide your binary ",
                "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
            ),
            "<|im_end|>\n<|im_start|>assistant\n",
        ]
    };
}

/// ctxl-rerank's prompt after the token that begins a text.
macro_rules! ctxl {
    ($first:expr, $query:expr) => {
        concat!(
            $first,
            "Check whether a given document contains information helpful to answer the query.\n<Document> {document}\n",
            "<Query> ",
            $query,
            " ??"
        )
    };
}

/// Qwen3-Reranker, its conversions to one label, and fine-tuned models. The prompt is the one of the model
/// card, which equals the official `chat_template.jinja`.
#[doc(alias = "Qwen3RerankerTemplate")]
pub static QWEN3_RERANKER: Family = Family {
    name: "qwen3-reranker",
    names: &["qwen3-reranker"],
    model_types: &["qwen3"],
    takes_unnamed: true,
    prompt: &[judge!(
        "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )],
    control_tokens: TURNS,
    default_instruction: Some("Given a web search query, retrieve relevant passages that answer the query"),
    answers: Some(Answers::YES_NO),
    ..NONE
};

/// The prompt behind Qwen's published tables (`evaluation/qwen3_reranker_model.py`), with blank lines between
/// the three parts and the user's turn closed twice. Only `--chat-template` selects it.
static QWEN3_RERANKER_EVALUATION: Family = Family {
    name: "qwen3-reranker-evaluation",
    prompt: &[judge!(
        "<Instruct>: {instruction}\n\n<Query>: {query}\n\n<Document>: {document}",
        "<|im_end|>\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )],
    control_tokens: TURNS,
    default_instruction: QWEN3_RERANKER.default_instruction,
    answers: QWEN3_RERANKER.answers,
    model_types: &["qwen3"],
    ..NONE
};

/// mxbai-rerank-base-v2 and -large-v2 (mixedbread-ai/mxbai-rerank, `mxbai_rerank_v2.py`). The strings are
/// encoded one by one. Query and document share 8192 tokens. The query may take three quarters of them.
static MXBAI_RERANK_V2: Family = Family {
    name: "mxbai-rerank-v2",
    names: &["mxbai-rerank-base-v2", "mxbai-rerank-large-v2"],
    model_types: &["qwen2"],
    prompt: mxbai!("query: {query}"),
    instructed: Some(mxbai!("instruction: {instruction}\nquery: {query}")),
    control_tokens: TURNS,
    answers: Some(Answers::weighted_logits(&[FamilyAnswer::text("1", 1.0), FamilyAnswer::text("0", -1.0)])),
    limits: Limits {
        prompt: 8192 + 256,
        texts: Some(8192),
        query: Some(QueryLimit::ThreeQuarters),
        document: None,
    },
    ..NONE
};

/// zerank-1, -1-small and -2 (the vendor's `modeling_zeranker.py`, and Cohere's reference code). The query is
/// the system's turn. The raw score is the logit of `Yes` with a capital letter. A fifth of it is the
/// log-odds.
static ZERANK: Family = Family {
    name: "zerank",
    names: &["zerank"],
    model_types: &["qwen3"],
    prompt: &[
        "<|im_start|>system\n{query}<|im_end|>\n<|im_start|>user\n{document}<|im_end|>\n<|im_start|>assistant\n",
    ],
    instructed: Some(&[concat!(
        "<|im_start|>system\n<query>{query}</query>\n<instruction>{instruction}</instruction><|im_end|>\n",
        "<|im_start|>user\n{document}<|im_end|>\n<|im_start|>assistant\n"
    )]),
    control_tokens: TURNS,
    strips: &[Slot::Query, Slot::Document],
    answers: Some(Answers::weighted_logits(&[FamilyAnswer::text("Yes", 1.0)])),
    score: ScoreRule::Sigmoid { offset: 0.0, divisor: 5.0 },
    ..NONE
};

/// ctxl-rerank-v2-instruct-multilingual-1b and -2b (the card's code). Plain text with the document first, so
/// that documents share only the first sentence. The raw score is the logit of the vocabulary's first token.
static CTXL_RERANK: Family = Family {
    name: "ctxl-rerank",
    names: &["ctxl-rerank"],
    model_types: &["qwen3"],
    prompt: &[ctxl!("", "{query}")],
    instructed: Some(&[ctxl!("", "{query} {instruction}")]),
    answers: Some(Answers::weighted_logits(&[FamilyAnswer { token: AnswerName::Id(0), weight: 1.0 }])),
    limits: Limits { query: Some(QueryLimit::Tokens(4096)), ..Limits::DEFAULT },
    ..NONE
};

/// ctxl-rerank-v2-instruct-multilingual-6b, based on Mistral, whose tokenizer begins a text with its own
/// token.
static CTXL_RERANK_MISTRAL: Family = Family {
    name: "ctxl-rerank-6b",
    names: &["ctxl-rerank"],
    model_types: &["mistral"],
    prompt: &[ctxl!("<s>", "{query}")],
    instructed: Some(&[ctxl!("<s>", "{query} {instruction}")]),
    control_tokens: &["<s>"],
    answers: Some(Answers::weighted_logits(&[FamilyAnswer { token: AnswerName::Id(0), weight: 1.0 }])),
    limits: Limits { query: Some(QueryLimit::Tokens(4096)), ..Limits::DEFAULT },
    ..NONE
};

/// bge-reranker-v2-gemma (`FlagEmbedding`, `inference/reranker/decoder_only/base.py`). The strings are
/// encoded one by one. Callers may replace the sentence at the end, so it is the instruction.
static BGE_RERANKER_GEMMA: Family = Family {
    name: "bge-reranker-v2-gemma",
    names: &["bge-reranker-v2-gemma"],
    model_types: &["gemma"],
    prompt: &["<bos>", "A: {query}", "\n", "B: {document}", "\n", "{instruction}"],
    control_tokens: &["<bos>"],
    default_instruction: Some(
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a \
         prediction of either 'Yes' or 'No'.",
    ),
    answers: Some(Answers::weighted_logits(&[FamilyAnswer::text("Yes", 1.0)])),
    limits: Limits { query: Some(QueryLimit::ThreeQuarters), ..Limits::DEFAULT },
    ..NONE
};

/// bge-reranker-v2-minicpm-layerwise (`FlagEmbedding`, `inference/reranker/decoder_only/layerwise.py`). The
/// strings of bge-reranker-v2-gemma, each encoded separately, which matters for a tokenizer that marks the
/// beginning of a text. A head after one of the layers computes the score.
static BGE_RERANKER_MINICPM: Family = Family {
    name: "bge-reranker-v2-minicpm-layerwise",
    names: &["bge-reranker-v2-minicpm"],
    architectures: &["LayerWiseMiniCPMForCausalLM"],
    model_types: &["minicpm"],
    prompt: &["<s>", "A: {query}", "\n", "B: {document}", "\n", "{instruction}"],
    control_tokens: &["<s>"],
    answers: None,
    ..BGE_RERANKER_GEMMA
};

/// llama-nemotron-rerank-1b-v2 and llama-3.2-nv-rerankqa-1b-v2 (NVIDIA's card). A head reads the mean of all
/// states.
static LLAMA_NEMOTRON: Family = Family {
    name: "llama-nemotron-rerank",
    names: &["nemotron-rerank", "nv-rerankqa"],
    architectures: &["LlamaBidirectionalForSequenceClassification"],
    model_types: &["llama_bidirec"],
    takes_unnamed: true,
    prompt: &["<|begin_of_text|>question:{query} \n \n passage:{document}"],
    control_tokens: &["<|begin_of_text|>"],
    ..NONE
};

/// Qwen3-VL-Reranker (Qwen3-VL-Embedding, `qwen3_vl_reranker.py`), for texts only. No space after the labels,
/// nothing between instruction and query, `NULL` for an empty text, no thinking.
static QWEN3_VL_RERANKER: Family = Family {
    name: "qwen3-vl-reranker",
    names: &["qwen3-vl-reranker"],
    model_types: &["qwen3_vl"],
    takes_unnamed: true,
    prompt: &[judge!(
        "<Instruct>: {instruction}<Query>:{query}\n<Document>:{document}",
        "<|im_end|>\n<|im_start|>assistant\n"
    )],
    control_tokens: TURNS,
    empty: "NULL",
    default_instruction: Some("Given a search query, retrieve relevant candidates that answer the query."),
    answers: QWEN3_RERANKER.answers,
    ..NONE
};

/// Prism-Qwen3.5-Reranker (the card's script). Like Qwen3-Reranker, without the sentence about "yes" and
/// "no", and with an instruction that callers do not choose.
static PRISM_RERANKER: Family = Family {
    name: "prism-qwen3.5-reranker",
    names: &["prism-qwen3.5-reranker"],
    model_types: &["qwen3_5", "qwen3_5_text"],
    prompt: &[concat!(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
        "provided. <|im_end|>\n<|im_start|>user\n<Instruct>: Judge if the document is relevant to the query. Reply ",
        "\"yes\" or \"no\".\nOn \"yes\", also emit:\n<contribution>One sentence covering every core point the ",
        "document contributes to the query, without elaboration.</contribution>\n<evidence>Self-contained rewrite of ",
        "the query-relevant content. Rules:\n- Faithful: rephrase only; add or infer nothing.\n- Self-contained: ",
        "evidence alone must fully answer the query.\n- Concise: drop query-irrelevant background.\n- Verbatim (no ",
        "translation): proper nouns, terms, abbreviations, numbers, dates, code, URLs.\n- Output language: ",
        "multilingual doc → query's language; else doc's language.</evidence>\n<Query>: {query}\n",
        "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )],
    control_tokens: TURNS,
    answers: QWEN3_RERANKER.answers,
    limits: Limits { prompt: 10_240, ..Limits::DEFAULT },
    ..NONE
};

/// jina-reranker-m0 (the repository's `modeling.py`), for texts only. The document comes first. The last
/// token is 100, and a head reads its state. Raw scores are around 2.65.
static JINA_RERANKER_M0: Family = Family {
    name: "jina-reranker-m0",
    names: &["jina-reranker-m0"],
    architectures: &["JinaVLForRanking"],
    model_types: &["qwen2_vl"],
    prompt: &["**Document**:\n{document}\n**Query**:\n{query}"],
    last_token: Some(100),
    score: ScoreRule::Sigmoid { offset: 2.65, divisor: 1.0 },
    limits: Limits { prompt: 10_240, texts: None, query: Some(QueryLimit::Tokens(512)), document: None },
    ..NONE
};

/// jina-reranker-v3's prompt, with text for the instruction.
macro_rules! jina_v3 {
    ($instruction:expr) => {
        concat!(
            "<|im_start|>system\nYou are a search relevance expert who can determine a ranking of the passages based on how ",
            "relevant they are to the query. If the query is a question, how relevant a passage is depends on how well it ",
            "answers the question. If not, try to analyze the intent of the query and assess how well each passage satisfies ",
            "the intent. If an instruction is provided, you should follow the instruction when determining the ranking.",
            "<|im_end|>\n<|im_start|>user\nI will provide you with {count} passages, each indicated by a numerical identifier. ",
            "Rank the passages based on their relevance to query: {query}\n",
            $instruction,
            "{each}<passage id=\"{number}\">\n{document}<|embed_token|>\n</passage>\n{end}",
            "<query>\n{query}<|rerank_token|>\n</query><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
    };
}

/// jina-reranker-v3 (the repository's `modeling.py`). All documents are in one prompt, up to 125 and as many
/// as the positions allow (`rerank`). The raw score is the cosine of two vectors. The authors use half of its
/// distance from -1 to weigh prompts.
static JINA_RERANKER_V3: Family = Family {
    name: "jina-reranker-v3",
    architectures: &["JinaForRanking"],
    model_types: &["qwen3"],
    prompt: &[jina_v3!("")],
    instructed: Some(&[jina_v3!("<instruct>\n{instruction}\n</instruct>\n")]),
    control_tokens: &["<|im_start|>", "<|im_end|>", "<|embed_token|>", "<|rerank_token|>"],
    list: Some(ListRules {
        marks: ["<|embed_token|>", "<|rerank_token|>"],
        removes: &["<|rerank_token|>", "<|embed_token|>"],
        max_documents: 125,
    }),
    score: ScoreRule::COSINE,
    limits: Limits {
        prompt: 131_072,
        texts: None,
        query: Some(QueryLimit::Tokens(512)),
        document: Some(2048),
    },
    ..NONE
};

/// Embedding models whose authors' code does more than their files say.
pub static EMBEDDERS: &[Embedder] = &[Embedder {
    name: "E2Rank",
    names: &["e2rank"],
    model_types: &["qwen3"],
    last_token: "<|endoftext|>",
    query_prompt: "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
}];

/// Models that are refused by name.
pub static UNSERVED: &[Unserved] = &[
    Unserved {
        names: &["erank-4b", "erank-14b", "erank-32b"],
        reason: "it writes a chain of reasoning and then a score, and this server computes scores in one forward pass for \
                 each pair; run it with a server that generates text",
    },
    Unserved {
        names: &[
            "lb-reranker",
            "rank_zephyr",
            "rank-zephyr",
            "rank_vicuna",
            "rank-vicuna",
            "rankgpt",
            "rank1-",
            "reasonrank",
            "lighton-rerank-lw",
        ],
        reason: "it generates its ranking as text, and this server computes scores in one forward pass for each pair; run \
                 it with a server that generates text",
    },
    Unserved {
        names: &["uembed"],
        reason: "its vector is the state before several end tokens that only its own chat template writes, which is not \
                 computed",
    },
    Unserved {
        names: &["bge-reranker-v2.5-gemma2"],
        reason: "it merges neighbouring tokens on its way through the layers (compress_ratio), which is not computed; \
                 choose bge-reranker-v2-gemma or bge-reranker-v2-m3",
    },
];

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::{AnswerSource, answer_tokens, test_tokenizer::small_tokenizer};
    use text_embeddings_backend_core::AnswerRule;

    /// Ten ratings, whose expected value is the raw score.
    static RATINGS: Family = Family {
        name: "ratings",
        prompt: &["{query}\n{document}\nRating from 0 to 9: "],
        answers: Some(Answers {
            tokens: &[
                FamilyAnswer::text("0", 0.0),
                FamilyAnswer::text("1", 1.0),
                FamilyAnswer::text("2", 2.0),
                FamilyAnswer::text("3", 3.0),
                FamilyAnswer::text("4", 4.0),
                FamilyAnswer::text("5", 5.0),
                FamilyAnswer::text("6", 6.0),
                FamilyAnswer::text("7", 7.0),
                FamilyAnswer::text("8", 8.0),
                FamilyAnswer::text("9", 9.0),
            ],
            rule: AnswerRule::ExpectedWeight,
        }),
        score: ScoreRule::Linear { offset: 0.0, divisor: 9.0 },
        ..NONE
    };

    #[test]
    fn a_family_that_answers_with_ten_ratings_is_a_row() {
        let tokenizer = small_tokenizer();
        let answers = answer_tokens(&tokenizer, AnswerSource::Family(RATINGS.answers.unwrap())).unwrap();
        let ids: Vec<u32> = answers.tokens.iter().map(|answer| answer.id).collect();
        let digits: Vec<u32> =
            (0..10).map(|digit| tokenizer.token_to_id(&digit.to_string()).unwrap()).collect();
        assert_eq!(ids, digits);
        // The probability of the rating r is (r + 1) / 55, so the expected rating is 330 / 55.
        let logits: Vec<f64> = (1..=10).map(|power| f64::from(power).ln()).collect();
        let raw = answers.raw_score(&logits);
        assert!((raw - 6.0).abs() < 1e-6, "{raw}");
        assert!((RATINGS.score.apply(raw) - 2.0 / 3.0).abs() < 1e-6);
        assert_eq!(RATINGS.answers.unwrap().to_string().matches(" and ").count(), 9);
    }
}

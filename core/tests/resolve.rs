//! `Model::resolve` on the models of `integration_tests/reference/fixtures`: files and flags, and the model
//! or the refusal.
//!
//! What must hold: a flag takes precedence over the files, and these over the family; a flag without effect
//! is refused.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::path::PathBuf;

use serde_json::Value;
use text_embeddings_backend_core::{BackendError, Description, Head, WholeHead};
use text_embeddings_core::{
    families::{self, ScoreRule},
    files::{ChosenTemplate, ModelFolder, Reader},
    model::{LengthFlags, Model, ModelFlags, ModelKind, PromptFlag, Reading, Refusal, RequestedType},
    templates::MessageStyle,
    tokenization::NamedAnswer,
};
use tokenizers::Tokenizer;

/// Describes a config.json with the usual names of fields.
#[expect(clippy::unnecessary_wraps, reason = "the signature that `ModelFolder::open` takes")]
fn describe(config: &Value) -> Result<Description, BackendError> {
    let number = |field: &str| config[field].as_u64().map(|number| usize::try_from(number).unwrap());
    let is_causal = config["architectures"][0].as_str().is_some_and(|name| name.ends_with("ForCausalLM"));
    Ok(Description {
        max_length: number("max_position_embeddings"),
        is_causal,
        hidden: number("hidden_size").unwrap(),
        vocabulary: number("vocab_size").unwrap(),
        ..Description::default()
    })
}

fn resolve(name: &str, flags: &ModelFlags) -> Result<Model, Refusal> {
    resolve_changed(name, flags, |_| ())
}

/// The same for other content of the fixture's files.
fn resolve_changed(
    name: &str,
    flags: &ModelFlags,
    change: impl FnOnce(&mut ModelFolder),
) -> Result<Model, Refusal> {
    let fixtures =
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../integration_tests/reference/fixtures"));
    let found = ["rerankers", "served", "models"].map(|folder| fixtures.join(folder).join(name));
    let folder = found.into_iter().find(|folder| folder.join("config.json").exists()).unwrap();
    let mut files = ModelFolder::open(&folder, &Reader::default(), &describe).unwrap();
    change(&mut files);
    Model::resolve(&files, &Tokenizer::from_file(folder.join("tokenizer.json")).unwrap(), flags)
}

fn flags(change: impl FnOnce(&mut ModelFlags)) -> ModelFlags {
    let lengths = LengthFlags { auto_truncate: true, on_cpu: true, ..LengthFlags::default() };
    let mut flags = ModelFlags { lengths, ..ModelFlags::default() };
    change(&mut flags);
    flags
}

/// `--chat-template` with a family's name.
fn family(name: &str) -> PromptFlag {
    PromptFlag::Builtin(families::by_name(name).unwrap())
}

/// `--chat-template` with a file of this text.
fn template(source: &str) -> PromptFlag {
    PromptFlag::File { path: "my.jinja".into(), source: source.to_owned() }
}

/// A template without a place for an instruction.
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {% if m.role == 'query' %}{{ m.content }}{% endif %}{% if m.role == 'document' %}{{ m.content }}{% endif %}
{% endfor %}";

/// The decisions about a re-ranker in a line.
fn summary(model: &Model) -> String {
    let reranker = model.reranker().unwrap();
    let reading = match reranker.reading {
        Reading::Joined => "joined",
        Reading::Template(_) if reranker.reads_lists() => "lists",
        Reading::Template(_) => "template",
    };
    let family = reranker.family.as_ref().map_or("-", |family| family.value.name);
    let instruction = reranker.shown_instruction().map(|text| text.chars().take(12).collect::<String>());
    let answers = reranker.answers.as_deref().unwrap_or("-");
    let score = &reranker.score;
    let source = score.source.split("; sentence-transformers").next().unwrap_or_default();
    format!("{reading}; {family}; {answers}; {} by {source}; {instruction:?}", score.value)
}

/// Resolves each model with its flags, and compares the summary.
fn check<const N: usize>(table: [(&str, ModelFlags, &str); N]) {
    for (name, flags, expected) in table {
        let model = resolve(name, &flags).unwrap();
        assert_eq!(summary(&model), expected, "{name}");
        let is_generative =
            matches!(model.head.whole, Some(WholeHead::Answers(_))) || model.head == Head::PROJECTOR;
        assert_eq!(model.reranker().unwrap().is_generative, is_generative, "{name}");
    }
}

#[test]
fn flags_take_precedence_over_the_files_of_a_re_ranker() {
    check([
        (
            "tied-f32-bare",
            flags(|it| it.chat_template = Some(family("qwen3-reranker"))),
            "template; qwen3-reranker; `yes` (262) less `no` (259), by the family qwen3-reranker; sigmoid by the family qwen3-reranker; Some(\"Given a web \")",
        ),
        (
            "tied-bf16",
            flags(|_| ()),
            "template; qwen3-reranker; `yes` (262) less `no` (259), by 1_LogitScore/config.json; sigmoid by the family qwen3-reranker; Some(\"Given a web \")",
        ),
        (
            "tied-bf16",
            flags(|it| it.default_instruction = Some("Judge it.".to_owned())),
            "template; qwen3-reranker; `yes` (262) less `no` (259), by 1_LogitScore/config.json; sigmoid by the family qwen3-reranker; Some(\"Judge it.\")",
        ),
        (
            "tied-bf16",
            flags(|it| it.default_instruction = Some(String::new())),
            "template; qwen3-reranker; `yes` (262) less `no` (259), by 1_LogitScore/config.json; sigmoid by the family qwen3-reranker; Some(\"\")",
        ),
        (
            "tied-bf16",
            flags(|it| it.chat_template = Some(family("mxbai-rerank-v2"))),
            "template; mxbai-rerank-v2; `yes` (262) less `no` (259), by 1_LogitScore/config.json; sigmoid by the family mxbai-rerank-v2; Some(\"Given a web \")",
        ),
        (
            "tied-bf16",
            flags(|it| it.chat_template = Some(template(PLAIN))),
            "template; -; `yes` (262) less `no` (259), by 1_LogitScore/config.json; sigmoid by the rule for all re-rankers; None",
        ),
        (
            "tied-bf16",
            flags(|it| it.rerank_true_token = Some(NamedAnswer::Id(7))),
            "template; qwen3-reranker; `(` (7), by `--rerank-true-token`; sigmoid by the family qwen3-reranker; Some(\"Given a web \")",
        ),
        (
            "tied-bf16",
            flags(|it| it.rerank_activation = Some(ScoreRule::Identity)),
            "template; qwen3-reranker; `yes` (262) less `no` (259), by 1_LogitScore/config.json; identity by `--rerank-activation`; Some(\"Given a web \")",
        ),
    ]);
}

#[test]
fn the_files_and_the_family_decide_a_re_ranker_s_prompt_answers_score_and_instruction() {
    check([
        (
            "tied-f32-bare",
            flags(|it| it.model_type = Some(RequestedType::ListwiseReranker)),
            "template; qwen3-reranker; `yes` (262) less `no` (259), by the family qwen3-reranker; sigmoid by the family qwen3-reranker; Some(\"Given a web \")",
        ),
        (
            "seq-cls-1",
            flags(|_| ()),
            "template; qwen3-reranker; -; sigmoid by the family qwen3-reranker; Some(\"Given a web \")",
        ),
        (
            "seq-cls-2",
            flags(|it| it.model_type = Some(RequestedType::Reranker)),
            "template; qwen3-reranker; -; sigmoid by the family qwen3-reranker; Some(\"Given a web \")",
        ),
        ("bert-cross-encoder", flags(|_| ()), "joined; -; -; sigmoid by the rule for all re-rankers; None"),
        ("ettin-modular", flags(|_| ()), "joined; -; -; sigmoid by the rule for all re-rankers; None"),
        (
            "mxbai-rerank-base-v2",
            flags(|_| ()),
            "template; mxbai-rerank-v2; `1` (16) less `0` (15), by the family mxbai-rerank-v2; sigmoid by the family mxbai-rerank-v2; Some(\"\")",
        ),
        (
            "zerank-1-small",
            flags(|_| ()),
            "template; zerank; `Yes` (264), by the family zerank; sigmoid(x/5) by the family zerank; Some(\"\")",
        ),
        (
            "bge-reranker-v2-gemma",
            flags(|_| ()),
            "template; bge-reranker-v2-gemma; `Yes` (559), by the family bge-reranker-v2-gemma; sigmoid by the family bge-reranker-v2-gemma; Some(\"Given a quer\")",
        ),
        (
            "jina-reranker-m0",
            flags(|_| ()),
            "template; jina-reranker-m0; -; sigmoid(x-2.65) by the family jina-reranker-m0; None",
        ),
        (
            "llama-nemotron-rerank-1b-v2",
            flags(|_| ()),
            "template; llama-nemotron-rerank; -; sigmoid by the family llama-nemotron-rerank; None",
        ),
        (
            "jina-reranker-v3",
            flags(|_| ()),
            "lists; jina-reranker-v3; -; (x+1)/2 by the family jina-reranker-v3; Some(\"\")",
        ),
        (
            "jina-reranker-v3",
            flags(|it| it.default_instruction = Some("Judge it.".to_owned())),
            "lists; jina-reranker-v3; -; (x+1)/2 by the family jina-reranker-v3; Some(\"Judge it.\")",
        ),
    ]);
}

/// A template that begins with a special token of the tokenizer's files.
const WITH_TOKEN: &str = "{{ bos_token }}{% for m in messages %}{% if m.role in ['query', 'document'] %}{{ m.content }}{{ sep_token }}{% endif %}{% endfor %}";

#[test]
fn a_template_gets_the_special_tokens_of_the_tokenizer_s_files() {
    let name = "ctxl-rerank-v2-instruct-multilingual-6b";
    for (from_flag, variable, expected) in
        [(true, None, "<s>q|d|"), (false, None, "<s>q|d|"), (false, Some("B"), "Bq|d|")]
    {
        let flags = flags(|it| it.chat_template = from_flag.then(|| template(WITH_TOKEN)));
        let model = resolve_changed(name, &flags, |files| {
            files.special_tokens.insert("sep_token".to_owned(), "|".to_owned());
            let variables = variable.map(|text| ("bos_token".to_owned(), text.into())).into_iter().collect();
            let style = MessageStyle { variables, ..MessageStyle::plain() };
            let (source, place, renders_pairs) = (WITH_TOKEN.to_owned(), String::new(), false);
            let chosen = ChosenTemplate { source, place, style, renders_pairs };
            files.chat_template = (!from_flag).then_some(chosen);
        });
        let model = model.unwrap();
        let Reading::Template(found) = &model.reranker().unwrap().reading else { unreachable!() };
        assert_eq!(found.render(None, "q", "d"), expected);
    }
}

#[test]
fn a_template_that_renders_the_pairs_is_learned_or_refused_whatever_roles_it_names() {
    let with = |document: &str| {
        format!(
            "{{% for m in messages %}}{{% if m.role == 'query' %}}Q{{{{ m.content }}}}{{% else %}}D{document}{{% endif %}}{{% endfor %}}"
        )
    };
    let through = "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}";
    let left_out =
        "the repository's chat template (chat_template.jinja): the chat template leaves the document out";
    for (source, expected) in [
        (with("{{ m.content }}"), Ok("QqDd")),
        (through.to_owned(), Ok("query q\ndocument d\n")),
        (with(""), Err(left_out)),
        ("{% a syntax that Jinja does not know".to_owned(), Err("a general one")),
    ] {
        let found = resolve_changed("tied-bf16", &flags(|_| ()), |files| {
            files.default_prompt_name = None;
            let chosen = files.chat_template.as_mut().unwrap();
            (chosen.source, chosen.renders_pairs) = (source.clone(), true);
        });
        match (found, expected) {
            (Ok(model), Ok(expected)) => {
                let Reading::Template(found) = &model.reranker().unwrap().reading else { unreachable!() };
                assert_eq!(found.render(None, "q", "d"), expected, "{source}");
            }
            (Err(refusal), Err(part)) => assert!(refusal.to_string().contains(part), "{source}: {refusal}"),
            (found, _) => unreachable!("{source}: {found:?}"),
        }
    }
}

#[test]
fn an_embedding_model_s_outputs_and_a_classifier_s_labels() {
    for (name, dense, sparse, tokens) in [
        ("bert-embedding-mean", true, false, true),
        ("bge-m3", true, true, true),
        ("bert-splade-saved", false, true, false),
    ] {
        let model = resolve(name, &flags(|_| ())).unwrap();
        let ModelKind::Embedder(embedder) = &model.kind else { unreachable!("{name}") };
        let outputs = embedder.outputs;
        assert_eq!((outputs.whole, outputs.sparse, outputs.tokens), (dense, sparse, tokens), "{name}");
    }
    let classifier = resolve("bert-classifier-3", &flags(|_| ())).unwrap();
    assert_eq!((classifier.labels().len(), classifier.head), (3, Head::classification(3)));
    assert_eq!(
        resolve("bge-m3", &flags(|it| it.default_prompt = Some("Q: ".to_owned()))).unwrap().prompts().default,
        "Q: "
    );
}

#[test]
fn an_activation_of_the_files_that_does_not_apply_is_said_with_the_one_that_does() {
    for (flag, expected) in [
        (
            None,
            "the rule for all re-rankers; sentence-transformers applies the model's own activation, identity, instead",
        ),
        (Some("identity"), "`--rerank-activation`"),
    ] {
        let flags = flags(|it| it.rerank_activation = flag.map(|rule| rule.parse().unwrap()));
        let model = resolve("bert-cross-encoder", &flags).unwrap();
        let reranker = model.reranker().unwrap();
        assert_eq!(reranker.score_activation.as_deref(), Some("identity"));
        assert_eq!(reranker.score.source, expected);
    }
}

#[test]
fn a_prompt_that_plain_pairs_have_no_place_for_is_refused() {
    for (prompt, is_refused) in [("red: ", true), ("", false)] {
        let found = resolve_changed("bert-cross-encoder", &flags(|_| ()), |files| {
            files.default_prompt_name = Some("query".to_owned());
            files.prompts.insert("query".to_owned(), prompt.to_owned());
        });
        let message = found.err().map(|refusal| refusal.to_string()).unwrap_or_default();
        assert_eq!(message.contains("puts `red: ` before each query"), is_refused, "{message}");
    }
}

#[test]
fn a_flag_that_would_have_no_effect_is_refused_by_name() {
    let instruction = |it: &mut ModelFlags| it.default_instruction = Some("Judge it.".to_owned());
    for (name, flags, part, expected) in [
        ("bert-cross-encoder", flags(instruction), "prompt", "`--default-instruction` has no place in `"),
        (
            "tied-bf16",
            flags(|it| {
                instruction(it);
                it.chat_template = Some(template(PLAIN));
            }),
            "prompt",
            "`--default-instruction` has no place in this model's prompt",
        ),
        (
            "tied-bf16",
            flags(|it| it.chat_template = Some(family("jina-reranker-v3"))),
            "template",
            "`--chat-template jina-reranker-v3` is the prompt of another architecture (JinaForRanking)",
        ),
        (
            "jina-reranker-v3",
            flags(|it| it.chat_template = Some(family("zerank"))),
            "template",
            "`--chat-template` has no effect on `",
        ),
        (
            "jina-reranker-v3",
            flags(|it| it.rerank_true_token = Some(NamedAnswer::Id(7))),
            "template",
            "`--rerank-true-token` is for re-rankers that answer with a token",
        ),
        (
            "tied-bf16",
            flags(|it| it.chat_template = Some(template("{{ 'query' 'document' "))),
            "template",
            "`--chat-template my.jinja`: give a Jinja file, or one of builtin, qwen3-reranker",
        ),
        (
            "tied-bf16",
            flags(|it| it.rerank_true_token = Some(NamedAnswer::Id(u32::MAX))),
            "answers",
            "`--rerank-true-token`",
        ),
        ("tied-f32-bare", flags(|_| ()), "kind", "nothing in the files of `tied-f32-bare` says what it is"),
        (
            "bge-m3",
            flags(|it| it.given = vec!["--chat-template"]),
            "kind",
            "`--chat-template` is for re-rankers",
        ),
        (
            "bge-m3",
            flags(|it| it.default_prompt_name = Some("x".to_owned())),
            "template",
            "`--default-prompt-name` `x` is unknown",
        ),
        (
            "bert-cross-encoder",
            flags(|it| it.lengths.max_input_length = Some(1 << 20)),
            "kind",
            "`--max-input-length 1048576` is more than the",
        ),
    ] {
        let refusal = resolve(name, &flags).unwrap_err();
        assert_eq!(refusal.part(), part, "{name}: {refusal}");
        assert!(refusal.to_string().starts_with(expected), "{name}: {refusal}");
    }
}

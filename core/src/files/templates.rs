//! Chooses a re-ranker's chat template among the templates of a repository.
//!
//! Input: `chat_template.jinja`, `additional_chat_templates/*.jinja`, the templates in
//! `tokenizer_config.json`, and the settings in `sentence_bert_config.json`. Output: a [`ChosenTemplate`].
//! What must hold: if the files name a template, it is used, or its absence is an error.

use std::collections::BTreeMap;

use super::config::{ChatTemplateField, Module, SentenceBert, TokenizerConfig};
use super::error::FilesError;
use super::names::{Bound, CHAT_TEMPLATE};
use super::reading::{FileText, read_text};
use super::repository::Repository;
use crate::templates::{MessageStyle, template_has_roles, template_names_role};

/// A chat template from a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenTemplate {
    /// Its text.
    pub source: String,
    /// The place of the template, for messages.
    pub place: String,
    /// The form in which it gets its messages.
    pub style: MessageStyle,
    /// Whether pairs are read in it, whatever roles its text names: a `LogitScore` follows, and
    /// sentence-transformers makes messages of the pairs, or the text names one of the roles.
    pub renders_pairs: bool,
}

/// The folder in which `transformers` stores all templates but the default one.
const ADDITIONAL: &str = "additional_chat_templates";
/// The names of templates for re-ranking, if no file names the template.
const NAMES: [&str; 3] = ["reranker", "rerank", "score"];

/// Chooses the template that `sentence_bert_config.json` names, otherwise the first with query and document
/// roles, otherwise the default one.
pub(super) async fn choose(
    repository: &Repository<'_>,
    config: TokenizerConfig,
    sentence_bert: Option<&SentenceBert>,
    modules: &[Module],
) -> Result<Option<ChosenTemplate>, FilesError> {
    let has_template = config.chat_template.is_some() || repository.has(CHAT_TEMPLATE);
    if has_template && sentence_bert.is_some_and(SentenceBert::reads_messages) && makes_vectors(modules) {
        return Err(FilesError::Refused(format!(
            "{} says that each text is put into the tokenizer's chat template (`message` in `modality_config` of \
             sentence_bert_config.json), which is not supported for vectors: remove `message` there if the model \
             was trained on plain texts",
            repository.place()
        )));
    }
    // Without modules, `sentence_bert_config.json` does not describe a re-ranker's template.
    let style = match sentence_bert {
        Some(settings) if !modules.is_empty() => settings.message_style(),
        _ => MessageStyle::plain(),
    };
    let scores_tokens = modules.iter().any(|module| module.class_name() == "LogitScore");
    let reads_messages = sentence_bert.is_some_and(SentenceBert::reads_messages);
    let chosen = |(place, source): (String, String)| ChosenTemplate {
        renders_pairs: scores_tokens && (reads_messages || template_names_role(&source)),
        source,
        place,
        style: style.clone(),
    };
    let in_config = config.chat_template.map(ChatTemplateField::named).unwrap_or_default();
    if let Some(named) = sentence_bert.and_then(SentenceBert::chat_template) {
        if named.contains("{{") || named.contains("{%") {
            let place = "sentence_bert_config.json".to_owned();
            return Ok(Some(chosen((place, named.to_owned()))));
        }
        return Ok(Some(chosen(by_name(repository, &in_config, named).await?)));
    }
    let mut found = Vec::new();
    let additional = NAMES.map(|name| format!("{ADDITIONAL}/{name}.jinja"));
    for file in [CHAT_TEMPLATE.to_owned()].into_iter().chain(additional) {
        if let Some(FileText { text, .. }) = repository.read_text(&file).await? {
            found.push((file, text));
        }
    }
    let of_config = NAMES.iter().chain(&["default"]).filter_map(|name| in_config.get(*name));
    found.extend(of_config.map(|source| ("tokenizer_config.json".to_owned(), source.clone())));
    let place = found.iter().position(|(_, source)| template_has_roles(source)).unwrap_or(0);
    Ok(if found.is_empty() { None } else { Some(chosen(found.swap_remove(place))) })
}

/// Whether the modules compute vectors of texts or of their tokens.
fn makes_vectors(modules: &[Module]) -> bool {
    modules
        .iter()
        .any(|module| ["Pooling", "MultiVectorMask", "SpladePooling"].contains(&module.class_name()))
}

/// The template with this name, and its place.
async fn by_name(
    repository: &Repository<'_>,
    in_config: &BTreeMap<String, String>,
    name: &str,
) -> Result<(String, String), FilesError> {
    let file = format!("{ADDITIONAL}/{name}.jinja");
    let default = name == "default" && repository.has(CHAT_TEMPLATE);
    let file = if default { CHAT_TEMPLATE.to_owned() } else { file };
    if !repository.has(&file)
        && let Some(source) = in_config.get(name)
    {
        return Ok((format!("tokenizer_config.json ({name})"), source.clone()));
    }
    if name.is_empty() || name.contains('/') {
        return Err(FilesError::Refused(format!(
            "sentence_bert_config.json names the chat template `{name}`, which cannot be a file of \
             additional_chat_templates: correct it, or give `--chat-template`"
        )));
    }
    let remedy = "sentence_bert_config.json names it; download the model again with this folder";
    let found = repository.require(&file, Bound::Small, remedy).await?;
    Ok((file, read_text(&found)?.text))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::reading::run_ready;
    use super::*;
    use std::fs;

    /// `tokenizer_config.json`, further files with their texts, and the expected template.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<&'a str>);

    const ROLES: &str = "'query' 'document'";

    /// The template chosen from these files. The first argument is `tokenizer_config.json`, the second
    /// `sentence_bert_config.json`.
    fn chosen(
        config: &str,
        sentence_bert: Option<&str>,
        files: &[(&str, &str)],
    ) -> Result<Option<ChosenTemplate>, FilesError> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(ADDITIONAL)).unwrap();
        for (name, text) in files {
            fs::write(root.path().join(name), text).unwrap();
        }
        let sentence_bert = sentence_bert.map(|text| serde_json::from_str::<SentenceBert>(text).unwrap());
        let modules = ["x.Transformer", "x.LogitScore"]
            .map(|class| Module { class: class.to_owned(), path: String::new() });
        let repository = Repository::Folder(root.path().to_owned());
        let config = serde_json::from_str(config).unwrap();
        run_ready(choose(&repository, config, sentence_bert.as_ref(), &modules))
    }

    #[test]
    fn a_template_for_reranking_goes_before_the_default() {
        let additional = |name: &str| format!("{ADDITIONAL}/{name}.jinja");
        let (reranker, score) = (additional("reranker"), additional("score"));
        let table: [Case<'_>; 10] = [
            (r#"{"chat_template":"a"}"#, &[], Some("a")),
            (
                r#"{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}"#,
                &[],
                Some("d"),
            ),
            (
                r#"{"chat_template":[{"name":"default","template":"d"},{"name":"reranker","template":"r"}]}"#,
                &[],
                Some("r"),
            ),
            (r#"{"chat_template":[{"name":"rerank","template":"r"}]}"#, &[], Some("r")),
            (r#"{"chat_template":[{"name":"tool_use","template":"t"}]}"#, &[], None),
            (r#"{"chat_template":null}"#, &[], None),
            (r#"{"chat_template":"a"}"#, &[(CHAT_TEMPLATE, "own")], Some("own")),
            ("{}", &[(CHAT_TEMPLATE, "general"), (&reranker, ROLES)], Some(ROLES)),
            ("{}", &[(&score, ROLES)], Some(ROLES)),
            ("{}", &[(CHAT_TEMPLATE, ROLES), (&score, "general")], Some(ROLES)),
        ];
        for (config, files, expected) in table {
            let found = chosen(config, None, files).unwrap();
            assert_eq!(found.as_ref().map(|found| found.source.as_str()), expected, "{config} {files:?}");
            assert!(found.is_none_or(|found| found.style == MessageStyle::plain()));
        }
    }

    #[test]
    fn a_template_before_a_logit_score_renders_pairs_if_the_settings_say_so_or_it_names_a_role() {
        for (template, sentence_bert, expected) in [
            ("a", None, false),
            ("a", Some(r#"{"modality_config":{"text":{}}}"#), false),
            ("a", Some(r#"{"modality_config":{"text":{},"message":{}}}"#), true),
            ("m.role == 'query'", Some("{}"), true),
        ] {
            let config = serde_json::json!({ "chat_template": template }).to_string();
            let found = chosen(&config, sentence_bert, &[]).unwrap().unwrap();
            assert_eq!(found.renders_pairs, expected, "{template} {sentence_bert:?}");
        }
    }

    #[test]
    fn the_template_that_sentence_transformers_names_is_taken_with_its_settings() {
        let config = r#"{"chat_template":[{"name":"other","template":"o"}]}"#;
        let kwargs = |rest: &str| {
            format!(
                r#"{{"processing_kwargs":{{"chat_template":{{{rest}}}}},"modality_config":{{"message":{{"format":"structured"}}}}}}"#
            )
        };
        let file = format!("{ADDITIONAL}/mine.jinja");
        let files = [(file.as_str(), "m"), (CHAT_TEMPLATE, ROLES)];
        let named = kwargs(
            r#""chat_template":"mine","add_generation_prompt":true,"restore_suffix":false,"enable_thinking":false"#,
        );
        let found = chosen(config, Some(&named), &files).unwrap().unwrap();
        assert_eq!((found.source.as_str(), found.place.as_str()), ("m", file.as_str()));
        let variables = [("enable_thinking".to_owned(), false.into())].into();
        assert_eq!(
            found.style,
            MessageStyle { structured: Some(true), add_generation_prompt: true, variables }
        );
        let found = chosen(config, Some(&kwargs(r#""chat_template":"other""#)), &files).unwrap().unwrap();
        assert_eq!((found.source.as_str(), found.style.add_generation_prompt), ("o", false));
        let inline = kwargs(r#""chat_template":"{{ messages }}""#);
        assert_eq!(chosen(config, Some(&inline), &files).unwrap().unwrap().source, "{{ messages }}");
        let default = kwargs(r#""chat_template":"default""#);
        assert_eq!(chosen(config, Some(&default), &files).unwrap().unwrap().source, ROLES);
        for (name, part) in [("gone", "gone.jinja"), ("../mine", "`../mine`")] {
            let named = kwargs(&format!(r#""chat_template":"{name}""#));
            let message = chosen(config, Some(&named), &files).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("sentence_bert_config.json"), "{message}");
        }
    }
}

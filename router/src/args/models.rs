//! The models of a server: one, several by `--model-id`, or the tables of a models file (`--models-file`).
//!
//! Input: the arguments as clap matched them, and the file. Output: the [`Args`] of each model. What must
//! hold: a key of the file is a flag and means the same; a flag of the whole server is refused in the file; a
//! table's own keys win over the command line, and that over the file's defaults.

use std::{
    collections::HashSet,
    ffi::OsString,
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command, CommandFactory, error::ErrorKind, parser::ValueSource};
use serde::Deserialize;
use text_embeddings_door::read_small_file;
use toml::{Table, Value};

use super::{Args, LoadTime};

/// The groups of flags that may be a model's own.
const MODEL_HEADINGS: [&str; 4] = ["Model", "Prompt", "Score", "Limits"];
/// Flags of these groups that are the server's.
const SERVER_FLAGS: [&str; 4] = ["instruction-set", "model-id", "models-file", "payload-limit"];
/// The key for further names of a model, which is no flag.
const ALIASES: &str = "aliases";
/// The tables of a models file.
const TABLES: [&str; 3] = ["defaults", "models", "cascade"];
/// The most models of a server.
const MAX_MODELS: usize = 1000;

/// The models that a server is to serve.
#[derive(Debug, Clone)]
pub(crate) struct ModelList {
    /// The arguments of each model, at least one.
    pub(crate) models: Vec<Args>,
    pub(crate) cascades: Vec<CascadeArgs>,
}

/// A cascade: a fast re-ranker scores all texts, and a strong one the best of them again.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct CascadeArgs {
    #[serde(skip)]
    pub(crate) name: String,
    /// Further names.
    #[serde(default)]
    pub(crate) aliases: Vec<String>,
    /// A name of the fast model.
    pub(crate) first: String,
    /// A name of the strong model.
    pub(crate) then: String,
    /// The most texts that the strong model scores.
    pub(crate) keep: NonZeroUsize,
    /// The milliseconds in which an answer is wanted.
    pub(crate) budget_ms: Option<NonZeroU32>,
}

/// The models that a server is to serve: the models file has them, or flags name them. The error is a
/// sentence about the file, or clap's about a flag in it.
pub(crate) fn model_list(
    command: &Command,
    matches: &ArgMatches,
    file: Option<&ModelsFile>,
    server: &Args,
) -> Result<ModelList, clap::Error> {
    let list = match file {
        Some(file) => file.read_list(),
        None => named_models(model_ids(matches), server)
            .and_then(|models| ModelList { models, cascades: Vec::new() }.check_models()),
    };
    list.map_err(|message| command.clone().error(ErrorKind::ValueValidation, message))
}

/// A models file, and the command line that goes with it.
#[derive(Debug, Clone)]
pub(crate) struct ModelsFile {
    path: PathBuf,
    command: Command,
    /// The process's arguments.
    arguments: Vec<OsString>,
}

impl ModelsFile {
    /// The file of `--models-file`; absent without that flag.
    pub(crate) fn from_args(command: &Command, arguments: &[OsString], server: &Args) -> Option<Self> {
        let path = server.models_file.clone()?;
        Some(Self { path, command: command.clone(), arguments: arguments.to_vec() })
    }

    /// This file, with a command line that has no other flag.
    pub(crate) fn from_path(path: &Path) -> Self {
        let arguments = vec!["text-embeddings-router".into()];
        Self { path: path.to_owned(), command: Args::command(), arguments }
    }

    /// Reads the file, as it is now. The error is a sentence that names the file and the place in it.
    pub(crate) fn read_list(&self) -> Result<ModelList, String> {
        let content = read_small_file("--models-file", &self.path).map_err(|error| format!("{error:#}"))?;
        let list = read_content(content, &self.command, &self.arguments);
        list.and_then(ModelList::check_models)
            .map_err(|problem| format!("--models-file {}: {problem}", self.path.display()))
    }
}

impl ModelList {
    /// Refuses too many models, none that is loaded at the start, a name that two have, and a cascade of
    /// models that are not there.
    fn check_models(self) -> Result<Self, String> {
        let Self { models, cascades } = &self;
        if models.iter().all(|model| model.load == LoadTime::FirstRequest) {
            return Err(
                "every model has `load = \"first-request\"`: one at least must load `at-start`, to answer \
                        requests that name none"
                    .to_owned(),
            );
        }
        if models.len() + cascades.len() > MAX_MODELS {
            let count = models.len() + cascades.len();
            return Err(format!("there are {count} models: at most {MAX_MODELS} are served"));
        }
        let of_models = models.iter().map(|model| (model.model_name(), &model.aliases));
        let of_cascades = cascades.iter().map(|cascade| (cascade.name.as_str(), &cascade.aliases));
        let mut names = HashSet::new();
        let mut all = of_models
            .chain(of_cascades)
            .flat_map(|(name, aliases)| std::iter::once(name).chain(aliases.iter().map(String::as_str)));
        if let Some(taken) = all.find(|name| !names.insert(*name)) {
            return Err(format!("two models have the name `{taken}`: give each another"));
        }
        for CascadeArgs { name, first, then, .. } in cascades {
            match (self.find_place(first), self.find_place(then)) {
                (Some(first), Some(then)) if first != then => {
                    let mut both = [first, then].into_iter().map(|place| &models[place]);
                    if let Some(late) = both.find(|model| model.load == LoadTime::FirstRequest) {
                        return Err(format!(
                            "[cascade.{name}]: `{}` has `load = \"first-request\"`, but the models of a cascade \
                             load `at-start`",
                            late.model_name()
                        ));
                    }
                }
                (Some(_), Some(_)) => {
                    return Err(format!("[cascade.{name}]: `first` and `then` are the same model"));
                }
                (found, _) => {
                    let missing = if found.is_none() { first } else { then };
                    return Err(format!("[cascade.{name}]: there is no model `{missing}`"));
                }
            }
        }
        Ok(self)
    }

    /// The place of the model with this name or alias.
    fn find_place(&self, name: &str) -> Option<usize> {
        let mut models = self.models.iter();
        models.position(|model| model.model_name() == name || model.aliases.iter().any(|alias| alias == name))
    }
}

/// The values of `--model-id`, at least one. Commas separate the values of its variable, unless that is a
/// path.
fn model_ids(matches: &ArgMatches) -> Vec<String> {
    let given: Vec<String> = matches.get_many("model_id").into_iter().flatten().cloned().collect();
    let is_variable = matches.value_source("model_id") == Some(ValueSource::EnvVariable);
    match &given[..] {
        [list] if is_variable && !Path::new(list).exists() => {
            list.split(',').map(|id| id.trim().to_owned()).collect()
        }
        _ => given,
    }
}

fn named_models(ids: Vec<String>, server: &Args) -> Result<Vec<Args>, String> {
    if let ([_, _, ..], Some(name)) = (&ids[..], &server.served_model_name) {
        return Err(format!(
            "`--served-model-name {name}` is one name for several models: give each its name in a file \
             (`--models-file FILE`)"
        ));
    }
    if ids.len() == 1 {
        return Ok(ids.into_iter().map(|model_id| Args { model_id, ..server.clone() }).collect());
    }
    let args = ids.into_iter().map(|model_id| {
        // Clients have no use for the server's folders.
        let path = Path::new(&model_id);
        let name = match path.file_name() {
            Some(name) if path.exists() => name.to_string_lossy().into_owned(),
            _ => model_id.clone(),
        };
        let served_model_name = Some(name);
        Args { model_id, served_model_name, ..server.clone() }
    });
    Ok(args.collect())
}

fn read_content(content: Vec<u8>, command: &Command, arguments: &[OsString]) -> Result<ModelList, String> {
    let text = String::from_utf8(content).map_err(|error| error.to_string())?;
    let content: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", error.message().replace('\n', ", "))
    })?;
    if let Some(key) = content.keys().find(|key| !TABLES.contains(&key.as_str())) {
        return Err(format!(
            "`{key}` is not known: a models file has `[defaults]`, `[models.NAME]` and `[cascade.NAME]`"
        ));
    }
    let defaults = content.get("defaults").map(|value| read_table("defaults", value)).transpose()?;
    let defaults = read_flags(command, &defaults.unwrap_or_default())
        .map_err(|problem| format!("[defaults]: {problem}"))?;
    let models = content.get("models").map(|value| read_table("models", value)).transpose()?;
    let models = models.unwrap_or_default();
    if models.is_empty() {
        return Err("it has no model: add a table such as `[models.reranker]` with `model-id`".to_owned());
    }
    let reader = ModelReader { command, arguments, defaults };
    let models = models.iter().map(|(name, value)| {
        reader.read_model(name, value).map_err(|problem| format!("[models.{name}]: {problem}"))
    });
    let models = models.collect::<Result<_, _>>()?;
    let cascades = content.get("cascade").map(|value| read_table("cascade", value)).transpose()?;
    let cascades = cascades.unwrap_or_default().into_iter().map(|(name, value)| read_cascade(name, value));
    Ok(ModelList { models, cascades: cascades.collect::<Result<_, _>>()? })
}

fn read_cascade(name: String, value: Value) -> Result<CascadeArgs, String> {
    match value.try_into::<CascadeArgs>() {
        Ok(cascade) => Ok(CascadeArgs { name, ..cascade }),
        Err(error) => {
            // The parser says the numbers' types instead of their keys.
            let problem = error
                .message()
                .replace("a nonzero usize", "a whole number from 1 as `keep`")
                .replace("a nonzero u32", "a whole number from 1 as `budget-ms`");
            Err(format!("[cascade.{name}]: {problem}"))
        }
    }
}

/// Reads the tables of models.
struct ModelReader<'a> {
    command: &'a Command,
    /// The process's arguments.
    arguments: &'a [OsString],
    /// The flags of `[defaults]`.
    defaults: Vec<OsString>,
}

impl ModelReader<'_> {
    fn read_model(&self, name: &str, value: &Value) -> Result<Args, String> {
        let mut table = read_table(name, value)?;
        let aliases = table.remove(ALIASES).map_or(Ok(Vec::new()), |value| read_names(&value))?;
        let model_id = table.remove("model-id");
        // A misspelt key comes before a missing one.
        let own = read_flags(self.command, &table)?;
        let Some(Value::String(model_id)) = model_id else {
            let problem = if model_id.is_some() { "must be a text" } else { "is missing" };
            return Err(format!("`model-id` {problem}: a Hub id, a path, or `demo`"));
        };
        if name.trim().is_empty() {
            return Err("the name is blank: requests ask for the model by it".to_owned());
        }
        let (program, given) = self.arguments.split_at(1);
        let all = program.iter().chain(&self.defaults).chain(given).chain(&own);
        // A later flag takes the place of an earlier one.
        let command = self.command.clone().args_override_self(true);
        let args = command.try_get_matches_from(all).and_then(|matches| Args::from_matches(&matches));
        let args = args.map_err(|error| first_line(&error))?;
        let served_model_name = args.served_model_name.clone().or_else(|| Some(name.to_owned()));
        Ok(Args { model_id, served_model_name, aliases, ..args })
    }
}

fn read_table(name: &str, value: &Value) -> Result<Table, String> {
    match value {
        Value::Table(table) => Ok(table.clone()),
        _ => Err(format!("`{name}` must be a table")),
    }
}

/// The flags that the keys of a table stand for.
fn read_flags(command: &Command, table: &Table) -> Result<Vec<OsString>, String> {
    let mut flags = Vec::new();
    for (key, value) in table {
        if key == "model-id" || key == ALIASES {
            return Err(format!("`{key}` belongs to the table of a model"));
        }
        let Some(argument) = command.get_arguments().find(|argument| argument.get_long() == Some(key)) else {
            return Err(unknown_key(command, key));
        };
        if !is_of_model(argument) {
            return Err(format!("`{key}` is for the whole server: give `--{key}` on the command line"));
        }
        let takes_value = argument.get_action().takes_values();
        match value {
            Value::Boolean(true) if !takes_value => flags.push(format!("--{key}").into()),
            Value::Boolean(false) if !takes_value => {}
            _ if !takes_value => return Err(format!("`{key}` must be true or false")),
            Value::String(text) => flags.push(format!("--{key}={text}").into()),
            Value::Integer(number) => flags.push(format!("--{key}={number}").into()),
            Value::Float(number) => flags.push(format!("--{key}={number}").into()),
            Value::Boolean(is_on) => flags.push(format!("--{key}={is_on}").into()),
            _ => return Err(format!("`{key}` must be a text or a number")),
        }
    }
    Ok(flags)
}

fn is_of_model(argument: &Arg) -> bool {
    let heading = argument.get_help_heading().unwrap_or_default();
    let is_servers = argument.get_long().is_some_and(|long| SERVER_FLAGS.contains(&long));
    MODEL_HEADINGS.contains(&heading) && !is_servers
}

fn unknown_key(command: &Command, key: &str) -> String {
    let known = command.get_arguments().filter(|argument| is_of_model(argument)).filter_map(Arg::get_long);
    let nearest = known
        .chain(["model-id", ALIASES])
        .min_by_key(|known| strsim::osa_distance(&key.replace('_', "-"), known));
    let meant = nearest.filter(|known| strsim::osa_distance(&key.replace('_', "-"), known) * 3 <= key.len());
    match meant {
        Some(meant) => format!("`{key}` is not known: did you mean `{meant}`?"),
        None => {
            format!("`{key}` is not known: its keys are the flags of a model without `--`, and `{ALIASES}`")
        }
    }
}

fn read_names(value: &Value) -> Result<Vec<String>, String> {
    let list = value.as_array();
    let names = list.and_then(|list| list.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    names.ok_or_else(|| format!("`{ALIASES}` must be a list of texts"))
}

/// clap's message without its frame.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use clap::CommandFactory;
    use std::fs;

    fn parse_arguments(arguments: &str) -> Result<Vec<Args>, String> {
        let arguments: Vec<OsString> = arguments.split_whitespace().map(Into::into).collect();
        let command = Args::command();
        let matches = command.clone().try_get_matches_from(&arguments).map_err(|error| error.to_string())?;
        let server = Args::from_matches(&matches).unwrap();
        let file = ModelsFile::from_args(&command, &arguments, &server);
        let list = model_list(&command, &matches, file.as_ref(), &server);
        list.map(|list| list.models).map_err(|error| first_line(&error))
    }

    fn parse_file(content: &str, further: &str) -> Result<Vec<Args>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        let path = file.path().display().to_string();
        parse_arguments(&format!("router --models {path} {further}"))
            .map_err(|error| error.replace(&path, "FILE"))
    }

    #[test]
    fn several_ids_are_several_models_with_the_same_flags() {
        let models = parse_arguments("router --model-id a --model-id b/c --dtype int8").unwrap();
        let ids: Vec<&str> = models.iter().map(|model| model.model_id.as_str()).collect();
        assert_eq!(ids, ["a", "b/c"]);
        assert!(models.iter().all(|model| model.model.dtype.is_some()));
        assert_eq!(parse_arguments("router").unwrap().len(), 1);
        assert_eq!(parse_arguments("router --model-id a,b").unwrap()[0].model_id, "a,b");
        let error = parse_arguments("router --model-id a --model-id a").unwrap_err();
        assert!(error.contains("two models have the name `a`"), "{error}");
        let error = parse_arguments("router --model-id a --model-id b --served-model-name n").unwrap_err();
        assert!(error.contains("one name for several models"), "{error}");
    }

    #[test]
    fn a_table_wins_over_the_command_line_and_that_over_the_defaults() {
        let content = "
            # Everything below belongs to a model.
            [defaults]
            dtype = 'bfloat16'
            prefix-cache-bytes = 0
            revision = 'v1'
            [models.second-by-name]
            model-id = 'a'
            [models.first]
            model-id = 'b/c'
            aliases = ['x', 'y z']
            dtype = 'int8'
            auto-truncate = false
            trust-remote-code = true
            queue-timeout = 2.5
            default-prompt = 'a = b'
            no-cosine-rerank = true
        ";
        let models = parse_file(content, "--revision v2 --port 80").unwrap();
        let [first, second] = &models[..] else { unreachable!("{models:?}") };
        assert_eq!(
            (first.model_id.as_str(), first.served_model_name.as_deref()),
            ("a", Some("second-by-name"))
        );
        assert_eq!((second.model_id.as_str(), second.aliases.join("|")), ("b/c", "x|y z".to_owned()));
        let dtype = |args: &Args| args.model.dtype.unwrap().to_string();
        assert_eq!((dtype(first), dtype(second)), ("bfloat16".to_owned(), "int8".to_owned()));
        assert_eq!((first.model.auto_truncate, second.model.auto_truncate), (true, false));
        assert!(!first.model.hub.trust_remote_code && second.model.hub.trust_remote_code);
        assert_eq!(second.default_prompt.as_deref(), Some("a = b"));
        assert!(!first.no_cosine_rerank && second.no_cosine_rerank);
        for model in &models {
            assert_eq!(
                (model.model.hub.revision.as_str(), model.model.prefix_cache_bytes, model.port),
                ("v2", 0, 80)
            );
        }
    }

    #[test]
    fn the_documents_example_is_read() {
        let page = include_str!("../../../docs/models-file.md");
        let (_, example) = page.split_once("```toml\n").unwrap();
        let models = parse_file(example.split_once("```").unwrap().0, "").unwrap();
        let ids: Vec<&str> = models.iter().map(|model| model.model_id.as_str()).collect();
        assert_eq!(ids, ["BAAI/bge-m3", "Qwen/Qwen3-Reranker-0.6B"]);
        assert!(models.iter().all(|model| model.aliases.len() == 1 && model.model.dtype.is_some()));
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_place() {
        let in_model = |line: &str| format!("[models.m]\nmodel-id = 'a'\n{line}");
        for (content, expected) in [
            (String::new(), "--models-file FILE: it has no model: add a table such as `[models.reranker]`"),
            ("[models.m".to_owned(), "--models-file FILE: line 1: "),
            ("\n\nx = ".to_owned(), "--models-file FILE: line 3: "),
            (
                "[model.m]\nmodel-id = 'a'".to_owned(),
                "`model` is not known: a models file has `[defaults]`, `[models.NAME]` and `[cascade",
            ),
            ("models = 3".to_owned(), "`models` must be a table"),
            ("[models]\nm = 3".to_owned(), "[models.m]: `m` must be a table"),
            ("[models.m]\ndtype = 'int8'".to_owned(), "[models.m]: `model-id` is missing"),
            ("[models.m]\nmodel-id = 'a'\n[models.m]".to_owned(), "line 3: duplicate key"),
            ("[models.m]\nmodel_id = 'a'".to_owned(), "`model_id` is not known: did you mean `model-id`?"),
            ("[models.m]\nmodel-id = ['a']".to_owned(), "[models.m]: `model-id` must be a text"),
            ("[models.'']\nmodel-id = 'a'".to_owned(), "[models.]: the name is blank"),
            (
                format!("[defaults]\naliases = ['a']\n{}", in_model("")),
                "[defaults]: `aliases` belongs to the table of",
            ),
            (in_model("dtpye = 'int8'"), "[models.m]: `dtpye` is not known: did you mean `dtype`?"),
            (in_model("max_input_length = 3"), "did you mean `max-input-length`?"),
            (in_model("frobnicate = 3"), "`frobnicate` is not known: its keys are the flags of a model"),
            (in_model("port = 80"), "`port` is for the whole server: give `--port` on the command line"),
            (in_model("threads = 2"), "`threads` is for the whole server"),
            (in_model("payload-limit = 2"), "`payload-limit` is for the whole server"),
            (in_model("dtype = 'int9'"), "[models.m]: invalid value 'int9' for '--dtype <DTYPE>'"),
            (in_model("dtype = ['int8']"), "`dtype` must be a text or a number"),
            (in_model("trust-remote-code = 1"), "`trust-remote-code` must be true or false"),
            (in_model("load = 'later'"), "expected at-start or first-request"),
            (in_model("load = 'first request'"), "every model has `load = \"first-request\"`: one at least"),
            (in_model("device-weight = 0"), "must be a whole number from 1 to 100"),
            (
                in_model(
                    "[models.n]\nmodel-id = 'n'\nload = 'first-request'\n[cascade.c]\nfirst = 'm'\nthen = 'n'\nkeep = 1",
                ),
                "[cascade.c]: `n` has `load = \"first-request\"`, but the models of a cascade load",
            ),
            (in_model("aliases = 'x'"), "`aliases` must be a list of texts"),
            (in_model("aliases = [1]"), "`aliases` must be a list of texts"),
            (
                in_model("[cascade.c]\nfirst = 'm'\nthen = 'x'\nkeep = 3"),
                "[cascade.c]: there is no model `x`",
            ),
            (
                in_model("aliases = ['n']\n[cascade.c]\nfirst = 'm'\nthen = 'n'\nkeep = 3"),
                "[cascade.c]: `first` and `then` are the same model",
            ),
            (in_model("[cascade.m]\nfirst = 'm'\nthen = 'm'\nkeep = 3"), "two models have the name `m`"),
            (in_model("[cascade.c]\nfirst = 'm'\nkeep = 3"), "[cascade.c]: missing field `then`"),
            (
                in_model("[cascade.c]\nfirst = 'm'\nthen = 'm'\nkeep = 0"),
                "[cascade.c]: invalid value: integer `0`, expected a whole number from 1 as `keep`",
            ),
            (
                in_model("[cascade.c]\nfirst = 'm'\nthen = 'm'\nkeep = 3\nbudget-ms = -1"),
                "[cascade.c]: invalid value: integer `-1`, expected a whole number from 1 as `budget-ms`",
            ),
            (
                in_model("[cascade.c]\nkept = 3"),
                "[cascade.c]: unknown field `kept`, expected one of `aliases`",
            ),
            (
                "[defaults]\nport = 1\n[models.m]\nmodel-id = 'a'".to_owned(),
                "[defaults]: `port` is for the whole",
            ),
        ] {
            let error = parse_file(&content, "").unwrap_err();
            assert!(error.contains(expected), "{content:?}: {error}");
        }
        for (path, problem) in [
            ("/nowhere/models.toml", "cannot be read: No such file"),
            ("/dev/zero", "cannot be read: it is not a regular file"),
            ("/dev", "cannot be read: it is not a regular file"),
        ] {
            let error = parse_arguments(&format!("router --models-file {path}")).unwrap_err();
            assert!(error.contains(&format!("`--models-file {path}` {problem}")), "{error}");
        }
        let error = parse_file(&in_model(""), "--model-id b").unwrap_err();
        assert!(error.contains("cannot be used with"), "{error}");
    }

    #[test]
    fn a_file_that_ends_in_the_middle_is_refused_or_has_fewer_keys() {
        let whole = "# é\n[defaults]\ndtype = 'int8'\n[models.m]\nmodel-id = 'a'\naliases = ['x', 'y']\n\
                     [models.\"n\"]\nmodel-id = 'b'\n[cascade.c]\nfirst = 'm'\nthen = 'n'\nkeep = 20\n";
        let mut whole_lists = 0;
        for end in (0..=whole.len()).filter(|end| whole.is_char_boundary(*end)) {
            match parse_file(&whole[..end], "") {
                Ok(models) => whole_lists += usize::from(models.len() == 2),
                Err(error) => assert!(error.starts_with("--models-file FILE: "), "{end}: {error}"),
            }
        }
        assert!(whole_lists > 0);
    }

    #[test]
    fn names_lead_to_models_only_and_not_in_a_circle() {
        for (first, second) in [("b", "a"), ("a", "b")] {
            let content = format!(
                "[models.a]\nmodel-id = 'a'\naliases = ['{first}']\n[models.b]\nmodel-id = 'b'\naliases = ['{second}']"
            );
            let error = parse_file(&content, "").unwrap_err();
            assert!(error.contains("two models have the name `"), "{error}");
        }
        let circle =
            "[cascade.c]\nfirst = 'd'\nthen = 'm'\nkeep = 1\n[cascade.d]\nfirst = 'c'\nthen = 'm'\nkeep = 1";
        let error = parse_file(&format!("[models.m]\nmodel-id = 'a'\n{circle}"), "").unwrap_err();
        assert!(error.contains("[cascade.c]: there is no model `d`"), "{error}");
    }
}

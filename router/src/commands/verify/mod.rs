//! `verify`: checks a model step by step, and its scores or vectors against published ones.
//!
//! Input: a model folder or Hub id. Output: a line for each check. What must hold: the steps are the steps of
//! a server's start, by the same code; a failed check is a line and exit code 1, and later checks that do not
//! depend on it still run; a comparison that was not made has a line, too.

mod golden;
mod published;

use std::{
    fmt::Display,
    io::{self, Write},
    path::PathBuf,
};

use anyhow::ensure;
use clap::Args;
use sha2::{Digest, Sha256};
use text_embeddings_backend_core::{ModelFile, ModelType, amount};
use text_embeddings_core::{
    families::ScoreRule,
    files::ModelFolder,
    service::{RerankRequest, Service},
    templates::PromptTemplate,
    tokenization::EncoderError,
};

use super::{Usage, block_on, screen::Screen};
use crate::{
    args::{self, ModelArgs},
    config::{Config, ServerConfig},
    startup::{
        self, Started,
        reranker::{self, Prompt, Resolved},
    },
};
use golden::{Expected, Golden, Goldens};
use published::{Published, PublishedInput, raw_score};

/// The arguments of `verify`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  text-embeddings-router verify Qwen/Qwen3-Reranker-0.6B --dtype float32
  text-embeddings-router verify ./model --golden pairs.json --verbose
  text-embeddings-router verify ./model --as BAAI/bge-reranker-v2-m3

The file of --golden is an array of objects with query, document and raw (or score), and optionally instruction and
tolerance (in raw score). A raw score passes within 0.001 of the golden one in float32, 0.25 in bfloat16, 1.0 in int8 and
2.5 in int4, plus the uncertainty of the source's own arithmetic and rounding.

Exit codes: 0 all checks pass, 1 one fails, 2 wrong arguments.")]
pub(crate) struct VerifyArgs {
    /// The model: a Hub id such as `Qwen/Qwen3-Reranker-0.6B`, or the path of a local directory.
    #[arg(env = "MODEL_ID")]
    model: String,

    /// How it is fetched, prompted and computed.
    #[command(flatten)]
    how: ModelArgs,

    /// A file with pairs and scores to compare with, instead of the published ones.
    #[arg(long, value_name = "FILE")]
    golden: Option<PathBuf>,

    /// The Hub id of the model whose published values to compare with, if the folder has another name
    /// [default: the model's own name].
    #[arg(long = "as", value_name = "MODEL", conflicts_with = "golden")]
    published_as: Option<String>,

    /// Print the prompt too.
    #[arg(long, short)]
    verbose: bool,
}

/// The lines so far.
struct Checks {
    screen: Screen,
    done: usize,
    failed: usize,
}

impl Checks {
    /// Writes the line of a check. Returns its value if it passed.
    fn check<T>(&mut self, name: &str, found: anyhow::Result<(T, String)>) -> anyhow::Result<Option<T>> {
        self.done += 1;
        match found {
            Ok((value, text)) => {
                self.line("32", "pass", name, &text)?;
                Ok(Some(value))
            }
            Err(error) => {
                self.failed += 1;
                self.line("31", "FAIL", name, &format!("{error:#}"))?;
                Ok(None)
            }
        }
    }

    /// Writes a line without a check.
    fn note(&self, name: &str, text: &str) -> io::Result<()> {
        self.line("2", "-", name, text)
    }

    fn line(&self, colour: &str, mark: &str, name: &str, text: &str) -> io::Result<()> {
        let mark = self.screen.styled(&format!("{mark:<5}"), colour);
        writeln!(io::stdout(), "{mark}{name:<10} {text}")
    }
}

/// Verifies.
pub(super) fn run(args: VerifyArgs) -> anyhow::Result<()> {
    let goldens = args.golden.as_deref().map(golden::read).transpose()?;
    if let Some(name) = args.published_as.as_deref() {
        let is_known = published::knows(name)? || !golden::published(published::short(name))?.is_empty();
        ensure!(is_known, unknown_model(name));
    }
    let mut checks = Checks { screen: Screen::of_stdout(), done: 0, failed: 0 };
    block_on("error", verify(args, goldens, &mut checks))?;
    let Checks { done, failed, .. } = checks;
    ensure!(failed == 0, "{failed} of {} failed", amount(done, "check"));
    Ok(())
}

fn unknown_model(name: &str) -> Usage {
    Usage(
        format!("there are no published values for `--as {name}`: give the Hub id of a known model"),
        "verify",
    )
}

async fn verify(args: VerifyArgs, given: Option<Goldens>, checks: &mut Checks) -> anyhow::Result<()> {
    let source = startup::model_source(&args.model, &args.how.hub);
    let loaded = startup::load(&source, startup::Choices::default()).await;
    let folder = loaded.and_then(|folder| {
        let text = describe_files(&folder)?;
        Ok((folder, text))
    });
    let Some(folder) = checks.check("files", folder)? else { return Ok(()) };
    // Published vectors are for texts without a prompt; other kinds of models have no prompts.
    let default_prompt = Some(String::new());
    let served = args::Args { default_prompt, ..args::Args::offline(&args.model, args.how.clone())? };
    ServerConfig::resolve(&served)?;
    let kind = startup::resolve(&served, &folder).map(|(config, reason)| {
        let text = format!("{}: {reason}", config.model_type);
        (config, text)
    });
    let Some(config) = checks.check("kind", kind)? else { return Ok(()) };
    let is_reranker = matches!(config.model_type, ModelType::Reranker | ModelType::ListwiseReranker);
    if is_reranker {
        check_reranker(&config, &folder, args.verbose, checks)?;
    } else {
        checks.note("template", "none: this kind of model reads texts as they are")?;
    }
    let started = startup::start(&served).await.map(|started| {
        let text = describe_start(&started, is_reranker);
        (started, text)
    });
    let Some(started) = checks.check("start", started)? else { return Ok(()) };
    let name =
        args.published_as.as_deref().map_or_else(|| folder.name(), |name| published::short(name).to_owned());
    compare(given, &name, config.model_type, &started, checks).await
}

/// Compares with the given pairs, else with the published values of the model with this name.
async fn compare(
    given: Option<Goldens>,
    name: &str,
    kind: ModelType,
    started: &Started,
    checks: &mut Checks,
) -> anyhow::Result<()> {
    let is_reranker = matches!(kind, ModelType::Reranker | ModelType::ListwiseReranker);
    let (goldens, rows) = match given {
        Some(_) if !is_reranker => {
            return Ok(checks.note("golden", "only scores of re-rankers are compared with `--golden`")?);
        }
        Some(given) => (vec![given], Vec::new()),
        None if is_reranker => (golden::published(name)?, published::published(name, kind)?),
        None => (Vec::new(), published::published(name, kind)?),
    };
    if goldens.is_empty() && rows.is_empty() {
        let text = match kind {
            ModelType::Classifier => "only scores of re-rankers and vectors are compared".to_owned(),
            ModelType::Embedding(pool) => format!(
                "no vectors with {pool} pooling are published for `{name}`: nothing to compare with, see `--as`"
            ),
            _ => format!(
                "no scores are published for `{name}`: nothing to compare with, see `--golden` and `--as`"
            ),
        };
        checks.note("golden", &text)?;
    }
    for goldens in &goldens {
        compare_pairs(goldens, started, checks).await?;
    }
    for row in &rows {
        compare_row(row, started, checks).await?;
    }
    Ok(())
}

/// Computes the items of a row of the table and compares.
async fn compare_row(row: &Published, started: &Started, checks: &mut Checks) -> anyhow::Result<()> {
    let what = if matches!(row.items.first(), Some(PublishedInput::Pair { .. })) { "pair" } else { "text" };
    checks.note("golden", &format!("{} from {}:", amount(row.items.len(), what), row.source))?;
    for item in &row.items {
        let compared = row.compare(item, &started.service, &started.info.model.arithmetic).await;
        checks.check("golden", compared.and_then(|comparison| comparison.judge(&item.label())))?;
    }
    Ok(())
}

fn describe_files(folder: &ModelFolder) -> anyhow::Result<String> {
    let lengths = folder.weights.iter().map(ModelFile::length);
    let bytes: u64 = lengths.sum::<io::Result<u64>>()?;
    let commit = folder.revision_sha.as_ref().map_or_else(String::new, |sha| format!(", commit {sha}"));
    let weights = amount(folder.weights.len(), "file");
    Ok(format!(
        "{} is complete: weights of {:.1} MB in {weights}{commit}",
        folder.root.display(),
        bytes as f64 / 1e6
    ))
}

/// Checks a re-ranker's prompt, answers and score, and shows where they come from.
fn check_reranker(
    config: &Config,
    folder: &ModelFolder,
    verbose: bool,
    checks: &mut Checks,
) -> anyhow::Result<()> {
    let found = startup::tokenizer(folder).and_then(|tokenizer| {
        let resolved = reranker::resolve(config, folder, &tokenizer)?;
        let details = resolved.details(&tokenizer);
        let text = details.prompt.clone();
        Ok(((resolved, details), text))
    });
    let step = match found.as_ref().err().and_then(|error| error.downcast_ref()) {
        Some(
            EncoderError::AnswerId { .. }
            | EncoderError::AnswerToken { .. }
            | EncoderError::SameAnswers { .. },
        ) => "answers",
        _ => "template",
    };
    let Some((resolved, details)) = checks.check(step, found)? else { return Ok(()) };
    check_prompt(&resolved, config, folder, verbose, checks)?;
    if let Some(answers) = details.answers {
        checks.check("answers", Ok(((), answers)))?;
    }
    let family =
        details.family.map_or_else(|| "no known family".to_owned(), |family| format!("the family {family}"));
    let reason = details.family_reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    Ok(checks.note(
        "score",
        &format!("{} of the raw score x, by {}; of {family}{reason}", details.score, details.score_reason),
    )?)
}

/// Checks the prompt and the ids of its control tokens.
fn check_prompt(
    resolved: &Resolved,
    config: &Config,
    folder: &ModelFolder,
    verbose: bool,
    checks: &mut Checks,
) -> anyhow::Result<()> {
    let template = match &resolved.prompt.0 {
        Prompt::Template(template) => template,
        Prompt::Joined => {
            reranker::refuse_instruction(config)?;
            return Ok(checks.note("template", "none: the tokenizer joins query and document")?);
        }
    };
    if let Some(list) = template.list() {
        let sum = hexadecimal(&Sha256::digest(template.literal_texts().concat().as_bytes()));
        let text = format!("sha256 {sum} of its parts; up to {} documents in one prompt", list.max_documents);
        return Ok(checks.note("prompt", &text)?);
    }
    let family = resolved.family.as_ref().map(|(family, _)| *family);
    let instruction = reranker::default_instruction(config, folder, template, family);
    let prompt = instruction.map(|instruction| {
        let prompt = template.render(instruction.as_deref(), "{query}", "{document}");
        let sum = hexadecimal(&Sha256::digest(prompt.as_bytes()));
        let default = instruction.map_or_else(|| "none".to_owned(), |text| format!("{text:?}"));
        let text = format!(
            "sha256 {sum} of the texts {{query}} and {{document}} in it; default instruction {default}"
        );
        (prompt, text)
    });
    let prompt = checks.check("prompt", prompt)?;
    if let Some(prompt) = prompt.filter(|_| verbose) {
        for line in prompt.lines() {
            writeln!(io::stdout(), "     | {line}")?;
        }
    }
    checks.check("tokenizer", tokens(template, folder))?;
    Ok(())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = std::fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
        text
    })
}

/// The control tokens of a template with their ids.
fn tokens(template: &PromptTemplate, folder: &ModelFolder) -> anyhow::Result<((), String)> {
    let tokenizer = startup::tokenizer(folder)?;
    let literals = template.literal_texts().concat();
    let mut controls: Vec<_> = tokenizer
        .get_added_tokens_decoder()
        .into_iter()
        .filter(|(_, token)| !token.content.is_empty() && literals.contains(&token.content))
        .map(|(id, token)| (id, token.content))
        .collect();
    controls.sort();
    let controls: Vec<_> = controls.into_iter().map(|(id, token)| format!("{token} is {id}")).collect();
    let controls = if controls.is_empty() {
        "the template has no control tokens".to_owned()
    } else {
        controls.join(", ")
    };
    Ok(((), format!("{} tokens; {controls}", tokenizer.get_vocab_size(true))))
}

fn describe_start(started: &Started, is_reranker: bool) -> String {
    let Started { info, compute_type, .. } = started;
    let instructions =
        info.model.instruction_set.as_deref().map_or_else(String::new, |set| format!(" with {set}"));
    let check =
        if is_reranker { "two test pairs get different scores" } else { "two test texts are told apart" };
    format!("{} on {compute_type}{instructions}; {check}", info.model.arithmetic)
}

/// Scores the pairs and compares.
async fn compare_pairs(goldens: &Goldens, started: &Started, checks: &mut Checks) -> anyhow::Result<()> {
    let tolerance = golden::tolerances(&started.info.model.arithmetic)?.score;
    checks.note("golden", &format!("{} from {}:", amount(goldens.pairs.len(), "pair"), goldens.source))?;
    let together =
        if goldens.together { scores(&started.service, &goldens.pairs).await? } else { Vec::new() };
    let mut together = together.into_iter();
    for golden in &goldens.pairs {
        let expected = goldens.expected(golden, tolerance)?;
        let raw = match together.next() {
            Some(raw) => Ok(raw),
            None => score(&started.service, golden).await,
        };
        let found = match raw {
            Ok(raw) => judge(raw, started.service.config().model.score, expected, golden),
            Err(error) => Err(error),
        };
        checks.check("golden", found)?;
    }
    Ok(())
}

/// The raw scores of pairs with one query in one request.
async fn scores(service: &Service, pairs: &[Golden]) -> anyhow::Result<Vec<f32>> {
    let request = RerankRequest {
        query: pairs.first().map(|pair| pair.query.clone()).unwrap_or_default(),
        texts: pairs.iter().map(|pair| pair.document.clone()).collect(),
        raw_scores: true,
        ..RerankRequest::default()
    };
    let mut ranks = service.rerank(request).await?.value;
    ranks.sort_by_key(|rank| rank.index);
    Ok(ranks.into_iter().map(|rank| rank.score).collect())
}

async fn score(service: &Service, golden: &Golden) -> anyhow::Result<f32> {
    raw_score(service, &golden.query, &golden.document, golden.instruction.as_deref()).await
}

/// Whether a raw score passes.
fn judge(raw: f32, rule: ScoreRule, expected: Expected, golden: &Golden) -> anyhow::Result<((), String)> {
    let Expected { raw: wanted, least, greatest } = expected;
    let pair = format!("{} / {}", shortened(&golden.query), shortened(&golden.document));
    let text = format!(
        "raw {raw:.4} (score {:.6}), expected {wanted:.4}, from {least:.4} to {greatest:.4}: {pair}",
        rule.apply(raw)
    );
    ensure!((least..=greatest).contains(&f64::from(raw)), "{text}");
    Ok(((), text))
}

fn shortened(text: &str) -> impl Display {
    console::truncate_str(&text.replace('\n', " "), 40, "…").into_owned()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn a_score_passes_up_to_its_bounds() {
        let golden: Golden = serde_json::from_str(r#"{"query":"q","document":"d","raw":1}"#).unwrap();
        let expected = Expected { raw: 1.0, least: 0.5, greatest: 1.5 };
        for (raw, passes) in
            [(0.5, true), (1.5, true), (1.0, true), (0.499, false), (1.501, false), (f32::NAN, false)]
        {
            assert_eq!(judge(raw, ScoreRule::SIGMOID, expected, &golden).is_ok(), passes, "{raw}");
        }
    }
}

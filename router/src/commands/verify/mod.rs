//! `verify`: checks a model step by step, and its scores or vectors against published ones.
//!
//! Input: a model folder or Hub id. Output: a line for each check. What must hold: the steps are the steps of
//! a server's start, by the same code; a failed check is a line and exit code 1, and later checks that do not
//! depend on it still run; a comparison that was not made has a line, too.

mod golden;
mod prompt;
mod published;

use std::{
    fmt::Display,
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, ensure};
use clap::Args;
use text_embeddings_backend_core::{ModelFile, ModelType, amount};
use text_embeddings_core::{
    families::ScoreRule,
    files::ModelFolder,
    model::{Detected, ModelKind, Refusal, detect_kind},
    service::{RerankRequest, Service},
};

use super::{Usage, block_on, screen::Screen};
use crate::{
    args::{self, ModelArgs},
    config::ServerConfig,
    info::{Computation, Info},
    machine::Machine,
    models::Served,
    startup,
};
use golden::{Expected, Golden, Goldens};
use prompt::check_prompt;
use published::{Published, PublishedInput, raw_score};

/// The line of a model without a prompt.
const NO_TEMPLATE: &str = "none: this kind of model reads texts as they are";

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
        match writeln!(io::stdout(), "{mark}{name:<10} {text}") {
            // The exit code still tells the result.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

pub(super) fn run(args: VerifyArgs) -> anyhow::Result<()> {
    let goldens = args.golden.as_deref().map(golden::read).transpose()?;
    if let Some(name) = args.published_as.as_deref() {
        let is_known = published::knows(name)? || !golden::published(published::short(name))?.is_empty();
        if !is_known {
            let text =
                format!("there are no published values for `--as {name}`: give the Hub id of a known model");
            return Err(Usage(text, "verify").into());
        }
    }
    let mut checks = Checks { screen: Screen::of_stdout(), done: 0, failed: 0 };
    block_on("error", verify(args, goldens, &mut checks))?;
    let Checks { done, failed, .. } = checks;
    ensure!(failed == 0, "{failed} of {} failed", amount(done, "check"));
    Ok(())
}

async fn verify(args: VerifyArgs, given: Option<Goldens>, checks: &mut Checks) -> anyhow::Result<()> {
    let source = startup::model_source(&args.model, &args.how.hub);
    let loaded = startup::load(&source, None).await;
    let folder = loaded.and_then(|folder| {
        let text = describe_files(&folder)?;
        Ok((folder, text))
    });
    let Some(folder) = checks.check("files", folder)? else { return Ok(()) };
    // Published vectors are for texts without a prompt; other kinds of models have no prompts.
    let default_prompt = Some(String::new());
    let served = args::Args { default_prompt, ..args::Args::offline(&args.model, args.how.clone())? };
    ServerConfig::resolve(&served)?;
    if !check_model(&served, &folder, args.verbose, checks)? {
        return Ok(());
    }
    let started = startup::start(&served, &Machine::from_args(&served)?).await.map(|started| {
        let text = describe_start(&started.info);
        (started, text)
    });
    let Some(started) = checks.check("start", started)? else { return Ok(()) };
    let name =
        args.published_as.as_deref().map_or_else(|| folder.name(), |name| published::short(name).to_owned());
    compare(given, &name, &started, checks).await
}

/// Checks the kind of the model and its prompt, and shows where they come from. Returns whether a start is
/// worth a try.
fn check_model(
    served: &args::Args,
    folder: &ModelFolder,
    verbose: bool,
    checks: &mut Checks,
) -> anyhow::Result<bool> {
    let error = match startup::resolve_model(served, folder) {
        Ok(model) => {
            checks.check("kind", Ok(((), format!("{}: {}", model.model_type(), model.reason))))?;
            check_prompt(&model, folder, verbose, checks)?;
            return Ok(true);
        }
        Err(error) => error,
    };
    let part = error.downcast_ref().map_or("template", Refusal::part);
    if part == "kind" {
        checks.check::<()>("kind", Err(error))?;
        return Ok(false);
    }
    let flags = startup::flags::model_flags(served)?;
    let Detected { model_type, reason } =
        detect_kind(folder, flags.model_type, flags.pooling, flags.named_family())?;
    checks.check("kind", Ok(((), format!("{model_type}: {reason}"))))?;
    if matches!(model_type, ModelType::Reranker | ModelType::ListwiseReranker) {
        checks.check::<()>(part, Err(error))?;
    } else {
        // The start gives the reason.
        checks.note("template", NO_TEMPLATE)?;
    }
    Ok(true)
}

/// Compares with the given pairs, else with the published values of the model with this name.
async fn compare(
    given: Option<Goldens>,
    name: &str,
    started: &Served,
    checks: &mut Checks,
) -> anyhow::Result<()> {
    let model = &started.info.config.model;
    let (kind, is_reranker) = (model.model_type(), model.reranker().is_some());
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
async fn compare_row(row: &Published, started: &Served, checks: &mut Checks) -> anyhow::Result<()> {
    let what = if matches!(row.items.first(), Some(PublishedInput::Pair { .. })) { "pair" } else { "text" };
    checks.note("golden", &format!("{} from {}:", amount(row.items.len(), what), row.source))?;
    for item in &row.items {
        let compared = row.compare(item, &started.service, &started.info.computation.arithmetic).await;
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

fn describe_start(info: &Info) -> String {
    let Computation { arithmetic, device, instruction_set, .. } = &info.computation;
    let instructions = instruction_set.as_deref().map_or_else(String::new, |set| format!(" with {set}"));
    let check = match info.config.model.kind {
        ModelKind::Reranker(_) => "two test pairs get different scores",
        ModelKind::Embedder(_) | ModelKind::Classifier(_) => "two test texts are told apart",
        ModelKind::Decider(_) => "two test questions are told apart",
    };
    format!("{arithmetic} on {device}{instructions}; {check}")
}

/// Scores the pairs and compares.
async fn compare_pairs(goldens: &Goldens, started: &Served, checks: &mut Checks) -> anyhow::Result<()> {
    let tolerance = golden::tolerances(&started.info.computation.arithmetic)?.score;
    checks.note("golden", &format!("{} from {}:", amount(goldens.pairs.len(), "pair"), goldens.source))?;
    let together =
        if goldens.together { scores(&started.service, &goldens.pairs).await? } else { Vec::new() };
    let mut together = together.into_iter();
    let reranker = started.info.config.model.reranker().context("only a re-ranker has pairs")?;
    for golden in &goldens.pairs {
        let expected = goldens.expected(golden, tolerance)?;
        let raw = if let Some(raw) = together.next() {
            Ok(raw)
        } else {
            let (query, instruction) = (&golden.query, golden.instruction.as_deref());
            raw_score(&started.service, query, &golden.document, instruction).await
        };
        checks.check("golden", raw.and_then(|raw| judge(raw, reranker.score.value, expected, golden)))?;
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

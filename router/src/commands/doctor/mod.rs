//! `doctor`: how fast this machine computes, and whether models fit and how fast they would be.
//!
//! Input: models, whose `config.json` and `modules.json` alone are read or fetched; without any, a table of
//! well-known ones.
//! Output: findings as sentences, or as JSON. What must hold: memory and time come from the code that serves;
//! a model that does not fit, or whose configuration cannot be, is a line and exit code 1, and the other
//! models are still described.

mod forecast;
mod machine_report;
mod output;

use std::io::{self, Write};

use anyhow::{Context, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use text_embeddings_backend::{DEVICE, InstructionSet, ON_CPU};
use text_embeddings_backend_core::{BackendKind, amount};
use text_embeddings_core::files::ModelSettings;

use super::block_on;
use crate::{
    args::{self, ModelArgs},
    config::ServerConfig,
    machine::Machine,
    startup,
};
use forecast::{Circumstances, Forecast, ModelCandidate, Task};
use machine_report::MachineReport;

/// Well-known models, with the settings of their `config.json` that decide size and work.
const KNOWN: &str = include_str!("shapes.json");
/// The most tokens of a candidate: more than any model takes.
const MAX_TOKENS: usize = 1 << 17;

/// The arguments of `doctor`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  text-embeddings-router doctor
  text-embeddings-router doctor ./my-model model.gguf --measure
  text-embeddings-router doctor Qwen/Qwen3-Reranker-4B --json && echo it fits

Of a model of the Hub, only config.json and modules.json are fetched. Times are predicted from its sizes and from the
measured speed of large products; --measure computes layers of the same sizes with random weights. G/s are 10^9
operations per second.

Exit codes: 0 all models fit, 1 one does not or cannot be read, 2 wrong arguments.")]
pub(crate) struct DoctorArgs {
    /// The models: Hub ids, local directories, `.gguf` files or `demo`; repeatable, in the variable with
    /// commas [default: a table of well-known models].
    #[arg(env = "MODEL_ID", value_name = "MODEL", value_delimiter = ',')]
    models: Vec<String>,

    /// How it would be computed, and within which limits.
    #[command(flatten)]
    how: ModelArgs,

    /// The tokens of a candidate: of a text, or of a query and a text; without a beginning that all
    /// candidates share.
    #[arg(long, default_value = "128", value_parser = candidate_tokens)]
    tokens: usize,

    /// Check the times: compute layers of each model's sizes with random weights, for some seconds in each
    /// kind of arithmetic.
    #[arg(long)]
    measure: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn candidate_tokens(text: &str) -> Result<usize, String> {
    match args::at_least_one(text) {
        Ok(tokens) if usize::from(tokens) <= MAX_TOKENS => Ok(std::num::NonZeroUsize::get(tokens)),
        Ok(_) => Err(format!("must be at most {MAX_TOKENS}")),
        Err(problem) => Err(problem),
    }
}

/// A model of the table.
#[derive(Debug, Deserialize)]
struct KnownModel {
    model: String,
    kind: String,
    config: Value,
}

/// All findings, for programs.
#[derive(Serialize)]
struct Findings<'a> {
    machine: &'a MachineReport,
    /// Tokens of a candidate.
    tokens: usize,
    models: &'a [Forecast],
    /// The models that cannot be read or served.
    errors: Vec<FailedModel>,
}

/// A model without a forecast, and the reason.
#[derive(Serialize)]
struct FailedModel {
    model: String,
    error: String,
}

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    ensure!(ON_CPU, "this build computes on {DEVICE}: `doctor` knows the speed of CPUs only");
    ensure!(
        args.how.hub.backend == BackendKind::Candle,
        "`--backend {}` computes with other code: `doctor` knows the speed of `candle` only",
        args.how.hub.backend
    );
    let served = args::Args::offline("", args.how.clone())?;
    ServerConfig::resolve(&served)?;
    let machine = Machine::from_args(&served)?;
    let set = machine.computing_instructions();
    let (candidates, errors) = block_on("error", find_candidates(args, set))?;
    let (report, speeds) = MachineReport::measure_machine(&machine)?;
    let circumstances = Circumstances {
        args: &served,
        machine: &machine,
        speeds: &speeds,
        tokens: args.tokens,
        measures: args.measure,
    };
    let forecasts: Vec<Forecast> = candidates
        .iter()
        .map(|candidate| candidate.make_forecast(&circumstances).with_context(|| candidate.model.clone()))
        .collect::<anyhow::Result<_>>()?;
    let (asked, failed) = (!args.models.is_empty(), errors.len());
    if args.json {
        let findings = Findings { machine: &report, tokens: args.tokens, models: &forecasts, errors };
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&findings)?)?;
    } else {
        print_findings(&report, &forecasts, &errors, args)?;
    }
    let misfits = forecasts.iter().filter(|forecast| asked && !forecast.fits).count();
    let total = amount(args.models.len(), "model");
    ensure!(misfits + failed == 0, "{} of {total} cannot be served on this machine", misfits + failed);
    Ok(())
}

/// The models that the user names, else the well-known ones; and the models that cannot be read.
async fn find_candidates(
    args: &DoctorArgs,
    set: InstructionSet,
) -> anyhow::Result<(Vec<ModelCandidate>, Vec<FailedModel>)> {
    if args.models.is_empty() {
        let known: Vec<KnownModel> = serde_json::from_str(KNOWN)?;
        let known = known.into_iter().map(|KnownModel { model, kind, config }| {
            let task = if kind == "re-ranker" { Task::Rerank } else { Task::Embed };
            let settings = ModelSettings { config, is_gguf: false, is_splade: false };
            ModelCandidate::from_settings(model, task, &settings, set)
        });
        return Ok((known.collect::<anyhow::Result<_>>()?, Vec::new()));
    }
    let (mut candidates, mut errors) = (Vec::new(), Vec::new());
    for model in &args.models {
        let source = startup::model_source(model, &args.how.hub);
        let candidate = startup::load_settings(&source).await.and_then(|found| {
            let given = args.how.model_type.map(Task::of_type);
            let task = given.unwrap_or_else(|| Task::guess_task(model, &found.config));
            ModelCandidate::from_settings(model.clone(), task, &found, set)
        });
        match candidate {
            Ok(candidate) => candidates.push(candidate),
            Err(error) => errors.push(FailedModel { model: model.clone(), error: format!("{error:#}") }),
        }
    }
    Ok((candidates, errors))
}

fn print_findings(
    report: &MachineReport,
    forecasts: &[Forecast],
    errors: &[FailedModel],
    args: &DoctorArgs,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for line in report.finding_lines() {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\nA candidate has {}; times are predicted:", amount(args.tokens, "token"))?;
    if args.models.is_empty() {
        writeln!(out, "{}", output::table_head())?;
        for forecast in forecasts {
            writeln!(out, "{}", output::table_row(forecast))?;
        }
        return Ok(());
    }
    for line in forecasts.iter().flat_map(output::model_lines) {
        writeln!(out, "{line}")?;
    }
    for FailedModel { model, error } in errors {
        writeln!(out, "{model}: {error}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn every_model_of_the_table_has_a_shape_and_larger_ones_have_more_parameters() {
        let known: Vec<KnownModel> = serde_json::from_str(KNOWN).unwrap();
        let parameters = |name: &str| {
            let found = known.iter().find(|known| known.model.ends_with(name)).unwrap();
            let shape = text_embeddings_backend::ModelShape::from_config(&found.config);
            (shape.unwrap().parameter_count() / 1e6).round()
        };
        // As their cards say, in millions.
        for (name, millions) in [
            ("ms-marco-MiniLM-L6-v2", 23.0),
            ("ettin-reranker-17m-v1", 17.0),
            ("ettin-reranker-68m-v1", 68.0),
            ("ettin-reranker-150m-v1", 149.0),
            ("gte-modernbert-base", 149.0),
            ("bge-reranker-v2-m3", 567.0),
            ("bge-large-en-v1.5", 334.0),
            ("embeddinggemma-300m", 303.0),
            ("Qwen3-Reranker-0.6B", 596.0),
            ("mxbai-rerank-large-v2", 1544.0),
            ("Qwen3-Embedding-4B", 4022.0),
        ] {
            let found = parameters(name);
            assert!((found - millions).abs() <= 0.01 * millions + 1.0, "{name}: {found}");
        }
        for KnownModel { model, kind, config } in &known {
            let task = if kind == "re-ranker" { Task::Rerank } else { Task::Embed };
            if kind == "re-ranker" && model.contains("rerank") {
                assert_eq!(Task::guess_task(model, config), task, "{model}");
            }
        }
        assert_eq!(Task::guess_task("demo", &Value::Null), Task::Rerank);
    }

    #[test]
    fn the_tokens_of_a_candidate_are_bounded() {
        for (text, expected) in
            [("1", Ok(1)), ("131072", Ok(MAX_TOKENS)), ("0", Err(())), ("131073", Err(())), ("x", Err(()))]
        {
            assert_eq!(candidate_tokens(text).map_err(drop), expected, "{text}");
        }
    }
}

//! `rerank`: scores documents for a query, without a server.
//!
//! Input: a query, and documents as arguments or in a file. Output: documents with scores and their other
//! fields, the best first; with `--unsorted` in the order of the documents, each as soon as it is scored.
//! What must hold: the scores are the server's for the same pairs; memory grows by 16 bytes with each
//! document, and with `--top-n` or `--unsorted` not at all; while there are documents, the device never waits
//! for them.

mod documents;
mod fields;
mod format;
mod json_list;
mod order;
mod output;
mod progress;
mod score;

use std::{
    io::{self, BufWriter, IsTerminal},
    num::NonZeroUsize,
    path::PathBuf,
};

use anyhow::{bail, ensure};
use clap::Args;
use text_embeddings_core::service::RerankRequest;

use super::{Usage, block_on, screen::Screen, start_engine};
use crate::args::{ModelArgs, at_least_one};
use documents::{Document, DocumentSource, Documents};
use fields::Columns;
use order::{Ranking, Scored};
use output::{ScoredDocument, Writer};
use progress::{Loading, Progress};

/// The arguments of `rerank`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  text-embeddings-router rerank --model-id Qwen/Qwen3-Reranker-0.6B \\
      --query 'red planet' 'Mars is red.' 'Bread is baked.'
  text-embeddings-router rerank --model-id ./model --query 'red planet' \\
      --documents planets.jsonl --top-n 10
  tail -f titles.txt | text-embeddings-router rerank --model-id ./model \\
      --query 'red planet' --documents - --output jsonl --unsorted
  text-embeddings-router rerank --model-id ./model --query 'red planet' \\
      --documents planets.csv.gz --field body --output csv

A result has rank, index and score, then the other fields or columns of the document as they are in the file.
A field with the name of one of the three gets `input_` in front.

For millions of documents on more than one machine: text_embeddings_router.ray of the Python package (docs/scaling.md).

Exit codes: 0 done, 1 failed, 2 wrong arguments. Set LOG_LEVEL=info to see what is loaded.")]
pub(crate) struct RerankArgs {
    /// The re-ranker: a Hub id such as `Qwen/Qwen3-Reranker-0.6B`, the path of a local directory, or `demo`.
    #[arg(long, env, help_heading = "Model")]
    model_id: String,

    /// How the model is fetched, prompted and computed.
    #[command(flatten)]
    model: ModelArgs,

    /// The query: what the documents should be about.
    #[arg(long, short)]
    query: String,

    /// The meaning of "relevant" [default: the model's own instruction].
    #[arg(long)]
    instruction: Option<String>,

    /// The documents.
    #[arg(conflicts_with = "documents", required_unless_present = "documents", value_name = "DOCUMENT")]
    texts: Vec<String>,

    /// A file with the documents, which may be compressed (`.gz`); `-` for standard input.
    ///
    /// Blank lines are skipped, but count in `index`.
    #[arg(long, short, value_name = "FILE")]
    documents: Option<PathBuf>,

    /// How the file is read [default: by its name; for standard input jsonl if its first line is a JSON
    /// object, else txt].
    #[arg(long)]
    format: Option<format::InputFormat>,

    /// The field, or column, with the text [default: text].
    #[arg(long)]
    field: Option<String>,

    /// Show only the best N documents; memory then does not grow with the documents.
    #[arg(long, short = 'n', value_name = "N", value_parser = at_least_one::<NonZeroUsize>)]
    top_n: Option<NonZeroUsize>,

    /// Show raw scores: those before the sigmoid.
    #[arg(long)]
    raw_scores: bool,

    /// The format of the results, on a terminal and elsewhere.
    #[arg(long, short, default_value = "table")]
    output: output::OutputFormat,

    /// Write each result as soon as it is there, in the order of the documents; for jsonl and csv.
    #[arg(long, conflicts_with = "top_n")]
    unsorted: bool,
}

/// Ranks.
pub(super) fn run(args: RerankArgs) -> anyhow::Result<()> {
    let source = source(&args)?;
    if args.unsorted && !matches!(args.output, output::OutputFormat::Jsonl | output::OutputFormat::Csv) {
        return Err(usage_error("`--unsorted` needs `--output jsonl` or `--output csv`"));
    }
    if args.query.trim().is_empty() {
        return Err(usage_error("`--query` is empty: give what the documents should be about"));
    }
    block_on("warn", rank(args, source))
}

fn usage_error(text: &str) -> anyhow::Error {
    Usage(text.to_owned(), "rerank").into()
}

/// The documents that the arguments name.
fn source(args: &RerankArgs) -> anyhow::Result<DocumentSource> {
    let Some(path) = &args.documents else {
        if args.format.is_some() || args.field.is_some() {
            return Err(usage_error("`--format` and `--field` are about a file: give `--documents`"));
        }
        return Ok(DocumentSource::Arguments(args.texts.clone()));
    };
    // Plain text has no fields: `--field` says that standard input is JSON.
    let by_name = || match format::InputFormat::from_name(path) {
        Some(format::InputFormat::ByFirstLine) if args.field.is_some() => Some(format::InputFormat::Jsonl),
        format => format,
    };
    let Some(format) = args.format.or_else(by_name) else {
        let path = path.display();
        return Err(usage_error(&format!("the name of `{path}` does not tell its format: give `--format`")));
    };
    let field = args.field.clone().unwrap_or_else(|| "text".to_owned());
    if args.field.is_some() && format == format::InputFormat::Txt {
        return Err(usage_error(
            "`--field` is about jsonl, json, csv and tsv, not txt: leave it out, or give `--format`",
        ));
    }
    Ok(DocumentSource::File { path: path.clone(), format, field })
}

async fn rank(args: RerankArgs, source: DocumentSource) -> anyhow::Result<()> {
    let columns = match (args.output, args.unsorted) {
        (output::OutputFormat::Csv, true) => Columns::OfFirst(Vec::new()),
        (output::OutputFormat::Csv, false) => Columns::Collected(Vec::new()),
        _ => Columns::None,
    };
    let documents = Documents::open(&source, !args.unsorted, columns)?;
    let has_room = !args.unsorted || !io::stdout().is_terminal();
    let loading = Loading::new(&args.model_id, has_room);
    let service = start_engine(&args.model_id, args.model.clone()).await?.service;
    drop(loading);
    let model = &service.config().model;
    let Some(reranker) = model.reranker() else {
        bail!(
            "`{}` is not a re-ranker, but {}: give another model, or its kind with `--model-type`",
            args.model_id,
            model.model_type()
        );
    };
    let request = RerankRequest {
        query: args.query.clone(),
        instruction: args.instruction.clone(),
        raw_scores: true,
        ..RerankRequest::default()
    };
    let mut progress = Progress::new(documents.length(), has_room);
    let rule = reranker.score.value;
    let score = |raw: f32| if args.raw_scores { raw } else { rule.apply(raw) };
    let out = BufWriter::new(io::stdout().lock());
    if args.unsorted {
        let mut writer = Writer::new(out, args.output, Screen::of_stdout(), Vec::new(), 0, 0)?;
        let scored = score::each(&service, &request, documents, &mut progress, |scored| {
            for (document, raw) in scored {
                let (score, probability) = (score(raw), rule.probability(raw));
                writer.write(&ScoredDocument { rank: None, score, probability, document })?;
            }
            Ok(writer.flush()?)
        });
        ensure_some(scored.await?.0, &args)?;
        return Ok(writer.finish()?);
    }
    let mut ranking = Ranking::new(args.top_n.map(NonZeroUsize::get));
    let scored = score::each(&service, &request, documents, &mut progress, |scored| {
        for (Document { index, place, .. }, raw) in scored {
            ranking.push(Scored { place, index, raw });
        }
        Ok(())
    });
    let (count, documents) = scored.await?;
    ensure_some(count, &args)?;
    let ranks = ranking.into_sorted();
    let largest = ranks.iter().map(|scored| scored.index).max().unwrap_or_default();
    let columns = documents.column_names();
    let mut writer = Writer::new(out, args.output, Screen::of_stdout(), columns, ranks.len(), largest)?;
    let mut texts = documents.into_texts()?;
    for (rank, Scored { place, index, raw }) in (1..).zip(ranks) {
        let (score, probability, document) = (score(raw), rule.probability(raw), texts.at(place, index)?);
        writer.write(&ScoredDocument { rank: Some(rank), score, probability, document })?;
    }
    Ok(writer.finish()?)
}

fn ensure_some(documents: usize, args: &RerankArgs) -> anyhow::Result<()> {
    let path = args.documents.as_deref().unwrap_or_else(|| "-".as_ref());
    ensure!(documents > 0, "there is no document in `{}`: check the file and `--format`", path.display());
    Ok(())
}

//! `rerank`: scores documents for a query, without a server.
//!
//! Input: a query, and documents as arguments or in a file. Output: documents with scores and their other
//! fields, the best first; with `--unsorted` in the order of the documents, each as soon as it is scored.
//! What must hold: the scores are the server's for the same pairs; memory grows by 16 bytes with each
//! document, and with `--top-n` or `--unsorted` not at all; while there are documents, the device never waits
//! for them.

mod many;
mod order;
mod output;
mod queries;

use std::{
    io::{self, BufWriter, IsTerminal},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use anyhow::{bail, ensure};
use clap::Args;
use text_embeddings_core::{
    error::Error,
    families::ScoreRule,
    model::CosineRanking,
    service::{RerankRequest, Service},
};

use super::{
    Usage, block_on,
    chunks::{self, ChunkResults, ChunkWork},
    input::{Columns, Document, DocumentSource, Documents, FormatArgs, QUERIES_FLAG},
    progress::{Loading, Progress},
    screen::Screen,
    start_engine,
};
use crate::{
    args::{ModelArgs, at_least_one},
    models::Served,
};
use order::{Ranking, Scored};
use output::{OWN_NAMES, OutputFormat, ScoredDocument, Writer};
use queries::{QueryFiles, QueryTasks};

/// The field with the text of a query.
const QUERY: &str = "query";

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
  text-embeddings-router rerank --model-id ./model --queries queries.jsonl \\
      --run bm25.run --documents corpus.jsonl --output-file new.run --resume

A result has rank, index and score, then the other fields or columns of the document as they are in the file.
A field with the name of one of the three gets `input_` in front.

A line of `--queries` has `query` and `documents`, a list of texts or of objects with `text`. With `--run`, it
has an id and `query`, and the run says which documents of `--documents` are for which query.

For millions of documents on more than one machine: text_embeddings_router.ray of the Python package (docs/scaling.md).

Exit codes: 0 done, 1 failed, 2 wrong arguments. Set LOG_LEVEL=info to see what is loaded.")]
pub(crate) struct RerankArgs {
    /// The re-ranker, or an embedding model, which ranks by cosine: a Hub id such as
    /// `Qwen/Qwen3-Reranker-0.6B`, the path of a local directory, or `demo`.
    #[arg(long, env, help_heading = "Model")]
    model_id: String,

    /// How the model is fetched, prompted and computed.
    #[command(flatten)]
    model: ModelArgs,

    /// The query: what the documents should be about.
    #[arg(long, short, required_unless_present = "queries")]
    query: Option<String>,

    /// A file with many queries, which may be compressed (`.gz`); `-` for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["query", "unsorted"])]
    queries: Option<PathBuf>,

    /// A run of TREC, with the documents of each query; they are in `--documents`.
    #[arg(long, value_name = "FILE", requires = "documents", requires = "queries")]
    run: Option<PathBuf>,

    /// The field, or column, with the text of a query [default: query].
    #[arg(long, requires = "queries")]
    query_field: Option<String>,

    /// The field, or column, with the id of a query or document [default: id, else _id].
    #[arg(long, requires = "queries")]
    id_field: Option<String>,

    /// The meaning of "relevant" [default: the model's own instruction].
    #[arg(long)]
    instruction: Option<String>,

    /// The documents; `-` for standard input.
    #[arg(
        conflicts_with_all = ["documents", "queries"],
        required_unless_present_any = ["documents", "queries"],
        value_name = "DOCUMENT"
    )]
    texts: Vec<String>,

    /// A file with the documents, which may be compressed (`.gz`); `-` for standard input.
    ///
    /// Blank lines are skipped, but count in `index`.
    #[arg(long, short, value_name = "FILE")]
    documents: Option<PathBuf>,

    /// How the file is read.
    #[command(flatten)]
    format: FormatArgs,

    /// Show only the best N documents; memory then does not grow with the documents.
    #[arg(long, short = 'n', value_name = "N", value_parser = at_least_one::<NonZeroUsize>)]
    top_n: Option<NonZeroUsize>,

    /// Show raw scores: those before the sigmoid.
    #[arg(long)]
    raw_scores: bool,

    /// The format of the results, on a terminal and elsewhere [default: table; with `--queries` jsonl, and
    /// with `--run` trec].
    #[arg(long, short)]
    output: Option<OutputFormat>,

    /// The file for the results of `--queries` [default: standard output]. It appears when it is complete.
    #[arg(long, value_name = "FILE", requires = "queries")]
    output_file: Option<PathBuf>,

    /// Continue where an earlier run with the same arguments was ended. Its results are in
    /// `OUTPUT_FILE.partial`.
    #[arg(long, requires = "output_file")]
    resume: bool,

    /// Write each result as soon as it is there, in the order of the documents; for jsonl and csv.
    #[arg(long, conflicts_with = "top_n")]
    unsorted: bool,
}

pub(super) fn run(args: RerankArgs) -> anyhow::Result<()> {
    let path = args.documents.as_deref();
    if let Some(queries) = &args.queries {
        let files = query_files(&args, queries)?;
        if !matches!(args.output, None | Some(OutputFormat::Jsonl | OutputFormat::Trec)) {
            return Err(usage_error("`--queries` needs `--output jsonl` or `--output trec`"));
        }
        return block_on("warn", rank_queries(args, files));
    }
    // clap does not require `--queries` for them next to `--query`, which excludes it.
    for (flag, is_given) in [
        ("--run", args.run.is_some()),
        ("--query-field", args.query_field.is_some()),
        ("--id-field", args.id_field.is_some()),
        ("--output-file", args.output_file.is_some()),
    ] {
        if is_given {
            return Err(usage_error(&format!("`{flag}` needs `--queries`")));
        }
    }
    let source = args.format.find_source(path, &args.texts, "--documents", &OWN_NAMES);
    let source = source.map_err(|problem| usage_error(&problem))?;
    let output = args.output.unwrap_or(OutputFormat::Table);
    if output == OutputFormat::Trec {
        return Err(usage_error("`--output trec` needs `--queries`"));
    }
    if args.unsorted && !matches!(output, OutputFormat::Jsonl | OutputFormat::Csv) {
        return Err(usage_error("`--unsorted` needs `--output jsonl` or `--output csv`"));
    }
    let query = args.query.clone().unwrap_or_default();
    if query.trim().is_empty() {
        return Err(usage_error("`--query` is empty: give what the documents should be about"));
    }
    block_on("warn", rank(args, source, query))
}

fn usage_error(text: &str) -> anyhow::Error {
    Usage(text.to_owned(), "rerank").into()
}

/// The work on a chunk of documents.
#[derive(Clone)]
struct ScoreWork {
    service: Service,
    /// The request without its texts. It asks for raw scores.
    request: RerankRequest,
}

impl ChunkWork for ScoreWork {
    type Value = f32;

    fn reads_lists(&self) -> bool {
        self.service.reads_lists()
    }

    async fn compute_texts(&self, texts: Vec<String>) -> Result<ChunkResults<f32>, Error> {
        let mut values = vec![0.0; texts.len()];
        let answer = self.service.rerank(RerankRequest { texts, ..self.request.clone() }).await?;
        for rank in answer.value {
            values[rank.index] = rank.score;
        }
        Ok(ChunkResults { values, truncated: answer.cost.truncated })
    }
}

/// Loads the model. Returns it with the rule by which its raw scores become scores.
async fn load_model(args: &RerankArgs, has_room: bool) -> anyhow::Result<(Served, ScoreRule)> {
    let loading = Loading::new(&args.model_id, has_room);
    let served = start_engine(&args.model_id, args.model.clone()).await?;
    drop(loading);
    let model = &served.service.config().model;
    let cosine = model.cosine_ranking().map(|_| CosineRanking::SCORE);
    let Some(rule) = cosine.or_else(|| model.reranker().map(|reranker| reranker.score.value)) else {
        bail!(
            "`{}` is not a re-ranker, but {}: give another model, or its kind with `--model-type`",
            args.model_id,
            model.model_type()
        );
    };
    Ok((served, rule))
}

/// The files that `--queries` and `--run` name.
fn query_files(args: &RerankArgs, queries: &Path) -> anyhow::Result<QueryFiles> {
    let (format, run) = match (&args.run, &args.documents) {
        (None, Some(_)) => {
            return Err(usage_error(
                "with `--queries`, `--documents` needs `--run`, which says what is for whom",
            ));
        }
        (Some(run), documents) => {
            let source = args.format.find_source(documents.as_deref(), &[], "--documents", &[]);
            (None, Some((run.clone(), source.map_err(|problem| usage_error(&problem))?)))
        }
        (None, None) => (args.format.format, None),
    };
    let field = args.query_field.clone().unwrap_or_else(|| QUERY.to_owned());
    let of_queries = FormatArgs { format, field: Some(field) };
    let queries = of_queries.find_source(Some(queries), &[], QUERIES_FLAG, &[]);
    let queries = queries.map_err(|problem| usage_error(&problem))?;
    Ok(QueryFiles { queries, run, text_field: args.format.text_field(), id_field: args.id_field.clone() })
}

async fn rank_queries(args: RerankArgs, files: QueryFiles) -> anyhow::Result<()> {
    let tasks = QueryTasks::open_files(files)?;
    let has_room = args.output_file.is_some() || !io::stdout().is_terminal();
    let (served, rule) = load_model(&args, has_room).await?;
    many::rank_all(&args, &served, tasks, rule).await
}

async fn rank(args: RerankArgs, source: DocumentSource, query: String) -> anyhow::Result<()> {
    let output = args.output.unwrap_or(OutputFormat::Table);
    let columns = match (output, args.unsorted) {
        (OutputFormat::Csv, true) => Columns::OfFirst(Vec::new()),
        (OutputFormat::Csv, false) => Columns::Collected(Vec::new()),
        _ => Columns::None,
    };
    let documents = Documents::open(&source, !args.unsorted, columns)?;
    let has_room = !args.unsorted || !io::stdout().is_terminal();
    let (Served { service, .. }, rule) = load_model(&args, has_room).await?;
    let request = RerankRequest {
        query,
        instruction: args.instruction.clone(),
        raw_scores: true,
        ..RerankRequest::default()
    };
    // A request waits for a permit instead of being refused.
    let work = ScoreWork { service: service.patient(), request };
    let mut progress = Progress::new(documents.length(), has_room, "document", "scored");
    let score = |raw: f32| if args.raw_scores { raw } else { rule.apply(raw) };
    let out = BufWriter::new(io::stdout().lock());
    if args.unsorted {
        let mut writer = Writer::new(out, output, Screen::of_stdout(), Vec::new(), 0, 0)?;
        let scored = chunks::each_chunk(&work, documents, &mut progress, |scored| {
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
    let scored = chunks::each_chunk(&work, documents, &mut progress, |scored| {
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
    let mut writer = Writer::new(out, output, Screen::of_stdout(), columns, ranks.len(), largest)?;
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

//! `rerank --queries`: the documents of many queries, each in the order of its scores.
//!
//! Input: the engine and [`QueryTasks`]. Output: a line of JSON for each query, or the lines of a run of
//! TREC. What must hold: a query's scores do not depend on the other queries; a few queries are in flight, so
//! that the device has work while the next are read; a file that was continued equals one that was written in
//! one go.

use std::{
    io::{self, IsTerminal, Write},
    num::NonZeroUsize,
    path::Path,
};

use anyhow::{Context, ensure};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use text_embeddings_core::{
    families::ScoreRule,
    service::{RerankRequest, Service},
};
use tokio::{
    sync::mpsc::{Sender, channel},
    task::spawn_blocking,
};

use super::{
    RerankArgs,
    order::{Ranking, Scored},
    output::OutputFormat,
    queries::{QueryTask, QueryTasks},
};
use crate::{
    commands::{
        chunks::warn_of_cut,
        partial::{OutputSink, PartialFile, settings_of},
        progress::Progress,
    },
    models::Served,
};

/// The queries in flight: one is computed, one waits, and one is tokenized.
const IN_FLIGHT: usize = 3;
/// The last word of each line of a run, which names the system that made it.
const TAG: &str = "text-embeddings-router";

/// The work on a query.
#[derive(Clone)]
struct QueryWork {
    service: Service,
    /// The request without query and texts. It asks for raw scores.
    request: RerankRequest,
    top_n: Option<usize>,
}

/// A query with its documents in order.
struct RankedQuery {
    task: QueryTask,
    ranks: Vec<Scored>,
    truncated: usize,
}

/// Ranks the documents of every query.
pub(super) async fn rank_all(
    args: &RerankArgs,
    served: &Served,
    tasks: QueryTasks,
    rule: ScoreRule,
) -> anyhow::Result<()> {
    let format =
        args.output.unwrap_or(if args.run.is_some() { OutputFormat::Trec } else { OutputFormat::Jsonl });
    let (mut sink, done) = match &args.output_file {
        None => (OutputSink::from_stdout(), 0),
        Some(path) => {
            let inputs = [&args.queries, &args.run, &args.documents].map(Option::as_deref);
            let inputs: Vec<&Path> = inputs.into_iter().flatten().collect();
            let settings = settings_of(&RerankArgs { resume: false, ..args.clone() }, served, &inputs);
            let Some(mut file) = PartialFile::open_file(path, &settings, args.resume)? else {
                return Ok(());
            };
            let done =
                if format == OutputFormat::Trec { keep_groups(&mut file)? } else { file.keep_lines()? };
            (OutputSink::File(file), done)
        }
    };
    let work = QueryWork {
        // A request waits for a permit instead of being refused.
        service: served.service.patient(),
        request: RerankRequest {
            instruction: args.instruction.clone(),
            raw_scores: true,
            ..RerankRequest::default()
        },
        top_n: args.top_n.map(NonZeroUsize::get),
    };
    let has_room = args.output_file.is_some() || !io::stdout().is_terminal();
    let mut progress = Progress::new(tasks.byte_count(), has_room, "document", "scored");
    let (sender, mut receiver) = channel(1);
    let reader = spawn_blocking(move || read_all(tasks, done, &sender));
    let tasks = stream::poll_fn(move |context| receiver.poll_recv(context));
    let mut ranked = tasks.map(|task| tokio::spawn(rank_one(work.clone(), task))).buffered(IN_FLIGHT);
    let (mut documents, mut truncated) = (0, 0);
    while let Some(query) = ranked.next().await {
        let query = query??;
        documents += query.task.candidates.len();
        truncated += query.truncated;
        progress.advance(query.task.candidates.len(), query.task.position);
        match format {
            OutputFormat::Trec => write_run(&mut sink, &query)?,
            _ => write_line(&mut sink, &query, |raw| if args.raw_scores { raw } else { rule.apply(raw) })?,
        }
        // A reader of standard output sees each query at once, and a killed process has not lost it.
        sink.flush()?;
    }
    reader.await??;
    progress.finish();
    warn_of_cut(truncated, documents);
    ensure!(documents as u64 + done > 0, "there is no query: check the files");
    sink.complete_output()
}

/// Reads the queries into `sender` until the end, or until its receiver is gone. Drops the first `done`.
fn read_all(mut tasks: QueryTasks, done: u64, sender: &Sender<QueryTask>) -> anyhow::Result<()> {
    let mut number = 0;
    while let Some(task) = tasks.next_task()? {
        number += 1;
        if number > done && sender.blocking_send(task).is_err() {
            break;
        }
    }
    ensure!(number >= done, "the file to continue has {done} queries, but there are only {number}");
    Ok(())
}

async fn rank_one(work: QueryWork, mut task: QueryTask) -> anyhow::Result<RankedQuery> {
    let (mut ranking, mut truncated) = (Ranking::new(work.top_n), 0);
    let texts = task.candidates.iter_mut().map(|candidate| std::mem::take(&mut candidate.text));
    let texts: Vec<_> = texts.collect();
    // More documents than one request may have are several requests: each score is the same.
    let limit = work.service.config().max_rerank_texts;
    ensure!(
        texts.len() <= limit || !work.service.reads_lists(),
        "{}: this model reads all documents together, and at most {limit}",
        task.name
    );
    for (part, texts) in texts.chunks(limit).enumerate() {
        let request =
            RerankRequest { query: task.query.clone(), texts: texts.to_vec(), ..work.request.clone() };
        let answer = work.service.rerank(request).await.with_context(|| task.name.clone())?;
        truncated += answer.cost.truncated;
        for rank in answer.value {
            let index = (part * limit + rank.index) as u32;
            ranking.push(Scored { place: 0, index, raw: rank.score });
        }
    }
    Ok(RankedQuery { task, ranks: ranking.into_sorted(), truncated })
}

/// A query in the output.
#[derive(Serialize)]
struct QueryLine<'a> {
    id: &'a str,
    query: &'a str,
    results: Vec<RankLine<'a>>,
}

/// A document of a query in the output.
#[derive(Serialize)]
struct RankLine<'a> {
    rank: usize,
    index: u32,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
}

fn write_line(out: &mut impl Write, query: &RankedQuery, score: impl Fn(f32) -> f32) -> io::Result<()> {
    let QueryTask { id, query: text, candidates, .. } = &query.task;
    let results = (1..).zip(&query.ranks).map(|(rank, &Scored { index, raw, .. })| {
        let id = candidates[index as usize].id.as_deref();
        RankLine { rank, index, score: score(raw), id }
    });
    serde_json::to_writer(&mut *out, &QueryLine { id, query: text, results: results.collect() })?;
    out.write_all(b"\n")
}

/// Raw scores, because probabilities that are equal in 32 bits would lose their order in a tool that sorts.
fn write_run(out: &mut impl Write, query: &RankedQuery) -> anyhow::Result<()> {
    for (rank, &Scored { index, raw, .. }) in (1..).zip(&query.ranks) {
        let number = index.to_string();
        let id = query.task.candidates[index as usize].id.as_ref().unwrap_or(&number);
        for id in [id, &query.task.id] {
            ensure!(
                !id.is_empty() && !id.contains(char::is_whitespace),
                "{}: the id `{id}` has spaces, which a run cannot have: give `--output jsonl`",
                query.task.name
            );
        }
        writeln!(out, "{} Q0 {id} {rank} {raw} {TAG}", query.task.id)?;
    }
    Ok(())
}

/// Drops the lines of the last query of a run, which may be incomplete. Returns the number of queries.
fn keep_groups(file: &mut PartialFile) -> io::Result<u64> {
    let (mut groups, mut begin, mut last) = (0_u64, 0, Vec::new());
    file.each_line(|line, place| {
        let query = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        if query != last {
            (groups, begin, last) = (groups + 1, place, query.to_vec());
        }
    })?;
    file.cut_to(begin)?;
    Ok(groups.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::Map;
    use std::fs;

    #[test]
    fn of_a_run_that_was_cut_anywhere_the_whole_queries_stay() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("run");
        let queries =
            ["q1 Q0 d1 1 2 t\nq1 Q0 d2 2 1 t\n", "q11 Q0 d1 1 2 t\n", "q2 Q0 d 1 9 t\nq2 Q0 e 2 8 t\n"];
        let content = queries.concat();
        for length in 0..=content.len() {
            let partial = folder.path().join("run.partial");
            fs::write(folder.path().join("run.partial.json"), "{}").unwrap();
            fs::write(&partial, &content[..length]).unwrap();
            let mut file = PartialFile::open_file(&target, &Map::new(), true).unwrap().unwrap();
            let whole = keep_groups(&mut file).unwrap() as usize;
            assert_eq!(fs::read_to_string(&partial).unwrap(), queries[..whole].concat(), "{length}");
            // Only the last query is done again, if its first line is there.
            let begun = queries.iter().scan(0, |end, query| {
                let first = *end + query.find('\n').unwrap() + 1;
                *end += query.len();
                Some(first)
            });
            assert_eq!(whole, begun.filter(|first| *first <= length).count().saturating_sub(1), "{length}");
        }
    }
}

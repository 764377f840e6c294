//! Queries with the documents of each: from a file of queries, or from a run of TREC with queries and
//! documents in files of their own.
//!
//! Input: paths and the names of fields. Output: [`QueryTask`]s in the order of the file of queries, or of
//! the run. What must hold: one query's texts are in memory, not all; of the documents that a run names, the
//! id and the place in their file are; whatever does not fit together is an error with its file and line.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::value::RawValue;

use crate::commands::input::{
    Columns, Document, DocumentSource, Documents, Field, InputValue, TextField, Texts, read_json,
};

/// The field of a query that has its documents.
const DOCUMENTS: &str = "documents";
/// The fields that are taken as an id where none is named.
const IDS: [&str; 2] = ["id", "_id"];
/// The longest line of a run in bytes.
const MAX_LINE: u64 = 64 * 1024;

/// A document of a query.
#[derive(Debug)]
pub(super) struct Candidate {
    /// Its id; absent if the file has none.
    pub(super) id: Option<String>,
    pub(super) text: String,
}

/// Where queries and documents come from.
#[derive(Debug, Clone)]
pub(super) struct QueryFiles {
    /// The file with the queries. The text is in its field.
    pub(super) queries: DocumentSource,
    /// The run, and the file with its documents.
    pub(super) run: Option<(PathBuf, DocumentSource)>,
    /// The field with the text of a document.
    pub(super) text_field: String,
    /// The field with the id of a query or document; by default `id` or `_id`.
    pub(super) id_field: Option<String>,
}

/// A query with its documents.
#[derive(Debug)]
pub(super) struct QueryTask {
    /// Its id; without one, the number of its line, from 0.
    pub(super) id: String,
    /// Its text.
    pub(super) query: String,
    /// Its documents, at least one.
    pub(super) candidates: Vec<Candidate>,
    /// Where it is, in messages.
    pub(super) name: String,
    /// The byte of its file at which it begins.
    pub(super) position: u64,
}

/// Reads the queries with their documents in order.
pub(super) struct QueryTasks {
    files: QueryFiles,
    source: TaskSource,
    /// The ids so far.
    seen: HashSet<String>,
}

enum TaskSource {
    /// Each line has a query and its documents.
    Lines(Box<Documents>),
    /// A run names both.
    Run(Box<RunSource>),
}

/// A run with the queries and documents that it names.
struct RunSource {
    lines: RunLines,
    /// The line after the current query.
    next: Option<RunLine>,
    queries: HashMap<String, String>,
    /// The number and the place of each document that the run names; absent if the file does not have it.
    places: HashMap<String, Option<(u32, u64)>>,
    texts: Texts,
}

impl QueryTasks {
    /// Opens the files. With a run, reads all queries, and finds the documents that the run names.
    pub(super) fn open_files(files: QueryFiles) -> anyhow::Result<Self> {
        let source = match &files.run {
            None => TaskSource::Lines(Box::new(Documents::open(&files.queries, false, Columns::None)?)),
            Some((run, documents)) => TaskSource::Run(Box::new(RunSource::open_run(&files, run, documents)?)),
        };
        Ok(Self { files, source, seen: HashSet::new() })
    }

    /// The bytes of the file that gives the order; absent if that is not known.
    pub(super) fn byte_count(&self) -> Option<u64> {
        match &self.source {
            TaskSource::Lines(documents) => documents.length(),
            TaskSource::Run(run) => run.lines.length,
        }
    }

    /// The next query; none at the end. Fails if it cannot be read, has no documents, or has the id of an
    /// earlier one.
    pub(super) fn next_task(&mut self) -> anyhow::Result<Option<QueryTask>> {
        let task = match &mut self.source {
            TaskSource::Lines(documents) => {
                let Some(line) = documents.next()? else { return Ok(None) };
                let name = documents.names().describe(line.index);
                self.files.read_line(line, name.clone()).context(name)?
            }
            TaskSource::Run(run) => {
                let Some(task) = run.next_task()? else { return Ok(None) };
                task
            }
        };
        ensure!(!task.query.trim().is_empty(), "{}: the query is empty", task.name);
        ensure!(!task.candidates.is_empty(), "{}: the query has no documents", task.name);
        ensure!(
            self.seen.insert(task.id.clone()),
            "{}: there was a query with the id `{}` before: put its documents together",
            task.name,
            task.id
        );
        Ok(Some(task))
    }
}

impl QueryFiles {
    /// The id among these fields.
    fn find_id(&self, fields: &[Field]) -> Option<String> {
        let value = match &self.id_field {
            Some(name) => fields.iter().find(|field| *field.name == **name),
            None => IDS.iter().find_map(|name| fields.iter().find(|field| *field.name == **name)),
        };
        value.map(|field| field.value.cell_text().into_owned())
    }

    /// A query that has its documents with it.
    fn read_line(&self, line: Document, name: String) -> anyhow::Result<QueryTask> {
        let list = line.fields.iter().find(|field| *field.name == *DOCUMENTS);
        let Some(Field { value: InputValue::Json(list), .. }) = list else {
            bail!("has no field `{DOCUMENTS}` with a list: give one, or `--run` and `--documents`")
        };
        let list: Vec<&RawValue> = serde_json::from_str(list.get())
            .map_err(|error| anyhow!("the field `{DOCUMENTS}` is not a list ({error})"))?;
        let candidates = list.iter().enumerate().map(|(number, value)| {
            self.read_candidate(value).with_context(|| format!("document {number} of its `{DOCUMENTS}`"))
        });
        Ok(QueryTask {
            id: self.find_id(&line.fields).unwrap_or_else(|| line.index.to_string()),
            candidates: candidates.collect::<anyhow::Result<_>>()?,
            query: line.text,
            position: line.place,
            name,
        })
    }

    /// A document of such a query: a text, or an object with its text and id.
    fn read_candidate(&self, value: &RawValue) -> anyhow::Result<Candidate> {
        if let Ok(text) = serde_json::from_str(value.get()) {
            return Ok(Candidate { id: None, text });
        }
        let field = TextField::of_documents(&self.text_field, &[]);
        let (text, fields) = read_json(value.get(), &field)?;
        Ok(Candidate { id: self.find_id(&fields), text })
    }
}

impl RunSource {
    fn open_run(files: &QueryFiles, run: &Path, source: &DocumentSource) -> anyhow::Result<Self> {
        let mut queries = HashMap::new();
        let mut lines = Documents::open(&files.queries, false, Columns::None)?;
        while let Some(line) = lines.next()? {
            let id = files.find_id(&line.fields).with_context(|| no_id(&lines, line.index))?;
            ensure!(
                !queries.contains_key(&id),
                "{}: there was a query with the id `{id}` before",
                lines.names().describe(line.index)
            );
            queries.insert(id, line.text);
        }
        let mut places = HashMap::new();
        let mut named = RunLines::open_path(run)?;
        while let Some(line) = named.next_line()? {
            places.entry(line.document).or_insert(None);
        }
        let mut documents = Documents::open(source, true, Columns::None)?.with_fields();
        while let Some(document) = documents.next()? {
            let id = files.find_id(&document.fields).with_context(|| no_id(&documents, document.index))?;
            if let Some(place) = places.get_mut(&id) {
                ensure!(
                    place.is_none(),
                    "{}: there was a document with the id `{id}` before",
                    documents.names().describe(document.index)
                );
                *place = Some((document.index, document.place));
            }
        }
        let mut lines = RunLines::open_path(run)?;
        let next = lines.next_line()?;
        Ok(Self { lines, next, queries, places, texts: documents.into_texts()? })
    }

    fn next_task(&mut self) -> anyhow::Result<Option<QueryTask>> {
        let Some(first) = self.next.take() else { return Ok(None) };
        let name = self.lines.line_name(first.number);
        let Some(query) = self.queries.get(&first.query) else {
            bail!("{name}: the query `{}` is not in the file of `--queries`", first.query)
        };
        let mut task = QueryTask {
            id: first.query.clone(),
            query: query.clone(),
            candidates: Vec::new(),
            name,
            position: first.position,
        };
        let mut line = Some(first);
        let mut seen = HashSet::new();
        while let Some(RunLine { query, document, number, .. }) = line {
            ensure!(
                seen.insert(document.clone()),
                "{}: the query has the document `{document}` on an earlier line, too",
                self.lines.line_name(number)
            );
            let Some(Some((index, place))) = self.places.get(&document) else {
                bail!(
                    "{}: the document `{document}` is not in the file of `--documents`",
                    self.lines.line_name(number)
                )
            };
            let text = self.texts.at(*place, *index)?.text;
            task.candidates.push(Candidate { id: Some(document), text });
            line = self.lines.next_line()?;
            if line.as_ref().is_some_and(|line| line.query != query) {
                self.next = line.take();
            }
        }
        Ok(Some(task))
    }
}

fn no_id(documents: &Documents, index: u32) -> String {
    format!("{} has no field `id` or `_id`: choose one with `--id-field`", documents.names().describe(index))
}

/// Reads the lines of a run.
struct RunLines {
    path: PathBuf,
    stream: BufReader<File>,
    length: Option<u64>,
    number: u64,
    position: u64,
}

/// A line of a run: a query and one of its documents.
struct RunLine {
    query: String,
    document: String,
    /// The number of the line, from 1.
    number: u64,
    /// The byte at which it begins.
    position: u64,
}

impl RunLines {
    fn open_path(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| {
            format!("`{}` cannot be read: check the path and its permissions", path.display())
        })?;
        let metadata = file.metadata()?;
        // It is read twice.
        ensure!(metadata.is_file(), "`{}` is not a file: give the path of a run", path.display());
        let length = Some(metadata.len());
        Ok(Self { path: path.to_owned(), stream: BufReader::new(file), length, number: 0, position: 0 })
    }

    fn line_name(&self, number: u64) -> String {
        format!("`{}`, line {number}", self.path.display())
    }

    /// The next line that is not blank; none at the end.
    fn next_line(&mut self) -> anyhow::Result<Option<RunLine>> {
        loop {
            let mut line = Vec::new();
            let read = (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(None);
            }
            let position = self.position;
            self.number += 1;
            self.position += read as u64;
            let wrong = "is not a line of a run, such as `q1 Q0 doc7 1 0.93 bm25`";
            let name = self.line_name(self.number);
            let line = std::str::from_utf8(&line).map_err(|_| anyhow!("{name} {wrong}"))?;
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [query, _, document, _, _, _] => {
                    let (query, document) = (query.to_owned(), document.to_owned());
                    return Ok(Some(RunLine { query, document, number: self.number, position }));
                }
                _ => bail!("{name} {wrong}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::commands::input::InputFormat;
    use std::fs;

    /// The tasks of files with this content: id, query, and the documents as `id=text`.
    fn tasks(queries: &str, run: Option<[&str; 2]>) -> anyhow::Result<Vec<String>> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        fs::write(path("queries.jsonl"), queries)?;
        let source = |name: &str, field: &str| {
            let field = TextField::of_documents(field, &[]);
            DocumentSource::File { path: path(name), format: InputFormat::Jsonl, field }
        };
        let run = run.map(|[lines, documents]| {
            fs::write(path("first.run"), lines).unwrap();
            fs::write(path("documents.jsonl"), documents).unwrap();
            (path("first.run"), source("documents.jsonl", "text"))
        });
        let mut tasks = QueryTasks::open_files(QueryFiles {
            queries: source("queries.jsonl", "query"),
            run,
            text_field: "text".to_owned(),
            id_field: None,
        })?;
        let mut all = Vec::new();
        while let Some(QueryTask { id, query, candidates, .. }) = tasks.next_task()? {
            let documents: Vec<_> = candidates
                .iter()
                .map(|candidate| format!("{}={}", candidate.id.as_deref().unwrap_or("-"), candidate.text))
                .collect();
            all.push(format!("{id} {query}: {}", documents.join(" ")));
        }
        Ok(all)
    }

    #[test]
    fn queries_come_with_their_documents() {
        let lines = r#"{"query": "a", "documents": ["x", {"text": "y", "id": 7}, {"_id": "z", "text": "z"}]}

{"_id": "q2", "query": "b", "documents": ["x"], "more": 1}"#;
        assert_eq!(tasks(lines, None).unwrap(), ["0 a: -=x 7=y z=z", "q2 b: -=x"]);
        let queries =
            "{\"id\": 1, \"query\": \"a\"}\n{\"id\": 2, \"query\": \"b\"}\n{\"id\": 3, \"query\": \"c\"}";
        let run = "2 Q0 d3 1 9.5 tag\n2\tQ0  d1 2 7 tag\n\n1 Q0 d1 1 3 tag\n";
        let documents = "{\"id\": \"d1\", \"text\": \"one\"}\n{\"_id\": \"d2\", \"text\": \"two\"}\n{\"id\": \"d3\", \"text\": \"three\"}";
        let got = tasks(queries, Some([run, documents])).unwrap();
        assert_eq!(got, ["2 b: d3=three d1=one", "1 a: d1=one"]);
    }

    #[test]
    fn what_does_not_fit_together_is_refused_with_its_place() {
        let query = "{\"id\": 1, \"query\": \"a\"}";
        let document = "{\"id\": \"d\", \"text\": \"x\"}";
        let good = "1 Q0 d 1 1 t\n";
        for (queries, run, words) in [
            ("{\"query\": \"a\"}", None, &["queries.jsonl`, line 1", "no field `documents`", "--run"][..]),
            ("{\"query\": \"a\", \"documents\": 3}", None, &["line 1", "`documents` is not a list"]),
            ("{\"query\": \"a\", \"documents\": []}", None, &["line 1", "no documents"]),
            ("{\"query\": \" \", \"documents\": [\"x\"]}", None, &["line 1", "query is empty"]),
            (
                "{\"query\": \"a\", \"documents\": [\"x\", 3]}",
                None,
                &["line 1", "document 1 of its", "not a JSON object"],
            ),
            (
                "{\"query\": \"a\", \"documents\": [{\"body\": \"x\"}]}",
                None,
                &["no field `text`, but `body`"],
            ),
            (
                "{\"id\": 1, \"query\": \"a\", \"documents\": [\"x\"]}\n{\"id\": 1, \"query\": \"b\", \"documents\": [\"x\"]}",
                None,
                &["line 2", "the id `1` before"],
            ),
            ("{\"query\": \"a\"}", Some([good, document]), &["line 1 has no field `id`", "--id-field"]),
            (query, Some([good, "{\"text\": \"x\"}"]), &["documents.jsonl`, line 1 has no field `id`"]),
            (query, Some(["1 Q0 e 1 1 t", document]), &["first.run`, line 1: the document `e` is not in"]),
            (query, Some(["\n2 Q0 d 1 1 t", document]), &["first.run`, line 2: the query `2` is not in"]),
            (query, Some(["1 d 1 1", document]), &["first.run`, line 1 is not a line of a run"]),
            (
                query,
                Some([&format!("{good}\n{good}"), document]),
                &["line 3: the query has the document `d` on"],
            ),
            (
                query,
                Some([good, &format!("{document}\n{document}")]),
                &["documents.jsonl`, line 2: there was a document"],
            ),
            (
                &format!("{query}\n{query}"),
                Some([good, document]),
                &["queries.jsonl`, line 2: there was a query"],
            ),
            (query, Some([&format!("{good}{}{good}", good.replace('1', "2")), document]), &["`2` is not in"]),
        ] {
            let message = format!("{:#}", tasks(queries, run).unwrap_err());
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
        let two = format!("{query}\n{}", query.replace('1', "2"));
        let run = format!("{good}2 Q0 d 1 1 t\n{good}");
        let message = format!("{:#}", tasks(&two, Some([&run, document])).unwrap_err());
        assert!(
            message.contains("first.run`, line 3: there was a query with the id `1` before"),
            "{message}"
        );
    }
}

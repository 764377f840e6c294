//! Documents to results of the engine, in chunks.
//!
//! Input: the work on a chunk of texts, and a stream of documents. Output: the result of each document, in
//! the order of the documents. What must hold: the first answers come soon, and while the stream pauses every
//! document before the pause is answered; another chunk waits while one is computed; memory stays bounded
//! however long the stream is; an error about a document names it.

use std::{
    collections::VecDeque,
    iter::Zip,
    sync::Arc,
    time::{Duration, Instant},
    vec,
};

use anyhow::{anyhow, ensure};
use text_embeddings_backend_core::amount;
use text_embeddings_core::error::Error;
use tokio::{
    runtime::Handle,
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::{JoinHandle, spawn_blocking},
};

use super::{
    input::{Document, Documents, Field},
    progress::Progress,
};

/// The documents of the first chunk.
const FIRST_DOCUMENTS: usize = 4;
/// The most documents of a chunk.
const MAX_DOCUMENTS: usize = 256;
/// The most bytes of text in a chunk, except for a single document that is longer.
const CHUNK_BYTES: usize = 128 * 1024;
/// The most bytes of fields in a chunk, except for a single document that has more. They cost no arithmetic,
/// so a chunk may have more of them than of text.
const CHUNK_FIELD_BYTES: usize = 4 << 20;
/// The chunks in flight: one is computed, one waits, and one is tokenized.
const IN_FLIGHT: usize = 3;
/// Chunks grow until one takes about this long: long enough to fill batches, short enough to show progress.
const CHUNK_TIME: Duration = Duration::from_millis(400);
/// The bytes that are read ahead of the chunks, except for a single document that is longer.
const READ_AHEAD: usize = 1 << 20;
/// The bytes that a document takes in addition to its text.
const OVERHEAD: usize = 64;

/// The work on the texts of a chunk.
pub(crate) trait ChunkWork: Clone + Send + Sync + 'static {
    /// The result for one text.
    type Value: Send + 'static;

    /// Whether the model reads all documents together, in one chunk.
    fn reads_lists(&self) -> bool;

    /// The results of `texts`, in their order.
    fn compute_texts(
        &self,
        texts: Vec<String>,
    ) -> impl Future<Output = Result<ChunkResults<Self::Value>, Error>> + Send;
}

/// The results of a chunk's texts.
pub(crate) struct ChunkResults<T> {
    /// One for each text.
    pub(crate) values: Vec<T>,
    /// The number of texts that were cut.
    pub(crate) truncated: usize,
}

/// Documents that are computed together.
#[derive(Debug, Default)]
struct Chunk {
    /// Its documents without their texts.
    documents: Vec<Document>,
    texts: Vec<String>,
    /// Where its last document begins.
    position: u64,
    text_bytes: usize,
    field_bytes: usize,
}

/// A chunk and its results, or the number of the document that has none, and why.
type ChunkOutcome<T> = Result<(Chunk, ChunkResults<T>), (u32, Error)>;

/// A document that was read ahead, with its share of [`READ_AHEAD`].
type ReadAhead = (Document, OwnedSemaphorePermit);

/// Computes every document and hands the results to `take`, chunk by chunk, with documents that have lost
/// their texts. Returns the number of documents, and their source. Fails if a document cannot be read or
/// computed, which names its line, or if `take` fails.
pub(crate) async fn each_chunk<W: ChunkWork>(
    work: &W,
    documents: Documents,
    progress: &mut Progress,
    mut take: impl FnMut(Zip<vec::IntoIter<Document>, vec::IntoIter<W::Value>>) -> anyhow::Result<()>,
) -> anyhow::Result<(usize, Documents)> {
    let names = documents.names();
    let (sender, receiver) = unbounded_channel();
    // Reading from a pipe may block for any time.
    let reader = spawn_blocking(move || read_all(documents, &sender));
    let mut chunks = Chunks::new(receiver, work.reads_lists());
    let mut in_flight: VecDeque<(Instant, JoinHandle<ChunkOutcome<W::Value>>)> = VecDeque::new();
    let (mut count, mut truncated, mut last_done) = (0, 0, Instant::now());
    loop {
        tokio::select! {
            biased;
            (started, done) = await_oldest(&mut in_flight), if !in_flight.is_empty() => {
                let (chunk, results) =
                    done?.map_err(|(index, error)| anyhow!("{}: {error}", names.describe(index)))?;
                let documents = chunk.documents.len();
                chunks.note_time(documents, started.max(last_done).elapsed());
                last_done = Instant::now();
                progress.advance(documents, chunk.position);
                count += documents;
                truncated += results.truncated;
                take(chunk.documents.into_iter().zip(results.values))?;
            }
            chunk = chunks.next(), if !chunks.ended && in_flight.len() < IN_FLIGHT => {
                let Some(chunk) = chunk? else { continue };
                in_flight.push_back((Instant::now(), tokio::spawn(compute_chunk(work.clone(), chunk))));
            }
            else => break,
        }
    }
    let documents = reader.await??;
    progress.finish();
    warn_of_cut(truncated, count);
    Ok((count, documents))
}

/// Logs how many of `count` documents were cut.
pub(crate) fn warn_of_cut(truncated: usize, count: usize) {
    if truncated > 0 {
        tracing::warn!("Cut to `--max-input-length`: {truncated} of {}", amount(count, "document"));
    }
}

/// Waits for the results of the oldest chunk in flight. Without a chunk in flight, it waits for ever.
async fn await_oldest<T>(in_flight: &mut VecDeque<(Instant, JoinHandle<T>)>) -> (Instant, anyhow::Result<T>) {
    match in_flight.front_mut() {
        Some((started, done)) => {
            let (started, done) = (*started, done.await);
            in_flight.pop_front();
            (started, done.map_err(Into::into))
        }
        None => std::future::pending().await,
    }
}

/// Reads the documents into `sender` until the end, or until nobody receives them.
fn read_all(mut documents: Documents, sender: &UnboundedSender<ReadAhead>) -> anyhow::Result<Documents> {
    let room = Arc::new(Semaphore::new(READ_AHEAD));
    while let Some(document) = documents.next()? {
        let bytes = (document.text.len() + field_bytes(&document) + OVERHEAD).min(READ_AHEAD);
        let permit = Handle::current().block_on(Arc::clone(&room).acquire_many_owned(bytes as u32))?;
        if sender.send((document, permit)).is_err() {
            break;
        }
    }
    Ok(documents)
}

fn field_bytes(document: &Document) -> usize {
    document.fields.iter().map(Field::byte_count).sum()
}

/// Puts documents together, as many as were read.
struct Chunks {
    receiver: UnboundedReceiver<ReadAhead>,
    /// Whether the model reads all documents together, in one chunk.
    is_list: bool,
    /// The most documents of the next chunk.
    max_documents: usize,
    /// The chunk that is being filled.
    filling: Chunk,
    /// The number of chunks so far.
    count: usize,
    /// Whether there is no further chunk.
    ended: bool,
}

impl Chunks {
    fn new(receiver: UnboundedReceiver<ReadAhead>, is_list: bool) -> Self {
        let max_documents = if is_list { MAX_DOCUMENTS } else { FIRST_DOCUMENTS };
        Self { receiver, is_list, max_documents, filling: Chunk::default(), count: 0, ended: false }
    }

    /// The next chunk: the documents that are there, at least one; absent at the end. Loses nothing if it is
    /// cancelled.
    async fn next(&mut self) -> anyhow::Result<Option<Chunk>> {
        while self.filling.texts.len() < self.max_documents
            && self.filling.text_bytes < CHUNK_BYTES
            && self.filling.field_bytes < CHUNK_FIELD_BYTES
        {
            let must_wait = self.is_list || self.filling.texts.is_empty();
            let read = if must_wait { self.receiver.recv().await } else { self.receiver.try_recv().ok() };
            let Some((mut document, _)) = read else {
                self.ended = must_wait;
                break;
            };
            let chunk = &mut self.filling;
            let text = std::mem::take(&mut document.text);
            chunk.text_bytes += text.len();
            chunk.field_bytes += field_bytes(&document);
            chunk.position = document.place;
            chunk.texts.push(text);
            chunk.documents.push(document);
        }
        let chunk = std::mem::take(&mut self.filling);
        if chunk.texts.is_empty() {
            return Ok(None);
        }
        self.count += 1;
        ensure!(
            self.count < 2 || !self.is_list,
            "this model reads all documents together, and `rerank` gives it at most {MAX_DOCUMENTS} \
             documents with {} KB of text: give fewer, or rank them in requests to a server",
            CHUNK_BYTES / 1024
        );
        Ok(Some(chunk))
    }

    /// Makes the next chunks larger or smaller, after one of `documents` took this long.
    fn note_time(&mut self, documents: usize, time: Duration) {
        if time > CHUNK_TIME * 2 {
            self.max_documents = (self.max_documents / 2).max(1);
        } else if time < CHUNK_TIME / 2 && documents >= self.max_documents {
            self.max_documents = (self.max_documents * 2).min(MAX_DOCUMENTS);
        }
    }
}

/// Computes a chunk. If that fails, computes its documents one by one, to find the one that is the cause.
async fn compute_chunk<W: ChunkWork>(work: W, mut chunk: Chunk) -> ChunkOutcome<W::Value> {
    let texts = std::mem::take(&mut chunk.texts);
    match work.compute_texts(texts.clone()).await {
        Ok(results) => Ok((chunk, results)),
        Err(error) => {
            for (document, text) in chunk.documents.iter().zip(texts) {
                work.compute_texts(vec![text]).await.map_err(|error| (document.index, error))?;
            }
            // Each can be computed alone, so no document is the cause: the first stands for the chunk.
            Err((chunk.documents[0].index, error))
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::commands::input::TextField;

    fn document(index: u32, text: &str) -> Document {
        Document { index, place: u64::from(index), text: text.to_owned(), fields: Vec::new() }
    }

    fn sent(sender: &UnboundedSender<ReadAhead>, documents: impl IntoIterator<Item = Document>) {
        for document in documents {
            let room = Arc::new(Semaphore::new(1));
            sender.send((document, room.try_acquire_owned().unwrap())).unwrap();
        }
    }

    #[tokio::test]
    async fn a_chunk_has_the_documents_that_are_there() {
        let (sender, receiver) = unbounded_channel();
        let mut chunks = Chunks::new(receiver, false);
        sent(&sender, [document(0, "a"), document(1, "b")]);
        // Fewer than the first chunk may have: it does not wait for more.
        assert_eq!(chunks.next().await.unwrap().unwrap().texts, ["a", "b"]);
        sent(&sender, (0..9).map(|index| document(index, "c")));
        assert_eq!(chunks.next().await.unwrap().unwrap().texts.len(), FIRST_DOCUMENTS);
        let long = "x".repeat(CHUNK_BYTES);
        let field = TextField::of_documents("vector", &[]);
        let fields = Field::from_text(&field, &"0".repeat(CHUNK_FIELD_BYTES));
        sent(&sender, [document(9, &long), Document { fields, ..document(10, "d") }, document(11, "e")]);
        drop(sender);
        assert_eq!(chunks.next().await.unwrap().unwrap().texts.len(), FIRST_DOCUMENTS);
        assert_eq!(chunks.next().await.unwrap().unwrap().texts, ["c", long.as_str()]);
        assert_eq!(chunks.next().await.unwrap().unwrap().texts, ["d"]);
        assert_eq!(chunks.next().await.unwrap().unwrap().texts, ["e"]);
        assert!(chunks.next().await.unwrap().is_none() && chunks.ended);
    }

    #[tokio::test]
    async fn a_list_is_one_chunk_and_waits_for_its_end() {
        let (sender, receiver) = unbounded_channel();
        let mut chunks = Chunks::new(receiver, true);
        sent(&sender, [document(0, "a")]);
        let pause = Duration::from_millis(20);
        assert!(tokio::time::timeout(pause, chunks.next()).await.is_err(), "more may come");
        sent(&sender, (0..MAX_DOCUMENTS as u32).map(|index| document(index, "b")));
        drop(sender);
        assert_eq!(chunks.next().await.unwrap().unwrap().texts.len(), MAX_DOCUMENTS);
        let message = chunks.next().await.unwrap_err().to_string();
        assert!(message.contains("at most 256 documents with 128 KB"), "{message}");
    }

    #[test]
    fn chunks_grow_while_they_are_fast_and_full() {
        let mut chunks = Chunks::new(unbounded_channel().1, false);
        for (documents, milliseconds, max_documents) in
            [(4, 10, 8), (3, 10, 8), (8, 10, 16), (16, 500, 16), (16, 900, 8), (8, 5000, 4)]
        {
            chunks.note_time(documents, Duration::from_millis(milliseconds));
            assert_eq!(chunks.max_documents, max_documents, "{documents} {milliseconds}");
        }
        for _ in 0..20 {
            chunks.note_time(MAX_DOCUMENTS, Duration::ZERO);
        }
        assert_eq!(chunks.max_documents, MAX_DOCUMENTS);
        for _ in 0..20 {
            chunks.note_time(1, Duration::from_secs(9));
        }
        assert_eq!(chunks.max_documents, 1);
    }
}

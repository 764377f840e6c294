//! Documents to scores, through the engine, in chunks.
//!
//! Input: a service and a stream of documents. Output: each document's score, in the order of the documents.
//! What must hold: the first answers come soon, and while the stream pauses every document before the pause
//! is answered; another chunk waits while one is computed; memory stays bounded however long the stream is;
//! an error about a document names it.

use std::{
    collections::VecDeque,
    iter::Zip,
    sync::Arc,
    time::{Duration, Instant},
    vec,
};

use anyhow::{anyhow, ensure};
use text_embeddings_backend_core::amount;
use text_embeddings_core::{
    error::Error,
    service::{RerankRequest, Service},
};
use tokio::{
    runtime::Handle,
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::{JoinHandle, spawn_blocking},
};

use super::{
    documents::{Document, Documents},
    fields::Field,
    progress::Progress,
};

/// The documents of the first chunk.
const FIRST_DOCUMENTS: usize = 4;
/// The most documents of a chunk.
const MOST_DOCUMENTS: usize = 256;
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

/// Documents that are scored together.
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

/// A chunk's raw scores in the order of the chunk.
struct Scores {
    chunk: Chunk,
    values: Vec<f32>,
    truncated: usize,
}

/// A document that cannot be scored, and why.
type DocumentFailure = (u32, Error);

/// A document that was read ahead, with its share of [`READ_AHEAD`].
type ReadAhead = (Document, OwnedSemaphorePermit);

/// Scores every document and hands the raw scores to `take`, chunk by chunk, with documents that have lost
/// their texts. Returns the number of documents, and their source. `request` must ask for raw scores; it
/// has no texts.
///
/// # Errors
///
/// If a document cannot be read or scored, with its line; and the errors of `take`.
pub(super) async fn each(
    service: &Service,
    request: &RerankRequest,
    documents: Documents,
    progress: &mut Progress,
    mut take: impl FnMut(Zip<vec::IntoIter<Document>, vec::IntoIter<f32>>) -> anyhow::Result<()>,
) -> anyhow::Result<(usize, Documents)> {
    // A request waits for a permit instead of being refused.
    let service = service.patient();
    let names = documents.names();
    let (sender, receiver) = unbounded_channel();
    // Reading from a pipe may block for any time.
    let reader = spawn_blocking(move || read_all(documents, &sender));
    let mut chunks = Chunks::new(receiver, service.reads_lists());
    let mut in_flight: VecDeque<(Instant, JoinHandle<Result<Scores, DocumentFailure>>)> = VecDeque::new();
    let (mut count, mut truncated, mut last_done) = (0, 0, Instant::now());
    loop {
        tokio::select! {
            biased;
            (started, scores) = oldest(&mut in_flight), if !in_flight.is_empty() => {
                let scores = scores?.map_err(|(index, error)| anyhow!("{}: {error}", names.describe(index)))?;
                chunks.took(scores.values.len(), started.max(last_done).elapsed());
                last_done = Instant::now();
                progress.advance(scores.values.len(), scores.chunk.position);
                count += scores.values.len();
                truncated += scores.truncated;
                take(scores.chunk.documents.into_iter().zip(scores.values))?;
            }
            chunk = chunks.next(), if !chunks.ended && in_flight.len() < IN_FLIGHT => {
                let Some(chunk) = chunk? else { continue };
                let scores = tokio::spawn(score(service.clone(), request.clone(), chunk));
                in_flight.push_back((Instant::now(), scores));
            }
            else => break,
        }
    }
    let documents = reader.await??;
    progress.finish();
    if truncated > 0 {
        let documents = amount(count, "document");
        tracing::warn!("Cut to `--max-input-length`: {truncated} of {documents}");
    }
    Ok((count, documents))
}

/// Waits for the scores of the oldest chunk in flight; for ever if there is none.
async fn oldest<T>(in_flight: &mut VecDeque<(Instant, JoinHandle<T>)>) -> (Instant, anyhow::Result<T>) {
    match in_flight.front_mut() {
        Some((started, scores)) => {
            let (started, scores) = (*started, scores.await);
            in_flight.pop_front();
            (started, scores.map_err(Into::into))
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
    most: usize,
    /// The chunk that is being filled.
    filling: Chunk,
    /// The number of chunks so far.
    count: usize,
    /// Whether there is no further chunk.
    ended: bool,
}

impl Chunks {
    fn new(receiver: UnboundedReceiver<ReadAhead>, is_list: bool) -> Self {
        let most = if is_list { MOST_DOCUMENTS } else { FIRST_DOCUMENTS };
        Self { receiver, is_list, most, filling: Chunk::default(), count: 0, ended: false }
    }

    /// The next chunk: the documents that are there, at least one; absent at the end. Loses nothing if it is
    /// cancelled.
    async fn next(&mut self) -> anyhow::Result<Option<Chunk>> {
        while self.filling.texts.len() < self.most
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
            "this model reads all documents together, and `rerank` gives it at most {MOST_DOCUMENTS} \
             documents with {} KB of text: give fewer, or rank them in requests to a server",
            CHUNK_BYTES / 1024
        );
        Ok(Some(chunk))
    }

    /// Makes the next chunks larger or smaller, after one of `documents` took this long.
    fn took(&mut self, documents: usize, time: Duration) {
        if time > CHUNK_TIME * 2 {
            self.most = (self.most / 2).max(1);
        } else if time < CHUNK_TIME / 2 && documents >= self.most {
            self.most = (self.most * 2).min(MOST_DOCUMENTS);
        }
    }
}

/// Scores a chunk. If that fails, scores its documents one by one, to find the one that cannot be scored.
async fn score(
    service: Service,
    request: RerankRequest,
    mut chunk: Chunk,
) -> Result<Scores, DocumentFailure> {
    let texts = std::mem::take(&mut chunk.texts);
    let answer = match service.rerank(RerankRequest { texts: texts.clone(), ..request.clone() }).await {
        Ok(answer) => answer,
        Err(error) => {
            for (document, text) in chunk.documents.iter().zip(texts) {
                let alone = RerankRequest { texts: vec![text], ..request.clone() };
                service.rerank(alone).await.map_err(|error| (document.index, error))?;
            }
            // Each can be scored alone, so no document is the cause: the first stands for the chunk.
            return Err((chunk.documents[0].index, error));
        }
    };
    let truncated = answer.cost.truncated;
    let mut values = vec![0.0; chunk.documents.len()];
    for rank in answer.value {
        values[rank.index] = rank.score;
    }
    Ok(Scores { chunk, values, truncated })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

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
        let fields = Field::from_text("vector", &"0".repeat(CHUNK_FIELD_BYTES));
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
        sent(&sender, (0..MOST_DOCUMENTS as u32).map(|index| document(index, "b")));
        drop(sender);
        assert_eq!(chunks.next().await.unwrap().unwrap().texts.len(), MOST_DOCUMENTS);
        let message = chunks.next().await.unwrap_err().to_string();
        assert!(message.contains("at most 256 documents with 128 KB"), "{message}");
    }

    #[test]
    fn chunks_grow_while_they_are_fast_and_full() {
        let mut chunks = Chunks::new(unbounded_channel().1, false);
        for (documents, milliseconds, most) in
            [(4, 10, 8), (3, 10, 8), (8, 10, 16), (16, 500, 16), (16, 900, 8), (8, 5000, 4)]
        {
            chunks.took(documents, Duration::from_millis(milliseconds));
            assert_eq!(chunks.most, most, "{documents} {milliseconds}");
        }
        for _ in 0..20 {
            chunks.took(MOST_DOCUMENTS, Duration::ZERO);
        }
        assert_eq!(chunks.most, MOST_DOCUMENTS);
        for _ in 0..20 {
            chunks.took(1, Duration::from_secs(9));
        }
        assert_eq!(chunks.most, 1);
    }
}

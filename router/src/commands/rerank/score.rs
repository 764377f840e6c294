//! Documents to scores, through the engine, in chunks.
//!
//! Input: a service and a stream of documents. Output: each document's score, in their order. What must hold: enough
//! chunks are in flight that a batch is always waiting while another is computed, and no more, so that memory stays
//! bounded however long the stream is; a document that cannot be scored is an error that names it.

use std::collections::VecDeque;

use anyhow::{anyhow, ensure};
use text_embeddings_core::{
    error::Error,
    service::{RerankRequest, Service},
};
use tokio::task::JoinHandle;

use super::{
    documents::{Document, Documents},
    order::Scored,
    progress::Progress,
};

/// The documents of a chunk.
const CHUNK_DOCUMENTS: usize = 256;
/// The bytes of text in a chunk, but for a single document that is longer.
const CHUNK_BYTES: usize = 128 * 1024;
/// The chunks in flight: several batches' worth of tokens, whether documents are short or long.
const IN_FLIGHT: usize = 16;

/// Documents that are scored together.
#[derive(Debug, Default)]
struct Chunk {
    /// Place and number of each.
    documents: Vec<(u64, u32)>,
    texts: Vec<String>,
    /// Where its last document begins.
    position: u64,
}

/// A chunk's raw scores, and its texts where the request wants them back, in the order of the chunk.
struct Scores {
    chunk: Chunk,
    values: Vec<(f32, Option<String>)>,
    truncated: usize,
}

/// A document that cannot be scored, and why.
type Failure = (u32, Error);

/// Scores every document and hands them to `take`, chunk by chunk, each with its text if `request` wants it back. Gives
/// their number. `request` must ask for raw scores; it has no texts.
///
/// # Errors
///
/// If a document cannot be read or scored, by its line, and what `take` fails with.
pub(super) async fn each(
    service: &Service,
    request: &RerankRequest,
    documents: &mut Documents,
    progress: &mut Progress,
    mut take: impl FnMut(Vec<(Scored, Option<String>)>) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    // A request waits for its turn rather than being refused.
    let service = service.patient();
    let mut in_flight: VecDeque<JoinHandle<Result<Scores, Failure>>> = VecDeque::new();
    let (mut count, mut truncated) = (0, 0);
    let mut chunks = 0;
    loop {
        while in_flight.len() < IN_FLIGHT
            && let Some(chunk) = next_chunk(documents)?
        {
            chunks += 1;
            ensure!(
                chunks < 2 || !service.is_listwise(),
                "this model reads all documents together, of which `rerank` takes at most {CHUNK_DOCUMENTS} with {} KB of \
                 text: give fewer, or rank them in requests to a server",
                CHUNK_BYTES / 1024
            );
            in_flight.push_back(tokio::spawn(score(service.clone(), request.clone(), chunk)));
        }
        let Some(oldest) = in_flight.pop_front() else { break };
        let scores =
            oldest.await?.map_err(|(index, error)| anyhow!("{}: {error}", documents.describe(index)))?;
        progress.advance(scores.values.len(), scores.chunk.position);
        count += scores.values.len();
        truncated += scores.truncated;
        let places = scores.chunk.documents.into_iter().zip(scores.values);
        take(places.map(|((place, index), (raw, text))| (Scored { place, index, raw }, text)).collect())?;
    }
    progress.finish();
    if truncated > 0 {
        tracing::warn!("{truncated} of {count} documents were longer than `--max-input-length` and were cut");
    }
    Ok(count)
}

fn next_chunk(documents: &mut Documents) -> anyhow::Result<Option<Chunk>> {
    let (mut chunk, mut bytes) = (Chunk::default(), 0);
    while chunk.texts.len() < CHUNK_DOCUMENTS && bytes < CHUNK_BYTES {
        let Some(Document { index, place, text }) = documents.next()? else { break };
        bytes += text.len();
        chunk.position = place;
        chunk.documents.push((place, index));
        chunk.texts.push(text);
    }
    Ok((!chunk.texts.is_empty()).then_some(chunk))
}

/// Scores a chunk. Where that fails, its documents one by one, to find the one that cannot be scored.
async fn score(service: Service, request: RerankRequest, mut chunk: Chunk) -> Result<Scores, Failure> {
    let texts = std::mem::take(&mut chunk.texts);
    let answer = match service.rerank(RerankRequest { texts: texts.clone(), ..request.clone() }).await {
        Ok(answer) => answer,
        Err(error) => {
            for ((_, index), text) in chunk.documents.iter().zip(texts) {
                let alone = RerankRequest { texts: vec![text], ..request.clone() };
                service.rerank(alone).await.map_err(|error| (*index, error))?;
            }
            // Each can be scored alone: whatever it was, it is named with the first.
            return Err((chunk.documents[0].1, error));
        }
    };
    let truncated = answer.cost.truncated;
    let mut values = vec![(0.0, None); chunk.documents.len()];
    for rank in answer.value {
        values[rank.index] = (rank.score, rank.text);
    }
    Ok(Scores { chunk, values, truncated })
}

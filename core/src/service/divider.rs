//! Divides a text into windows that fit a prompt with the request's query, and counts its sentences.
//!
//! Input: a request, and the index of one of its texts. Output: a [`DividedText`]. What must hold: a text
//! that fits is one window, all of it; every other window fits, too, together with the query, and no token of
//! it is cut.

use super::{
    model::PairScoring,
    ranking::{Chunking, RerankRequest},
};
use crate::{
    error::Error,
    model::{CosineRanking, RerankScoring},
    passages::{TextMeasure, WindowLimits, Windows, sentence_ranges, split_windows, trimmed_range},
    tokenization::{Encoded, Encoder, Input, SharedQuery, Side, Truncation},
};
use std::{
    iter,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};
use text_embeddings_backend_core::amount;

/// The fewest tokens that query and instruction must leave to a window.
const MIN_ROOM: usize = 16;

pub(super) struct DividedText {
    pub(super) windows: Windows,
    /// The number of its sentences, or more than are allowed.
    pub(super) sentences: usize,
}

/// How the document of a pair becomes tokens.
pub(super) enum DocumentForm {
    /// In one input with the query.
    Pair,
    /// Alone, for a late-interaction model.
    Late,
    /// Alone, for an embedding model.
    Cosine(CosineRanking),
}

impl DocumentForm {
    pub(super) fn from_scoring(scoring: PairScoring<'_>) -> Self {
        match scoring {
            PairScoring::Cosine(ranking) => Self::Cosine(ranking.clone()),
            PairScoring::Reranker(model) if model.scoring == RerankScoring::MaxSim => Self::Late,
            PairScoring::Reranker(_) => Self::Pair,
        }
    }
}

/// Divides the texts of a request, on the tokenizers' threads.
pub(super) struct Divider {
    request: Arc<RerankRequest>,
    truncation: Truncation,
    form: DocumentForm,
    /// The number of sentences up to which they are counted.
    max_sentences: usize,
    /// The most windows of all texts together.
    max_windows: usize,
    /// The windows of texts that do not fit, so far.
    found_windows: AtomicUsize,
    shared: SharedQuery,
    empty: OnceLock<Result<Encoded, Error>>,
}

impl Divider {
    /// For texts of this request. Sentences are counted up to `max_sentences`, and there may be at most
    /// `max_windows` windows.
    pub(super) fn from_request(
        request: &Arc<RerankRequest>,
        truncation: Truncation,
        form: DocumentForm,
        max_sentences: usize,
        max_windows: usize,
    ) -> Self {
        // The number of windows decides whether the rest of a text may be left out.
        let truncation = Truncation { truncate: true, ..truncation };
        let (request, shared, empty) = (Arc::clone(request), SharedQuery::default(), OnceLock::new());
        let found_windows = AtomicUsize::new(0);
        Self { request, truncation, form, max_sentences, max_windows, found_windows, shared, empty }
    }

    #[cfg(test)]
    pub(super) fn found_windows(&self) -> usize {
        self.found_windows.load(Ordering::Relaxed)
    }

    pub(super) fn divide_text(&self, encoder: &Encoder, index: usize) -> Result<DividedText, Error> {
        let text = &self.request.texts[index];
        let sentences = sentence_ranges(text).take(self.max_sentences).count();
        let windows = match self.request.chunking {
            Some(chunking) => self.find_windows(encoder, text, chunking)?,
            None => Windows::default(),
        };
        Ok(DividedText { windows, sentences })
    }

    /// The windows of a text; one if it fits.
    fn find_windows(&self, encoder: &Encoder, text: &str, chunking: Chunking) -> Result<Windows, Error> {
        let empty = self.empty.get_or_init(|| self.encode_document(encoder, "")).clone()?;
        let whole = self.encode_document(encoder, text)?;
        if whole.truncated <= empty.truncated {
            let ranges = iter::once(0..text.len()).collect();
            return Ok(Windows { ranges, is_cut: false });
        }
        let room = whole.ids.len().saturating_sub(empty.ids.len());
        let Chunking { max_chunks, overlap } = chunking;
        if room < MIN_ROOM {
            return Err(Error::Validation(format!(
                "query, instruction and limits leave {} to a chunk, and it needs {MIN_ROOM}: send a shorter \
                 query, or raise the limits on tokens",
                amount(room, "token")
            )));
        }
        if overlap > room / 2 {
            return Err(Error::Validation(format!(
                "`chunk_overlap` must be at most half a chunk, here {}. Given: {overlap}",
                amount(room / 2, "token")
            )));
        }
        // Other texts may have used up the windows.
        if self.found_windows.load(Ordering::Relaxed) > self.max_windows {
            return Err(too_many_chunks(self.max_windows));
        }
        let count = max_chunks.min(self.max_windows.saturating_add(1));
        let limits = WindowLimits { tokens: room, overlap, count };
        let measure = DocumentMeasure { divider: self, encoder, cut_with_query: empty.truncated };
        let Windows { ranges, is_cut } = split_windows(text, limits, &measure)?;
        let before = self.found_windows.fetch_add(ranges.len(), Ordering::Relaxed);
        if before + ranges.len() > self.max_windows {
            return Err(too_many_chunks(self.max_windows));
        }
        Ok(Windows { ranges: ranges.into_iter().map(|range| trimmed_range(text, range)).collect(), is_cut })
    }

    fn encode_document(&self, encoder: &Encoder, document: &str) -> Result<Encoded, Error> {
        let pair = self.request.pair_with(document);
        match &self.form {
            DocumentForm::Pair => encoder.encode(&Input::Pair(pair), self.truncation, Some(&self.shared)),
            DocumentForm::Late => encoder.encode(&pair.late_side(Side::Document), self.truncation, None),
            DocumentForm::Cosine(ranking) => {
                let side = ranking.document_side(pair, self.truncation.limits);
                encoder.encode(&Input::Side(side), self.truncation, None)
            }
        }
    }
}

/// The error of texts with more windows than a request may have texts.
pub(super) fn too_many_chunks(max: usize) -> Error {
    Error::Validation(format!(
        "the texts have more than {} together (`--max-rerank-texts`): send fewer texts, or lower \
         `max_chunks_per_doc`",
        amount(max, "chunk")
    ))
}

/// The lengths of a request's documents.
struct DocumentMeasure<'a> {
    divider: &'a Divider,
    encoder: &'a Encoder,
    /// The number of tokens that are cut whatever the document is.
    cut_with_query: usize,
}

impl TextMeasure for DocumentMeasure<'_> {
    type Error = Error;

    fn count_tokens(&self, sentence: &str) -> Result<usize, Error> {
        self.encoder.count_tokens(sentence)
    }

    fn fits_window(&self, text: &str) -> Result<bool, Error> {
        Ok(self.divider.encode_document(self.encoder, text)?.truncated <= self.cut_with_query)
    }
}

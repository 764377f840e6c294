//! Parts of texts that get scores of their own: the windows of texts that do not fit a prompt, and the
//! sentences of the best texts.
//!
//! Input: a [`RerankRequest`] that asks for one of them. Output: the score of each text, which is the best of
//! its windows', and [`Highlight`]s. What must hold: a text that fits has the score that it has without
//! division; a part has the score that it has as a text of its own; the number of parts is limited before the
//! first is computed, and every part is covered by the request's permit.

use super::{
    Answer, Cost, Service,
    divider::{DividedText, Divider, DocumentForm, too_many_chunks},
    ranking::{Chunking, Highlight, Passage, Rank, RerankRequest, Score},
    request::{Admitted, Failed},
    task::Inputs,
};
use crate::{
    error::Error,
    passages::{character_ranges, sentence_ranges, trimmed_range},
    tokenization::{Encoder, Input, Truncation, TruncationDirection},
};
use std::{ops::Range, slice, sync::Arc, time::Instant};
use text_embeddings_backend_core::amount;

/// A request with its rules for the parts of its texts.
pub(super) struct PassageWork {
    pub(super) request: Arc<RerankRequest>,
    pub(super) truncation: Truncation,
    /// The number of best texts that get highlights.
    pub(super) highlight: usize,
}

/// The score of a text, and the bytes of the window that has it if the request divides long texts.
pub(super) struct ScoredText {
    pub(super) score: Score,
    pub(super) bytes: Option<Range<usize>>,
}

/// The parts of a request's texts, as texts to score for its query.
struct PartInputs {
    request: Arc<RerankRequest>,
    parts: Vec<TextPart>,
}

/// Bytes of one of a request's texts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TextPart {
    text: usize,
    bytes: Range<usize>,
}

impl Inputs for PartInputs {
    fn count(&self) -> usize {
        self.parts.len()
    }

    fn input(&self, index: usize) -> Input<'_> {
        let TextPart { text, bytes } = &self.parts[index];
        Input::Pair(self.request.pair_with(&self.request.texts[*text][bytes.clone()]))
    }

    fn index_in_request(&self, index: usize) -> Option<usize> {
        Some(self.parts[index].text)
    }

    fn have_one_query(&self) -> bool {
        true
    }
}

impl RerankRequest {
    /// A part of one of the texts.
    pub(super) fn find_passage(&self, text: usize, bytes: Range<usize>) -> Passage {
        let counted = character_ranges(&self.texts[text], slice::from_ref(&bytes)).swap_remove(0);
        self.counted_passage(text, bytes, counted)
    }

    fn counted_passage(&self, text: usize, bytes: Range<usize>, counted: Range<usize>) -> Passage {
        let text = self.return_text.then(|| self.texts[text][bytes].to_owned());
        Passage { start: counted.start, end: counted.end, text }
    }
}

impl Service {
    /// Refuses a division of texts, or highlights, that this model or request cannot have.
    pub(super) fn check_passages(&self, request: &RerankRequest) -> Result<(), Error> {
        let message = match request.chunking {
            _ if self.reads_lists() && (request.chunking.is_some() || request.highlight > 0) => {
                "this model reads the documents of a request together, so that parts of them have no scores of \
                 their own: leave out `long_documents`, `max_chunks_per_doc`, `chunk_overlap` and `highlight`"
            }
            Some(Chunking { max_chunks: 0, .. }) => "`max_chunks_per_doc` must be at least 1. Given: 0",
            Some(_) if request.truncation_direction == TruncationDirection::Left => {
                "`truncation_direction` `left` cuts texts from their start, and chunks are counted from there: \
                 leave one of them out"
            }
            _ => return Ok(()),
        };
        Err(Error::Validation(message.to_owned()))
    }

    /// An upper bound on the tokens of a request's parts.
    pub(super) fn max_passage_tokens(&self, work: &PassageWork) -> usize {
        let passes = usize::from(work.request.chunking.is_some()) + usize::from(work.highlight > 0);
        let part = self.tokenization.encoder().max_input_length();
        let bytes: usize = work.request.texts.iter().map(String::len).sum();
        let common = work.request.query.len() + work.request.instruction.as_ref().map_or(0, String::len);
        // Windows overlap by at most half. Every part has a prompt.
        let parts = self.config.max_rerank_texts;
        passes * (2 * bytes).saturating_add(parts * common).min(parts.saturating_mul(part))
    }

    /// The score of each text, in the order of the request.
    pub(super) async fn text_scores(
        &self,
        admitted: &Admitted,
        work: &PassageWork,
    ) -> Result<(Vec<ScoredText>, Cost), Failed> {
        let PassageWork { request, truncation, highlight } = work;
        if request.chunking.is_none() && *highlight == 0 {
            return self.whole_scores(admitted, work).await;
        }
        let start = Instant::now();
        let divided = self.divide_texts(admitted, work).await?;
        self.check_sentences(&divided, request.max_ranks().min(*highlight))?;
        let tokenization = start.elapsed();
        if request.chunking.is_none() {
            let (scores, cost) = self.whole_scores(admitted, work).await?;
            return Ok((scores, Cost { tokenization: cost.tokenization + tokenization, ..cost }));
        }
        let is_cut = divided.iter().filter(|text| text.windows.is_cut).count();
        let parts = self.window_parts(divided, work)?;
        let inputs = Arc::new(PartInputs { request: Arc::clone(request), parts });
        let (scores, cost) = self.uncounted_scores(admitted, &inputs, *truncation).await?;
        let best = best_of_texts(&inputs.parts, scores);
        self.count_scores(best.iter().map(|scored| scored.score));
        let tokenization = cost.tokenization + tokenization;
        Ok((best, Cost { truncated: cost.truncated + is_cut, tokenization, ..cost }))
    }

    async fn whole_scores(
        &self,
        admitted: &Admitted,
        work: &PassageWork,
    ) -> Result<(Vec<ScoredText>, Cost), Failed> {
        let (scores, cost) = self.pair_scores(admitted, &work.request, work.truncation).await?;
        Ok((scores.into_iter().map(|score| ScoredText { score, bytes: None }).collect(), cost))
    }

    /// The windows of each text, and the number of its sentences if some texts get highlights.
    async fn divide_texts(&self, admitted: &Admitted, work: &PassageWork) -> Result<Vec<DividedText>, Error> {
        let PassageWork { request, truncation, highlight } = work;
        let max_sentences = if *highlight > 0 { self.config.max_rerank_texts + 1 } else { 0 };
        let form = DocumentForm::from_scoring(self.pair_scoring()?);
        let max_windows = self.config.max_rerank_texts;
        let divider = Divider::from_request(request, *truncation, form, max_sentences, max_windows);
        let divider = Arc::new(divider);
        let texts = (0..request.texts.len()).collect();
        let bytes = |index: &usize| request.texts[*index].len();
        let divide = move |encoder: &Encoder, index| divider.divide_text(encoder, index);
        self.map_admitted(admitted.request.permit(), texts, bytes, divide).await
    }

    /// Refuses highlights of more sentences than a request may have texts, whichever texts turn out best.
    fn check_sentences(&self, divided: &[DividedText], highlight: usize) -> Result<(), Error> {
        let mut counts: Vec<usize> = divided.iter().map(|text| text.sentences).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let max = self.config.max_rerank_texts;
        if counts.iter().take(highlight).sum::<usize>() <= max {
            return Ok(());
        }
        Err(Error::Validation(format!(
            "the {} with the most sentences may have more than {max} of them together (`--max-rerank-texts`): \
             ask for fewer texts with `highlight` or `top_n`, or send shorter ones",
            amount(highlight.min(counts.len()), "text")
        )))
    }

    /// The windows of all texts, in their order.
    fn window_parts(&self, divided: Vec<DividedText>, work: &PassageWork) -> Result<Vec<TextPart>, Error> {
        let max = self.config.max_rerank_texts;
        let mut parts = Vec::with_capacity(divided.len());
        for (text, DividedText { windows, .. }) in divided.into_iter().enumerate() {
            if windows.is_cut && !work.truncation.truncate {
                return Err(Error::Validation(format!(
                    "the text at index {text} has more than {}, and must not be cut: raise \
                     `max_chunks_per_doc`, or let it be cut with `truncate`",
                    amount(windows.ranges.len(), "chunk")
                )));
            }
            parts.extend(windows.ranges.into_iter().map(|bytes| TextPart { text, bytes }));
            if parts.len() > max {
                return Err(too_many_chunks(max));
            }
        }
        Ok(parts)
    }

    /// Scores the sentences of the best texts that are returned.
    pub(super) async fn add_highlights(
        &self,
        admitted: &Admitted,
        work: &PassageWork,
        answer: Answer<Vec<Rank>>,
    ) -> Result<Answer<Vec<Rank>>, Failed> {
        let Answer { value: mut ranks, cost } = answer;
        let PassageWork { request, truncation, highlight } = work;
        let least = self.least_score(request).unwrap_or(f32::NEG_INFINITY);
        let returned = ranks.iter().take_while(|rank| rank.score >= least).count();
        let chosen = &mut ranks[..returned.min(request.max_ranks()).min(*highlight)];
        let texts: Vec<usize> = chosen.iter().map(|rank| rank.index).collect();
        // Some hundred milliseconds for texts that are made to take long.
        let inputs = tokio::task::spawn_blocking({
            let request = Arc::clone(request);
            move || PartInputs { parts: request.sentence_parts(texts), request }
        });
        let inputs = Arc::new(inputs.await.map_err(|_| Error::Unhealthy)?);
        let mut scores = Vec::new();
        let mut whole = cost;
        if !inputs.parts.is_empty() {
            // A sentence that is too long was read in the text only as far as it fits.
            let truncation = Truncation { truncate: true, ..*truncation };
            let second;
            (scores, second) = self.uncounted_scores(admitted, &inputs, truncation).await?;
            whole = cost.add_step(second);
        }
        let mut scores = scores.into_iter();
        let mut parts = inputs.parts.as_slice();
        for rank in chosen {
            let (own, others) =
                parts.split_at(parts.iter().take_while(|part| part.text == rank.index).count());
            parts = others;
            rank.highlights = Some(request.scored_sentences(rank.index, own, scores.by_ref()));
        }
        Ok(Answer { value: ranks, cost: whole })
    }
}

impl RerankRequest {
    /// The sentences of these texts, without blank ones.
    fn sentence_parts(&self, texts: Vec<usize>) -> Vec<TextPart> {
        let mut parts = Vec::new();
        for index in texts {
            let text = &self.texts[index];
            let sentences = sentence_ranges(text).map(|bytes| trimmed_range(text, bytes));
            let words = sentences.filter(|bytes| !text[bytes.clone()].trim().is_empty());
            parts.extend(words.map(|bytes| TextPart { text: index, bytes }));
        }
        parts
    }

    fn scored_sentences(
        &self,
        text: usize,
        parts: &[TextPart],
        scores: impl Iterator<Item = Score>,
    ) -> Vec<Highlight> {
        let ranges: Vec<Range<usize>> = parts.iter().map(|part| part.bytes.clone()).collect();
        let counted = character_ranges(&self.texts[text], &ranges);
        let mut highlights = Vec::with_capacity(ranges.len());
        for ((bytes, counted), score) in ranges.into_iter().zip(counted).zip(scores) {
            let passage = self.counted_passage(text, bytes, counted);
            highlights.push(Highlight { passage, score: score.wanted_score(self.raw_scores) });
        }
        highlights
    }
}

/// For each text, the best of its windows' scores; of equal ones, the first. Every text has a window.
fn best_of_texts(parts: &[TextPart], scores: Vec<Score>) -> Vec<ScoredText> {
    let mut best: Vec<ScoredText> = Vec::new();
    for (TextPart { text, bytes }, score) in parts.iter().zip(scores) {
        match best.get_mut(*text) {
            Some(found) if score.raw.total_cmp(&found.score.raw).is_le() => {}
            Some(found) => *found = ScoredText { score, bytes: Some(bytes.clone()) },
            None => best.push(ScoredText { score, bytes: Some(bytes.clone()) }),
        }
    }
    best
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        metrics::{self, testing::recorded},
        model::{CosineRanking, RerankScoring},
        postprocess::sigmoid,
        service::{
            ServiceConfig,
            testing::{
                MAX_INPUT_LENGTH, block_on, embedder, embedding_fixture, fixture, fixture_with,
                fixture_with_permits, reranker,
            },
        },
        tokenization::{PairText, TokenLimits},
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::{
        fmt::Write,
        sync::{Mutex, mpsc},
    };

    const QUERY: &str = "w200 w201";
    /// The bytes from which a sentence is not joined with the next one.
    const SHORT: usize = 5;

    fn request(texts: &[String]) -> RerankRequest {
        RerankRequest {
            query: QUERY.to_owned(),
            texts: texts.to_vec(),
            raw_scores: true,
            ..Default::default()
        }
    }

    fn chunks(max_chunks: usize, overlap: usize) -> Chunking {
        Chunking { max_chunks, overlap }
    }

    /// A text of random sentences with about this many tokens. A smiley is one token and two UTF-16 units.
    fn random_text(rng: &mut StdRng, tokens: usize) -> String {
        let mut text = String::new();
        let mut count = 0;
        while count < tokens {
            let words = rng.random_range(1..40);
            for _ in 0..words {
                write!(text, "w{} ", rng.random_range(6..1000)).unwrap();
            }
            text.push_str(["😀! ", "! ", "!\n\n"][rng.random_range(0..3)]);
            count += words + 2;
        }
        text
    }

    fn characters(text: &str, passage: &Passage) -> String {
        text.chars().skip(passage.start).take(passage.end - passage.start).collect()
    }

    /// The windows of a text, found without any code under test: every word and every run of other characters
    /// is a token.
    fn expected_windows(text: &str, room: usize) -> Vec<String> {
        let mut windows: Vec<(usize, String)> = Vec::new();
        for sentence in expected_pieces(text) {
            let tokens = sentence.split_whitespace().count();
            match windows.last_mut() {
                Some((count, window)) if *count + tokens <= room => {
                    *count += tokens;
                    window.push_str(&sentence);
                }
                _ => windows.push((tokens, sentence)),
            }
        }
        windows.into_iter().map(|(_, window)| window.trim().to_owned()).collect()
    }

    /// The sentences of a text of [`random_text`], with the space behind them.
    fn expected_pieces(text: &str) -> Vec<String> {
        let parts = text.split_inclusive("! ").flat_map(|part| part.split_inclusive("!\n\n"));
        let mut pieces: Vec<String> = Vec::new();
        for part in parts {
            match pieces.last_mut() {
                Some(last) if last.trim().len() < SHORT && !last.contains('\n') => last.push_str(part),
                _ => pieces.push(part.to_owned()),
            }
        }
        pieces
    }

    #[tokio::test]
    async fn a_long_text_has_the_score_of_its_best_window_in_any_company() {
        let rng = &mut StdRng::seed_from_u64(1);
        let mut divided = 0;
        for budget in [1, 500, 100_000] {
            let fixture = fixture(budget);
            let empty = fixture.ids(&Input::Pair(PairText { instruction: None, query: QUERY, document: "" }));
            for limit in [None, Some(50), Some(100)] {
                let texts: Vec<String> = (0..3).map(|index| random_text(rng, [5, 300, 700][index])).collect();
                let limits = TokenLimits { document: limit, ..TokenLimits::NONE };
                let asked = RerankRequest {
                    chunking: Some(chunks(99, 0)),
                    limits,
                    return_text: true,
                    ..request(&texts)
                };
                let room = limit.unwrap_or(MAX_INPUT_LENGTH).min(MAX_INPUT_LENGTH - empty.len());
                let Ok(answer) = fixture.service.rerank(asked).await else {
                    assert_eq!(limit, Some(50), "more windows than texts are allowed");
                    continue;
                };
                let mut windows = 0;
                for rank in &answer.value {
                    let text = &texts[rank.index];
                    let mut expected = expected_windows(text, room);
                    if expected.len() == 1 {
                        expected = vec![text.clone()];
                    }
                    let score = |window: &String| fixture.raw_score(None, QUERY, window).0;
                    let best = expected.iter().map(score).fold(f32::NEG_INFINITY, f32::max);
                    assert_eq!(rank.score.to_bits(), best.to_bits(), "{limit:?}");
                    let passage = rank.best_passage.as_ref().unwrap();
                    assert_eq!(passage.text.as_ref(), Some(&characters(text, passage)));
                    assert_eq!(score(&characters(text, passage)).to_bits(), best.to_bits());
                    windows += expected.len();
                }
                divided += windows - 3;
                assert_eq!((answer.cost.texts, answer.cost.truncated), (windows, 0));
                assert!(answer.value.is_sorted_by(|a, b| a.score >= b.score));
            }
        }
        assert!(divided > 10, "{divided}");
    }

    #[tokio::test]
    async fn texts_that_fit_score_as_without_division() {
        let rng = &mut StdRng::seed_from_u64(2);
        let fixture = fixture(1000);
        let texts: Vec<String> =
            (0..8).map(|index| random_text(rng, 10 * index)).chain([String::new()]).collect();
        let plain = fixture.service.rerank(request(&texts)).await.unwrap();
        let asked = RerankRequest { chunking: Some(chunks(1, 7)), ..request(&texts) };
        let divided = fixture.service.rerank(asked).await.unwrap();
        for (plain, divided) in plain.value.into_iter().zip(divided.value) {
            let passage = Passage { start: 0, end: texts[plain.index].chars().count(), text: None };
            assert_eq!(divided, Rank { best_passage: Some(passage), ..plain });
        }
    }

    #[tokio::test]
    async fn the_rest_behind_the_last_window_is_cut_and_counted_or_refused() {
        let fixture = fixture(1000);
        let texts = [random_text(&mut StdRng::seed_from_u64(3), 2000), "w9".to_owned()];
        for (max_chunks, truncated) in [(1, 1), (2, 1), (14, 0)] {
            let asked = RerankRequest { chunking: Some(chunks(max_chunks, 20)), ..request(&texts) };
            let answer = fixture.service.rerank(asked.clone()).await.unwrap();
            assert_eq!(answer.cost.truncated, truncated, "{max_chunks}");
            assert!(truncated == 0 || answer.cost.texts == max_chunks + 1);
            let strict = fixture.service.rerank(RerankRequest { truncate: Some(false), ..asked }).await;
            match strict {
                Ok(strict) => assert!(truncated == 0 && strict.value == answer.value),
                Err(error) => {
                    let expected =
                        format!("the text at index 0 has more than {}, and", amount(max_chunks, "chunk"));
                    assert!(truncated == 1 && error.to_string().contains(&expected), "{error}");
                }
            }
        }
    }

    #[tokio::test]
    async fn an_embedding_model_scores_windows_and_sentences_too() {
        let fixture = embedding_fixture(1000, |config: &mut ServiceConfig| {
            embedder(config).cosine_ranking = Some(CosineRanking {
                query_prompt: "w700 ".to_owned(),
                document_prompt: "w800 ".to_owned(),
                ..CosineRanking::default()
            });
        });
        let texts = [random_text(&mut StdRng::seed_from_u64(4), 1500)];
        let asked = RerankRequest {
            chunking: Some(chunks(9, 0)),
            highlight: 1,
            return_text: true,
            ..request(&texts)
        };
        let answer = fixture.service.rerank(RerankRequest { highlight: 0, ..asked.clone() }).await.unwrap();
        let passage = answer.value[0].best_passage.clone().unwrap();
        assert!(passage.text.as_ref().is_some_and(|text| text.len() < texts[0].len()));
        let alone = fixture.service.rerank(request(&[passage.text.unwrap()])).await.unwrap();
        assert_eq!(alone.value[0].score.to_bits(), answer.value[0].score.to_bits());
        let many = fixture.service.rerank(asked).await.unwrap_err().to_string();
        assert!(many.contains("the 1 text with the most sentences may have more than 16"), "{many}");
    }

    #[tokio::test]
    async fn the_best_texts_that_are_returned_have_the_scores_of_their_sentences() {
        let rng = &mut StdRng::seed_from_u64(5);
        let plain = fixture(1000);
        let texts: Vec<String> = (0..6).map(|_| random_text(rng, 30)).chain([" \n ".to_owned()]).collect();
        let all = plain.service.rerank(request(&texts)).await.unwrap();
        let least = all.value[3].score;
        for (highlight, top_n, min_score, marked) in [
            (2, None, None, 2),
            (usize::MAX, Some(2), None, 2),
            (5, Some(0), Some(least), 4),
            (1, Some(99), Some(f32::MAX), 0),
        ] {
            let raw_scores = min_score.is_some() || highlight == 2;
            let asked = RerankRequest {
                highlight,
                top_n,
                min_score,
                raw_scores,
                return_text: true,
                ..request(&texts)
            };
            let answer = plain.service.rerank(asked).await.unwrap();
            let mut sentences = 0;
            for (place, rank) in answer.value.iter().enumerate() {
                let Some(highlights) = &rank.highlights else {
                    assert!(place >= marked);
                    continue;
                };
                assert!(place < marked);
                let text = &texts[rank.index];
                let pieces = expected_pieces(text).into_iter().map(|piece| piece.trim().to_owned());
                let expected: Vec<String> = pieces.filter(|piece| !piece.is_empty()).collect();
                let found: Vec<String> =
                    highlights.iter().map(|it| it.passage.text.clone().unwrap()).collect();
                assert_eq!(found, expected);
                for Highlight { passage, score } in highlights {
                    assert_eq!(passage.text, Some(characters(text, passage)));
                    let raw = plain.raw_score(None, QUERY, passage.text.as_ref().unwrap()).0;
                    let wanted = if raw_scores { raw } else { sigmoid(raw) };
                    assert_eq!(score.to_bits(), wanted.to_bits());
                }
                sentences += highlights.len();
            }
            assert_eq!(answer.cost.texts, texts.len() + sentences, "{highlight} {top_n:?}");
            assert_eq!(answer.cost.characters, all.cost.characters);
        }
        let blank = RerankRequest { highlight: 9, ..request(&[" \n ".to_owned()]) };
        assert_eq!(plain.service.rerank(blank).await.unwrap().value[0].highlights, Some(vec![]));
    }

    #[test]
    fn metrics_count_texts_and_not_their_parts_as_scores() {
        let fixture = fixture(1000);
        let texts = [random_text(&mut StdRng::seed_from_u64(6), 900), "w9 w10 w11! w10 w11 w12!".to_owned()];
        let asked = RerankRequest { chunking: Some(chunks(3, 0)), ..request(&texts) };
        let moved = recorded(|| assert!(block_on(fixture.service.rerank(asked)).is_ok()));
        assert_eq!(moved[metrics::RERANK_SCORE].len(), 2);
        assert_eq!(
            (moved["te_request_count{method=\"batch\"}"][0], moved["te_predict_success"][0]),
            (1.0, 4.0)
        );
        let asked = RerankRequest { highlight: 1, ..request(&texts[1..]) };
        let moved = recorded(|| assert!(block_on(fixture.service.rerank(asked)).is_ok()));
        assert_eq!(moved[metrics::RERANK_SCORE].len(), 1);
        assert_eq!(
            (moved["te_request_count{method=\"batch\"}"][0], moved["te_predict_success"][0]),
            (1.0, 3.0)
        );
    }

    /// Windows beyond the most that a request may have are not looked for, in one text or in many.
    #[tokio::test]
    async fn dividing_ends_where_there_are_too_many_windows() {
        let (plain, sentence) = (fixture(1000), "w9 w10 w11 w12 w13 w14 w15 w16 w17 w18. ");
        let empty = plain.ids(&Input::Pair(PairText { instruction: None, query: QUERY, document: "" })).len();
        let limits = TokenLimits { prompt: Some(empty + 16), ..TokenLimits::NONE };
        for (texts, sentences) in [(1, 12_000), (300, 40)] {
            let texts = vec![sentence.repeat(sentences); texts];
            let many = fixture_with(1000, |config| config.max_rerank_texts = 300);
            let asked = RerankRequest { limits, chunking: Some(chunks(usize::MAX, 0)), ..request(&texts) };
            let error = many.service.rerank(asked.clone()).await.unwrap_err().to_string();
            assert!(error.contains("the texts have more than 300 chunks together"), "{error}");
            let truncation =
                Truncation { limits, ..many.service.truncation(None, asked.truncation_direction) };
            let asked = Arc::new(asked);
            let divider = Divider::from_request(&asked, truncation, DocumentForm::Pair, 0, 300);
            let encoder = many.service.tokenization.encoder();
            let refused =
                (0..texts.len()).filter(|&index| divider.divide_text(encoder, index).is_err()).count();
            // One text of the many has at most 60 windows.
            assert!(divider.found_windows() <= 300 + 60, "{}", divider.found_windows());
            assert!(refused >= texts.len() * 9 / 10, "{refused}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_divided_is_refused_by_name() {
        let rng = &mut StdRng::seed_from_u64(7);
        let plain = fixture(1000);
        let lists = fixture_with(1000, |config| reranker(config).scoring = RerankScoring::Lists);
        let long = [random_text(rng, 1000)];
        let ask = |chunking| RerankRequest { chunking, ..request(&long) };
        let limits = |prompt| TokenLimits { prompt: Some(prompt), ..TokenLimits::NONE };
        let empty = plain.ids(&Input::Pair(PairText { instruction: None, query: QUERY, document: "" })).len();
        for (fixture, request, part) in [
            (&lists, ask(Some(chunks(9, 0))), "leave out `long_documents`, `max_chunks_per_doc`"),
            (
                &lists,
                RerankRequest { highlight: 1, ..ask(None) },
                "reads the documents of a request together",
            ),
            (&plain, ask(Some(chunks(0, 0))), "`max_chunks_per_doc` must be at least 1. Given: 0"),
            (
                &plain,
                RerankRequest { truncation_direction: TruncationDirection::Left, ..ask(Some(chunks(9, 0))) },
                "`truncation_direction` `left` cuts texts from their start",
            ),
            (&plain, ask(Some(chunks(9, 200))), "`chunk_overlap` must be at most half a chunk, here "),
            (
                &plain,
                RerankRequest { limits: limits(empty + 15), ..ask(Some(chunks(9, 0))) },
                "leave 15 tokens to a chunk",
            ),
            (
                &plain,
                RerankRequest { limits: limits(empty + 30), ..ask(Some(chunks(99, 0))) },
                "the texts have more than 16 chunks together (`--max-rerank-texts`)",
            ),
            (
                &plain,
                RerankRequest { highlight: 2, ..request(&[random_text(rng, 900), random_text(rng, 900)]) },
                "the 2 texts with the most sentences may have more than 16 of them together",
            ),
            (&plain, RerankRequest { highlight: 1, ..request(&["w1! fail".to_owned()]) }, "inference failed"),
        ] {
            let error = fixture.service.rerank(request).await.unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        // The server goes on.
        assert!(plain.service.rerank(request(&long)).await.is_ok());
    }

    #[tokio::test]
    async fn a_given_up_request_keeps_its_permit_while_its_texts_wait_in_the_tokenizers_line() {
        let fixture = fixture_with_permits(100, 1);
        let tokenization = &fixture.service.tokenization;
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        // More jobs than the tokenizer has threads.
        for _ in 0..8 {
            let gate = Arc::clone(&gate);
            // The sender is gone when the texts may go on.
            tokenization
                .run(tokenization.place(0), 0, move |_| assert!(gate.lock().unwrap().recv().is_err()));
        }
        let chunking = Some(chunks(4, 0));
        let request = RerankRequest { chunking, ..request(&["w100 ".repeat(MAX_INPUT_LENGTH)]) };
        let service = fixture.service.clone();
        let work = tokio::spawn(async move { service.rerank(request).await });
        let engine = &fixture.service.engine;
        // This runtime has one thread, and the text is in the line before its request waits.
        while engine.try_acquire(0).is_ok() {
            tokio::task::yield_now().await;
        }
        work.abort();
        assert!(work.await.unwrap_err().is_cancelled());
        assert!(engine.try_acquire(0).is_err(), "its text still waits");
        drop(release);
        while engine.try_acquire(0).is_err() {
            tokio::task::yield_now().await;
        }
    }
}

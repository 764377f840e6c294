//! Splits a text into sentences, and a long text into windows of whole sentences.
//!
//! Input: a text; for windows their limits, and how many tokens a text has. Output: ranges of bytes. What
//! must hold: sentences are not empty and follow each other without a gap from the text's start to its end;
//! so do windows, except that a window may begin with the last sentences of the one before it; a window that
//! does not fit is a single character; time and memory are proportional to the text that the windows cover,
//! whatever its characters are.

use std::{collections::VecDeque, iter, ops::Range};
use unicode_segmentation::UnicodeSegmentation;

/// The most bytes of a sentence. A longer one is divided at a word border.
const MAX_SENTENCE: usize = 2048;
/// The most characters without a letter or a digit in one sentence. Finding sentences takes quadratic time in
/// their number.
const MAX_RUN: usize = 64;
/// A sentence with fewer bytes, such as `1.`, belongs to the next one.
const SHORT: usize = 5;
/// Words with a full stop that rarely end a sentence.
const TITLES: [&str; 9] = ["Dr.", "Mr.", "Mrs.", "Ms.", "Prof.", "St.", "No.", "Fig.", "vs."];

/// The sentences of a text by Unicode's rules (UAX #29), with two exceptions: a line that begins with a small
/// letter goes on with the sentence of the line before it, and very short sentences are joined.
pub(crate) fn sentence_ranges(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut blocks = SentenceBlocks { text, at: 0, found: VecDeque::new() };
    let mut pieces = iter::from_fn(move || blocks.next_piece()).peekable();
    iter::from_fn(move || {
        let mut sentence = pieces.next()?;
        while let Some(next) = pieces.peek().cloned() {
            let goes_on = goes_on(&text[sentence.clone()], &text[next.clone()]);
            if !goes_on || next.end - sentence.start > MAX_SENTENCE {
                break;
            }
            sentence.end = next.end;
            pieces.next();
        }
        Some(sentence)
    })
}

fn goes_on(before: &str, next: &str) -> bool {
    let words = before.trim();
    if words.is_empty() || next.trim().is_empty() {
        return true;
    }
    let space = &before[before.trim_end().len()..];
    match space.matches('\n').count() {
        0 => {
            words.len() < SHORT
                || words.split_whitespace().next_back().is_some_and(|word| TITLES.contains(&word))
        }
        1 => next.starts_with(char::is_lowercase),
        _ => false,
    }
}

/// The sentences as the library finds them, in blocks of limited length.
struct SentenceBlocks<'a> {
    text: &'a str,
    /// The bytes before this one are in `found` or have been returned.
    at: usize,
    found: VecDeque<Range<usize>>,
}

impl SentenceBlocks<'_> {
    fn next_piece(&mut self) -> Option<Range<usize>> {
        if self.found.is_empty() && self.at < self.text.len() {
            self.find_more();
        }
        self.found.pop_front()
    }

    /// Finds the sentences of the next block. A last sentence that may go on behind the block is left to the
    /// next block, unless it is the only one.
    fn find_more(&mut self) {
        let (block, ends_here) = next_block(&self.text[self.at..]);
        let mut borders: Vec<usize> =
            block.split_sentence_bound_indices().map(|(start, _)| start).skip(1).collect();
        if ends_here {
            borders.push(block.len());
        } else if borders.is_empty() {
            borders.push(word_border(block, block.len() - 1));
        }
        let mut start = self.at;
        for border in borders {
            self.found.push_back(start..self.at + border);
            start = self.at + border;
        }
        self.at = start;
    }
}

/// The beginning of a text that is searched for sentences, and whether a sentence ends there: a line, or
/// up to [`MAX_SENTENCE`] bytes.
fn next_block(text: &str) -> (&str, bool) {
    let mut run = 0;
    for (at, character) in text.char_indices() {
        let end = at + character.len_utf8();
        run = if character.is_alphanumeric() { 0 } else { run + 1 };
        if character == '\n' {
            return (&text[..end], true);
        }
        if run > MAX_RUN {
            let block = &text[..end];
            return (&block[..word_border(block, end - 1)], true);
        }
        if end + 4 > MAX_SENTENCE {
            return (&text[..end], end == text.len());
        }
    }
    (text, true)
}

/// The border between two words of a text that is the last one at or before `at`, else the first one behind;
/// without any, a border between two characters. Both parts have characters, if the text has two.
fn word_border(text: &str, at: usize) -> usize {
    let mut borders = text.split_word_bound_indices().map(|(start, _)| start).skip(1);
    let first = borders.next();
    let border = first.map(|first| borders.take_while(|start| *start <= at).last().unwrap_or(first));
    let first_end = text.chars().next().map_or(0, char::len_utf8);
    border.unwrap_or_else(|| text.floor_char_boundary(at).max(first_end))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowLimits {
    /// The most tokens of a window.
    pub(crate) tokens: usize,
    /// The most tokens with which a window repeats the end of the window before it.
    pub(crate) overlap: usize,
    /// The most windows of a text.
    pub(crate) count: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Their bytes, in the order of the text.
    pub(crate) ranges: Vec<Range<usize>>,
    /// Whether the text goes on behind the last window.
    pub(crate) is_cut: bool,
}

/// How long texts are, in the model's tokens.
pub(crate) trait TextMeasure {
    /// The error of a tokenizer that fails.
    type Error;

    /// About the number of tokens of a sentence. [`TextMeasure::fits_window`] decides.
    fn count_tokens(&self, sentence: &str) -> Result<usize, Self::Error>;

    fn fits_window(&self, text: &str) -> Result<bool, Self::Error>;
}

/// A sentence, or a part of a long one.
#[derive(Debug, Clone)]
struct WindowPiece {
    bytes: Range<usize>,
    tokens: usize,
}

struct WindowMaker<'a, M, S> {
    text: &'a str,
    measure: &'a M,
    sentences: S,
    /// Pieces that come before the next sentence, the first one last.
    returned: Vec<WindowPiece>,
    /// The pieces of the window that is being made.
    window: VecDeque<WindowPiece>,
    /// Their tokens.
    tokens: usize,
    /// The number of its first pieces that repeat the window before.
    repeated: usize,
}

/// Windows of whole sentences, each as long as the limits allow. The caller
/// knows that the text does not fit as a whole.
pub(crate) fn split_windows<M: TextMeasure>(
    text: &str,
    limits: WindowLimits,
    measure: &M,
) -> Result<Windows, M::Error> {
    let mut maker = WindowMaker {
        text,
        measure,
        sentences: sentence_ranges(text),
        returned: Vec::new(),
        window: VecDeque::new(),
        tokens: 0,
        repeated: 0,
    };
    let mut windows = Windows::default();
    loop {
        maker.fill_window(limits.tokens)?;
        if maker.window.len() == maker.repeated {
            return Ok(windows);
        }
        if windows.ranges.len() >= limits.count {
            return Ok(Windows { is_cut: true, ..windows });
        }
        maker.shrink_window()?;
        windows.ranges.push(maker.window_range());
        maker.begin_next(limits.overlap);
    }
}

impl<M: TextMeasure, S: Iterator<Item = Range<usize>>> WindowMaker<'_, M, S> {
    /// Appends pieces up to this number of tokens, but at least one if there is one.
    fn fill_window(&mut self, max_tokens: usize) -> Result<(), M::Error> {
        while let Some(piece) = self.next_piece()? {
            if self.tokens + piece.tokens > max_tokens {
                if self.window.len() > self.repeated {
                    self.returned.push(piece);
                    break;
                }
                if piece.tokens > max_tokens && self.halve_piece(&piece)? {
                    continue;
                }
                while self.tokens + piece.tokens > max_tokens && self.repeated > 0 {
                    self.drop_repeated();
                }
            }
            self.tokens += piece.tokens;
            self.window.push_back(piece);
        }
        Ok(())
    }

    /// Takes pieces from the window until it fits.
    fn shrink_window(&mut self) -> Result<(), M::Error> {
        while !self.measure.fits_window(self.text[self.window_range()].trim())? {
            if self.repeated > 0 {
                self.drop_repeated();
                continue;
            }
            let Some(last) = self.window.pop_back() else { break };
            self.tokens -= last.tokens;
            if !self.window.is_empty() {
                self.returned.push(last);
            } else if self.halve_piece(&last)? {
                let first = self.returned.pop();
                self.tokens = first.iter().map(|piece| piece.tokens).sum();
                self.window.extend(first);
            } else {
                self.tokens = last.tokens;
                self.window.push_back(last);
                break;
            }
        }
        Ok(())
    }

    /// Begins the next window with the last pieces of this one.
    fn begin_next(&mut self, overlap: usize) {
        let mut kept = 0;
        let mut tokens = 0;
        for piece in self.window.iter().skip(1).rev() {
            if tokens + piece.tokens > overlap {
                break;
            }
            tokens += piece.tokens;
            kept += 1;
        }
        self.window.drain(..self.window.len() - kept);
        self.tokens = tokens;
        self.repeated = kept;
    }

    fn drop_repeated(&mut self) {
        if let Some(first) = self.window.pop_front() {
            self.tokens -= first.tokens;
            self.repeated -= 1;
        }
    }

    fn next_piece(&mut self) -> Result<Option<WindowPiece>, M::Error> {
        if let Some(piece) = self.returned.pop() {
            return Ok(Some(piece));
        }
        self.sentences.next().map(|bytes| self.measure_piece(bytes)).transpose()
    }

    fn measure_piece(&self, bytes: Range<usize>) -> Result<WindowPiece, M::Error> {
        Ok(WindowPiece { tokens: self.measure.count_tokens(&self.text[bytes.clone()])?, bytes })
    }

    /// Returns the halves of a piece, the first one to be taken next. False for a single character.
    fn halve_piece(&mut self, piece: &WindowPiece) -> Result<bool, M::Error> {
        let Range { start, end } = piece.bytes;
        let middle = start + word_border(&self.text[start..end], (end - start) / 2);
        if middle == end {
            return Ok(false);
        }
        for half in [middle..end, start..middle] {
            let half = self.measure_piece(half)?;
            self.returned.push(half);
        }
        Ok(true)
    }

    fn window_range(&self) -> Range<usize> {
        let first = self.window.front().map_or(0, |piece| piece.bytes.start);
        first..self.window.back().map_or(first, |piece| piece.bytes.end)
    }
}

/// A range of bytes without the white space around its text. Unchanged if there is nothing else.
pub(crate) fn trimmed_range(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let words = part.trim();
    if words.is_empty() {
        return range;
    }
    let start = range.start + part.len() - part.trim_start().len();
    start..start + words.len()
}

/// Ranges of bytes as ranges of characters (Unicode scalar values), which clients count in. The starts must
/// be in ascending order.
pub(crate) fn character_ranges(text: &str, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut at, mut characters) = (0, 0);
    let mut counted = Vec::with_capacity(ranges.len());
    for range in ranges {
        characters += text[at..range.start].chars().count();
        at = range.start;
        counted.push(characters..characters + text[range.clone()].chars().count());
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::{
        convert::Infallible,
        time::{Duration, Instant},
    };

    fn sentences(text: &str) -> Vec<&str> {
        sentence_ranges(text).map(|range| &text[range]).collect()
    }

    #[test]
    fn sentences_end_where_readers_end_them() {
        let wrapped = "This line goes\non here. And\nthis, too.\nA new one";
        for (text, expected) in [
            ("", vec![]),
            ("One sentence.", vec!["One sentence."]),
            (
                "It is hot. It is dry! Is it? Yes it is",
                vec!["It is hot. ", "It is dry! ", "Is it? ", "Yes it is"],
            ),
            ("She said \"Stop it.\" Then she left.", vec!["She said \"Stop it.\" ", "Then she left."]),
            ("It costs 3.14 dollars. The U.S. pays.", vec!["It costs 3.14 dollars. ", "The U.S. pays."]),
            ("I met Dr. Smith there. He left.", vec!["I met Dr. Smith there. ", "He left."]),
            ("1. Open the door. 2. Go through it.", vec!["1. Open the door. ", "2. Go through it."]),
            (
                "火星是红色的。金星很热！面包是烤的吗？是的",
                vec!["火星是红色的。", "金星很热！", "面包是烤的吗？", "是的"],
            ),
            ("화성은 붉다. 금성은 뜨겁다.", vec!["화성은 붉다. ", "금성은 뜨겁다."]),
            ("यह गरम है। यह सूखा है।", vec!["यह गरम है। ", "यह सूखा है।"]),
            (
                "A heading\nThe text begins.\r\n\r\nIt goes on.\r\n",
                vec!["A heading\n", "The text begins.\r\n\r\n", "It goes on.\r\n"],
            ),
            (wrapped, vec!["This line goes\non here. ", "And\nthis, too.\n", "A new one"]),
            ("A paragraph\n\nanother one", vec!["A paragraph\n\n", "another one"]),
            ("  \n\n A text.", vec!["  \n\n A text."]),
            ("Great! 😀👨‍👩‍👧 It is 🇰🇷 today.", vec!["Great! ", "😀👨‍👩‍👧 It is 🇰🇷 today."]),
        ] {
            assert_eq!(sentences(text), expected, "{text:?}");
        }
    }

    const PARTS: [&str; 22] = [
        "word",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\n\n",
        ". ",
        ".",
        "! ",
        "? ",
        "。",
        "」",
        "火星",
        "é",
        "e\u{301}",
        "😀",
        "👨‍👩‍👧",
        "3.14",
        "Dr. ",
        ")",
        "\u{2029}",
        "ไทย",
    ];

    fn random_text(rng: &mut StdRng) -> String {
        let parts = rng.random_range(0..300);
        let most = rng.random_range(1..=PARTS.len());
        (0..parts).map(|_| PARTS[rng.random_range(0..most)]).collect()
    }

    #[test]
    fn sentences_follow_each_other_from_start_to_end() {
        let mut rng = StdRng::seed_from_u64(1);
        for text in (0..500).map(|_| random_text(&mut rng)).chain(hostile(5000)) {
            let mut end = 0;
            for sentence in sentence_ranges(&text) {
                assert!(sentence.start == end && sentence.end > end && sentence.len() <= MAX_SENTENCE);
                end = sentence.end;
            }
            assert_eq!(end, text.len());
        }
    }

    /// Texts of about this many bytes that a careless splitter is slow with.
    fn hostile(bytes: usize) -> impl Iterator<Item = String> {
        [
            "a",
            ".",
            ".)",
            ") ",
            ".1",
            "a.)",
            "\n",
            " ",
            "e\u{301}",
            "\u{301}",
            "👩\u{200d}",
            "a. ",
            ".) 1",
            "🇰",
            "\0",
        ]
        .into_iter()
        .map(move |part| format!("x. {}", part.repeat(bytes / part.len())))
    }

    /// Before the runs were limited, 200 kB of closing brackets took a minute.
    #[test]
    fn never_the_bug_no_text_takes_long_to_split() {
        let start = Instant::now();
        for text in hostile(200_000) {
            assert!(sentence_ranges(&text).count() > 0);
            assert!(start.elapsed() < Duration::from_mins(1), "{:?}", &text[..9]);
        }
    }

    /// A model whose tokens are words and other characters, and that needs one token for each text.
    struct Words {
        room: usize,
    }

    impl Words {
        fn count(text: &str) -> usize {
            let mut count = 0;
            let mut is_word = false;
            for character in text.chars() {
                let letter = character.is_ascii_alphanumeric();
                let goes_on = letter && is_word;
                count += usize::from(!character.is_whitespace() && !goes_on);
                is_word = letter;
            }
            count
        }
    }

    impl TextMeasure for Words {
        type Error = Infallible;

        fn count_tokens(&self, sentence: &str) -> Result<usize, Infallible> {
            Ok(Self::count(sentence))
        }

        fn fits_window(&self, text: &str) -> Result<bool, Infallible> {
            // A little more than the sum over the sentences.
            Ok(Self::count(text) + usize::from(text.len() > 100) <= self.room)
        }
    }

    fn windows_of(text: &str, room: usize, overlap: usize, count: usize) -> Windows {
        let Ok(windows) = split_windows(text, WindowLimits { tokens: room, overlap, count }, &Words { room });
        windows
    }

    #[test]
    fn windows_are_whole_sentences_as_far_as_these_fit() {
        let text = "One two. Three four. Five six seven eight nine. Ten.";
        let cases: [(usize, usize, usize, &[&str], bool); 6] = [
            (99, 0, 9, &[text], false),
            (6, 0, 9, &["One two. Three four. ", "Five six seven eight nine. ", "Ten."], false),
            (9, 3, 9, &["One two. Three four. ", "Three four. Five six seven eight nine. ", "Ten."], false),
            (9, 0, 1, &["One two. Three four. "], true),
            (4, 0, 9, &["One two. ", "Three four. ", "Five six ", "seven eight nine. ", "Ten."], false),
            (1, 0, 4, &["One ", "two", ". ", "Three "], true),
        ];
        for (room, overlap, count, expected, is_cut) in cases {
            let found = windows_of(text, room, overlap, count);
            let texts: Vec<_> = found.ranges.iter().map(|range| &text[range.clone()]).collect();
            assert_eq!((texts.as_slice(), found.is_cut), (expected, is_cut), "{room} {overlap} {count}");
        }
    }

    #[test]
    fn windows_cover_the_text_fit_and_repeat_no_more_than_they_may() {
        let mut rng = StdRng::seed_from_u64(2);
        let random: Vec<String> = (0..400).map(|_| random_text(&mut rng)).collect();
        for text in random.into_iter().chain(hostile(3000)).chain([long_word()]) {
            let room = rng.random_range(1..120);
            let (overlap, count) = (rng.random_range(0..=room / 2), rng.random_range(1..40));
            let found = windows_of(&text, room, overlap, count);
            let (mut end, mut start) = (0, 0);
            for (index, range) in found.ranges.iter().enumerate() {
                let window = &text[range.clone()];
                assert!(range.end > end && (index == 0 || range.start > start), "no progress: {range:?}");
                assert!(range.start <= end, "a gap");
                assert!(Words::count(&text[range.start..end]) <= overlap, "repeats too much");
                let Ok(fits) = Words { room }.fits_window(window.trim());
                assert!(fits || window.chars().count() == 1, "{room}: {window:?}");
                (start, end) = (range.start, range.end);
            }
            assert!(found.ranges.len() <= count);
            assert_eq!(end < text.len(), found.is_cut, "{room} {overlap} {count}");
            assert!(!found.is_cut || found.ranges.len() == count);
        }
    }

    fn long_word() -> String {
        "w".repeat(10_000)
    }

    #[test]
    fn windows_of_an_endless_text_cost_no_more_than_they_cover() {
        struct Counting(std::cell::Cell<usize>);
        impl TextMeasure for Counting {
            type Error = Infallible;
            fn count_tokens(&self, sentence: &str) -> Result<usize, Infallible> {
                self.0.set(self.0.get() + sentence.len());
                Ok(sentence.len())
            }
            fn fits_window(&self, text: &str) -> Result<bool, Infallible> {
                self.0.set(self.0.get() + text.len());
                Ok(text.len() <= 1000)
            }
        }
        for part in ["a sentence of a text. ", "a", "語"] {
            let text = part.repeat(4_000_000 / part.len());
            let measure = Counting(std::cell::Cell::new(0));
            let limits = WindowLimits { tokens: 1000, overlap: 0, count: 5 };
            let Ok(found) = split_windows(&text, limits, &measure);
            assert_eq!((found.ranges.len(), found.is_cut), (5, true));
            assert!(measure.0.get() < 40_000, "{}", measure.0.get());
        }
    }

    #[test]
    fn ranges_are_trimmed_and_counted_in_characters() {
        let text = " 😀 é\u{301}. 火星\u{3000}\n";
        assert_eq!(&text[trimmed_range(text, 0..text.len())], text.trim());
        assert_eq!(trimmed_range(text, 0..1), 0..1);
        assert_eq!(&text[trimmed_range(text, 1..11)], "😀 é\u{301}.");
        let ranges: Vec<_> = sentence_ranges(text).collect();
        let counted = character_ranges(text, &ranges);
        let characters: Vec<char> = text.chars().collect();
        for (range, counted) in ranges.iter().zip(counted) {
            assert_eq!(characters[counted].iter().collect::<String>(), text[range.clone()]);
        }
        assert_eq!(character_ranges("😀ab", &[0..4, 0..5, 5..6]), [0..1, 0..2, 2..3]);
    }
}

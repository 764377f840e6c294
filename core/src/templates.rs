//! The prompt of a re-ranker: literal text around an instruction, a query and a document.
//!
//! Input: a built-in [`Family`], or a repository's Jinja chat template. Output: a [`PromptTemplate`], which
//! lists literals and slots in order. What must hold: a chat template is only rendered at the start, with the
//! server's own texts, to learn its pieces; it is refused unless it writes every user text whole, once and
//! unchanged (or stripped of outer whitespace). User texts never pass through Jinja, so that a document
//! cannot inject any.

mod chat;
mod conversation;
mod error;
mod learn;
mod slot;

pub use chat::MessageStyle;
pub use conversation::MessageTemplate;
pub use error::TemplateError;
pub use learn::{template_has_roles, template_names_role};
pub use slot::Slot;

use crate::families::{Family, ListRules};

/// The begin and end, in a family's row, of the part that is written for each document.
const EACH: &str = "{each}";
const END: &str = "{end}";

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text of the template, control tokens included.
    Literal(String),
    /// A text of the request.
    Slot {
        /// The slot of the text.
        slot: Slot,
        /// The number of the document among the documents of the prompt, from 0.
        document: usize,
        /// Whether its outer whitespace is removed.
        trim: bool,
        /// The text that replaces an empty text.
        empty: String,
    },
    /// Pieces that are written once for each document, in a prompt with many.
    Each(Vec<Piece>),
    /// The number of documents in the prompt.
    Count,
    /// In [`Piece::Each`], the number of the document, from 0.
    Number,
    /// A control token with this text, whose state becomes a vector.
    Mark(String),
    /// A border at which text before and after it is encoded separately, although there is no control token.
    Break,
    /// A border between a text that ends with a line break and a text that begins with two ASCII characters,
    /// the first of them visible. They are encoded separately if the tokenizer is known to split there.
    Seam,
    /// A token with this id, which has no text.
    Token(u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotTexts<'a> {
    pub(crate) instruction: &'a str,
    pub(crate) query: &'a str,
    pub(crate) documents: &'a [&'a str],
}

impl<'a> From<&'a [&'a str; 3]> for SlotTexts<'a> {
    /// The texts of a prompt with one document, in the order of [`Slot`].
    fn from(texts: &'a [&'a str; 3]) -> Self {
        Self { instruction: texts[0], query: texts[1], documents: &texts[2..] }
    }
}

/// The prompt of a re-ranker: pieces in order, in one form or two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTemplate {
    pieces: Vec<Piece>,
    /// The pieces for requests without an instruction, if they differ.
    bare: Option<Vec<Piece>>,
    default_instruction: Option<String>,
    empty_instruction: EmptyInstruction,
    /// Present if many documents of a request are in one prompt.
    list: Option<ListRules>,
}

/// The template's form for an empty instruction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EmptyInstruction {
    /// The form with an instruction.
    #[default]
    Written,
    /// The form without an instruction.
    Bare,
    /// Another form, which the pieces cannot express.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TemplateForm {
    /// With an instruction, or the only form.
    Instructed,
    /// Without an instruction. Only templates with two forms have it.
    Bare,
}

impl PromptTemplate {
    /// The prompt of a family.
    pub fn builtin(family: &Family) -> Self {
        let pieces = |strings: &[&str]| {
            let mut pieces = Vec::new();
            for (index, string) in strings.iter().enumerate() {
                if index > 0 {
                    pieces.push(Piece::Break);
                }
                pieces.extend(split_at_placeholders(string, family));
            }
            pieces.extend(family.last_token.map(Piece::Token));
            pieces
        };
        let instructed = family.instructed.map(pieces);
        let prompt = pieces(family.prompt);
        Self {
            empty_instruction: if instructed.is_some() {
                EmptyInstruction::Bare
            } else {
                EmptyInstruction::Written
            },
            bare: instructed.is_some().then(|| prompt.clone()),
            pieces: instructed.unwrap_or(prompt),
            default_instruction: family.default_instruction.map(str::to_owned),
            list: family.list,
        }
    }

    /// The template with the token at its end that its family's head reads and no template can write.
    #[must_use]
    pub fn ending_in(mut self, family: &Family) -> Self {
        for pieces in [Some(&mut self.pieces), self.bare.as_mut()].into_iter().flatten() {
            pieces.extend(family.last_token.map(Piece::Token));
        }
        self
    }

    /// The pieces of a form, in order. Query and document occur once each and the instruction at most once,
    /// except in a prompt with many documents.
    pub(crate) fn pieces(&self, form: TemplateForm) -> &[Piece] {
        match (form, &self.bare) {
            (TemplateForm::Bare, Some(bare)) => bare,
            (TemplateForm::Instructed, _) | (TemplateForm::Bare, None) => &self.pieces,
        }
    }

    /// Whether requests without an instruction have a form of their own.
    pub fn has_bare_form(&self) -> bool {
        self.bare.is_some()
    }

    /// All text of the template, control tokens included.
    pub fn literal_texts(&self) -> Vec<&str> {
        self.pieces.iter().chain(self.bare.iter().flatten()).flat_map(Piece::literal_texts).collect()
    }

    /// The rules for many documents in one prompt. `None` if each document has a prompt of its own.
    pub fn list(&self) -> Option<ListRules> {
        self.list
    }

    /// The template's own default instruction, if it has one.
    pub fn default_instruction(&self) -> Option<&str> {
        self.default_instruction.as_deref()
    }

    /// Whether the prompt has a place for an instruction. If not, a request's instruction must be refused.
    pub fn has_instruction(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Slot { slot: Slot::Instruction, .. }))
    }

    /// The form of a request with this instruction. `None` if the instruction is empty and the template has a
    /// special form for that.
    pub(crate) fn form(&self, instruction: Option<&str>) -> Option<TemplateForm> {
        let bare = if self.bare.is_some() { TemplateForm::Bare } else { TemplateForm::Instructed };
        match (instruction, self.empty_instruction) {
            (None, _) | (Some(""), EmptyInstruction::Bare) => Some(bare),
            (Some(""), EmptyInstruction::Other) if self.has_instruction() => None,
            (Some(_), _) => Some(TemplateForm::Instructed),
        }
    }

    /// Whether both templates write the same text, however it is encoded. Compares the pieces of a request
    /// without an instruction, ignoring outer whitespace of texts.
    pub fn reads_as(&self, other: &Self) -> bool {
        const MARKS: [&str; 3] = ["\u{1}i", "\u{1}q", "\u{1}d"];
        self.written_text(None, MARKS) == other.written_text(None, MARKS)
    }

    /// The whole prompt as text, for logs and tests. Requests are encoded in pieces instead. Tokens without
    /// text are left out.
    pub fn render<'a>(&self, instruction: impl Into<Option<&'a str>>, query: &str, document: &str) -> String {
        let instruction = instruction.into();
        self.written_text(instruction, [instruction.unwrap_or_default(), query, document])
    }

    fn written_text(&self, instruction: Option<&str>, texts: [&str; 3]) -> String {
        let form = self.form(instruction).unwrap_or(TemplateForm::Instructed);
        written_out(self.pieces(form), 1).iter().map(|piece| piece.text(&SlotTexts::from(&texts))).collect()
    }
}

/// The pieces of a prompt with `count` documents.
pub(crate) fn written_out(pieces: &[Piece], count: usize) -> Vec<Piece> {
    let mut written = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Each(pieces) => written.extend(
                (0..count)
                    .flat_map(|number| pieces.iter().map(move |piece| piece.for_document(number, count))),
            ),
            piece => written.push(piece.for_document(0, count)),
        }
    }
    written
}

impl Piece {
    /// A slot whose text is written unchanged.
    fn slot(slot: Slot) -> Self {
        Self::Slot { slot, document: 0, trim: false, empty: String::new() }
    }

    pub(crate) fn text<'a>(&'a self, texts: &SlotTexts<'a>) -> &'a str {
        match self {
            Self::Literal(text) | Self::Mark(text) => text,
            Self::Slot { slot, document, trim, empty } => {
                let text = match slot {
                    Slot::Instruction => texts.instruction,
                    Slot::Query => texts.query,
                    Slot::Document => texts.documents.get(*document).copied().unwrap_or_default(),
                };
                let text = if *trim { text.trim_matches(is_python_whitespace) } else { text };
                if text.is_empty() { empty } else { text }
            }
            // [`written_out`] replaces the last three.
            Self::Break | Self::Seam | Self::Token(_) | Self::Each(_) | Self::Count | Self::Number => "",
        }
    }

    fn for_document(&self, number: usize, count: usize) -> Self {
        match self {
            Self::Count => Self::Literal(count.to_string()),
            Self::Number => Self::Literal(number.to_string()),
            Self::Slot { slot, trim, empty, .. } => {
                Self::Slot { slot: *slot, document: number, trim: *trim, empty: empty.clone() }
            }
            piece => piece.clone(),
        }
    }

    fn literal_texts(&self) -> Vec<&str> {
        match self {
            Self::Literal(text) | Self::Mark(text) => vec![text],
            Self::Each(pieces) => pieces.iter().flat_map(Self::literal_texts).collect(),
            Self::Slot { .. } | Self::Count | Self::Number | Self::Break | Self::Seam | Self::Token(_) => {
                Vec::new()
            }
        }
    }
}

/// Whether Python's `str.strip`, and hence Jinja's `trim`, treats a character as whitespace.
fn is_python_whitespace(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// A string of a family's row, split at its placeholders and marks.
fn split_at_placeholders(string: &str, family: &Family) -> Vec<Piece> {
    let mut known: Vec<(&str, Piece)> =
        Slot::ALL.map(|slot| (slot.placeholder(), slot_of(slot, family))).into();
    if let Some(list) = &family.list {
        known.extend([("{count}", Piece::Count), ("{number}", Piece::Number)]);
        known.push((EACH, Piece::Each(Vec::new())));
        known.extend(list.marks.map(|mark| (mark, Piece::Mark(mark.to_owned()))));
    }
    let mut pieces = Vec::new();
    let mut rest = string;
    while let Some((literal, name, piece)) = split_at_first(rest, &known) {
        pieces.push(Piece::Literal(literal.to_owned()));
        rest = &rest[literal.len() + name.len()..];
        if let Piece::Each(_) = piece {
            let (inner, behind) = rest.split_once(END).unwrap_or((rest, ""));
            pieces.push(Piece::Each(split_at_placeholders(inner, family)));
            rest = behind;
        } else {
            pieces.push(piece.clone());
        }
    }
    pieces.push(Piece::Literal(rest.to_owned()));
    pieces.retain(|piece| !matches!(piece, Piece::Literal(text) if text.is_empty()));
    pieces
}

/// The text before the first of the known names, and that name with its piece.
fn split_at_first<'a>(text: &'a str, known: &'a [(&'a str, Piece)]) -> Option<(&'a str, &'a str, &'a Piece)> {
    let found = known.iter().filter_map(|(name, piece)| Some((text.find(name)?, *name, piece)));
    found.min_by_key(|(place, ..)| *place).map(|(place, name, piece)| (&text[..place], name, piece))
}

/// A slot as the family's authors fill it.
fn slot_of(slot: Slot, family: &Family) -> Piece {
    let empty = if slot == Slot::Instruction { "" } else { family.empty };
    Piece::Slot { slot, document: 0, trim: family.strips.contains(&slot), empty: empty.to_owned() }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::families::{QWEN3_RERANKER, by_name};

    /// The structure of the official file: set blocks, then text, then three line breaks. Jinja drops one of
    /// these.
    const OFFICIAL_LIKE: &str = concat!(
        r#"{%- set fallback = "Given a web search query, retrieve relevant passages that answer the query" -%}"#,
        "\n",
        r#"{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first"#,
        r#" | default(fallback) -%}"#,
        "\n",
        r#"{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}"#,
        "\n",
        r#"{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}"#,
        "\n<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
        "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n",
        "<Instruct>: {{ instruction }}\n<Query>: {{ query }}\n<Document>: {{ document }}<|im_end|>\n",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n\n",
    );

    /// A template that loops over the messages. Each argument is its text for a role.
    fn walking(system: &str, query: &str, document: &str) -> String {
        format!(
            "{{% for m in messages %}}{{% if m.role == 'system' %}}{system}{{% elif m.role == 'query' %}}{query}\
             {{% elif m['role'] == 'document' %}}{document}{{% endif %}}{{% endfor %}}END"
        )
    }

    fn learn(source: &str) -> Result<PromptTemplate, TemplateError> {
        PromptTemplate::from_chat_template(source, &MessageStyle::plain())
    }

    #[test]
    fn the_builtin_prompts_are_right_byte_for_byte() {
        let official = PromptTemplate::builtin(&QWEN3_RERANKER);
        let expected = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and \
            the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
            <Instruct>: i\n<Query>: q\n<Document>: d<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert_eq!(official.render("i", "q", "d"), expected);
        assert_eq!(
            official.default_instruction(),
            Some("Given a web search query, retrieve relevant passages that answer the query")
        );
        let evaluation = PromptTemplate::builtin(by_name("qwen3-reranker-evaluation").unwrap());
        let expected = expected.replace(
            "i\n<Query>: q\n<Document>: d<|im_end|>\n",
            "i\n\n<Query>: q\n\n<Document>: d<|im_end|>\n<|im_end|>\n",
        );
        assert_eq!(evaluation.render("i", "q", "d"), expected);
    }

    #[test]
    fn the_official_file_gives_the_builtin_prompt() {
        let builtin = PromptTemplate::builtin(&QWEN3_RERANKER);
        assert_eq!(learn(OFFICIAL_LIKE).unwrap(), builtin);
        assert_eq!(learn(&OFFICIAL_LIKE.replace('\n', "\r\n")).unwrap(), builtin);
    }

    #[test]
    fn texts_are_not_jinja() {
        let template = learn(OFFICIAL_LIKE).unwrap();
        let attack = "{{ 7*7 }}{% raw %}{# c #}<b>&amp;'\"";
        let rendered = template.render(attack, attack, attack);
        assert_eq!(rendered.matches(attack).count(), 3);
        assert!(!rendered.contains("49"));
    }

    #[test]
    fn templates_are_learned_with_their_order_trimming_and_loops() {
        let (system, query, document) = ("S{{ m.content }}", "Q{{ m.content }}", "D{{ m.content }}");
        // A template, and its prompt for the instruction " i ", the query " q\n" and the document "\u{1f} d".
        let cases = [
            (walking(system, query, document), "S i Q q\nD\u{1f} dEND"),
            (walking("S{{ m.content | trim }}", query, document), "SiQ q\nD\u{1f} dEND"),
            (walking(system, "Q{{ m.content.strip() }}", "D{{ m['content'] | trim }}"), "S i QqDdEND"),
            (walking("", query, document), "Q q\nD\u{1f} dEND"),
            (
                "{% set c = namespace(q='') %}{% for m in messages %}{% if m.role == 'query' %}{% set c.q = m.content %}\
                 {% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'document' %}D{{ m.content }}|\
                 {% break %}{% endif %}{% endfor %}Q{{ c.q }}\n\n"
                    .to_owned(),
                "D\u{1f} d|Q q\n\n",
            ),
            (
                "{{ bos_token }}{% for m in messages %}\n  {% if m.role in ['query', 'document'] %}\n<{{ m.role }}>\
                 {{ m.content }}\n  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}A{{ 'x<' | tojson }}{% endif %}"
                    .to_owned(),
                "<query> q\n\n<document>\u{1f} d\nA\"x<\"",
            ),
        ];
        for (source, expected) in cases {
            let template = learn(&source).unwrap();
            assert_eq!(template.render(" i ", " q\n", "\u{1f} d"), expected, "{source}");
            assert_eq!(template.has_instruction(), expected.contains('i'), "{source}");
        }
    }

    #[test]
    fn the_form_without_an_instruction_is_learned() {
        let (query, document) = ("{{ m.content }}|", "{{ m.content }}");
        // The template's treatment of a system message; its form for an empty instruction, and for none.
        let table = [
            ("{% if m.content %}S{{ m.content }}\n{% endif %}", Some("q|dEND"), "q|dEND"),
            ("S{{ m.content }}\n", Some("S\nq|dEND"), "q|dEND"),
            ("{% if m.content %}S{{ m.content }}{% else %}E{% endif %}{{ '\n' }}", None, "q|dEND"),
        ];
        for (system, empty, none) in table {
            let template = learn(&walking(system, query, document)).unwrap();
            assert!(template.has_instruction() && template.default_instruction().is_none(), "{system}");
            assert_eq!(template.form(Some("")).map(|_| template.render("", "q", "d")).as_deref(), empty);
            assert_eq!(template.render(None, "q", "d"), none);
            assert_eq!(template.render("i", "q", "d"), "Si\nq|dEND");
        }
        let official = learn(OFFICIAL_LIKE).unwrap();
        assert!(!official.has_bare_form());
        assert!(official.render("", "q", "d").contains("<Instruct>: \n"));
    }

    #[test]
    fn a_word_for_an_empty_text_is_learned() {
        let template = learn(&walking("", "Q{{ m.content }}", "D{{ m.content or 'NULL' }}")).unwrap();
        assert_eq!(template.render(None, "q", ""), "QqDNULLEND");
        assert_eq!(template.render(None, "", " "), "QD END");
    }

    #[test]
    fn messages_of_parts_are_given_to_templates_that_read_them() {
        let source = "{% for m in messages %}{% if m.role in ['query', 'document'] %}{{ m.role }}:\
            {% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %};\
            {% endif %}{% endfor %}{% if add_generation_prompt %}A{% endif %}{{ mode }}";
        let learned = learn(source).unwrap();
        assert_eq!(learned.render(None, "q", "d"), "query:q;document:d;A");
        let style = MessageStyle {
            structured: Some(true),
            add_generation_prompt: false,
            variables: [("mode".to_owned(), "fast".into())].into(),
        };
        let learned = PromptTemplate::from_chat_template(source, &style).unwrap();
        assert_eq!(learned.render(None, "q", "d"), "query:q;document:d;fast");
        let flat = MessageStyle { structured: Some(false), ..style };
        assert!(PromptTemplate::from_chat_template(source, &flat).is_err());
    }

    #[test]
    fn never_the_bug_a_general_chat_template_is_refused_because_all_pairs_would_look_alike() {
        let general = [
            "{% for m in messages[::-1] %}{% if m.role == 'user' or (m.role == \"system\" and not loop.first) %}\
             {{ m.content }}{% endif %}{% endfor %}",
            "{{ raise_exception('roles must alternate') }}",
            "{% a syntax that Jinja does not know",
        ];
        for source in general {
            assert_eq!(learn(source), Err(TemplateError::General), "{source}");
        }
        // It mentions the roles, but gives every pair the same prompt.
        let blind = "{% if 'query' == 'document' %}{{ messages }}{% endif %}<|im_start|>assistant\n";
        assert_eq!(learn(blind), Err(TemplateError::Missing { slot: Slot::Query }));
        // One that writes every role as it comes tells pairs apart.
        let chat = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + \
             '<|im_end|>\\n' }}{%- endfor %}";
        let expected = "<|im_start|>query\nq<|im_end|>\n<|im_start|>document\nd<|im_end|>\n";
        assert_eq!(learn(chat).unwrap().render(None, "q", "d"), expected);
    }

    #[test]
    fn templates_that_would_lose_or_change_a_text_are_refused() {
        let (system, query, document) = ("S{{ m.content }}\n", "Q{{ m.content }}\n", "D{{ m.content }}\n");
        let twice = "{{ m.content }}{{ m.content }}";
        let missing = |slot| TemplateError::Missing { slot };
        let repeated = |slot| TemplateError::Repeated { slot, times: 2 };
        let altered = |slot| TemplateError::Altered { slot };
        let cases = [
            (walking(system, "", document), missing(Slot::Query)),
            (walking(system, query, "D"), missing(Slot::Document)),
            (walking(system, "{{ m.content | lower }}", document), missing(Slot::Query)),
            (walking(system, query, twice), repeated(Slot::Document)),
            (walking(twice, query, document), repeated(Slot::Instruction)),
            (walking(system, query, "{{ m.content | e }}"), altered(Slot::Document)),
            (walking(system, query, "{{ m.content[:1000] }}"), altered(Slot::Document)),
            (walking(system, "{{ m.content.lstrip() }}", document), altered(Slot::Query)),
            (walking("{{ m.content | replace('\\n', ' ') }}", query, document), altered(Slot::Instruction)),
            (walking(system, query, "{{ m.content | tojson }}"), altered(Slot::Document)),
            (
                walking(system, query, "{% if m.content %}D{{ m.content }}{% endif %}"),
                altered(Slot::Document),
            ),
            (
                walking(system, "{% if m.content | length > 99 %}L{% endif %}{{ m.content }}", document),
                altered(Slot::Query),
            ),
            (
                walking(system, "{% if '?' in m.content %}Q{% endif %}{{ m.content }}", document),
                altered(Slot::Query),
            ),
            (
                walking(system, "{{ m.content }}{% if not m.content.endswith('.') %}.{% endif %}", document),
                altered(Slot::Query),
            ),
            (
                walking(system, query, "{% if m.content.isdigit() %}N{% endif %}{{ m.content }}"),
                altered(Slot::Document),
            ),
            (
                walking("{% if m.content | length > 9 %}I{% endif %}{{ m.content }}", query, document),
                altered(Slot::Instruction),
            ),
        ];
        for (source, expected) in cases {
            assert_eq!(learn(&source), Err(expected), "{source}");
        }
    }

    #[test]
    fn templates_that_cannot_be_rendered_say_why_and_what_to_do() {
        let cases = [
            ("{{ raise_exception('no \"query\" or \"document\"') }}", "no \"query\" or \"document\""),
            ("{{ strftime_now('%d') }} 'query' 'document'", "date"),
            ("{{ 'query'.zfill(3) }} 'document'", "zfill"),
            ("{% if 'query' %} 'document'", "end of input"),
            ("{{ ['query', 'document'] | tojson }}", "`tojson` of a list"),
        ];
        for (source, reason) in cases {
            let text = learn(source).unwrap_err().to_string();
            assert!(text.contains(reason) && text.contains("--chat-template"), "{source}: {text}");
        }
    }

    #[test]
    fn a_template_that_would_take_all_time_or_memory_is_refused() {
        // The memory-hungry templates end by themselves at 500 MB to 1 GB, because nothing stops their
        // thread.
        let double = "{% set it = namespace(x='aaaaaaaaaaaaaaaa') %}{% for _ in range(25) %}{% set it.x = it.x ~ it.x %}{% endfor %}";
        let square = "{% set x = 'a' * 32768 %}{% set x = x | replace('a', x) %}";
        let cases = [
            (
                "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}".to_owned(),
                "steps",
            ),
            (double.to_owned(), "MiB of memory"),
            (square.to_owned(), "MiB of memory"),
            ("{{ [1] | batch(30000000, 'x') | length }}".to_owned(), "MiB of memory"),
            ("{{ 'x' * 1000000000 }}".to_owned(), "too large"),
            ("{{ [1] * 1000000000 }}".to_owned(), "too large"),
            (
                "{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}".to_owned(),
                "more than 4194304 bytes",
            ),
            ("{{ 'x' | indent(1000000000000) }}".to_owned(), "indent"),
            ("{{ '{:>1000000000000}'.format('x') }}".to_owned(), "a width"),
            ("{{ '%1000000000000d' | format(3) }}".to_owned(), "a width"),
            ("{{ '%*d' | format(1000000000000, 3) }}".to_owned(), "a width"),
            ("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(0) }}".to_owned(), "recursion"),
            (format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)), "recursion"),
        ];
        for (bomb, reason) in cases {
            let source = format!("{bomb}{}", walking("", "{{ m.content }}", "{{ m.content }}"));
            let message = learn(&source).unwrap_err().to_string();
            assert!(message.contains(reason) && message.contains("--chat-template"), "{bomb}: {message}");
        }
        let (query, document) =
            ("{{ '%s 123456' | format(m.content) }}", "{{ '**{:<1}**'.format(m.content) }}");
        let rendered = learn(&walking("", query, document)).unwrap().render(None, "query", "text");
        assert_eq!(rendered, "query 123456**text**END");
    }
}

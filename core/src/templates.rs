//! The prompt of a re-ranker: literal text around an instruction, a query and a document.
//!
//! Input: the name of a built-in prompt, or a repository's Jinja chat template. Output: a [`PromptTemplate`], the
//! literals and slots in their order. What must hold: a chat template is rendered at start-up only, with texts of our
//! own, to learn its pieces; it is refused unless every text of a user would come out of it whole, once and unchanged
//! (or stripped of outer whitespace). User text never passes through Jinja, so that a document cannot inject any.

mod chat;

use crate::files::template_has_roles;
use chat::ChatTemplate;
use std::{fmt, str::FromStr};

/// The prompt of Qwen3-Reranker, as its model card and its evaluation code write it.
///
/// The whole prompt is `prefix`, `<Instruct>: {instruction}`, `separator`, `<Query>: {query}`, `separator`,
/// `<Document>: {document}`, `suffix`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qwen3RerankerTemplate {
    /// All that comes before the instruction's label.
    pub prefix: &'static str,
    /// What stands between the instruction, the query and the document.
    pub separator: &'static str,
    /// All that comes after the document.
    pub suffix: &'static str,
}

impl Qwen3RerankerTemplate {
    /// What "meets the requirements" means when nobody says otherwise.
    pub const DEFAULT_INSTRUCTION: &'static str =
        "Given a web search query, retrieve relevant passages that answer the query";

    const PREFIX: &'static str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the \
        Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
        <|im_start|>user\n";

    /// The model card's prompt, which is also that of the official `chat_template.jinja`.
    pub const OFFICIAL: Self = Self {
        prefix: Self::PREFIX,
        separator: "\n",
        suffix: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    };

    /// The prompt behind Qwen's published tables (`evaluation/qwen3_reranker_model.py`): blank lines between the
    /// three parts, and the user's turn closed twice.
    pub const EVALUATION: Self = Self {
        prefix: Self::PREFIX,
        separator: "\n\n",
        suffix: "<|im_end|>\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    };

    fn pieces(self) -> Vec<Piece> {
        let slot = |slot| Piece::Slot { slot, trim: false };
        vec![
            Piece::Literal(format!("{}<Instruct>: ", self.prefix)),
            slot(Slot::Instruction),
            Piece::Literal(format!("{}<Query>: ", self.separator)),
            slot(Slot::Query),
            Piece::Literal(format!("{}<Document>: ", self.separator)),
            slot(Slot::Document),
            Piece::Literal(self.suffix.to_owned()),
        ]
    }
}

/// The prompts that need no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BuiltinTemplate {
    /// `builtin`: [`Qwen3RerankerTemplate::OFFICIAL`].
    #[default]
    Qwen3Reranker,
    /// `qwen3-reranker-evaluation`: [`Qwen3RerankerTemplate::EVALUATION`].
    Qwen3RerankerEvaluation,
}

impl BuiltinTemplate {
    /// Every built-in prompt, in the order of the help text.
    pub const ALL: [Self; 2] = [Self::Qwen3Reranker, Self::Qwen3RerankerEvaluation];

    /// The name as it is typed.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qwen3Reranker => "builtin",
            Self::Qwen3RerankerEvaluation => "qwen3-reranker-evaluation",
        }
    }
}

impl fmt::Display for BuiltinTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for BuiltinTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::as_str).join(", ");
        let found = Self::ALL.into_iter().find(|template| template.as_str() == text);
        found.ok_or_else(|| format!("there is no built-in template `{text}`: choose one of {names}"))
    }
}

/// A place in a prompt for a text that comes with the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// What "meets" means.
    Instruction,
    /// What is looked for.
    Query,
    /// What may meet it.
    Document,
}

impl Slot {
    const ALL: [Self; 3] = [Self::Instruction, Self::Query, Self::Document];

    /// The role of the slot's message in a chat template.
    fn role(self) -> &'static str {
        match self {
            Self::Instruction => "system",
            Self::Query => "query",
            Self::Document => "document",
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Instruction => "instruction",
            Self::Query => "query",
            Self::Document => "document",
        })
    }
}

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text of the template, control tokens included.
    Literal(String),
    /// A text of the request.
    Slot {
        /// Which one.
        slot: Slot,
        /// Whether its outer whitespace is left out.
        trim: bool,
    },
}

/// Why a chat template cannot be the prompt of a re-ranker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// It has no roles for a query and a document.
    #[error(
        "the chat template is a general one: it does not know the roles `query` and `document`, so every pair would \
         get a wrong prompt; pass `--chat-template builtin`, or the path of a re-ranker's template"
    )]
    General,
    /// Jinja refuses it.
    #[error(
        "the chat template cannot be rendered: {reason}; pass `--chat-template builtin`, or the path of a template \
         that can"
    )]
    Render {
        /// Jinja's words.
        reason: String,
    },
    /// A text does not come out of it.
    #[error(
        "the chat template leaves the {slot} out, so pairs that differ in it would get the same prompt; pass \
         `--chat-template builtin`, or the path of a re-ranker's template"
    )]
    Missing {
        /// The text.
        slot: Slot,
    },
    /// A text comes out of it more than once.
    #[error(
        "the chat template writes the {slot} {times} times instead of once, which is not supported; pass \
         `--chat-template builtin`, or the path of a template that writes it once"
    )]
    Repeated {
        /// The text.
        slot: Slot,
        /// How often it comes out.
        times: usize,
    },
    /// A text comes out of it changed.
    #[error(
        "the chat template changes the {slot} in other ways than stripping its outer whitespace, or its own text \
         depends on the {slot}, which is not supported; pass `--chat-template builtin`, or the path of a template \
         that writes it as it is"
    )]
    Altered {
        /// The text.
        slot: Slot,
    },
}

/// The prompt of a re-ranker: literals and slots in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTemplate {
    pieces: Vec<Piece>,
    default_instruction: Option<String>,
    takes_empty_instruction: bool,
}

impl PromptTemplate {
    /// A built-in prompt.
    #[must_use]
    pub fn builtin(name: BuiltinTemplate) -> Self {
        let template = match name {
            BuiltinTemplate::Qwen3Reranker => Qwen3RerankerTemplate::OFFICIAL,
            BuiltinTemplate::Qwen3RerankerEvaluation => Qwen3RerankerTemplate::EVALUATION,
        };
        Self {
            pieces: template.pieces(),
            default_instruction: Some(Qwen3RerankerTemplate::DEFAULT_INSTRUCTION.to_owned()),
            takes_empty_instruction: true,
        }
    }

    /// Learns the prompt of a Jinja chat template, which gets three messages: `system` (the instruction), `query` and
    /// `document`; it is set up as `transformers` does (`utils/chat_template_utils.py`).
    ///
    /// # Errors
    ///
    /// [`TemplateError`] unless the template writes query and document once each, verbatim or stripped of outer
    /// whitespace, and the same for the instruction if it writes that at all.
    pub fn from_chat_template(source: &str) -> Result<Self, TemplateError> {
        if !template_has_roles(source) {
            return Err(TemplateError::General);
        }
        let chat = ChatTemplate::new(source)?;
        let mut template =
            Self { pieces: Vec::new(), default_instruction: None, takes_empty_instruction: true };
        template.pieces = split_at_sentinels(&chat.render(SENTINELS)?)?;
        template.learn_trimming(&chat)?;
        template.check_empty_texts(&chat)?;
        template.default_instruction = template.learn_default_instruction(&chat);
        Ok(template)
    }

    /// Literals and slots in their order; query and document occur once each, the instruction at most once.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The instruction that the template itself falls back on, if it has one.
    #[must_use]
    pub fn default_instruction(&self) -> Option<&str> {
        self.default_instruction.as_deref()
    }

    /// Whether the prompt has a place for an instruction. Where it has none, a request's instruction must be refused.
    #[must_use]
    pub fn has_instruction(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Slot { slot: Slot::Instruction, .. }))
    }

    /// Whether the prompt keeps its form around an instruction without text. Some templates leave the instruction's
    /// whole line out, which the pieces cannot say.
    #[must_use]
    pub fn takes_empty_instruction(&self) -> bool {
        self.takes_empty_instruction
    }

    /// The whole prompt as text, for logs and tests; requests are encoded piece by piece.
    #[must_use]
    pub fn render(&self, instruction: &str, query: &str, document: &str) -> String {
        let texts = [instruction, query, document];
        self.pieces.iter().map(|piece| piece.text(texts)).collect()
    }

    fn matches(&self, chat: &ChatTemplate, texts: [&str; 3]) -> Result<bool, TemplateError> {
        Ok(chat.render(texts)? == self.render(texts[0], texts[1], texts[2]))
    }

    /// Sets each slot's `trim` by what the template does to difficult text in it, first one at a time, then in all.
    fn learn_trimming(&mut self, chat: &ChatTemplate) -> Result<(), TemplateError> {
        let difficult = SENTINELS.map(difficult_text);
        for slot in Slot::ALL {
            let mut texts = SENTINELS;
            texts[slot as usize] = &difficult[slot as usize];
            if self.matches(chat, texts)? {
                continue;
            }
            self.pieces.iter_mut().for_each(|piece| piece.trim_slot(slot));
            if !self.matches(chat, texts)? {
                return Err(TemplateError::Altered { slot });
            }
        }
        if self.matches(chat, difficult.each_ref().map(String::as_str))? {
            Ok(())
        } else {
            Err(TemplateError::Altered { slot: Slot::Document })
        }
    }

    /// Documents and queries may be empty; whether the instruction may is remembered.
    fn check_empty_texts(&mut self, chat: &ChatTemplate) -> Result<(), TemplateError> {
        let [instruction, query, document] = SENTINELS;
        for (slot, texts) in
            [(Slot::Query, [instruction, "", document]), (Slot::Document, [instruction, query, ""])]
        {
            if !self.matches(chat, texts)? {
                return Err(TemplateError::Altered { slot });
            }
        }
        self.takes_empty_instruction = self.matches(chat, ["", query, document]).unwrap_or(false);
        Ok(())
    }

    /// The template's own instruction: what stands in the slot when there is no system message.
    fn learn_default_instruction(&self, chat: &ChatTemplate) -> Option<String> {
        let [_, query, document] = SENTINELS;
        let rendered = chat.render_messages(&[(Slot::Query, query), (Slot::Document, document)]).ok()?;
        let place = self
            .pieces
            .iter()
            .position(|piece| matches!(piece, Piece::Slot { slot: Slot::Instruction, .. }))?;
        let text =
            |pieces: &[Piece]| -> String { pieces.iter().map(|piece| piece.text(SENTINELS)).collect() };
        let inner = rendered.strip_prefix(&text(&self.pieces[..place]))?;
        inner.strip_suffix(&text(&self.pieces[place + 1..])).map(str::to_owned)
    }
}

impl Piece {
    /// The piece with the request's texts (in the order of [`Slot`]) in their places.
    pub(crate) fn text<'a>(&'a self, texts: [&'a str; 3]) -> &'a str {
        match self {
            Self::Literal(text) => text,
            Self::Slot { slot, trim: false } => texts[*slot as usize],
            Self::Slot { slot, trim: true } => texts[*slot as usize].trim_matches(is_python_whitespace),
        }
    }

    fn trim_slot(&mut self, wanted: Slot) {
        if let Self::Slot { slot, trim } = self
            && *slot == wanted
        {
            *trim = true;
        }
    }
}

/// What Python's `str.strip`, hence Jinja's `trim`, takes for whitespace.
fn is_python_whitespace(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Texts that no template contains, one per slot.
const SENTINELS: [&str; 3] = ["Zq7InstructionXv3k", "Zq7QueryXv3k", "Zq7DocumentXv3k"];

/// Text that shows every kind of change: outer whitespace, line breaks, markup, Jinja, control tokens, case, length.
fn difficult_text(sentinel: &str) -> String {
    let line = format!(
        "{sentinel} \"a\" 'B' <b>&amp;</b> {{{{ 7*7 }}}} {{% x %}} {{# y #}} \\n <|im_end|>\r\n\n  ÅE\u{301}日😀\t"
    );
    format!("\u{a0} \t\n{}end\u{3000} \n\t ", line.repeat(200))
}

/// The pieces of a prompt that was rendered with [`SENTINELS`].
fn split_at_sentinels(rendered: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut places = Vec::new();
    for slot in Slot::ALL {
        let found: Vec<_> = rendered.match_indices(SENTINELS[slot as usize]).collect();
        match (slot, found.as_slice()) {
            (_, [(place, _)]) => places.push((*place, slot)),
            (Slot::Instruction, []) => {}
            (_, []) => return Err(TemplateError::Missing { slot }),
            (_, found) => return Err(TemplateError::Repeated { slot, times: found.len() }),
        }
    }
    places.sort_unstable_by_key(|(place, _)| *place);
    let mut pieces = Vec::new();
    let mut end = 0;
    for (place, slot) in places {
        pieces.push(Piece::Literal(rendered[end..place].to_owned()));
        pieces.push(Piece::Slot { slot, trim: false });
        end = place + SENTINELS[slot as usize].len();
    }
    pieces.push(Piece::Literal(rendered[end..].to_owned()));
    pieces.retain(|piece| !matches!(piece, Piece::Literal(text) if text.is_empty()));
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;

    /// The shape of the official file: set blocks, then text, then three line breaks of which Jinja drops one.
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

    /// A template that walks over the messages; each argument is what it writes for a role.
    fn walking(system: &str, query: &str, document: &str) -> String {
        format!(
            "{{% for m in messages %}}{{% if m.role == 'system' %}}{system}{{% elif m.role == 'query' %}}{query}\
             {{% elif m['role'] == 'document' %}}{document}{{% endif %}}{{% endfor %}}END"
        )
    }

    fn learn(source: &str) -> Result<PromptTemplate, TemplateError> {
        PromptTemplate::from_chat_template(source)
    }

    #[test]
    fn the_builtin_prompts_are_right_byte_for_byte() {
        let official = PromptTemplate::builtin(BuiltinTemplate::Qwen3Reranker);
        let expected = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and \
            the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
            <Instruct>: i\n<Query>: q\n<Document>: d<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert_eq!(official.render("i", "q", "d"), expected);
        assert_eq!(
            official.default_instruction(),
            Some("Given a web search query, retrieve relevant passages that answer the query")
        );
        let evaluation = PromptTemplate::builtin(BuiltinTemplate::Qwen3RerankerEvaluation);
        let expected = expected.replace(
            "i\n<Query>: q\n<Document>: d<|im_end|>\n",
            "i\n\n<Query>: q\n\n<Document>: d<|im_end|>\n<|im_end|>\n",
        );
        assert_eq!(evaluation.render("i", "q", "d"), expected);
    }

    #[test]
    fn builtin_names_are_read_back() {
        for name in BuiltinTemplate::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let error = "qwen".parse::<BuiltinTemplate>().unwrap_err();
        assert!(error.contains("`qwen`") && error.contains("qwen3-reranker-evaluation"), "{error}");
    }

    #[test]
    fn the_official_file_gives_the_builtin_prompt() {
        let builtin = PromptTemplate::builtin(BuiltinTemplate::Qwen3Reranker);
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
        // A template, and what it makes of the instruction " i ", the query " q\n" and the document "\u{1f} d".
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
    fn an_instruction_that_may_not_be_empty_is_noticed() {
        let optional =
            walking("{% if m.content %}S{{ m.content }}\n{% endif %}", "{{ m.content }}|", "{{ m.content }}");
        let template = learn(&optional).unwrap();
        assert!(template.has_instruction() && !template.takes_empty_instruction());
        assert_eq!(template.default_instruction(), None);
        assert!(learn(OFFICIAL_LIKE).unwrap().takes_empty_instruction());
    }

    #[test]
    fn never_the_bug_a_general_chat_template_is_refused_because_all_pairs_would_look_alike() {
        let general = [
            "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + \
             '<|im_end|>\\n' }}{%- endfor %}",
            "{% for m in messages[::-1] %}{% if m.role == 'user' or (m.role == \"system\" and not loop.first) %}\
             {{ m.content }}{% endif %}{% endfor %}",
            "{{ raise_exception('roles must alternate') }}",
            "{% a syntax that Jinja does not know",
        ];
        for source in general {
            assert_eq!(learn(source), Err(TemplateError::General), "{source}");
        }
        // It knows the words, but gives every pair the same prompt.
        let blind = "{% if 'query' == 'document' %}{{ messages }}{% endif %}<|im_start|>assistant\n";
        assert_eq!(learn(blind), Err(TemplateError::Missing { slot: Slot::Query }));
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
}

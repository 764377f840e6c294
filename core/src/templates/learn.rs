//! Learns the pieces of a Jinja chat template by rendering it with the server's own texts.
//!
//! Input: a template's source, and the form of its messages. Output: a [`PromptTemplate`]. What must hold:
//! for every text, the pieces give the same prompt as the template. Otherwise the template is refused.

use super::{
    EmptyInstruction, MessageStyle, Piece, PromptTemplate, Slot, SlotTexts, TemplateError,
    chat::{ChatTemplate, Message},
};
use crate::guard::{self, Bounds};
use std::time::Duration;

/// The limits for learning a template. Templates in use take milliseconds and some hundred kilobytes. Jinja
/// recurses for each level of an expression (`not not …`, `x.a.a…`), and for values that hold themselves.
pub(super) const BOUNDS: Bounds = Bounds { time: Duration::from_secs(20), memory: 256 << 20, stack: 1 << 30 };

/// Whether a chat template mentions the roles `query` and `document` as string literals.
pub fn template_has_roles(template: &str) -> bool {
    [Slot::Query, Slot::Document].into_iter().all(|slot| has_role(template, slot))
}

/// Whether a chat template mentions one of these roles.
pub fn template_names_role(template: &str) -> bool {
    [Slot::Query, Slot::Document].into_iter().any(|slot| has_role(template, slot))
}

fn has_role(template: &str, slot: Slot) -> bool {
    let role = slot.role();
    template.contains(&format!("'{role}'")) || template.contains(&format!("\"{role}\""))
}

impl PromptTemplate {
    /// Learns the prompt of a Jinja chat template. The template gets up to three messages, `system` (the
    /// instruction), `query` and `document`, in the environment that `transformers` gives it
    /// (`utils/chat_template_utils.py`).
    ///
    /// # Errors
    ///
    /// [`TemplateError`] unless the template writes query and document once each, verbatim or stripped of
    /// outer whitespace. The same applies to the instruction if the template writes it at all.
    pub fn from_chat_template(source: &str, style: &MessageStyle) -> Result<Self, TemplateError> {
        let (text, style) = (source.to_owned(), style.clone());
        guard::run(BOUNDS, move || Self::learn(&text, &style))
            .unwrap_or_else(|reason| Err(TemplateError::Render { reason }))
            .map_err(|cause| match cause {
                TemplateError::Missing { .. } | TemplateError::Render { .. }
                    if !template_names_role(source) =>
                {
                    TemplateError::General
                }
                cause => cause,
            })
    }

    fn learn(source: &str, style: &MessageStyle) -> Result<Self, TemplateError> {
        let chat = ChatTemplate::new(source, style)?;
        let all = Form { chat: &chat, slots: &Slot::ALL };
        let mut template = Self { pieces: all.learn()?, ..Self::default() };
        if !template.has_instruction() {
            return Ok(template);
        }
        let without = Form { chat: &chat, slots: &[Slot::Query, Slot::Document] };
        template.default_instruction = without.default_instruction(&template.pieces);
        // A separate form for requests without an instruction, if the template does not have its own default
        // instruction. Some templates cannot be rendered without an instruction.
        if template.default_instruction.is_none() && without.render(SENTINELS).is_ok() {
            template.bare = Some(without.learn()?);
        }
        let empty = ["", SENTINELS[1], SENTINELS[2]];
        let rendered = all.render(empty).ok();
        let is = |pieces: &[Piece]| rendered.as_deref().is_some_and(|it| it == text_of(pieces, empty));
        template.empty_instruction = match &template.bare {
            _ if is(&template.pieces) => EmptyInstruction::Written,
            Some(bare) if is(bare) => EmptyInstruction::Bare,
            _ => EmptyInstruction::Other,
        };
        Ok(template)
    }
}

/// Texts that no template contains, one for each slot.
const SENTINELS: [&str; 3] = ["Zq7InstructionXv3k", "Zq7QueryXv3k", "Zq7DocumentXv3k"];

/// Text that reveals every kind of change: outer whitespace, line breaks, markup, Jinja, control tokens,
/// case, length.
pub(super) fn difficult_text(sentinel: &str) -> String {
    let line = format!(
        "{sentinel} \"a\" 'B' <b>&amp;</b> {{{{ 7*7 }}}} {{% x %}} {{# y #}} \\n <|im_end|>\r\n\n  ÅE\u{301}日😀\t"
    );
    format!("\u{a0} \t\n{}end\u{3000} \n\t ", line.repeat(200))
}

/// Texts on whose characters, ends and lengths a template's own words may depend.
pub(super) fn probe_texts() -> Vec<String> {
    let ascii: String = (' '..='~').collect();
    let others = [
        "What is red, and where?",
        "It is red.",
        "Is it? See https://example.org, page 12!",
        "7",
        "RED",
        "red\nblue",
        "火星是红色的吗？",
    ];
    [ascii].into_iter().chain(others.map(str::to_owned)).collect()
}

fn messages<'a>(slots: &[Slot], texts: [&'a str; 3]) -> Vec<Message<'a>> {
    slots.iter().map(|slot| Message { role: slot.role(), content: texts[*slot as usize] }).collect()
}

fn text_of(pieces: &[Piece], texts: [&str; 3]) -> String {
    pieces.iter().map(|piece| piece.text(&SlotTexts::from(&texts))).collect()
}

/// A template together with the slots whose messages it gets.
struct Form<'a> {
    chat: &'a ChatTemplate,
    slots: &'a [Slot],
}

impl Form<'_> {
    fn render(&self, texts: [&str; 3]) -> Result<String, TemplateError> {
        self.chat.render(&messages(self.slots, texts))
    }

    fn matches(&self, pieces: &[Piece], texts: [&str; 3]) -> Result<bool, TemplateError> {
        Ok(self.render(texts)? == text_of(pieces, texts))
    }

    fn learn(&self) -> Result<Vec<Piece>, TemplateError> {
        let mut pieces = split_at_sentinels(&self.render(SENTINELS)?)?;
        self.learn_trimming(&mut pieces)?;
        self.check_probes(&pieces)?;
        for slot in [Slot::Query, Slot::Document] {
            self.learn_empty(&mut pieces, slot)?;
        }
        Ok(pieces)
    }

    /// Sets `trim` of each slot by the template's output for difficult texts, first in one slot at a time,
    /// then in all.
    fn learn_trimming(&self, pieces: &mut [Piece]) -> Result<(), TemplateError> {
        let difficult = SENTINELS.map(difficult_text);
        for &slot in self.slots {
            let mut texts = SENTINELS;
            texts[slot as usize] = &difficult[slot as usize];
            if self.matches(pieces, texts)? {
                continue;
            }
            for piece in pieces.iter_mut() {
                piece.trim_slot(slot);
            }
            if !self.matches(pieces, texts)? {
                return Err(TemplateError::Altered { slot });
            }
        }
        if self.matches(pieces, difficult.each_ref().map(String::as_str))? {
            Ok(())
        } else {
            Err(TemplateError::Altered { slot: Slot::Document })
        }
    }

    /// Refuses a template whose own words change with a text.
    fn check_probes(&self, pieces: &[Piece]) -> Result<(), TemplateError> {
        let probes = probe_texts();
        for &slot in self.slots {
            for probe in &probes {
                let mut texts = SENTINELS;
                texts[slot as usize] = probe;
                if !self.matches(pieces, texts)? {
                    return Err(TemplateError::Altered { slot });
                }
            }
        }
        Ok(())
    }

    /// Documents and queries may be empty. Some templates write a word instead.
    fn learn_empty(&self, pieces: &mut [Piece], slot: Slot) -> Result<(), TemplateError> {
        let mut texts = SENTINELS;
        texts[slot as usize] = "";
        if self.matches(pieces, texts)? {
            return Ok(());
        }
        let rendered = self.render(texts)?;
        if let Some(word) = in_place_of(pieces, slot, &rendered).map(str::to_owned) {
            for piece in pieces.iter_mut() {
                if let Piece::Slot { slot: found, empty, .. } = piece
                    && *found == slot
                {
                    empty.clone_from(&word);
                }
            }
            return Ok(());
        }
        Err(TemplateError::Altered { slot })
    }

    /// The template's own instruction: its text in the slot's place if there is no system message.
    fn default_instruction(&self, pieces: &[Piece]) -> Option<String> {
        let rendered = self.render(SENTINELS).ok()?;
        in_place_of(pieces, Slot::Instruction, &rendered).map(str::to_owned)
    }
}

/// The text of `rendered` at the slot `wanted`. The other slots contain their sentinels.
fn in_place_of<'a>(pieces: &[Piece], wanted: Slot, rendered: &'a str) -> Option<&'a str> {
    let place =
        pieces.iter().position(|piece| matches!(piece, Piece::Slot { slot, .. } if *slot == wanted))?;
    let inner = rendered.strip_prefix(text_of(&pieces[..place], SENTINELS).as_str())?;
    inner.strip_suffix(text_of(&pieces[place + 1..], SENTINELS).as_str())
}

impl Piece {
    fn trim_slot(&mut self, wanted: Slot) {
        if let Self::Slot { slot, trim, .. } = self
            && *slot == wanted
        {
            *trim = true;
        }
    }
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
        pieces.push(Piece::slot(slot));
        end = place + SENTINELS[slot as usize].len();
    }
    pieces.push(Piece::Literal(rendered[end..].to_owned()));
    pieces.retain(|piece| !matches!(piece, Piece::Literal(text) if text.is_empty()));
    Ok(pieces)
}

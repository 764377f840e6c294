//! The places in a prompt for the texts of a request.

use std::fmt;

/// A place in a prompt for a text of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// The instruction, which defines relevance.
    Instruction,
    /// The query.
    Query,
    /// The document, which is scored for the query.
    Document,
}

impl Slot {
    pub(super) const ALL: [Self; 3] = [Self::Instruction, Self::Query, Self::Document];

    /// The slot's placeholder in a family's row.
    pub(super) fn placeholder(self) -> &'static str {
        match self {
            Self::Instruction => "{instruction}",
            Self::Query => "{query}",
            Self::Document => "{document}",
        }
    }

    /// The role of the slot's message in a chat template.
    pub(super) fn role(self) -> &'static str {
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

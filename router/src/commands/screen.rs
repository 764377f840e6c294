//! The terminal of standard output.
//!
//! Input: the process's standard output and the variable `NO_COLOR`. Output: [`Screen`]. What must hold:
//! colours only on a terminal, and not if `NO_COLOR` is set.

use std::io::{self, IsTerminal};

/// The properties of a terminal that output for people depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen {
    /// Its columns; absent if texts are not cut.
    pub(super) width: Option<usize>,
    /// Whether it shows colours.
    pub(super) colours: bool,
}

impl Screen {
    /// The screen of standard output.
    pub(super) fn of_stdout() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let size = is_terminal.then(|| console::Term::stdout().size_checked()).flatten();
        Self { width: size.map(|(_, columns)| usize::from(columns)), colours: is_terminal && wanted }
    }

    /// The text in a style, given by the number of its ANSI escape code, if there are colours.
    pub(super) fn styled(self, text: &str, style: &str) -> String {
        if self.colours { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

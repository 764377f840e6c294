//! What standard output is shown on.
//!
//! Input: the process's standard output and the variable `NO_COLOR`. Output: [`Screen`]. What must hold: colours only
//! on a terminal, and not where `NO_COLOR` is set.

use std::io::{self, IsTerminal};

/// What writes for people has to know of its terminal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen {
    /// Its columns; none if texts are not cut.
    pub(super) width: Option<usize>,
    /// Whether it shows colours.
    pub(super) colours: bool,
}

impl Screen {
    /// That of standard output.
    pub(super) fn of_stdout() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let size = is_terminal.then(|| console::Term::stdout().size_checked()).flatten();
        Self { width: size.map(|(_, columns)| usize::from(columns)), colours: is_terminal && wanted }
    }

    /// The text in a style, by its number in the terminal's language, if there are colours.
    pub(super) fn styled(self, text: &str, style: &str) -> String {
        if self.colours { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

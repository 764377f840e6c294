//! A value that must never be printed: a key or a token.
//!
//! Input: the text of a flag or variable. Output: the same text, only through [`Secret::expose`]. What must
//! hold: `Debug` shows that there is a value, never which.

use std::{convert::Infallible, fmt, str::FromStr};

/// A key or token. There is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    /// Files and variables often end with a line break, and a header's value has no white space at its ends.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.trim().to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_it() {
        let Ok(secret) = "hf_abc".parse::<Secret>();
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)), "<redacted> Some(\n    <redacted>,\n)");
        assert_eq!(secret.expose(), "hf_abc");
    }
}

//! Numbers with their nouns, for messages.
//!
//! Input: a number and an English noun. Output: both, such as `1 text` and `2 texts`. What must hold: only 1
//! takes the singular.

use std::fmt::Display;

/// `count` and `noun`, which is in the singular and has a regular plural.
pub fn amount(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" {
        return format!("1 {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{count} {stem}ies"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_takes_the_singular() {
        for (count, noun, expected) in [
            (0, "text", "0 texts"),
            (1, "text", "1 text"),
            (2, "text", "2 texts"),
            (21, "pinned thread", "21 pinned threads"),
            (1, "body", "1 body"),
            (3, "body", "3 bodies"),
            (2, "key", "2 keys"),
        ] {
            assert_eq!(amount(count, noun), expected);
        }
    }
}

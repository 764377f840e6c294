//! Checks of the names that the Hub sends, before they become parts of paths.
//!
//! Input: commits, `ETags` and file names from answers and files of the Hub, and the revision that the user
//! gives. Output: whether each may be a path below the cache. What must hold: no name that passes leads out
//! of the folder to which it is joined.

/// The longest part of a path, in bytes, on the file systems of Linux and macOS.
const LONGEST_PART: usize = 255;
/// The longest file name in a repository, in bytes.
const LONGEST_NAME: usize = 1024;
/// The longest `ETag`: a SHA-256 in hexadecimal digits.
const LONGEST_ETAG: usize = 64;

/// Whether this is the whole id of a commit: 40 hexadecimal digits.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The name of a file among the cache's blobs, made from an `ETag` header as in `huggingface_hub`: without
/// `W/` and quotes. Absent if the rest has other characters than letters, digits and `-`.
pub(super) fn blob_name(etag: &str) -> Option<&str> {
    let name = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_plain && (1..=LONGEST_ETAG).contains(&name.len())).then_some(name)
}

/// Whether a file name or a revision stays below the folder to which it is joined: its parts between `/` are
/// not empty, `.` or `..`, and have no control characters and backslashes.
pub(in super::super) fn stays_below(name: &str) -> bool {
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.len() <= LONGEST_PART
            && !part.chars().any(|character| character.is_control() || character == '\\')
    };
    name.len() <= LONGEST_NAME && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_etags_become_names() {
        let sha256 = "a".repeat(64);
        let table = [
            ("\"abc-12\"", Some("abc-12")),
            ("W/\"abc\"", Some("abc")),
            (sha256.as_str(), Some(sha256.as_str())),
            ("", None),
            ("\"\"", None),
            ("W/", None),
            ("..", None),
            ("\"../../../.bashrc\"", None),
            ("a/b", None),
            ("a.b", None),
            ("a\\b", None),
            ("a\0", None),
            ("é", None),
        ];
        for (etag, expected) in table {
            assert_eq!(blob_name(etag), expected, "{etag}");
        }
        assert_eq!(blob_name(&"a".repeat(65)), None);
    }

    #[test]
    fn no_name_leads_out_of_its_folder() {
        let fine = ["config.json", "1_Pooling/config.json", "a b.safetensors", "refs/pr/3", "...", "정.json"];
        assert!(fine.into_iter().all(stays_below));
        let (long, deep) = ("a".repeat(256), "a/".repeat(600));
        let bad = [
            "",
            "/",
            "/etc/passwd",
            "a/",
            "a//b",
            "..",
            "../a",
            "a/../b",
            ".",
            "./a",
            "a\0",
            "a\nb",
            "..\\a",
            &long,
            &deep,
        ];
        assert!(!bad.into_iter().any(stays_below));
        assert!(is_commit(&"0a".repeat(20)) && is_commit(&"AF".repeat(20)));
        assert!(!is_commit(&"0g".repeat(20)) && !is_commit("main") && !is_commit(&"0".repeat(41)));
    }
}

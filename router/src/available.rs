//! The memory that this process may use.

use std::{fmt, fs};

use text_embeddings_core::guard::listed_bytes;

use crate::control_groups::ControlGroup;

/// Memory that a process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Available {
    /// Their number.
    pub(crate) bytes: u64,
    /// The words for where the limit comes from.
    pub(crate) source: &'static str,
}

impl Available {
    /// The container's limit if there is one, else the machine's memory; absent if neither can be read.
    pub(crate) fn read() -> Option<Self> {
        let machine = listed_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
        let machine = Self { bytes: machine, source: "this machine has" };
        let limits = ControlGroup::read_groups("memory").into_iter().filter_map(|group| {
            let file = if group.is_version_1 { "memory.limit_in_bytes" } else { "memory.max" };
            fs::read_to_string(group.folder.join(file)).ok()?.trim().parse().ok()
        });
        let limit = limits.min().map(|bytes| Self { bytes, source: "this container may use" });
        Some(limit.filter(|limit| limit.bytes < machine.bytes).unwrap_or(machine))
    }
}

impl fmt::Display for Available {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.source, megabytes(self.bytes))
    }
}

/// The bytes in words.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

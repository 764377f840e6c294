//! Returns free memory to the system.
//!
//! The C library keeps freed memory for the threads that freed it. After requests that took gigabytes, the
//! process would stay that large. Input: the process's resident memory, read every few seconds. Output: none.
//! What must hold: a server under steady load returns nothing, because it would have to request the pages
//! again.

use std::time::{Duration, Instant};
use std::{fs, io};

use text_embeddings_core::guard::listed_bytes;

/// How often the resident memory is read.
const INTERVAL: Duration = Duration::from_secs(5);
/// The growth since the start, in bytes, below which no memory is returned.
const GROWTH: u64 = 64 << 20;
/// A change since the last return, in bytes, after which memory is returned again.
const CHANGE: u64 = 16 << 20;
/// The time after which memory is returned even without such a change: memory in use then may be free now.
const PATIENCE: Duration = Duration::from_mins(1);

/// Starts the thread that returns free memory once the process has grown beyond its present size.
pub(crate) fn give_back() -> io::Result<()> {
    // Reading the model's files left free memory.
    trim();
    let Some(start) = text_embeddings_core::guard::resident() else { return Ok(()) };
    let mut keeper = Keeper { start, last: start, at: Instant::now() };
    std::thread::Builder::new()
        .name("memory".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(INTERVAL);
                let Some(resident) = text_embeddings_core::guard::resident() else { return };
                if keeper.is_due(resident, Instant::now()) {
                    trim();
                    keeper.last = text_embeddings_core::guard::resident().unwrap_or(resident);
                    tracing::debug!(
                        "{} MB of free memory given back",
                        resident.saturating_sub(keeper.last) >> 20
                    );
                }
            }
        })
        .map(drop)
}

/// Decides when memory is returned.
struct Keeper {
    /// Resident bytes when serving started.
    start: u64,
    /// Resident bytes after the last return, and its time.
    last: u64,
    at: Instant,
}

impl Keeper {
    fn is_due(&mut self, resident: u64, now: Instant) -> bool {
        let is_changed = resident.abs_diff(self.last) > CHANGE;
        let due = resident > self.start + GROWTH && (is_changed || now.duration_since(self.at) >= PATIENCE);
        if due {
            self.at = now;
        }
        due
    }
}

/// The bytes of memory that this process holds and no file backs; absent if they cannot be read.
pub(crate) fn held_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(listed_bytes(&status, "RssAnon:")? + listed_bytes(&status, "RssShmem:").unwrap_or(0))
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the C library has no other way to be asked")]
pub(crate) fn trim() {
    // SAFETY: the function takes a number, locks the allocator's state, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other C libraries give memory back by themselves, or not at all.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_after_growth_and_again_after_a_change_or_a_minute() {
        let start = Instant::now();
        let mut keeper = Keeper { start: 1000 << 20, last: 1000 << 20, at: start };
        // Seconds, MiB that are resident, whether it is time, MiB that are resident afterwards.
        let table = [
            (5, 1010, false, 1010),
            (10, 1064, false, 1064),
            (15, 3000, true, 2000),
            (20, 2010, false, 2010),
            (25, 2100, true, 1900),
            (84, 1900, false, 1900),
            (85, 1900, true, 1050),
            (200, 1050, false, 1050),
        ];
        for (seconds, resident, expected, after) in table {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(keeper.is_due(resident << 20, now), expected, "{seconds} s, {resident} MiB");
            if expected {
                keeper.last = after << 20;
            }
        }
    }
}

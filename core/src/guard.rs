//! Runs what files of strangers make this process do, such as rendering a template, within bounds of time and memory.
//!
//! Input: some work, and [`Bounds`]. Output: its result, or [`Exceeded`]. What must hold: the caller goes on in time. The
//! work cannot be stopped from outside, so its thread goes on too: a caller that gets [`Exceeded`] ends the process. Used at
//! start-up only, when nothing else of this process takes memory.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often the bounds are looked at. A text that doubles has grown by some tens of megabytes in the meantime.
const INTERVAL: Duration = Duration::from_millis(5);
/// The stack of the work in bytes: that of a process's first thread. Recursion is deep in parsers.
const STACK: usize = 8 << 20;

/// What some work may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Wall-clock time.
    pub time: Duration,
    /// Resident memory in bytes, beyond that of the process before. Only Linux says how much there is.
    pub memory: u64,
}

/// The bound that some work exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// It takes longer than this.
    Time(Duration),
    /// It takes more bytes than this.
    Memory(u64),
    /// It panics, which the panic itself has reported.
    Panicked,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => write!(formatter, "it takes longer than {time:?}"),
            Self::Memory(bytes) => write!(formatter, "it takes more than {} MiB of memory", bytes >> 20),
            Self::Panicked => write!(formatter, "it is not understood"),
        }
    }
}

/// Does the work on a thread of its own.
///
/// # Errors
///
/// [`Exceeded`] once the work takes more than `bounds` or panics, or where no thread can be started.
pub fn run<T: Send + 'static>(
    bounds: Bounds,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Exceeded> {
    let (start, before) = (Instant::now(), resident());
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new().name("guarded".to_owned()).stack_size(STACK);
    let started = thread.spawn(move || {
        // Nobody waits for what took too long.
        drop(sender.send(work()));
    });
    if started.is_err() {
        return Err(Exceeded::Memory(STACK as u64));
    }
    loop {
        match receiver.recv_timeout(INTERVAL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(Exceeded::Panicked),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if start.elapsed() > bounds.time {
            return Err(Exceeded::Time(bounds.time));
        }
        if let (Some(before), Some(now)) = (before, resident())
            && now > before + bounds.memory
        {
            return Err(Exceeded::Memory(bounds.memory));
        }
    }
}

/// The resident memory of this process in bytes, where the system says it.
#[must_use]
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { time: Duration::from_mins(1), memory: 1 << 40 };

    #[test]
    fn work_gives_its_result_or_panics() {
        assert_eq!(run(BOUNDS, || 7), Ok(7));
        assert_eq!(
            run(BOUNDS, || -> u8 { std::panic::resume_unwind(Box::new("x")) }),
            Err(Exceeded::Panicked)
        );
    }

    #[test]
    fn work_without_end_is_left() {
        let bounds = Bounds { time: Duration::from_millis(50), ..BOUNDS };
        let exceeded = run(bounds, || std::thread::sleep(Duration::from_hours(1)));
        assert_eq!(exceeded, Err(Exceeded::Time(bounds.time)));
        assert!(exceeded.is_err_and(|exceeded| exceeded.to_string().contains("50ms")));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_that_takes_too_much_memory_is_left() {
        let bounds = Bounds { memory: 64 << 20, ..BOUNDS };
        let exceeded = run(bounds, || {
            let taken: Vec<u8> = (0..200 << 20).map(|index| index as u8).collect();
            std::thread::sleep(Duration::from_secs(2));
            taken.len()
        });
        assert_eq!(exceeded, Err(Exceeded::Memory(bounds.memory)));
    }
}

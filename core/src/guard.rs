//! Runs work that untrusted files cause, such as rendering a template, with limits on time and memory.
//!
//! Input: the work, and [`Bounds`]. Output: its result, or an error in words. What must hold: the caller
//! continues in time. Nothing stops the work itself: beyond its bounds, its thread runs on, and the process
//! must end. So a running server has a child process do the work first (`router/src/trial.rs`).

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The interval between checks of the bounds. A text that doubles grows by some tens of megabytes in that
/// time.
const INTERVAL: Duration = Duration::from_millis(5);
/// The name of the threads that do the work.
const THREAD: &str = "guarded";

/// The limits for some work.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Wall-clock time.
    pub time: Duration,
    /// The growth of resident memory, in bytes. It is only known on Linux.
    pub memory: u64,
    /// The stack, in bytes. A system only provides the part that is used. If this is several times `memory`,
    /// work that recurses without end exceeds `memory`, instead of ending the process by a stack overflow.
    pub stack: usize,
}

/// Runs the work on its own thread.
///
/// # Errors
///
/// Words that say what the work exceeds, that it panicked, or that the system gives no thread for it.
pub fn run<T: Send + 'static>(
    bounds: Bounds,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    silence_panics();
    let (start, before) = (Instant::now(), resident());
    let (sender, receiver) = channel();
    let thread = thread::Builder::new().name(THREAD.to_owned()).stack_size(bounds.stack);
    let started = thread.spawn(move || {
        // The caller gets a result or an error, whatever the work leaves half changed.
        let result = panic::catch_unwind(AssertUnwindSafe(work));
        // After a timeout, no receiver waits for the result.
        drop(sender.send(result.map_err(|payload| not_understood(panic_message(&*payload)))));
    });
    if started.is_err() {
        let reason =
            "the system gives no thread to read it: raise the limit of processes or of address space";
        return Err(reason.to_owned());
    }
    loop {
        match receiver.recv_timeout(INTERVAL) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err(not_understood("no message")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if start.elapsed() > bounds.time {
            return Err(format!("it takes longer than {:?}", bounds.time));
        }
        if let (Some(before), Some(now)) = (before, resident())
            && now > before + bounds.memory
        {
            return Err(format!("it takes more than {} MiB of memory", bounds.memory >> 20));
        }
    }
}

fn not_understood(message: &str) -> String {
    format!("it is not understood ({message})")
}

/// Keeps the panics of guarded work off standard error: its error has the message.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if thread::current().name() != Some(THREAD) {
                report(panic);
            }
        }));
    });
}

pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The resident memory of this process in bytes, if the system reports it.
pub fn resident() -> Option<u64> {
    listed_bytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// The bytes on the line `name` of a file such as `/proc/meminfo`, which counts in kibibytes.
pub fn listed_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_machine_is_read() {
        assert_eq!(listed_bytes("MemFree: 1 kB\nMemTotal:       2048 kB\n", "MemTotal:"), Some(2 << 20));
        assert_eq!(listed_bytes("", "MemTotal:"), None);
    }

    const BOUNDS: Bounds = Bounds { time: Duration::from_mins(1), memory: 1 << 40, stack: 8 << 20 };

    #[test]
    fn work_gives_its_result_or_panics() {
        const INDEX: &str = "index out of bounds: the len is 1 but the index is 1";
        assert_eq!(run(BOUNDS, || 7), Ok(7));
        let panicked = |message: &str| Err(format!("it is not understood ({message})"));
        assert_eq!(run(BOUNDS, || -> u8 { panic::resume_unwind(Box::new("x")) }), panicked("x"));
        assert_eq!(run(BOUNDS, || [0_u8; 1][std::hint::black_box(1)]), panicked(INDEX));
        assert_eq!(run(BOUNDS, || -> u8 { panic::resume_unwind(Box::new(7)) }), panicked("no message"));
    }

    #[test]
    fn work_without_end_is_left() {
        let bounds = Bounds { time: Duration::from_millis(50), ..BOUNDS };
        let exceeded = run(bounds, || thread::sleep(Duration::from_hours(1)));
        assert_eq!(exceeded, Err("it takes longer than 50ms".to_owned()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_that_takes_too_much_memory_is_left() {
        let bounds = Bounds { memory: 64 << 20, ..BOUNDS };
        let exceeded = run(bounds, || {
            let taken: Vec<u8> = (0..200 << 20).map(|index| index as u8).collect();
            thread::sleep(Duration::from_secs(2));
            taken.len()
        });
        assert_eq!(exceeded, Err("it takes more than 64 MiB of memory".into()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_that_recurses_deeply_is_left() {
        /// Takes a page of the stack for each level.
        fn recurse(depth: usize) -> usize {
            let page = std::hint::black_box([depth; 512]);
            if depth == 0 {
                thread::sleep(Duration::from_hours(1));
                return 0;
            }
            recurse(depth - 1) + page[0]
        }
        let bounds = Bounds { memory: 64 << 20, stack: 1 << 30, ..BOUNDS };
        assert_eq!(run(bounds, || recurse(100_000)), Err("it takes more than 64 MiB of memory".into()));
    }
}

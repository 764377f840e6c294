//! The worker's process: starts it, ends it, and puts what it prints into the log.
//!
//! Input: the interpreter and the program. Output: a socket to the process, which is its file descriptor 0. What must hold:
//! the process and those that it started are killed when [`Process`] is dropped; they end with this process, however that
//! ends; what they print is cut to lines of some length and to some lines in a second.

use crate::log::{self, Recent};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The program that the worker runs. It arrives through the socket.
const PROGRAM: &str = include_str!("worker.py");
/// Reads the program. A folder named after a package, where the router was started, must not be taken for the package; it
/// is what the first entry of `sys.path` would find.
const BOOTSTRAP: &str = "import sys; sys.path[:1] == [''] and sys.path.pop(0); \
    exec(compile(open(0, 'rb', closefd=False).read(int(sys.argv[1])), 'worker.py', 'exec'))";
/// How long a killed process is waited for. One that the kernel does not let go of yet is left to a thread.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// How long a worker that has closed its socket may take to end, and the thread that reads what it prints to read it.
const END_WAIT: Duration = Duration::from_secs(1);
/// Variables that hold keys of the router, which a model's code need not see.
const SECRETS: [&str; 6] =
    ["API_KEY", "HF_TOKEN", "HF_API_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "OTLP_ENDPOINT"];
/// What the worker's libraries are told.
const VARIABLES: [(&str, &str); 5] = [
    ("HF_HUB_OFFLINE", "1"),
    ("TRANSFORMERS_OFFLINE", "1"),
    ("HF_HUB_DISABLE_TELEMETRY", "1"),
    ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
    ("TOKENIZERS_PARALLELISM", "false"),
];

/// A running worker process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Option<Child>,
    /// The thread that reads what it prints, which ends with it.
    log: JoinHandle<()>,
    recent: Recent,
}

impl Process {
    /// Starts the interpreter and sends it the program. Gives the socket too.
    ///
    /// # Errors
    ///
    /// If the interpreter cannot be started, or the system gives no socket or thread.
    pub(crate) fn start(python: &Path) -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (output, input) = io::pipe()?;
        let mut command = Command::new(python);
        command
            .args(["-u", "-c", BOOTSTRAP])
            .arg(PROGRAM.len().to_string())
            .stdin(OwnedFd::from(theirs))
            .stdout(input.try_clone()?)
            .stderr(Stdio::from(input))
            .envs(VARIABLES)
            // Ctrl-C in a terminal is for the router, which lets requests end.
            .process_group(0);
        for name in SECRETS {
            command.env_remove(name);
        }
        let recent = Recent::default();
        let (sender, started) = mpsc::channel();
        let kept = recent.clone();
        // The worker asks to be killed when the thread that started it ends, so that thread lives as long as the worker.
        let log = thread::Builder::new().name("python-log".to_owned()).spawn(move || {
            let child = command.spawn();
            // The pipe ends when the worker's copies are closed; here is another.
            drop(command);
            if sender.send(child).is_ok() {
                log::copy(output, &kept);
            }
        })?;
        let child = started.recv().map_err(io::Error::other)??;
        let process = Self { child: Some(child), log, recent };
        (&ours).write_all(PROGRAM.as_bytes())?;
        Ok((process, ours))
    }

    /// How the process ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(status.to_string())
    }

    /// How the process ended, after a moment that it may take to do so, and what it printed last.
    pub(crate) fn end(&mut self) -> String {
        let start = Instant::now();
        let mut status = self.ended();
        while (status.is_none() || !self.log.is_finished()) && start.elapsed() < END_WAIT {
            thread::sleep(Duration::from_millis(5));
            status = self.ended();
        }
        let status = status.unwrap_or_else(|| "it still runs".to_owned());
        match self.recent.text() {
            text if text.is_empty() => status,
            text => format!("{status}; it printed last: {text}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // Not waited for yet, so that its number belongs to no other process.
        if matches!(child.try_wait(), Ok(None))
            && let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let start = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if start.elapsed() > KILL_WAIT {
                tracing::warn!("the Python worker (process {}) was killed and has not ended yet", child.id());
                // Without a thread it stays a zombie until the router ends.
                let _ = thread::Builder::new().name("python-wait".to_owned()).spawn(move || child.wait());
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

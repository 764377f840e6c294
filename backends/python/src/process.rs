//! The worker's process: starts it, ends it, and logs its output.
//!
//! Input: the interpreter and the program. Output: the process, and a socket to it, which is its file
//! descriptor 0. What must hold: dropping [`Process`] kills the process and all processes that it started;
//! they also end when this process ends, however it ends; the logged output is limited in the length of a
//! line and in lines per second.

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

/// The worker's program. It arrives through the socket.
const PROGRAM: &str = include_str!("worker.py");
/// Reads and runs the program. It first removes the working folder from `sys.path`: a folder that has a
/// package's name, in the place where the router was started, must not be imported instead of the package.
const BOOTSTRAP: &str = "import sys; sys.path[:1] == [''] and sys.path.pop(0); \
    exec(compile(open(0, 'rb', closefd=False).read(int(sys.argv[1])), 'worker.py', 'exec'))";
/// How long the router waits for a killed process. If the kernel takes longer, a thread waits.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// How long a worker that has closed its socket may take to end. The thread that reads its output has the
/// same time.
const END_WAIT: Duration = Duration::from_secs(1);
/// Variables with secrets of the router. A model's code need not see them.
const SECRETS: [&str; 6] =
    ["API_KEY", "HF_TOKEN", "HF_API_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "OTLP_ENDPOINT"];
/// Variables that configure the worker's libraries.
const VARIABLES: [(&str, &str); 5] = [
    ("HF_HUB_OFFLINE", "1"),
    ("TRANSFORMERS_OFFLINE", "1"),
    ("HF_HUB_DISABLE_TELEMETRY", "1"),
    ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
    ("TOKENIZERS_PARALLELISM", "false"),
];

#[derive(Debug)]
pub(crate) struct Process {
    child: Option<Child>,
    /// The thread that reads the worker's output. It ends with the worker.
    log: JoinHandle<()>,
    recent: Recent,
}

impl Process {
    /// Starts the interpreter and sends it the program. Also returns the socket.
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
            // Ctrl-C in a terminal must reach only the router, which lets running requests finish.
            .process_group(0);
        for name in SECRETS {
            command.env_remove(name);
        }
        let recent = Recent::default();
        let (sender, started) = mpsc::channel();
        let kept = recent.clone();
        // The worker asks the kernel to kill it when the thread that started it ends. So this thread must
        // live as long as the worker.
        let log = thread::Builder::new().name("python-log".to_owned()).spawn(move || {
            let child = command.spawn();
            // The pipe only ends when all copies of its input are closed. `command` holds one.
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

    /// The exit status of the process, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(status.to_string())
    }

    /// The exit status of the process and its last output. Waits a moment for the process to end.
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
            text => format!("{status}; its last output: {text}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // `try_wait` has not reaped it, so its process id cannot belong to another process.
        if matches!(child.try_wait(), Ok(None))
            && let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let start = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if start.elapsed() > KILL_WAIT {
                tracing::warn!("the Python worker (process {}) was killed and has not ended yet", child.id());
                // If no thread can be started, the process stays a zombie until the router ends.
                let _ = thread::Builder::new().name("python-wait".to_owned()).spawn(move || child.wait());
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

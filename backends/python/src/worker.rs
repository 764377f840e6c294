//! The conversation with one worker: it loads the model, then computes one batch after the other.
//!
//! Input: the settings, then groups of texts as matrices. Output: their values. What must hold: every wait
//! has a time limit; an answer that does not fit its request makes the worker unusable, and the worker is
//! killed.

use crate::{
    WorkerLimits, WorkerSettings, WorkerTask,
    frame::{self, EncodedTexts, Facts, FrameError, Load, Reply, Request, VERSION},
    process::Process,
};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::amount;
use text_embeddings_backend_host::Padded;

/// A worker that has loaded the model.
#[derive(Debug)]
pub(crate) struct Worker {
    // Declared first, so that it is dropped first: a worker whose socket closes ends on its own if it can.
    link: UnixStream,
    process: Process,
    facts: Facts,
    batches: u64,
}

/// The reason why a batch has no values.
#[derive(Debug)]
pub(crate) enum BatchError {
    /// The device has too little memory for the batch. The worker continues.
    OutOfMemory(String),
    /// The model failed on the batch. The worker continues.
    Failed(String),
    /// The worker is unusable.
    Broken(String),
}

/// The values of a group of texts.
#[derive(Debug, PartialEq)]
pub(crate) struct GroupValues {
    /// Scores or vectors, [`Facts::width`] values for each text.
    pub(crate) whole: Vec<f32>,
    /// The vectors of tokens, [`Facts::token_width`] values for each; empty if they are not wanted.
    pub(crate) tokens: Vec<f32>,
}

impl Worker {
    /// Starts a worker and waits until it has loaded the model.
    pub(crate) fn start(settings: &WorkerSettings, limits: WorkerLimits) -> Result<Self, String> {
        let python = &settings.python;
        let (mut process, link) = Process::start(python).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!(
                "the Python interpreter `{}` was not found: name the one that has sentence-transformers by `--python`",
                python.display()
            ),
            _ => format!("the Python interpreter `{}` did not start: {error}", python.display()),
        })?;
        let mut conversation = Conversation { link: &link, process: &mut process };
        let hello = conversation.receive(limits.hello, "start").map_err(|reason| {
            format!("{reason}; `--python` must name an interpreter that has sentence-transformers")
        })?;
        match hello {
            Reply::Hello { version: VERSION, python } => {
                tracing::info!("The worker runs Python {}", frame::told(&python));
            }
            Reply::Hello { version, .. } => {
                return Err(format!(
                    "the worker speaks version {version} of the protocol, the router version {VERSION}"
                ));
            }
            other => return Err(format!("the worker began with {other:?}")),
        }
        let root = std::path::absolute(&settings.folder).map_err(|error| error.to_string())?;
        let load = Load {
            model: root.to_str().ok_or("the path of the model's folder is not UTF-8")?,
            task: settings.task.as_str(),
            dtype: settings.numbers.computed.to_string(),
            threads: settings.threads,
            trust_remote_code: settings.trust_remote_code,
            pooling: settings.pooling,
            probes: settings.probes.iter().map(EncodedTexts::from).collect(),
        };
        let until = Instant::now() + limits.load;
        frame::write(&mut Timed { link: &link, until: Some(until) }, &Request::Load(load), &[])
            .map_err(|error| conversation.explain(&error))?;
        match conversation.receive(limits.load, "load the model")? {
            Reply::Loaded(facts) => {
                check(&facts, settings)?;
                Ok(Self { link, process, facts, batches: 0 })
            }
            Reply::Refused { reason } => Err(frame::told(&reason)),
            other => Err(format!("the worker answered the order to load with {other:?}")),
        }
    }

    /// The facts that the worker reported about the model.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How the process ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.process.ended().is_some().then(|| self.process.end())
    }

    pub(crate) fn compute(
        &mut self,
        group: &Padded,
        tokens: bool,
        until: Option<Instant>,
    ) -> Result<GroupValues, BatchError> {
        self.batches += 1;
        let (batch, texts, width) = (self.batches, group.texts.len(), group.width);
        let request = Request::Batch { batch, texts, width, tokens };
        let cells = group.ids.iter().chain(&group.mask).chain(&group.types);
        let payload: Vec<u32> = cells.map(|&cell| cell as u32).collect();
        let count = group.lengths.iter().sum();
        let mut link = Timed { link: &self.link, until };
        let answer = frame::write(&mut link, &request, &payload)
            .and_then(|()| answer(&mut link, &self.facts, batch, texts, if tokens { count } else { 0 }));
        match answer {
            Ok(Ok(values)) => Ok(values),
            Ok(Err(error)) => Err(error),
            Err(FrameError::Late) => Err(BatchError::Broken(
                "the Python worker did not finish the batch in time and was killed".to_owned(),
            )),
            Err(FrameError::Ended) => Err(BatchError::Broken(format!(
                "the Python worker ended while it computed the batch: {}",
                self.process.end()
            ))),
            Err(error) => Err(BatchError::Broken(format!("{error}; it was killed"))),
        }
    }
}

/// Reads the answer to a batch: its values, or the reason why the model failed. `tokens` is the number of
/// wanted token vectors.
///
/// # Errors
///
/// [`FrameError`] if the frame is not an answer, or not an answer to this batch.
pub(crate) fn answer(
    from: &mut impl Read,
    facts: &Facts,
    batch: u64,
    texts: usize,
    tokens: usize,
) -> Result<Result<GroupValues, BatchError>, FrameError> {
    let expected = [[texts, facts.width], if tokens == 0 { [0, 0] } else { [tokens, facts.token_width] }];
    let [whole_values, token_values] = expected.map(|[rows, columns]| rows.saturating_mul(columns));
    let (reply, mut values) = frame::read(from, whole_values.saturating_add(token_values))?;
    match reply {
        Reply::Failed { batch: number, reason, out_of_memory } if number == batch => {
            let failed = if out_of_memory { BatchError::OutOfMemory } else { BatchError::Failed };
            Ok(Err(failed(frame::told(&reason))))
        }
        Reply::Values { batch: number, whole, tokens } if number == batch => {
            let got = values.len();
            if [whole, tokens] != expected || got != whole_values + token_values {
                return Err(FrameError::Wrong(format!(
                    "{got} values of the shapes {whole:?} and {tokens:?}, not of the expected shapes {:?} and {:?}",
                    expected[0], expected[1]
                )));
            }
            let tokens = values.split_off(whole_values);
            Ok(Ok(GroupValues { whole: values, tokens }))
        }
        other => Err(FrameError::Wrong(format!("an answer that is not to batch {batch}: {other:?}"))),
    }
}

fn check(facts: &Facts, settings: &WorkerSettings) -> Result<(), String> {
    if !["cpu", "cuda"].contains(&facts.device.as_str())
        || facts.dtype != settings.numbers.computed.to_string()
    {
        return Err(format!(
            "the worker computes in {} on {}, which was not requested",
            facts.dtype, facts.device
        ));
    }
    if facts.width == 0 || facts.width.max(facts.token_width) > crate::MAX_VALUES {
        return Err(format!(
            "the model gives {} for a text and {} for a token",
            amount(facts.width, "value"),
            facts.token_width
        ));
    }
    match settings.task {
        WorkerTask::Scores(labels) if labels != facts.width => {
            let (scores, labels) = (amount(facts.width, "score"), amount(labels, "label"));
            Err(format!("the model gives {scores}, and config.json names {labels}"))
        }
        _ => Ok(()),
    }
}

/// The conversation with a worker that has not loaded the model yet.
struct Conversation<'a> {
    link: &'a UnixStream,
    process: &'a mut Process,
}

impl Conversation<'_> {
    /// Waits for a message. While it waits, it says so in the log.
    fn receive(&mut self, limit: Duration, what: &str) -> Result<Reply, String> {
        let start = Instant::now();
        let mut waited = Waited { link: self.link, start, limit, said: start, what };
        let received = frame::read(&mut waited, 0);
        match received {
            Ok((reply, _)) => Ok(reply),
            Err(FrameError::Late) => {
                Err(format!("the worker did not {what} within {} s", limit.as_secs_f32()))
            }
            Err(error) => Err(self.explain(&error)),
        }
    }

    fn explain(&mut self, error: &FrameError) -> String {
        format!("{error} ({})", self.process.end())
    }
}

/// A socket with a common deadline for all reads and writes.
struct Timed<'a> {
    link: &'a UnixStream,
    until: Option<Instant>,
}

impl Timed<'_> {
    /// The time left; `None` without a limit.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        // A socket takes a timeout of zero for no timeout.
        if left.is_some_and(|left| left.is_zero()) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.link.set_read_timeout(self.left()?)?;
        (&*self.link).read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.link.set_write_timeout(self.left()?)?;
        (&*self.link).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket while a worker starts. Its reads log at intervals that the router is waiting.
struct Waited<'a> {
    link: &'a UnixStream,
    start: Instant,
    limit: Duration,
    said: Instant,
    what: &'a str,
}

/// The interval of log messages about a worker that is starting.
const MENTION: Duration = Duration::from_secs(30);

impl Read for Waited<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.limit.saturating_sub(self.start.elapsed());
            let mut timed = Timed { link: self.link, until: Some(Instant::now() + left.min(MENTION)) };
            match timed.read(buffer) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
                        && self.start.elapsed() < self.limit => {}
                done => return done,
            }
            if self.said.elapsed() >= MENTION {
                self.said = Instant::now();
                tracing::info!(
                    "the worker has been trying to {} for {} s",
                    self.what,
                    self.start.elapsed().as_secs()
                );
            }
        }
    }
}

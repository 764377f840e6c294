//! The threads that encode, so that long texts do not block the server's other work.
//!
//! Input: jobs, each with the place of its request. Output: the jobs send their results themselves. What must
//! hold: jobs run in the order in which texts are computed, so that a small request need not wait until a
//! large one is encoded, of whatever model; long texts leave a thread to the others; a panic in a job does
//! not end its thread, and drops everything that the job holds, so that the waiting side learns that no
//! answer will come; the threads end with the last [`Tokenization`] on them, after the jobs that were
//! accepted. When another one goes, new threads take over, because the library of tokenizers keeps the words
//! of each tokenizer until their thread ends.

use super::Encoder;
use crate::{error::Error, queue::PATIENCE};
use std::{
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

type Job = Box<dyn FnOnce() + Send>;

/// A job of more bytes takes up to seconds. All threads but one may have such jobs at a time.
const LONG: usize = 64 << 10;

/// A model's encoder, and the threads that encode.
pub struct Tokenization {
    encoder: Arc<Encoder>,
    threads: Arc<TokenizerThreads>,
}

/// The threads that encode for any number of models.
#[derive(Default)]
pub struct TokenizerThreads {
    line: Arc<Line>,
}

/// A request's place in the order of waiting jobs. The rule is the one of `queue.rs`, with bytes
/// instead of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Smaller requests go first until this many bytes have been taken.
    due: u64,
    /// The number of requests that arrived earlier.
    number: u64,
}

#[derive(Default)]
struct Line {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// The jobs by the place of their request. Every place has a job.
    waiting: BTreeMap<Place, VecDeque<SizedJob>>,
    /// The number of requests that ever arrived.
    arrivals: u64,
    /// The total bytes of all jobs ever taken.
    taken: u64,
    /// The number of encoders that have gone.
    departures: u64,
    workers: usize,
    /// The number of threads that have a [`LONG`] job.
    long: usize,
    closed: bool,
}

/// The next step of a thread.
enum WorkerStep {
    Run(SizedJob),
    /// An encoder has gone: a new thread takes over.
    BeginAnew,
    End,
}

struct SizedJob {
    bytes: usize,
    job: Job,
}

impl TokenizerThreads {
    /// Starts `workers` threads, at least one. The server's permits bound the number of waiting jobs.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if the system refuses a thread.
    pub fn start_threads(workers: usize) -> Result<Self, Error> {
        // On failure, dropping this ends the threads that did start.
        let threads = Self::default();
        threads.line.lock().workers = workers.max(1);
        for index in 0..workers.max(1) {
            let started = start_thread(Arc::clone(&threads.line), index);
            started.map_err(|error| Error::Tokenizer(format!("cannot start a tokenizer thread: {error}")))?;
        }
        Ok(threads)
    }
}

impl Tokenization {
    /// An encoder with threads of its own.
    ///
    /// # Errors
    ///
    /// As [`TokenizerThreads::start_threads`].
    pub fn start(encoder: impl Into<Encoder>, workers: usize) -> Result<Self, Error> {
        Ok(Self::on_threads(encoder, Arc::new(TokenizerThreads::start_threads(workers)?)))
    }

    /// An encoder with threads that other encoders may use as well.
    pub fn on_threads(encoder: impl Into<Encoder>, threads: Arc<TokenizerThreads>) -> Self {
        Self { encoder: Arc::new(encoder.into()), threads }
    }

    /// The place of a request that arrives now with `bytes` bytes to encode.
    pub fn place(&self, bytes: usize) -> Place {
        let mut jobs = self.threads.line.lock();
        jobs.arrivals += 1;
        Place { due: jobs.taken + PATIENCE * bytes as u64, number: jobs.arrivals }
    }

    /// Runs `job`, which encodes `bytes` bytes, on a worker, after the earlier jobs of its request.
    pub fn run(&self, place: Place, bytes: usize, job: impl FnOnce(&Encoder) + Send + 'static) {
        let encoder = Arc::clone(&self.encoder);
        let job = SizedJob { bytes, job: Box::new(move || job(&encoder)) };
        let line = &self.threads.line;
        line.lock().waiting.entry(place).or_default().push_back(job);
        line.changed.notify_one();
    }

    /// The model's encoder.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }
}

impl Drop for Tokenization {
    fn drop(&mut self) {
        self.threads.line.lock().departures += 1;
        self.threads.line.changed.notify_all();
    }
}

impl Drop for TokenizerThreads {
    fn drop(&mut self) {
        self.line.lock().closed = true;
        self.line.changed.notify_all();
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        // No code under the lock can leave the jobs half changed.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job, for a thread that began after `departures`.
    fn wait_for_step(&self, departures: u64) -> WorkerStep {
        let mut jobs = self.lock();
        loop {
            if jobs.departures != departures && !jobs.closed {
                return WorkerStep::BeginAnew;
            }
            if let Some(job) = jobs.pop() {
                return WorkerStep::Run(job);
            }
            if jobs.closed {
                return WorkerStep::End;
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Jobs {
    fn pop(&mut self) -> Option<SizedJob> {
        let takes_long = self.long + 1 < self.workers || self.workers == 1;
        let (place, _) = self
            .waiting
            .iter()
            .find(|(_, jobs)| jobs.front().is_some_and(|job| takes_long || !job.is_long()))?;
        let place = *place;
        let jobs = self.waiting.get_mut(&place)?;
        let next = jobs.pop_front()?;
        if jobs.is_empty() {
            self.waiting.remove(&place);
        }
        self.taken += next.bytes as u64;
        self.long += usize::from(next.is_long());
        Some(next)
    }
}

impl SizedJob {
    fn is_long(&self) -> bool {
        self.bytes > LONG
    }
}

fn start_thread(line: Arc<Line>, index: usize) -> std::io::Result<()> {
    let thread = thread::Builder::new().name(format!("tokenizer-{index}"));
    thread.spawn(move || run_jobs(&line, index)).map(drop)
}

fn run_jobs(line: &Arc<Line>, index: usize) {
    let mut departures = line.lock().departures;
    loop {
        match line.wait_for_step(departures) {
            WorkerStep::Run(next) => {
                let was_long = next.is_long();
                // Encoders are immutable, so a panic cannot leave one half changed.
                if catch_unwind(AssertUnwindSafe(next.job)).is_err() {
                    tracing::error!("a tokenizer job panicked; its request gets an error");
                }
                if was_long {
                    line.lock().long -= 1;
                    line.changed.notify_one();
                }
            }
            // If the system refuses a thread, this one goes on.
            WorkerStep::BeginAnew if start_thread(Arc::clone(line), index).is_err() => {
                departures = line.lock().departures;
            }
            WorkerStep::BeginAnew | WorkerStep::End => return,
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::test_tokenizer::small_encoder;
    use std::{
        sync::mpsc::{self, RecvTimeoutError},
        time::{Duration, Instant},
    };

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A job as a request of its own.
    fn run(tokenization: &Tokenization, job: impl FnOnce(&Encoder) + Send + 'static) {
        tokenization.run(tokenization.place(1), 1, job);
    }

    #[test]
    fn a_small_request_comes_before_the_rest_of_a_large_one_but_not_for_ever() {
        let mut jobs = Jobs { workers: 1, ..Jobs::default() };
        let (reply, taken) = mpsc::channel();
        let push = |jobs: &mut Jobs, name: &'static str, all: u64, bytes: &[usize]| {
            jobs.arrivals += 1;
            let place = Place { due: jobs.taken + PATIENCE * all, number: jobs.arrivals };
            for &bytes in bytes {
                let reply = reply.clone();
                let job: Job = Box::new(move || reply.send(name).unwrap());
                jobs.waiting.entry(place).or_default().push_back(SizedJob { bytes, job });
            }
        };
        push(&mut jobs, "large", 300, &[100; 3]);
        (jobs.pop().unwrap().job)();
        push(&mut jobs, "small", 10, &[10]);
        push(&mut jobs, "equal", 300, &[100; 3]);
        for _ in 0..2 {
            (jobs.pop().unwrap().job)();
        }
        // The large request has waited while enough other bytes were taken.
        jobs.taken += PATIENCE * 300;
        push(&mut jobs, "late", 1, &[1]);
        while let Some(next) = jobs.pop() {
            (next.job)();
        }
        let order: Vec<_> = taken.try_iter().collect();
        assert_eq!(order, ["large", "small", "large", "large", "equal", "equal", "equal", "late"]);
        assert!(jobs.waiting.is_empty());
    }

    #[test]
    fn jobs_run_on_named_threads_with_the_encoder() {
        let tokenization = Tokenization::start(small_encoder(1000), 2).unwrap();
        let (reply, answer) = mpsc::channel();
        run(&tokenization, move |encoder| {
            let yes = encoder.tokenizer().token_to_id("yes");
            reply.send((thread::current().name().unwrap().to_owned(), yes)).unwrap();
        });
        let (name, yes) = answer.recv_timeout(TIMEOUT).unwrap();
        assert!(name.starts_with("tokenizer-"), "{name}");
        assert_eq!(yes, tokenization.encoder().tokenizer().token_to_id("yes"));
    }

    #[test]
    fn workers_run_jobs_at_the_same_time() {
        let tokenization = Tokenization::start(small_encoder(1000), 2).unwrap();
        let meeting = Arc::new(std::sync::Barrier::new(3));
        for _ in 0..2 {
            let meeting = Arc::clone(&meeting);
            run(&tokenization, move |_| _ = meeting.wait());
        }
        meeting.wait();
    }

    #[test]
    fn long_jobs_leave_a_thread_to_short_ones() {
        let tokenization = Tokenization::start(small_encoder(1000), 2).unwrap();
        let (begun, gate) = (Arc::new(std::sync::Barrier::new(2)), Arc::new(std::sync::Barrier::new(2)));
        for _ in 0..2 {
            let (begun, gate) = (Arc::clone(&begun), Arc::clone(&gate));
            tokenization.run(tokenization.place(1), LONG + 1, move |_| {
                begun.wait();
                gate.wait();
            });
        }
        begun.wait();
        let (reply, answer) = mpsc::channel();
        tokenization.run(tokenization.place(LONG), LONG, move |_| reply.send(()).unwrap());
        assert_eq!(answer.recv_timeout(TIMEOUT), Ok(()), "the second long job has the other thread");
        // The second one begins when the first one has ended.
        gate.wait();
        begun.wait();
        gate.wait();
    }

    #[test]
    fn a_job_that_panics_drops_its_reply_and_leaves_the_worker_alive() {
        let tokenization = Tokenization::start(small_encoder(1000), 0).unwrap();
        for _ in 0..3 {
            let (reply, answer) = mpsc::channel::<()>();
            let panics = move |_: &Encoder| {
                let _reply = reply;
                panic!("as the test wants");
            };
            run(&tokenization, panics);
            assert_eq!(answer.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Disconnected));
        }
        let (reply, answer) = mpsc::channel();
        run(&tokenization, move |_| reply.send(()).unwrap());
        assert_eq!(answer.recv_timeout(TIMEOUT), Ok(()));
    }

    #[test]
    fn encoders_on_the_same_threads_keep_apart_and_the_threads_outlive_the_first_of_them() {
        let threads = Arc::new(TokenizerThreads::start_threads(1).unwrap());
        let encoders =
            [100, 1000].map(|size| Tokenization::on_threads(small_encoder(size), Arc::clone(&threads)));
        let ended = Arc::downgrade(&threads);
        drop(threads);
        for encoder in encoders {
            let (reply, answer) = mpsc::channel();
            let size = encoder.encoder().tokenizer().get_vocab_size(true);
            run(&encoder, move |encoder| reply.send(encoder.tokenizer().get_vocab_size(true)).unwrap());
            assert_eq!(answer.recv_timeout(TIMEOUT), Ok(size));
        }
        assert!(ended.upgrade().is_none());
    }

    #[test]
    fn new_threads_take_over_when_an_encoder_has_gone() {
        let threads = Arc::new(TokenizerThreads::start_threads(1).unwrap());
        let [first, second] =
            [100, 1000].map(|size| Tokenization::on_threads(small_encoder(size), Arc::clone(&threads)));
        let thread_of_job = || {
            let (reply, answer) = mpsc::channel();
            run(&second, move |_| reply.send(thread::current().id()).unwrap());
            answer.recv_timeout(TIMEOUT).unwrap()
        };
        let before = thread_of_job();
        assert_eq!(thread_of_job(), before);
        drop(first);
        assert_ne!(thread_of_job(), before);
    }

    #[test]
    fn the_threads_finish_their_jobs_and_end_with_the_pool() {
        let tokenization = Tokenization::start(small_encoder(1000), 3).unwrap();
        let encoder = Arc::downgrade(&tokenization.encoder);
        let (reply, answers) = mpsc::channel();
        for index in 0..50 {
            let reply = reply.clone();
            run(&tokenization, move |_| reply.send(index).unwrap());
        }
        drop((tokenization, reply));
        let mut all: Vec<i32> = answers.iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
        let start = Instant::now();
        while encoder.upgrade().is_some() {
            assert!(start.elapsed() < TIMEOUT, "the threads hold the encoder still");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

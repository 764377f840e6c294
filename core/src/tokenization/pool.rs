//! The threads that encode, so that long texts do not hold up the server's other work.
//!
//! Input: jobs. Output: whatever a job sends on. What must hold: a job that panics takes no thread with it, and what
//! it held is dropped, so that whoever waits for its answer learns that there is none; the threads end with the
//! [`Tokenization`], after the jobs that it took.

use super::Encoder;
use crate::error::Error;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

type Job = Box<dyn FnOnce(&Encoder) + Send>;

/// The worker threads that encode.
pub struct Tokenization {
    encoder: Arc<Encoder>,
    jobs: Sender<Job>,
}

impl Tokenization {
    /// Starts `workers` threads, at least one. The number of jobs that wait is bounded by the server's permits.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if the system gives no thread.
    pub fn start(encoder: impl Into<Encoder>, workers: usize) -> Result<Self, Error> {
        let encoder = Arc::new(encoder.into());
        let (jobs, waiting) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for index in 0..workers.max(1) {
            let (encoder, waiting) = (Arc::clone(&encoder), Arc::clone(&waiting));
            let thread = thread::Builder::new().name(format!("tokenizer-{index}"));
            let started = thread.spawn(move || run_jobs(&encoder, &waiting));
            started.map_err(|error| Error::Tokenizer(format!("cannot start a tokenizer thread: {error}")))?;
        }
        Ok(Self { encoder, jobs })
    }

    /// Runs `job` on a worker, after the jobs that came before it.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] if there are no workers any more.
    pub fn run(&self, job: impl FnOnce(&Encoder) + Send + 'static) -> Result<(), Error> {
        let sent = self.jobs.send(Box::new(job));
        sent.map_err(|_| Error::Tokenizer("the tokenizer threads have ended".to_owned()))
    }

    /// What the workers encode with.
    #[must_use]
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }
}

fn run_jobs(encoder: &Encoder, waiting: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is free again before the job runs.
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        // The encoder cannot be left half-changed: nothing changes it.
        if catch_unwind(AssertUnwindSafe(|| job(encoder))).is_err() {
            tracing::error!("a tokenizer job panicked; its request gets an error");
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::test_tokenizer::small_encoder;
    use std::{
        sync::mpsc::RecvTimeoutError,
        time::{Duration, Instant},
    };

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn jobs_run_on_named_threads_with_the_encoder() {
        let tokenization = Tokenization::start(small_encoder(1000), 2).unwrap();
        let (reply, answer) = mpsc::channel();
        tokenization
            .run(move |encoder| {
                let yes = encoder.tokenizer().token_to_id("yes");
                reply.send((thread::current().name().unwrap().to_owned(), yes)).unwrap();
            })
            .unwrap();
        let (name, yes) = answer.recv_timeout(PATIENCE).unwrap();
        assert!(name.starts_with("tokenizer-"), "{name}");
        assert_eq!(yes, tokenization.encoder().tokenizer().token_to_id("yes"));
    }

    #[test]
    fn workers_run_jobs_at_the_same_time() {
        let tokenization = Tokenization::start(small_encoder(1000), 2).unwrap();
        let meeting = Arc::new(std::sync::Barrier::new(3));
        for _ in 0..2 {
            let meeting = Arc::clone(&meeting);
            tokenization.run(move |_| _ = meeting.wait()).unwrap();
        }
        meeting.wait();
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
            tokenization.run(panics).unwrap();
            assert_eq!(answer.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
        }
        let (reply, answer) = mpsc::channel();
        tokenization.run(move |_| reply.send(()).unwrap()).unwrap();
        assert_eq!(answer.recv_timeout(PATIENCE), Ok(()));
    }

    #[test]
    fn the_threads_finish_their_jobs_and_end_with_the_pool() {
        let tokenization = Tokenization::start(small_encoder(1000), 3).unwrap();
        let encoder = Arc::downgrade(&tokenization.encoder);
        let (reply, answers) = mpsc::channel();
        for index in 0..50 {
            let reply = reply.clone();
            tokenization.run(move |_| reply.send(index).unwrap()).unwrap();
        }
        drop((tokenization, reply));
        let mut all: Vec<i32> = answers.iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
        let start = Instant::now();
        while encoder.upgrade().is_some() {
            assert!(start.elapsed() < PATIENCE, "the threads hold the encoder still");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

//! Helper threads that share the work of one caller at a time.
//!
//! The caller publishes a job, takes part in it, closes it, and waits for the helpers that have begun. A
//! helper that the system has not run yet finds the job closed, and the caller does not wait for it: on a
//! busy machine it may get a CPU only milliseconds later. Helpers and callers wait awake for [`AWAKE`], then
//! they sleep.
//!
//! What must hold: a helper touches a job only while it is registered in [`Board::state`]. It can register
//! only while the job is open, and the caller keeps the job until it is closed and no helper is registered.

use std::{
    any::Any,
    hint, io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// A waiting thread that is awake offers its CPU to others after this time. The next job of a forward pass is
/// usually published earlier.
const SPIN: Duration = Duration::from_micros(20);
/// After this time a waiting thread sleeps. Waking it would cost the caller about ten microseconds, as long
/// as a small operation takes.
const AWAKE: Duration = Duration::from_millis(1);
/// Reading the clock takes longer than a look at the board.
const LOOKS_PER_CLOCK: usize = 16;

/// A bit of [`Board::state`]: helpers may register.
const OPEN: u64 = 1 << 31;
/// The bits of [`Board::state`] that count registered helpers.
const REGISTERED: u64 = OPEN - 1;
/// The number of the job is above the other bits.
const JOB: u64 = 1 << 32;

/// Helper threads, which end when this value is dropped.
pub(super) struct Team {
    helpers: usize,
    board: Arc<Board>,
}

impl Team {
    /// Starts `helpers` threads. Each calls `begin` with its index first.
    ///
    /// # Errors
    ///
    /// If the operating system refuses a thread.
    pub(super) fn start_threads(
        helpers: usize,
        begin: impl Fn(usize) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        // If a thread is refused, the earlier ones end, because this value is dropped.
        let team = Self { helpers, board: Arc::default() };
        let begin = Arc::new(begin);
        for index in 0..helpers {
            let (board, begin) = (team.board.clone(), begin.clone());
            thread::Builder::new().name(format!("compute-{}", index + 1)).spawn(move || {
                begin(index);
                board.run_jobs();
            })?;
        }
        Ok(team)
    }

    /// The number of helper threads.
    pub(super) fn helper_count(&self) -> usize {
        self.helpers
    }

    /// Calls `work` on this thread and on those helpers that begin before it returns here. If other work is
    /// in progress, it is called on this thread only.
    ///
    /// # Panics
    ///
    /// If one of the calls panics.
    pub(super) fn run_together(&self, work: &JobBody<'_>) {
        let board = &*self.board;
        if board.busy.swap(true, SeqCst) {
            return work();
        }
        let job = SharedWork { work, panic: Mutex::default() };
        board.open_job(&job);
        job.call_work();
        board.close_job();
        board.busy.store(false, SeqCst);
        if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.board.ends.store(true, SeqCst);
        self.board.wake_all(&self.board.opened);
    }
}

/// The work of one fork and join. Every thread that takes part calls it once.
type JobBody<'a> = dyn Fn() + Sync + 'a;

/// A job: work, and the first panic in it.
struct SharedWork<'a> {
    work: &'a JobBody<'a>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl SharedWork<'_> {
    /// Calls the work. Its panic is kept for the caller, who must not unwind while helpers use the job.
    fn call_work(&self) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(self.work)) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
}

/// The memory that caller and helpers share. All its atomic accesses are sequentially consistent: a thread
/// that goes to sleep and a thread that looks for sleepers must agree which of them came first.
#[derive(Default)]
struct Board {
    /// Whether a caller uses the board.
    busy: AtomicBool,
    /// The job that helpers may run. Valid while it is open or a helper is registered.
    job: AtomicPtr<SharedWork<'static>>,
    /// The number of the last job, whether it is open, and how many helpers are registered.
    state: AtomicU64,
    /// Helpers that sleep or are about to.
    sleepers: AtomicUsize,
    /// Whether the helpers must end.
    ends: AtomicBool,
    /// Held between a sleeper's last look at the board and its sleep, so that it cannot miss a wake-up.
    sleep: Mutex<()>,
    /// Wakes helpers: a job was opened, or they must end.
    opened: Condvar,
    /// Wakes the caller: the last helper has left a closed job.
    left: Condvar,
}

impl Board {
    /// Lets helpers run `job` until it is closed.
    fn open_job(&self, job: &SharedWork<'_>) {
        self.job.store(ptr::from_ref(job).cast_mut().cast(), SeqCst);
        let number = self.state.load(SeqCst) / JOB;
        self.state.store(number.wrapping_add(1).wrapping_mul(JOB) | OPEN, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            self.wake_all(&self.opened);
        }
    }

    /// Keeps helpers from registering, and waits for those that have.
    fn close_job(&self) {
        self.state.fetch_and(!OPEN, SeqCst);
        if !is_soon(|| self.is_left()) {
            self.sleep_until(&self.left, || self.is_left());
        }
    }

    /// Runs jobs until the team ends.
    fn run_jobs(&self) {
        // The number of the last job that this helper ran.
        let mut last = 0;
        loop {
            if !is_soon(|| self.has_news(last)) {
                self.sleepers.fetch_add(1, SeqCst);
                self.sleep_until(&self.opened, || self.has_news(last));
                self.sleepers.fetch_sub(1, SeqCst);
            }
            if self.ends.load(SeqCst) {
                return;
            }
            let before = self.state.load(SeqCst);
            if before & OPEN == 0 || self.state.compare_exchange(before, before + 1, SeqCst, SeqCst).is_err()
            {
                continue;
            }
            last = before / JOB;
            // SAFETY: the helper is registered, so the caller waits for it in `close_job`. Until then the
            // job stays on the caller's stack.
            unsafe { &*self.job.load(SeqCst) }.call_work();
            let before = self.state.fetch_sub(1, SeqCst);
            if before & (OPEN | REGISTERED) == 1 {
                self.wake_all(&self.left);
            }
        }
    }

    /// Whether no helper is registered.
    fn is_left(&self) -> bool {
        self.state.load(SeqCst) & REGISTERED == 0
    }

    /// Whether a helper must end, or there is a job for it that is not the last one.
    fn has_news(&self, last: u64) -> bool {
        let state = self.state.load(SeqCst);
        state & OPEN != 0 && state / JOB != last || self.ends.load(SeqCst)
    }

    /// Sleeps until `is_done`. Whoever makes that true calls [`Board::wake_all`].
    fn sleep_until(&self, changed: &Condvar, is_done: impl Fn() -> bool) {
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        while !is_done() {
            guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wake_all(&self, changed: &Condvar) {
        drop(self.sleep.lock());
        changed.notify_all();
    }
}

/// Waits for `is_done` without sleeping; gives up after [`AWAKE`].
fn is_soon(is_done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            if is_done() {
                return true;
            }
            hint::spin_loop();
        }
        let waited = start.elapsed();
        if waited >= AWAKE {
            return false;
        }
        if waited >= SPIN {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::sync::{Barrier, mpsc};

    /// Runs work in which every thread of the team takes part.
    fn meet(team: &Team) {
        let all_began = Barrier::new(team.helper_count() + 1);
        team.run_together(&|| {
            all_began.wait();
        });
    }

    #[test]
    fn nobody_waits_for_a_helper_that_has_not_begun() {
        let (release, gate) = mpsc::channel();
        let gate = Mutex::new(gate);
        let team = Team::start_threads(1, move |_| gate.lock().unwrap().recv().unwrap()).unwrap();
        for _ in 0..100 {
            let calls = AtomicUsize::new(0);
            team.run_together(&|| {
                calls.fetch_add(1, SeqCst);
            });
            assert_eq!(calls.into_inner(), 1);
        }
        release.send(()).unwrap();
        meet(&team);
    }

    #[test]
    fn the_caller_waits_for_a_helper_that_has_begun_however_long_it_takes() {
        let team = Team::start_threads(2, |_| ()).unwrap();
        let caller = thread::current().id();
        for pause in [Duration::ZERO, 3 * AWAKE] {
            let (all_began, ended) = (Barrier::new(3), AtomicUsize::new(0));
            team.run_together(&|| {
                all_began.wait();
                if thread::current().id() != caller {
                    thread::sleep(pause);
                    ended.fetch_add(1, SeqCst);
                }
            });
            assert_eq!(ended.into_inner(), 2);
        }
    }

    #[test]
    fn helpers_sleep_while_there_is_no_work_and_wake_for_it() {
        let team = Team::start_threads(3, |_| ()).unwrap();
        for _ in 0..3 {
            meet(&team);
            let start = Instant::now();
            while team.board.sleepers.load(SeqCst) < 3 {
                assert!(start.elapsed() < Duration::from_mins(1), "a helper stays awake");
                thread::yield_now();
            }
        }
    }

    #[test]
    fn work_within_work_runs_on_the_thread_that_has_it() {
        let team = Team::start_threads(2, |_| ()).unwrap();
        let (all_began, calls) = (Barrier::new(3), AtomicUsize::new(0));
        team.run_together(&|| {
            all_began.wait();
            let outer = thread::current().id();
            team.run_together(&|| {
                assert_eq!(thread::current().id(), outer);
                calls.fetch_add(1, SeqCst);
            });
        });
        assert_eq!(calls.into_inner(), 3);
    }

    #[test]
    fn a_thousand_jobs_give_each_item_once_with_any_number_of_threads() {
        for helpers in [1, 2, 7] {
            let team = Team::start_threads(helpers, |_| ()).unwrap();
            for job in 0..1000 {
                let items = Mutex::new(0..job % 7);
                let sum = AtomicUsize::new(0);
                team.run_together(&|| {
                    loop {
                        let Some(item) = items.lock().unwrap().next() else { break };
                        sum.fetch_add(1 << (4 * item), SeqCst);
                    }
                });
                assert_eq!(sum.into_inner(), (0..job % 7).map(|item| 1 << (4 * item)).sum::<usize>());
                if job % 100 == 0 {
                    // The helpers fall asleep.
                    thread::sleep(2 * AWAKE);
                }
            }
        }
    }
}

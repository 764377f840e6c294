//! Helper threads that share the work of callers.
//!
//! A caller publishes a job, takes part in it, closes it, and waits for the helpers that have begun. A helper
//! that the system has not run yet finds the job closed, and the caller does not wait for it: on a busy
//! machine it may get a CPU only milliseconds later. The work of a job may publish jobs of its own, so that
//! threads which find nothing left of the outer one help with those. Helpers and callers wait awake for
//! [`AWAKE`], then they sleep.
//!
//! What must hold: a helper touches a job only while it is registered in [`JobSlot::state`]. It can register
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

/// A bit of [`JobSlot::state`]: helpers may register.
const OPEN: u64 = 1 << 31;
/// The bits of [`JobSlot::state`] that count registered helpers.
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
    pub(super) fn start_threads(
        helpers: usize,
        begin: impl Fn(usize) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        // If a thread is refused, the earlier ones end, because this value is dropped.
        let team = Self { helpers, board: Arc::new(Board::with_slots(helpers + 2)) };
        let begin = Arc::new(begin);
        for index in 0..helpers {
            let (board, begin) = (team.board.clone(), begin.clone());
            thread::Builder::new().name(format!("compute-{}", index + 1)).spawn(move || {
                begin(index);
                board.run_jobs(index);
            })?;
        }
        Ok(team)
    }

    /// The number of helper threads.
    pub(super) fn helper_count(&self) -> usize {
        self.helpers
    }

    /// Calls `work` on this thread and on those helpers that begin before it returns here. While as many jobs
    /// as threads are in progress, and one more, it is called on this thread only.
    ///
    /// # Panics
    ///
    /// If one of the calls panics.
    pub(super) fn run_together(&self, work: &JobBody<'_>) {
        self.run_job(work, |board, slot| board.wait_until(|| slot.is_left()));
    }

    /// Like [`Team::run_together`], for work that publishes jobs of its own: while this thread waits for the
    /// others, it helps with them.
    pub(super) fn run_nested(&self, work: &JobBody<'_>) {
        self.run_job(work, |board, slot| {
            let mut known = KnownJobs::none_of(0, board.slots.len());
            loop {
                board.wait_until(|| slot.is_left() || board.has_news(&known));
                if slot.is_left() {
                    return;
                }
                board.help_callers(&mut known);
            }
        });
    }

    /// `wait` returns when no helper is registered in the slot, whose job is closed.
    fn run_job(&self, work: &JobBody<'_>, wait: impl Fn(&Board, &JobSlot)) {
        let Some(slot) = self.board.take_slot() else { return work() };
        let job = SharedWork { work, panic: Mutex::default() };
        self.board.open_job(slot, &job);
        job.call_work();
        slot.state.fetch_and(!OPEN, SeqCst);
        wait(&self.board, slot);
        slot.is_taken.store(false, SeqCst);
        if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.board.ends.store(true, SeqCst);
        self.board.wake_sleepers();
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

/// The memory that callers and helpers share. All its atomic accesses are sequentially consistent: a thread
/// that goes to sleep and a thread that looks for sleepers must agree which of them came first.
struct Board {
    slots: Box<[JobSlot]>,
    /// The number of jobs that were opened so far.
    opened: AtomicU64,
    /// Threads that sleep or are about to.
    sleepers: AtomicUsize,
    /// Whether the helpers must end.
    ends: AtomicBool,
    /// Held between a sleeper's last look at the board and its sleep, so that it cannot miss a wake-up.
    sleep: Mutex<()>,
    /// Wakes sleepers: a job was opened, the last helper has left a closed job, or the helpers must end.
    changed: Condvar,
}

/// The place of one job at a time. It has cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct JobSlot {
    /// Whether a caller uses the slot.
    is_taken: AtomicBool,
    /// The job that helpers may run. Valid while it is open or a helper is registered.
    job: AtomicPtr<SharedWork<'static>>,
    /// The number of the last job, whether it is open, and how many helpers are registered.
    state: AtomicU64,
}

impl JobSlot {
    /// Whether no helper is registered.
    fn is_left(&self) -> bool {
        self.state.load(SeqCst) & REGISTERED == 0
    }

    /// Registers a helper, and returns the job's number: if a job is open, and is not the job `last`.
    fn register_helper(&self, last: u64) -> Option<u64> {
        let before = self.state.fetch_update(SeqCst, SeqCst, |state| {
            let is_new = state & OPEN != 0 && state / JOB != last;
            is_new.then_some(state + 1)
        });
        before.ok().map(|before| before / JOB)
    }
}

/// The jobs that a thread has seen.
struct KnownJobs {
    /// The slot at which it begins to look: helpers spread over several jobs.
    first: usize,
    /// [`Board::opened`] when it looked last.
    opened: u64,
    /// For each slot, the number of the last job in which it took part.
    jobs: Box<[u64]>,
}

impl KnownJobs {
    fn none_of(first: usize, slots: usize) -> Self {
        Self { first, opened: 0, jobs: vec![0; slots].into() }
    }
}

impl Board {
    fn with_slots(slots: usize) -> Self {
        Self {
            slots: (0..slots).map(|_| JobSlot::default()).collect(),
            opened: AtomicU64::default(),
            sleepers: AtomicUsize::default(),
            ends: AtomicBool::default(),
            sleep: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    /// Takes a free slot, if there is one.
    fn take_slot(&self) -> Option<&JobSlot> {
        self.slots.iter().find(|slot| !slot.is_taken.load(SeqCst) && !slot.is_taken.swap(true, SeqCst))
    }

    /// Lets helpers run `job` until it is closed.
    fn open_job(&self, slot: &JobSlot, job: &SharedWork<'_>) {
        slot.job.store(ptr::from_ref(job).cast_mut().cast(), SeqCst);
        let number = slot.state.load(SeqCst) / JOB;
        slot.state.store(number.wrapping_add(1).wrapping_mul(JOB) | OPEN, SeqCst);
        self.opened.fetch_add(1, SeqCst);
        self.wake_sleepers();
    }

    /// Runs jobs until the team ends.
    fn run_jobs(&self, index: usize) {
        let mut known = KnownJobs::none_of(index, self.slots.len());
        loop {
            self.wait_until(|| self.has_news(&known) || self.ends.load(SeqCst));
            if self.ends.load(SeqCst) {
                return;
            }
            self.help_callers(&mut known);
        }
    }

    /// Whether a job was opened since a thread looked last.
    fn has_news(&self, known: &KnownJobs) -> bool {
        self.opened.load(SeqCst) != known.opened
    }

    /// Takes part in each open job that is new to this thread.
    fn help_callers(&self, known: &mut KnownJobs) {
        // Before the slots are read: a job that is opened later counts as news, even if its slot was already
        // looked at.
        known.opened = self.opened.load(SeqCst);
        let count = self.slots.len();
        for index in (known.first..known.first + count).map(|index| index % count) {
            let slot = &self.slots[index];
            let Some(number) = slot.register_helper(known.jobs[index]) else { continue };
            known.jobs[index] = number;
            // SAFETY: the helper is registered, so the caller waits for it in `Team::run_job`. Until then the
            // job stays on the caller's stack.
            unsafe { &*slot.job.load(SeqCst) }.call_work();
            let before = slot.state.fetch_sub(1, SeqCst);
            if before & (OPEN | REGISTERED) == 1 {
                self.wake_sleepers();
            }
        }
    }

    /// Waits for `is_done`, awake at first. Whoever makes that true calls [`Board::wake_sleepers`].
    fn wait_until(&self, is_done: impl Fn() -> bool) {
        if is_soon(&is_done) {
            return;
        }
        self.sleepers.fetch_add(1, SeqCst);
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        while !is_done() {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            drop(self.sleep.lock());
            self.changed.notify_all();
        }
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
    use std::{
        ops::Range,
        sync::{Barrier, mpsc},
    };

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
    fn threads_without_work_of_their_own_help_within_the_work_of_others() {
        let team = Team::start_threads(2, |_| ()).unwrap();
        let caller = thread::current().id();
        for pause in [Duration::ZERO, 3 * AWAKE] {
            for caller_is_late in [false, true] {
                let (all_began, late) = (Barrier::new(3), AtomicUsize::new(0));
                team.run_nested(&|| {
                    all_began.wait();
                    let is_caller = thread::current().id() == caller;
                    if is_caller == caller_is_late && late.fetch_add(1, SeqCst) == 0 {
                        // The others sleep by then, or not.
                        thread::sleep(pause);
                        meet(&team);
                    }
                });
                assert!(late.into_inner() > 0);
            }
        }
    }

    #[test]
    fn work_runs_on_its_thread_alone_if_there_are_too_many_jobs() {
        let team = Team::start_threads(0, |_| ()).unwrap();
        let calls = AtomicUsize::new(0);
        let count = || calls.fetch_add(1, SeqCst);
        team.run_together(&|| {
            count();
            team.run_together(&|| {
                count();
                assert!(team.board.take_slot().is_none());
                team.run_together(&|| assert_eq!(count(), 2));
            });
        });
        assert_eq!(calls.into_inner(), 3);
        assert!(team.board.take_slot().is_some());
    }

    /// Takes each item once, on any thread that calls it.
    fn take_each(items: &Mutex<Range<usize>>, body: impl Fn(usize)) {
        loop {
            let Some(item) = items.lock().unwrap().next() else { break };
            body(item);
        }
    }

    #[test]
    fn a_thousand_jobs_and_those_within_them_give_each_item_once_with_any_number_of_threads() {
        for helpers in [1, 2, 7] {
            let team = Team::start_threads(helpers, |_| ()).unwrap();
            for job in 0..1000 {
                let count = job % 7;
                let parts = Mutex::new(0..count);
                let sum = AtomicUsize::new(0);
                team.run_nested(&|| {
                    take_each(&parts, |part| {
                        let items = Mutex::new(0..part);
                        team.run_together(&|| {
                            take_each(&items, |item| {
                                sum.fetch_add(1 << (4 * item), SeqCst);
                            });
                        });
                    });
                });
                let expected: usize = (0..count).map(|item| (count - item - 1) << (4 * item)).sum();
                assert_eq!(sum.into_inner(), expected);
                if job % 100 == 0 {
                    // The helpers fall asleep.
                    thread::sleep(2 * AWAKE);
                }
            }
        }
    }
}

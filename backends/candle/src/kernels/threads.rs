//! The compute threads of a backend. An operation with more than one item is one fork and join.
//!
//! Pinned threads have a CPU each, among those that this process may use. Free ones wait for each other
//! next to a busy process: when one sleeps because another was put aside, the system moves that one to its
//! CPU, and from then on both share it, while the other process has a CPU for itself.

use super::team::Team;
use core_affinity::CoreId;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{
    collections::HashMap,
    fmt::Display,
    fs,
    sync::{Arc, Mutex, PoisonError, Weak, mpsc},
};
use text_embeddings_backend_core::BackendError;

/// The threads of the models of a process, which compute in turn.
static SHARED: Mutex<Vec<Weak<Started>>> = Mutex::new(Vec::new());

/// A fixed number of threads that share the items of an operation: the caller's, and helpers.
#[derive(Clone)]
pub(crate) struct Threads(Arc<Started>);

/// Threads that run.
struct Started {
    team: Team,
    /// The argument of [`Threads::share_threads`].
    pins: Option<bool>,
    /// The thread that takes the caller's place if threads are pinned. The caller's own thread may not be
    /// pinned: it has other tasks, and threads that it starts would be pinned, too.
    caller: Option<ThreadPool>,
}

impl Threads {
    /// Makes `count` threads (at least one) of the caller's and new ones.
    pub(crate) fn start(count: usize) -> Result<Self, BackendError> {
        Self::start_free(count, Some(false))
    }

    /// Like [`Threads::start`], but all callers with this `count` share the new threads, which end with the
    /// last of them.
    ///
    /// `pins` asks for a CPU for each thread, or an error. Absent: if there are as many threads as CPUs, and
    /// the system can do it. With fewer threads, another process may choose the same CPUs.
    pub(crate) fn share_threads(count: usize, pins: Option<bool>) -> Result<Self, BackendError> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|started| started.strong_count() > 0);
        let mut running = shared.iter().filter_map(Weak::upgrade);
        if let Some(started) =
            running.find(|started| started.team.helper_count() + 1 == count && started.pins == pins)
        {
            return Ok(Self(started));
        }
        let threads = match pins {
            Some(true) => Self::start_pinned(count, pins)?,
            None if has_a_cpu_for_each(count) => {
                Self::start_pinned(count, pins).or_else(|_| Self::start_free(count, pins))?
            }
            Some(false) | None => Self::start_free(count, pins)?,
        };
        shared.push(Arc::downgrade(&threads.0));
        Ok(threads)
    }

    fn start_free(count: usize, pins: Option<bool>) -> Result<Self, BackendError> {
        let team = Team::start_threads(count.saturating_sub(1), |_| ())
            .map_err(|error| start_refused(count, &error))?;
        Ok(Self(Arc::new(Started { team, pins, caller: None })))
    }

    fn start_pinned(count: usize, pins: Option<bool>) -> Result<Self, BackendError> {
        let count = count.max(1);
        let unsupported = || {
            let reason = "this system cannot pin threads to CPUs: leave it out";
            BackendError::Load(format!("`--pin-threads` is not supported: {reason}"))
        };
        let cpus = core_affinity::get_core_ids().ok_or_else(unsupported)?;
        if count > cpus.len() {
            return Err(BackendError::Load(format!(
                "`--pin-threads` needs a CPU for each of {count} compute threads, but this process may use \
                 {cpus}: give `--threads {cpus}`, or leave `--pin-threads` out",
                cpus = cpus.len()
            )));
        }
        let mut cpus = one_per_core_first(cpus, |cpu| {
            let path = format!("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu.id);
            fs::read_to_string(path).ok()
        });
        let first = cpus.remove(0);
        let (sender, is_pinned) = mpsc::channel();
        let team = Team::start_threads(count - 1, move |index| {
            // The receiver is gone if a later thread was refused.
            let _ = sender.send(core_affinity::set_for_current(cpus[index]));
        })
        .map_err(|error| start_refused(count, &error))?;
        let builder = ThreadPoolBuilder::new().num_threads(1).thread_name(|_| "compute-0".to_owned());
        let caller = builder.build().map_err(|error| start_refused(count, &error))?;
        let mut all = is_pinned.iter().take(count - 1).all(|pinned| pinned);
        all &= caller.install(|| core_affinity::set_for_current(first));
        if all {
            Ok(Self(Arc::new(Started { team, pins, caller: Some(caller) })))
        } else {
            Err(unsupported())
        }
    }

    /// Whether each thread has a CPU of its own.
    pub(crate) fn are_pinned(&self) -> bool {
        self.0.caller.is_some()
    }

    /// The number of threads.
    pub(crate) fn count(&self) -> usize {
        self.0.team.helper_count() + 1
    }

    /// Runs `operation`, which calls [`Threads::for_each`]: on this thread, or on a pinned one.
    pub(crate) fn enter<R: Send>(&self, operation: impl FnOnce() -> R + Send) -> R {
        match &self.0.caller {
            Some(caller) => caller.install(operation),
            None => operation(),
        }
    }

    /// Calls `body` once with every item, from all threads. Returns when all items are done.
    pub(crate) fn for_each<T: Send>(&self, items: impl Iterator<Item = T> + Send, body: impl Fn(T) + Sync) {
        self.share_items(items, body, Team::run_together);
    }

    /// Like [`Threads::for_each`], for items whose body calls it, too. A thread that finds no item any more
    /// helps with the items of those calls.
    pub(crate) fn for_each_part<T: Send>(
        &self,
        items: impl Iterator<Item = T> + Send,
        body: impl Fn(T) + Sync,
    ) {
        self.share_items(items, body, Team::run_nested);
    }

    fn share_items<T: Send>(
        &self,
        mut items: impl Iterator<Item = T> + Send,
        body: impl Fn(T) + Sync,
        run: impl FnOnce(&Team, &(dyn Fn() + Sync)),
    ) {
        if self.0.team.helper_count() == 0 {
            items.for_each(body);
            return;
        }
        let Some(first) = items.next() else { return };
        let Some(second) = items.next() else {
            // A single item: the other threads would find nothing to do.
            body(first);
            return;
        };
        let items = Mutex::new([first, second].into_iter().chain(items));
        run(&self.0.team, &|| {
            loop {
                // A thread that panicked in `body` did not hold the lock. The caller raises its panic again.
                let item = items.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(item) = item else { break };
                body(item);
            }
        });
    }
}

/// Whether there are as many CPUs as threads, and more than one. Other systems than Linux take a CPU for a
/// wish.
fn has_a_cpu_for_each(count: usize) -> bool {
    let cpus = if cfg!(target_os = "linux") { core_affinity::get_core_ids() } else { None };
    count > 1 && cpus.is_some_and(|cpus| cpus.len() == count)
}

fn start_refused(count: usize, error: &impl Display) -> BackendError {
    BackendError::Load(format!("cannot start {count} compute threads: {error}"))
}

/// Orders `cpus` as threads get them. CPUs share a core's arithmetic units, so every core gets one thread
/// before any gets a second. `core` names a CPU's core, if it is known.
fn one_per_core_first(cpus: Vec<CoreId>, core: impl Fn(CoreId) -> Option<String>) -> Vec<CoreId> {
    let mut threads_of = HashMap::<String, usize>::new();
    let mut ranked: Vec<(usize, CoreId)> = Vec::with_capacity(cpus.len());
    for cpu in cpus {
        let earlier = core(cpu).map_or(0, |core| {
            let threads = threads_of.entry(core).or_default();
            *threads += 1;
            *threads - 1
        });
        ranked.push((earlier, cpu));
    }
    ranked.sort_by_key(|&(earlier, _)| earlier);
    ranked.into_iter().map(|(_, cpu)| cpu).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Barrier,
    };

    #[test]
    fn models_share_threads_which_end_with_the_last_of_them() {
        // A number that no other test shares.
        let share = |count| Threads::share_threads(count, Some(false)).unwrap();
        let [first, second, other] = [5, 5, 6].map(&share);
        assert!(Arc::ptr_eq(&first.0, &second.0) && !Arc::ptr_eq(&first.0, &other.0));
        assert_eq!((first.count(), other.count()), (5, 6));
        let started = Arc::downgrade(&first.0);
        drop(first);
        // Two callers at the same time get all of their items.
        std::thread::scope(|scope| {
            let again = share(5);
            for threads in [&second, &again].map(Threads::clone) {
                scope.spawn(move || {
                    for items in 0..200_u64 {
                        let sum = Mutex::new(0);
                        threads.for_each(0..items, |item| *sum.lock().unwrap() += item);
                        assert_eq!(sum.into_inner().unwrap(), (0..items).sum::<u64>());
                    }
                });
            }
        });
        drop(second);
        assert!(started.upgrade().is_none());
        assert_eq!(share(1).count(), 1);
    }

    #[test]
    fn every_item_is_seen_once_by_any_number_of_threads() {
        let cpus = core_affinity::get_core_ids().unwrap().len();
        let pinned = [1, cpus].map(|count| (Threads::share_threads(count, Some(true)).unwrap(), count));
        let free = [1, 2, 5].map(|count| (Threads::start(count).unwrap(), count));
        for (threads, count) in free.into_iter().chain(pinned) {
            assert_eq!(threads.count(), count);
            for items in [0, 1, 2, 3, 1000] {
                let mut values = vec![0_u32; items];
                threads.enter(|| threads.for_each(values.iter_mut(), |value| *value += 1));
                assert!(values.iter().all(|&value| value == 1));
                threads.for_each(values.iter_mut(), |value| *value += 1);
                assert!(values.iter().all(|&value| value == 2));
            }
        }
    }

    #[test]
    fn a_panic_comes_back_to_the_caller_however_many_items_there_are() {
        for items in [1, 2, 9] {
            let threads = Threads::start(2).unwrap();
            let body = |item| assert!(item > 0, "as the test wants");
            let run = || threads.enter(|| threads.for_each(0..items, body));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            threads.for_each(0..items, |_| ());
        }
    }

    #[test]
    fn each_pinned_thread_has_a_cpu_of_its_own_among_those_of_the_process() {
        let allowed = core_affinity::get_core_ids().unwrap();
        let threads = Threads::share_threads(allowed.len(), Some(true)).unwrap();
        let cpus = Mutex::new(Vec::new());
        // Each thread takes one item and waits until all items are taken.
        let all_began = Barrier::new(allowed.len());
        threads.enter(|| {
            threads.for_each(0..allowed.len(), |_| {
                all_began.wait();
                match core_affinity::get_core_ids().unwrap()[..] {
                    [cpu] => cpus.lock().unwrap().push(cpu),
                    ref several => unreachable!("a thread may use {several:?}"),
                }
            });
        });
        let mut cpus = cpus.into_inner().unwrap();
        cpus.sort();
        assert_eq!(cpus, allowed);
        let too_many = Threads::share_threads(allowed.len() + 1, Some(true)).err().unwrap().to_string();
        assert!(too_many.contains(&format!("give `--threads {}`", allowed.len())), "{too_many}");
    }

    #[test]
    fn threads_are_pinned_by_themselves_if_there_is_one_for_each_cpu() {
        let cpus = core_affinity::get_core_ids().unwrap().len();
        for (count, pins, expected) in [
            (1, None, false),
            (cpus, None, cpus > 1 && cfg!(target_os = "linux")),
            (cpus + 1, None, false),
            (cpus, Some(false), false),
            (cpus, Some(true), true),
        ] {
            let threads = Threads::share_threads(count, pins).unwrap();
            assert_eq!((threads.count(), threads.are_pinned()), (count, expected), "{pins:?}");
            assert!(Arc::ptr_eq(&threads.0, &Threads::share_threads(count, pins).unwrap().0), "{pins:?}");
        }
    }

    #[test]
    fn cores_are_filled_before_a_cpu_is_taken_that_shares_one() {
        let table = [
            // The core of each CPU.
            (vec!["0-1", "0-1", "2-3", "2-3"], vec![0, 2, 1, 3]),
            (vec!["0,2", "1,3", "0,2", "1,3"], vec![0, 1, 2, 3]),
            (vec!["", "", ""], vec![0, 1, 2]),
            (vec!["0-2", "0-2", "0-2", "3"], vec![0, 3, 1, 2]),
        ];
        for (cores, expected) in table {
            let cpus = (0..cores.len()).map(|id| CoreId { id }).collect();
            let core = |cpu: CoreId| Some(cores[cpu.id].to_owned()).filter(|core| !core.is_empty());
            let order: Vec<usize> = one_per_core_first(cpus, core).into_iter().map(|cpu| cpu.id).collect();
            assert_eq!(order, expected, "{cores:?}");
        }
    }
}

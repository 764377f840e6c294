//! The compute threads of a backend. An operation with more than one item is one fork and join.
//!
//! Each pinned thread ([`Threads::start_pinned`]) has its own CPU among those that this process may use.

use core_affinity::CoreId;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{
    collections::HashMap,
    fs,
    sync::{Mutex, PoisonError},
};
use text_embeddings_backend_core::BackendError;

/// A fixed number of threads that share the items of an operation.
pub(crate) struct Threads {
    /// `None` for a single thread: the caller's.
    pool: Option<ThreadPool>,
}

impl Threads {
    /// Starts `count` threads (at least one).
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if the operating system refuses a thread.
    pub(crate) fn start(count: usize) -> Result<Self, BackendError> {
        let pool = if count <= 1 { None } else { Some(pool(count)?) };
        Ok(Self { pool })
    }

    /// Like [`Threads::start`], with each thread pinned to its own CPU. Even a single thread is then not the
    /// caller's.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if there are more threads than CPUs, or if the operating system refuses a
    /// thread.
    pub(crate) fn start_pinned(count: usize) -> Result<Self, BackendError> {
        let refused = || {
            let reason = "this system cannot pin threads to CPUs: leave it out";
            BackendError::Load(format!("`--pin-threads` is not supported: {reason}"))
        };
        let cpus = core_affinity::get_core_ids().ok_or_else(refused)?;
        if count > cpus.len() {
            return Err(BackendError::Load(format!(
                "`--pin-threads` needs a CPU for each of {count} compute threads, but this process may use \
                 {cpus}: give `--threads {cpus}`, or leave `--pin-threads` out",
                cpus = cpus.len()
            )));
        }
        let cpus = one_per_core_first(cpus, |cpu| {
            let path = format!("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu.id);
            fs::read_to_string(path).ok()
        });
        let pool = pool(count.max(1))?;
        let pinned = pool.broadcast(|thread| core_affinity::set_for_current(cpus[thread.index()]));
        if pinned.contains(&false) { Err(refused()) } else { Ok(Self { pool: Some(pool) }) }
    }

    /// The number of threads.
    pub(crate) fn count(&self) -> usize {
        self.pool.as_ref().map_or(1, ThreadPool::current_num_threads)
    }

    /// Runs `operation` on one of the threads, so that its calls of [`Threads::for_each`] need not wake that
    /// thread.
    pub(crate) fn enter<R: Send>(&self, operation: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(operation),
            None => operation(),
        }
    }

    /// Calls `body` once with every item, from all threads. Returns when all items are done.
    pub(crate) fn for_each<T: Send>(
        &self,
        mut items: impl Iterator<Item = T> + Send,
        body: impl Fn(T) + Sync,
    ) {
        let Some(pool) = &self.pool else {
            items.for_each(body);
            return;
        };
        let Some(first) = items.next() else { return };
        let Some(second) = items.next() else {
            // A single item: waking the other threads and waiting for them would take longer than most items.
            body(first);
            return;
        };
        let items = Mutex::new([first, second].into_iter().chain(items));
        pool.broadcast(|_| {
            loop {
                // A thread that panicked in `body` did not hold the lock. `broadcast` raises its panic again.
                let item = items.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(item) = item else { break };
                body(item);
            }
        });
    }
}

fn pool(count: usize) -> Result<ThreadPool, BackendError> {
    let builder = ThreadPoolBuilder::new().num_threads(count).thread_name(|index| format!("compute-{index}"));
    builder
        .build()
        .map_err(|error| BackendError::Load(format!("cannot start {count} compute threads: {error}")))
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
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn every_item_is_seen_once_by_any_number_of_threads() {
        let cpus = core_affinity::get_core_ids().unwrap().len();
        let pinned = [1, cpus].map(|count| (Threads::start_pinned(count).unwrap(), count));
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
        let threads = Threads::start_pinned(allowed.len()).unwrap();
        let mut cpus: Vec<CoreId> =
            threads.pool.as_ref().unwrap().broadcast(|_| match core_affinity::get_core_ids().unwrap()[..] {
                [cpu] => cpu,
                ref several => unreachable!("a thread may use {several:?}"),
            });
        cpus.sort();
        assert_eq!(cpus, allowed);
        let too_many = Threads::start_pinned(allowed.len() + 1).err().unwrap().to_string();
        assert!(too_many.contains(&format!("give `--threads {}`", allowed.len())), "{too_many}");
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

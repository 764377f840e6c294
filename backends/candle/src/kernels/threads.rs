//! The compute threads of a backend: one fork and join per operation.

use std::sync::Mutex;

/// A fixed number of threads that share an operation's items among themselves.
pub(crate) struct Threads {
    /// `None` for a single thread: the caller's own.
    pool: Option<rayon::ThreadPool>,
}

impl Threads {
    /// Starts `count` threads (at least one).
    ///
    /// # Errors
    ///
    /// The operating system's, if it refuses a thread.
    pub(crate) fn start(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        if count <= 1 {
            return Ok(Self { pool: None });
        }
        let builder = rayon::ThreadPoolBuilder::new().num_threads(count);
        let pool = builder.thread_name(|index| format!("compute-{index}")).build()?;
        Ok(Self { pool: Some(pool) })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.pool.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `operation` on one of the threads, so that its calls of [`Threads::for_each`] need not wake that one.
    pub(crate) fn enter<R: Send>(&self, operation: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(operation),
            None => operation(),
        }
    }

    /// Calls `body` with every item, each once, from all threads; returns when all are done.
    pub(crate) fn for_each<T: Send>(&self, items: impl Iterator<Item = T> + Send, body: impl Fn(T) + Sync) {
        let Some(pool) = &self.pool else {
            items.for_each(body);
            return;
        };
        let items = Mutex::new(items);
        pool.broadcast(|_| {
            loop {
                // A thread that panicked in `body` did not hold the lock; its panic is raised by `broadcast`.
                let item = items.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                let Some(item) = item else { break };
                body(item);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn every_item_is_seen_once_by_any_number_of_threads() {
        for count in [1, 2, 5] {
            let threads = Threads::start(count).unwrap();
            assert_eq!(threads.count(), count);
            let mut values = vec![0_u32; 1000];
            threads.enter(|| threads.for_each(values.iter_mut(), |value| *value += 1));
            assert!(values.iter().all(|&value| value == 1));
        }
    }
}

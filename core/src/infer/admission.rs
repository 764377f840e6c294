//! Admission: permits for requests and for their tokens.
//!
//! Input: the most tokens that a request may have. Output: a [`Permit`], or a refusal. What must hold: a
//! permit is taken before a request costs memory or work; surplus tokens are given back when the request's
//! real number of tokens is known, and the rest when the permit is dropped; a request is never refused while
//! no other is in flight.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permits of an engine. Cheap to clone; all clones share them.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    requests: Arc<Semaphore>,
    max_requests: usize,
    tokens: Arc<Semaphore>,
    max_tokens: u32,
}

/// The right of one request to be in flight. Dropping it gives it back.
#[derive(Debug)]
pub struct Permit {
    _request: OwnedSemaphorePermit,
    tokens: Mutex<OwnedSemaphorePermit>,
}

impl Admission {
    /// Permits for at most `requests` requests, which have at most `tokens` tokens together.
    pub(super) fn new(requests: usize, tokens: usize) -> Self {
        let max_tokens = u32::try_from(tokens.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let max_requests = requests.min(Semaphore::MAX_PERMITS);
        Self {
            requests: Arc::new(Semaphore::new(max_requests)),
            max_requests,
            tokens: Arc::new(Semaphore::new(max_tokens as usize)),
            max_tokens,
        }
    }

    /// The number of permits that are taken.
    pub(super) fn requests_in_flight(&self) -> usize {
        self.max_requests - self.requests.available_permits()
    }

    /// A permit for a request of at most `tokens` tokens; `None` if too much is in flight.
    pub(super) fn try_acquire(&self, tokens: usize) -> Option<Permit> {
        let request = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        let tokens = Arc::clone(&self.tokens).try_acquire_many_owned(self.share(tokens)).ok()?;
        Some(Permit { _request: request, tokens: Mutex::new(tokens) })
    }

    /// Like [`Admission::try_acquire`], but waits: first come, first served. `None` if no permit will ever be
    /// free.
    pub(super) async fn acquire(&self, tokens: usize) -> Option<Permit> {
        let request = Arc::clone(&self.requests).acquire_owned().await.ok()?;
        let tokens = Arc::clone(&self.tokens).acquire_many_owned(self.share(tokens)).await.ok()?;
        Some(Permit { _request: request, tokens: Mutex::new(tokens) })
    }

    /// Adds `tokens` tokens to a permit that has none yet, and waits for them like [`Admission::acquire`].
    pub(super) async fn add_tokens(&self, permit: Permit, tokens: usize) -> Option<Permit> {
        let tokens = Arc::clone(&self.tokens).acquire_many_owned(self.share(tokens)).await.ok()?;
        Some(Permit { tokens: Mutex::new(tokens), ..permit })
    }

    /// The tokens that a request takes from the semaphore. A request that is larger than the semaphore takes
    /// all of them.
    fn share(&self, tokens: usize) -> u32 {
        u32::try_from(tokens).unwrap_or(u32::MAX).min(self.max_tokens)
    }
}

impl Permit {
    /// Gives back the tokens that the request turned out not to need: it has only `tokens`.
    pub(crate) fn settle(&self, tokens: usize) {
        // Nothing that runs under the lock can fail.
        let mut held = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = held.num_permits().saturating_sub(tokens);
        drop(held.split(spare));
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[tokio::test]
    async fn requests_and_tokens_are_bounded_and_come_back() {
        let admission = Admission::new(2, 10);
        let first = admission.try_acquire(4).unwrap();
        assert!(admission.try_acquire(7).is_none(), "11 tokens");
        let second = admission.acquire(6).await.unwrap();
        assert!(admission.try_acquire(0).is_none(), "a third request");
        drop(first);
        assert!(admission.try_acquire(5).is_none());
        second.settle(3);
        second.settle(9);
        let third = admission.try_acquire(7).unwrap();
        let (fourth, ()) = tokio::join!(admission.acquire(4), async { drop((second, third)) });
        drop(fourth);
        // A request larger than all tokens is admitted alone or not at all.
        let large = admission.try_acquire(usize::MAX).unwrap();
        assert!(admission.try_acquire(1).is_none());
        drop(large);
        let small = admission.try_acquire(1).unwrap();
        assert!(admission.try_acquire(11).is_none());
        drop(small);
        assert!(admission.try_acquire(11).is_some());
        assert!(Admission::new(usize::MAX, usize::MAX).try_acquire(usize::MAX).is_some());
    }
}

//! Who may come in: permits for requests and for their tokens.
//!
//! Input: how many tokens a request has at most. Output: a [`Permit`], or the refusal. What must hold: a
//! permit is taken before a request costs memory or work; its tokens are given back when they turn out to be
//! fewer, all of it when it is dropped; a request that nothing else is in flight with is never refused.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permits of an engine.
#[derive(Debug)]
pub(super) struct Admission {
    requests: Arc<Semaphore>,
    tokens: Arc<Semaphore>,
    max_tokens: u32,
}

/// The right of one request to be in flight; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    _request: OwnedSemaphorePermit,
    tokens: OwnedSemaphorePermit,
}

impl Admission {
    /// Permits for so many requests, of so many tokens together.
    pub(super) fn new(requests: usize, tokens: usize) -> Self {
        let max_tokens = u32::try_from(tokens.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self {
            requests: Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS))),
            tokens: Arc::new(Semaphore::new(max_tokens as usize)),
            max_tokens,
        }
    }

    /// A permit for a request of at most so many tokens; none if too much is in flight.
    pub(super) fn try_acquire(&self, tokens: usize) -> Option<Permit> {
        let request = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        let tokens = Arc::clone(&self.tokens).try_acquire_many_owned(self.share(tokens)).ok()?;
        Some(Permit { _request: request, tokens })
    }

    /// The same, and waits: first come, first served. None if there never will be one.
    pub(super) async fn acquire(&self, tokens: usize) -> Option<Permit> {
        let request = Arc::clone(&self.requests).acquire_owned().await.ok()?;
        let tokens = Arc::clone(&self.tokens).acquire_many_owned(self.share(tokens)).await.ok()?;
        Some(Permit { _request: request, tokens })
    }

    /// What a request takes of the tokens: one that is larger than all of them takes all.
    fn share(&self, tokens: usize) -> u32 {
        u32::try_from(tokens).unwrap_or(u32::MAX).min(self.max_tokens)
    }
}

impl Permit {
    /// Gives back what the request turned out not to need: it has so many tokens.
    pub fn settle(&mut self, tokens: usize) {
        let spare = self.tokens.num_permits().saturating_sub(tokens);
        drop(self.tokens.split(spare));
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
        let mut second = admission.acquire(6).await.unwrap();
        assert!(admission.try_acquire(0).is_none(), "a third request");
        drop(first);
        assert!(admission.try_acquire(5).is_none());
        second.settle(3);
        second.settle(9);
        let third = admission.try_acquire(7).unwrap();
        let (fourth, ()) = tokio::join!(admission.acquire(4), async { drop((second, third)) });
        drop(fourth);
        // Larger than all there are: alone, or not at all.
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

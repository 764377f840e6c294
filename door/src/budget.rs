//! A limit for the bytes that all connections hold together.
//!
//! Input: [`Lease`]s that grow. Output: evictions: when there is no more room, the oldest lease must go. What
//! must hold: the leases that were not evicted never exceed the limit; nothing waits for room, so clients
//! that promise bytes and do not send or read them cannot block others. A body that arrives at the network's
//! speed is never the oldest for long.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::AtomicUsize},
};

use crate::{limits::ClientLimits, lock::lock_state};

/// The holder of a lease's bytes.
pub(crate) trait Holder: Send + Sync {
    /// Releases the bytes soon, because others need the room.
    fn evict(&self);

    /// Whether its time is up at `now` (milliseconds of the door's clock).
    fn is_overdue(&self, now: u64) -> bool;
}

/// A limit of bytes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Budget(Arc<SharedLedger>);

struct SharedLedger {
    limit: usize,
    state: Mutex<Ledger>,
}

#[derive(Default)]
struct Ledger {
    used: usize,
    next: u64,
    /// Sorted by age, the oldest first.
    entries: BTreeMap<u64, Holding>,
}

struct Holding {
    bytes: usize,
    holder: Arc<dyn Holder>,
}

/// The budgets of all connections.
pub(crate) struct Budgets {
    pub(crate) limits: ClientLimits,
    /// The room for bodies of requests.
    pub(crate) unread: Budget,
    /// The room for answers.
    pub(crate) unsent: Budget,
    /// The bytes of all open requests over HTTP/2, without their bodies.
    pub(crate) open_bytes: AtomicUsize,
}

impl Budgets {
    pub(crate) fn new(limits: ClientLimits) -> Self {
        let (unread, unsent) = (Budget::new(limits.unread_bytes), Budget::new(limits.unsent_bytes));
        Self { limits, unread, unsent, open_bytes: AtomicUsize::new(0) }
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(SharedLedger { limit, state: Mutex::default() }))
    }

    /// A new lease of zero bytes.
    pub(crate) fn new_lease(&self, holder: Arc<dyn Holder>) -> Lease {
        let mut state = lock_state(&self.0.state);
        let id = state.next;
        state.next += 1;
        state.entries.insert(id, Holding { bytes: 0, holder });
        Lease { budget: self.clone(), id }
    }

    /// Evicts the holders whose time is up.
    pub(crate) fn evict_overdue(&self, now: u64) {
        let mut state = lock_state(&self.0.state);
        let overdue = state.entries.iter().filter(|(_, entry)| entry.holder.is_overdue(now));
        let overdue: Vec<u64> = overdue.map(|(id, _)| *id).collect();
        for id in overdue {
            state.evict(id);
        }
    }

    /// The bytes that are leased.
    pub(crate) fn used_bytes(&self) -> usize {
        lock_state(&self.0.state).used
    }
}

impl Ledger {
    fn evict(&mut self, id: u64) {
        if let Some(Holding { bytes, holder }) = self.entries.remove(&id) {
            self.used -= bytes;
            holder.evict();
        }
    }
}

/// Bytes of a budget. Dropping the lease returns them.
pub(crate) struct Lease {
    budget: Budget,
    id: u64,
}

impl Lease {
    /// Sets the number of held bytes. Without room for them, leases are evicted from the oldest on, in the
    /// end this one. An evicted lease holds nothing.
    pub(crate) fn set_bytes(&self, bytes: usize) {
        let mut state = lock_state(&self.budget.0.state);
        let Some(entry) = state.entries.get_mut(&self.id) else { return };
        let before = std::mem::replace(&mut entry.bytes, bytes);
        state.used = state.used - before + bytes;
        while state.used > self.budget.0.limit {
            let Some(oldest) = state.entries.first_key_value().map(|(id, _)| *id) else { return };
            state.evict(oldest);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = lock_state(&self.budget.0.state);
        if let Some(entry) = state.entries.remove(&self.id) {
            state.used -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[derive(Default)]
    struct TestHolder {
        evicted: AtomicBool,
        overdue: AtomicBool,
    }

    impl Holder for TestHolder {
        fn evict(&self) {
            self.evicted.store(true, Relaxed);
        }

        fn is_overdue(&self, _: u64) -> bool {
            self.overdue.load(Relaxed)
        }
    }

    fn clients<const N: usize>(budget: &Budget) -> [(Arc<TestHolder>, Lease); N] {
        std::array::from_fn(|_| {
            let client = Arc::<TestHolder>::default();
            let lease = budget.new_lease(client.clone());
            (client, lease)
        })
    }

    fn evicted<const N: usize>(clients: &[(Arc<TestHolder>, Lease); N]) -> [bool; N] {
        std::array::from_fn(|index| clients[index].0.evicted.load(Relaxed))
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        let budget = Budget::new(100);
        let clients = clients::<4>(&budget);
        clients[2].1.set_bytes(40);
        clients[0].1.set_bytes(30);
        clients[1].1.set_bytes(30);
        assert_eq!((evicted(&clients), budget.used_bytes()), ([false; 4], 100));
        clients[3].1.set_bytes(1);
        assert_eq!((evicted(&clients), budget.used_bytes()), ([true, false, false, false], 71));
        clients[0].1.set_bytes(50);
        assert_eq!(budget.used_bytes(), 71, "who was evicted holds nothing");
        clients[3].1.set_bytes(90);
        assert_eq!((evicted(&clients), budget.used_bytes()), ([true, true, true, false], 90));
        clients[3].1.set_bytes(10);
        assert_eq!(budget.used_bytes(), 10);
        drop(clients);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn what_never_fits_goes_itself() {
        let budget = Budget::new(10);
        let clients = clients::<2>(&budget);
        clients[0].1.set_bytes(10);
        clients[1].1.set_bytes(11);
        assert_eq!((evicted(&clients), budget.used_bytes()), ([true, true], 0));
    }

    #[test]
    fn who_has_had_its_time_goes_too() {
        let budget = Budget::new(100);
        let clients = clients::<3>(&budget);
        for (_, lease) in &clients {
            lease.set_bytes(20);
        }
        clients[1].0.overdue.store(true, Relaxed);
        budget.evict_overdue(0);
        assert_eq!((evicted(&clients), budget.used_bytes()), ([false, true, false], 40));
    }
}

//! What one session may hold at a time, so that no client starves another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The limits of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nodes that it may know.
    pub nodes: u64,
    /// Openings that it may hold.
    pub opens: u64,
    /// Bytes of reads and writes that may be under way.
    pub bytes_in_flight: u64,
    /// Operations that may be pending.
    pub pending: u64,
}

impl Default for Limits {
    /// Four million nodes, 65,536 openings, 256 MiB and 4,096 operations: above what a busy guest was seen to
    /// use, and small beside a host that runs guests.
    fn default() -> Self {
        Self { nodes: 4 << 20, opens: 1 << 16, bytes_in_flight: 256 << 20, pending: 4096 }
    }
}

/// What a [`Budget`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Nodes.
    Nodes,
    /// Openings.
    Opens,
    /// Bytes under way.
    BytesInFlight,
    /// Pending operations.
    Pending,
}

/// Counts what a session holds against its [`Limits`]. Shared by all threads that serve the session.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    used: [AtomicU64; 4],
}

impl Budget {
    /// Nothing used yet.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, used: Default::default() })
    }

    /// Takes `amount`, or `None` when that would pass the limit. Given back when the permit is dropped.
    pub fn take(self: &Arc<Self>, resource: Resource, amount: u64) -> Option<Permit> {
        self.try_add(resource, amount).then(|| Permit { budget: self.clone(), resource, amount })
    }

    /// Takes `amount` without a permit; the caller gives it back with [`Budget::give_back`]. False when that
    /// would pass the limit.
    pub fn try_add(&self, resource: Resource, amount: u64) -> bool {
        let limit = self.limit(resource);
        self.counter(resource)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(amount).filter(|&sum| sum <= limit)
            })
            .is_ok()
    }

    /// Gives back what [`Budget::try_add`] took.
    pub fn give_back(&self, resource: Resource, amount: u64) {
        self.counter(resource).fetch_sub(amount, Ordering::Relaxed);
    }

    /// How much is in use.
    pub fn used(&self, resource: Resource) -> u64 {
        self.counter(resource).load(Ordering::Relaxed)
    }

    /// The limit.
    pub fn limit(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Nodes => self.limits.nodes,
            Resource::Opens => self.limits.opens,
            Resource::BytesInFlight => self.limits.bytes_in_flight,
            Resource::Pending => self.limits.pending,
        }
    }

    fn counter(&self, resource: Resource) -> &AtomicU64 {
        let [nodes, opens, bytes, pending] = &self.used;
        match resource {
            Resource::Nodes => nodes,
            Resource::Opens => opens,
            Resource::BytesInFlight => bytes,
            Resource::Pending => pending,
        }
    }
}

/// A share of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    resource: Resource,
    amount: u64,
}

impl Permit {
    /// Leaves what it stands for taken, for its holder to give back with [`Budget::give_back`].
    pub fn keep(mut self) {
        self.amount = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.give_back(self.resource, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_refuses_what_would_pass_its_limit_and_takes_back_what_was_dropped() {
        let budget = Budget::new(Limits { pending: 2, ..Limits::default() });
        let first = budget.take(Resource::Pending, 1).unwrap();
        let _second = budget.take(Resource::Pending, 1).unwrap();
        assert!(budget.take(Resource::Pending, 1).is_none());
        assert!(budget.take(Resource::Pending, u64::MAX).is_none());
        drop(first);
        assert!(budget.take(Resource::Pending, 1).is_some());
        assert_eq!(budget.used(Resource::Nodes), 0);
    }
}

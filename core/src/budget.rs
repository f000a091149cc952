//! Per-session resource limits, so that no client starves another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The limits of a session on each resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of nodes that the session references.
    pub nodes: u64,
    /// Maximum number of openings.
    pub opens: u64,
    /// Maximum number of bytes in flight in reads and writes.
    pub bytes_in_flight: u64,
    /// Maximum number of pending operations.
    pub pending: u64,
}

impl Default for Limits {
    /// Returns about four million nodes, 65,536 openings, 256 MiB and 4,096 operations: above the measured
    /// use of a busy guest, and small for a host that runs guests.
    fn default() -> Self {
        Self { nodes: 4 << 20, opens: 1 << 16, bytes_in_flight: 256 << 20, pending: 4096 }
    }
}

/// A resource counted by a [`Budget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Nodes that the session references.
    Nodes,
    /// Open files and directories.
    Opens,
    /// Bytes of reads and writes in flight.
    BytesInFlight,
    /// Operations not yet answered.
    Pending,
}

/// The resources in use by a session, counted against its [`Limits`]. Shared by all threads that serve it.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    used: [AtomicU64; 4],
}

impl Budget {
    /// Returns an unused budget.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, used: Default::default() })
    }

    /// Acquires `amount` until the permit is dropped. Returns `None` if that would exceed the limit.
    pub fn take(self: &Arc<Self>, resource: Resource, amount: u64) -> Option<Permit> {
        self.try_add(resource, amount).then(|| Permit { budget: self.clone(), resource, amount })
    }

    /// Acquires `amount` without a permit; the caller releases it with [`Budget::give_back`]. Returns `false`
    /// if that would exceed the limit.
    pub fn try_add(&self, resource: Resource, amount: u64) -> bool {
        let limit = self.limit(resource);
        self.counter(resource)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(amount).filter(|&sum| sum <= limit)
            })
            .is_ok()
    }

    /// Releases an amount that was acquired by [`Budget::try_add`], or whose permit was dropped by
    /// [`Permit::keep`].
    pub fn give_back(&self, resource: Resource, amount: u64) {
        self.counter(resource).fetch_sub(amount, Ordering::Relaxed);
    }

    /// Returns the amount of a resource in use.
    pub fn used(&self, resource: Resource) -> u64 {
        self.counter(resource).load(Ordering::Relaxed)
    }

    /// Returns the session's limit on a resource.
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

/// A share of a [`Budget`], released when dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    resource: Resource,
    amount: u64,
}

impl Permit {
    /// Drops the permit without releasing its amount, which must be released with [`Budget::give_back`].
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
    fn budget_enforces_limit_and_reclaims_dropped_permits() {
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

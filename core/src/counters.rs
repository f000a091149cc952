//! Counters that any thread increments, and snapshots of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter shared by all threads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds 1.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds a number of bytes in memory.
    #[inline]
    pub fn add_len(&self, len: usize) {
        self.add(len as u64);
    }

    /// Subtracts 1 from a counter of objects that exist at present.
    #[inline]
    pub fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Defines a structure of counters and its snapshot, both from the list of the snapshot's fields: those
/// before the semicolon are counters; those after it are gauges, which have their default values in a
/// snapshot until its reader sets them.
#[macro_export]
macro_rules! counters {
    (
        $(#[$of_live:meta])*
        $live_vis:vis struct $Live:ident;
        $(#[$of_counts:meta])*
        $vis:vis struct $Counts:ident {
            $($(#[$doc:meta])+ $name:ident,)+
            $(; $($(#[$gauge_doc:meta])+ $gauge:ident: $ty:ty,)+)?
        }
    ) => {
        $(#[$of_live])*
        #[derive(Debug, Default)]
        $live_vis struct $Live {
            $($(#[$doc])+ pub(crate) $name: $crate::Counter,)+
        }

        $(#[$of_counts])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $Counts {
            $($(#[$doc])+ pub $name: u64,)+
            $($($(#[$gauge_doc])+ pub $gauge: $ty,)+)?
        }

        impl $Live {
            /// Returns the current values, without gauges.
            #[must_use]
            $live_vis fn read(&self) -> $Counts {
                $Counts { $($name: self.$name.get(),)+ $($($gauge: Default::default(),)+)? }
            }
        }
    };
}

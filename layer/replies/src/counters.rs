use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Defines the counters, both the shared ones and their snapshot.
macro_rules! counters {
    ($($(#[$meta:meta])+ $name:ident,)+) => {
        /// Counters of the layer since its creation.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$meta])+ pub(super) $name: Counter,)+
        }

        /// [`Counters`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Snapshot {
            $($(#[$meta])+ pub $name: u64,)+
        }

        impl Counters {
            /// Returns the current values.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.value(),)+ }
            }
        }
    };
}

counters! {
    /// Duplicates received while the original was in progress.
    hits_in_progress,
    /// Duplicates received after the reply, and answered from its outcome.
    hits_done,
    /// Outcomes recorded for duplicates, in memory or also in the state file.
    recorded,
    /// Outcomes dropped because of the limits of entries or age.
    evicted,
    /// Operations performed without an entry, because no entry could be evicted: all candidates were in
    /// progress.
    unremembered,
    /// Operations that required an intent in the state file but had none, or whose outcome could not be
    /// written there.
    unprotected,
    /// Intents found at start whose operations had happened.
    reconciled_done,
    /// Intents found at start whose operations had not happened.
    reconciled_not_done,
    /// Intents found at start with an uncertain verdict, counted also as done or not done.
    reconciled_ambiguous,
}

/// Count of events since the layer was created.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

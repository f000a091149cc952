use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Names the counters once, for the shared ones and for those of a moment.
macro_rules! counters {
    ($($(#[$meta:meta])+ $name:ident,)+) => {
        /// What the layer has seen, counted since it was made.
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
            /// The counters now.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.value(),)+ }
            }
        }
    };
}

counters! {
    /// Duplicates that came while the first was under way.
    hits_in_progress,
    /// Duplicates that came after the answer.
    hits_done,
    /// Outcomes that were recorded.
    recorded,
    /// Outcomes that were dropped for a limit: the number of entries, or their age.
    evicted,
    /// Operations that ran without an entry, because all that could have made room were under way.
    unremembered,
    /// Operations that ran without an intent in the state file though they should have had one, or whose
    /// outcome could not be written there.
    unprotected,
    /// Intents found at start of operations that had happened.
    reconciled_done,
    /// Intents found at start of operations that had not happened.
    reconciled_not_done,
    /// Of both: those where it could not be told for sure.
    reconciled_ambiguous,
}

/// One count.
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

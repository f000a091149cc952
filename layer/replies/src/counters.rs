//! Counters of the layer.

use serde::{Deserialize, Serialize};

tombolo_core::counters! {
    /// Counters of the layer since its creation.
    pub struct Counters;

    /// [`Counters`] at one moment.
    #[derive(Serialize, Deserialize)]
    pub struct Snapshot {
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
}

//! Free space of the origin, as last reported by its file system.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_core::fs::StatFs;

use crate::options::{Contract, Options};

/// What was told last.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    told: Option<(StatFs, Instant)>,
    /// It was last asked about then, and perhaps not told yet.
    asked: Option<Instant>,
}

/// After this time it is asked about again, where the contract lets the old answer do until then.
const FRESH: Duration = Duration::from_secs(3);

impl Room {
    /// What is known, if it will do; and whether it is time to ask again all the same.
    pub(crate) fn known(&self, options: &Options) -> (Option<StatFs>, bool) {
        let mut state = self.state();
        let Some((stat, told)) = state.told else { return (None, false) };
        match options.contract {
            Contract::Immutable | Contract::Exclusive => {
                let is_old =
                    told.elapsed() > FRESH && state.asked.is_none_or(|asked| asked.elapsed() > FRESH);
                if is_old {
                    state.asked = Some(Instant::now());
                }
                (Some(stat), is_old)
            }
            Contract::CloseToOpen | Contract::Lease => {
                (Some(stat).filter(|_| told.elapsed() <= options.attr_refresh), false)
            }
            Contract::Refresh(time) => (Some(stat).filter(|_| told.elapsed() <= time), false),
        }
    }

    /// Takes in what was told.
    pub(crate) fn learn(&self, stat: StatFs) {
        self.state().told = Some((stat, Instant::now()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Free space of the origin, as last reported by its file system.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tombolo_core::fs::StatFs;
use tombolo_core::lock;

use crate::options::{Contract, Options};

/// Last report of free space.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    told: Option<(StatFs, Instant)>,
    /// Time of the last background query, perhaps unanswered.
    asked: Option<Instant>,
}

/// Age from which a report that the contract still allows is renewed in the background.
const FRESH: Duration = Duration::from_secs(3);

impl Room {
    /// Returns the report if it is valid, and `true` if the caller should renew it in the background.
    pub(crate) fn known(&self, options: &Options) -> (Option<StatFs>, bool) {
        let mut state = lock(&self.0);
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

    pub(crate) fn learn(&self, stat: StatFs) {
        lock(&self.0).told = Some((stat, Instant::now()));
    }
}

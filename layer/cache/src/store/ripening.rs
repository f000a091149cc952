//! Delayed commits of names and data fetched so soon after a change of the object that another change might
//! not show in its times. Under *exclusive* no other client makes such a change while this process runs; once
//! it would show, the state may be used by the next process, and is written.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::data_file::State as DataState;
use crate::object::Object;

/// Maximum delay. A longer one results from a wrong clock, and the state is not committed.
const RIPENING_MAX: Duration = Duration::from_secs(60);

/// Names of a directory or data of a file that are too recent to be committed.
#[derive(Debug)]
pub(super) enum Unripe {
    Names(Weak<Object>),
    Data(Weak<DataState>),
}

/// State to be committed now.
#[derive(Debug)]
pub(super) enum Ripe {
    Names(Arc<Object>),
    Data(Arc<DataState>),
}

/// Queue of delayed commits, in order of arrival. A commit that is due also waits for all queued before it.
#[derive(Debug, Default)]
pub(super) struct Ripening(VecDeque<(Instant, Unripe)>);

impl Ripening {
    /// Queues a commit. Returns `false`, and queues nothing, if the delay exceeds the maximum.
    pub(super) fn push(&mut self, unripe: Unripe, delay: Duration) -> bool {
        let is_awaited = delay <= RIPENING_MAX;
        if is_awaited {
            self.0.push_back((Instant::now() + delay, unripe));
        }
        is_awaited
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.front().map(|(due, _)| *due)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Unripe> {
        self.0.pop_front_if(|(due, _)| *due <= now).map(|(_, unripe)| unripe)
    }
}

impl Unripe {
    /// Marks the state as ready to be written, and returns it, unless it is gone. Fails with the remaining
    /// delay if newer names have arrived.
    pub(super) fn ripen(self, now: Instant) -> Result<Option<Ripe>, (Unripe, Duration)> {
        match self {
            Self::Data(state) => Ok(state.upgrade().filter(|state| state.ripen()).map(Ripe::Data)),
            Self::Names(object) => {
                let Some(object) = object.upgrade() else { return Ok(None) };
                match object.ripen(now) {
                    Ok(true) => Ok(Some(Ripe::Names(object))),
                    Ok(false) => Ok(None),
                    Err(left) => Err((Self::Names(Arc::downgrade(&object)), left)),
                }
            }
        }
    }
}

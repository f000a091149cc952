//! Delayed commits of state fetched so soon after a change that a second one might not show. Under
//! *exclusive* there is no other change; after some seconds it would show, and the state is valid for another
//! life.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::data_file::State as DataState;
use crate::object::Object;

/// What is this young for longer has times of a clock that is wrong. It is not waited for.
const RIPENING_MAX: Duration = Duration::from_secs(60);

/// Names of a directory, or data of a file.
#[derive(Debug)]
pub(super) enum Young {
    Names(Weak<Object>),
    Data(Weak<DataState>),
}

/// What has ripened, and is to be written.
#[derive(Debug)]
pub(super) enum Ripe {
    Names(Arc<Object>),
    Data(Arc<DataState>),
}

/// Those that wait, in the order in which they came. One that is due waits for those before it.
#[derive(Debug, Default)]
pub(super) struct Ripening(VecDeque<(Instant, Young)>);

impl Ripening {
    /// Adds one. False if it is not waited for.
    pub(super) fn push(&mut self, young: Young, young_for: Duration) -> bool {
        let is_awaited = young_for <= RIPENING_MAX;
        if is_awaited {
            self.0.push_back((Instant::now() + young_for, young));
        }
        is_awaited
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.front().map(|(due, _)| *due)
    }

    /// The next one, if it is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Young> {
        self.0.pop_front_if(|(due, _)| *due <= now).map(|(_, young)| young)
    }
}

impl Young {
    /// Makes it last, unless it is gone. Names that came later let it wait again, for so long.
    pub(super) fn ripen(self, now: Instant) -> Result<Option<Ripe>, (Young, Duration)> {
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

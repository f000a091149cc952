//! How a consumer that waits for a message learns that it is there.
//!
//! Looking costs a processor, sleeping a wake-up; so a consumer looks for as long as it is likely to pay,
//! then says that it sleeps, looks once more, and sleeps. A producer rings only for a consumer that says so.
//! Each says it in its own memory, and a full fence on either side makes sure that one of the two sees the
//! other (docs/decisions/shm-rings.md). Where there is no doorbell, as between a guest and its host, a
//! sleeper looks again at intervals that double.
//!
//! Reading order: [`Mode`], [`Sleeper`], [`Ringer`]; [`PollBackoff`].

mod look;
mod mode;
mod poll_backoff;
mod ringer;
mod sleeper;
mod umwait;
mod window;

pub use mode::{Mode, UnknownMode};
pub use poll_backoff::PollBackoff;
pub use ringer::Ringer;
pub use sleeper::{Awaited, INTERVAL_MAX, INTERVAL_MIN, Nudger, Sleeper, SleeperCounts, WakeReason};
pub use window::{WINDOW_MAX, Window};

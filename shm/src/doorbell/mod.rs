//! Waiting for messages, and waking a waiting consumer.
//!
//! Polling costs a processor, sleeping a wake-up; so a consumer polls for as long as that is likely to pay,
//! then announces its sleep, polls once more, and sleeps. A producer rings only for a consumer that has
//! announced its sleep. Each side writes to its own memory, and a full fence on both sides guarantees that
//! at least one sees the other's store (docs/decisions/shm-rings.md). Without a common kernel, as between a
//! guest and its host, the wake-up is a byte in a stream, the bell (docs/decisions/links-bell.md); without
//! a bell a sleeper polls at exponentially growing intervals.
//!
//! Reading order: [`Mode`], [`Sleeper`], [`Ringer`]; [`Bell`]; [`PollBackoff`].

mod bell;
mod mode;
mod poll_backoff;
mod poll_time;
mod polling;
mod ringer;
mod sleeper;
mod umwait;
mod words;

pub use bell::{Bell, BellStream};
pub use mode::{Mode, UnknownMode};
pub use poll_backoff::PollBackoff;
pub use poll_time::PollTime;
pub use ringer::Ringer;
pub use sleeper::{Awaited, INTERVAL_MAX, INTERVAL_MIN, Nudger, Sleeper, SleeperCounts, WakeReason};
pub use words::{OwnDoorbell, PeerDoorbell};

//! Measurement method: contestants take turns, round after round, within one run, so that disturbances affect
//! all of them. A figure is the median of its rounds, a ratio the median of the ratios *within* each round;
//! both are shown with their spread.
//!
//! Reading order: [`Work`] and [`Clock`] (operation of one contestant), [`Contest`] (turns), [`Spread`],
//! [`Cost`], [`Placement`].

mod clock;
mod contest;
mod cost;
mod moved;
mod placement;
mod resident;
mod spread;
mod stop;
mod syncs;
mod syscalls;

pub use clock::{Clock, Work};
pub use contest::{Contest, Dropped, Entrant, Series};
pub use cost::{Cost, CostMeter};
pub use moved::{Moved, MovedMeter};
use placement::threads;
pub use placement::{Placement, spare_cores};
pub use resident::{Held, mappings};
pub use spread::Spread;
pub use stop::{end_on_signals, go_on};
pub use syncs::SyncCounter;
pub use syscalls::SyscallCounter;

//! A wide-area network: two network namespaces, a TUN device in each, and two threads of ours between them
//! that forward IP packets.
//!
//! Each direction serialises at a rate, holds what waits in a queue of one bandwidth-delay product that drops
//! at its tail, delays by a fixed time, and may lose at random. TCP is the kernel's, from end to end. Nothing
//! of the host's own network changes; what was made is gone with the [`Wan`].
//!
//! Not here: jitter, reordering, more than two ends.
//!
//! Main types: [`Profile`], [`Wan`], [`Check`]. Reading order: `profile`, `shaper` (no I/O), `line` (the
//! threads), `wan`.
#![forbid(unsafe_code)]

mod check;
mod line;
mod profile;
mod shaper;
mod wan;

pub use check::Check;
pub use profile::Profile;
pub use wan::{Side, Wan};

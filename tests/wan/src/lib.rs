//! An emulated wide-area network: two network namespaces with a TUN device each, and two threads that forward
//! IP packets between them.
//!
//! Each direction serialises at a rate, queues at most one bandwidth-delay product and drops at the tail,
//! delays by a fixed time, and may lose packets at random. TCP is the kernel's, from end to end. The host's
//! own network does not change; everything is removed with the [`Wan`].
//!
//! Non-goals: jitter, reordering, more than two ends.
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

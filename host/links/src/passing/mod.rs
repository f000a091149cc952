//! Data by reference through more than two domains: memory that a client shares with us is named to a server of ours, which maps it too, so
//! that nobody in the middle copies (docs/formats/link.md, "Introductions").
//!
//! [`Passable`] is left as a note on the region of such memory when a peer allows it. Whoever calls further on with bytes of it asks
//! [`Introducer::lend`] by what name the server knows them; the first who asks has the memory introduced. [`Introductions`] is what a server
//! holds of it.
//!
//! A buffer is its owner's again when it is answered, so nobody in the middle answers before it was answered. If the middle loses the
//! server and does not know it dead, what the server may still be reading is not to be used again: the link that the memory belongs to ends,
//! and the memory goes with it ([decision links-forwarding](../../../../docs/decisions/links-forwarding.md)).
//!
//! Reading order: `passable`, `introducer`, `introductions`.

mod introducer;
mod introductions;
mod passable;

pub(super) use introducer::Introducer;
pub use introducer::{Elsewhere, Loan};
pub(super) use introductions::Introductions;
pub(super) use passable::{Passable, Sever};

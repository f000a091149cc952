//! Who may call, and as whom.
//!
//! NFS clients say who they are and are believed, as far as their address is allowed ([`AllowList`]). What they say is then
//! taken with a grain of salt: some users become the anonymous one ([`Squash`]), and groups may be looked up here instead
//! ([`Groups`]). What comes out is the identity for which the back end checks permissions ([`Identities`]).

mod allow;
mod groups;
mod identity;

pub use allow::{AllowList, Network, NetworkError};
pub use groups::Groups;
pub use identity::Identities;
pub use tombolo_core::fs::{NO_ID, Squash, Whom};

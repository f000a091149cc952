//! Access: allowed addresses and callers' identities.
//!
//! The identity in a credential is trusted if the client's address is allowed ([`AllowList`]), and as far as
//! its certificate goes where that is said ([`Claims`]). It is then mapped: some users become the anonymous
//! one ([`Squash`]), and groups may be looked up here instead ([`Groups`]). What comes out is the identity
//! for which the back end checks permissions ([`Identities`]).

mod allow;
mod claims;
mod groups;
mod identity;
mod lease_holders;

pub use allow::{AllowList, Network, NetworkError};
pub use claims::{Claim, ClaimRule, Claims};
pub use groups::Groups;
pub use identity::Identities;
pub use lease_holders::LeaseHolders;
pub use tombolo_core::{NO_ID, Squash, SquashMode};

//! Access control: client addresses and callers' identities.
//!
//! The identity in a credential is trusted if the client's address is allowed ([`AllowList`]), within the
//! limits of its certificate where rules exist ([`Claims`]). It is then squashed ([`Squash`]), and groups may
//! be looked up on this host instead ([`Groups`]). The result is the identity for which the back end checks
//! permissions ([`Identities`]).

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

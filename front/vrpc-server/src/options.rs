//! What a session may ask for.

use tombolo_core::fs::PermissionCheck;
use tombolo_core::{Limits, Squash};

/// What the sessions of one export may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The party that is to check what users may do. Identities are the peer's own word in either case: what
    /// a peer as a whole may do is for the policy of links to decide.
    pub checks: PermissionCheck,
    /// Which callers become the anonymous user, whatever the peer may say.
    pub squash: Squash,
    /// How much may pend.
    pub limits: Limits,
    /// Most bytes that one READ or WRITE may move.
    pub transfer_bytes_max: u32,
    /// How many identities a peer may have at a time.
    pub callers_max: u16,
    /// Offers extended attributes, where the file system has them.
    pub xattrs: bool,
}

impl Default for Options {
    /// Checks by the back end, no caller squashed, transfers of 4 MiB, 1024 identities, extended attributes.
    fn default() -> Self {
        Options {
            checks: PermissionCheck::BackEnd,
            squash: Squash::NONE,
            limits: Limits::default(),
            transfer_bytes_max: 4 << 20,
            callers_max: 1024,
            xattrs: true,
        }
    }
}

//! Session options.

use tombolo_core::fs::PermissionCheck;
use tombolo_core::{Limits, Squash};

/// Limits and permissions of the sessions of one export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Party that checks permissions. It is always the back end if the peer may claim only some identities,
    /// or if callers are squashed.
    pub checks: PermissionCheck,
    /// Callers that become the anonymous user, whatever the peer claims.
    pub squash: Squash,
    /// Limits of one session, of which this front end enforces only that on pending requests.
    pub limits: Limits,
    /// Maximum number of bytes of one READ or WRITE.
    pub transfer_bytes_max: u32,
    /// Maximum number of identities of a peer at a time.
    pub callers_max: u16,
    /// `true` to offer extended attributes, if the file system has them.
    pub xattrs: bool,
}

impl Default for Options {
    /// Returns the defaults: checks by the back end, no squashing, transfers of 4 MiB, 1024 identities,
    /// extended attributes.
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

//! The identity on whose behalf a call is made.

use std::time::Instant;

use tombolo_core::{Ctx, Identity, Interrupt};
use tombolo_wire_rpc::{AuthSys, Credential, GIDS_MAX, Gids};

/// The user of an operation, and its interrupt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    pub identity: Identity,
    pub interrupt: Interrupt,
    /// Time on the RPC client's clock after which no call is to be repeated because of JUKEBOX; `None`: no
    /// limit.
    pub deadline: Option<Instant>,
}

impl From<&Ctx> for Caller {
    fn from(cx: &Ctx) -> Self {
        Self { identity: cx.identity.clone(), interrupt: cx.interrupt.clone(), deadline: None }
    }
}

impl Caller {
    /// Returns the same user without interrupt and deadline, for work that outlives the operation.
    pub(crate) fn detached(&self) -> Self {
        Self { identity: self.identity.clone(), ..Self::default() }
    }

    /// Returns AUTH_SYS credentials. The stamp distinguishes this client from others on this machine. Groups
    /// beyond the limit of 16 are omitted; a server may look up all groups itself.
    pub(crate) fn credential<'m>(&self, stamp: u32, machine: &'m [u8]) -> Credential<'m> {
        let groups = self.identity.groups();
        let gids = Gids::new(groups.get(..GIDS_MAX).unwrap_or(groups)).unwrap_or_default();
        Credential::Sys(AuthSys { stamp, machine, uid: self.identity.uid, gid: self.identity.gid, gids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_groups_than_fit_are_cut_off() {
        let identity = Identity { uid: 7, gid: 8, groups: Some((100..140).collect()) };
        let caller = Caller { identity, ..Caller::default() };
        let Credential::Sys(auth) = caller.credential(9, b"here") else { panic!("AUTH_SYS") };
        assert_eq!((auth.stamp, auth.uid, auth.gid, auth.gids.len()), (9, 7, 8, GIDS_MAX));
        assert_eq!(auth.gids[0], 100);
    }
}

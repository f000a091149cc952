//! On whose behalf the kernel acts.

use tombolo_core::fs::{NewMode, PermissionCheck};
use tombolo_core::{Ctx, Result};
use tombolo_sys::creds::{self, Assumed, Checks, Identity, WithoutSetId};
use tombolo_sys::umask::{self, Masked};

use crate::state::Session;

/// While it lives, the thread acts as the caller, as far as that is needed.
#[derive(Debug)]
pub(crate) struct Acting {
    _assumed: Option<Assumed>,
}

/// While it lives, what the thread makes is the caller's, under the caller's umask.
#[derive(Debug)]
pub(crate) struct Making {
    masked: Masked,
    _assumed: Option<Assumed>,
}

impl Making {
    /// The permission bits to give to the system call that makes the node.
    pub(crate) fn mode(&self) -> u32 {
        self.masked.mode()
    }
}

impl Session {
    /// For operations that the kernel must check: as the caller, where the back end checks; as the server
    /// otherwise.
    pub(crate) fn checked(&self, cx: &Ctx) -> Result<Acting> {
        let assumed = match self.checks {
            PermissionCheck::BackEnd => self.assume(cx, Checks::Kernel)?,
            PermissionCheck::Caller => None,
        };
        Ok(Acting { _assumed: assumed })
    }

    /// For operations that make something: as the caller, which will own it, and with the caller's umask.
    pub(crate) fn making(&self, cx: &Ctx, mode: NewMode) -> Result<Making> {
        let checks = match self.checks {
            PermissionCheck::BackEnd => Checks::Kernel,
            PermissionCheck::Caller => Checks::Skipped,
        };
        let assumed = self.assume(cx, checks)?;
        Ok(Making { _assumed: assumed, masked: umask::mask(mode.umask.bits(), mode.mode.bits()) })
    }

    /// For answering whether the caller might: always as the caller.
    pub(crate) fn as_caller(&self, cx: &Ctx) -> Result<Acting> {
        Ok(Acting { _assumed: self.assume(cx, Checks::Kernel)? })
    }

    fn assume(&self, cx: &Ctx, checks: Checks) -> Result<Option<Assumed>> {
        if !self.export.may_assume {
            return Ok(None);
        }
        let identity = Identity { uid: cx.identity.uid, gid: cx.identity.gid, groups: cx.identity.groups() };
        Ok(Some(creds::assume(identity, checks)?))
    }
}

/// For changes that must drop set-user-id and set-group-id bits, as those of a user without privileges do.
pub(crate) fn dropping_set_id(wanted: bool) -> Result<Option<WithoutSetId>> {
    Ok(if wanted { Some(creds::without_set_id()?) } else { None })
}

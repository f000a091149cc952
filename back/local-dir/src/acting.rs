//! Thread credentials: the identity under which the kernel serves a request.

use tombolo_core::fs::{NewMode, PermissionCheck};
use tombolo_core::{Ctx, Result};
use tombolo_sys::creds::{self, Assumed, Checks, Identity, WithoutSetId};
use tombolo_sys::umask::{self, Masked};

use crate::state::Session;

/// Guard of a thread that acts as the caller, if the operation requires it and the server may assume
/// identities, until the guard is dropped.
#[derive(Debug)]
pub(crate) struct Acting {
    _assumed: Option<Assumed>,
}

/// Guard under which the caller's umask applies to new files, which belong to the caller if the server may
/// assume identities.
#[derive(Debug)]
pub(crate) struct Making {
    masked: Masked,
    _assumed: Option<Assumed>,
}

impl Making {
    /// Returns the permission bits to pass to the creating system call.
    pub(crate) fn mode(&self) -> u32 {
        self.masked.mode()
    }
}

impl Session {
    /// Acts as the caller if the back end checks permissions and may assume identities, else as the server.
    /// Used for operations whose permissions the kernel must check.
    pub(crate) fn checked(&self, cx: &Ctx) -> Result<Acting> {
        let assumed = match self.checks {
            PermissionCheck::BackEnd => self.assume(cx, Checks::Kernel)?,
            PermissionCheck::Caller => None,
        };
        Ok(Acting { _assumed: assumed })
    }

    /// Acts as the caller, who then owns the new file, if the server may assume identities. Applies the
    /// caller's umask in any case.
    pub(crate) fn making(&self, cx: &Ctx, mode: NewMode) -> Result<Making> {
        let checks = match self.checks {
            PermissionCheck::BackEnd => Checks::Kernel,
            PermissionCheck::Caller => Checks::Skipped,
        };
        let assumed = self.assume(cx, checks)?;
        Ok(Making { _assumed: assumed, masked: umask::mask(mode.umask.bits(), mode.mode.bits()) })
    }

    /// Acts as the caller, if the server may assume identities, whoever checks permissions: ACCESS reports
    /// the kernel's decision about the caller.
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

/// Makes this thread's changes clear the set-user-id and set-group-id bits, as changes by an unprivileged
/// user do, until the result is dropped. Does nothing unless `wanted`.
pub(crate) fn dropping_set_id(wanted: bool) -> Result<Option<WithoutSetId>> {
    Ok(if wanted { Some(creds::without_set_id()?) } else { None })
}

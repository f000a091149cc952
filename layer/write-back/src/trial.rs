//! A trial of an origin's permissions: a file is created, changed and removed there.

use tombolo_core::fs::{
    Create, Entry, Exclusive, Export, File, FileSystem, Mode, Name, NewMode, NodeId, OpenFlags, SetAttr,
};
use tombolo_core::{Ctx, Identity, Result};

use crate::origin::is_refusal;
use crate::shared::{SESSION, client};
use crate::tree::HIDDEN;

/// Permissions of a user for files created at an origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Owner of the created file, if it is another user.
    pub squashed_to: Option<u32>,
    /// `true` if the file has another owner, or the superuser may not give it to another user.
    pub refuses_owners: bool,
    /// `true` if the file's mode cannot be set.
    pub refuses_modes: bool,
}

/// Final mode of the file, which no umask produces at its creation.
const MODE: u32 = 0o640;

/// A user that owns nothing.
const NOBODY: u32 = 65534;

/// Tests a user's permissions for files it creates in the root of an origin.
///
/// # Errors
/// Fails if the file cannot be created or removed now, or its attributes cannot be set for a reason other
/// than a refusal.
pub fn try_out(below: &dyn Export, user: Identity) -> Result<Allowed> {
    let fs = below.attach(&client())?;
    let cx = Ctx { identity: user, ..Ctx::root(SESSION) };
    let name = [HIDDEN, b"trial"].concat();
    let name = Name::new(&name).map_err(tombolo_core::Error::io)?;
    // A leftover of an earlier run may belong to another user.
    drop(fs.unlink(&cx, NodeId::ROOT, name).wait());
    let mode = NewMode::settled(Mode::new(0o600));
    let how = Create { mode, flags: OpenFlags::WRITE, exclusive: Exclusive::Yes };
    let created = fs.create(&cx, NodeId::ROOT, name, &how).wait()?;
    let Entry { node, attr } = created.entry;
    let file = File { node, open: created.open };
    let allowed = try_attributes(&*fs, &cx, file, attr.uid);
    fs.release(&cx, file);
    let removed = fs.unlink(&cx, NodeId::ROOT, name).wait();
    fs.forget(&cx, &[(node, 1)]);
    removed?;
    allowed
}

fn try_attributes(fs: &dyn FileSystem, cx: &Ctx, file: File, owner: u32) -> Result<Allowed> {
    let is_refused = |set: SetAttr| match fs.setattr(cx, file.node, Some(file), &set).wait() {
        Ok((after, _)) => Ok(set.mode.is_some_and(|mode| mode != after.mode)),
        Err(error) if is_refusal(&error) => Ok(true),
        Err(error) => Err(error),
    };
    let user = cx.identity.uid;
    let mode = SetAttr { mode: Some(Mode::new(MODE)), ..SetAttr::default() };
    let refuses_modes = is_refused(mode)?;
    let given = SetAttr { uid: Some(NOBODY), ..SetAttr::default() };
    let squashed_to = (owner != user).then_some(owner);
    let refuses_owners = squashed_to.is_some() || cx.identity.is_root() && is_refused(given)?;
    Ok(Allowed { squashed_to, refuses_owners, refuses_modes })
}

//! Attributes that a copy gets.

use std::sync::atomic::Ordering;

use tombolo_core::fs::{Attr, FileType, Mode, SetAttr, SetTime};
use tombolo_core::{Answer, Error, Result};

use crate::node::Node;
use crate::tree::Tree;

use super::event::Step;
use super::{Options, Work};

/// Permission bits of the owner.
const OWNER_BITS: u32 = 0o700;
/// Permission bits without set-user-id, set-group-id and sticky bits.
const RIGHTS: u32 = 0o777;

/// Returns the mode for creation. With `preserve`, a file is closed to other users until it has its owner.
pub(super) fn first_mode(options: &Options, attr: &Attr) -> Mode {
    Mode::new(attr.mode.bits() & if options.preserve { OWNER_BITS } else { RIGHTS })
}

/// Returns the changes that give a new file the attributes of its source; `None` without `preserve`.
///
/// `made` are the attributes of the new file as far as known. Owner and group are set only if they differ,
/// since a change of them needs a privilege.
pub(super) fn to_preserve(work: &Work, attr: &Attr, made: &Attr, tree: &Tree) -> Option<SetAttr> {
    if !work.options.preserve {
        return None;
    }
    let user = tree.identity();
    let may_give = user.uid == 0 && !work.owners_refused.load(Ordering::Relaxed);
    let uid = (may_give && made.uid != attr.uid).then_some(attr.uid);
    let may_regroup = may_give || (user.uid != 0 && user.in_group(attr.gid));
    let gid = (may_regroup && made.gid != attr.gid).then_some(attr.gid);
    let is_link = attr.file_type == FileType::Symlink;
    // Set-user-id and set-group-id bits are copied only to a file that has the source's owner and group.
    let owned = (uid.is_some() || made.uid == attr.uid) && (gid.is_some() || made.gid == attr.gid);
    let copied = if owned { Mode::MASK } else { Mode::MASK & !(Mode::SET_UID | Mode::SET_GID) };
    Some(SetAttr {
        mode: (!is_link).then_some(Mode::new(attr.mode.bits() & copied)),
        uid,
        gid,
        atime: Some(SetTime::At(attr.atime)),
        mtime: Some(SetTime::At(attr.mtime)),
        ..SetAttr::default()
    })
}

/// Sets attributes by `set`; if the server refuses them, and owner or group are among them, sets the others
/// without set-user-id and set-group-id bits. Only the first such refusal in the whole copy is reported.
pub(super) async fn apply(
    work: &Work,
    asked: SetAttr,
    set: impl Fn(&SetAttr) -> Answer<Attr>,
) -> std::result::Result<(), (Step, Error)> {
    match set(&asked).resolve().await {
        Ok(_) => Ok(()),
        Err(error @ (Error::NotPermitted | Error::AccessDenied)) if asked.uid.or(asked.gid).is_some() => {
            let rights = Mode::MASK & !(Mode::SET_UID | Mode::SET_GID);
            let mode = asked.mode.map(|mode| Mode::new(mode.bits() & rights));
            let rest = SetAttr { uid: None, gid: None, mode, ..asked };
            set(&rest).resolve().await.map_err(|error| (Step::Attributes, error))?;
            let is_first = !work.owners_refused.swap(true, Ordering::Relaxed);
            if is_first { Err((Step::Owner, error)) } else { Ok(()) }
        }
        Err(error) => Err((Step::Attributes, error)),
    }
}

/// Returns `true` if attributes of a directory must be set after all its entries were copied.
pub(super) fn of_directory(options: &Options, attr: &Attr, is_new: bool) -> bool {
    // The final mode may deny the owner access that the owner needs to fill the directory.
    options.preserve || (is_new && attr.mode.bits() & OWNER_BITS != OWNER_BITS)
}

pub(super) async fn finish_directory(
    work: &Work,
    attr: &Attr,
    node: &Node,
) -> std::result::Result<(), (Step, Error)> {
    let made = node.attr().await.map_err(|error| (Step::Attributes, error))?;
    let set = to_preserve(work, attr, &made, node.tree())
        .unwrap_or_else(|| SetAttr { mode: Some(plain_mode(attr, node.tree())), ..SetAttr::default() });
    apply(work, set, |set| node.set_attr(set)).await
}

/// Returns the mode of a directory when nothing is preserved.
fn plain_mode(attr: &Attr, tree: &Tree) -> Mode {
    Mode::new(attr.mode.bits() & RIGHTS).without(tree.umask())
}

/// Returns `true` if the target counts as a complete copy: both are regular files of the same size and the
/// same modification time, as far as `granularity_ns` distinguishes times. Times are preserved last, so an
/// incomplete copy has another time.
pub(super) fn is_same(from: &Attr, to: &Attr, granularity_ns: u32) -> bool {
    if from.file_type != FileType::Regular || to.file_type != FileType::Regular || from.size != to.size {
        return false;
    }
    let grain = granularity_ns.clamp(1, 1_000_000_000);
    from.mtime.secs == to.mtime.secs && from.mtime.nanos / grain == to.mtime.nanos / grain
}

/// Treats a missing target as `None`.
pub(super) fn unless_missing(found: Result<Node>) -> Result<Option<Node>> {
    match found {
        Ok(node) => Ok(Some(node)),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

//! Recording the state before an operation.
//!
//! The state is observed on behalf of the server, not of the user: it is not returned to the user, and a back
//! end that changes its identity to the user's for each operation saves that change.

use std::sync::Arc;

use tombolo_core::fs::{FileSystem, NameBuf, NodeId, PersistentHandle, XattrName, within};
use tombolo_core::{Answer, Ctx, Error};

use super::append_locks::{AppendLock, AppendLocks};
use super::intent::{ExpectedEffect, NamedEntry, RecordedEffect, ValueMark};
use super::outcome::Inode;

pub(super) struct Observation {
    pub effect: RecordedEffect,
    /// Lock that excludes concurrent appends to the file; `None` unless the operation is an append.
    pub append_lock: Option<AppendLock>,
}

/// Records the state that `expected_effect` is about to change; `None` if that is impossible, and the
/// operation should run without an intent.
pub(super) fn observe(
    fs: &Arc<dyn FileSystem>,
    cx: &Ctx,
    expected_effect: ExpectedEffect,
) -> Answer<Option<Observation>> {
    // An interrupt of the request must not prevent the intent.
    let cx = cx.beside();
    let effect = match expected_effect {
        ExpectedEffect::Appends { node, len, append_locks } => {
            let observed = end(fs, &cx, node, len, append_locks);
            return observed.map_result(|observed| Ok(observed.ok()));
        }
        ExpectedEffect::Makes { parent, name, file_type } => {
            named_entry(fs, &cx, parent, name).map(move |at| RecordedEffect::Make { at, file_type })
        }
        // The name is looked up even if the caller has just done so (`Ctx::found`): another request may have
        // removed it since.
        ExpectedEffect::Removes { parent, name } => {
            named_entry(fs, &cx, parent, name).map(|at| RecordedEffect::Remove { at })
        }
        ExpectedEffect::Links { node, parent, name } => {
            let (fs, later_cx) = (fs.clone(), cx.clone());
            named_entry(&fs.clone(), &cx, parent, name).then(move |at| {
                fs.getattr(&later_cx, node, None)
                    .map(move |attr| RecordedEffect::Link { at, node: Inode::from(&attr) })
            })
        }
        ExpectedEffect::Renames { from_parent, from, to_parent, to } => {
            let (fs, later_cx) = (fs.clone(), cx.clone());
            named_entry(&fs.clone(), &cx, from_parent, from).then(move |from| {
                named_entry(&fs, &later_cx, to_parent, to).map(move |to| RecordedEffect::Rename { from, to })
            })
        }
        ExpectedEffect::Xattr { node, name, change } => {
            let (fs, later_cx) = (fs.clone(), cx.clone());
            handle(&fs.clone(), &cx, node).then(move |handle| {
                value_of(&*fs, &later_cx, node, name.as_name()).map(move |before| RecordedEffect::Xattr {
                    node: handle,
                    name,
                    before,
                    change,
                })
            })
        }
        ExpectedEffect::Changes { node, set } => {
            let (fs, later_cx) = (fs.clone(), cx.clone());
            handle(&fs.clone(), &cx, node).then(move |handle| {
                fs.getattr(&later_cx, node, None).map(move |attr| RecordedEffect::Change {
                    node: handle,
                    set,
                    ctime_before: attr.ctime,
                    size_before: attr.size,
                })
            })
        }
    };
    effect.map_result(|effect| Ok(effect.ok().map(|effect| Observation { effect, append_lock: None })))
}

/// Locks a file against other appends, waiting if necessary, and records its size before an append.
fn end(
    fs: &Arc<dyn FileSystem>,
    cx: &Ctx,
    node: NodeId,
    len: u64,
    append_locks: Arc<AppendLocks>,
) -> Answer<Observation> {
    let (fs, cx) = (fs.clone(), cx.clone());
    handle(&fs.clone(), &cx.clone(), node).then(move |handle| {
        let append_lock = match append_locks.try_take(&handle) {
            Some(append_lock) => Answer::ok(append_lock),
            None => {
                let handle = handle.clone();
                Answer::later(async move { Ok(append_locks.take(handle).await) })
            }
        };
        append_lock.then(move |append_lock| {
            fs.getattr(&cx, node, None).map(move |attr| Observation {
                effect: RecordedEffect::Append { node: handle, size_before: attr.size, len },
                append_lock: Some(append_lock),
            })
        })
    })
}

fn named_entry(fs: &Arc<dyn FileSystem>, cx: &Ctx, parent: NodeId, name: NameBuf) -> Answer<NamedEntry> {
    let (later_fs, later_cx) = (fs.clone(), cx.clone());
    handle(fs, cx, parent).then(move |handle| {
        found(&later_fs, &later_cx, parent, &name).map(move |found| NamedEntry {
            parent: handle,
            name,
            found,
        })
    })
}

fn found(fs: &Arc<dyn FileSystem>, cx: &Ctx, parent: NodeId, name: &NameBuf) -> Answer<Option<Inode>> {
    let (later_fs, later_cx) = (fs.clone(), cx.clone());
    fs.lookup(cx, parent, name.as_name()).map_result(move |found| match found {
        Ok(entry) => {
            later_fs.forget(&later_cx, &[(entry.node, 1)]);
            Ok(Some(Inode::from(&entry.attr)))
        }
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    })
}

/// Returns the value mark of an extended attribute; `None` if there is no such attribute.
pub(super) fn value_of(
    fs: &dyn FileSystem,
    cx: &Ctx,
    node: NodeId,
    name: XattrName<'_>,
) -> Answer<Option<ValueMark>> {
    within(fs.xattrs(), |xattrs| xattrs.get(cx, node, name, VALUE_MAX)).map_result(|value| match value {
        Ok(value) => Ok(Some(ValueMark::of(&value))),
        Err(Error::NoAttribute) => Ok(None),
        Err(error) => Err(error),
    })
}

/// Maximum length of an attribute's value (xattr(7), XATTR_SIZE_MAX).
const VALUE_MAX: usize = 64 << 10;

fn handle(fs: &Arc<dyn FileSystem>, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
    match fs.persistent_handles() {
        Some(handles) => handles.handle_of(cx, node),
        None => Answer::err(Error::NotSupported),
    }
}

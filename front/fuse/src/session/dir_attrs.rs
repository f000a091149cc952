//! Attributes of the directory changed last, from the reply to that change.
//!
//! After a change of names the kernel drops its attributes of the directory, and requests them before the
//! next walk through it. The reply to the change has them, so with
//! [`Coherence::Push`](super::Coherence::Push) that request is answered without the server. Attributes are
//! stored only from a change that no other change of this session overlapped, and dropped at this session's
//! next change of names or of these attributes, at the next notice, and when the kernel forgets the
//! directory.
//!
//! A fast path: without this file such a GETATTR goes to the server (docs/decisions/fuse-push.md).

use tombolo_core::lock;

use super::Push;
use std::sync::{Arc, Mutex};
use tombolo_core::fs::{Attr, NodeId};

/// Attributes of the directory changed last.
#[derive(Debug, Default)]
pub(super) struct DirAttrs(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of changes under way.
    under_way: usize,
    /// Number of changes begun and of directories forgotten so far: the same at a change's end as at its
    /// begin only if nothing else has happened meanwhile.
    begun: u64,
    known: Option<Known>,
}

#[derive(Debug)]
struct Known {
    dir: NodeId,
    attr: Attr,
    /// [`Push::count`] before the change; the attributes hold until it increases.
    notices: u64,
}

/// A change of names, or of a node's attributes, under way. Ends on drop.
#[derive(Debug)]
pub(super) struct DirChange {
    push: Arc<Push>,
    attrs: Arc<DirAttrs>,
    /// Number of this change, if no other was under way when it began.
    alone: Option<u64>,
    notices: u64,
    after: Option<(NodeId, Attr)>,
}

impl DirAttrs {
    /// Begins a change: of names, or with `node` of that node's attributes. Drops the stored attributes if
    /// the change may affect them.
    pub(super) fn change(self: &Arc<Self>, push: &Arc<Push>, node: Option<NodeId>) -> DirChange {
        let notices = push.count();
        let mut state = lock(&self.0);
        state.known.take_if(|known| node.is_none_or(|node| node == known.dir));
        state.begun += 1;
        state.under_way += 1;
        let alone = (state.under_way == 1).then_some(state.begun);
        DirChange { push: push.clone(), attrs: self.clone(), alone, notices, after: None }
    }

    /// Drops the attributes of a directory that the kernel has forgotten: no later notice would concern them.
    pub(super) fn forget(&self, dir: NodeId) {
        let mut state = lock(&self.0);
        // A change under way may be of that directory: its attributes must not be stored.
        state.begun += 1;
        state.known.take_if(|known| known.dir == dir);
    }

    /// Returns the attributes of a directory, if they are known and still hold.
    pub(super) fn get(&self, push: &Push, dir: NodeId) -> Option<Attr> {
        let state = lock(&self.0);
        let known = state.known.as_ref().filter(|known| known.dir == dir)?;
        (known.notices == push.count()).then_some(known.attr)
    }
}

impl DirChange {
    /// Returns `true` if the directory's attributes after this change can be of use.
    pub(super) fn wants_attr(&self) -> bool {
        self.alone.is_some()
    }

    /// Ends the change with the directory's attributes after it.
    pub(super) fn done(mut self, dir: NodeId, after: Option<Attr>) {
        self.after = after.filter(|attr| !attr.volatile).map(|attr| (dir, attr));
    }
}

impl Drop for DirChange {
    fn drop(&mut self) {
        let mut state = lock(&self.attrs.0);
        state.under_way -= 1;
        let is_alone = self.alone == Some(state.begun);
        let known = self.after.take().filter(|_| is_alone && self.push.count() == self.notices);
        if let Some((dir, attr)) = known {
            state.known = Some(Known { dir, attr, notices: self.notices });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::fs::{Device, FileType, Mode, Notice, Timestamp};

    const DIR: NodeId = NodeId(7);

    fn attr() -> Attr {
        Attr {
            file_type: FileType::Directory,
            mode: Mode::new(0o755),
            nlink: 2,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            rdev: Device::default(),
            fsid: 1,
            fileid: 7,
            generation: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: None,
            volatile: false,
        }
    }

    fn known() -> (Arc<DirAttrs>, Arc<Push>) {
        let (attrs, push) = (Arc::<DirAttrs>::default(), Arc::<Push>::default());
        attrs.change(&push, None).done(DIR, Some(attr()));
        assert!(attrs.get(&push, DIR).is_some() && attrs.get(&push, NodeId(8)).is_none());
        (attrs, push)
    }

    #[test]
    fn attributes_last_until_next_change_or_notice() {
        let (attrs, push) = known();
        push.log_notice(&Notice::Attributes(NodeId(9)));
        assert!(attrs.get(&push, DIR).is_none());
        let (attrs, push) = known();
        drop(attrs.change(&push, Some(NodeId(8))));
        assert!(attrs.get(&push, DIR).is_some(), "another node's attributes");
        for node in [None, Some(DIR)] {
            let (attrs, push) = known();
            let change = attrs.change(&push, node);
            assert!(attrs.get(&push, DIR).is_none());
            drop(change);
            assert!(attrs.get(&push, DIR).is_none(), "it failed, or its reply did not say");
        }
    }

    #[test]
    fn overlapping_changes_leave_nothing_known() {
        for first_ends_first in [true, false] {
            let (attrs, push) = known();
            let (first, second) = (attrs.change(&push, None), attrs.change(&push, Some(DIR)));
            assert!(first.wants_attr() && !second.wants_attr());
            let mut both = vec![second, first];
            if !first_ends_first {
                both.reverse();
            }
            both.into_iter().rev().for_each(|change| change.done(DIR, Some(attr())));
            assert!(attrs.get(&push, DIR).is_none());
        }
    }

    #[test]
    fn forgotten_directory_is_not_known() {
        let (attrs, push) = known();
        attrs.forget(NodeId(8));
        assert!(attrs.get(&push, DIR).is_some());
        let change = attrs.change(&push, None);
        attrs.forget(DIR);
        change.done(DIR, Some(attr()));
        assert!(attrs.get(&push, DIR).is_none(), "forgotten during the change");
        let (attrs, push) = known();
        attrs.forget(DIR);
        assert!(attrs.get(&push, DIR).is_none());
    }

    #[test]
    fn notice_during_change_leaves_nothing_known() {
        let (attrs, push) = known();
        let change = attrs.change(&push, None);
        push.log_notice(&Notice::Attributes(DIR));
        change.done(DIR, Some(attr()));
        assert!(attrs.get(&push, DIR).is_none());
    }
}

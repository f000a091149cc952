//! Change notifications to the other sessions of the export, sent after the change and before its reply.
//!
//! A notice says that something *may* have changed, so it is also sent when one step of several has failed.
//! While no session is subscribed, a change costs only a few more loads of a counter.

use std::cell::OnceCell;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use tombolo_core::fs::{Changes, Name, NodeId, Notice, Notices};
use tombolo_core::{Answer, Ctx, Error};
use tombolo_sys::stat::{self, Stat};

use crate::state::{ExportState, LocalSession, Location, Session};
use crate::table::Key;
use crate::window::ChangedFile;

impl Changes for LocalSession {
    fn next(&self, cx: &Ctx, since: u64, limit_bytes: usize) -> Answer<Notices> {
        self.begin_watch();
        self.0.notices.next(cx, since, limit_bytes)
    }

    fn is_complete(&self) -> bool {
        self.0.export.sees_all_changes()
    }
}

impl LocalSession {
    /// Subscribes to changes, which are reported to the session from the return of this call until it ends.
    /// With the option `watch_host` those of other processes are reported and counted in the window too.
    pub(crate) fn begin_watch(&self) {
        self.0.watch.call_once(|| {
            self.0.export.watchers.add(Arc::downgrade(&self.0));
            self.0.export.host_watch.begin(&self.0.export);
        });
    }
}

impl ExportState {
    /// Returns `true` if all changes by other processes of the host are observed too.
    pub(crate) fn sees_all_changes(&self) -> bool {
        self.options.watch_host && self.host_watch.is_complete()
    }
}

/// The file that is about to lose a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Victim {
    /// The file was not looked up, because no session was subscribed at that time.
    NotChecked,
    /// The name leads to no file, or to one that no session can have a node of.
    None,
    /// The file with this key. `is_last_name` is exact for regular files only; other files count as losing
    /// their last name, so [`Notifier::victim`] queries the link count after the change.
    File { key: Key, is_last_name: bool },
}

/// Sender of notices to all subscribed sessions except the one that makes the change.
pub(crate) struct Notifier<'a>(&'a Session);

impl Session {
    /// Calls `tell` to send notices, if any session is subscribed.
    #[inline]
    pub(crate) fn notify(&self, tell: impl FnOnce(Notifier<'_>)) {
        if self.export.watchers.any() {
            tell(Notifier(self));
        }
    }

    /// Finds the file that is about to lose this name, if any session is subscribed.
    #[inline]
    pub(crate) fn victim(&self, dir: &Location, name: Name<'_>) -> Victim {
        if !self.export.watchers.any() {
            return Victim::NotChecked;
        }
        let Ok(stat) = stat::stat_entry(dir.fd(), name.as_bytes()) else { return Victim::None };
        let is_last_name = stat.links == 1 || !matches!(stat.kind(), stat::S_IFREG);
        self.key(&stat).map_or(Victim::None, |key| Victim::File { key, is_last_name })
    }

    /// Runs an operation that may set the access time of a node, and notifies the other sessions if it did.
    pub(crate) fn reading<T>(&self, node: NodeId, fd: BorrowedFd<'_>, read: impl FnOnce() -> T) -> T {
        if !self.export.watchers.any() {
            return read();
        }
        let accessed = || stat::stat(fd).map(|stat| stat.accessed).ok();
        let changing = self.changing([ChangedFile::Node(node)]);
        let before = accessed();
        let done = read();
        if before == accessed() {
            changing.unchanged();
        } else {
            self.notify(|notifier| notifier.attributes(node));
        }
        done
    }

    /// Returns the key of a node's file, by which every session finds its own node of the file; `None` if
    /// this session has forgotten the node.
    pub(crate) fn key_of(&self, node: NodeId) -> Option<Key> {
        if node == NodeId::ROOT { Some(self.export.root.identity.key) } else { self.table.key_of(node) }
    }

    fn key(&self, stat: &Stat) -> Option<Key> {
        Some(self.identity(stat, self.export.mounts.index_of(stat)?).key)
    }

    /// Returns `true` if a node of this session has no name left.
    pub(crate) fn is_gone(&self, node: NodeId) -> bool {
        let links = self.location(node).and_then(|location| Ok(stat::stat(location.fd())?.links));
        matches!(links, Ok(0) | Err(Error::Stale | Error::NotFound))
    }

    /// Returns the notice for a deleted node and the name it lost.
    pub(crate) fn gone(&self, node: NodeId, dir: &Key, name: Name<'_>) -> Notice {
        Notice::Gone { node, name: self.node_of(dir).map(|dir| (dir, name.to_owned())) }
    }

    pub(crate) fn node_of(&self, key: &Key) -> Option<NodeId> {
        if *key == self.export.root.identity.key { Some(NodeId::ROOT) } else { self.table.peek(key) }
    }
}

impl Notifier<'_> {
    /// Reports changed attributes of a node of this session.
    pub(crate) fn attributes(&self, node: NodeId) {
        self.about(self.0.key_of(node), Notice::Attributes);
    }

    /// Reports `len` changed bytes of a file from `start` on.
    pub(crate) fn data(&self, node: NodeId, start: u64, len: u64) {
        let last = start.saturating_add(len.max(1) - 1);
        self.about(self.0.key_of(node), |node| Notice::Data { node, start, last });
    }

    /// Reports a changed name, and with it the listing and the attributes of its directory.
    pub(crate) fn name(&self, dir: &Location, name: Name<'_>) {
        let key = Some(dir.identity.key);
        self.about(key, |dir| Notice::Name { dir, name: name.to_owned() });
        self.about(key, Notice::Attributes);
    }

    /// Reports that a file has lost a name. `lost` is that name if it was removed or replaced, so that the
    /// file may be deleted; `None` if the file was moved, so that only its attributes have changed.
    pub(crate) fn victim(&self, victim: Victim, lost: Option<(&Location, Name<'_>)>) {
        match (victim, lost) {
            (Victim::None, _) => {}
            (Victim::File { key, is_last_name: true }, Some((dir, name))) => {
                // The name may not have been the last: another process may have linked the file in between,
                // and symbolic links, pipes and devices are not checked before.
                let is_gone = OnceCell::new();
                self.each(|session| {
                    let node = session.node_of(&key)?;
                    let is_gone = *is_gone.get_or_init(|| session.is_gone(node));
                    Some(if is_gone {
                        session.gone(node, &dir.identity.key, name)
                    } else {
                        Notice::Attributes(node)
                    })
                });
            }
            (Victim::File { key, .. }, _) => self.about(Some(key), Notice::Attributes),
            // A session that has subscribed since `Session::victim` may have read state from before the
            // change. The file is unknown, so everything is reported as changed.
            (Victim::NotChecked, _) => self.each(|_| Some(Notice::Everything)),
        }
    }

    fn about(&self, key: Option<Key>, notice: impl Fn(NodeId) -> Notice) {
        match key {
            Some(key) => self.each(|session| session.node_of(&key).map(&notice)),
            // The client of this session has forgotten the node meanwhile, so its identity is unknown.
            None => self.each(|_| Some(Notice::Everything)),
        }
    }

    fn each(&self, notice: impl Fn(&Session) -> Option<Notice>) {
        self.0.export.watchers.tell(|session| {
            if !ptr::eq(session, self.0)
                && let Some(notice) = notice(session)
            {
                session.notices.push(notice);
            }
        });
    }
}

//! Telling the other sessions of the export what one has changed: after it is done, and before it is
//! answered.
//!
//! What is said is that something *may* have changed, so it is said also when a step of several has failed.
//! Where no session asks, a change costs one load more.

use std::cell::OnceCell;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use tombolo_core::fs::{Changes, Name, NodeId, Notice, Notices};
use tombolo_core::{Answer, Ctx, Error};
use tombolo_sys::stat::{self, Stat};

use crate::state::{LocalSession, Location, Session, Shared};
use crate::table::Key;
use crate::window::Place;

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
    /// From when this returns, changes are told and counted, until the session ends.
    pub(crate) fn begin_watch(&self) {
        self.0.watch.call_once(|| {
            self.0.export.watchers.add(Arc::downgrade(&self.0));
            self.0.export.host_watch.begin(&self.0.export);
        });
    }
}

impl Shared {
    /// Whether changes by other processes of the host are seen too.
    pub(crate) fn sees_all_changes(&self) -> bool {
        self.options.watch_host && self.host_watch.is_complete()
    }
}

/// What has a name that is about to go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Victim {
    /// No session was to be told when the name was still there.
    NotLookedFor,
    /// Nothing, or what no session can know.
    None,
    /// This file, whose only name it is or not.
    Found { key: Key, is_last_name: bool },
}

/// Tells the sessions that watch, but for the one whose change it is.
pub(crate) struct Telling<'a>(&'a Session);

impl Session {
    /// Something has changed that may have to be told.
    #[inline]
    pub(crate) fn telling(&self) -> Option<Telling<'_>> {
        self.export.watchers.any().then_some(Telling(self))
    }

    /// What loses a name next.
    #[inline]
    pub(crate) fn victim(&self, dir: &Location, name: Name<'_>) -> Victim {
        if !self.export.watchers.any() {
            return Victim::NotLookedFor;
        }
        let Ok(stat) = stat::stat_entry(dir.fd(), name.as_bytes()) else { return Victim::None };
        let is_last_name = stat.links == 1 || !matches!(stat.kind(), stat::S_IFREG);
        self.key(&stat).map_or(Victim::None, |key| Victim::Found { key, is_last_name })
    }

    /// Does what may set the access time of a node.
    pub(crate) fn reading<T>(&self, node: NodeId, fd: BorrowedFd<'_>, read: impl FnOnce() -> T) -> T {
        if !self.export.watchers.any() {
            return read();
        }
        let accessed = || stat::stat(fd).map(|stat| stat.accessed).ok();
        let changing = self.changing([Place::Node(node)]);
        let before = accessed();
        let done = read();
        if before == accessed() {
            changing.unchanged();
        } else if let Some(telling) = self.telling() {
            telling.attributes(node);
        }
        done
    }

    /// What tells a node from all others, in every session.
    pub(crate) fn key_of(&self, node: NodeId) -> Option<Key> {
        if node == NodeId::ROOT { Some(self.export.root.identity.key) } else { self.table.key_of(node) }
    }

    fn key(&self, stat: &Stat) -> Option<Key> {
        Some(self.identity(stat, self.export.mounts.index_of(stat)?).key)
    }

    /// Whether a node that this session knows has no name any more.
    pub(crate) fn is_gone(&self, node: NodeId) -> bool {
        let links = self.location(node).and_then(|location| Ok(stat::stat(location.fd())?.links));
        matches!(links, Ok(0) | Err(Error::Stale | Error::NotFound))
    }

    /// Word of a node that is gone, and of that name of it.
    pub(crate) fn gone(&self, node: NodeId, dir: &Key, name: Name<'_>) -> Notice {
        Notice::Gone { node, name: self.node_of(dir).map(|dir| (dir, name.to_owned())) }
    }

    /// The node that this session knows by that key.
    pub(crate) fn node_of(&self, key: &Key) -> Option<NodeId> {
        if *key == self.export.root.identity.key { Some(NodeId::ROOT) } else { self.table.peek(key) }
    }
}

impl Telling<'_> {
    /// Attributes of a node that this session knows.
    pub(crate) fn attributes(&self, node: NodeId) {
        self.about(self.0.key_of(node), Notice::Attributes);
    }

    /// So many bytes of a file from `start` on.
    pub(crate) fn data(&self, node: NodeId, start: u64, len: u64) {
        let last = start.saturating_add(len.max(1) - 1);
        self.about(self.0.key_of(node), |node| Notice::Data { node, start, last });
    }

    /// A name, with the listing and the attributes of its directory.
    pub(crate) fn name(&self, dir: &Location, name: Name<'_>) {
        let key = Some(dir.identity.key);
        self.about(key, |dir| Notice::Name { dir, name: name.to_owned() });
        self.about(key, Notice::Attributes);
    }

    /// What has lost a name, or may have: that one, or it has another now.
    pub(crate) fn victim(&self, victim: Victim, lost: Option<(&Location, Name<'_>)>) {
        match (victim, lost) {
            (Victim::None, _) => {}
            (Victim::Found { key, is_last_name: true }, Some((dir, name))) => {
                // Others may have had their hands in between.
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
            (Victim::Found { key, .. }, _) => self.about(Some(key), Notice::Attributes),
            // A session has begun to watch meanwhile, and may have looked before the change was done.
            (Victim::NotLookedFor, _) => self.each(|_| Some(Notice::Everything)),
        }
    }

    fn about(&self, key: Option<Key>, notice: impl Fn(NodeId) -> Notice) {
        match key {
            Some(key) => self.each(|session| session.node_of(&key).map(&notice)),
            // The caller has forgotten the node meanwhile.
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

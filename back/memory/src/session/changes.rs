//! Change notifications to other sessions.

use tombolo_core::fs::{Changes, NodeId, Notice, Notices};
use tombolo_core::{Answer, Ctx, lock};

use super::{Session, SessionTables};
use crate::change_log::Changed;
use crate::directory::Ino;

impl Changes for Session {
    fn next(&self, cx: &Ctx, since: u64, limit_bytes: usize) -> Answer<Notices> {
        self.begin_watch();
        self.notices.next(cx, since, limit_bytes)
    }

    fn is_complete(&self) -> bool {
        true
    }
}

impl Session {
    /// Subscribes to changes by other sessions: they are reported to this session, and all changes are
    /// counted in the window, from the return of this call until it ends.
    pub(super) fn begin_watch(&self) {
        self.watch.call_once(|| self.shared.watchers.add(self.me.clone()));
    }
}

/// Changes by a session; reported to the other sessions on drop. The drop locks the tables of those sessions,
/// so the changing session's own locks must be released before.
pub(super) struct PendingNotices<'a> {
    by: &'a Session,
    pub(super) changes: Vec<Changed>,
}

impl<'a> PendingNotices<'a> {
    pub(super) fn by(by: &'a Session) -> Self {
        Self { by, changes: Vec::new() }
    }
}

impl Drop for PendingNotices<'_> {
    fn drop(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        self.by.shared.watchers.tell(|session| {
            if session.id == self.by.id {
                return;
            }
            let tables = lock(&session.tables);
            let notices: Vec<_> =
                self.changes.iter().filter_map(|changed| changed.to_notice(&tables)).collect();
            drop(tables);
            notices.into_iter().for_each(|notice| session.notices.push(notice));
        });
    }
}

impl Changed {
    /// Converts the change to a notice for a session; `None` if the session has no reference to the node.
    fn to_notice(&self, tables: &SessionTables) -> Option<Notice> {
        let node_id = |ino: Ino| {
            let is_known = ino == Ino::ROOT || tables.nodes.contains_key(&ino);
            is_known.then_some(NodeId(ino.0))
        };
        Some(match self {
            Self::Attributes(ino) => Notice::Attributes(node_id(*ino)?),
            Self::Data(ino) => Notice::Data { node: node_id(*ino)?, start: 0, last: u64::MAX },
            Self::Name(dir, name) => Notice::Name { dir: node_id(*dir)?, name: name.clone() },
            Self::Gone(ino) => Notice::Gone { node: node_id(*ino)?, name: None },
        })
    }
}

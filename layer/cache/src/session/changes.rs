//! Notification of sessions of each other's changes: complete where all changes are made through this cache.

use std::sync::Arc;

use tombolo_core::fs::{Changes, Entry, FileType, NameBuf, NodeId, Notice, Notices};
use tombolo_core::{Answer, Ctx, Result};

use super::file_system::CachedFileSystem;
use super::view::View;
use crate::freshness::Look;
use crate::object::Object;
use crate::objects::node_of;

impl Changes for CachedFileSystem {
    fn next(&self, cx: &Ctx, since: u64, limit_bytes: usize) -> Answer<Notices> {
        let session = self.session();
        session.watch.call_once(|| session.cache.watchers.add(Arc::downgrade(session)));
        session.notices.next(cx, since, limit_bytes)
    }

    fn is_complete(&self) -> bool {
        !self.session().cache.is_unheld()
    }
}

impl View {
    /// Notifies the other sessions of changes that this one has made, or may have.
    pub(super) fn tell(&self, notices: impl IntoIterator<Item = Notice>) {
        if !self.cache().watchers.any() {
            return;
        }
        let notices: Vec<Notice> = notices.into_iter().collect();
        self.cache().watchers.tell(|session| {
            if !std::ptr::eq(&raw const *self.session, session) {
                let concerned = notices.iter().filter(|notice| session.known.concerns(notice));
                concerned.for_each(|notice| session.notices.push(notice.clone()));
            }
        });
    }

    /// Notifies the other sessions of a name that was created, removed or moved.
    pub(super) fn tell_name(&self, dir: &Object, name: &NameBuf) {
        let dir = node_of(dir.id);
        self.tell([Notice::Name { dir, name: name.clone() }, Notice::Attributes(dir)]);
    }

    /// Notifies the other sessions that an object has one name less.
    pub(super) fn tell_unnamed(&self, object: &Object) {
        let node = node_of(object.id);
        let is_last = object.file_type == FileType::Directory || object.state().attr.nlink < 2;
        self.tell([if is_last { Notice::Gone { node, name: None } } else { Notice::Attributes(node) }]);
    }

    /// Counts a look-up, so that the session is notified of later changes if it has subscribed. Returns
    /// attributes that are valid now if any session has.
    pub(super) async fn given(&self, entry: Entry, object: &Arc<Object>) -> Result<Entry> {
        self.session.known.given(entry.node);
        if !self.cache().watchers.any() {
            return Ok(entry);
        }
        let attr = match object.believed(Look::Stat, self.cache().options_of(object)) {
            Some(attr) => attr,
            None => {
                let attr = self.attr(object, Look::Stat).await;
                attr.inspect_err(|_| self.session.known.forget(&[(entry.node, 1)]))?
            }
        };
        Ok(Entry { attr, ..entry })
    }
}

/// Returns a notice of a change of all data and the attributes.
pub(super) fn all_data(node: NodeId) -> Notice {
    Notice::Data { node, start: 0, last: u64::MAX }
}

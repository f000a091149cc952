//! Helpers common to all operations: objects, attributes, and the caller's permissions.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{AccessMask, Attr, Change, Entry, File, FileType, NodeId, StatFs};
use tombolo_core::{Answer, Ctx, Error, Result, Want};

use super::Session;
use crate::cache::Cache;
use crate::freshness::Look;
use crate::object::Object;
use crate::objects::{id_of, node_of};
use crate::origin::at_origin;

/// One operation: its session, and the context of its caller.
#[derive(Clone)]
pub(super) struct View {
    pub session: Arc<Session>,
    pub cx: Ctx,
}

impl View {
    pub(super) fn new(session: &Arc<Session>, cx: &Ctx) -> Self {
        Self { session: session.clone(), cx: cx.clone() }
    }

    pub(super) fn cache(&self) -> &Arc<Cache> {
        &self.session.cache
    }

    pub(super) fn at_origin(&self) -> Ctx {
        at_origin(&self.cx)
    }

    pub(super) fn object(&self, node: NodeId) -> Result<Arc<Object>> {
        self.cache().object(id_of(node)?)
    }

    /// Returns an object, through its opening if there is one.
    pub(super) fn through(&self, node: NodeId, file: Option<File>) -> Result<Arc<Object>> {
        match file {
            Some(file) if file.node == node => Ok(self.session.openings.of(file)?.object.clone()),
            Some(_) => Err(Error::BadOpen),
            None => self.object(node),
        }
    }

    pub(super) async fn node(&self, object: &Arc<Object>) -> Result<NodeId> {
        self.cache().node(&self.cx, object).await
    }

    /// Returns the attributes of an object, cached ones if valid.
    pub(super) async fn attr(&self, object: &Arc<Object>, look: Look) -> Result<Attr> {
        match object.believed(look, self.cache().options_of(object)) {
            Some(attr) => Ok(attr),
            None => {
                let asked = Instant::now();
                let attr = self.cache().fetch_attr(&self.cx, object).await?;
                // A file's data are revalidated at its open, a directory's names with its attributes.
                if object.file_type == FileType::Directory {
                    object.settle(asked, self.cache().options_of(object).contract);
                }
                Ok(attr)
            }
        }
    }

    /// Returns the object of an entry in a reply to a request made at `asked`, and the entry as shown to
    /// clients.
    pub(super) async fn met(&self, entry: &Entry, asked: Instant) -> Result<(Entry, Arc<Object>)> {
        let object = self.cache().met(&self.cx, entry, asked).await?;
        self.cache().bound_index_later();
        let shown = Entry { node: node_of(object.id), attr: object.shown(&entry.attr) };
        Ok((shown, object))
    }

    /// Returns whether the user has these permissions; `None` if no valid answer is cached.
    pub(super) fn may(&self, object: &Object, mask: AccessMask) -> Option<bool> {
        match mask.is_empty() {
            true => Some(true),
            false => object.allows(&self.cx.identity, mask, self.cache().options_of(object)),
        }
    }

    /// Checks the user's permission, querying the origin if it is not cached.
    pub(super) async fn check(&self, object: &Arc<Object>, mask: AccessMask) -> Result<()> {
        let allowed = match self.may(object, mask) {
            Some(allowed) => allowed,
            None => self.ask_access(object, mask).await?,
        };
        if allowed { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Queries the origin for the caller's permission, and caches the answer.
    pub(super) async fn ask_access(&self, object: &Arc<Object>, mask: AccessMask) -> Result<bool> {
        let node = self.node(object).await?;
        let asked = Instant::now();
        let asking = self.cache().origin.fs.access(&self.at_origin(), node, mask);
        let is_asked = matches!(asking, Answer::Later(_));
        let answer = asking.resolve().await;
        let took = asked.elapsed();
        self.cache().told(&self.cx, object, asked);
        let allowed = match answer {
            Ok(()) => true,
            Err(Error::AccessDenied | Error::NotPermitted | Error::ReadOnly) => false,
            Err(error) => return Err(self.cache().failed(object, error)),
        };
        if is_asked {
            self.cache().line.answered(took);
        }
        match allowed {
            true => object.grant(&self.cx.identity, mask, mask, asked),
            false => object.deny(&self.cx.identity, mask, asked),
        }
        self.cache().keep(object);
        Ok(allowed)
    }

    pub(super) async fn statfs(self, object: Arc<Object>) -> Result<StatFs> {
        let node = self.node(&object).await?;
        let told = self.cache().origin.fs.statfs(&self.at_origin(), node).resolve().await;
        let told = told.map_err(|error| self.cache().failed(&object, error))?;
        self.cache().room.learn(told);
        Ok(told)
    }

    /// Returns a change's attributes as shown to the caller, if it wants them.
    pub(super) fn shown_change(&self, object: &Object, change: Change) -> Change {
        match self.cx.want.contains(Want::CHANGE_ATTRS) {
            true => Change { before: change.before, after: change.after.map(|attr| object.shown(&attr)) },
            false => Change::default(),
        }
    }
}

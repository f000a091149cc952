//! Opening and creation of files, from the cache or at the origin.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{
    AccessMask, Attr, Create, Created, Entry, File, FileType, NameBuf, NodeId, OpenFlags, OpenId, Opened,
};
use tombolo_core::{Ctx, Error, Result};
use tombolo_host_runtime::pending::PendingGuard;

use super::changes::all_data;
use super::changing::NameChange;
use super::view::View;
use crate::freshness::Look;
use crate::names::Known;
use crate::object::Object;
use crate::objects::node_of;
use crate::openings::is_writing;
use crate::options::Contract;
use crate::origin::OriginFile;
use crate::store::ObjectId;
use crate::unnamed::Names;
use crate::written::is_unanswered;

impl View {
    /// Opens from the cache alone, or fails, if the contract allows that and the attributes and permissions
    /// needed are cached and valid; otherwise, and for writing, returns `None`.
    pub(super) fn open_here(
        &self,
        object: &Arc<Object>,
        flags: OpenFlags,
        began: Instant,
    ) -> Option<Result<Opened>> {
        if is_writing(flags) || object.file_type == FileType::Symlink {
            return None;
        }
        // Close-to-open concerns data only: listing a directory needs no more than valid attributes.
        let look = if object.file_type == FileType::Directory { Look::Stat } else { Look::Open(began) };
        let attr = object.believed(look, self.cache().options_of(object))?;
        let opened = match (self.may(object, mask(flags))?, fits(object.file_type, flags)) {
            (true, Ok(())) => self.session.openings.permit().map(|permit| {
                touch(object);
                let open = self.session.openings.add(permit, object, flags, None);
                Opened { open, attr: Some(attr) }
            }),
            (true, Err(error)) => Err(error),
            (false, _) => Err(Error::AccessDenied),
        };
        Some(opened)
    }

    /// Opens at the origin, which checks the permission and returns current attributes; or a directory from
    /// the cache, if a listing made at this open or before has brought all that is needed.
    pub(super) async fn open(self, object: Arc<Object>, flags: OpenFlags) -> Result<Opened> {
        let began = Instant::now();
        if object.file_type == FileType::Directory {
            let is_begun = self.list_at_open(&object);
            self.walk_ahead(&object);
            if self.await_listing(&object).await? | is_begun
                && let Some(opened) = self.open_here(&object, flags, Instant::now())
            {
                return opened;
            }
        }
        let permit = self.session.openings.permit()?;
        self.fetch_at_open(&object, flags);
        if flags.contains(OpenFlags::TRUNCATE) {
            object.state().resized();
        }
        let opened = self.open_at_origin(&object, flags).await;
        if flags.contains(OpenFlags::TRUNCATE) {
            object.state().resized();
            if opened.as_ref().is_err_and(is_unanswered) {
                object.set_unanswered();
            }
            // The file may have been truncated all the same.
            if opened.is_err() {
                object.doubt();
            }
            self.tell([all_data(node_of(object.id))]);
        }
        let (origin, _, attr) = opened?;
        // Data that the open itself has prefetched arrived after `began`, so they are not dropped.
        object.settle(began, self.cache().options_of(&object).contract);
        touch(&object);
        let open = self.session.openings.add(permit, &object, flags, Some(origin));
        Ok(Opened { open, attr: Some(attr) })
    }

    /// Opens at the origin, and stores attributes and permissions. Returns the opening, the time of the
    /// request, and the attributes.
    pub(super) async fn open_at_origin(
        &self,
        object: &Arc<Object>,
        flags: OpenFlags,
    ) -> Result<(Arc<OriginFile>, Instant, Attr)> {
        let asked = Instant::now();
        let (file, attr) = self.open_as(&self.at_origin(), object, flags, None).await?;
        let attr = match attr {
            Some(attr) => self.cache().learn(object, &attr, asked)?,
            None => self.cache().fetch_attr(&self.cx, object).await?,
        };
        object.grant(&self.cx.identity, mask(flags), mask(flags), asked);
        self.cache().keep(object);
        Ok((file, asked, attr))
    }

    /// Opens at the origin without a separate permission check, for callers that query attributes and
    /// permissions themselves.
    pub(super) async fn open_unasked(
        &self,
        object: &Arc<Object>,
        flags: OpenFlags,
    ) -> Result<Arc<OriginFile>> {
        let cx = Ctx { opens_unchecked: true, ..self.at_origin() };
        // A removal of the file waits until this opening ends.
        let unasked =
            (object.file_type == FileType::Regular).then(|| self.cache().origin.unasked.begin(object.id));
        self.open_as(&cx, object, flags, unasked).await.map(|(file, _)| file)
    }

    async fn open_as(
        &self,
        cx: &Ctx,
        object: &Arc<Object>,
        flags: OpenFlags,
        unasked: Option<PendingGuard<ObjectId>>,
    ) -> Result<(Arc<OriginFile>, Option<Attr>)> {
        let node = self.node(object).await?;
        let (asked, origin) = (Instant::now(), &self.cache().origin);
        // O_DIRECT is dropped unless the file is to be written, as fetches are not aligned as it requires.
        let at_origin = if is_writing(flags) { flags } else { flags - OpenFlags::DIRECT };
        match origin.fs.open(cx, node, at_origin).resolve().await {
            Ok(opened) => {
                let file = OriginFile::new(origin, File { node, open: opened.open }, &self.cx, unasked);
                Ok((file, opened.attr))
            }
            Err(Error::AccessDenied) => {
                object.deny(&self.cx.identity, mask(flags), asked);
                self.cache().keep(object);
                Err(Error::AccessDenied)
            }
            Err(error) => Err(self.cache().failed(object, error)),
        }
    }

    /// Returns the origin's opening, made on first need.
    pub(super) async fn origin_file(&self, file: File) -> Result<Arc<OriginFile>> {
        let opening = self.session.openings.of(file)?;
        match opening.origin() {
            Some(origin) => Ok(origin),
            None => {
                let (origin, ..) = self.open_at_origin(&opening.object, opening.flags).await?;
                Ok(opening.set_origin(origin))
            }
        }
    }

    /// Creates or opens a file at the origin.
    pub(super) async fn create(self, parent: NodeId, name: NameBuf, how: Create) -> Result<Created> {
        let permit = self.session.openings.permit()?;
        let dir = self.object(parent)?;
        let node = self.node(&dir).await?;
        let is_new = dir.state().names.look_up(name.as_name().as_bytes()) == Some(Known::Absent);
        let (change, origin) = (NameChange::begin(&dir, &[&name]), &self.cache().origin);
        let created = origin.fs.create(&self.at_origin(), node, name.as_name(), &how).resolve().await;
        let created = created.map_err(|error| {
            if how.flags.contains(OpenFlags::TRUNCATE) {
                self.may_be_truncated(&dir, &name);
            }
            self.tell_name(&dir, &name);
            self.dir_failed(&dir, error)
        })?;
        let (entry, object, file) = self.entered(&created, change.asked).await?;
        self.cache().found_in(&object, &dir, name.as_name().as_bytes());
        self.name_made(&change, &name, &object, &created.dir);
        if is_new && self.cache().options_of(&dir).contract == Contract::Exclusive {
            self.is_its_owner_s(&object, change.asked);
        }
        self.tell_name(&dir, &name);
        if how.flags.contains(OpenFlags::TRUNCATE) {
            object.state().resized();
            self.tell([all_data(node_of(object.id))]);
        }
        let entry = self.given(entry, &object).await?;
        let open: OpenId = self.session.openings.add(permit, &object, how.flags, Some(file));
        Ok(Created { entry, open, dir: self.shown_change(&dir, created.dir) })
    }

    /// Handles a failed create with truncation: the file may have been truncated all the same.
    fn may_be_truncated(&self, dir: &Object, name: &NameBuf) {
        let Some(Known::Found(target)) = dir.state().names.look_up(name.as_name().as_bytes()) else { return };
        if let Some(object) = self.cache().objects.in_memory(target.object) {
            object.doubt();
            object.state().resized();
            self.tell([all_data(node_of(object.id))]);
        }
    }

    /// Creates a file without a name (O_TMPFILE).
    pub(super) async fn create_unnamed(self, parent: NodeId, how: Create) -> Result<Created> {
        let permit = self.session.openings.permit()?;
        let dir = self.object(parent)?;
        let node = self.node(&dir).await?;
        let (asked, origin) = (Instant::now(), &self.cache().origin);
        let created = origin.fs.create_unnamed(&self.at_origin(), node, &how).resolve().await?;
        let (entry, object, file) = self.entered(&created, asked).await?;
        object.place.set_unnamed();
        let entry = self.given(entry, &object).await?;
        let open = self.session.openings.add(permit, &object, how.flags, Some(file));
        self.cache().lost_a_name(object.id, Names::None);
        Ok(Created { entry, open, dir: self.shown_change(&dir, created.dir) })
    }

    async fn entered(
        &self,
        created: &Created,
        asked: Instant,
    ) -> Result<(Entry, Arc<Object>, Arc<OriginFile>)> {
        let file = File { node: created.entry.node, open: created.open };
        let file = OriginFile::new(&self.cache().origin, file, &self.cx, None);
        let (entry, object) = self.met(&created.entry, asked).await?;
        Ok((entry, object, file))
    }
}

fn touch(object: &Object) {
    let data = object.state().data.clone();
    if let Some(data) = data {
        data.file.touch();
        object.weigh();
    }
}

/// Returns the permissions that an open needs.
pub(super) fn mask(flags: OpenFlags) -> AccessMask {
    let mut mask = AccessMask::empty();
    // Execution needs no read permission.
    mask.set(AccessMask::READ, flags.contains(OpenFlags::READ) && !flags.contains(OpenFlags::EXECUTE));
    mask.set(AccessMask::WRITE, flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE));
    mask.set(AccessMask::EXECUTE, flags.contains(OpenFlags::EXECUTE));
    mask
}

fn fits(file_type: FileType, flags: OpenFlags) -> Result<()> {
    match file_type {
        FileType::Directory => Ok(()),
        _ if flags.contains(OpenFlags::DIRECTORY) => Err(Error::NotDirectory),
        _ => Ok(()),
    }
}

//! Dispatch of the waist's operations: answered immediately where possible, otherwise as a future.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{
    AccessMask, Attr, BackingFiles, Change, Changes, Cookie, Create, Created, Device, DirPage, Entry, File,
    FileSystem, FileType, LockOwner, Made, Name, NewMode, NodeId, OpenFlags, Opened, Profile, ReadDone,
    RenameFlags, Renamed, SetAttr, StatFs, SyncScope, Write, Written, Xattrs,
};
use tombolo_core::{Answer, Ctx, Error, or_answer};
use tombolo_host_runtime::task;
use tombolo_host_runtime::to_its_end;
use tombolo_mem::{Sink, Source};

use super::Session;
use super::view::View;
use crate::freshness::Look;
use crate::objects::id_of;
use crate::origin::detached;

/// A session as a file system of the waist.
pub(crate) struct CachedFileSystem(Arc<Session>);

impl CachedFileSystem {
    pub(crate) fn new(session: Session) -> Self {
        let session = Arc::new(session);
        session.cache.unnamed.add_session(&session);
        Self(session)
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0
    }

    pub(super) fn view(&self, cx: &Ctx) -> View {
        View::new(&self.0, cx)
    }

    /// Returns `true` if changes of a node, or of a name in that directory, are refused.
    pub(super) fn is_read_only(&self, node: NodeId, name: Option<Name<'_>>) -> bool {
        let cache = &self.0.cache;
        let policy = cache.policy();
        if self.0.profile.read_only || policy.rules.is_empty() {
            return self.0.profile.read_only;
        }
        let Ok(object) = id_of(node).and_then(|id| cache.object(id)) else { return policy.default.read_only };
        match name {
            Some(name) => cache.options_for(&object, name.as_bytes()).read_only,
            None => cache.options_of(&object).read_only,
        }
    }

    fn hides(&self, dir: NodeId, name: Name<'_>) -> bool {
        id_of(dir).is_ok_and(|dir| self.0.cache.hides(dir, name.as_bytes()))
    }

    fn hit<T>(&self, value: Result<T, Error>) -> Answer<T> {
        self.0.cache.counters.hits.increment();
        value.into()
    }

    pub(super) fn missed<T>(
        &self,
        later: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Answer<T> {
        self.0.cache.counters.misses.increment();
        Answer::later(later)
    }
}

/// Refuses changes of a read-only node, or of a name that is read-only or the lease file's.
macro_rules! unless_read_only {
    ($self:ident, $node:expr) => {
        if $self.is_read_only($node, None) {
            return Answer::err(Error::ReadOnly);
        }
    };
    ($self:ident, $dir:expr, $name:expr) => {
        if $self.is_read_only($dir, Some($name)) {
            return Answer::err(Error::ReadOnly);
        }
        if $self.hides($dir, $name) {
            return Answer::err(Error::NotPermitted);
        }
    };
}

/// Changes that a [`View`] performs to their end, with copies of borrowed arguments, unless the node or the
/// name in brackets is read-only or hidden.
macro_rules! changes {
    ($($method:ident[$($node:ident $(/ $name:ident)?),+]
        ($($argument:ident: $kind:ty $(= $owned:expr)?),+) -> $answer:ty;)+) => {
        $(fn $method(&self, cx: &Ctx, $($argument: $kind),+) -> Answer<$answer> {
            $(unless_read_only!(self, $node $(, $name)?);)+
            $($(let $argument = $owned;)?)+
            to_its_end(self.view(cx).$method($($argument),+))
        })+
    };
}

impl FileSystem for CachedFileSystem {
    tombolo_core::forward!(own self; data_cache persistent_handles lending);

    fn profile(&self) -> Profile {
        self.0.profile
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        if self.hides(parent, name) {
            return self.hit(Err(Error::NotFound));
        }
        let view = self.view(cx);
        if cx.fetched_since.is_some() {
            return self.missed(view.lookup_anew(parent, name.to_owned()));
        }
        match view.known_entry(parent, name.as_bytes()) {
            Some(known) => self.hit(known),
            None => self.missed(view.lookup(parent, name.to_owned())),
        }
    }

    /// Releases look-ups. A node is an object's number, so look-ups only retain unnamed files and index rows,
    /// and select the nodes to be notified of.
    fn forget(&self, _: &Ctx, nodes: &[(NodeId, u64)]) {
        self.0.known.forget(nodes);
        let ids = nodes.iter().filter_map(|(node, _)| id_of(*node).ok());
        ids.for_each(|id| self.0.cache.end_unless_held(id));
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        let view = self.view(cx);
        let object = or_answer!(view.through(node, file));
        match object.believed(Look::Stat, self.0.cache.options_of(&object)) {
            Some(attr) => self.hit(Ok(attr)),
            None => self.missed(async move { view.attr(&object, Look::Stat).await }),
        }
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        if mask.contains(AccessMask::WRITE) && self.is_read_only(node, None) {
            return Answer::err(Error::ReadOnly);
        }
        let view = self.view(cx);
        let object = or_answer!(view.object(node));
        let is_fresh = object.believed(Look::Stat, self.0.cache.options_of(&object)).is_some();
        match view.may(&object, mask).filter(|_| is_fresh) {
            Some(true) => self.hit(Ok(())),
            Some(false) => self.hit(Err(Error::AccessDenied)),
            None => self.missed(async move {
                view.attr(&object, Look::Stat).await?;
                view.check(&object, mask).await
            }),
        }
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        let view = self.view(cx);
        let object = or_answer!(view.object(node));
        if object.file_type != FileType::Symlink {
            return Answer::err(Error::InvalidArgument);
        }
        let here = {
            let options = self.0.cache.options_of(&object);
            let state = object.state();
            state.link.clone().filter(|_| state.is_believed(Look::Stat, options))
        };
        match here {
            Some(target) => self.hit(Ok(target.to_vec())),
            None => self.missed(view.readlink(object)),
        }
    }

    changes! {
        setattr[node](node: NodeId, file: Option<File>, set: &SetAttr = *set) -> (Attr, Change);
        create[parent / name](parent: NodeId, name: Name<'_> = name.to_owned(), how: &Create = *how) -> Created;
        create_unnamed[parent](parent: NodeId, how: &Create = *how) -> Created;
        mkdir[parent / name](parent: NodeId, name: Name<'_> = name.to_owned(), mode: NewMode) -> Made;
        symlink[parent / name](parent: NodeId, name: Name<'_> = name.to_owned(),
            target: &[u8] = target.to_vec()) -> Made;
        mknod[parent / name](parent: NodeId, name: Name<'_> = name.to_owned(), file_type: FileType,
            mode: NewMode, rdev: Device) -> Made;
        // The file itself is checked too, as a read-only one would become writable under a writable name.
        link[node, parent / name](node: NodeId, parent: NodeId, name: Name<'_> = name.to_owned()) -> Made;
        unlink[parent / name](parent: NodeId, name: Name<'_> = name.to_owned()) -> Change;
        rmdir[parent / name](parent: NodeId, name: Name<'_> = name.to_owned()) -> Change;
        rename[from_parent / from, to_parent / to](from_parent: NodeId, from: Name<'_> = from.to_owned(),
            to_parent: NodeId, to: Name<'_> = to.to_owned(), flags: RenameFlags) -> Renamed;
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            unless_read_only!(self, node);
        }
        let view = self.view(cx);
        let object = or_answer!(view.object(node));
        view.note_opening(&object);
        match view.open_here(&object, flags, Instant::now()) {
            Some(opened) => self.hit(opened),
            None if flags.contains(OpenFlags::TRUNCATE) => to_its_end(view.open(object, flags)),
            None => self.missed(view.open(object, flags)),
        }
    }

    fn release(&self, _: &Ctx, file: File) {
        if let Some(id) = self.0.openings.end(file) {
            self.0.cache.end_unless_held(id);
        }
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        match or_answer!(self.0.openings.of(file)).origin() {
            Some(origin) => origin.fs().flush(&self.view(cx).at_origin(), origin.file, owner),
            None => Answer::ok(()),
        }
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncScope) -> Answer<()> {
        match or_answer!(self.0.openings.of(file)).origin() {
            Some(origin) => origin.fs().fsync(&self.view(cx).at_origin(), origin.file, what),
            None => Answer::ok(()),
        }
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.view(cx).read(file, offset, into)
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        unless_read_only!(self, file.node);
        self.view(cx).write(file, how, from)
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        let view = self.view(cx);
        let opening = or_answer!(self.0.openings.made_for(file, OpenFlags::DIRECTORY));
        if cookie == Cookie::START {
            view.walk_ahead(&opening.object);
        }
        if !view.has_listing(&opening.object, cookie, page.wants_entries()) {
            return self.missed(view.readdir(file, cookie, page));
        }
        match view.fill(&opening.object, cookie, page) {
            ControlFlow::Break(page) => self.hit(Ok(page)),
            ControlFlow::Continue((page, after)) => self.missed(view.readdir(file, after, page)),
        }
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        let view = self.view(cx);
        let object = or_answer!(view.object(node));
        let (known, is_old) = self.0.cache.room.known(&self.0.cache.policy().default);
        match known {
            Some(stat) if is_old => {
                // Programs query free space often and need only a rough answer, so they do not wait for a
                // newer one.
                let view = View { cx: detached(cx), ..view };
                task::spawn(async move { drop(view.statfs(object).await) });
                self.hit(Ok(stat))
            }
            Some(stat) => self.hit(Ok(stat)),
            None => self.missed(view.statfs(object)),
        }
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.0.cache.origin.fs.syncfs(&self.view(cx).at_origin())
    }

    /// Returns `None` if a contract lets others change the origin, as the cache is not notified of that.
    fn changes(&self) -> Option<&dyn Changes> {
        self.0.tells_changes.then_some(self as &dyn Changes)
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.0.cache.origin.fs.xattrs().map(|_| self as &dyn Xattrs)
    }

    fn backing_files(&self) -> Option<&dyn BackingFiles> {
        let never_changes = self.0.profile.read_only && self.0.tells_changes;
        never_changes.then_some(self as &dyn BackingFiles)
    }
}

impl Drop for CachedFileSystem {
    fn drop(&mut self) {
        self.0.notices.end();
        self.0.openings.end_all();
        self.0.known.forget_all();
        self.0.cache.end_all_unheld();
        self.0.cache.watchers.ended(|| ());
    }
}

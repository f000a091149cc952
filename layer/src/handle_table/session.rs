//! One session: who is met, and under which name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{
    AccessMask, Answer, Attr, Change, Cookie, Create, Created, Ctx, Device, DirPage, Entry, Error, File,
    FileSystem, FileType, LockOwner, Locks, Made, Name, NameBuf, NewMode, NodeId, OpenFlags, Opened,
    PersistentHandle, PersistentHandles, Profile, Ranges, ReadDone, RenameFlags, Renamed, Result, SetAttr,
    StatFs, SyncWhat, Volume, Write, Written, Xattrs,
};
use tombolo_mem::{Sink, Source};

use super::table::{Id, Place, Who};
use super::{KIND, Shared};

/// A session over another one.
pub(super) struct Session {
    inner: Arc<dyn FileSystem>,
    known: Arc<Known>,
}

/// The numbers of the nodes that this session knows.
struct Known {
    shared: Arc<Shared>,
    nodes: Mutex<HashMap<NodeId, Node>>,
}

struct Node {
    id: Id,
    look_ups: u64,
}

impl Session {
    pub fn new(inner: Arc<dyn FileSystem>, shared: Arc<Shared>) -> Self {
        Self { inner, known: Arc::new(Known { shared, nodes: Mutex::default() }) }
    }

    /// Notes the entry that an answer carries, met in `parent` as `name`.
    fn meeting<T: Send + 'static>(
        &self,
        parent: NodeId,
        name: Name<'_>,
        answer: Answer<T>,
        entry: impl Fn(&T) -> &Entry + Send + 'static,
    ) -> Answer<T> {
        let (known, name) = (self.known.clone(), name.to_owned());
        answer.map_result(move |result| {
            let found = result?;
            known.meet(parent, name.as_name(), entry(&found))?;
            Ok(found)
        })
    }

    /// The node of a number; it counts a look-up.
    fn go_to(&self, cx: &Ctx, id: Id) -> Answer<Entry> {
        let way = match self.known.shared.table().way(id) {
            Ok(way) => way,
            Err(error) => return Answer::err(error),
        };
        let (inner, known, cx) = (self.inner.clone(), self.known.clone(), cx.clone());
        Answer::later(async move {
            let entry = walk(&*inner, &cx, way).await?;
            if entry.node != NodeId::ROOT {
                known.count(entry.node, id);
            }
            Ok(entry)
        })
    }

    /// Notes that a name is gone, once it is.
    fn parting<T: Send + 'static>(&self, parent: NodeId, name: Name<'_>, answer: Answer<T>) -> Answer<T> {
        let (known, name) = (self.known.clone(), name.to_owned());
        answer.map(move |done| {
            if let Some(place) = known.place(parent, name.as_name()) {
                known.shared.table().unnamed(&place);
            }
            done
        })
    }
}

impl Known {
    fn id(&self, node: NodeId) -> Option<Id> {
        if node == NodeId::ROOT { Some(Id::ROOT) } else { self.lock().get(&node).map(|node| node.id) }
    }

    fn place(&self, parent: NodeId, name: Name<'_>) -> Option<Place> {
        self.id(parent).map(|parent| Place::new(parent, name))
    }

    fn meet(&self, parent: NodeId, name: Name<'_>, entry: &Entry) -> Result<()> {
        let Some(place) = self.place(parent, name) else { return Err(Error::Stale) };
        if entry.node == NodeId::ROOT {
            return Ok(());
        }
        let id = self.shared.table().meet(&place, Who::of(&entry.attr), has_names(&entry.attr))?;
        self.count(entry.node, id);
        Ok(())
    }

    fn count(&self, node: NodeId, id: Id) {
        let mut nodes = self.lock();
        let node = nodes.entry(node).or_insert(Node { id, look_ups: 0 });
        node.id = id;
        node.look_ups += 1;
    }

    fn forget(&self, look_ups: &[(NodeId, u64)]) {
        let mut nodes = self.lock();
        for (node, count) in look_ups {
            if let Some(known) = nodes.get_mut(node) {
                known.look_ups = known.look_ups.saturating_sub(*count);
                if known.look_ups == 0 {
                    nodes.remove(node);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PersistentHandles for Session {
    fn volume(&self) -> Volume {
        self.known.shared.volume
    }

    fn handle_of(&self, _cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        match self.known.id(node) {
            Some(Id(id)) => {
                Answer::ok(PersistentHandle { kind: KIND, bytes: id.to_le_bytes().as_slice().into() })
            }
            // It has no name, and never had one.
            None => Answer::err(Error::NotSupported),
        }
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let id = match (handle.kind, handle.bytes.as_slice().try_into()) {
            (KIND, Ok(bytes)) => Id(u64::from_le_bytes(bytes)),
            _ => return Answer::err(Error::Stale),
        };
        self.go_to(cx, id)
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        let Some(id) = self.known.id(node) else { return Answer::err(Error::Stale) };
        let parent = match self.known.shared.table().parent(id) {
            Ok(parent) => parent,
            Err(error) => return Answer::err(error),
        };
        let (inner, known, own_cx) = (self.inner.clone(), self.known.clone(), cx.clone());
        // The way that is known to the directory itself must be good: others may have moved it.
        let parent = self.go_to(cx, parent);
        self.go_to(cx, id).then(move |entry| {
            known.forget(&[(entry.node, 1)]);
            inner.forget(&own_cx, &[(entry.node, 1)]);
            match entry.attr.file_type {
                FileType::Directory => parent,
                _ => Answer::err(Error::NotDirectory),
            }
        })
    }
}

/// Whether a file may well have other names beside the one that it was met under.
fn has_names(attr: &Attr) -> bool {
    attr.nlink > 1 && attr.file_type != FileType::Directory
}

/// Follows a way from the root. What is found at each step must be what was met there.
async fn walk(inner: &dyn FileSystem, cx: &Ctx, way: Vec<(NameBuf, Who)>) -> Result<Entry> {
    let attr = inner.getattr(cx, NodeId::ROOT, None).resolve().await?;
    let mut at = Entry { node: NodeId::ROOT, attr };
    for (name, who) in way {
        let found = inner.lookup(cx, at.node, name.as_name()).resolve().await;
        if at.node != NodeId::ROOT {
            inner.forget(cx, &[(at.node, 1)]);
        }
        at = found.map_err(|error| match error {
            Error::NotFound | Error::NotDirectory => Error::Stale,
            error => error,
        })?;
        if Who::of(&at.attr) != who {
            inner.forget(cx, &[(at.node, 1)]);
            return Err(Error::Stale);
        }
    }
    Ok(at)
}

impl FileSystem for Session {
    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.meeting(parent, name, self.inner.lookup(cx, parent, name), |entry| entry)
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.known.forget(look_ups);
        self.inner.forget(cx, look_ups);
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.inner.getattr(cx, node, file)
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        self.inner.setattr(cx, node, file, set)
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.inner.access(cx, node, mask)
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.inner.readlink(cx, node)
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        self.meeting(parent, name, self.inner.create(cx, parent, name, how), |created| &created.entry)
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        self.inner.create_unnamed(cx, parent, how)
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        self.meeting(parent, name, self.inner.mkdir(cx, parent, name, mode), |made| &made.entry)
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        self.meeting(parent, name, self.inner.symlink(cx, parent, name, target), |made| &made.entry)
    }

    fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Answer<Made> {
        let made = self.inner.mknod(cx, parent, name, file_type, mode, rdev);
        self.meeting(parent, name, made, |made| &made.entry)
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.meeting(parent, name, self.inner.link(cx, node, parent, name), |made| &made.entry)
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.parting(parent, name, self.inner.unlink(cx, parent, name))
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.parting(parent, name, self.inner.rmdir(cx, parent, name))
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed> {
        let (known, from_name, to_name) = (self.known.clone(), from.to_owned(), to.to_owned());
        self.inner.rename(cx, from_parent, from, to_parent, to, flags).map(move |renamed| {
            let from = known.place(from_parent, from_name.as_name());
            let to = known.place(to_parent, to_name.as_name());
            if let (Some(from), Some(to)) = (from, to)
                && from != to
            {
                let mut table = known.shared.table();
                if flags.contains(RenameFlags::EXCHANGE) {
                    table.exchanged(&from, &to);
                } else {
                    table.moved(&from, &to);
                }
            }
            renamed
        })
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.inner.open(cx, node, flags)
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.inner.release(cx, file);
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        self.inner.flush(cx, file, owner)
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncWhat) -> Answer<()> {
        self.inner.fsync(cx, file, what)
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.inner.read(cx, file, offset, into)
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        self.inner.write(cx, file, how, from)
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        let known = self.known.clone();
        self.inner.readdir(cx, file, cookie, page).map_result(move |result| {
            let page = result?;
            for line in page.iter() {
                if let (Some(entry), Ok(name)) = (line.entry, Name::new(line.name)) {
                    known.meet(file.node, name, entry)?;
                }
            }
            Ok(page)
        })
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.inner.statfs(cx, node)
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.inner.syncfs(cx)
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.inner.xattrs()
    }

    fn locks(&self) -> Option<&dyn Locks> {
        self.inner.locks()
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        Some(self)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        self.inner.ranges()
    }
}

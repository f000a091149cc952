//! Registration of the files that a session's requests return.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use tombolo_core::fs::{
    Attr, Change, Cookie, Create, Created, DirPage, Entry, File, FileSystem, FileType, Made, Name, NameBuf,
    NodeId, PersistentHandle, PersistentHandles, RenameFlags, Renamed, Volume,
};
use tombolo_core::{Answer, Ctx, Error, Result, lock, or_answer};

use super::log::{FileIdentity, Id, Location};
use super::{KIND, TableState};

/// A session that registers in the table each file that the inner session returns.
pub(super) struct Session {
    inner: Arc<dyn FileSystem>,
    nodes: Arc<SessionNodes>,
}

/// The table's numbers of this session's nodes, and the look-ups that retain each.
struct SessionNodes {
    shared: Arc<TableState>,
    nodes: Mutex<HashMap<NodeId, Node>>,
}

struct Node {
    id: Id,
    look_ups: u64,
}

impl Session {
    pub fn new(inner: Arc<dyn FileSystem>, shared: Arc<TableState>) -> Self {
        Self { inner, nodes: Arc::new(SessionNodes { shared, nodes: Mutex::default() }) }
    }

    /// Registers the entry in an answer, which was found in `parent` as `name`. If that fails, the request
    /// fails too: the answer's look-up is released, and `undo` releases its opening, if any.
    fn registering<T: Send + 'static>(
        &self,
        cx: &Ctx,
        (parent, name): (NodeId, Name<'_>),
        answer: Answer<T>,
        entry: impl Fn(&T) -> &Entry + Send + 'static,
        undo: impl FnOnce(&dyn FileSystem, &Ctx, &T) + Send + 'static,
    ) -> Answer<T> {
        let (inner, nodes, cx, name) = (self.inner.clone(), self.nodes.clone(), cx.clone(), name.to_owned());
        answer.map_result(move |result| {
            let found = result?;
            let entry = entry(&found);
            if let Err(error) = nodes.register(parent, name.as_name(), entry) {
                undo(&*inner, &cx, &found);
                give_back(&*inner, &cx, [entry]);
                return Err(error);
            }
            Ok(found)
        })
    }

    /// Makes a node, and registers its entry.
    fn registering_made(
        &self,
        cx: &Ctx,
        at: (NodeId, Name<'_>),
        make: impl FnOnce(&dyn FileSystem) -> Answer<Made>,
    ) -> Answer<Made> {
        self.registering(cx, at, make(&*self.inner), |made| &made.entry, |_, _, _| {})
    }

    /// Resolves a number to its node, and counts a look-up.
    fn resolve_id(&self, cx: &Ctx, id: Id) -> Answer<Entry> {
        let path = or_answer!(self.nodes.shared.table().path_of(id));
        let (inner, nodes, cx) = (self.inner.clone(), self.nodes.clone(), cx.clone());
        Answer::later(async move {
            let entry = walk(&*inner, &cx, path).await?;
            if entry.node != NodeId::ROOT {
                nodes.count(entry.node, id);
            }
            Ok(entry)
        })
    }

    /// Performs a removal, then records the loss of the name.
    fn removing(
        &self,
        _: &Ctx,
        (parent, name): (NodeId, Name<'_>),
        remove: impl FnOnce(&dyn FileSystem) -> Answer<Change>,
    ) -> Answer<Change> {
        let leaving = self.nodes.location_and_file(parent, name);
        let nodes = self.nodes.clone();
        remove(&*self.inner).map(move |done| {
            if let Some((location, Some(was))) = leaving {
                nodes.shared.change(|table| table.name_removed(&location, was));
            }
            done
        })
    }
}

impl SessionNodes {
    fn id(&self, node: NodeId) -> Option<Id> {
        if node == NodeId::ROOT { Some(Id::ROOT) } else { lock(&self.nodes).get(&node).map(|node| node.id) }
    }

    fn location(&self, parent: NodeId, name: Name<'_>) -> Option<Location> {
        self.id(parent).map(|parent| Location::new(parent, name))
    }

    /// Returns the location of a name, and the file there before an operation; `None` if the directory has no
    /// number.
    fn location_and_file(&self, parent: NodeId, name: Name<'_>) -> Option<(Location, Option<Id>)> {
        let location = self.location(parent, name)?;
        let id = self.shared.table().at(&location);
        Some((location, id))
    }

    fn register(&self, parent: NodeId, name: Name<'_>, entry: &Entry) -> Result<()> {
        self.register_all(parent, [(name, entry)].into_iter())
    }

    /// Registers all entries. If one cannot be registered, no look-up is counted.
    fn register_all<'a>(
        &self,
        parent: NodeId,
        entries: impl Iterator<Item = (Name<'a>, &'a Entry)>,
    ) -> Result<()> {
        let parent = self.id(parent).ok_or(Error::Stale)?;
        let registered: SmallVec<[(NodeId, Id); 1]> = self.shared.change(|table| {
            let registered = entries.filter(|(_, entry)| entry.node != NodeId::ROOT).map(|(name, entry)| {
                let location = Location::new(parent, name);
                let id = table.register(&location, FileIdentity::of(&entry.attr), has_names(&entry.attr))?;
                Ok((entry.node, id))
            });
            registered.collect::<Result<_>>()
        })?;
        registered.into_iter().for_each(|(node, id)| self.count(node, id));
        Ok(())
    }

    fn count(&self, node: NodeId, id: Id) {
        let mut nodes = lock(&self.nodes);
        let node = nodes.entry(node).or_insert(Node { id, look_ups: 0 });
        // The table may have dropped the node's former number.
        node.id = id;
        node.look_ups += 1;
    }

    fn forget(&self, look_ups: &[(NodeId, u64)]) {
        let mut nodes = lock(&self.nodes);
        for (node, count) in look_ups {
            if let Some(entry) = nodes.get_mut(node) {
                entry.look_ups = entry.look_ups.saturating_sub(*count);
                if entry.look_ups == 0 {
                    nodes.remove(node);
                }
            }
        }
    }
}

impl PersistentHandles for Session {
    fn volume(&self) -> Volume {
        self.nodes.shared.volume
    }

    fn handle_of(&self, _cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        match self.nodes.id(node) {
            Some(Id(id)) => {
                Answer::ok(PersistentHandle { kind: KIND, bytes: id.to_le_bytes().as_slice().into() })
            }
            // An unnamed file never had a number.
            None => Answer::err(Error::NotSupported),
        }
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let id = match (handle.kind, handle.bytes.as_slice().try_into()) {
            (KIND, Ok(bytes)) => Id(u64::from_le_bytes(bytes)),
            _ => return Answer::err(Error::Stale),
        };
        self.resolve_id(cx, id)
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        let Some(id) = self.nodes.id(node) else { return Answer::err(Error::Stale) };
        let parent = or_answer!(self.nodes.shared.table().parent(id));
        let (inner, nodes, own_cx) = (self.inner.clone(), self.nodes.clone(), cx.clone());
        // Not looked up before it is awaited, below.
        let parent = self.resolve_id(cx, parent);
        // The recorded path of the directory must still lead to it: another program may have moved it.
        self.resolve_id(cx, id).then(move |entry| {
            nodes.forget(&[(entry.node, 1)]);
            inner.forget(&own_cx, &[(entry.node, 1)]);
            match entry.attr.file_type {
                FileType::Directory => parent,
                _ => Answer::err(Error::NotDirectory),
            }
        })
    }
}

/// Returns `true` if a file may have names other than the registered one.
fn has_names(attr: &Attr) -> bool {
    attr.nlink > 1 && attr.file_type != FileType::Directory
}

/// Releases the look-ups of entries that are not returned.
fn give_back<'a>(fs: &dyn FileSystem, cx: &Ctx, entries: impl IntoIterator<Item = &'a Entry>) {
    let nodes = entries.into_iter().map(|entry| entry.node).filter(|&node| node != NodeId::ROOT);
    nodes.for_each(|node| fs.forget(cx, &[(node, 1)]));
}

/// Follows a path from the root, checking the identity at each step.
async fn walk(inner: &dyn FileSystem, cx: &Ctx, path: Vec<(NameBuf, FileIdentity)>) -> Result<Entry> {
    let attr = inner.getattr(cx, NodeId::ROOT, None).resolve().await?;
    let mut at = Entry { node: NodeId::ROOT, attr };
    for (name, identity) in path {
        let found = inner.lookup(cx, at.node, name.as_name()).resolve().await;
        if at.node != NodeId::ROOT {
            inner.forget(cx, &[(at.node, 1)]);
        }
        at = found.map_err(|error| match error {
            Error::NotFound | Error::NotDirectory => Error::Stale,
            error => error,
        })?;
        if FileIdentity::of(&at.attr) != identity {
            inner.forget(cx, &[(at.node, 1)]);
            return Err(Error::Stale);
        }
    }
    Ok(at)
}

impl FileSystem for Session {
    tombolo_core::forward!(to self.inner;
        getattr setattr access readlink create_unnamed open flush fsync read write statfs syncfs
        release profile is_prompt xattrs locks ranges changes versions
    );
    tombolo_core::forward!(named self.registering_made; mkdir symlink mknod);
    tombolo_core::forward!(named self.removing; unlink rmdir);
    tombolo_core::forward!(own self; persistent_handles);

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let answer = self.inner.lookup(cx, parent, name);
        self.registering(cx, (parent, name), answer, |entry| entry, |_, _, _| {})
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.nodes.forget(look_ups);
        self.inner.forget(cx, look_ups);
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let answer = self.inner.create(cx, parent, name, how);
        let release = |fs: &dyn FileSystem, cx: &Ctx, created: &Created| {
            fs.release(cx, File { node: created.entry.node, open: created.open });
        };
        self.registering(cx, (parent, name), answer, |created| &created.entry, release)
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.registering_made(cx, (parent, name), |inner| inner.link(cx, node, parent, name))
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
        let location_and_file =
            (self.nodes.location_and_file(from_parent, from), self.nodes.location_and_file(to_parent, to));
        let nodes = self.nodes.clone();
        self.inner.rename(cx, from_parent, from, to_parent, to, flags).map(move |renamed| {
            if let (Some((from, moved)), Some((to, replaced))) = location_and_file
                && from != to
            {
                let was = [moved, replaced];
                nodes.shared.change(|table| match flags.contains(RenameFlags::EXCHANGE) {
                    true => table.exchanged(&from, &to, was),
                    false => table.moved(&from, &to, was),
                });
            }
            renamed
        })
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        let (inner, nodes, own_cx) = (self.inner.clone(), self.nodes.clone(), cx.clone());
        self.inner.readdir(cx, file, cookie, page).map_result(move |result| {
            let page = result?;
            let registered = page.iter().filter_map(|line| Some((Name::new(line.name).ok()?, line.entry?)));
            if let Err(error) = nodes.register_all(file.node, registered) {
                give_back(&*inner, &own_cx, page.iter().filter_map(|line| line.entry));
                return Err(error);
            }
            Ok(page)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_back_memory::Memory;
    use tombolo_core::fs::{Exclusive, OpenFlags, PermissionCheck};
    use tombolo_layer_basic::stats;
    use tombolo_test_support::{self as support, budget, plain};

    /// Checks that nothing can be registered in an unregistered directory: the request fails and leaves no
    /// references.
    #[test]
    fn unmet_nodes_are_forgotten() {
        let (dir, counters) = (tempfile::tempdir().expect("a directory"), stats::Counters::new());
        let below = stats::over(Arc::new(Memory::default()), counters.clone());
        let inner = support::Session::checked(&below, PermissionCheck::Caller);
        let unmet = inner.dir("dir");
        let shared = Arc::new(TableState::open(&dir.path().join("table")).expect("a table"));
        let session = support::Session::of(Arc::new(Session::new(inner.fs.clone(), shared)));
        let counted = || {
            let snapshot = counters.snapshot();
            ["forget", "release"].map(|op| snapshot.operation(op).map_or(0, |operation| operation.count))
        };

        let created = session.create((unmet, "file"), &Create { exclusive: Exclusive::Yes, ..plain() });
        assert!(matches!(created, Err(Error::Stale)));
        assert_eq!(counted(), [1, 1]);
        assert!(matches!(session.lookup((unmet, "file")), Err(Error::Stale)));
        assert_eq!(counted(), [2, 1]);
        inner.dir((unmet, "other"));
        let file = inner.open(unmet, OpenFlags::READ | OpenFlags::DIRECTORY).expect("open");
        assert!(matches!(session.readdir(file, Cookie::START, budget(4096, true)), Err(Error::Stale)));
        assert_eq!(counted(), [4, 1], "each line's");
    }
}

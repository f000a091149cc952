//! An origin that holds written data in memory until a commit, as an NFS server does, and loses them at a
//! restart. It records forbidden states: a name that leads to unstable data.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Client, Export, File, FileSystem, Made, Name, NodeId, OpenFlags, RenameFlags, Renamed, SetAttr,
    SyncScope, Write, Written,
};
use tombolo_core::{Answer, Ctx, Result, Stability, forward};
use tombolo_mem::Source;

use crate::shown::HIDDEN;
use crate::world::{Session, attach};

/// Unstable state of the origin.
pub struct Volatile {
    direct: Session,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Contents of files at their last commit, if written since.
    committed: HashMap<NodeId, Vec<u8>>,
    wrong: Vec<String>,
}

struct VolatileExport(Arc<dyn Export>, Arc<Volatile>);

struct VolatileSession(Arc<dyn FileSystem>, Arc<Volatile>);

impl Volatile {
    /// Creates an origin over `inner`, with access to its unstable state.
    pub fn over(inner: &Arc<dyn Export>) -> (Arc<dyn Export>, Arc<Self>) {
        let volatile = Arc::new(Self { direct: attach(&**inner), state: Mutex::default() });
        (Arc::new(VolatileExport(inner.clone(), volatile.clone())), volatile)
    }

    /// Simulates a restart of the origin, which loses uncommitted data.
    pub fn restart(&self) {
        let committed = std::mem::take(&mut self.state().committed);
        for (node, bytes) in committed {
            let (fs, cx) = (&self.direct.fs, &self.direct.cx);
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            if fs.setattr(cx, node, None, &cut).wait().is_err() {
                continue; // It was removed.
            }
            self.opened(node, |file| match bytes.is_empty() {
                true => Ok(()),
                false => self.direct.write(file, 0, &bytes),
            });
        }
    }

    /// Returns the names that led to unstable data.
    pub fn wrong(&self) -> Vec<String> {
        self.state().wrong.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("a lock")
    }

    fn opened<T>(&self, node: NodeId, work: impl FnOnce(File) -> Result<T>) -> T {
        let opened = self.direct.fs.open(&self.direct.cx, node, OpenFlags::READ | OpenFlags::WRITE).wait();
        let file = File { node, open: opened.expect("an opening").open };
        let done = work(file).expect("what was opened is read and written");
        self.direct.close(file);
        done
    }

    fn check_name(&self, node: NodeId, name: Name<'_>) {
        let is_hidden = name.as_bytes().starts_with(HIDDEN.as_bytes());
        let mut state = self.state();
        if !is_hidden && state.committed.contains_key(&node) {
            state.wrong.push(format!("{name} leads to data that are not stable"));
        }
    }
}

impl Export for VolatileExport {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(VolatileSession(self.0.attach(client)?, self.1.clone())))
    }
}

impl VolatileSession {
    /// Resolves a node in the other session, where it has the same number.
    fn meet(&self, node: NodeId) {
        let handle = self.0.persistent_handles().expect("handles").handle_of(&self.1.direct.cx, node).wait();
        let handles = self.1.direct.fs.persistent_handles().expect("handles");
        let found =
            handles.resolve(&self.1.direct.cx, &handle.expect("a handle")).wait().expect("it is there");
        assert_eq!(found.node, node);
    }
}

impl FileSystem for VolatileSession {
    forward!(to self.0; lookup getattr setattr access readlink create create_unnamed mkdir symlink mknod unlink rmdir
        open flush read readdir statfs syncfs forget release profile persistent_handles xattrs);

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        if how.stability == Stability::Unstable && !self.1.state().committed.contains_key(&file.node) {
            self.meet(file.node);
            let before = self.1.opened(file.node, |file| self.1.direct.read(file));
            self.1.state().committed.insert(file.node, before);
        }
        self.0.write(cx, file, how, from)
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncScope) -> Answer<()> {
        self.1.state().committed.remove(&file.node);
        self.0.fsync(cx, file, what)
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.1.check_name(node, name);
        self.0.link(cx, node, parent, name)
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
        if let Ok(found) = self.1.direct.fs.lookup(&self.1.direct.cx, from_parent, from).wait() {
            self.1.check_name(found.node, to);
        }
        self.0.rename(cx, from_parent, from, to_parent, to, flags)
    }
}

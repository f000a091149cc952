//! An origin that holds written data in memory until a commit, as an NFS server does, and loses them at a
//! restart. It records forbidden states: a name that leads to unstable data.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Export, File, FileSystem, Made, Name, NodeId, RenameFlags, Renamed, SyncScope, Write, Written,
};
use tombolo_core::{Answer, Ctx, Stability, forward};
use tombolo_mem::Source;
use tombolo_test_support::{Session, wrapped};

use crate::shown::HIDDEN;

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

struct VolatileSession(Arc<dyn FileSystem>, Arc<Volatile>);

impl Volatile {
    /// Creates an origin over `inner`, with access to its unstable state.
    pub fn over(inner: &Arc<dyn Export>) -> (Arc<dyn Export>, Arc<Self>) {
        let volatile = Arc::new(Self { direct: Session::attach(&**inner), state: Mutex::default() });
        let state = volatile.clone();
        (wrapped(inner.clone(), move |session| VolatileSession(session, state.clone())), volatile)
    }

    /// Simulates a restart of the origin, which loses uncommitted data.
    pub fn restart(&self) {
        let committed = std::mem::take(&mut self.state().committed);
        for (node, bytes) in committed {
            if self.direct.truncate(node, 0).is_err() {
                continue; // It was removed.
            }
            let file = self.direct.writer(node);
            self.direct.write_all(file, 0, &bytes);
            self.direct.release(file);
        }
    }

    /// Returns the names that led to unstable data.
    pub fn wrong(&self) -> Vec<String> {
        self.state().wrong.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("a lock")
    }

    fn check_name(&self, node: NodeId, name: Name<'_>) {
        let is_hidden = name.as_bytes().starts_with(HIDDEN.as_bytes());
        let mut state = self.state();
        if !is_hidden && state.committed.contains_key(&node) {
            state.wrong.push(format!("{name} leads to data that are not stable"));
        }
    }
}

impl VolatileSession {
    /// Resolves a node in the other session, where it has the same number.
    fn meet(&self, node: NodeId) {
        let handle = Session::of(self.0.clone()).with(self.1.direct.cx.clone()).handle_of(node);
        assert_eq!(self.1.direct.resolve(&handle.expect("a handle")).expect("it is there").node, node);
    }
}

impl FileSystem for VolatileSession {
    forward!(to self.0; lookup getattr setattr access readlink create create_unnamed mkdir symlink mknod unlink rmdir
        open flush read readdir statfs syncfs forget release profile persistent_handles xattrs);

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        if how.stability == Stability::Unstable && !self.1.state().committed.contains_key(&file.node) {
            self.meet(file.node);
            let before = self.1.direct.get(file.node).expect("what was opened is read");
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

//! One side: performs steps, with results as comparable text.

mod acting;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{Attr, Entry, Export, File, FileType, NodeId, OpenFlags, OpenId, SetAttr};
use tombolo_core::{Identity, Result, block_on};
use tombolo_mem::Buffer;

use super::step::{Action, At, Step, USERS};
use crate::session::Session;

/// Prefix of the names that an NFS client gives to removed files that are open.
pub const SILLY: &str = ".nfs";

/// Outcome of a step: its result, or the error.
pub type Outcome = std::result::Result<String, String>;

/// A session with the nodes and openings that its steps have found.
#[derive(Clone)]
pub struct Machine {
    /// The session, whose directory is node 0.
    pub session: Session,
    /// `true` if nodes without a name are given back by [`follow`](Self::follow) only, because it takes
    /// requests to find them.
    pub is_lazy: bool,
    /// `true` if changes of a size are guarded by the node's change time.
    pub is_guarded: bool,
    /// Memory of all writes.
    pub lent: Arc<Mutex<Vec<Buffer>>>,
    nodes: Nodes,
    opens: Vec<Option<(File, OpenFlags)>>,
}

/// Known nodes in order of discovery. A new one takes the place of the first that is forgotten.
pub type Nodes = Vec<Option<Known>>;

/// A known node.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    node: NodeId,
    look_ups: u64,
    /// Its file number, which must not change, once known.
    fileid: Option<u64>,
}

impl Machine {
    /// Begins a session, in a root of mode 0777.
    pub fn new(export: &dyn Export) -> Self {
        let session = Session::attach(export);
        session.chmod("", 0o777).expect("the root's mode");
        Self::of(session)
    }

    /// Uses an existing session.
    pub fn of(session: Session) -> Self {
        let root = Known { node: session.dir, look_ups: 0, fileid: None };
        Self::continued(session, vec![Some(root)])
    }

    /// Continues after a restart with the nodes of [`into_nodes`](Self::into_nodes).
    pub fn continued(session: Session, nodes: Nodes) -> Self {
        let (opens, lent) = (Vec::new(), Arc::default());
        let mut machine = Self { session, is_lazy: false, is_guarded: false, lent, nodes, opens };
        block_on(machine.forget_gone());
        machine
    }

    /// Ends the session with its openings; returns the nodes, whose numbers clients retain.
    pub fn into_nodes(self) -> Nodes {
        self.nodes
    }

    /// Ends all openings.
    pub fn release_all(&mut self) {
        for (file, _) in std::mem::take(&mut self.opens).into_iter().flatten() {
            self.session.release(file);
        }
        block_on(self.forget_gone());
    }

    /// Forgets the nodes that the model has forgotten.
    pub fn follow(&mut self, model: &Self) {
        let gone = self.nodes.iter().zip(&model.nodes).filter(|(_, theirs)| theirs.is_none());
        let gone: Vec<_> = gone.filter_map(|(ours, _)| Some(ours.as_ref()?.node)).collect();
        gone.into_iter().for_each(|node| self.forget(node));
    }

    /// Finds the model's nodes by their names, in a tree that equals the model's but for some names.
    pub fn find_nodes_of(&mut self, model: &Self) {
        let mut found = BTreeMap::from([(model.session.dir, self.session.dir)]);
        let mut ahead = vec![(model.session.dir, self.session.dir)];
        while let Some((theirs, ours)) = ahead.pop() {
            for name in model.session.names(theirs) {
                let both = (model.session.lookup((theirs, &name)), self.session.lookup((ours, &name)));
                let (Ok(theirs), Ok(ours)) = both else { continue };
                found.insert(theirs.node, ours.node);
                if theirs.attr.file_type == FileType::Directory && ours.attr.file_type == FileType::Directory
                {
                    ahead.push((theirs.node, ours.node));
                }
            }
        }
        let ours = |node| found.get(&node).map(|node| Known { node: *node, look_ups: 1, fileid: None });
        self.nodes = model.nodes.iter().map(|known| ours(known.as_ref()?.node)).collect();
    }

    /// Returns `true` if the waist determines the step's result. It does not for nodes without a name, which
    /// may be alive or stale.
    pub fn applies(&self, step: &Step) -> bool {
        use Action as A;
        let attr =
            |node: usize| self.node(node).and_then(|node| self.session.lookup(node).ok()).map(|it| it.attr);
        let named = |node: usize| attr(node).is_some_and(|attr| attr.nlink > 0);
        // Data operations apply to regular files, listings to directories; others may fail with any error.
        let opened = |open: usize| self.file(open).and_then(|file| Some((file, self.open_attr(file)?)));
        let is = |open, wanted| opened(open).is_some_and(|(_, attr)| attr.file_type == wanted);
        let is_file = |open| is(open, FileType::Regular);
        match &step.action {
            // No kernel forgets an open node.
            A::Forget(node) => {
                let node = self.node(*node).filter(|node| *node != self.session.dir);
                node.is_some_and(|node| !self.is_open(node))
            }
            A::Getattr(node)
            | A::Chmod(node, _)
            | A::Chown(node, ..)
            | A::SetMtime(node, _)
            | A::Resize(node, _)
            | A::Access(node, _)
            | A::Readlink(node)
            | A::CreateUnnamed(node)
            | A::SetXattr(node, ..)
            | A::GetXattr(node, _)
            | A::ListXattrs(node)
            | A::RemoveXattr(node, _) => named(*node),
            // Opens directories only to list them.
            A::Open(node, flags) => attr(*node).is_some_and(|attr| {
                let to_list = flags.contains(OpenFlags::DIRECTORY);
                attr.nlink > 0 && (to_list || attr.file_type != FileType::Directory)
            }),
            A::Lookup(at)
            | A::Create(at, ..)
            | A::Mkdir(at, _)
            | A::Symlink(at)
            | A::Mknod(at, _)
            | A::Unlink(at)
            | A::Rmdir(at) => named(at.dir),
            // By default hosts refuse links to files of other users (proc(5), protected_hardlinks).
            A::Link(node, at) => step.user == 0 && named(*node) && named(at.dir),
            A::Rename(from, to, _) => named(from.dir) && named(to.dir),
            // The waist leaves open if these operations drop set-user-id and set-group-id: they carry no such
            // request.
            A::Copy(from, _, to, ..) => step.user == 0 && is_file(*from) && is_file(*to),
            A::Allocate(open, ..) => step.user == 0 && is_file(*open),
            A::List(open, ..) => {
                opened(*open).is_some_and(|(_, attr)| attr.file_type == FileType::Directory && attr.nlink > 0)
            }
            // Appends at the same time have no order.
            A::WriteSeveral(open, ..) => {
                let appends = |(_, flags): (File, OpenFlags)| flags.contains(OpenFlags::APPEND);
                is_file(*open) && !self.opening(*open).is_some_and(appends)
            }
            A::Release(open, _) | A::OpenGetattr(open) => self.file(*open).is_some(),
            A::Read(open, ..)
            | A::Write(open, ..)
            | A::OpenResize(open, _)
            | A::Fsync(open)
            | A::Lock(open, ..)
            | A::Unlock(open, ..)
            | A::Flush(open, _) => is_file(*open),
        }
    }

    /// Performs a step, and waits for it.
    pub fn perform_now(&mut self, step: &Step) -> Outcome {
        block_on(self.perform(step))
    }

    /// Performs a step.
    pub async fn perform(&mut self, step: &Step) -> Outcome {
        let (uid, gid, group) = USERS[step.user];
        self.session.cx.identity = Identity { uid, gid, groups: (uid != 0).then(|| [group].into()) };
        let outcome = self.act(&step.action).await;
        self.session.cx.identity = Identity::ROOT;
        if !self.is_lazy {
            self.forget_gone().await;
        }
        outcome.map_err(|error| format!("{error:?}"))
    }

    /// Forgets nodes that have neither a name nor an opening, as every kernel does.
    async fn forget_gone(&mut self) {
        for at in 1..self.nodes.len() {
            let Some(Known { node, .. }) = self.nodes[at] else { continue };
            if !self.is_open(node) {
                let attr = self.session.fs.getattr(&self.session.cx, node, None).resolve().await;
                if !attr.is_ok_and(|attr| attr.nlink > 0) {
                    self.forget(node);
                }
            }
        }
    }

    /// Gives back all look-ups of a node.
    fn forget(&mut self, node: NodeId) {
        let slot = self.nodes.iter_mut().find(|known| known.is_some_and(|known| known.node == node));
        if let Some(Known { look_ups, .. }) = slot.and_then(Option::take) {
            self.session.fs.forget(&self.session.cx, &[(node, look_ups)]);
        }
    }

    /// Gives back all look-ups.
    pub fn forget_all(&mut self) {
        let known: Vec<_> = self.nodes.iter().flatten().map(|known| known.node).collect();
        known.into_iter().for_each(|node| self.forget(node));
    }

    async fn set(&self, node: usize, set: SetAttr) -> Result<String> {
        let node = self.known(node);
        let (attr, _) = self.session.fs.setattr(&self.session.cx, node, None, &set).resolve().await?;
        Ok(self.shown(node, &attr))
    }

    /// Registers a node that an operation has returned.
    fn met(&mut self, entry: Entry) -> String {
        let node = entry.node;
        let slot = match self.slot(node) {
            Some(slot) => slot,
            None => {
                let known = Known { node, look_ups: 0, fileid: None };
                place_in(&mut self.nodes, known)
            }
        };
        if let Some(known) = &mut self.nodes[slot] {
            known.look_ups += 1;
            known.fileid.get_or_insert(entry.attr.fileid);
        }
        self.shown(node, &entry.attr)
    }

    fn has_opened(&mut self, node: NodeId, open: OpenId, flags: OpenFlags) {
        place_in(&mut self.opens, (File { node, open }, flags));
    }

    /// Returns the number of nodes, some of which may be forgotten.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of openings, some of which may have ended.
    pub fn openings(&self) -> usize {
        self.opens.len()
    }

    /// Returns the index of a known node.
    fn slot(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| known.is_some_and(|known| known.node == node))
    }

    /// Formats the attributes in which file systems agree. The size of a directory is not among them, but the
    /// index by which the node is known.
    fn shown(&self, node: NodeId, attr: &Attr) -> String {
        let slot = self.slot(node);
        let number = self.number_of(node);
        assert!(
            number.is_none_or(|number| number == attr.fileid),
            "{node:?}, {number:?}: another file: {attr:?}"
        );
        let size = if attr.file_type == FileType::Directory { 0 } else { attr.size };
        let Attr { file_type, mode, nlink, uid, gid, rdev, .. } = attr;
        let (mode, rdev) = (mode.bits(), (rdev.major, rdev.minor));
        format!("{slot:?} {file_type:?} {mode:o} links {nlink} of {uid}:{gid} size {size} {rdev:?}")
    }

    /// Returns the file number of a known node.
    pub fn number_of(&self, node: NodeId) -> Option<u64> {
        self.nodes[self.slot(node)?]?.fileid
    }

    fn open_attr(&self, file: File) -> Option<Attr> {
        self.session.fs.getattr(&self.session.cx, file.node, Some(file)).wait().ok()
    }

    /// Returns `true` if the node has an opening.
    pub fn is_open(&self, node: NodeId) -> bool {
        self.opens.iter().flatten().any(|(file, _)| file.node == node)
    }

    /// Returns `true` if the node is a regular file.
    pub fn is_file(&self, node: NodeId) -> bool {
        self.session.lookup(node).is_ok_and(|entry| entry.attr.file_type == FileType::Regular)
    }

    /// Returns the node at a known place.
    pub fn node_at(&self, at: At) -> Option<NodeId> {
        self.session.node((self.node(at.dir)?, at.name)).ok()
    }

    /// Returns a node by its index, unless it is forgotten.
    pub fn node(&self, index: usize) -> Option<NodeId> {
        self.nodes[index % self.nodes.len()].map(|known| known.node)
    }

    /// Returns an opening by its index, unless it has ended.
    pub fn file(&self, index: usize) -> Option<File> {
        self.opening(index).map(|(file, _)| file)
    }

    /// Returns an opening by its index, unless it has ended, and its flags.
    pub fn opening(&self, index: usize) -> Option<(File, OpenFlags)> {
        if self.opens.is_empty() { None } else { self.opens[index % self.opens.len()] }
    }

    /// Returns a node for which [`Machine::applies`] returned `true`.
    fn known(&self, index: usize) -> NodeId {
        self.node(index).expect("a known node")
    }

    fn opened(&self, index: usize) -> File {
        self.file(index).expect("an opening")
    }
}

/// Puts a value in the first empty place; returns its index.
fn place_in<T>(places: &mut Vec<Option<T>>, value: T) -> usize {
    let at = places.iter().position(Option::is_none).unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    });
    places[at] = Some(value);
    at
}

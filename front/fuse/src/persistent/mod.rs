//! Session state that survives a server restart: a guest's nodes and openings, in the *area*, memory that its
//! keeper holds (`docs/decisions/fuse-restart.md`).
//!
//! [`PersistentFs`] is a file system stacked on another one. The guest gets the numbers of records in the
//! area, which stay valid in the next process; [`PersistentFs`] translates them. The next process finds a
//! node by its handle and reopens an opening before it performs the first request that needs them
//! ([`PersistentFs::find`]).
//!
//! Reading order: `area`, the memory layout; `numbers`; `table`; this file; `recovery`; `stored`;
//! `file_system`.

mod area;
mod file_system;
mod numbers;
mod recovery;
mod stored;
mod table;

use std::sync::{Arc, Mutex, MutexGuard};

use tombolo_core::fs::{
    Attr, Created, DirPage, Entry, File, FileSystem, NodeId, OpenFlags, OpenId, PersistentHandle, SetAttr,
};
use tombolo_core::{Answer, ClientId, Ctx, Error, KeyProperties, RequestKey, Result, SessionId, lock};
use tombolo_host_vhost::FdStore;
use tombolo_mem::Region;
use tombolo_wire_fuse::Unique;

pub use area::AREA_BYTES;
pub(crate) use area::Negotiated;
use area::{Area, Number, Opening, Records, reopen_flags};
use numbers::Numbers;
pub(crate) use recovery::Missing;
use stored::StoredDescriptors;
use table::{NoRecord, RecordTable};

/// Error of setting up a persistent session.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// The file system has no persistent handles, by which the next process would find nodes.
    #[error(
        "the export has no persistent file handles (these need root and a file system that supports them)"
    )]
    NoHandles,
    /// The root's handle is not available.
    #[error("cannot get the root's file handle")]
    Root(#[source] Error),
    /// The memory is too short, has another layout, or belongs to another tree.
    #[error("the saved session state belongs to another tree")]
    NotOurs,
    /// Random bytes for the session's token are not available.
    #[error("cannot get random bytes")]
    Random(#[source] std::io::Error),
}

/// A session's nodes and openings, under numbers that survive the process.
#[derive(Clone)]
pub struct PersistentFs(Arc<Inner>);

struct Inner {
    below: Arc<dyn FileSystem>,
    area: Arc<Area>,
    nodes: Numbers,
    openings: Numbers,
    table: Mutex<RecordTable>,
    /// Descriptors that the keeper holds; `None` if no store for them was passed.
    stored: Option<StoredDescriptors>,
    client: ClientId,
    /// `true` if an earlier process began the session.
    is_resumed: bool,
}

/// Memory of one guest's successive sessions.
#[derive(Clone, Debug)]
pub struct Memory {
    area: Arc<Area>,
    store: Option<Arc<FdStore>>,
}

impl Memory {
    /// Wraps `memory`: the area that an earlier process left for the same tree, or [`AREA_BYTES`] of zeros.
    /// Only servers of that tree may have write access to the area, since they open files by the handles in
    /// it. `store` holds the descriptors that the earlier process left.
    ///
    /// # Errors
    /// [`PersistError::NoHandles`], [`PersistError::Root`] and [`PersistError::NotOurs`].
    pub fn new(
        memory: Region,
        store: Option<FdStore>,
        below: &dyn FileSystem,
    ) -> std::result::Result<Self, PersistError> {
        let (volume, root) = root_of(below)?;
        let area = Area::new(memory).filter(|area| area.is_of(volume, &root)).ok_or(PersistError::NotOurs)?;
        Ok(Self { area: Arc::new(area), store: store.map(Arc::new) })
    }
}

/// Returns the identity of the root, if a server of this tree can be restarted under its guests.
pub(crate) fn root_of(
    below: &dyn FileSystem,
) -> std::result::Result<(tombolo_core::fs::Volume, PersistentHandle), PersistError> {
    let handles = below.persistent_handles().ok_or(PersistError::NoHandles)?;
    let root = handles.handle_of(&Ctx::root(SessionId(0)), NodeId::ROOT).wait();
    Ok((handles.volume(), root.map_err(PersistError::Root)?))
}

impl PersistentFs {
    /// Resumes the session that an earlier process left, or begins a new one. `below` must execute each
    /// request with a key once across processes, unless it is read-only.
    ///
    /// # Errors
    /// [`PersistError::Random`].
    pub fn begin(below: Arc<dyn FileSystem>, memory: &Memory) -> std::result::Result<Self, PersistError> {
        let area = Arc::clone(&memory.area);
        let is_resumed = area.negotiated().is_some();
        if !is_resumed {
            let mut token = [0; 16];
            let filled = tombolo_sys::random::fill(&mut token);
            filled.map_err(|errno| PersistError::Random(errno.into()))?;
            area.clear(token);
        }
        let mut client = [0; 24];
        client.iter_mut().zip(area.token()).for_each(|(place, byte)| *place = byte);
        let inner = Inner {
            below,
            nodes: Numbers::new(Records::Nodes),
            openings: Numbers::new(Records::Openings),
            table: Mutex::new(RecordTable::of(&area)),
            area,
            stored: memory.store.clone().map(StoredDescriptors::new),
            client: ClientId(client),
            is_resumed,
        };
        inner.restore(&Ctx::root(SessionId(0)));
        Ok(Self(Arc::new(inner)))
    }

    /// Ends the session and clears the area for the next one. A late request that names or would register a
    /// node other than the root, or an opening, fails with ESTALE.
    pub(crate) fn end(&self) {
        if self.0.table().end() {
            // No number is mapped any more from here on.
            self.0.nodes.clear();
            self.0.openings.clear();
            self.0.area.clear([0; 16]);
            self.0.stored.iter().for_each(StoredDescriptors::clear);
        }
    }

    /// Stores what INIT negotiated, before the guest gets the reply.
    pub(crate) fn set_negotiated(&self, negotiated: Negotiated) {
        self.0.area.begin(negotiated);
    }

    /// Returns what an earlier process negotiated with the guest; `None` if this process began the session.
    pub(crate) fn negotiated(&self) -> Option<Negotiated> {
        self.0.area.negotiated().filter(|_| self.0.is_resumed)
    }

    pub(crate) fn is_resumed(&self) -> bool {
        self.0.is_resumed
    }

    /// Returns a request's key, the same in each process that executes the request. The key is fenced,
    /// because the previous process is dead: none of that process's requests is under way.
    pub(crate) fn key(&self, unique: Unique) -> RequestKey {
        let properties = KeyProperties::FENCED | KeyProperties::FEW_UNDER_WAY;
        RequestKey { client: self.0.client, key: unique.0.into(), properties }
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, RecordTable> {
        // No panic leaves the table inconsistent.
        lock(&self.table)
    }

    /// Translates the guest's number of a node; fails with ESTALE if this process does not know the node.
    #[inline]
    fn node(&self, node: NodeId) -> Result<NodeId> {
        match node {
            NodeId::ROOT => Ok(node),
            node => self.nodes.local(Number(node.0)).map(NodeId).ok_or(Error::Stale),
        }
    }

    #[inline]
    fn file(&self, file: File) -> Result<File> {
        let open = self.openings.local(Number(file.open.0)).map(OpenId).ok_or(Error::Stale)?;
        Ok(File { node: self.node(file.node)?, open })
    }

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<Option<PersistentHandle>> {
        let handles = self.below.persistent_handles();
        let handle = handles.map_or_else(|| Answer::err(Error::NotSupported), |it| it.handle_of(cx, node));
        // A node without a handle (on a mount inside the export) is lost with this process.
        handle.map_result(|handle| Ok(handle.ok()))
    }

    /// Forgets a look-up that the guest does not receive.
    fn give_back(&self, cx: &Ctx, node: NodeId) {
        self.below.forget(cx, &[(node, 1)]);
    }

    fn entered(&self, cx: &Ctx, node: NodeId, handle: Option<&PersistentHandle>) -> Result<NodeId> {
        let entered = self.table().enter(&self.area, &self.nodes, node, handle);
        entered.map(NodeId::from).map_err(|why| {
            self.give_back(cx, node);
            error_of(why)
        })
    }

    /// Registers a node that the guest is about to receive, and counts the look-up before the reply.
    fn adopt(self: &Arc<Self>, cx: &Ctx, entry: Entry) -> Answer<Entry> {
        if entry.node == NodeId::ROOT {
            return Answer::ok(entry);
        }
        let registered = self.table().looked_up(&self.area, entry.node);
        if let Some(number) = registered {
            return Answer::ok(Entry { node: number.into(), ..entry });
        }
        let (inner, cx_then) = (Arc::clone(self), cx.clone());
        self.handle_of(cx, entry.node).then(move |handle| {
            let node = inner.entered(&cx_then, entry.node, handle.as_ref());
            Answer::Done(node.map(|node| Entry { node, ..entry }))
        })
    }

    /// Registers all nodes of a page of a listing, once the handles of the unregistered ones are known.
    fn adopt_page(self: &Arc<Self>, cx: &Ctx, page: DirPage) -> Answer<DirPage> {
        let unknown: Vec<NodeId> = {
            let table = self.table();
            let nodes = page.iter().filter_map(|line| line.entry.map(|entry| entry.node));
            nodes.filter(|node| *node != NodeId::ROOT && !table.contains(*node)).collect()
        };
        let mut handles = Vec::with_capacity(unknown.len());
        let mut unknown = unknown.into_iter();
        for node in unknown.by_ref() {
            match self.handle_of(cx, node) {
                Answer::Done(handle) => handles.push((node, handle.ok().flatten())),
                Answer::Later(later) => {
                    let (inner, cx) = (Arc::clone(self), cx.clone());
                    return Answer::later(async move {
                        handles.push((node, later.await.ok().flatten()));
                        for node in unknown {
                            let handle = inner.handle_of(&cx, node).resolve().await;
                            handles.push((node, handle.ok().flatten()));
                        }
                        inner.enter_page(&cx, page, &handles)
                    });
                }
            }
        }
        Answer::Done(self.enter_page(cx, page, &handles))
    }

    /// Registers a page's nodes. `handles` are those of the unregistered nodes, in the order of the page.
    fn enter_page(
        &self,
        cx: &Ctx,
        mut page: DirPage,
        handles: &[(NodeId, Option<PersistentHandle>)],
    ) -> Result<DirPage> {
        let mut handles = handles.iter().peekable();
        let mut failed = Ok(());
        for place in page.nodes_mut().filter(|node| **node != NodeId::ROOT) {
            let handle = handles.next_if(|(node, _)| node == place).and_then(|(_, handle)| handle.as_ref());
            match (self.entered(cx, *place, handle), &failed) {
                (Ok(node), Ok(())) => *place = node,
                // The guest receives no node of a page that failed.
                (Ok(node), Err(_)) => {
                    self.forget(cx, &[(node, 1)]);
                    *place = NodeId::ROOT;
                }
                (Err(error), _) => {
                    failed = Err(error);
                    *place = NodeId::ROOT;
                }
            }
        }
        if failed.is_err() {
            page.nodes_mut()
                .filter(|node| **node != NodeId::ROOT)
                .for_each(|node| self.forget(cx, &[(*node, 1)]));
        }
        failed.map(|()| page)
    }

    fn opened(&self, cx: &Ctx, node: NodeId, flags: OpenFlags, local: File) -> Result<OpenId> {
        // An opening left by an earlier execution of this request never reached the guest.
        let earlier = self.table().earlier_opening(&self.area, cx.request.0);
        earlier.into_iter().for_each(|earlier| self.release(cx, earlier));
        let opening = Opening { node, flags: reopen_flags(flags), unique: cx.request.0 };
        let number = self.table().opened(&self.area, &self.openings, opening, local.open);
        number.map(OpenId::from).map_err(|why| {
            self.below.release(cx, local);
            error_of(why)
        })
    }

    /// Truncates a file opened with TRUNCATE and returns its attributes; `None` without TRUNCATE. The
    /// truncation is separate from the open, because under the request's key it is executed once across
    /// processes.
    fn empty(self: &Arc<Self>, cx: &Ctx, flags: OpenFlags, local: File) -> Answer<Option<Attr>> {
        if !flags.contains(OpenFlags::TRUNCATE) {
            return Answer::ok(None);
        }
        let kill_privileges = flags.contains(OpenFlags::KILL_PRIVILEGES);
        let set = SetAttr { size: Some(0), kill_privileges, ..SetAttr::default() };
        let (inner, cx_then) = (Arc::clone(self), cx.clone());
        self.below.setattr(cx, local.node, Some(local), &set).map_result(move |emptied| {
            let (attr, _) = emptied.inspect_err(|_| inner.below.release(&cx_then, local))?;
            Ok(Some(attr))
        })
    }

    /// Truncates a file that existed before its CREATE, if TRUNCATE is requested.
    fn empty_created(self: &Arc<Self>, cx: &Ctx, flags: OpenFlags, created: Created) -> Answer<Created> {
        if created.entry.attr.size == 0 {
            return Answer::ok(created);
        }
        let local = File { node: created.entry.node, open: created.open };
        let (inner, cx_then) = (Arc::clone(self), cx.clone());
        self.empty(cx, flags, local).map_result(move |emptied| {
            let emptied = emptied.inspect_err(|_| inner.give_back(&cx_then, local.node))?;
            let attr = emptied.unwrap_or(created.entry.attr);
            Ok(Created { entry: Entry { attr, ..created.entry }, ..created })
        })
    }

    fn adopt_created(self: &Arc<Self>, cx: &Ctx, flags: OpenFlags, created: Created) -> Answer<Created> {
        let local = File { node: created.entry.node, open: created.open };
        let (inner, cx_then) = (Arc::clone(self), cx.clone());
        self.adopt(cx, created.entry).map_result(move |entry| {
            let entry = entry.inspect_err(|_| inner.below.release(&cx_then, local))?;
            let open = inner.opened(&cx_then, entry.node, flags, local);
            let open = open.inspect_err(|_| inner.forget(&cx_then, &[(entry.node, 1)]))?;
            Ok(Created { entry, open, ..created })
        })
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        let gone: Vec<_> = {
            let mut table = self.table();
            let each = look_ups.iter().filter(|(node, _)| *node != NodeId::ROOT);
            each.filter_map(|(node, count)| table.forgotten(&self.area, &self.nodes, Number(node.0), *count))
                .collect()
        };
        if !gone.is_empty() {
            self.below.forget(cx, &gone);
        }
    }

    fn release(&self, cx: &Ctx, file: File) {
        let (node, local) = (self.node(file.node), self.file(file).ok());
        let gone = self.table().released(&self.area, &self.openings, Number(file.open.0));
        // The opening is unregistered: no concurrent removal gives it to the keeper any more.
        self.release_descriptors(cx, file.open, local);
        if let (Some(open), Ok(node)) = (gone, node) {
            self.below.release(cx, File { node, open });
        }
    }
}

fn error_of(why: NoRecord) -> Error {
    match why {
        NoRecord::Over => Error::Stale,
        NoRecord::Full => Error::NoMemory,
    }
}

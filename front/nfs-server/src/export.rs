//! State that outlives calls: each export, as a session of the waist, and the service of all exports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_core::fs::{
    Attr, Client, FileSystem, FileType, LeaseTable, NodeId, PermissionCheck, PersistentHandles, Profile,
};
use tombolo_core::{Ctx, Error, RequestId, Result, SessionId};
use tombolo_host_rpc::server::Origin;
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

use crate::access::{AllowList, Identities, LeaseHolders, Squash};
use crate::digests::Digests;
use crate::failure;
use crate::handle::{ExportId, Signer};
use crate::mount_table::MountTable;
use crate::nodes::{Node, NodeGuard, Nodes};
use crate::openings::{Opening, Openings, WriteVerifier};
use crate::options::{Durability, ExportOptions, Options, ServeError};
use crate::packer::Packer;
use crate::permission::Permissions;
use crate::unchecked_creates::UncheckedCreates;

/// Maximum number of cached nodes, chosen to keep the server small with 100,000 files in use.
const NODES_MAX: usize = 1 << 16;
/// Maximum number of cached openings.
const OPENINGS_MAX: usize = 512;
/// Time after which an idle opening is closed.
const OPENING_IDLE: Duration = Duration::from_secs(5);

/// An attached export, with all that is cached about it.
pub(crate) struct Served {
    pub name: String,
    pub id: ExportId,
    pub file_system: Arc<dyn FileSystem>,
    pub session: SessionId,
    pub profile: Profile,
    pub nodes: Nodes,
    pub openings: Openings,
    pub unchecked_creates: UncheckedCreates,
    pub permissions: Permissions,
    pub verifier: Arc<WriteVerifier>,
    pub squash: Squash,
    pub allow: AllowList,
    pub leases: Option<Arc<LeaseTable>>,
    pub lease_holders: LeaseHolders,
    signer: Arc<Signer>,
    durability: Durability,
}

impl Served {
    /// Attaches to an export. All its clients share one session, so nodes and openings are common to them.
    pub fn attach(options: ExportOptions, signer: Arc<Signer>) -> std::result::Result<Self, ServeError> {
        let ExportOptions { name, export, session, squash, allow, durability, leases, lease_holders } =
            options;
        let label = format!("NFS clients of {name}");
        let attached = export.attach(&Client { session, label, checks: PermissionCheck::BackEnd });
        let file_system = attached.map_err(|source| ServeError::Attach { name: name.clone(), source })?;
        if file_system.persistent_handles().is_none() {
            return Err(ServeError::NoHandles { name });
        }
        let verifier = Arc::new(WriteVerifier::new());
        Ok(Self {
            id: ExportId::of(&name),
            name,
            session,
            profile: file_system.profile(),
            nodes: Nodes::new(NODES_MAX),
            openings: Openings::new(file_system.clone(), session, verifier.clone(), OPENINGS_MAX),
            unchecked_creates: UncheckedCreates::default(),
            permissions: Permissions::new(file_system.clone()),
            verifier,
            squash,
            allow,
            leases,
            lease_holders,
            signer,
            durability,
            file_system,
        })
    }

    /// Returns `true` if a caller at this origin may use the export: a network address on the list, or a link
    /// to this export.
    pub fn admits(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Network(address) => self.allow.admits(address.ip()),
            Origin::Link(link) => link.export == self.name,
        }
    }

    /// Returns the server's own context, for work without a caller.
    pub fn own_ctx(&self) -> Ctx {
        Ctx::root(self.session)
    }

    /// Resolves the handle of a call to a node: a cached one, or else one that the back end finds, once the
    /// handle is verified.
    pub async fn resolve(&self, handle: &[u8]) -> failure::Result<Arc<Node>> {
        if let Some(node) = self.nodes.by_handle(handle) {
            return Ok(node);
        }
        let handles = self.handles()?;
        let persistent = self.signer.verify(handle, self.id, handles.volume())?;
        let entry = handles.resolve(&self.own_ctx(), &persistent).resolve().await?;
        let guard = NodeGuard::new(&self.file_system, self.session, entry.node);
        Ok(self.nodes.enter(Node::new(guard, handle.into())))
    }

    /// Returns the export's root.
    pub async fn root(&self) -> Result<Arc<Node>> {
        self.adopt(NodeId::ROOT).await
    }

    /// Returns the node of an entry that the file system has just returned, and adopts its look-up.
    pub async fn adopt(&self, id: NodeId) -> Result<Arc<Node>> {
        self.adopt_guard(NodeGuard::new(&self.file_system, self.session, id)).await
    }

    /// Does the same as [`Served::adopt`] for a look-up in a [`NodeGuard`].
    pub async fn adopt_guard(&self, guard: NodeGuard) -> Result<Arc<Node>> {
        // A client may use a handle signed with an older key; new handles are signed with the newest.
        if let Some(node) = self.nodes.with_handle(guard.id(), |handle| self.signer.is_current(handle)) {
            return Ok(node);
        }
        let handles = self.handles()?;
        let persistent = handles.handle_of(&self.own_ctx(), guard.id()).resolve().await?;
        let handle = self.signer.sign(self.id, handles.volume(), &persistent)?;
        Ok(self.nodes.enter(Node::new(guard, handle)))
    }

    /// Returns the attributes of a node. A node without a name is treated as removed (ESTALE), because NFS
    /// has no openings.
    pub async fn attr(&self, node: &Arc<Node>) -> Result<Attr> {
        self.attr_through(node, None).await
    }

    /// Returns the attributes of a file whose data is requested: through a cached opening if there is one,
    /// because the back end may have no other quick access to a new file.
    pub async fn attr_of_file(&self, node: &Arc<Node>) -> Result<Attr> {
        self.attr_through(node, self.openings.of_file(node.id)).await
    }

    async fn attr_through(&self, node: &Arc<Node>, opening: Option<Arc<Opening>>) -> Result<Attr> {
        let file = opening.as_ref().map(|opening| opening.file());
        match self.file_system.getattr(&self.own_ctx(), node.id, file).resolve().await {
            Ok(attr) if attr.nlink > 0 => Ok(attr),
            Ok(_) => {
                self.gone(node);
                Err(Error::Stale)
            }
            // The file may still exist, out of the back end's reach: data written to it is made stable when
            // its opening is closed.
            Err(Error::Stale) => {
                self.nodes.remove(node.id);
                Err(Error::Stale)
            }
            Err(error) => Err(error),
        }
    }

    /// Drops a node whose file no longer exists.
    pub fn gone(&self, node: &Arc<Node>) {
        self.openings.discard(node.id);
        self.nodes.remove(node.id);
    }

    /// Makes a change of names in `directory` stable, if the export's durability requires it.
    pub async fn settle(&self, directory: &Node) -> Result<()> {
        if self.durability == Durability::Relaxed {
            return Ok(());
        }
        self.settled(self.openings.for_listing(directory.id).await).await
    }

    /// Makes a change of a node's attributes stable, if the export's durability requires it.
    pub async fn settle_attributes(&self, node: &Node, file_type: FileType) -> Result<()> {
        if self.durability == Durability::Relaxed {
            return Ok(());
        }
        let opening = match file_type {
            FileType::Regular => self.openings.for_reading(node.id).await,
            FileType::Directory => self.openings.for_listing(node.id).await,
            _ => Err(Error::NotPermitted),
        };
        self.settled(opening).await
    }

    /// Syncs through an opening. A node that cannot be opened (a device, a file that the server's user may
    /// not read, too many open files) is made stable by a sync of the file system.
    async fn settled(&self, opening: Result<Arc<Opening>>) -> Result<()> {
        let settled = match opening {
            Ok(opening) => opening.sync().await,
            Err(Error::AccessDenied | Error::NotPermitted | Error::TooManyOpen) => {
                let syncing = self.file_system.syncfs(&self.own_ctx());
                syncing.resolve().await
            }
            Err(error) => Err(error),
        };
        // The change has been made: a retry after JUKEBOX would be a new request and repeat it.
        settled.map_err(|error| match error {
            Error::WouldBlock | Error::NoMemory => Error::io(error),
            error => error,
        })
    }

    /// Closes idle openings; called periodically.
    pub fn close_idle(&self) {
        self.openings.close_idle(OPENING_IDLE);
    }

    fn handles(&self) -> Result<&dyn PersistentHandles> {
        self.file_system.persistent_handles().ok_or(Error::NotSupported)
    }
}

/// Service of NFS version 3, MOUNT version 3 and the side program, for all exports.
pub struct NfsService {
    exports: Vec<Arc<Served>>,
    pub(crate) identities: Identities,
    pub(crate) mounts: MountTable,
    /// Number of the next request.
    requests: AtomicU64,
    /// Counter of the running LIST calls with subtrees: each holds a reference.
    subtrees: Arc<()>,
    pub(crate) digests: Digests,
    pub(crate) packer: Packer,
    /// Owner of the threads of `digests` and `packer`.
    _pool: ThreadPool,
}

/// Maximum number of concurrent LIST calls with subtrees, each of which holds a large reply meanwhile.
const SUBTREES_MAX: usize = 64;

/// Limits of the threads for digests and compression; few, so that processors are left to other calls.
const SIDE: ThreadPoolLimits = ThreadPoolLimits { threads: 2, queue_len: 256 };

impl NfsService {
    /// Creates the service, and attaches to all exports.
    pub fn new(options: Options) -> std::result::Result<Arc<Self>, ServeError> {
        ExportId::check(options.exports.iter().map(|export| export.name.as_str()))?;
        let attached = options
            .exports
            .into_iter()
            .map(|export| Served::attach(export, options.signer.clone()).map(Arc::new))
            .collect::<std::result::Result<_, _>>()?;
        let pool = ThreadPool::new("nfs-side", SIDE);
        Ok(Arc::new(Self {
            exports: attached,
            identities: options.identities,
            mounts: MountTable::default(),
            requests: AtomicU64::new(1),
            subtrees: Arc::default(),
            digests: Digests::new(pool.lane()),
            packer: Packer::new(pool.lane()),
            _pool: pool,
        }))
    }

    /// Closes idle openings and expires leases. The server calls this about once per second.
    pub fn close_idle(&self) {
        self.exports.iter().for_each(|export| export.close_idle());
        self.leases().for_each(LeaseTable::tick);
    }

    /// Answers pending renewals of leases and grants no more, because the server stops.
    pub(crate) fn end_waits(&self) {
        self.leases().for_each(LeaseTable::end);
    }

    fn leases(&self) -> impl Iterator<Item = &LeaseTable> {
        self.exports.iter().filter_map(|export| export.leases.as_deref())
    }

    /// Returns the export with this id in handles, if there is one.
    pub(crate) fn export(&self, id: ExportId) -> Option<&Arc<Served>> {
        self.exports.iter().find(|export| export.id == id)
    }

    /// Returns all exports, in the order of the options.
    pub(crate) fn exports(&self) -> &[Arc<Served>] {
        &self.exports
    }

    /// Begins a LIST of a subtree; the result is dropped at its end. `None` if [`SUBTREES_MAX`] are running.
    pub(crate) fn begin_subtree(&self) -> Option<Arc<()>> {
        let counted = self.subtrees.clone();
        (Arc::strong_count(&counted) <= SUBTREES_MAX + 1).then_some(counted)
    }

    pub(crate) fn next_request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed))
    }
}

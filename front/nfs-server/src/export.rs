//! What is served, and kept between calls: each export as NFS clients see it, a session of the waist; and all
//! of them.

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
use crate::nodes::{HeldNode, Node, Nodes};
use crate::openings::{Opening, Openings, WriteVerifier};
use crate::options::{Durability, ExportOptions, Options, ServeError};
use crate::packer::Packer;
use crate::permission::Permissions;
use crate::unchecked_creates::UncheckedCreates;

/// How many nodes are kept at hand. A hundred thousand files in use leave the server small.
const NODES_MAX: usize = 1 << 16;
/// How many files are kept open.
const OPENINGS_MAX: usize = 512;
/// How long an idle file is kept open.
const OPENING_IDLE: Duration = Duration::from_secs(5);

/// An export that is served.
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
    /// Attaches to an export. All its clients share one session: nodes and openings mean the same file for
    /// all of them.
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

    /// Whether a caller from there may use it: from an address, if that is on the list; over a link, if it is
    /// the link's own export.
    pub fn admits(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Network(address) => self.allow.admits(address.ip()),
            Origin::Link(link) => link.export == self.name,
        }
    }

    /// The server's own context, for work without a caller.
    pub fn own_ctx(&self) -> Ctx {
        Ctx::root(self.session)
    }

    /// The node of a handle from a call.
    pub async fn resolve(&self, handle: &[u8]) -> failure::Result<Arc<Node>> {
        if let Some(node) = self.nodes.by_handle(handle) {
            return Ok(node);
        }
        let handles = self.handles()?;
        let persistent = self.signer.verify(handle, self.id, handles.volume())?;
        let entry = handles.resolve(&self.own_ctx(), &persistent).resolve().await?;
        let held = HeldNode::new(&self.file_system, self.session, entry.node);
        Ok(self.nodes.enter(Node::new(held, handle.into())))
    }

    /// The export's root.
    pub async fn root(&self) -> Result<Arc<Node>> {
        self.adopt(NodeId::ROOT).await
    }

    /// The node of an entry that the file system has just given us; its look-up is taken over.
    pub async fn adopt(&self, id: NodeId) -> Result<Arc<Node>> {
        self.adopt_held(HeldNode::new(&self.file_system, self.session, id)).await
    }

    /// As [`Served::adopt`], for a look-up that is held already.
    pub async fn adopt_held(&self, held: HeldNode) -> Result<Arc<Node>> {
        // A client may still hold a handle that an older key signed. What is given out anew, the newest
        // signs.
        if let Some(node) = self.nodes.with_handle(held.id(), |handle| self.signer.is_current(handle)) {
            return Ok(node);
        }
        let handles = self.handles()?;
        let persistent = handles.handle_of(&self.own_ctx(), held.id()).resolve().await?;
        let handle = self.signer.sign(self.id, handles.volume(), &persistent)?;
        Ok(self.nodes.enter(Node::new(held, handle)))
    }

    /// The attributes of a node. One without a name left is gone: no client can know it by an opening.
    pub async fn attr(&self, node: &Arc<Node>) -> Result<Attr> {
        self.attr_through(node, None).await
    }

    /// The attributes of a file whose data is asked for: through its opening if there is one, for a file that
    /// was just made is at hand in no other way.
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
            // Out of reach, but perhaps not gone: what was written to it is still made stable when its
            // opening is closed.
            Err(Error::Stale) => {
                self.nodes.remove(node.id);
                Err(Error::Stale)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets go of a node whose file is gone.
    pub fn gone(&self, node: &Arc<Node>) {
        self.openings.discard(node.id);
        self.nodes.remove(node.id);
    }

    /// Makes a change of names in `directory` stable, as far as this export does so.
    pub async fn settle(&self, directory: &Node) -> Result<()> {
        if self.durability == Durability::Relaxed {
            return Ok(());
        }
        self.settled(self.openings.for_listing(directory.id).await).await
    }

    /// Makes a change of a node's attributes stable, as far as this export does so.
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

    /// Makes what was changed stable. What cannot be opened (a device, what the server's own user may not
    /// read, one more than may be open) can only be made so together with everything else.
    async fn settled(&self, opening: Result<Arc<Opening>>) -> Result<()> {
        let settled = match opening {
            Ok(opening) => opening.sync().await,
            Err(Error::AccessDenied | Error::NotPermitted | Error::TooManyOpen) => {
                let syncing = self.file_system.syncfs(&self.own_ctx());
                syncing.resolve().await
            }
            Err(error) => Err(error),
        };
        // The change is made. A client that is told to come back would make it again, as another request.
        settled.map_err(|error| match error {
            Error::WouldBlock | Error::NoMemory => Error::io(error),
            error => error,
        })
    }

    /// Closes idle files. Called now and then.
    pub fn close_idle(&self) {
        self.openings.close_idle(OPENING_IDLE);
    }

    fn handles(&self) -> Result<&dyn PersistentHandles> {
        self.file_system.persistent_handles().ok_or(Error::NotSupported)
    }
}

/// Answers NFS version 3 and MOUNT version 3.
pub struct NfsService {
    exports: Vec<Arc<Served>>,
    pub(crate) identities: Identities,
    pub(crate) mounts: MountTable,
    requests: AtomicU64,
    subtrees: Arc<()>,
    pub(crate) digests: Digests,
    pub(crate) packer: Packer,
    /// What makes both.
    _pool: ThreadPool,
}

/// So many calls at a time bring more than the directory that they ask for: each holds a long answer while
/// the file system works.
const SUBTREES_MAX: usize = 64;

/// Digests and compression: the rest of the machine is for those that ask otherwise.
const SIDE: ThreadPoolLimits = ThreadPoolLimits { threads: 2, queue_len: 256 };

impl NfsService {
    /// Attaches to all exports.
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

    /// Closes idle openings, and looks which leases have run out. To be called every second or so.
    pub fn close_idle(&self) {
        self.exports.iter().for_each(|export| export.close_idle());
        self.leases().for_each(LeaseTable::tick);
    }

    /// Answers the calls that wait until something happens: the server ends.
    pub(crate) fn end_waits(&self) {
        self.leases().for_each(LeaseTable::end);
    }

    fn leases(&self) -> impl Iterator<Item = &LeaseTable> {
        self.exports.iter().filter_map(|export| export.leases.as_deref())
    }

    /// The export that handles name so.
    pub(crate) fn export(&self, id: ExportId) -> Option<&Arc<Served>> {
        self.exports.iter().find(|export| export.id == id)
    }

    /// All exports.
    pub(crate) fn exports(&self) -> &[Arc<Served>] {
        &self.exports
    }

    /// A call that is to list what lies below a directory, while what is returned lives. `None` when many do
    /// so.
    pub(crate) fn begin_subtree(&self) -> Option<Arc<()>> {
        let counted = self.subtrees.clone();
        (Arc::strong_count(&counted) <= SUBTREES_MAX + 1).then_some(counted)
    }

    pub(crate) fn next_request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed))
    }
}

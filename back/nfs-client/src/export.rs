//! A mounted export of a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::fs::{Client, Export, FileSystem, Profile};
use tombolo_core::{Result, block_on};
use tombolo_host_rpc::client::{Call, Counts, InFlight, RpcClient, Tunnel};
use tombolo_host_rpc::link::Route;
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf, Procedure};
use tombolo_wire_rpc::Credential;

use crate::background::Background;
use crate::caller::Caller;
use crate::calls::{Nfs, Sizes};
use crate::data::Budget;
use crate::mounting::{self, About, MountError, both};
use crate::options::Options;
use crate::root::{Mounted, Root};
use crate::server::{Endpoint, Server};
use crate::session::{Beginning, NfsFileSystem, Session};

/// An export of an NFS server. All sessions share its connections, its in-flight limit and its memory.
#[derive(Debug)]
pub struct NfsExport {
    nfs: Nfs,
    root: Arc<Root>,
    /// Attributes of the root when it was mounted, and the time from which they count as requested.
    fattr: Fattr3,
    asked: Instant,
    profile: Profile,
    options: Options,
    budget: Arc<Budget>,
    has_side_program: bool,
}

/// Maximum wait of an unmount for background work.
const LEAVING: Duration = Duration::from_secs(10);

/// Sizes until the server has reported its limits. No READ, WRITE or listing is requested until then.
const UNKNOWN: Sizes = Sizes { read_max: 512, write_max: 512, listing: 512 };

impl NfsExport {
    /// Mounts the export `path`. Each call of the mount times out within seconds, regardless of the options'
    /// timeouts.
    pub fn mount(server: &Server, path: &str, options: Options) -> std::result::Result<Self, MountError> {
        block_on(Self::mounted(Endpoint::Network(server.clone()), path, options))
    }

    /// Mounts as [`NfsExport::mount`] does, over links in shared memory: `path` must be in the export that
    /// they lead to.
    pub fn mount_over(
        route: &Arc<Route>,
        path: &str,
        options: Options,
    ) -> std::result::Result<Self, MountError> {
        block_on(Self::mounted(Endpoint::Links(route.clone()), path, options))
    }

    /// Mounts as [`NfsExport::mount`] does, over the standard streams of a program. Each call of the mount
    /// may take 30 seconds, because the program may first have to connect and authenticate. The tunnel is
    /// closed by [`leave`](Self::leave), when the export and its last session are dropped, or if the mount
    /// fails.
    pub fn mount_through(
        tunnel: &Arc<Tunnel>,
        path: &str,
        options: Options,
    ) -> std::result::Result<Self, MountError> {
        let mounted = block_on(Self::mounted(Endpoint::Tunnel(Arc::clone(tunnel)), path, options));
        mounted.inspect_err(|_| tunnel.close())
    }

    /// Returns the paths that a server exports, in its order.
    pub fn exports_of(
        server: &Server,
        reserved_port: Option<bool>,
    ) -> std::result::Result<Vec<Vec<u8>>, MountError> {
        block_on(mounting::exports(&Endpoint::Network(server.clone()), reserved_port))
    }

    async fn mounted(
        endpoint: Endpoint,
        path: &str,
        mut options: Options,
    ) -> std::result::Result<Self, MountError> {
        let reserved_port = options.rpc.reserved_port;
        let (handle, mount) = mounting::root(&endpoint, path, reserved_port).await?;
        let program = mounting::endpoint_of(&endpoint, mounting::NFS).await?;
        let probe = program.start_probe_after(&mount, mounting::NFS, reserved_port)?;
        let label = endpoint.label(path);
        let probing = Nfs::new(probe, &label, UNKNOWN);
        options.rpc.label.clone_from(&label);
        let rpc = program.start(mounting::NFS, options.rpc.clone())?;
        // The client connects while the calls below are made; the reply to this NULL is not awaited.
        drop(rpc.call(Call::new(Procedure::Null.number(), Credential::None), |_| ()));
        let deadline = Some(probing.rpc().now() + mounting::PROBE_TIMEOUT);
        let caller = Caller { deadline, ..Caller::default() };
        let about = mounting::about(&probing, &caller, handle, &options);
        let asked = both(about, probing.has_side_program(&caller));
        let (about, has_side_program) = asked.await;
        let mut about = about.map_err(|source| MountError::Root {
            server: endpoint.to_string(),
            path: path.to_owned(),
            source,
        })?;
        about.has_side_program = has_side_program;
        let mounted = Mounted { endpoint, path: path.to_owned(), reserved_port };
        Ok(Self::new(rpc, &label, handle, Some(mounted), about, options))
    }

    /// Creates an export over a given RPC client and root handle: for simulations, and for handles obtained
    /// otherwise. Waits for the server according to the client's options. Fails if the root cannot be used.
    pub async fn over(rpc: RpcClient, root: FileHandleBuf, options: Options) -> Result<Self> {
        let label = options.rpc.label.clone();
        let nfs = Nfs::new(rpc.clone(), &label, UNKNOWN);
        let about = mounting::about(&nfs, &Caller::default(), root, &options).await?;
        Ok(Self::new(rpc, &label, root, None, about, options))
    }

    fn new(
        rpc: RpcClient,
        label: &str,
        handle: FileHandleBuf,
        mounted: Option<Mounted>,
        about: About,
        options: Options,
    ) -> Self {
        let asked = rpc.now();
        let nfs = Nfs::new(rpc, label, about.sizes);
        let root = Arc::new(Root { nfs: nfs.clone(), handle, mounted, background: Background::default() });
        let budget = Budget::new(options.dirty_bytes_max);
        let About { fattr, profile, has_side_program, .. } = about;
        Self { nfs, root, fattr, asked, profile, options, budget, has_side_program }
    }

    /// Ends the use of the export; call it after its sessions have ended. Waits up to ten seconds for their
    /// background work (flushes, removals of files unlinked while open), and once that has ended notifies the
    /// server of the unmount, which only affects its list of clients. A tunnel is closed in any case, without
    /// that notification.
    pub fn leave(&self) {
        let is_done = self.root.background.wait(LEAVING);
        if !is_done {
            tracing::warn!(
                server = self.nfs.label(),
                "unmounted before the server has answered: unflushed data may be lost, and .nfs files may remain"
            );
        }
        let Some(Mounted { endpoint, path, reserved_port }) = &self.root.mounted else { return };
        if let Endpoint::Tunnel(tunnel) = endpoint {
            // The server's mount list ends with the tunnel.
            return tunnel.close();
        }
        if !is_done {
            return;
        }
        if let Err(error) = block_on(mounting::leave(endpoint, path, *reserved_port)) {
            tracing::debug!(%error, "UMNT failed");
        }
    }

    /// Returns the counters of the export's calls.
    pub fn counts(&self) -> Counts {
        self.nfs.rpc().counts()
    }

    /// Changes the limit of outstanding reads and writes.
    pub fn set_in_flight(&self, limit: InFlight) {
        self.nfs.rpc().set_in_flight(limit);
    }

    /// Returns the RPC client that carries the export's calls.
    pub fn rpc(&self) -> &RpcClient {
        self.nfs.rpc()
    }

    /// Returns the number of written bytes, of all files, that are retained because the server does not have
    /// them on stable storage yet, including the overhead of their pieces.
    pub fn held_bytes(&self) -> usize {
        self.budget.held_bytes()
    }

    /// Returns the number of written bytes, of all files so far, that had to be copied because the writer's
    /// memory was not retainable.
    pub fn copied_bytes(&self) -> u64 {
        self.budget.copied_bytes()
    }
}

impl Export for NfsExport {
    /// Makes no call to the server: state of the root is revalidated when it is needed.
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(NfsFileSystem::new(Session::new(Beginning {
            nfs: self.nfs.clone(),
            budget: self.budget.clone(),
            handle: self.root.handle,
            fattr: &self.fattr,
            asked: self.asked,
            profile: self.profile,
            checks: client.checks,
            root: self.root.clone(),
            options: &self.options,
            has_side_program: self.has_side_program,
        }))))
    }
}

//! A server of its own for each test, in this process, on a free port of the loopback interface.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::SessionId;
use tombolo_core::fs::{Export, LeaseTable};
use tombolo_front_nfs_server::{
    AllowList, Durability, ExportOptions, Groups, Identities, LeaseHolders, NfsServer, NfsService, Options,
    ServeError, Signer, Squash, SquashMode,
};
use tombolo_host_rpc::server::{Counts, Listeners, Options as RpcOptions};
use tombolo_host_runtime::signing_keys::Keys;

use crate::client::{Nfs, Stream, Transport};

/// Path of the export of servers with one export.
pub const PATH: &str = "/export";

/// Configuration of a test server.
pub struct Plan {
    /// Paths, trees, and how their callers are squashed.
    pub exports: Vec<(String, Arc<dyn Export>, Squash)>,
    /// Keys that sign handles.
    pub keys: Keys,
    /// The addresses that may call.
    pub allow: AllowList,
    /// Looks the groups of users up, instead of believing the callers.
    pub groups: Option<Groups>,
    /// Durability of changes when they are answered.
    pub durability: Durability,
    /// The leases that clients may hold.
    pub leases: Option<Arc<LeaseTable>>,
    /// The clients that may.
    pub lease_holders: LeaseHolders,
    /// Transport options.
    pub rpc: RpcOptions,
    /// Where, if it is not to be anywhere.
    pub address: Option<SocketAddr>,
}

/// A running server.
pub struct TestServer {
    server: NfsServer,
}

/// Returns the policy without squashing.
pub fn no_squash() -> Squash {
    Squash { mode: SquashMode::None, ..Squash::default() }
}

impl Plan {
    /// Prepares one export, `/export`, that trusts all callers.
    pub fn over(export: Arc<dyn Export>) -> Self {
        Self::empty().and(PATH, export, no_squash())
    }

    /// Prepares a server without exports, with keys of its own.
    pub fn empty() -> Self {
        Self {
            exports: Vec::new(),
            keys: Keys::random().expect("a key"),
            allow: AllowList::default(),
            groups: None,
            durability: Durability::Stable,
            leases: None,
            lease_holders: LeaseHolders::default(),
            rpc: RpcOptions::default(),
            address: None,
        }
    }

    /// Adds an export.
    pub fn and(mut self, path: &str, export: Arc<dyn Export>, squash: Squash) -> Self {
        self.exports.push((path.to_owned(), export, squash));
        self
    }

    /// Sets the squash policy of all exports.
    pub fn squashing(mut self, squash: Squash) -> Self {
        self.exports.iter_mut().for_each(|export| export.2 = squash);
        self
    }

    /// Starts the server.
    pub fn start(mut self) -> TestServer {
        let service = self.service().expect("the service");
        let address = self.address.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
        let bound = Listeners { tcp: vec![address], udp: vec![address] }.bind().expect("a port");
        TestServer { server: NfsServer::start(bound, self.rpc, &service).expect("the server starts") }
    }

    /// Builds the service for a transport of the caller's.
    ///
    /// # Errors
    /// The exports cannot be served.
    pub fn service(&mut self) -> Result<Arc<NfsService>, ServeError> {
        static SESSIONS: AtomicU64 = AtomicU64::new(1 << 32);
        let exports = self.exports.iter().map(|(name, export, squash)| ExportOptions {
            name: name.clone(),
            export: export.clone(),
            session: SessionId(SESSIONS.fetch_add(1, Ordering::Relaxed)),
            squash: *squash,
            allow: self.allow.clone(),
            durability: self.durability,
            leases: self.leases.clone(),
            lease_holders: self.lease_holders.clone(),
        });
        let exports = exports.collect();
        let signer = Arc::new(Signer::new(self.keys.clone()));
        let identities = Identities::new(self.groups.take());
        NfsService::new(Options { exports, signer, identities })
    }
}

impl TestServer {
    /// Starts a server of one export that trusts all callers.
    pub fn over(export: impl Export + 'static) -> Self {
        Plan::over(Arc::new(export)).start()
    }

    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.server.tcp_addresses()[0]
    }

    /// Connects a client over TCP as the superuser.
    pub fn nfs(&self) -> Nfs {
        self.nfs_over(Transport::Tcp)
    }

    /// Connects a client.
    pub fn nfs_over(&self, transport: Transport) -> Nfs {
        Nfs::connect(transport, self.address()).expect("the server takes connections")
    }

    /// Connects without a client, for raw bytes.
    pub fn stream(&self) -> Stream {
        Stream::connect(self.address()).expect("the server takes connections")
    }

    /// Returns the server's counters.
    pub fn counts(&self) -> Counts {
        self.server.counts()
    }

    /// Stops it. Its exports can be served again.
    pub fn stop(self) {
        self.server.stop();
    }
}

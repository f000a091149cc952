//! Mount options and mounts of test clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_back_nfs_client::{AttributeTimes, NfsExport, Options, Ports, Server};
use tombolo_conformance::waist::World;
use tombolo_core::fs::{Export, PermissionCheck};
use tombolo_host_rpc::client::{Options as RpcOptions, Recovery, Transport};
use tombolo_nfs_tests::test_server::PATH;

/// Returns the options of a hard mount that caches no attributes.
pub fn hard() -> Options {
    Options { attributes: AttributeTimes::NONE, ..Options::default() }
}

/// Returns the options of a soft mount with a time-out of about one second.
pub fn soft() -> Options {
    let mut options = hard();
    options.rpc = RpcOptions {
        recovery: Recovery::Soft,
        timeout: Duration::from_millis(300),
        retries: 2,
        ..options.rpc
    };
    options
}

/// Returns the address of a server that answers MOUNT and NFS at one port.
pub fn server(address: SocketAddr, transport: Transport) -> Server {
    let name = address.ip().to_string();
    Server { name, address: address.ip(), ports: Ports::One(address.port()), transport, tls: None }
}

/// Mounts the server's only export over TCP.
///
/// # Panics
/// If the mount fails.
pub fn mounted(address: SocketAddr, options: Options) -> Arc<NfsExport> {
    let export = NfsExport::mount(&server(address, Transport::Tcp), PATH, options);
    Arc::new(export.expect("the server can be mounted"))
}

/// Opens a session of the export as the superuser, in a directory of its own.
pub fn world(export: Arc<dyn Export>) -> World {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("world-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    World::new(export, PermissionCheck::BackEnd, &name)
}

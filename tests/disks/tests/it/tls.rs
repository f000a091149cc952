//! The NBD client over TLS.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tombolo_back_memory::MemoryDisk;
use tombolo_back_nbd_client::{Address, ConnectError, NbdDisk};
use tombolo_conformance::disk::Wanted;
use tombolo_core::Stability;
use tombolo_core::block::BlockDevice;
use tombolo_front_nbd::{Exports, Listeners, Options, Server, StartError};
use tombolo_host_tls::{Authority, ClientTls, Request, ServerTls, TlsError};

use crate::common::{Bed, SIZE, every_case, read, write};

/// A certificate authority, with the certificates that it issued.
struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        let authority = Authority::create(&world.dir("ca"), "test-ca").unwrap();
        let until = SystemTime::now() + Duration::from_secs(3600);
        let hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        for (name, hosts) in [("server", hosts), ("alice", Vec::new())] {
            authority.issue(&Request { name: name.into(), hosts, until }, &world.dir(name)).unwrap();
        }
        // File names that QEMU requires.
        for (ours, theirs) in
            [("ca.pem", "ca-cert.pem"), ("cert.pem", "server-cert.pem"), ("key.pem", "server-key.pem")]
        {
            fs::copy(world.dir("server").join(ours), world.dir("server").join(theirs)).unwrap();
        }
        world
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn alice(&self, server: &str) -> ClientTls {
        ClientTls::open_for_nbd(&self.dir("alice"), server.parse().unwrap()).unwrap()
    }

    /// Starts Tombolo's server of this disk, and returns its address.
    fn serve(&self, disk: Arc<dyn BlockDevice>) -> (Server, Address) {
        let mut listeners = Listeners::default();
        let at = listeners.add_tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        (self.serve_at(listeners, disk), Address::Tcp(at.ip().to_string(), at.port()))
    }

    fn serve_at(&self, listeners: Listeners, disk: Arc<dyn BlockDevice>) -> Server {
        let mut exports = Exports::default();
        exports.add("disk", disk);
        let tls = Some(Arc::new(ServerTls::open_for_nbd(&self.dir("server")).unwrap()));
        Server::start(listeners, exports, Options { tls, ..Options::default() }).unwrap()
    }
}

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDisk::new(SIZE).unwrap())
}

#[test]
fn every_case_over_tls() {
    let world = World::new();
    every_case(|Wanted { size_bytes, read_only }| {
        let new = if read_only { MemoryDisk::read_only } else { MemoryDisk::new };
        let (server, address) = world.serve(Arc::new(new(size_bytes).unwrap()));
        (NbdDisk::connect(address, Some(world.alice("127.0.0.1")), "disk").unwrap(), server)
    });
}

#[test]
fn a_disk_of_qemu_nbd_over_tls() {
    let (world, bed) = (World::new(), Bed::new());
    let credentials = format!(
        "tls-creds-x509,id=tls0,endpoint=server,verify-peer=on,dir={}",
        world.dir("server").display()
    );
    let _server = bed.qemu_nbd(&["--object", &credentials, "--tls-creds", "tls0"]);
    let connect = |tls| NbdDisk::connect(Address::Unix(bed.socket()), tls, "disk");
    assert!(matches!(connect(None).err(), Some(ConnectError::TlsRequired)));
    let disk = connect(Some(world.alice("localhost"))).unwrap();
    let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 4099) as u8).collect();
    write(&*disk, 512, Stability::DataSync, &bytes).unwrap();
    assert!(read(&*disk, 512, bytes.len()).unwrap() == bytes);
    assert!(fs::read(bed.image()).unwrap()[512..][..bytes.len()] == bytes);
}

#[test]
fn tls_is_required_and_untrusted_peers_are_refused() {
    let (world, other) = (World::new(), World::new());
    let (_server, address) = world.serve(memory());
    let connect = |tls| NbdDisk::connect(address.clone(), tls, "disk").err();
    assert!(matches!(connect(None), Some(ConnectError::TlsRequired)));
    assert!(matches!(
        connect(Some(other.alice("127.0.0.1"))),
        Some(ConnectError::Tls(TlsError::UnknownIssuer))
    ));
    assert!(matches!(connect(Some(world.alice("elsewhere"))), Some(ConnectError::Tls(TlsError::WrongName))));
    // The client trusts the server, which does not trust it.
    fs::copy(world.dir("alice").join("ca.pem"), other.dir("alice").join("ca.pem")).unwrap();
    fs::copy(world.dir("alice").join("crl.pem"), other.dir("alice").join("crl.pem")).unwrap();
    let refused = connect(Some(other.alice("127.0.0.1")));
    assert!(matches!(refused, Some(ConnectError::Tls(TlsError::Refused(_)))), "{refused:?}");
    let bed = Bed::new();
    let _plain = bed.serve(memory());
    let downgraded = NbdDisk::connect(Address::Unix(bed.socket()), Some(world.alice("localhost")), "disk");
    assert!(matches!(downgraded.err(), Some(ConnectError::TlsUnsupported)));
}

#[test]
fn lost_connection_is_restored_with_tls() {
    let (world, disk_of_server) = (World::new(), memory());
    // An address of this test alone: on a shared one the port may be taken by the time the server restarts.
    let [high, low, ..] = std::process::id().to_le_bytes();
    let mut at = SocketAddr::from((Ipv4Addr::new(127, 17, high, low.max(1)), 0));
    let mut serve = || {
        let mut listeners = Listeners::default();
        // A child that another test is starting may have the last listener for a moment.
        let end = Instant::now() + Duration::from_secs(60);
        at = loop {
            match listeners.add_tcp(at) {
                Err(StartError::Bind { .. }) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                bound => break bound.unwrap(),
            }
        };
        (world.serve_at(listeners, disk_of_server.clone()), Address::Tcp(at.ip().to_string(), at.port()))
    };
    let (server, address) = serve();
    let disk = NbdDisk::connect(address, Some(world.alice("127.0.0.1")), "disk").unwrap();
    write(&*disk, 0, Stability::DataSync, &[1; 512]).unwrap();
    drop(server);
    let _server = serve();
    assert_eq!(read(&*disk, 0, 512).unwrap(), [1; 512]);
}

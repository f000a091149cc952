//! A tree on an NFS server that comes and goes, and a place to mount a proxy of it.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{MountPlace, Server};

/// The origin, which keeps its address: no other test has that. Its tree is `tree`; a proxy is mounted at
/// `mnt`.
pub struct Far {
    pub place: MountPlace,
    pub origin: Option<Server>,
    pub address: SocketAddrV4,
    /// Which users it takes for nobody.
    pub squash: &'static str,
}

impl Far {
    /// None where nothing can be mounted.
    pub fn new() -> Option<Self> {
        Self::squashing("none")
    }

    /// The same with an origin that takes some users for nobody.
    pub fn squashing(squash: &'static str) -> Option<Self> {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let host = Ipv4Addr::new(127, high.max(1), low, NEXT.fetch_add(1, Ordering::Relaxed));
        let (place, address) = (MountPlace::new()?, SocketAddrV4::new(host, 0));
        let mut far = Self { place, origin: None, address, squash };
        far.start_origin();
        Some(far)
    }

    pub fn start_origin(&mut self) {
        let address = self.address.to_string();
        let words = ["serve", "tree", "--nfs", &address, "--squash", self.squash, "--state", "origin-state"];
        let origin =
            self.place.0.serve(&[&words[..], &["--control", "origin.sock"]].concat(), "ready control");
        self.address = origin.nfs_address().parse().expect("an address");
        self.origin = Some(origin);
    }

    pub fn stop_origin(&mut self) {
        self.origin.take().expect("it runs").stop();
    }

    /// Of its tree, and what is to follow that.
    pub fn url(&self, rest: &str) -> String {
        self.location(&format!("/tree{rest}"))
    }

    pub fn location(&self, path: &str) -> String {
        format!("nfs://{}{path}", self.address)
    }

    pub fn tree(&self, name: &str) -> PathBuf {
        self.place.0.path("tree").join(name)
    }

    pub fn mnt(&self, name: &str) -> PathBuf {
        self.place.mnt().join(name)
    }
}

//! An NFS server that can be stopped and restarted, and a mount point for a proxy of it.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{MountPlace, Server};

/// The origin, at a fixed address used by no other test. Its tree is `tree`; proxies are mounted at `mnt`.
pub struct Far {
    pub place: MountPlace,
    pub origin: Option<Server>,
    pub address: SocketAddrV4,
    /// Users that are squashed.
    pub squash: &'static str,
}

impl Deref for Far {
    type Target = MountPlace;

    fn deref(&self) -> &MountPlace {
        &self.place
    }
}

impl Far {
    /// Creates the tree; `None` where mounting is impossible.
    pub fn new() -> Option<Self> {
        Self::squashing("none")
    }

    /// Creates the tree, with an origin that squashes users.
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
        let options = format!("--squash {} --state origin-state --control origin.sock", self.squash);
        let origin = self.serve(format!("serve tree --nfs {} {options}", self.address));
        self.address = origin.nfs_address().parse().expect("an address");
        self.origin = Some(origin);
    }

    pub fn stop_origin(&mut self) {
        self.origin.take().expect("it runs").stop();
    }

    /// Returns the URL of the tree, with this suffix.
    pub fn url(&self, rest: &str) -> String {
        self.location(&format!("/tree{rest}"))
    }

    pub fn location(&self, path: &str) -> String {
        format!("nfs://{}{path}", self.address)
    }

    pub fn tree(&self, name: &str) -> PathBuf {
        self.path("tree").join(name)
    }

    pub fn mnt(&self, name: &str) -> PathBuf {
        self.place.mnt().join(name)
    }
}

//! Two networks and the link between them.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use tombolo_sys::tun;

use crate::line::{self, Shared};
use crate::profile::Profile;

/// A link between two networks. Dropping it removes everything.
#[derive(Debug)]
pub struct Wan {
    near: Side,
    far: Side,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// One end: a network namespace.
#[derive(Clone, Debug)]
pub struct Side {
    namespace: String,
    address: Ipv4Addr,
}

/// Distinguishes the links of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Wan {
    /// Creates both networks and begins to forward packets. Requires root and /dev/net/tun.
    ///
    /// # Errors
    /// If something cannot be created; everything else is removed then.
    pub fn new(profile: &Profile) -> io::Result<Self> {
        let tag = format!("{:x}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let side = |end: &str, last| Side {
            namespace: format!("wan{tag}{end}"),
            address: Ipv4Addr::new(10, 78, 0, last),
        };
        let (near, far) = (side("n", 1), side("f", 2));
        let shared = Arc::<Shared>::default();
        let mut wan = Self { near, far, shared, threads: Vec::new() };
        let near = Arc::new(wan.near.make(wan.far.address, profile)?);
        let far = Arc::new(wan.far.make(wan.near.address, profile)?);
        for (name, ends) in [("wan-there", (near.clone(), far.clone())), ("wan-back", (far, near))] {
            wan.threads.push(line::start(name, ends, profile, &wan.shared)?);
        }
        Ok(wan)
    }

    /// Returns the end of the users.
    pub fn near(&self) -> &Side {
        &self.near
    }

    /// Returns the end of the origin.
    pub fn far(&self) -> &Side {
        &self.far
    }

    /// Interrupts the link, or restores it.
    pub fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Returns the share of packets forwarded so far that were more than 2 ms late: then this machine was too
    /// busy, and measurements are void.
    pub fn late(&self) -> f64 {
        let (late, carried) = (&self.shared.late, &self.shared.carried);
        late.load(Ordering::Relaxed) as f64 / (carried.load(Ordering::Relaxed).max(1) as f64)
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        for side in [&self.near, &self.far] {
            let _ = run("ip", &["netns", "delete", &side.namespace]);
        }
    }
}

impl Side {
    /// Returns its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns its name for ip(8).
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Creates a command that runs in this network.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace)).arg("--").arg(program);
        command
    }

    fn make(&self, peer: Ipv4Addr, profile: &Profile) -> io::Result<OwnedFd> {
        let (name, device) = (&*self.namespace, &*self.namespace.replace('-', "."));
        run("ip", &["netns", "add", name])?;
        let tun = tun::make(device)?;
        run("ip", &["link", "set", device, "netns", name])?;
        let (own, peer) = (self.address.to_string(), peer.to_string());
        run("ip", &["-n", name, "address", "add", &own, "peer", &peer, "dev", device])?;
        // As long as the link's own queue.
        for device in ["lo", device] {
            run("ip", &["-n", name, "link", "set", device, "up", "txqueuelen", "1000"])?;
        }
        self.set("tcp_congestion_control", profile.congestion)?;
        if profile.window_bytes > 0 {
            let most = profile.window_bytes;
            self.set("tcp_rmem", &format!("4096 {most} {most}"))?;
            self.set("tcp_wmem", &format!("4096 {most} {most}"))?;
            self.set("tcp_window_scaling", "0")?;
        }
        Ok(tun)
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        let set = format!("echo '{value}' >/proc/sys/net/ipv4/{name}");
        run("ip", &["netns", "exec", &self.namespace, "sh", "-c", &set])
    }
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} {}: {}", arguments.join(" "), said.trim())))
}

//! Tree at the far end of an emulated WAN link ([`Site`]), and access to it at the near end ([`Column`]): our
//! mounts and proxies, and as peers sshfs, and rclone with its full cache. None is encrypted.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use tempfile::TempDir;
use tombolo_wan::{Profile, Side as End, Wan};

use super::Plan;
use crate::error::{Doing, Error, Result};
use crate::files::Place;
use crate::peer::{AtSocket, Mount, Nfs, RCLONE, SSHFS, Server, TOMBOLO, find};
use crate::report::Report;
use crate::table::mounts::Side;

/// Columns. To add one: a variant, its name, its construction in [`Site::fresh`], and the sheets that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// The tree itself
    Local,
    /// A mount of the tree on the same host
    Dir,
    /// No files: the same number of bytes in a bare TCP stream over the WAN link
    Bare,
    /// A mount over a LAN, without a cache on disk
    Lan,
    /// A mount over the WAN link, without a cache on disk
    Nfs,
    /// A mount of an exclusive proxy
    Exclusive,
    /// A mount of an exclusive proxy that fetches the names of the whole tree at the first look-up
    ExclusiveTree,
    /// A mount of an exclusive read-only proxy: the kernel reads completely cached files by itself
    ReadOnly,
    /// A mount of an exclusive proxy that stores changes on its disk and sends them in the background
    WriteBack,
    /// A mount of a close-to-open proxy
    CloseToOpen,
    /// A proxy whose origin is a proxy on the same LAN, which has run the job before
    SecondLevel,
    /// Like nfs, with a VM's disk writes in a local redo log
    NfsRedo,
    /// Like exclusive, with a VM's disk writes in a local redo log
    ExclusiveRedo,
    /// sshfs
    Sshfs,
    /// rclone
    Rclone,
}

impl Column {
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "the directory itself",
            Self::Dir => "dir: mount",
            Self::Bare => "bare TCP stream",
            Self::Lan => "nfs: mount over a LAN",
            Self::Nfs => "nfs: mount, no cache",
            Self::NfsRedo => "nfs: mount, no cache; redo log",
            Self::Exclusive => "proxy, exclusive",
            Self::ReadOnly => "proxy, exclusive, read-only",
            Self::WriteBack => "proxy, write-back",
            Self::ExclusiveTree => "proxy, exclusive, prefetch=tree",
            Self::ExclusiveRedo => "proxy, exclusive; redo log",
            Self::CloseToOpen => "proxy, close-to-open",
            Self::SecondLevel => "proxy of a proxy on the LAN",
            Self::Sshfs => "sshfs",
            Self::Rclone => "rclone mount",
        }
    }

    /// Returns the name in `--column`.
    pub fn id(&self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns `true` if the column's requests reach the origin over the WAN link, and are counted there.
    pub fn is_far(self) -> bool {
        let near = matches!(self, Self::Local | Self::Dir | Self::Bare | Self::Lan | Self::ReadOnly);
        !near && !matches!(self, Self::Sshfs | Self::Rclone)
    }

    /// Returns `true` if a VM's disk writes stay at the near end.
    pub fn has_redo_log(self) -> bool {
        matches!(self, Self::NfsRedo | Self::ExclusiveRedo)
    }
}

/// Port of origins and proxies. Each network has its own ports.
const PORT: u16 = 2049;
/// Port of peers.
const PEER_PORT: u16 = 2048;
/// Adapter that connects sftp-server(8) to one client, by its standard input and output.
const SFTP_SERVER: &str = "
import os, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('0.0.0.0', int(sys.argv[1]))); s.listen(1)
c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
os.dup2(c.fileno(), 0); os.dup2(c.fileno(), 1); os.execv('/usr/lib/openssh/sftp-server', ['sftp-server'])";
/// Maximum fraction of delayed packets; above it a run is void.
const LATE_MAX: f64 = 0.02;

/// Options of a proxy that refuses changes.
pub const READ_ONLY: [&str; 2] = ["--mode", "read-only"];

/// The served tree with its server and WAN links, which end on drop.
pub struct Site {
    // Fields drop in order: clients before servers before their links.
    second: Option<SecondLevel>,
    lan: Option<(Nfs, Wan)>,
    pub origin: Nfs,
    pub line: Wan,
    profile: Profile,
    place: Place,
}

/// A proxy at the near end of the WAN link for a LAN. A process has one network, so a second server in the
/// LAN accesses the proxy over shared memory.
struct SecondLevel {
    server: Nfs,
    _proxy: AtSocket,
    line: Wan,
    _cache: TempDir,
}

/// Mounts `url` at `point`, with a command that has only the program so far.
pub fn mounted(mut command: Command, url: &str, point: &Path) -> Result<Side> {
    command.args(["mount", "-f", url]).arg(point);
    Ok(Side::of(Mount::by_command(command, point)?, ()))
}

/// Starts a proxy with a mount, and a cache next to it.
pub fn cached(command: Command, url: &str, contract: &str, options: &[&str], point: &Path) -> Result<Side> {
    let cache = crate::table::folder(point.parent().unwrap_or(point))?;
    let mut command = proxy_of(command, url, cache.path(), contract);
    command.args(options).arg("--fuse").arg(point);
    // All changes pass through the proxy, so that its mount can be notified of them.
    if contract == "exclusive" {
        command.args(["--coherence", "push"]);
    }
    Ok(Side::of(Mount::of_server(command, point)?, cache))
}

impl Site {
    /// Serves a directory at the far end. All other files go next to it.
    pub fn new(plan: &Plan, place: &Place) -> Result<Self> {
        let profile = plan.profile.unwrap_or(if plan.quick { Profile::LAN } else { Profile::WAN });
        let line = line(&profile)?;
        let place = place.clone();
        let origin = served(line.far(), &place.shared(), place.folder())?;
        Ok(Self { second: None, lan: None, origin, line, profile, place })
    }

    /// Adds [`Column::Lan`].
    pub fn add_plain_lan(&mut self) -> Result<()> {
        let lan = line(&Profile::LAN)?;
        self.lan = Some((served(lan.far(), &self.place.shared(), self.place.folder())?, lan));
        Ok(())
    }

    /// Adds [`Column::SecondLevel`], or reports why it is missing.
    pub fn add_lan(&mut self, report: &mut Report) {
        self.second = report.present(Column::SecondLevel.name(), self.second_level());
    }

    fn second_level(&self) -> Result<SecondLevel> {
        let (cache, lan) = (crate::table::folder(self.place.folder())?, line(&Profile::LAN)?);
        let proxy = self.line.near().command(find(TOMBOLO)?);
        let proxy = proxy_of(proxy, &self.origin.url(), cache.path(), "exclusive");
        let proxy = AtSocket::by_command(proxy, &self.place.shared(), &self.place.beside("lan.link"))?;
        let server = served(lan.far(), Path::new(&proxy.url()), self.place.folder())?;
        Ok(SecondLevel { server, _proxy: proxy, line: lan, _cache: cache })
    }

    /// Returns the available columns among `wanted`.
    pub fn columns(&self, wanted: &[Column]) -> Vec<Column> {
        let is_there = |column: &Column| match column {
            Column::SecondLevel => self.second.is_some(),
            Column::Lan => self.lan.is_some(),
            _ => true,
        };
        wanted.iter().copied().filter(is_there).collect()
    }

    /// Creates a side with its own mount and an empty cache.
    pub fn fresh(&self, column: Column) -> Result<Side> {
        let point = self.place.beside(&format!("{column:?}"));
        let (program, near, url) = (find(TOMBOLO)?, self.line.near(), self.origin.url());
        let proxied = |contract: &str, options: &[&str]| {
            cached(near.command(&program), &url, contract, options, &point)
        };
        let missing = || Error::Absent("no LAN".to_owned());
        match column {
            Column::Local | Column::Bare => Ok(Side::itself(self.place.shared())),
            Column::Dir => {
                mounted(Command::new(program), &format!("dir:{}", self.place.shared().display()), &point)
            }
            Column::Lan => {
                let (origin, lan) = self.lan.as_ref().ok_or_else(missing)?;
                mounted(lan.near().command(program), &origin.url(), &point)
            }
            Column::Nfs | Column::NfsRedo => mounted(near.command(program), &url, &point),
            Column::Exclusive | Column::ExclusiveRedo => proxied("exclusive", &[]),
            Column::ReadOnly => proxied("exclusive", &READ_ONLY),
            Column::WriteBack => proxied("exclusive", &["--mode", "write-back"]),
            Column::CloseToOpen => proxied("close-to-open", &[]),
            Column::ExclusiveTree => {
                let policy = self.place.beside("tree.toml");
                fs::write(&policy, "prefetch = \"tree\"\n").doing_to("write", &policy)?;
                proxied("exclusive", &["--policy", &policy.to_string_lossy()])
            }
            Column::SecondLevel => {
                let (lan, url) = self.second().ok_or_else(missing)?;
                cached(lan.command(program), &url, "exclusive", &[], &point)
            }
            Column::Sshfs => self.sshfs(&point),
            Column::Rclone => self.rclone(&point),
        }
    }

    /// Mounts sshfs, without encryption.
    fn sshfs(&self, point: &Path) -> Result<Side> {
        let mut serve = self.line.far().command("python3");
        serve.args(["-c", SFTP_SERVER, &PEER_PORT.to_string()]);
        let mut command = self.line.near().command(find(SSHFS)?);
        let server = Server::listening("sftp-server", &mut serve, &[PEER_PORT])?;
        command.args(["-f", "-o", &format!("directport={PEER_PORT},kernel_cache")]);
        command.arg(format!("{}:{}", self.line.far().address(), self.place.shared().display())).arg(point);
        Ok(Side::of(Mount::by(SSHFS, command, point)?, server))
    }

    /// Mounts rclone with its full cache, without encryption.
    fn rclone(&self, point: &Path) -> Result<Side> {
        let (program, address) = (find(RCLONE)?, format!("{}:{PEER_PORT}", self.line.far().address()));
        let mut serve = self.line.far().command(&program);
        serve.args(["--config", "/dev/null", "serve", "webdav", "--addr", &address]);
        let server = Server::listening("rclone serve", serve.arg(self.place.shared()), &[PEER_PORT])?;
        let (cache, mut command) =
            (crate::table::folder(self.place.folder())?, self.line.near().command(program));
        command.args(["--config", "/dev/null", "mount", ":webdav:", "--webdav-url"]);
        command.arg(format!("http://{address}")).arg(point).arg("--cache-dir").arg(cache.path());
        command.args(["--vfs-cache-mode", "full", "--file-perms", "0755"]);
        Ok(Side::of(Mount::by(RCLONE, command, point)?, (server, cache)))
    }

    /// Returns the time of a bare stream of `bytes` over the WAN link.
    pub fn bare(&self, bytes: u64) -> Result<Duration> {
        let check = self.line.check(bytes).doing(|| "measure the WAN link with python3".to_owned())?;
        Ok(Duration::from_secs_f64(bytes as f64 * 8.0 / check.rate_bits_per_s))
    }

    /// Returns a host of the LAN, and the URL of its cache, if there is one.
    pub fn second(&self) -> Option<(&End, String)> {
        self.second.as_ref().map(|second| (second.line.near(), second.server.url()))
    }

    /// Adds the parameters of the links to a report, and whether they were met.
    pub fn describe(&self, report: &mut Report) {
        let Profile { name, rate_bits_per_s, round_trip_us, congestion, .. } = self.profile;
        report.condition(format!(
            "the line, `{name}`: {} Mbit/s each way and {} ms there and back, a queue of one bandwidth-delay product, {congestion}; between two network \
             namespaces. The origin, `tombolo serve --nfs`, is at its far end, and all that is mounted over it at the near one; both are this host",
            rate_bits_per_s / 1_000_000,
            round_trip_us as f64 / 1e3
        ));
        report.condition(
            "this kernel has no NFS client: NFS without a cache is `tombolo mount nfs://`, as it comes, which believes attributes for a while. Under exclusive the proxy mounts with --coherence push".to_owned(),
        );
        report.condition(
            "sshfs: of OpenSSH's sftp-server without SSH, kernel_cache; rclone: of its own WebDAV server, --vfs-cache-mode full"
                .to_owned(),
        );
        if self.second.is_some() {
            report.condition(
                "the LAN: 1 Gbit/s and 0.3 ms. The proxy on it has done the job once, and meets the LAN by a second server of ours over shared \
                 memory, as it is in the network of the line"
                    .to_owned(),
            );
        }
        let lan = self.second.as_ref().map(|second| ("the LAN", &second.line));
        let lan = lan.or(self.lan.as_ref().map(|(_, line)| ("the LAN", line)));
        for (what, line) in [("the line", &self.line)].into_iter().chain(lan) {
            let (late, what) = (line.late(), format!("{what}: packets more than 2 ms late"));
            let found = format!("{:.2} %", late * 100.0);
            report.target(&what, "≤ 2 %, or the run is void", found, Some(late <= LATE_MAX));
            if late > LATE_MAX && !report.title.starts_with("VOID") {
                report.title =
                    format!("VOID, as this machine was too busy for the WAN link: {}", report.title);
            }
        }
    }
}

/// Drops the kernel's caches of disks and mounts, except dirty pages.
pub fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| Error::Absent(format!("the kernel's caches cannot be dropped: {error}")))
}

pub fn line(profile: &Profile) -> Result<Wan> {
    Wan::new(profile)
        .map_err(|error| Error::Absent(format!("a WAN link requires root and /dev/net/tun: {error}")))
}

fn served(end: &End, shared: &Path, beside: &Path) -> Result<Nfs> {
    let mut command = end.command(find(TOMBOLO)?);
    command.arg("serve").arg(shared);
    Nfs::by_command(command, SocketAddr::from((end.address(), PORT)), shared, beside)
}

/// Adds the arguments of a proxy without a front end to a command that has only the program so far.
pub fn proxy_of(mut command: Command, url: &str, cache: &Path, contract: &str) -> Command {
    command.args(["proxy", url, "--contract", contract, "--cache"]).arg(cache);
    // The lease would allow only one proxy of the tree at a time, but several columns have one.
    if contract == "exclusive" {
        command.arg("--no-lease");
    }
    command
}

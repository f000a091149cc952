//! A tree at the far end of an emulated line, and what it is read through at the near end.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use tempfile::TempDir;
use tombolo_wan::{Profile, Side as End, Wan};

use super::{Plan, peers};
use crate::args::GvfsArgs;
use crate::error::{Doing, Error, Result};
use crate::peer::{Mount, Nfs, Program, Requests, Server, Shm, find};
use crate::report::Report;

/// What a job is done on. To add one: a variant, its name, what [`Site::fresh`] makes for it, and the parts
/// that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// The tree itself
    Local,
    /// A mount of it on the same host
    Dir,
    /// No files: as many bytes in a bare TCP stream over the line
    Bare,
    /// A mount over a LAN, without a cache on disk
    Lan,
    /// A mount over the line, without a cache on disk
    Nfs,
    /// A mount of an exclusive proxy
    Exclusive,
    /// The same, which brings the names of the whole tree as soon as one looks into it
    ExclusiveTree,
    /// As exclusive, and nothing can be changed: what is wholly in the cache the kernel reads by itself
    ReadOnly,
    /// The same, which keeps changes on its disk and brings them to the origin in the background
    WriteBack,
    /// A mount of a close-to-open proxy
    CloseToOpen,
    /// A proxy whose origin is a proxy on the same LAN, which has done the job before
    SecondLevel,
    /// As nfs; what a VM writes to its disk stays here, in a redo log
    NfsRedo,
    /// As exclusive; what a VM writes to its disk stays here, in a redo log
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

    /// Whether what is asked of the origin is worth counting.
    pub fn is_far(self) -> bool {
        matches!(
            self,
            Self::Nfs
                | Self::NfsRedo
                | Self::Exclusive
                | Self::ExclusiveTree
                | Self::WriteBack
                | Self::ExclusiveRedo
                | Self::CloseToOpen
                | Self::SecondLevel
        )
    }

    /// Whether what a VM writes to its disk stays at the near end.
    pub fn has_redo_log(self) -> bool {
        matches!(self, Self::NfsRedo | Self::ExclusiveRedo)
    }
}

/// Where an origin and proxies listen. Each network has ports of its own.
const PORT: u16 = 2049;
/// What is later than this part of all packets makes a run void.
const LATE_MAX: f64 = 0.02;

/// What makes a proxy refuse changes.
pub const READ_ONLY: [&str; 2] = ["--mode", "read-only"];

/// The tree that is served, its server, and the lines. Ends them when dropped.
pub struct Site {
    // What asks ends before what answers, and that before its line: fields are dropped in order.
    second: Option<SecondLevel>,
    lan: Option<(Nfs, Wan)>,
    origin: Nfs,
    line: Wan,
    profile: Profile,
    shared: PathBuf,
    beside: PathBuf,
}

/// A proxy at the near end of the line, which serves a LAN. A process has one network, so the proxy is met by
/// shared memory by a second server, which is in the LAN.
struct SecondLevel {
    server: Nfs,
    _proxy: Shm,
    line: Wan,
    _cache: TempDir,
}

/// What a job is done on, for the time of both runs. Ends its mount, and then removes its cache, when
/// dropped.
pub struct Side {
    pub root: PathBuf,
    mount: Option<Mount>,
    _server: Option<Server>,
    _cache: Option<TempDir>,
}

impl Side {
    /// A mount by a command of ours, of which only the program is there.
    pub fn mounted(mut command: Command, url: &str, point: &Path) -> Result<Self> {
        command.args(["mount", "-f", url]).arg(point);
        let mount = Some(Mount::by_command(command, point)?);
        Ok(Self { root: point.to_owned(), mount, _server: None, _cache: None })
    }

    /// A proxy, and its mount, with a cache beside it.
    pub fn cached(
        command: Command,
        url: &str,
        contract: &str,
        options: &[&OsStr],
        point: &Path,
    ) -> Result<Self> {
        let cache = crate::table::folder(point.parent().unwrap_or(point))?;
        let mut command = proxy_of(command, url, cache.path(), contract);
        command.args(options).arg("--fuse").arg(point);
        // All changes come by it, so that its mount can be told of them.
        if contract == "exclusive" {
            command.args(["--coherence", "push"]);
        }
        let mount = Some(Mount::of_server(command, point)?);
        Ok(Self { root: point.to_owned(), mount, _server: None, _cache: Some(cache) })
    }

    fn of_peer((mount, server, cache): peers::Mounted, point: &Path) -> Self {
        Self { root: point.to_owned(), mount: Some(mount), _server: Some(server), _cache: Some(cache) }
    }

    pub fn servers(&self) -> Vec<u32> {
        self.mount.iter().map(Mount::server).collect()
    }

    /// The requests that reached the mount's own server.
    pub fn requests(&self) -> Result<Requests> {
        self.mount.as_ref().map_or_else(|| Ok(Requests::default()), Mount::requests)
    }
}

impl Site {
    /// Serves `shared` at the far end. Everything else goes into `beside`.
    pub fn new(plan: &Plan, wanted: &GvfsArgs, shared: &Path, beside: &Path) -> Result<Self> {
        let profile = wanted.profile.unwrap_or(if plan.quick { Profile::LAN } else { Profile::WAN });
        let line = line(&profile)?;
        let origin = served(line.far(), shared, beside)?;
        let (shared, beside) = (shared.to_owned(), beside.to_owned());
        Ok(Self { second: None, lan: None, origin, line, profile, shared, beside })
    }

    /// Makes [`Column::Lan`].
    pub fn add_plain_lan(&mut self) -> Result<()> {
        let lan = line(&Profile::LAN)?;
        self.lan = Some((served(lan.far(), &self.shared, &self.beside)?, lan));
        Ok(())
    }

    /// Makes [`Column::SecondLevel`]; why it cannot be had goes to the report.
    pub fn add_lan(&mut self, report: &mut Report) {
        match self.second_level() {
            Ok(second) => self.second = Some(second),
            Err(error) => report.absent(format!("{}: {error}", Column::SecondLevel.name())),
        }
    }

    fn second_level(&self) -> Result<SecondLevel> {
        let (cache, lan) = (crate::table::folder(&self.beside)?, line(&Profile::LAN)?);
        let proxy = self.line.near().command(find(Program::Tombolo)?);
        let proxy = proxy_of(proxy, &self.origin.url(), cache.path(), "exclusive");
        let proxy = Shm::by_command(proxy, &self.shared, &self.beside.join("lan.link"))?;
        let server = served(lan.far(), Path::new(&proxy.url()), &self.beside)?;
        Ok(SecondLevel { server, _proxy: proxy, line: lan, _cache: cache })
    }

    /// The columns of `wanted` that there are.
    pub fn columns(&self, wanted: &[Column]) -> Vec<Column> {
        let is_there = |column: &Column| match column {
            Column::SecondLevel => self.second.is_some(),
            Column::Lan => self.lan.is_some(),
            _ => true,
        };
        wanted.iter().copied().filter(is_there).collect()
    }

    /// One with a mount and a cache of its own, in which nothing is yet.
    pub fn fresh(&self, column: Column) -> Result<Side> {
        let point = self.beside.join(format!("{column:?}"));
        let (program, near, url) = (find(Program::Tombolo)?, self.line.near(), self.origin.url());
        match (column, &self.second) {
            (Column::Dir, _) => {
                Side::mounted(Command::new(program), &format!("dir:{}", self.shared.display()), &point)
            }
            (Column::Nfs | Column::NfsRedo, _) => Side::mounted(near.command(program), &url, &point),
            (Column::Exclusive | Column::ExclusiveRedo, _) => {
                Side::cached(near.command(program), &url, "exclusive", &[], &point)
            }
            (Column::ReadOnly, _) => {
                Side::cached(near.command(program), &url, "exclusive", &READ_ONLY.map(OsStr::new), &point)
            }
            (Column::ExclusiveTree, _) => {
                let policy = self.beside.join("tree.toml");
                fs::write(&policy, "prefetch = \"tree\"\n").doing_to("write", &policy)?;
                let options = [OsStr::new("--policy"), policy.as_os_str()];
                Side::cached(near.command(program), &url, "exclusive", &options, &point)
            }
            (Column::WriteBack, _) => {
                let options = [OsStr::new("--mode"), OsStr::new("write-back")];
                Side::cached(near.command(program), &url, "exclusive", &options, &point)
            }
            (Column::CloseToOpen, _) => {
                Side::cached(near.command(program), &url, "close-to-open", &[], &point)
            }
            (Column::SecondLevel, Some(second)) => {
                let program = second.line.near().command(program);
                Side::cached(program, &second.server.url(), "exclusive", &[], &point)
            }
            (Column::Sshfs, _) => {
                peers::sshfs(self.line.far(), near, &self.shared, &point).map(|it| Side::of_peer(it, &point))
            }
            (Column::Rclone, _) => {
                peers::rclone(self.line.far(), near, &self.shared, &point).map(|it| Side::of_peer(it, &point))
            }
            (Column::Local | Column::Bare | Column::SecondLevel | Column::Lan, _) => {
                if let (Column::Lan, Some((origin, lan))) = (column, &self.lan) {
                    return Side::mounted(lan.near().command(program), &origin.url(), &point);
                }
                Ok(Side { root: self.shared.clone(), mount: None, _server: None, _cache: None })
            }
        }
    }

    /// How long a bare stream of so many bytes takes over the line.
    pub fn bare(&self, bytes: u64) -> Result<Duration> {
        let check = self.line.check(bytes).doing(|| "measure the line with python3".to_owned())?;
        Ok(Duration::from_secs_f64(bytes as f64 * 8.0 / check.rate_bits_per_s))
    }

    pub fn origin(&self) -> &Nfs {
        &self.origin
    }

    pub fn near(&self) -> &End {
        self.line.near()
    }

    pub fn far(&self) -> &End {
        self.line.far()
    }

    /// A host of the LAN, and where its cache has the tree for it, if there is one.
    pub fn second(&self) -> Option<(&End, String)> {
        self.second.as_ref().map(|second| (second.line.near(), second.server.url()))
    }

    /// Says what the lines were, and whether they held.
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
            report.target(
                &what,
                "≤ 2 %, or the run is void",
                format!("{:.2} %", late * 100.0),
                Some(late <= LATE_MAX),
            );
            if late > LATE_MAX && !report.title.starts_with("VOID") {
                report.title =
                    format!("VOID, as this machine was too busy to keep the line: {}", report.title);
            }
        }
    }
}

/// Has the kernel forget what it read of disks and mounts. What is not written yet stays.
pub fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| Error::Absent(format!("the kernel's caches cannot be dropped: {error}")))
}

pub fn line(profile: &Profile) -> Result<Wan> {
    Wan::new(profile)
        .map_err(|error| Error::Absent(format!("an emulated line needs root and /dev/net/tun: {error}")))
}

fn served(end: &End, shared: &Path, beside: &Path) -> Result<Nfs> {
    let mut command = end.command(find(Program::Tombolo)?);
    command.arg("serve").arg(shared);
    Nfs::by_command(command, SocketAddr::from((end.address(), PORT)), shared, beside)
}

/// A proxy without a front end, by a command of which only the program is there.
pub fn proxy_of(mut command: Command, url: &str, cache: &Path, contract: &str) -> Command {
    command.args(["proxy", url, "--contract", contract, "--cache"]).arg(cache);
    // Several columns are proxies of one tree that does not change beside them.
    if contract == "exclusive" {
        command.arg("--no-lease");
    }
    command
}

/// A folder with an empty tree in it, and that tree.
pub fn folder(wanted: &GvfsArgs) -> Result<(TempDir, PathBuf)> {
    let folder = crate::table::folder(&wanted.disk)?;
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).doing_to("make", &shared)?;
    Ok((folder, shared))
}

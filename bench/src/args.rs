//! The command line of `tombolo-bench`.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tombolo_shm::doorbell::Mode;
use tombolo_wan::Profile;

use crate::drive::DriveArgs;
use crate::nfs::Limit;
use crate::table::Plan;
use crate::table::guest::{Place, Xattrs};
use crate::table::gvfs::{Column, Source};
use crate::table::ring::EndpointKind;
use crate::table::vnfs::Column as VnfsColumn;

/// Measure Tombolo against its peers on this machine, interleaved, and print the figures with their spread.
#[derive(Parser, Debug)]
#[command(name = "tombolo-bench", version, arg_required_else_help = true)]
pub struct BenchArgs {
    /// Table to measure.
    #[command(subcommand)]
    pub table: TableArgs,
    /// Smoke test: the figures mean nothing.
    #[arg(long, global = true)]
    pub quick: bool,
    /// Number of rounds; each contestant has one turn in each.
    #[arg(long, global = true, value_name = "NUMBER")]
    pub rounds: Option<usize>,
    /// Length of a turn, in milliseconds.
    #[arg(long, global = true, value_name = "MS")]
    pub turn: Option<u64>,
    /// Parent of the served directory, preferably on a file system in memory.
    #[arg(long, global = true, value_name = "DIR", default_value = WITHIN)]
    pub within: PathBuf,
    /// Also write the report as NAME.json into this directory.
    #[arg(long, global = true, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The tables.
#[derive(Subcommand, Debug)]
pub enum TableArgs {
    /// All tables, one after the other; those that this machine cannot measure are reported and left out.
    All,
    /// Cost of a layer: a null answer through zero to four of them.
    Waist,
    /// Links in shared memory, compared with bare cache lines and futexes, system calls on the same file, and
    /// other transports of the same export.
    Ring(RingArgs),
    /// The FUSE front end: a mount on this host, or virtio-fs through its queues.
    Fuse(FuseArgs),
    /// A developer's job in a guest, compared with virtiofsd and the guest's own disk. Requires the source
    /// tree.
    Guest {
        /// C project to build: lua, zstd or httpd (not built).
        #[arg(default_value = "lua")]
        source: String,
        /// Only these columns, by their names in the table.
        #[arg(long, value_name = "COLUMN[,COLUMN]…", value_delimiter = ',')]
        only: Vec<String>,
        /// Only this placement of guest and server.
        #[arg(long, value_name = "PLACE[,PLACE]…", value_delimiter = ',')]
        place: Vec<Place>,
        /// Enable extended attributes on both sides.
        #[arg(long, value_enum, default_value_t)]
        xattrs: Xattrs,
    },
    /// Disks: virtio-blk straight on the queue, compared with QEMU's storage daemon.
    Disk {
        /// Directory on a disk, for measurements that need one.
        #[arg(long, value_name = "DIR", default_value = DISK)]
        disk: PathBuf,
    },
    /// A disk over NBD, compared with nbdkit.
    Nbd {
        /// Directory on a disk, for the images.
        #[arg(long, value_name = "DIR", default_value = DISK)]
        disk: PathBuf,
    },
    /// fio and pgbench on a guest's disk, compared with QEMU's storage daemon and the guest's own disk.
    /// Requires the source tree, fio and PostgreSQL.
    GuestDisk {
        /// Directory on a disk, for the images.
        #[arg(long, value_name = "DIR", default_value = DISK)]
        disk: PathBuf,
    },
    /// Memory and descriptors of the servers after access to 100,000 files.
    Memory,
    /// The NFS server compared with nfs-ganesha, by a load generator of our own and by libnfs.
    Nfs(NfsArgs),
    /// Access files through the waist and print the bytes and descriptors retained; run by `memory`.
    #[command(hide = true)]
    Touch {
        /// Directory of the files.
        shared: PathBuf,
        /// Number of files.
        files: usize,
    },
    /// Run Postmark's job in a directory that does not exist yet; run by `vnfs`, in a guest.
    #[command(hide = true)]
    Postmark {
        /// Directory to create.
        folder: PathBuf,
        /// Number of files, and of transactions.
        files: usize,
    },
    /// Serve a directory over links, one endpoint for each way to wait; run by `ring`.
    #[command(hide = true)]
    RingServer {
        /// Directory to serve.
        shared: PathBuf,
        /// Location of the endpoints.
        folder: PathBuf,
        /// Kind of the endpoints.
        kind: EndpointKind,
    },
    /// Hold a link until standard input ends, and use it only as instructed there; run by `ring`.
    #[command(hide = true)]
    RingIdle {
        /// Transport to the server.
        kind: EndpointKind,
        /// Location of the server.
        path: PathBuf,
        /// Way to wait for answers.
        mode: Mode,
    },
    /// Send null requests over shared memory, as instructed in it; run by `ring`, also in a guest.
    #[command(hide = true)]
    RingGuest {
        /// The memory: a file, or the guest's device.
        memory: PathBuf,
        /// Size of the link's part of the memory.
        link_bytes: u64,
        /// Index of this client.
        client: u64,
    },
    /// Wait until a guest's service announces its own name; run by `gvfs`.
    #[command(hide = true)]
    Answer {
        /// Address of the service.
        address: SocketAddr,
        /// Expected name; `-`: any.
        name: String,
        /// Timeout, in seconds.
        seconds: u64,
    },
    /// Answer bytes with bytes, or NFS calls with constant replies; run by `nfs`.
    #[command(hide = true)]
    Limit {
        /// Kind of replies.
        limit: Limit,
        /// Address to listen at.
        address: SocketAddr,
    },
    /// The NFS client compared with one that has a thread for each request, as Faber's paper on a
    /// workstation-based network file system measured it, over links of several speeds.
    Atomic(AtomicArgs),
    /// Caches that are notified of changes: mounts with coherence=push and the library, compared with local
    /// system calls, other policies and NFS.
    Vnfs(VnfsArgs),
    /// A remote tree through a caching proxy over an emulated WAN link, compared with the same tree locally
    /// and mounted without a cache.
    Gvfs(GvfsArgs),
    /// Transfer files as a client of some kind, as instructed on standard input; run by `atomic`.
    #[command(hide = true)]
    Drive(DriveArgs),
}

/// Tables of the FUSE front end to measure; all of them if none is named.
#[derive(Args, Debug)]
#[group(multiple = true)]
pub struct FuseArgs {
    /// virtio-fs, straight on the queues, compared with virtiofsd.
    #[arg(long)]
    pub virtio: bool,
    /// A FUSE mount of a local directory, compared with libfuse's passthrough_ll.
    #[arg(long)]
    pub mount: bool,
}

/// Parts of the table of links to measure.
#[derive(Args, Debug, Default)]
pub struct RingArgs {
    /// Only these parts. An unknown one is reported, with the list of all.
    #[arg(long, value_name = "PART", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
}

/// Parts of the table of notified caches to measure, and their directory.
#[derive(Args, Debug)]
pub struct VnfsArgs {
    /// Only these parts. An unknown one is reported, with the list of all.
    #[arg(long, value_name = "PART", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
    /// Directory on a disk, for measurements that need one.
    #[arg(long, value_name = "DIR", default_value = DISK)]
    pub disk: PathBuf,
    /// Number of files, and of transactions, of postmark (by default 10,000).
    #[arg(long, value_name = "NUMBER")]
    pub files: Option<usize>,
    /// Only these columns of postmark, build and calls.
    #[arg(long, value_name = "COLUMN", num_args = 1.., value_delimiter = ',')]
    pub column: Vec<VnfsColumn>,
}

impl Default for VnfsArgs {
    fn default() -> Self {
        Self { only: Vec::new(), disk: DISK.into(), files: None, column: Vec::new() }
    }
}

impl VnfsArgs {
    /// Returns the columns to measure: all of them unless some were selected.
    pub fn columns(&self) -> Vec<VnfsColumn> {
        let is_wanted = |column: &VnfsColumn| self.column.is_empty() || self.column.contains(column);
        VnfsColumn::ALL.into_iter().filter(is_wanted).collect()
    }
}

/// Parts of the table of the caching proxy to measure, their directory and WAN link.
#[derive(Args, Debug)]
pub struct GvfsArgs {
    /// Only these parts. An unknown one is reported, with the list of all.
    #[arg(long, value_name = "PART", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
    /// Directory on a disk, for the remote tree and the cache.
    #[arg(long, value_name = "DIR", default_value = DISK)]
    pub disk: PathBuf,
    /// WAN link, by its name in `tombolo-wan` (by default 80M35, and lan with --quick).
    #[arg(long, value_name = "LINE", value_parser = line)]
    pub profile: Option<Profile>,
    /// C project to build.
    #[arg(long, value_enum, default_value_t)]
    pub source: Source,
    /// Only these columns.
    #[arg(long, value_name = "COLUMN", num_args = 1.., value_delimiter = ',')]
    pub column: Vec<Column>,
    /// Clone machines as large as the paper's, 320 MB of memory and 1.6 GB of disk, compared with a copy of
    /// all of that.
    #[arg(long)]
    pub full: bool,
    /// Size of the stream, with K, M or G (by default 1G).
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    pub bytes: Option<u64>,
}

impl Default for GvfsArgs {
    fn default() -> Self {
        let (only, column, source) = (Vec::new(), Vec::new(), Source::default());
        Self { only, disk: DISK.into(), profile: None, source, column, full: false, bytes: None }
    }
}

impl GvfsArgs {
    /// Returns those of these columns that were selected: all of them unless some were.
    pub fn columns(&self, all: &[Column]) -> Vec<Column> {
        let is_wanted = |column: &Column| self.column.is_empty() || self.column.contains(column);
        all.iter().copied().filter(is_wanted).collect()
    }
}

/// Parses a number of bytes, KiB, MiB or GiB.
fn size_bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text} is not a size such as 256M"))
}

fn line(name: &str) -> Result<Profile, String> {
    let all = || Profile::ALL.map(|profile| profile.name).join(", ");
    Profile::named(name).ok_or_else(|| format!("available: {}", all()))
}

/// Part of the table of the NFS server to measure, and its network.
#[derive(Args, Debug, Default)]
pub struct NfsArgs {
    /// Only rows whose names begin with this. May be repeated.
    #[arg(long, value_name = "ROW")]
    pub only: Vec<String>,
    /// Measure in this process's network namespace; by default `nfs` reruns itself in a new one.
    #[arg(long, hide = true)]
    pub here: bool,
}

/// Tables and figures of the NFS client to measure, their network and directory.
#[derive(Args, Debug)]
pub struct AtomicArgs {
    /// Only these: table-1, table-2, figure-1 to figure-5, libnfs, copies, tree, build.
    #[arg(long, value_name = "ROW", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
    /// Measure in this process's network namespace; by default `atomic` reruns itself in a new one.
    #[arg(long, hide = true)]
    pub here: bool,
    /// Directory on a disk, for measurements that need one.
    #[arg(long, value_name = "DIR", default_value = DISK)]
    pub disk: PathBuf,
}

impl Default for AtomicArgs {
    fn default() -> Self {
        Self { only: Vec::new(), here: false, disk: DISK.into() }
    }
}

/// Directories of files in memory and of files on a disk.
const WITHIN: &str = "/dev/shm";
pub const DISK: &str = "/var/tmp";

/// Rounds and turns of a full run.
const ROUNDS: usize = 15;
const TURN_MS: u64 = 40;
/// Rounds and turns of a smoke test.
const QUICK_ROUNDS: usize = 2;
const QUICK_TURN_MS: u64 = 4;

impl BenchArgs {
    /// Returns the thoroughness of the measurements.
    pub fn plan(&self) -> Plan {
        let turn_ms = self.turn.unwrap_or(if self.quick { QUICK_TURN_MS } else { TURN_MS });
        Plan {
            quick: self.quick,
            rounds: self.rounds.unwrap_or(if self.quick { QUICK_ROUNDS } else { ROUNDS }).max(1),
            rounds_given: self.rounds.is_some(),
            turn: Duration::from_millis(turn_ms.max(1)),
            within: self.within.clone(),
            command: self.command(),
        }
    }

    /// Returns the command line that reruns this program for a table made in a network namespace of its own.
    pub fn here(&self, table: &str, only: &[String], disk: Option<&Path>) -> Vec<OsString> {
        let mut words: Vec<OsString> = [table, "--here"].map(OsString::from).into();
        let mut add = |option: &str, value: &OsStr| words.extend([option.into(), value.to_owned()]);
        only.iter().for_each(|only| add("--only", only.as_ref()));
        if let Some(rounds) = self.rounds {
            add("--rounds", rounds.to_string().as_ref());
        }
        if let Some(turn_ms) = self.turn {
            add("--turn", turn_ms.to_string().as_ref());
        }
        // Left out where it would only lengthen the command line that a report names.
        if self.within.as_os_str() != WITHIN {
            add("--within", self.within.as_os_str());
        }
        if let Some(disk) = disk.filter(|disk| disk.as_os_str() != DISK) {
            add("--disk", disk.as_os_str());
        }
        if let Some(out) = &self.out {
            add("--out", out.as_os_str());
        }
        words.extend(
            [(self.quick, "--quick"), (self.json, "--json")]
                .into_iter()
                .filter(|(on, _)| *on)
                .map(|(_, word)| word.into()),
        );
        words
    }

    /// Returns the command line that makes the same table again.
    fn command(&self) -> String {
        let words = std::env::args().skip(1).filter(|word| word != "--json" && word != "--here");
        let quoted = |word: String| if word.contains(' ') { format!("\"{word}\"") } else { word };
        let mut command = vec!["tombolo-bench".to_owned()];
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            // Where a report is written does not change it.
            if word == "--out" {
                words.next();
            } else if !word.starts_with("--out=") {
                command.push(quoted(word));
            }
        }
        command.join(" ")
    }
}

impl FuseArgs {
    /// Returns the selected tables.
    pub fn tables(&self) -> [bool; 2] {
        let named = [self.virtio, self.mount];
        if named.contains(&true) { named } else { [true; 2] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size_bytes("256M"), Ok(256 << 20));
        assert_eq!(size_bytes("4096"), Ok(4096));
        for wrong in ["", "M", "0", "1T", "99999999999G"] {
            assert!(size_bytes(wrong).is_err(), "{wrong}");
        }
    }
}

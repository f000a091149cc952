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
    /// Which table.
    #[command(subcommand)]
    pub table: TableArgs,
    /// Only see that it runs: the figures mean nothing.
    #[arg(long, global = true)]
    pub quick: bool,
    /// Rounds; each contestant has one turn in each.
    #[arg(long, global = true, value_name = "NUMBER")]
    pub rounds: Option<usize>,
    /// How long a turn is, in milliseconds.
    #[arg(long, global = true, value_name = "MS")]
    pub turn: Option<u64>,
    /// Where to make the directory that is served: best on a file system in memory.
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
    /// All of them, one after the other; what this machine cannot do is said, and left out.
    All,
    /// What a layer costs: a null answer through zero to four of them.
    Waist,
    /// Links in shared memory, beside bare cache lines and futexes, system calls on the same file, and other
    /// ways to the same export.
    Ring(RingArgs),
    /// The FUSE front end: a mount on this host, or virtio-fs through its queues.
    Fuse(FuseArgs),
    /// A developer's job in a guest, beside virtiofsd and the guest's own disk. Needs the source tree.
    Guest {
        /// Which C project: lua, zstd or httpd (which is not built).
        #[arg(default_value = "lua")]
        source: String,
        /// Only these columns, as the table calls them.
        #[arg(long, value_name = "COLUMN[,COLUMN]…", value_delimiter = ',')]
        only: Vec<String>,
        /// Only with guest and server placed so.
        #[arg(long, value_name = "PLACE[,PLACE]…", value_delimiter = ',')]
        place: Vec<Place>,
        /// Extended attributes, on both sides.
        #[arg(long, value_enum, default_value_t)]
        xattrs: Xattrs,
    },
    /// Disks: virtio-blk straight on the queue, beside QEMU's storage daemon.
    Disk {
        /// A directory on a disk, for what is measured on one.
        #[arg(long, value_name = "DIR", default_value = DISK)]
        disk: PathBuf,
    },
    /// A disk over NBD, beside nbdkit.
    Nbd {
        /// A directory on a disk, for the images.
        #[arg(long, value_name = "DIR", default_value = DISK)]
        disk: PathBuf,
    },
    /// fio and pgbench on a guest's disk, beside QEMU's storage daemon and the guest's own disk. Needs the
    /// source tree, fio and PostgreSQL.
    GuestDisk {
        /// A directory on a disk, for the images.
        #[arg(long, value_name = "DIR", default_value = DISK)]
        disk: PathBuf,
    },
    /// What the servers hold on to when 100,000 files were touched.
    Memory,
    /// The NFS server beside nfs-ganesha, by a load generator of our own and by libnfs.
    Nfs(NfsArgs),
    /// Touch files through the waist and print bytes and descriptors held; `memory` runs it.
    #[command(hide = true)]
    Touch {
        /// The directory.
        shared: PathBuf,
        /// How many files.
        files: usize,
    },
    /// Do Postmark's job in a folder that is not there yet; `vnfs` runs it, in a guest.
    #[command(hide = true)]
    Postmark {
        /// The folder.
        folder: PathBuf,
        /// How many files, and transactions.
        files: usize,
    },
    /// Serve a directory over links, one place for each way to wait; `ring` runs it.
    #[command(hide = true)]
    RingServer {
        /// The directory.
        shared: PathBuf,
        /// Where the places go.
        folder: PathBuf,
        /// What they are.
        kind: EndpointKind,
    },
    /// Keep a link until standard input ends, and use it only as told there; `ring` runs it.
    #[command(hide = true)]
    RingIdle {
        /// How to meet the server.
        kind: EndpointKind,
        /// Where.
        path: PathBuf,
        /// How to wait for answers.
        mode: Mode,
    },
    /// Send null requests over shared memory, as told in it; `ring` runs it, in a guest too.
    #[command(hide = true)]
    RingGuest {
        /// The memory: a file, or the guest's device.
        memory: PathBuf,
        /// How much of it is the link's.
        link_bytes: u64,
        /// Which client it is.
        client: u64,
    },
    /// Wait until a guest's service says its own name; `gvfs` runs it.
    #[command(hide = true)]
    Answer {
        /// Where it is reached.
        address: SocketAddr,
        /// The name; `-`: any.
        name: String,
        /// How long, in seconds.
        seconds: u64,
    },
    /// Answer bytes with bytes, or NFS calls with the same replies always; `nfs` runs it.
    #[command(hide = true)]
    Limit {
        /// Which.
        limit: Limit,
        /// Where to listen.
        address: SocketAddr,
    },
    /// The NFS client beside one with a thread for each request, as Faber's paper on a workstation-based
    /// network file system measured it, on links of several speeds.
    Atomic(AtomicArgs),
    /// Caches that are told of changes: mounts with coherence=push and the library, beside local system
    /// calls, other policies and NFS.
    Vnfs(VnfsArgs),
    /// A far tree through a caching proxy, over an emulated line, beside the same tree here and mounted
    /// without a cache.
    Gvfs(GvfsArgs),
    /// Move files as a client of some kind, as told on standard input; `atomic` runs it.
    #[command(hide = true)]
    Drive(DriveArgs),
}

/// Which tables of the FUSE front end; all of them when none is named.
#[derive(Args, Debug)]
#[group(multiple = true)]
pub struct FuseArgs {
    /// virtio-fs, straight on the queues, beside virtiofsd.
    #[arg(long)]
    pub virtio: bool,
    /// A FUSE mount of a local directory, beside libfuse's passthrough_ll.
    #[arg(long)]
    pub mount: bool,
}

/// Which parts of the table of links.
#[derive(Args, Debug, Default)]
pub struct RingArgs {
    /// Only these parts. An unknown one is told, with those that there are.
    #[arg(long, value_name = "PART", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
}

/// Which parts of the table of caches that are told of changes, and where.
#[derive(Args, Debug)]
pub struct VnfsArgs {
    /// Only these parts. An unknown one is told, with those that there are.
    #[arg(long, value_name = "PART", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
    /// A directory on a disk, for what is measured on one.
    #[arg(long, value_name = "DIR", default_value = DISK)]
    pub disk: PathBuf,
    /// How many files, and transactions, postmark has (by default 10,000).
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
    /// The columns that were asked for; all when none was.
    pub fn columns(&self) -> Vec<VnfsColumn> {
        let is_wanted = |column: &VnfsColumn| self.column.is_empty() || self.column.contains(column);
        VnfsColumn::ALL.into_iter().filter(is_wanted).collect()
    }
}

/// Which parts of the table of the caching proxy, where, and over which line.
#[derive(Args, Debug)]
pub struct GvfsArgs {
    /// Only these parts. An unknown one is told, with those that there are.
    #[arg(long, value_name = "PART", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
    /// A directory on a disk, for the far tree and the cache.
    #[arg(long, value_name = "DIR", default_value = DISK)]
    pub disk: PathBuf,
    /// The line between them, by the name that `tombolo-wan` has for it (by default 80M35, and lan with
    /// --quick).
    #[arg(long, value_name = "LINE", value_parser = line)]
    pub profile: Option<Profile>,
    /// What is built.
    #[arg(long, value_enum, default_value_t)]
    pub source: Source,
    /// Only these columns.
    #[arg(long, value_name = "COLUMN", num_args = 1.., value_delimiter = ',')]
    pub column: Vec<Column>,
    /// Clones of machines as large as the paper's, 320 MB of memory and 1.6 GB of disk, beside a copy of all
    /// of that.
    #[arg(long)]
    pub full: bool,
    /// How much is read as a stream, with K, M or G (by default 1G).
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
    /// Those of these columns that were asked for; all when none was.
    pub fn columns(&self, all: &[Column]) -> Vec<Column> {
        let is_wanted = |column: &Column| self.column.is_empty() || self.column.contains(column);
        all.iter().copied().filter(is_wanted).collect()
    }
}

/// A number of bytes, or of KiB, MiB or GiB.
fn size_bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text} is no size, as 256M is"))
}

fn line(name: &str) -> Result<Profile, String> {
    let all = || Profile::ALL.map(|profile| profile.name).join(", ");
    Profile::named(name).ok_or_else(|| format!("there are {}", all()))
}

/// Which part of the table of the NFS server, and where.
#[derive(Args, Debug, Default)]
pub struct NfsArgs {
    /// Only rows whose names begin so. Can be given several times.
    #[arg(long, value_name = "ROW")]
    pub only: Vec<String>,
    /// Measure in the network that this process is in; `nfs` runs itself so in one of its own.
    #[arg(long, hide = true)]
    pub here: bool,
}

/// Which tables and figures of the NFS client, and where.
#[derive(Args, Debug)]
pub struct AtomicArgs {
    /// Only these: table-1, table-2, figure-1 to figure-5, libnfs, copies, tree, build.
    #[arg(long, value_name = "ROW", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
    /// Measure in the network that this process is in; `atomic` runs itself so in one of its own.
    #[arg(long, hide = true)]
    pub here: bool,
    /// A directory on a disk, for what is measured on one.
    #[arg(long, value_name = "DIR", default_value = DISK)]
    pub disk: PathBuf,
}

impl Default for AtomicArgs {
    fn default() -> Self {
        Self { only: Vec::new(), here: false, disk: DISK.into() }
    }
}

/// Where files in memory are, and files on a disk.
const WITHIN: &str = "/dev/shm";
pub const DISK: &str = "/var/tmp";

/// Rounds and turns of a run that is to be believed.
const ROUNDS: usize = 15;
const TURN_MS: u64 = 40;
/// The same of a run that only shows that it runs.
const QUICK_ROUNDS: usize = 2;
const QUICK_TURN_MS: u64 = 4;

impl BenchArgs {
    /// How thoroughly to measure.
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

    /// The command line of this program once more, for a table that is made in the networks that it finds
    /// itself in.
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

    /// The command line that makes the same table again.
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
    /// The tables that were asked for.
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

//! The command line of `tombolo-bench`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tombolo_wan::Profile;

use crate::drive::DriveArgs;
use crate::measure::Placement;
use crate::nfs::Limit;
use crate::table::guest::Xattrs;
use crate::table::gvfs::Source;

/// Measure Tombolo against its peers on this machine, interleaved, and print the figures with their spread.
#[derive(Parser, Debug)]
#[command(name = "tombolo-bench", version, arg_required_else_help = true)]
pub struct BenchArgs {
    /// Table to measure.
    #[command(subcommand)]
    pub table: TableArgs,
    #[command(flatten)]
    pub plan: Plan,
}

/// Thoroughness, location and selection of measurements. Options of single tables name these.
#[derive(Args, Clone, Debug)]
pub struct Plan {
    /// Smoke test of two short rounds: the figures mean nothing.
    #[arg(long, global = true)]
    pub quick: bool,
    /// Number of rounds; each contestant has one turn in each. Slow tables have fewer by default.
    #[arg(long = "rounds", global = true, value_name = "NUMBER")]
    pub rounds_given: Option<usize>,
    /// Length of a turn, in milliseconds.
    #[arg(long = "turn", global = true, value_name = "MS")]
    pub turn_ms: Option<u64>,
    /// Parent of the served directory, preferably on a file system in memory.
    #[arg(long, global = true, value_name = "DIR", default_value = "/dev/shm")]
    pub within: PathBuf,
    /// Directory on a disk, for measurements that need one.
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp")]
    pub disk: PathBuf,
    /// Only these parts of a table; of `nfs`, rows whose names begin with this; of `guest`, these columns. An
    /// unknown one is reported, with the list of all. May be repeated.
    #[arg(long, global = true, value_name = "PART[,PART]…")]
    pub only: Vec<String>,
    /// Also write each report as NAME.json into this directory.
    #[arg(long, global = true, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long, global = true)]
    pub json: bool,
    /// Measure in this process's network namespace; by default `nfs` and `atomic` rerun themselves in a new
    /// one.
    #[arg(long, global = true, hide = true)]
    pub here: bool,
    /// guest: only this placement of guest and server.
    #[arg(long, global = true, value_name = "PLACE[,PLACE]…", value_delimiter = ',')]
    pub place: Vec<Placement>,
    /// guest: enable extended attributes on both sides.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub xattrs: Xattrs,
    /// gvfs, and postmark, build, calls and the guest parts of vnfs: only these columns. An unknown one is
    /// reported.
    #[arg(long, global = true, value_name = "COLUMN[,COLUMN]…", value_delimiter = ',')]
    pub column: Vec<String>,
    /// vnfs: number of files, and of transactions, of postmark.
    #[arg(long, global = true, value_name = "NUMBER")]
    pub files: Option<usize>,
    /// gvfs: WAN link, by its name in `tombolo-wan` (by default 80M35, and lan with --quick).
    #[arg(long, global = true, value_name = "LINE", value_parser = line)]
    pub profile: Option<Profile>,
    /// gvfs: C project to build.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub source: Source,
    /// gvfs: clone machines as large as the paper's, 320 MB of memory and 1.6 GB of disk, compared with a
    /// copy of all of that.
    #[arg(long, global = true)]
    pub full: bool,
    /// gvfs: size of the stream, with K, M or G (by default 1G).
    #[arg(long, global = true, value_name = "SIZE", value_parser = size_bytes)]
    pub bytes: Option<u64>,
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
    Ring,
    /// The FUSE front end: a mount on this host, and virtio-fs through its queues.
    Fuse {
        /// virtio-fs, straight on the queues, compared with virtiofsd.
        #[arg(long)]
        virtio: bool,
        /// A FUSE mount of a local directory, compared with libfuse's passthrough_ll.
        #[arg(long)]
        mount: bool,
    },
    /// A developer's job in a guest, compared with virtiofsd and the guest's own disk. Requires the source
    /// tree.
    Guest {
        /// C project to build: lua, zstd or httpd (not built).
        #[arg(default_value = "lua")]
        project: String,
    },
    /// Disks: virtio-blk straight on the queue, compared with QEMU's storage daemon.
    Disk,
    /// A disk over NBD, compared with nbdkit.
    Nbd,
    /// fio and pgbench on a guest's disk, compared with QEMU's storage daemon and the guest's own disk.
    /// Requires the source tree, fio and PostgreSQL.
    GuestDisk,
    /// Memory and descriptors of the servers after access to 100,000 files.
    Memory,
    /// The NFS server compared with nfs-ganesha, by a load generator of our own and by libnfs.
    Nfs,
    /// The NFS client compared with one that has a thread for each request, as Faber's paper on a
    /// workstation-based network file system measured it, over links of several speeds.
    Atomic,
    /// Caches that are notified of changes: mounts with coherence=push and the library, compared with local
    /// system calls, other policies and NFS.
    Vnfs,
    /// A remote tree through a caching proxy over an emulated WAN link, compared with the same tree locally
    /// and mounted without a cache.
    Gvfs,
    #[command(flatten)]
    Own(OwnArgs),
}

/// Parts of tables that run in processes of their own.
#[derive(Subcommand, Debug)]
pub enum OwnArgs {
    /// Access files through the waist and print the bytes and descriptors retained; run by `memory`.
    #[command(hide = true)]
    Touch {
        /// Directory of the files.
        shared: PathBuf,
        /// Number of files.
        count: usize,
    },
    /// Run Postmark's job in a directory that does not exist yet; run by `vnfs`, in a guest.
    #[command(hide = true)]
    Postmark {
        /// Directory to create.
        folder: PathBuf,
        /// Number of files, and of transactions.
        count: usize,
        /// Maximum file size, in bytes.
        bytes_max: usize,
        /// Number of reads per append.
        reads: u32,
    },
    /// Time single system calls in a directory with headers; run by `vnfs`, in a guest.
    #[command(hide = true)]
    Calls {
        /// The directory.
        folder: PathBuf,
        /// Duration in seconds.
        seconds: u64,
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
    /// Transfer files as a client of some kind, as instructed on standard input; run by `atomic`.
    #[command(hide = true)]
    Drive(DriveArgs),
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

impl BenchArgs {
    /// Returns the command line that reruns this program for a table in a network namespace of its own.
    pub fn here(table: &str) -> Vec<OsString> {
        let rest = std::env::args_os().skip(1).filter(|word| word != "all" && word != table);
        [table, "--here"].map(OsString::from).into_iter().chain(rest).collect()
    }
}

/// Returns the command line that makes the same tables again.
pub fn command() -> String {
    let words = std::env::args().skip(1).filter(|word| word != "--json" && word != "--here");
    let quoted = |word: String| if word.contains(' ') { format!("\"{word}\"") } else { word };
    let mut command = vec!["tombolo-bench".to_owned()];
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        // The place of a report does not change it.
        if word == "--out" {
            words.next();
        } else if !word.starts_with("--out=") {
            command.push(quoted(word));
        }
    }
    command.join(" ")
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

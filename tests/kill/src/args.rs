//! The command line.

use std::path::PathBuf;

/// A subcommand.
#[derive(Debug)]
pub enum Command {
    /// Kill the NFS server under load.
    Nfs(Args),
    /// Trace the syncs before its answers.
    Trace(Args),
    /// Disturb either side of a link.
    Links(Args),
    /// Run one client of a link; started by the harness.
    Client(ClientArgs),
}

/// Connection of the client of a link to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The library, over a socket.
    Library,
    /// A mount, over a socket.
    Socket,
    /// A mount, over a file that both sides map.
    File,
}

/// Arguments of the harnesses.
#[derive(Debug)]
pub struct Args {
    /// The program under test, as server and mount.
    pub program: PathBuf,
    /// Number of kills or disturbances.
    pub rounds: u32,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of NFS clients.
    pub clients: usize,
    /// Connection of the client of a link to the server.
    pub way: Way,
    /// Parent directory for tree, state and logs.
    pub place: PathBuf,
}

/// Arguments of `client`.
#[derive(Debug)]
pub struct ClientArgs {
    /// Path of its log, with a byte for each operation begun and for each ended.
    pub log: PathBuf,
    /// The server's socket; for mounts the mount point.
    pub at: PathBuf,
    /// `true` if `at` is a mount point.
    pub is_mount: bool,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The usage text.
pub const USAGE: &str = "usage: tombolo-kill nfs PROGRAM [--rounds N] [--seed N] [--clients N] [--dir DIR]
       tombolo-kill trace PROGRAM [--dir DIR]
       tombolo-kill links PROGRAM [--way library|socket|file] [--rounds N] [--seed N] [--dir DIR]

nfs    kills and restarts PROGRAM (`tombolo`) N times (20) under NFS clients that write; each request must take effect once, and
       acknowledged data must be present.
trace  runs it under strace, and checks that data acknowledged as stable were synced before the answer. DIR must be on a disk.
links  kills, stops (SIGSTOP) and starts the server and the client of a link N times (50) under load. WAY is the client: the
       library over a socket, or system calls on a mount over a socket or a file.

DIR is for temporary files. A seed repeats the choices, not the timing.";

impl Command {
    /// Parses the arguments after the program's name; `None` if they are invalid.
    pub fn read(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let (what, program) = (words.next()?, PathBuf::from(words.next()?));
        let (make, rounds, place): (fn(Args) -> Self, _, _) = match what.as_str() {
            "nfs" => (Self::Nfs, 20, std::env::temp_dir()),
            "trace" => (Self::Trace, 0, std::env::temp_dir()),
            "links" => (Self::Links, 50, "/dev/shm".into()),
            "client" => {
                return Some(Self::Client(ClientArgs {
                    log: program,
                    at: words.next()?.into(),
                    is_mount: words.next()? == "mount",
                    seed: words.next()?.parse().ok()?,
                }));
            }
            _ => return None,
        };
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64 % 1_000_000;
        let mut args = Args { program, rounds, seed, clients: 6, way: Way::Library, place };
        while let Some(word) = words.next() {
            let value = words.next()?;
            match (what.as_str(), word.as_str()) {
                (_, "--dir") => args.place = value.into(),
                ("nfs" | "links", "--rounds") => args.rounds = value.parse().ok()?,
                ("nfs" | "links", "--seed") => args.seed = value.parse().ok()?,
                ("nfs", "--clients") => {
                    args.clients = value.parse().ok().filter(|count| (1..=64).contains(count))?;
                }
                ("links", "--way") => args.way = Way::read(&value)?,
                _ => return None,
            }
        }
        Some(make(args))
    }
}

impl Way {
    fn read(word: &str) -> Option<Self> {
        Some(match word {
            "library" => Self::Library,
            "socket" => Self::Socket,
            "file" => Self::File,
            _ => return None,
        })
    }
}

/// Creates a random generator; `stream` distinguishes users of one seed.
pub fn rng(seed: u64, stream: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed ^ stream.wrapping_mul(0xa076_1d64_78bd_642f))
}

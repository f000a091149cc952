//! The command line.

use std::path::PathBuf;

/// What to do.
#[derive(Debug)]
pub enum Command {
    /// The harness.
    Run(RunArgs),
    /// One client, which the harness starts.
    Client(ClientArgs),
}

/// How the client gets at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The library, over a socket.
    Library,
    /// A mount, over a socket.
    Socket,
    /// A mount, over a file that both sides map.
    File,
}

/// `run`.
#[derive(Debug)]
pub struct RunArgs {
    /// The program that serves and mounts.
    pub program: PathBuf,
    /// The way.
    pub way: Way,
    /// How many disturbances.
    pub rounds: u64,
    /// What randomness begins with.
    pub seed: u64,
    /// The directory for the tree, the state and the rest.
    pub place: PathBuf,
}

/// `client`.
#[derive(Debug)]
pub struct ClientArgs {
    /// Where the log lies.
    pub log: PathBuf,
    /// The socket of the server; for mounts the mount point.
    pub at: PathBuf,
    /// Whether `at` is a mount point.
    pub is_mount: bool,
    /// What randomness begins with.
    pub seed: u64,
}

/// What there is to say.
pub const USAGE: &str = "usage: tombolo-kill links PROGRAM [--way library|socket|file] [--rounds N] [--seed N] [--dir DIR]

Kills, stops (SIGSTOP) and starts the server and the client of a link N times (50) under load. PROGRAM is `tombolo`, WAY what the client
is: the library over a socket, or system calls on a mount over a socket or a file. A seed repeats the choices, not the moments.";

impl Command {
    /// Reads the words after the program's name. `None` if they make no sense.
    pub fn read(mut words: impl Iterator<Item = String>) -> Option<Self> {
        match words.next()?.as_str() {
            "links" => {
                let mut args = RunArgs {
                    program: words.next()?.into(),
                    way: Way::Library,
                    rounds: 50,
                    seed: entropy(),
                    place: "/dev/shm".into(),
                };
                while let Some(word) = words.next() {
                    let value = words.next()?;
                    match word.as_str() {
                        "--way" => args.way = Way::read(&value)?,
                        "--rounds" => args.rounds = value.parse().ok()?,
                        "--seed" => args.seed = value.parse().ok()?,
                        "--dir" => args.place = value.into(),
                        _ => return None,
                    }
                }
                Some(Self::Run(args))
            }
            "client" => Some(Self::Client(ClientArgs {
                log: words.next()?.into(),
                at: words.next()?.into(),
                is_mount: words.next()? == "mount",
                seed: words.next()?.parse().ok()?,
            })),
            _ => None,
        }
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

fn entropy() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000
}

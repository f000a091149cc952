//! The command line.

use std::path::PathBuf;

/// What to do.
#[derive(Debug)]
pub enum Command {
    /// Kill the server under load.
    Kill(KillArgs),
    /// Trace what it makes stable.
    Trace(TraceArgs),
}

/// `kill`.
#[derive(Debug)]
pub struct KillArgs {
    /// The program to kill.
    pub server: PathBuf,
    /// How often.
    pub rounds: u32,
    /// What randomness begins with.
    pub seed: u64,
    /// How many clients work.
    pub clients: usize,
    /// The directory for the tree and the state.
    pub place: PathBuf,
}

/// `trace`.
#[derive(Debug)]
pub struct TraceArgs {
    /// The program to trace.
    pub server: PathBuf,
    /// The directory for the tree and the state.
    pub place: PathBuf,
}

/// What there is to say.
pub const USAGE: &str = "usage: tombolo-kill nfs SERVER [--rounds N] [--seed N] [--clients N] [--dir DIR]
       tombolo-kill trace SERVER [--dir DIR]

nfs    kills and restarts SERVER (the program `tombolo`) N times (20) under NFS clients that write; each request must take
       effect once, and what was acknowledged must be there. A seed repeats the clients' choices, not the moments.
trace  runs SERVER below strace, and looks whether what is said to be stable was synced before the answer.

DIR (the directory for temporary files) must lie on a disk for `trace`.";

impl Command {
    /// Reads the words after the program's name. `None` if they make no sense.
    pub fn read(words: impl Iterator<Item = String>) -> Option<Self> {
        let mut words = words;
        let (what, server) = (words.next()?, PathBuf::from(words.next()?));
        let (mut rounds, mut seed, mut clients, mut place) = (20, entropy(), 6, std::env::temp_dir());
        while let Some(word) = words.next() {
            let value = words.next()?;
            match word.as_str() {
                "--rounds" => rounds = value.parse().ok()?,
                "--seed" => seed = value.parse().ok()?,
                "--clients" => clients = value.parse().ok().filter(|count| (1..=64).contains(count))?,
                "--dir" => place = value.into(),
                _ => return None,
            }
        }
        match what.as_str() {
            "nfs" => Some(Self::Kill(KillArgs { server, rounds, seed, clients, place })),
            "trace" => Some(Self::Trace(TraceArgs { server, place })),
            _ => None,
        }
    }
}

fn entropy() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000
}

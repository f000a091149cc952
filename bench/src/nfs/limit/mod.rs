//! Servers that do nothing, for what the network and the callers cost by themselves. Each runs as a process
//! of its own, `tombolo-bench limit KIND ADDRESS`, so that it is placed and its cost is read like that of any
//! server.

mod bulk;
mod null;
mod swap;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use clap::ValueEnum;

pub use bulk::{Bulk, BulkClient};
pub use null::READ_PREFIX;
pub use swap::swap;

use super::{Stream, Wait};
use crate::error::{Doing, Result};

/// What such a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Limit {
    /// Answers so many bytes with so many others, as the client says at first: a bare echo, a bare stream.
    Swap,
    /// Answers NFS calls with the same replies always, drops what is written, and has nothing but zeros to be
    /// read.
    Null,
    /// Takes files by bare TCP and drops them or writes them to one file of a folder, or sends as many bytes.
    Bulk,
}

impl Limit {
    /// As the command line has it, and the table.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Swap => "swap",
            Limit::Null => "null",
            Limit::Bulk => "bulk",
        }
    }
}

/// Serves connections, each on a thread of its own, for as long as the process lives. Readers spin briefly
/// and then sleep, as Tombolo's NFS server does. A file that is kept goes to `folder`.
pub fn serve(limit: Limit, address: SocketAddr, folder: &Path) -> Result<()> {
    let listener = TcpListener::bind(address).doing(|| format!("listen at {address}"))?;
    for stream in listener.incoming() {
        let stream = stream.doing(|| "accept a connection".to_owned())?;
        let folder = folder.to_owned();
        // A client that leaves in the middle is how each run ends.
        std::thread::spawn(move || drop(converse(limit, stream, &folder)));
    }
    Ok(())
}

fn converse(limit: Limit, stream: TcpStream, folder: &Path) -> io::Result<()> {
    let stream = Stream::new(stream, Wait::SpinBriefly)?;
    match limit {
        Limit::Swap => swap::converse(stream),
        Limit::Null => null::converse(stream),
        Limit::Bulk => bulk::converse(stream, folder),
    }
}

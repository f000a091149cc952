//! Null servers, which show the cost of network and callers alone. Each runs in its own process,
//! `tombolo-bench limit KIND ADDRESS`, so that it is placed and measured like any server.

mod null;
mod swap;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use clap::ValueEnum;

pub use null::READ_PREFIX;
pub use swap::{Swap, swap};

use super::{Stream, Wait};
use crate::error::{Doing, Result};

/// Kind of null server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Limit {
    /// Answers a number of bytes with another number, as the client chooses, and drops or stores them: a bare
    /// echo, stream or file transfer.
    Swap,
    /// Answers NFS calls with constant replies, drops written data, and returns zeros.
    Null,
}

impl Limit {
    /// Returns the name on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Swap => "swap",
            Limit::Null => "null",
        }
    }
}

/// Serves connections, each on its own thread, for ever. Readers spin briefly and then sleep, like Tombolo's
/// NFS server. Stored files go to `folder`.
pub fn serve(limit: Limit, address: SocketAddr, folder: &Path) -> Result<()> {
    let listener = TcpListener::bind(address).doing(|| format!("listen at {address}"))?;
    for stream in listener.incoming() {
        let stream = stream.doing(|| "accept a connection".to_owned())?;
        let folder = folder.to_owned();
        // Every run ends with clients that disconnect.
        std::thread::spawn(move || drop(converse(limit, stream, &folder)));
    }
    Ok(())
}

fn converse(limit: Limit, stream: TcpStream, folder: &Path) -> io::Result<()> {
    let stream = Stream::new(stream, Wait::SpinBriefly)?;
    match limit {
        Limit::Swap => swap::converse(stream, folder),
        Limit::Null => null::converse(stream),
    }
}

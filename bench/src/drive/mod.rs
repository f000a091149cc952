//! Clients that transfer files, each in its own process (`tombolo-bench drive CLIENT …`), so that their
//! threads, context switches and processor time are counted separately, and each is placed like a server.
//!
//! A line `write LIMIT PIECES PIECEBYTES FILEBYTES` or `read …` on standard input is one file, with at most
//! LIMIT requests in flight (0: the client's choice); `memory FILEBYTES` queries the address of the program's
//! memory for a file. Replies are those of `bench/peers/libnfs-driver.c`, which is one of these clients.
//!
//! Reading order: [`Job`], [`Client`], [`biods`], [`codec`].

mod biods;
pub mod codec;
mod job;
mod ours;
mod queue;
mod steps;
mod tcp;

use std::io::{BufRead, Write, stdin, stdout};
use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

pub use job::{Direction, Job, read_name};

use crate::error::{Doing, Result};
use biods::Biods;
use codec::Codec;
use ours::Ours;
use steps::{Step, Steps};
use tcp::BareTcp;

/// Kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The product, called as a library.
    Tombolo,
    /// A thread per request, like SunOS's biods: data copied into the request; our codec.
    Biods,
    /// A thread per request with manual byte order conversion.
    BiodsRaw,
    /// A thread per request with a generic XDR library, which copies the data again.
    BiodsGeneric,
    /// One sending thread, with the overhead left by the paper's first step.
    StepCopies,
    /// One sending thread, with the overhead left by the paper's second step.
    StepGenericCodec,
    /// One sending thread without that overhead.
    StepLean,
    /// Bare TCP; received data are dropped.
    Tcp,
    /// Bare TCP; received data are written to a file.
    TcpToFile,
}

/// Arguments of a client.
#[derive(Args, Debug)]
pub struct DriveArgs {
    /// Kind of client.
    pub kind: Kind,
    /// Address of the server of NFS, or bare TCP.
    pub nfs: SocketAddr,
    /// Address of MOUNT.
    pub mount: SocketAddr,
    /// Export to mount.
    pub export: String,
    /// Name of the file to write.
    pub file: String,
}

/// A client that transfers files.
trait Client {
    /// Transfers a file, when writing until it is stable. Returns the time without the open.
    fn transfer(&mut self, job: &Job) -> Result<Duration>;

    /// Returns the program's own memory for a file of this size, for counting copies.
    fn memory(&mut self, _file_bytes: usize) -> &[u8] {
        &[]
    }
}

/// Executes the jobs on standard input until it ends.
pub fn drive(args: &DriveArgs) -> Result<()> {
    let mut client: Box<dyn Client> = match args.kind {
        Kind::Tombolo => Box::new(Ours::new(args)),
        Kind::Biods => Box::new(Biods::new(args, Codec::Ours)?),
        Kind::BiodsRaw => Box::new(Biods::new(args, Codec::Raw)?),
        Kind::BiodsGeneric => Box::new(Biods::new(args, Codec::Generic)?),
        Kind::StepCopies => Box::new(Steps::new(args, Step::Copies)?),
        Kind::StepGenericCodec => Box::new(Steps::new(args, Step::GenericCodec)?),
        Kind::StepLean => Box::new(Steps::new(args, Step::Lean)?),
        Kind::Tcp => Box::new(BareTcp::new(args, false)),
        Kind::TcpToFile => Box::new(BareTcp::new(args, true)),
    };
    for line in stdin().lock().lines() {
        let line = line.doing(|| "read a job".to_owned())?;
        let number = match line.strip_prefix("memory ").and_then(|bytes| bytes.parse().ok()) {
            Some(file_bytes) => client.memory(file_bytes).as_ptr().addr() as u64,
            None => u64::try_from(client.transfer(&line.parse()?)?.as_nanos()).unwrap_or(u64::MAX),
        };
        // No individual laps follow.
        let answer = [&number.to_ne_bytes()[..], &0_u32.to_ne_bytes()].concat();
        let mut out = stdout().lock();
        out.write_all(&answer).and_then(|()| out.flush()).doing(|| "answer".to_owned())?;
    }
    Ok(())
}

/// Returns test data that vary between bytes.
pub fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8).collect()
}

//! Clients that move files, each as a process of its own, `tombolo-bench drive CLIENT …`: so that threads,
//! context switches and processor time of one are told from those of another, and each is placed like a
//! server is.
//!
//! A line `write LIMIT PIECES PIECEBYTES FILEBYTES` or `read …` on standard input is one file, with so many
//! requests in flight at most (0: as many as the client finds good); `memory FILEBYTES` asks where the
//! program has a file. The answer is that of `bench/peers/libnfs-driver.c`, which is one of these clients.
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

pub use job::{Direction, Job, read_name};

use crate::error::{Doing, Result};
use crate::nfs::Bulk;
use biods::Biods;
use codec::Codec;
use ours::Ours;
use steps::{Step, Steps};
use tcp::BareTcp;

/// What moves the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The product, called as a library.
    Tombolo,
    /// A thread for each request, as SunOS's biods: data is copied into the request; our codec.
    Biods,
    /// The same with plain byte order instead of a codec.
    BiodsRaw,
    /// The same with a generic XDR library, which copies the data once more.
    BiodsGeneric,
    /// One thread that sends, with what the paper's first step leaves in.
    StepCopies,
    /// With what its second step leaves in.
    StepGenericCodec,
    /// With nothing of that.
    StepLean,
    /// Bare TCP; what arrives is dropped.
    Tcp,
    /// Bare TCP; what arrives is written to a file.
    TcpToFile,
}

/// What a client is told.
#[derive(Args, Debug)]
pub struct DriveArgs {
    /// Which client.
    pub kind: Kind,
    /// Where the server answers NFS, or bare TCP.
    pub nfs: SocketAddr,
    /// Where it answers MOUNT.
    pub mount: SocketAddr,
    /// What is mounted.
    pub export: String,
    /// The name of the file that is written.
    pub file: String,
}

/// Moves files.
trait Client {
    /// One file from end to end; when it is written, until it is stable. Says how long that took, opening it
    /// left out.
    fn transfer(&mut self, job: &Job) -> Result<Duration>;

    /// The program's own memory for a file of so many bytes, where the copies of a byte are counted.
    fn memory(&mut self, _file_bytes: usize) -> &[u8] {
        &[]
    }
}

/// Does what standard input says until it ends.
pub fn drive(args: &DriveArgs) -> Result<()> {
    let mut client: Box<dyn Client> = match args.kind {
        Kind::Tombolo => Box::new(Ours::new(args)),
        Kind::Biods => Box::new(Biods::new(args, Codec::Ours)?),
        Kind::BiodsRaw => Box::new(Biods::new(args, Codec::Raw)?),
        Kind::BiodsGeneric => Box::new(Biods::new(args, Codec::Generic)?),
        Kind::StepCopies => Box::new(Steps::new(args, Step::Copies)?),
        Kind::StepGenericCodec => Box::new(Steps::new(args, Step::GenericCodec)?),
        Kind::StepLean => Box::new(Steps::new(args, Step::Lean)?),
        Kind::Tcp => Box::new(BareTcp::new(args, Bulk::Away)?),
        Kind::TcpToFile => Box::new(BareTcp::new(args, Bulk::ToFile)?),
    };
    for line in stdin().lock().lines() {
        let line = line.doing(|| "read what to do".to_owned())?;
        let number = match line.strip_prefix("memory ").and_then(|bytes| bytes.parse().ok()) {
            Some(file_bytes) => client.memory(file_bytes).as_ptr().addr() as u64,
            None => u64::try_from(client.transfer(&line.parse()?)?.as_nanos()).unwrap_or(u64::MAX),
        };
        // No single laps follow.
        let answer = [&number.to_ne_bytes()[..], &0_u32.to_ne_bytes()].concat();
        let mut out = stdout().lock();
        out.write_all(&answer).and_then(|()| out.flush()).doing(|| "answer".to_owned())?;
    }
    Ok(())
}

/// What is written: bytes that differ from one another.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8).collect()
}

//! Clients that transfer files, each in its own process (`tombolo-bench drive CLIENT …`), so that their
//! threads, context switches and processor time are counted separately, and each is placed like a server.
//!
//! A line `write LIMIT PIECES PIECEBYTES FILEBYTES` or `read …` on standard input is one file, with at most
//! LIMIT requests in flight (0: the client's choice); `memory FILEBYTES` queries the address of the program's
//! memory for a file. Replies are those of `bench/peers/libnfs-driver.c`, which is one of these clients.
//!
//! Reading order: [`Job`], [`Client`], [`biods`], [`codec`].

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, Write, stdin, stdout};
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use biods::Biods;
use clap::{Args, ValueEnum};
use codec::Codec;
use ours::Ours;
use serde::Deserialize;
use steps::{Step, Steps};

use crate::error::{Doing, Error, Result};
use crate::nfs::{READ_PREFIX, Swap, Wait};

mod biods;
pub mod codec;
mod ours;
mod steps;

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
    /// One sending thread, with the overhead left by the first step of Faber's paper (Table 2).
    StepCopies,
    /// One sending thread, with the overhead left by the paper's second step: generic encoding.
    StepGenericCodec,
    /// One sending thread, without copies and generic encoding.
    StepLean,
    /// Bare TCP; received data are dropped.
    Tcp,
    /// Bare TCP; received data are written to a file.
    TcpToFile,
    /// libnfs's raw calls, by a program of its own.
    #[value(skip)]
    Libnfs,
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
    /// Transfers a file; over NFS, a write ends when the file is stable. Returns the time, without that of
    /// opening.
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
        Kind::Libnfs => return Err(Error::Absent("libnfs has a driver of its own".to_owned())),
    };
    for line in stdin().lock().lines() {
        let line = line.doing(|| "read a job".to_owned())?;
        let number = match line.strip_prefix("memory ").and_then(|bytes| bytes.parse().ok()) {
            Some(file_bytes) => client.memory(file_bytes).as_ptr().addr() as u64,
            None => u64::try_from(client.transfer(&line.parse()?)?.as_nanos()).unwrap_or(u64::MAX),
        };
        // The reply's second number is the count of individual times that follow: none.
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

/// Direction of a transfer, and durability of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Write until the data are stable.
    Write,
    /// Write with each request stable before its reply.
    WriteStable,
    /// Read from the server's page cache.
    Read,
}

/// The transfer of one file, in requests of one size: a line on standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub direction: Direction,
    /// Limit of requests in flight; 0 for the client's choice.
    pub limit: u32,
    /// Size of requests, and of the program's reads and writes.
    pub piece_bytes: usize,
    pub file_bytes: usize,
}

impl Job {
    pub fn pieces(&self) -> usize {
        self.file_bytes.div_ceil(self.piece_bytes.max(1))
    }

    /// Returns offset and length of each request.
    pub fn each(self) -> impl Iterator<Item = (usize, usize)> {
        let (piece, file) = (self.piece_bytes.max(1), self.file_bytes);
        (0..file).step_by(piece).map(move |at| (at, piece.min(file - at)))
    }

    /// Returns the name of the file: of the existing one, to read, or of the one to write.
    pub fn file_name(&self, written: &str) -> String {
        if self.direction == Direction::Read { read_name(self.file_bytes) } else { written.to_owned() }
    }
}

/// Returns the name of the file of this size that exists for reading.
pub fn read_name(file_bytes: usize) -> String {
    format!("{READ_PREFIX}{file_bytes}")
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, limit, piece_bytes, file_bytes } = self;
        let direction = direction.to_possible_value();
        let direction = direction.as_ref().map_or("", |value| value.get_name());
        write!(f, "{direction} {limit} {} {piece_bytes} {file_bytes}", self.pieces())
    }
}

impl FromStr for Job {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let wrong = || Error::Wrong { what: "what to do".to_owned(), answer: line.to_owned() };
        let mut words = line.split_whitespace();
        let direction = words.next().and_then(|word| <Direction as ValueEnum>::from_str(word, false).ok());
        let direction = direction.ok_or_else(wrong)?;
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok()).ok_or_else(wrong);
        let (limit, _pieces) = (number()?, number()?);
        let limit = u32::try_from(limit).map_err(|_| wrong())?;
        Ok(Self { direction, limit, piece_bytes: number()?, file_bytes: number()? })
    }
}

/// Client of `tombolo-bench limit swap`, which transfers a file's bytes over a bare TCP connection.
pub struct BareTcp {
    address: SocketAddr,
    /// `true` if the server writes to a file.
    is_stored: bool,
    /// Connections by the sizes of requests and replies.
    connections: HashMap<(usize, usize), Swap>,
}

impl BareTcp {
    pub fn new(args: &DriveArgs, is_stored: bool) -> Self {
        Self { address: args.nfs, is_stored, connections: HashMap::new() }
    }
}

impl Client for BareTcp {
    fn transfer(&mut self, job: &Job) -> Result<Duration> {
        let (sizes, is_stored) = match job.direction {
            Direction::Read => ((1, job.file_bytes), false),
            Direction::Write | Direction::WriteStable => ((job.file_bytes, 1), self.is_stored),
        };
        if !self.connections.contains_key(&sizes) {
            let connection = Swap::connect(self.address, Wait::Sleep, sizes, 1, is_stored)?;
            self.connections.insert(sizes, connection);
        }
        let begun = Instant::now();
        if let Some(connection) = self.connections.get_mut(&sizes) {
            connection.exchange(1, || {}).doing(|| "transfer a file".to_owned())?;
        }
        Ok(begun.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_text_parses_back() {
        let job = Job { direction: Direction::Write, limit: 8, piece_bytes: 100, file_bytes: 250 };
        assert_eq!(job.to_string(), "write 8 3 100 250");
        assert_eq!(job.to_string().parse::<Job>().unwrap(), job);
        assert_eq!(job.each().collect::<Vec<_>>(), [(0, 100), (100, 100), (200, 50)]);
        assert!("write 8".parse::<Job>().is_err());
        assert!("erase 1 1 1 1".parse::<Job>().is_err());
    }
}

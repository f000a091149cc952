//! Jobs of a client.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::nfs::READ_PREFIX;

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

    /// Returns the name of the file to read.
    pub fn read_name(&self) -> String {
        read_name(self.file_bytes)
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

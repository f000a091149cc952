//! Tuned transfer over bare TCP, like the paper's: from the program's memory to the socket.

use std::time::{Duration, Instant};

use super::{Client, Direction, DriveArgs, Job, content};
use crate::error::{Doing, Result};
use crate::nfs::{Bulk, BulkClient};

/// Client of `tombolo-bench limit bulk`.
pub struct BareTcp {
    client: BulkClient,
    /// Treatment of a written file by the server.
    written: Bulk,
    content: Vec<u8>,
}

impl BareTcp {
    pub fn new(args: &DriveArgs, written: Bulk) -> Result<Self> {
        let client = BulkClient::connect(args.nfs).doing(|| format!("connect to {}", args.nfs))?;
        Ok(Self { client, written, content: Vec::new() })
    }
}

impl Client for BareTcp {
    fn transfer(&mut self, job: &Job) -> Result<Duration> {
        if self.content.len() < job.file_bytes {
            self.content = content(job.file_bytes);
        }
        let bulk = match job.direction {
            Direction::Read => Bulk::FromMemory,
            Direction::Write | Direction::WriteStable => self.written,
        };
        let begun = Instant::now();
        let done = self.client.transfer(bulk, &self.content, job.file_bytes as u64);
        done.doing(|| "transfer a file".to_owned())?;
        Ok(begun.elapsed())
    }
}

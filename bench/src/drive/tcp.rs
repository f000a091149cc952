//! Transfer over bare TCP, like the paper's: from the program's memory to the socket.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Client, Direction, DriveArgs, Job};
use crate::error::{Doing, Result};
use crate::nfs::{Swap, Wait};

/// Client of `tombolo-bench limit swap`.
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

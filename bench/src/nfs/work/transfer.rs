//! READ and WRITE, several outstanding.

use tombolo_wire_nfs3::args::StableHow;

use super::super::Wait;
use super::super::client::{Call, Connection, Mounted, Reply, commit, committed, offset_at, read, write};
use super::READ_REPLY_BYTES;
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Clock, Work};
use crate::peer::Nfs;

/// Which way the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// READ, from the servers' page cache.
    Read,
    /// WRITE, UNSTABLE, and one COMMIT at the end of each turn.
    Write,
}

/// Goes over a large file in pieces, again and again.
pub struct Transfer {
    connection: Connection,
    call: Call,
    commit: Option<Call>,
    piece_bytes: u64,
    outstanding: u32,
    /// Where the offset stands among the arguments.
    offset_at: usize,
    next: u64,
}

impl Transfer {
    /// Of the file `path`, which has [`Tree::LARGE_BYTES`] bytes.
    pub fn new(
        server: &Nfs,
        path: &str,
        wait: Wait,
        direction: Direction,
        piece_bytes: u32,
        outstanding: u32,
    ) -> Result<Self> {
        let mut mounted = Mounted::new(server, wait)?;
        let file = mounted.walk(path)?;
        let (call, commit) = match direction {
            // A reply without attributes would be shorter; neither server leaves them out.
            Direction::Read => {
                let reply_bytes = READ_REPLY_BYTES - MARK_BYTES + piece_bytes as usize;
                (read(&file, piece_bytes).expect_reply_bytes(reply_bytes), None)
            }
            Direction::Write => {
                (write(&file, &content(piece_bytes), StableHow::Unstable), Some(commit(&file)))
            }
        };
        let offset_at = offset_at(&file);
        let piece_bytes = u64::from(piece_bytes);
        let connection = mounted.into_connection();
        Ok(Self { connection, call, commit, piece_bytes, outstanding, offset_at, next: 0 })
    }

    pub fn call_bytes(&self) -> usize {
        self.call.bytes()
    }
}

const MARK_BYTES: usize = 4;

fn content(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8).collect()
}

impl Work for Transfer {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let pieces = Tree::LARGE_BYTES as u64 / self.piece_bytes;
        let (piece_bytes, offset_at, first) = (self.piece_bytes, self.offset_at, self.next);
        clock.start();
        self.connection.repeat(
            &mut self.call,
            self.outstanding,
            count,
            |call, number| call.patch_u64(offset_at, (first + number) % pieces * piece_bytes),
            || {},
        )?;
        if let Some(commit) = &mut self.commit {
            let mut reply = Reply::default();
            self.connection.call(commit, &mut reply)?;
            committed(&reply)?;
        }
        clock.lap_of(count);
        self.next = (first + count) % pieces;
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.piece_bytes)
    }
}

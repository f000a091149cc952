//! Pipelined READ and WRITE.

use tombolo_wire_nfs3::args::StableHow;

use super::super::Wait;
use super::super::client::{Call, Mounted, Reply, commit, committed, offset_at, read, write};
use super::READ_REPLY_BYTES;
use crate::drive::content;
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Clock, Work};
use crate::peer::Nfs;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// READ from the server's page cache.
    Read,
    /// Unstable WRITE, and one COMMIT at the end of each turn.
    Write,
}

/// Transfers the file `path` of [`Tree::LARGE_BYTES`] bytes in pieces, repeatedly; returns the size of a call
/// too.
pub fn transfer(
    server: &Nfs,
    path: &str,
    wait: Wait,
    direction: Direction,
    piece_bytes: u32,
    outstanding: u32,
) -> Result<(Work<'static>, usize)> {
    let mut mounted = Mounted::new(server, wait)?;
    let file = mounted.walk(path)?;
    let (mut call, mut commit) = match direction {
        // Neither server omits the attributes, without which a reply would be shorter.
        Direction::Read => {
            let reply_bytes = READ_REPLY_BYTES - MARK_BYTES + piece_bytes as usize;
            (read(&file, piece_bytes).expect_reply_bytes(reply_bytes), None)
        }
        Direction::Write => {
            (write(&file, &content(piece_bytes as usize), StableHow::Unstable), Some(commit(&file)))
        }
    };
    let (offset_at, call_bytes, mut connection) = (offset_at(&file), call.bytes(), mounted.into_connection());
    let (piece_bytes, mut next) = (u64::from(piece_bytes), 0);
    let run = move |count, clock: &mut Clock| {
        let (pieces, first) = (Tree::LARGE_BYTES as u64 / piece_bytes, next);
        let patch =
            |call: &mut Call, number| call.patch_u64(offset_at, (first + number) % pieces * piece_bytes);
        clock.start();
        connection.repeat(&mut call, outstanding, count, patch, || {})?;
        if let Some(commit) = &mut commit {
            let mut reply = Reply::default();
            connection.call(commit, &mut reply)?;
            committed(&reply)?;
        }
        clock.lap_of(count);
        next = (first + count) % pieces;
        Ok(())
    };
    Ok((Work::new(run).bytes(piece_bytes), call_bytes))
}

const MARK_BYTES: usize = 4;

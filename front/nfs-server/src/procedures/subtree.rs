//! LIST of the side program: a directory in large pages, with its subdirectories (`docs/protocols/side.md`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::listing::{ReaddirplusReply, frame_bytes};
use tombolo_wire_nfs3::side::{ListArgs, ListedDir};
use tombolo_wire_nfs3::{FileHandle, HANDLE_BYTES_MAX};
use tombolo_wire_xdr::Encoder;

use super::LISTING_MAX_BYTES;
use super::attributes::allowed;
use super::listing::{Wanted, list as list_page};
use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result};
use crate::nodes::Node;

/// Maximum number of subdirectories per call, including those that the user may not list.
const DIRS_MAX: usize = 256;

/// Time after which no further directory is begun, as a distant file system may answer each one slowly.
const BEGUN_WITHIN: Duration = Duration::from_millis(500);

/// Size of a directory's reply without its page: leading word, handle, rights and status; and the word that
/// ends the reply.
const HEAD_BYTES: usize = 4 + (4 + HANDLE_BYTES_MAX) + 4 + 4 + 4;

/// Executes LIST: a page of a directory, then complete subdirectories as size and time allow.
pub(crate) async fn list(caller: &Caller<'_>, args: ListArgs<'_>, results: &mut Encoder<'_>) {
    let answer = Answer {
        start: results.position(),
        bytes_max: args.bytes_max.min(LISTING_MAX_BYTES).min(caller.transfer_max()) as usize,
        access: args.access,
    };
    let mut below = Vec::new();
    match caller.target(args.dir).await {
        Ok(dir) => {
            let from = Wanted::plus(args.dir, args.cookie, args.verifier, answer.space_left(results));
            let listed = answer.dir(&dir, args.dir, &from, results, &mut below).await;
            match listed {
                Ok(true) if args.with_subtree => {
                    if let Some(_counted) = caller.begin_subtree() {
                        answer.subtree(&dir, below, results).await;
                    }
                }
                Ok(_) => {}
                Err(failure) => {
                    let (status, attributes) = dir.failed(failure).await;
                    failed(args.dir, ReaddirplusReply::Failed(status, attributes), results);
                }
            }
        }
        Err(Failure(status)) => failed(args.dir, ReaddirplusReply::Failed(status, None), results),
    }
    results.bool(false);
}

fn failed(dir: FileHandle<'_>, page: ReaddirplusReply<'_>, results: &mut Encoder<'_>) {
    results.bool(true).value(&ListedDir { dir, access: AccessBits::empty(), page });
}

/// A LIST reply being written: where it starts in the results, its size limit, and the rights to report.
struct Answer {
    start: usize,
    bytes_max: usize,
    access: AccessBits,
}

impl Answer {
    fn space_left(&self, results: &Encoder<'_>) -> usize {
        let taken = results.position() - self.start + HEAD_BYTES;
        self.bytes_max.saturating_sub(taken)
    }

    /// Appends subdirectories in depth-first order. A directory that cannot be listed completely is left out,
    /// and the client requests it separately.
    async fn subtree(&self, top: &CallTarget, below: Vec<Arc<Node>>, results: &mut Encoder<'_>) {
        let (mut pending, begun) = (below, Instant::now());
        pending.reverse();
        for _ in 0..DIRS_MAX {
            let Some(node) = pending.pop().filter(|_| begun.elapsed() < BEGUN_WITHIN) else { return };
            let dir = CallTarget { export: top.export.clone(), node: node.clone(), cx: top.cx.clone() };
            let space = self.space_left(results);
            if space <= frame_bytes(true) {
                return;
            }
            let (start, handle) = (results.position(), node.wire_handle());
            let wanted = Wanted::plus(handle, Default::default(), Default::default(), space);
            let mut found = Vec::new();
            match self.dir(&dir, handle, &wanted, results, &mut found).await {
                Ok(true) => pending.extend(found.into_iter().rev()),
                Ok(false) => return results.truncate(start),
                Err(_) => {}
            }
        }
    }

    /// Writes a directory, or nothing on failure. Returns `true` if it is complete.
    async fn dir(
        &self,
        dir: &CallTarget,
        handle: FileHandle<'_>,
        wanted: &Wanted,
        results: &mut Encoder<'_>,
        below: &mut Vec<Arc<Node>>,
    ) -> Result<bool> {
        let (_, access) = allowed(dir, self.access).await?;
        let start = results.position();
        results.bool(true).value(&handle).value(&access);
        let listed = list_page(dir, wanted, results, Some(below)).await;
        if listed.is_err() {
            results.truncate(start);
        }
        listed
    }
}

//! Operations with writes behind: the write itself, and the operations that report its failure.

use std::sync::Arc;

use tombolo_core::fs::{Change, File, LockOwner, SyncScope, Write, Written};
use tombolo_core::{Answer, Ctx, Interrupt, Result, Stability};
use tombolo_host_runtime::task;
use tombolo_mem::Source;
use tombolo_wire_vrpc::Request;

use super::release;
use crate::behind::{UnansweredWrite, WRITE_BYTES_MAX, WritesBehind};
use crate::links::Links;
use crate::reply::check_unpoisoned;

/// Writes without waiting for the reply; `None` if the write must be awaited. Fails with the error of the
/// opening's previous write, if that is not reported yet.
pub(super) fn write(
    links: &Arc<Links>,
    cx: &Ctx,
    file: File,
    how: &Write,
    from: &Source,
) -> Option<Result<Written>> {
    let behind = links.settled()?;
    if let Some(error) = behind.take_error(file.open) {
        return Some(Err(error));
    }
    let link = links.current_now();
    // Write-back of a mapped page (`in_place`) is awaited: once it is answered, the kernel takes the page for
    // clean and reports no failure.
    let is_awaited =
        how.stability != Stability::Unstable || how.in_place || how.by_owner || !cx.want.is_empty();
    let len = from.len();
    if is_awaited || !link.may_write_behind(file, how.offset, len) {
        return None;
    }
    let data = from.to_vec(WRITE_BYTES_MAX).into_boxed_slice();
    if let Err(error) = check_unpoisoned(from) {
        return Some(Err(error));
    }
    // The memory that the server reads is reused after the reply, so the server must not retain it.
    let how = Write { retainable: false, ..*how };
    let write = UnansweredWrite::new(links.objects.next_sequence(), cx, file, how, data);
    if !behind.register(&write) {
        return None;
    }
    match link.send_behind(&write) {
        Some(call) => behind.sent(&write, link.clone(), call),
        None if behind.withdraw(&write) => return None,
        // The link was lost, and recovery has taken the write over.
        None => {}
    }
    Some(Ok(Written { count: len, stability: Stability::Unstable, file: Change::default() }))
}

/// Flushes. With writes behind, no request is sent for a prompt opening without an unanswered write if the
/// owner held no locks on the file.
pub(super) fn flush(links: &Arc<Links>, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
    let had_locks = links.objects.nodes.with_locks(file.node, |locks| locks.closed(owner)) == Some(true);
    let request = Request::Flush { file, owner };
    let Some(behind) = links.settled() else { return links.call_unit(cx, request) };
    let is_prompt = || links.objects.openings.prompt_flags(file).is_some();
    if !had_locks && behind.unanswered(file.open).is_none() && is_prompt() {
        return behind.take_error(file.open).map_or(Answer::ok(()), Answer::err);
    }
    reporting(links, behind, cx, file, request)
}

pub(super) fn fsync(links: &Arc<Links>, cx: &Ctx, file: File, what: SyncScope) -> Answer<()> {
    let request = Request::Fsync { file, what };
    match links.settled() {
        Some(behind) => reporting(links, behind, cx, file, request),
        None => links.call_unit(cx, request),
    }
}

/// Sends a request that also reports the failure of the opening's previous write. The server replies to the
/// write first, so that reply is in the ring before the request's.
fn reporting(
    links: &Arc<Links>,
    behind: &WritesBehind,
    cx: &Ctx,
    file: File,
    request: Request<'_>,
) -> Answer<()> {
    let unanswered = behind.unanswered(file.open);
    let answer = links.call_unit(cx, request);
    let links = links.clone();
    answer.map_result(move |result| {
        let Some(behind) = links.settled() else { return result };
        if result.is_ok() && unanswered.is_some_and(|write| behind.is_unanswered(&write)) {
            return Err(links.current().protocol_violation("a quiet write was overtaken"));
        }
        behind.take_error(file.open).map_or(result, Err)
    })
}

/// Ends an opening once its last write is answered.
pub(super) fn release_when_written(links: &Arc<Links>, cx: &Ctx, file: File) {
    let behind = links.settled();
    if behind.is_none_or(|behind| behind.unanswered(file.open).is_none()) {
        return release_reporting(links, cx, file);
    }
    let (links, cx) = (links.clone(), Ctx { interrupt: Interrupt::default(), ..cx.clone() });
    task::spawn(async move {
        // The reply to NULL follows that to the write.
        let _ = links.call_unit(&cx, Request::Null).resolve().await;
        release_reporting(&links, &cx, file);
    });
}

fn release_reporting(links: &Links, cx: &Ctx, file: File) {
    if let Some(error) = links.settled().and_then(|behind| behind.released(file.open)) {
        tracing::warn!(%error, "a write failed after the last flush of its file");
    }
    release(links, cx, file);
}

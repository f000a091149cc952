//! File data: small transfers in the frame, larger ones through bulk memory, split if that is short, or by
//! reference to memory that the server maps (`remote_buffer`).
//!
//! Bulk memory belongs to a link. If the link is lost, a READ is sent anew; a WRITE is sent again with its
//! original sequence number, so it may have been performed in a larger piece than the new link has space for.

use std::sync::Arc;

use tombolo_core::fs::{File, ReadDone, Write, Written};
use tombolo_core::{Answer, Ctx, Error, Result, or_answer};
use tombolo_host_links::client::Spans;
use tombolo_mem::{Sink, Source};
use tombolo_wire_vrpc::{Data, FRAME_BYTES, Reply, Request, Returned};

use super::names::{destination, out_reference};
use super::remote_buffer;
use super::replies::{Piece, pick, written};
use crate::bulk_memory::largest;
use crate::link::Link;
use crate::links::Links;
use crate::reply::{Answered, check_link_alive, check_unpoisoned};
use crate::request::OutgoingRequest;

/// Largest READ and WRITE for which the frame is preferred to bulk memory: one copy more, but no memory to
/// allocate. Measured on one link with both sides polling, the break-even is at 2 to 3 KiB for a READ and at
/// 1 KiB for a WRITE.
const FRAME_READ_MAX: usize = 3 << 10;
const FRAME_WRITE_MAX: usize = 512;

pub(super) fn read(links: &Arc<Links>, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
    let wanted = into.len();
    let first = match read_piece(links, cx, file, offset, into.clone()) {
        Answer::Done(Ok((piece, done))) if is_all(piece, &done, wanted) => return Answer::ok(done),
        Answer::Done(Err(error)) => return Answer::err(error),
        first => first,
    };
    let (links, cx) = (links.clone(), cx.clone());
    Answer::later(async move {
        let (mut piece, mut done) = first.resolve().await?;
        while !is_all(piece, &done, wanted) {
            let mut rest = into.clone();
            rest.advance(done.count);
            let at = offset.saturating_add(done.count as u64);
            let (next_piece, next) = read_piece(&links, &cx, file, at, rest).resolve().await?;
            (piece, done) = (done.count + next_piece, ReadDone { count: done.count + next.count, ..next });
        }
        Ok(done)
    })
}

/// Returns `true` if a read of `wanted` bytes is complete: all are read, or the file ended within the
/// `requested` bytes of its pieces so far.
fn is_all(requested: usize, done: &ReadDone, wanted: usize) -> bool {
    done.count < requested || done.eof || done.count >= wanted
}

/// Reads as much as possible with one request.
fn read_piece(links: &Arc<Links>, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<Piece<ReadDone>> {
    links.repeat(cx, move |links, link, cx| {
        let mut into = into.clone();
        let len = into.len().min(link.terms.transfer_bytes_max as usize);
        let span = if len > FRAME_READ_MAX { largest(link.line.in_area(), len, FRAME_BYTES) } else { None };
        let len = span.as_ref().map_or(len.min(FRAME_BYTES), |span| span.len() as usize);
        into.truncate(len);
        let destination = or_answer!(destination(link, span.as_ref(), len));
        let spans = span.map_or_else(Spans::none, Spans::from);
        let outgoing =
            OutgoingRequest { request: Request::Read { file, offset, destination }, tail: &[], spans };
        let sequence = links.objects.next_sequence();
        links.call_on(link, cx, sequence, outgoing, move |link, answered| {
            received(link, &answered, &into).map(|done| (len, done))
        })
    })
}

/// Copies the data of a reply to the reader's memory.
fn received(link: &Link, answered: &Answered, into: &Sink) -> Result<ReadDone> {
    let (data, eof) = answered.extract(link, pick!(Read(data, eof)))?;
    let count = match answered.placed(link, &data, into.len())? {
        Some(source) => {
            let count = source.copy_to_sink(into);
            check_link_alive(link, &source)?;
            count
        }
        None => match data {
            Returned::Inline(bytes) => into.write_at(0, bytes),
            _ => 0,
        },
    };
    Ok(ReadDone { count, eof })
}

pub(super) fn write(links: &Arc<Links>, cx: &Ctx, file: File, how: Write, from: Source) -> Answer<Written> {
    let wanted = from.len();
    let first = match write_piece(links, cx, file, how, &from) {
        Answer::Done(Ok((piece, written))) if written.count < piece || written.count >= wanted => {
            return Answer::ok(written);
        }
        Answer::Done(Err(error)) => return Answer::err(error),
        first => first,
    };
    let (links, cx) = (links.clone(), cx.clone());
    Answer::later(async move {
        let (piece, mut sum) = first.resolve().await?;
        let mut full = sum.count >= piece;
        while full && sum.count < wanted {
            let mut rest = from.clone();
            rest.advance(sum.count);
            let how = Write { offset: how.offset.saturating_add(sum.count as u64), ..how };
            // Return the data written so far; a write of the remainder gets the error.
            let Ok((piece, next)) = write_piece(&links, &cx, file, how, &rest).resolve().await else { break };
            full = next.count >= piece;
            sum.count += next.count;
            sum.stability = sum.stability.min(next.stability);
            sum.file.after = next.file.after;
        }
        Ok(sum)
    })
}

/// Writes as much as possible with one request.
fn write_piece(
    links: &Arc<Links>,
    cx: &Ctx,
    file: File,
    how: Write,
    from: &Source,
) -> Answer<Piece<Written>> {
    // The memory that the server reads is reused after the reply, so the server must not retain it.
    let how = Write { retainable: false, ..how };
    let sequence = links.objects.next_sequence();
    if from.len() <= FRAME_WRITE_MAX {
        return write_in_frame::<FRAME_WRITE_MAX>(links, cx, (sequence, file, how), from);
    }
    let from = from.clone();
    links.repeat(cx, move |links, link, cx| {
        let limit = from.len();
        let len = limit.min(link.terms.transfer_bytes_max as usize);
        if let Some(answer) = remote_buffer::write(links, link, cx, (sequence, file, how), &from, len) {
            return answer;
        }
        let Some(span) = largest(link.line.out_area(), len, FRAME_BYTES) else {
            return write_in_frame::<FRAME_BYTES>(links, cx, (sequence, file, how), &from);
        };
        let len = span.len() as usize;
        let data = link.line.out_sink(&span).map_err(Error::io).and_then(|sink| {
            let copied = from.copy_to_sink(&sink);
            check_unpoisoned(&from)?;
            debug_assert_eq!(copied, len);
            out_reference(link, &span, len)
        });
        let request = Request::Write { file, how, data: Data::One(or_answer!(data)) };
        let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(span) };
        links.call_on(link, cx, sequence, outgoing, move |link, answered| {
            written(link, &answered, limit).map(|written| (len, written))
        })
    })
}

fn write_in_frame<const MAX: usize>(
    links: &Arc<Links>,
    cx: &Ctx,
    (sequence, file, how): (u64, File, Write),
    from: &Source,
) -> Answer<Piece<Written>> {
    let mut buffer = [0; MAX];
    let len = from.read_at(0, &mut buffer);
    or_answer!(check_unpoisoned(from));
    let request = Request::Write { file, how, data: Data::Follows { len_bytes: len as u32 } };
    let tail = buffer.get(..len).unwrap_or_default();
    let limit = from.len();
    links.call_with_tail(cx, sequence, (request, tail), move |link, answered| {
        written(link, &answered, limit).map(|written| (len, written))
    })
}

//! File data: in the frame when they are few, through bulk memory otherwise, and in pieces where that is short.

use std::sync::Arc;

use tombolo_core::fs::{Answer, Ctx, Error, File, ReadDone, Result, Write, Written};
use tombolo_host::links::client::Spans;
use tombolo_mem::{Sink, Source};
use tombolo_wire_vrpc::{Data, FRAME_BYTES, Place, Reply, Request, Returned};

use super::names::{in_reference, out_reference};
use super::{elsewhere, pick};
use crate::ask::Question;
use crate::link::Link;
use crate::reply::{Answered, whole};
use crate::room::largest;

/// Up to so many bytes travel in the frame: a copy more, but no memory to be found for them.
const FRAME_DATA_MAX: usize = 512;

pub(super) fn read(link: &Arc<Link>, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
    let wanted = into.len();
    let (piece, answer) = read_piece(link, cx, file, offset, into.clone());
    if piece == wanted {
        return answer;
    }
    let (link, cx) = (link.clone(), cx.clone());
    Answer::later(async move {
        let mut done = answer.resolve().await?;
        let mut full = done.count == piece;
        while full && !done.eof && done.count < wanted {
            let mut rest = into.clone();
            rest.advance(done.count);
            let (piece, answer) =
                read_piece(&link, &cx, file, offset.saturating_add(done.count as u64), rest);
            let next = answer.resolve().await?;
            full = next.count == piece;
            done = ReadDone { count: done.count + next.count, eof: next.eof };
        }
        Ok(done)
    })
}

/// Asks for as much as can be moved at once: says how much that is.
fn read_piece(
    link: &Arc<Link>,
    cx: &Ctx,
    file: File,
    offset: u64,
    mut into: Sink,
) -> (usize, Answer<ReadDone>) {
    let len = into.len().min(link.terms.transfer_bytes_max as usize);
    let span = if len > FRAME_DATA_MAX { largest(link.line.in_area(), len, FRAME_BYTES) } else { None };
    let len = span.as_ref().map_or(len.min(FRAME_BYTES), |span| span.len() as usize);
    into.truncate(len);
    let place = match &span {
        None => Place::Inline { len_bytes: len as u32 },
        Some(span) => match in_reference(link, span) {
            Ok(reference) => Place::One(reference),
            Err(error) => return (len, Answer::err(error)),
        },
    };
    let spans = span.map_or_else(Spans::none, Spans::from);
    let question = Question { request: Request::Read { file, offset, place }, tail: &[], spans };
    (len, link.ask(cx, question, move |link, answered| received(link, &answered, &into)))
}

/// Takes the data of an answer to where the reader wants them.
fn received(link: &Link, answered: &Answered, into: &Sink) -> Result<ReadDone> {
    let Reply::Read { data, eof } = answered.success(link)? else {
        return Err(link.lied("an answer of another kind"));
    };
    let count = match answered.placed(link, &data, into.len())? {
        Some(source) => {
            let count = source.copy_to_sink(into);
            whole(&source)?;
            count
        }
        None => match data {
            Returned::Inline(bytes) => into.write_at(0, bytes),
            _ => 0,
        },
    };
    Ok(ReadDone { count, eof })
}

pub(super) fn write(link: &Arc<Link>, cx: &Ctx, file: File, how: Write, from: Source) -> Answer<Written> {
    let wanted = from.len();
    let (piece, answer) = write_piece(link, cx, file, how, &from);
    if piece == wanted {
        return answer;
    }
    let (link, cx) = (link.clone(), cx.clone());
    Answer::later(async move {
        let mut sum = answer.resolve().await?;
        let mut full = sum.count == piece;
        while full && sum.count < wanted {
            let mut rest = from.clone();
            rest.advance(sum.count);
            let how = Write { offset: how.offset.saturating_add(sum.count as u64), ..how };
            let (piece, answer) = write_piece(&link, &cx, file, how, &rest);
            // What went in before is in; who wants the rest in comes again, and gets the error then.
            let Ok(next) = answer.resolve().await else { break };
            full = next.count == piece;
            sum.count += next.count;
            sum.stability = sum.stability.min(next.stability);
            sum.file.after = next.file.after;
        }
        Ok(sum)
    })
}

/// Sends as much as can be moved at once: says how much that is.
fn write_piece(
    link: &Arc<Link>,
    cx: &Ctx,
    file: File,
    how: Write,
    from: &Source,
) -> (usize, Answer<Written>) {
    let len = from.len().min(link.terms.transfer_bytes_max as usize);
    // The memory that the server reads is used for other data once this is answered.
    let how = Write { keepable: false, ..how };
    if len > FRAME_DATA_MAX
        && let Some(answer) = elsewhere::write(link, cx, file, how, from, len)
    {
        return (len, answer);
    }
    if len > FRAME_DATA_MAX
        && let Some(span) = largest(link.line.out_area(), len, FRAME_BYTES)
    {
        let len = span.len() as usize;
        let data = link.line.out_sink(&span).map_err(Error::io).and_then(|sink| {
            let copied = from.copy_to_sink(&sink);
            whole(from)?;
            debug_assert_eq!(copied, len);
            out_reference(link, &span, len)
        });
        let answer = match data {
            Ok(reference) => {
                let request = Request::Write { file, how, data: Data::One(reference) };
                put(link, cx, Question { request, tail: &[], spans: Spans::from(span) }, len)
            }
            Err(error) => Answer::err(error),
        };
        return (len, answer);
    }
    if len <= FRAME_DATA_MAX {
        (len, write_in_frame::<FRAME_DATA_MAX>(link, cx, file, how, from))
    } else {
        (len.min(FRAME_BYTES), write_in_frame::<FRAME_BYTES>(link, cx, file, how, from))
    }
}

fn write_in_frame<const MAX: usize>(
    link: &Arc<Link>,
    cx: &Ctx,
    file: File,
    how: Write,
    from: &Source,
) -> Answer<Written> {
    let mut buffer = [0; MAX];
    let len = from.read_at(0, &mut buffer);
    if let Err(error) = whole(from) {
        return Answer::err(error);
    }
    let request = Request::Write { file, how, data: Data::Follows { len_bytes: len as u32 } };
    put(
        link,
        cx,
        Question { request, tail: buffer.get(..len).unwrap_or_default(), spans: Spans::none() },
        len,
    )
}

/// Sends a WRITE of `len` bytes.
pub(crate) fn put(link: &Arc<Link>, cx: &Ctx, question: Question<'_>, len: usize) -> Answer<Written> {
    link.ask(cx, question, move |link, answered| {
        let written = answered.picked(link, pick!(Written))?;
        match written.count <= len {
            true => Ok(written),
            false => Err(link.lied("more was written than was sent")),
        }
    })
}

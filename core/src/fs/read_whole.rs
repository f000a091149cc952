//! Continuation of short reads.

use std::sync::Arc;

use tombolo_mem::Sink;

use super::{File, FileSystem, ReadDone};
use crate::{Answer, Ctx, Error};

/// Reads until `into` is full or the file ends, for callers that take a short read for the end: kernels, and
/// programs that copy. An unreadable part fails the whole read, including the readable bytes before it.
pub fn read_whole(
    fs: &Arc<dyn FileSystem>,
    cx: &Ctx,
    file: File,
    offset: u64,
    into: Sink,
) -> Answer<ReadDone> {
    let wanted = into.len();
    let is_whole = move |done: &ReadDone| done.eof || done.count >= wanted;
    match fs.read(cx, file, offset, into.clone()) {
        Answer::Done(Ok(done)) if is_whole(&done) => Answer::ok(done),
        Answer::Done(Err(error)) => Answer::err(error),
        first => {
            let (fs, cx) = (fs.clone(), cx.clone());
            Answer::later(async move {
                let mut done = first.resolve().await?;
                while !is_whole(&done) {
                    let mut rest = into.clone();
                    rest.advance(done.count);
                    let at = offset.saturating_add(done.count as u64);
                    let next = fs.read(&cx, file, at, rest).resolve().await?;
                    if next.count == 0 && !next.eof {
                        return Err(Error::io("read returned no data before the end of the file"));
                    }
                    done = ReadDone { count: done.count + next.count, eof: next.eof };
                }
                Ok(done)
            })
        }
    }
}

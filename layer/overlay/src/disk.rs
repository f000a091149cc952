//! An overlay as a disk of the block waist.

use std::sync::Arc;

use tombolo_core::block::{Allocation, BlockDevice, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Result, Stability, or_answer};
use tombolo_mem::{Sink, Source};

use crate::redo_log::{Location, RedoLog};

/// Maximum range examined at once, in bytes: must fit into the 32 bits of a length in NBD.
const EXTENTS_BYTES_MAX: u64 = 1 << 30;

/// A disk whose contents are another disk's until they are overwritten. Any number of front ends may use it
/// concurrently.
pub struct Overlay(pub(crate) Arc<RedoLog>);

/// Waits for several answers; completes immediately if they are complete.
pub(crate) fn all(answers: Vec<Answer<()>>) -> Answer<()> {
    let mut pending = Vec::new();
    let mut failed = None;
    for answer in answers {
        match answer {
            Answer::Done(Ok(())) => (),
            Answer::Done(Err(error)) => failed = Some(error),
            Answer::Later(later) => pending.push(later),
        }
    }
    if pending.is_empty() {
        return Answer::Done(failed.map_or(Ok(()), Err));
    }
    // All answers are awaited even after a failure, because the caller's memory is in use until the last part
    // has ended.
    Answer::later(async move {
        for later in pending {
            if let Err(error) = later.await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    })
}

impl RedoLog {
    pub(crate) fn read(&self, cx: &Ctx, mut offset: u64, mut into: Sink) -> Answer<()> {
        let end = offset + into.len() as u64;
        if into.is_empty() {
            return Answer::ok(());
        }
        let (location, len) = self.locate(offset, end);
        if len == end - offset {
            return self.read_from(cx, location, into);
        }
        let mut parts = Vec::new();
        while offset < end {
            let (location, len) = self.locate(offset, end);
            let rest = into.split_off(len as usize);
            parts.push(self.read_from(cx, location, into));
            into = rest;
            offset += len;
        }
        all(parts)
    }

    fn read_from(&self, cx: &Ctx, location: Location, into: Sink) -> Answer<()> {
        match location {
            Location::Base(offset) => self.base.read(cx, offset, into),
            Location::Log(offset) => self.log.read(cx, offset, into),
            Location::Zero => {
                into.zero(0, into.len());
                Answer::ok(())
            }
        }
    }

    async fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Result<Extents> {
        let mut extents = Extents::new(range, count_max);
        let mut goes_on = range.len_bytes > 0;
        while goes_on {
            // A base on an NBD server answers for at most this length. With a longer range, `locate` would
            // search the same states again after each of its answers.
            let end = range.end().min(extents.next_offset().saturating_add(EXTENTS_BYTES_MAX));
            let (location, len_bytes) = self.locate(extents.next_offset(), end);
            goes_on = match location {
                Location::Log(_) => extents.push(len_bytes, Allocation::Data),
                Location::Zero => extents.push(len_bytes, Allocation::Hole),
                Location::Base(offset) => {
                    let answer = self.base.extents(cx, Range { offset, len_bytes }, count_max);
                    self.base.submit();
                    let of_base = answer.resolve().await?;
                    of_base.as_slice().iter().all(|extent| extents.push(extent.len_bytes, extent.allocation))
                }
            };
        }
        Ok(extents)
    }
}

impl BlockDevice for Overlay {
    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn geometry(&self) -> Geometry {
        self.0.bounds.geometry()
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        or_answer!(self.0.bounds.check(Range { offset, len_bytes: into.len() as u64 }));
        self.0.read(cx, offset, into)
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        or_answer!(self.0.bounds.check_change(Range { offset, len_bytes: from.len() as u64 }));
        self.0.write(cx, offset, stability, from)
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        if self.0.bounds.is_read_only() { Answer::ok(()) } else { self.0.make_durable(cx) }
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        or_answer!(self.0.bounds.check_change(range));
        self.0.discard(cx, range)
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        or_answer!(self.0.bounds.check_change(range));
        self.0.write_zeroes(cx, range, how)
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        or_answer!(self.0.bounds.check(range));
        let (redo, cx) = (self.0.clone(), cx.clone());
        Answer::later(async move { redo.extents(&cx, range, count_max).await })
    }

    fn submit(&self) {
        self.0.base.submit();
        self.0.log.submit();
    }
}

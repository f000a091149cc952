//! A file of the waist as a block device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_lock::Mutex;
use tombolo_core::block::{
    BlockDevice, Bounds, Extents, FlushLoss, Geometry, Profile, Range, Resize, SizeWatch, Zeroing,
};
use tombolo_core::fs::{File, FileSystem, SetAttr, SyncScope, Write, Written, read_whole};
use tombolo_core::{Answer, Ctx, Error, Result, Stability, or_answer};
use tombolo_host_runtime::{task, to_its_end};
use tombolo_mem::{Sink, Source};

/// A file as a disk. Any number of front ends may use it concurrently.
pub struct FileDisk(pub(crate) Arc<OpenFile>);

/// State shared by requests. Dropping it closes the file.
pub(crate) struct OpenFile {
    pub(crate) fs: Arc<dyn FileSystem>,
    /// The session and user of all operations.
    pub(crate) cx: Ctx,
    pub(crate) file: File,
    profile: Profile,
    pub(crate) bounds: Bounds,
    loss: FlushLoss,
    /// `true` once a flush has succeeded: the next ones sync only this opening's data.
    is_flushed: AtomicBool,
    /// Locked during a flush, see [`Self::make_durable`].
    flushing: Arc<Mutex<()>>,
}

impl OpenFile {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, cx: Ctx, file: File, read_only: bool) -> Self {
        let has_ranges = fs.ranges().is_some() && !read_only;
        let profile = Profile { read_only, has_cache: true, discards: has_ranges, zeroes_fast: has_ranges };
        Self {
            fs,
            cx,
            file,
            profile,
            bounds: Bounds::new(Geometry::of_file(0), read_only),
            loss: FlushLoss::default(),
            is_flushed: AtomicBool::new(false),
            flushing: Arc::default(),
        }
    }

    /// Returns the context of a front end's request in the file's own session. The context has no key,
    /// because the request may become several.
    pub(crate) fn cx(&self, caller: &Ctx) -> Ctx {
        Ctx {
            request: caller.request,
            deadline: caller.deadline,
            interrupt: caller.interrupt.clone(),
            ..self.cx.clone()
        }
    }

    pub(crate) fn write_all(
        self: &Arc<Self>,
        cx: &Ctx,
        offset: u64,
        stability: Stability,
        mut from: Source,
    ) -> Answer<()> {
        let write = move |file: &Self, cx: &Ctx, offset: u64, from: &Source| {
            let how = Write { offset, stability, ..Write::default() };
            file.fs.write(cx, file.file, &how, from.clone())
        };
        match write(self, cx, offset, &from) {
            Answer::Done(Ok(Written { count, .. })) if count >= from.len() => Answer::ok(()),
            Answer::Done(Err(error)) => Answer::err(error),
            first => {
                let (file, cx) = (self.clone(), cx.clone());
                Answer::later(async move {
                    let (mut offset, mut next) = (offset, first);
                    loop {
                        let count = next.resolve().await?.count;
                        if count >= from.len() {
                            return Ok(());
                        }
                        if count == 0 {
                            return Err(Error::io("the file accepts no more data"));
                        }
                        from.advance(count);
                        offset += count as u64;
                        next = write(&file, &cx, offset, &from);
                    }
                })
            }
        }
    }

    /// Completes a read that reached the end of the file after `count` bytes, with zeroes up to the end of
    /// the last block. Fails if the file was truncated below that block.
    fn pad(self: &Arc<Self>, cx: &Ctx, offset: u64, count: usize, mut into: Sink) -> Answer<()> {
        into.advance(count);
        let file = self.clone();
        self.fs.getattr(cx, self.file.node, Some(self.file)).then(move |attr| {
            match file.bounds.pad(attr.size, offset + count as u64, &into) {
                true => Answer::ok(()),
                false => Answer::err(truncated()),
            }
        })
    }

    /// Makes completed writes durable. Flushes are serialized: one concurrent with a failing one could
    /// succeed before the failure is known.
    pub(crate) fn make_durable(self: &Arc<Self>, cx: &Ctx) -> Answer<()> {
        let (file, cx) = (self.clone(), cx.clone());
        let Some(alone) = self.flushing.try_lock_arc() else {
            return to_its_end(async move {
                let _alone = file.flushing.lock_arc().await;
                file.flushed(file.sync(&cx).resolve().await)
            });
        };
        match self.sync(&cx) {
            Answer::Done(result) => {
                let result = self.flushed(result);
                task::defer_woken_tasks(|| drop(alone));
                Answer::Done(result)
            }
            Answer::Later(later) => to_its_end(async move {
                let _alone = alone;
                file.flushed(later.await)
            }),
        }
    }

    /// Syncs the file; the first time including the writes of a killed predecessor.
    fn sync(&self, cx: &Ctx) -> Answer<()> {
        let is_known = self.profile.read_only || self.is_flushed.load(Ordering::Relaxed);
        let what = if is_known { SyncScope::Data } else { SyncScope::AllWriters };
        or_answer!(self.loss.check());
        self.fs.fsync(cx, self.file, what)
    }

    fn flushed(&self, result: Result<()>) -> Result<()> {
        if matches!(result, Err(Error::Io { .. } | Error::NoSpace | Error::QuotaExceeded)) {
            self.loss.occurred();
        }
        if result.is_ok() {
            self.is_flushed.store(true, Ordering::Relaxed);
        }
        result
    }
}

fn truncated() -> Error {
    Error::io("the file is shorter than the disk: it was truncated")
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.fs.release(&self.cx, self.file);
        self.fs.forget(&self.cx, &[(self.file.node, 1)]);
    }
}

impl BlockDevice for FileDisk {
    fn profile(&self) -> Profile {
        self.0.profile
    }

    fn geometry(&self) -> Geometry {
        self.0.bounds.geometry()
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        let wanted = into.len();
        let range = Range { offset, len_bytes: wanted as u64 };
        or_answer!(self.0.bounds.check(range));
        if wanted == 0 {
            return Answer::ok(());
        }
        let (file, cx) = (&self.0, self.0.cx(cx));
        let Geometry { size_bytes, block_bytes, .. } = file.bounds.geometry();
        if range.end() <= size_bytes.saturating_sub(u64::from(block_bytes)) {
            return read_whole(&file.fs, &cx, file.file, offset, into)
                .map_result(move |done| if done?.count >= wanted { Ok(()) } else { Err(truncated()) });
        }
        // The file may end within the last block.
        let (file, rest) = (file.clone(), into.clone());
        read_whole(&self.0.fs, &cx.clone(), file.file, offset, into).then(move |done| {
            match done.count >= wanted {
                true => Answer::ok(()),
                false => file.pad(&cx, offset, done.count, rest),
            }
        })
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        match self.0.bounds.check_change(Range { offset, len_bytes: from.len() as u64 }) {
            Ok(()) if from.is_empty() => Answer::ok(()),
            Ok(()) => self.0.write_all(&self.0.cx(cx), offset, stability, from),
            Err(error) => Answer::err(error),
        }
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        if self.0.profile.read_only { Answer::ok(()) } else { self.0.make_durable(&self.0.cx(cx)) }
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        or_answer!(self.0.bounds.check_change(range));
        self.0.discard(&self.0.cx(cx), range)
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        or_answer!(self.0.bounds.check_change(range));
        self.0.write_zeroes(&self.0.cx(cx), range, how)
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        or_answer!(self.0.bounds.check(range));
        self.0.extents(&self.0.cx(cx), range, count_max)
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }
}

impl Resize for FileDisk {
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()> {
        or_answer!(self.0.bounds.check_new_size(size_bytes));
        let set = SetAttr { size: Some(size_bytes), ..SetAttr::default() };
        let (file, cx) = (self.0.clone(), self.0.cx(cx));
        file.fs.setattr(&cx, file.file.node, Some(file.file), &set).map({
            let file = file.clone();
            move |_| file.bounds.resized(size_bytes)
        })
    }

    fn follow_size(&self, cx: &Ctx) -> Answer<u64> {
        let (file, cx) = (self.0.clone(), self.0.cx(cx));
        file.fs.getattr(&cx, file.file.node, Some(file.file)).map({
            let file = file.clone();
            move |attr| {
                let size_bytes = file.bounds.padded(attr.size);
                file.bounds.resized(size_bytes);
                size_bytes
            }
        })
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        self.0.bounds.watch(watch);
    }
}

//! A raw image or block device as a [`BlockDevice`].

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::block::{
    BlockDevice, Bounds, Extents, FlushLoss, Geometry, OpenOptions, Profile, Range, Resize, SizeWatch,
    Zeroing,
};
use tombolo_core::{Answer, Ctx, Error, Result, Stability, or_answer};
use tombolo_host_runtime::pace::Pace;
use tombolo_host_runtime::thread_pool::Lane;
use tombolo_mem::{Sink, Source};
use tombolo_sys::direct::Alignment;
use tombolo_sys::sync;

use crate::direct::Ring;
use crate::opening;

/// Largest transfer through the page cache on the calling thread (one or two tenths of a millisecond); larger
/// transfers are made in the pool.
pub(crate) const INLINE_BYTES_MAX: usize = 1 << 20;

/// An open image. Any number of front ends may use it concurrently.
pub struct ImageFile {
    pub(crate) image: Arc<Image>,
    pub(crate) lane: Arc<Lane>,
    /// Set for direct I/O, if the system provides an io_uring.
    ring: Option<Ring>,
}

/// State shared with the threads of the pool and of the ring.
pub(crate) struct Image {
    pub(crate) file: File,
    pub(crate) bounds: Bounds,
    /// Alignment of direct I/O; `None` if transfers use the page cache.
    pub(crate) alignment: Option<Alignment>,
    profile: Profile,
    /// `true` if the file is in memory (tmpfs): operations wait for no disk but that of swap space, and there
    /// is nothing to flush.
    pub(crate) in_memory: bool,
    is_block_device: bool,
    pub(crate) write_pace: Pace,
    /// Number of changes counted by [`Image::changed`], and the number of them that are durable.
    changes: AtomicU64,
    durable: AtomicU64,
    loss: FlushLoss,
}

impl ImageFile {
    pub(crate) fn new(
        file: File,
        geometry: Geometry,
        options: &OpenOptions,
        in_memory: bool,
        is_block_device: bool,
        alignment: Option<Alignment>,
        lane: Lane,
    ) -> Self {
        let read_only = options.read_only;
        let profile =
            Profile { read_only, has_cache: !in_memory, discards: !read_only, zeroes_fast: !read_only };
        let ring = alignment.and_then(|_| Ring::new(&file, options));
        let image = Image {
            file,
            bounds: Bounds::new(geometry, read_only),
            alignment,
            profile,
            in_memory,
            is_block_device,
            write_pace: Pace::default(),
            // The count begins at one change, so that the first flush syncs: a killed process may have left
            // changes that are not durable.
            changes: AtomicU64::new(1),
            durable: AtomicU64::new(0),
            loss: FlushLoss::default(),
        };
        Self { image: Arc::new(image), lane: Arc::new(lane), ring }
    }

    pub(crate) fn ring(&self) -> Option<(&Ring, Alignment)> {
        self.ring.as_ref().zip(self.image.alignment)
    }

    /// Runs work that may wait for a disk: in the pool, or on the calling thread if the file is in memory.
    pub(crate) fn in_pool<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce(&Image) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        if self.image.in_memory {
            return work(&self.image).into();
        }
        self.always_in_pool(cx, work)
    }

    pub(crate) fn always_in_pool<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce(&Image) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let image = self.image.clone();
        self.lane.run(cx, move || work(&image))
    }
}

impl Image {
    /// Counts a change that a flush must make durable, unless the file is in memory. Called before the change
    /// is answered.
    pub(crate) fn changed(&self) {
        if !self.in_memory {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns `true` if nothing has changed since the last flush, and no flush has ever failed.
    fn is_durable(&self) -> bool {
        let durable = self.durable.load(Ordering::Acquire);
        durable == self.changes.load(Ordering::Acquire) && !self.loss.has_occurred()
    }

    pub(crate) fn make_durable(&self) -> Result<()> {
        let wanted = self.changes.load(Ordering::Acquire);
        self.loss.guard(|| {
            // Only one flush runs at a time; the previous one may have made these changes durable.
            if self.durable.load(Ordering::Acquire) >= wanted {
                return Ok(());
            }
            let changes = self.changes.load(Ordering::Acquire);
            sync::data(self.file.as_fd())?;
            self.durable.fetch_max(changes, Ordering::AcqRel);
            Ok(())
        })
    }
}

impl BlockDevice for ImageFile {
    fn profile(&self) -> Profile {
        self.image.profile
    }

    fn geometry(&self) -> Geometry {
        self.image.bounds.geometry()
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.transfer_in(cx, offset, into)
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.transfer_out(cx, offset, stability, from)
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        if self.image.in_memory || self.image.is_durable() {
            return Answer::ok(());
        }
        self.always_in_pool(cx, Image::make_durable)
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        or_answer!(self.image.bounds.check_change(range));
        self.in_pool(cx, move |image| image.discard(range))
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        or_answer!(self.image.bounds.check_change(range));
        self.in_pool(cx, move |image| image.write_zeroes(range, how))
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        or_answer!(self.image.bounds.check(range));
        self.in_pool(cx, move |image| image.extents(range, count_max))
    }

    fn submit(&self) {
        if let Some(ring) = &self.ring {
            ring.submit();
        }
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }
}

impl Resize for ImageFile {
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()> {
        if self.image.is_block_device {
            return Answer::err(Error::NotSupported);
        }
        or_answer!(self.image.bounds.check_new_size(size_bytes));
        self.in_pool(cx, move |image| {
            image.file.set_len(size_bytes).map_err(Error::io)?;
            image.changed();
            image.bounds.resized(size_bytes);
            Ok(())
        })
    }

    fn follow_size(&self, cx: &Ctx) -> Answer<u64> {
        self.in_pool(cx, |image| {
            let found = opening::size_of(&image.file).map_err(Error::io)?;
            let size_bytes = match image.is_block_device {
                true => found - found % u64::from(image.bounds.geometry().block_bytes),
                false => image.bounds.padded(found),
            };
            image.bounds.resized(size_bytes);
            Ok(size_bytes)
        })
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        self.image.bounds.watch(watch);
    }
}

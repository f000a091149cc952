//! The image as a block device.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tombolo_core::block::{
    BlockDevice, Extents, Geometry, Profile, Range, Resize, SizeWatch, Sizes, Zeroing,
};
use tombolo_core::{Answer, Ctx, Error, Result, Stability};
use tombolo_host_runtime::pace::Pace;
use tombolo_host_runtime::thread_pool::Lane;
use tombolo_mem::{Sink, Source};
use tombolo_sys::sync;

use crate::opening;

/// At most so much is copied at once (a tenth of a millisecond or two); more goes to the pool.
pub(crate) const AT_ONCE_BYTES: usize = 1 << 20;

/// An open image. Any number of front ends may use it at once.
pub struct ImageFile {
    pub(crate) image: Arc<Image>,
    lane: Lane,
}

/// What the pool's threads need of it.
pub(crate) struct Image {
    pub(crate) file: File,
    /// All but the size.
    geometry: Geometry,
    size_bytes: AtomicU64,
    profile: Profile,
    /// The file is in memory: nothing waits for a disk, and nothing can be made durable.
    pub(crate) in_memory: bool,
    is_block_device: bool,
    pub(crate) write_pace: Pace,
    /// Changes that have been made, and how many of them are durable.
    changes: AtomicU64,
    durable: AtomicU64,
    /// A flush has failed: nothing says what was lost.
    has_lost: AtomicBool,
    sizes: Sizes,
}

impl ImageFile {
    pub(crate) fn new(
        file: File,
        geometry: Geometry,
        read_only: bool,
        in_memory: bool,
        is_block_device: bool,
        lane: Lane,
    ) -> Self {
        let profile =
            Profile { read_only, has_cache: !in_memory, discards: !read_only, zeroes_fast: !read_only };
        let image = Image {
            file,
            size_bytes: AtomicU64::new(geometry.size_bytes),
            geometry,
            profile,
            in_memory,
            is_block_device,
            write_pace: Pace::default(),
            changes: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            has_lost: AtomicBool::new(false),
            sizes: Sizes::default(),
        };
        Self { image: Arc::new(image), lane }
    }

    /// Has what may wait for a disk done by the pool; where there is no disk, at once.
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
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Acquire), ..self.geometry }
    }

    /// Whether it may be changed there.
    pub(crate) fn check_change(&self, range: Range) -> Result<()> {
        if self.profile.read_only {
            return Err(Error::ReadOnly);
        }
        self.check(range)
    }

    /// Whether it is inside of the disk.
    pub(crate) fn check(&self, range: Range) -> Result<()> {
        let size_bytes = self.size_bytes.load(Ordering::Acquire);
        range.checked_end().filter(|end| *end <= size_bytes).map(|_| ()).ok_or(Error::InvalidArgument)
    }

    /// A change has been made, which a flush is to make durable. Said before it is answered.
    pub(crate) fn changed(&self) {
        if !self.in_memory {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether nothing was changed since it was made durable last.
    fn is_durable(&self) -> bool {
        let durable = self.durable.load(Ordering::Acquire);
        durable == self.changes.load(Ordering::Acquire) && !self.has_lost.load(Ordering::Acquire)
    }

    /// Makes durable all changes that were made before. What a flush has lost once is lost: fsync(2) tells of it only one time.
    pub(crate) fn make_durable(&self) -> Result<()> {
        if self.has_lost.load(Ordering::Acquire) {
            return Err(Error::io("an earlier flush has failed: what was written before it may be lost"));
        }
        let changes = self.changes.load(Ordering::Acquire);
        if let Err(errno) = sync::data(self.file.as_fd()) {
            self.has_lost.store(true, Ordering::Release);
            return Err(errno.into());
        }
        self.durable.fetch_max(changes, Ordering::AcqRel);
        Ok(())
    }

    fn resized(&self, size_bytes: u64) {
        if self.size_bytes.swap(size_bytes, Ordering::AcqRel) != size_bytes {
            self.sizes.changed(size_bytes);
        }
    }
}

impl BlockDevice for ImageFile {
    fn profile(&self) -> Profile {
        self.image.profile
    }

    fn geometry(&self) -> Geometry {
        self.image.geometry()
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
        if let Err(error) = self.image.check_change(range) {
            return Answer::err(error);
        }
        self.in_pool(cx, move |image| image.discard(range))
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        if let Err(error) = self.image.check_change(range) {
            return Answer::err(error);
        }
        self.in_pool(cx, move |image| image.write_zeroes(range, how))
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        if let Err(error) = self.image.check(range) {
            return Answer::err(error);
        }
        self.in_pool(cx, move |image| image.extents(range, count_max))
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }
}

impl Resize for ImageFile {
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()> {
        if self.image.profile.read_only {
            return Answer::err(Error::ReadOnly);
        }
        if self.image.is_block_device {
            return Answer::err(Error::NotSupported);
        }
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(self.image.geometry.block_bytes)) {
            return Answer::err(Error::InvalidArgument);
        }
        self.in_pool(cx, move |image| {
            image.file.set_len(size_bytes).map_err(Error::io)?;
            image.changed();
            image.resized(size_bytes);
            Ok(())
        })
    }

    fn follow_size(&self, cx: &Ctx) -> Answer<u64> {
        self.in_pool(cx, |image| {
            let size_bytes = opening::size_of(&image.file).map_err(Error::io)?;
            let size_bytes = size_bytes - size_bytes % u64::from(image.geometry.block_bytes);
            image.resized(size_bytes);
            Ok(size_bytes)
        })
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        self.image.sizes.watch(watch);
    }
}

//! A qcow2 image as a block device.
//!
//! The format is implemented by the crate imago. It cannot tell which requests would block, so all requests
//! that use it go to the pool; data is copied once more, because imago takes no memory that a guest can
//! change concurrently.

mod chain;
mod check;
mod header;
mod opening;
mod tables;

use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use imago::file::File as Storage;
use imago::format::PreallocateMode;
use imago::{FormatAccess, Mapping};
use tombolo_core::block::{
    Allocation, BlockDevice, Bounds, Extents, FlushLoss, Geometry, Profile, Range, Resize, SizeWatch, Zeroing,
};
use tombolo_core::{Answer, Ctx, Error, Result, Stability, or_answer};
use tombolo_host_runtime::thread_pool::Lane;
use tombolo_mem::{Sink, Source};

pub use chain::ChainLink;
pub use check::{Checked, Damage};
pub use header::Unsupported;
pub use opening::Qcow2OpenError;

/// Maximum size of the buffer through which data is copied to and from imago, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Maximum cluster size in bytes (the qcow2 specification, `cluster_bits`; QEMU's limit).
const CLUSTER_BYTES_MAX: u64 = 2 << 20;

/// An open qcow2 image with its backing files. Any number of front ends may use it concurrently.
pub struct Qcow2Image {
    image: Arc<Image>,
    lane: Lane,
}

/// State shared with the pool's threads.
struct Image {
    /// Locked exclusively by discards, by zeroing that may unmap, and by resizing.
    format: RwLock<FormatAccess<Storage>>,
    profile: Profile,
    bounds: Bounds,
    loss: FlushLoss,
    /// `true` once imago has panicked: its state of the image must not be written.
    is_broken: AtomicBool,
}

impl Qcow2Image {
    fn new(format: FormatAccess<Storage>, geometry: Geometry, read_only: bool, lane: Lane) -> Self {
        let profile = Profile { read_only, has_cache: true, discards: !read_only, zeroes_fast: !read_only };
        let image = Image {
            format: RwLock::new(format),
            profile,
            bounds: Bounds::new(geometry, read_only),
            loss: FlushLoss::default(),
            is_broken: AtomicBool::new(false),
        };
        Self { image: Arc::new(image), lane }
    }

    fn in_pool<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce(&Image) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let image = self.image.clone();
        self.lane.run(cx, move || image.unless_broken(work))
    }

    /// Runs a change of this range in the pool, if the image is writable and contains the range. An empty
    /// range is answered at once.
    fn change(
        &self,
        cx: &Ctx,
        range: Range,
        work: impl FnOnce(&Image) -> Result<()> + Send + 'static,
    ) -> Answer<()> {
        or_answer!(self.image.bounds.check_change(range));
        if range.len_bytes == 0 { Answer::ok(()) } else { self.in_pool(cx, work) }
    }
}

impl Image {
    fn shared(&self) -> RwLockReadGuard<'_, FormatAccess<Storage>> {
        self.format.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, FormatAccess<Storage>> {
        self.format.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` unless the image is broken. imago panics on some kinds of damage; the image is then
    /// unusable.
    fn unless_broken<T>(&self, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let broken = || Error::io("the image is damaged: run qemu-img check");
        if self.is_broken.load(Ordering::Acquire) {
            return Err(broken());
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        outcome.unwrap_or_else(|_| {
            self.is_broken.store(true, Ordering::Release);
            Err(broken())
        })
    }

    fn read(&self, mut offset: u64, mut into: Sink) -> Result<()> {
        let mut piece = vec![0; into.len().min(PIECE_BYTES)];
        while !into.is_empty() {
            let part = &mut piece[..into.len().min(PIECE_BYTES)];
            self.shared().read(&mut *part, offset).map_err(failed)?;
            into.write_at(0, part);
            offset += part.len() as u64;
            into.advance(part.len());
        }
        Ok(())
    }

    fn write(&self, mut offset: u64, stability: Stability, mut from: Source) -> Result<()> {
        let mut piece = vec![0; from.len().min(PIECE_BYTES)];
        while !from.is_empty() {
            let part = &mut piece[..from.len().min(PIECE_BYTES)];
            from.read_at(0, part);
            self.shared().write(&*part, offset).map_err(failed)?;
            offset += part.len() as u64;
            from.advance(part.len());
        }
        self.as_stable_as(stability)
    }

    fn as_stable_as(&self, stability: Stability) -> Result<()> {
        if stability == Stability::Unstable { Ok(()) } else { self.make_durable() }
    }

    /// Makes data and tables durable.
    fn make_durable(&self) -> Result<()> {
        self.loss.guard(|| {
            let format = self.shared();
            format.flush().and_then(|()| format.sync()).map_err(failed)
        })
    }

    fn discard(&self, range: Range) -> Result<()> {
        match self.exclusive().discard_to_any(range.offset, range.len_bytes) {
            // An image of version 2 has no discard. A discard is only a hint, so the data may stay.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            result => result.map_err(failed),
        }
    }

    fn write_zeroes(&self, range: Range, how: Zeroing) -> Result<()> {
        let Range { offset, len_bytes } = range;
        let zeroed = match how.may_unmap {
            true => self.exclusive().discard_to_zero(offset, len_bytes),
            false => self.shared().write_zeroes(offset, len_bytes),
        };
        match zeroed {
            Err(error) if error.kind() == ErrorKind::Unsupported && how.only_fast => {
                return Err(Error::NotSupported);
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => self.zero_by_writing(range)?,
            result => result.map_err(failed)?,
        }
        self.as_stable_as(how.stability)
    }

    fn zero_by_writing(&self, range: Range) -> Result<()> {
        let zeroes = vec![0; range.len_bytes.min(PIECE_BYTES as u64) as usize];
        let mut offset = range.offset;
        while offset < range.end() {
            let part = &zeroes[..(range.end() - offset).min(PIECE_BYTES as u64) as usize];
            self.shared().write(part, offset).map_err(failed)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn extents(&self, range: Range, count_max: usize) -> Result<Extents> {
        let format = self.shared();
        let mut extents = Extents::new(range, count_max);
        let mut goes_on = range.len_bytes > 0;
        while goes_on {
            let at = extents.next_offset();
            let (mapping, len) = format.get_mapping(at, range.end() - at).map_err(failed)?;
            let allocation = match mapping {
                Mapping::Zero { .. } | Mapping::Eof { .. } => Allocation::Hole,
                _ => Allocation::Data,
            };
            // A length of zero means the end of the image, which nothing follows.
            goes_on = extents.push(if len == 0 { u64::MAX } else { len }, allocation);
        }
        Ok(extents)
    }

    fn set_size(&self, size_bytes: u64) -> Result<()> {
        // The part of a cluster beyond the new end stays in the file and would reappear after growing, so it
        // is zeroed first.
        let cut = self.bounds.size_bytes().saturating_sub(size_bytes);
        self.zero_by_writing(Range { offset: size_bytes, len_bytes: cut.min(CLUSTER_BYTES_MAX) })?;
        self.exclusive().resize(size_bytes, PreallocateMode::None).map_err(failed)?;
        self.bounds.resized(size_bytes);
        Ok(())
    }
}

fn failed(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::StorageFull => Error::NoSpace,
        ErrorKind::QuotaExceeded => Error::QuotaExceeded,
        _ => Error::io(error),
    }
}

impl BlockDevice for Qcow2Image {
    fn profile(&self) -> Profile {
        self.image.profile
    }

    fn geometry(&self) -> Geometry {
        self.image.bounds.geometry()
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        or_answer!(self.image.bounds.check(Range { offset, len_bytes: into.len() as u64 }));
        self.in_pool(cx, move |image| image.read(offset, into))
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        let range = Range { offset, len_bytes: from.len() as u64 };
        self.change(cx, range, move |image| image.write(offset, stability, from))
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        if self.image.profile.read_only {
            return Answer::ok(());
        }
        self.in_pool(cx, Image::make_durable)
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.change(cx, range, move |image| image.discard(range))
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.change(cx, range, move |image| image.write_zeroes(range, how))
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        or_answer!(self.image.bounds.check(range));
        self.in_pool(cx, move |image| image.extents(range, count_max))
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }
}

impl Resize for Qcow2Image {
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()> {
        or_answer!(self.image.bounds.check_new_size(size_bytes));
        self.in_pool(cx, move |image| image.set_size(size_bytes))
    }

    /// Returns the size unchanged: only this server resizes the image.
    fn follow_size(&self, _cx: &Ctx) -> Answer<u64> {
        Answer::ok(self.image.bounds.size_bytes())
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        self.image.bounds.watch(watch);
    }
}

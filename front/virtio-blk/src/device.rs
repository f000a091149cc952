//! The virtio-blk device: dispatch of a guest's requests to the disk.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::block::{BlockDevice, Profile, Range, SECTOR_BYTES, SizeWatch, Zeroing};
use tombolo_core::{Answer, Ctx, Error, Result, SessionId, Stability, lock};
use tombolo_host_runtime::task;
use tombolo_host_vhost::{Chain, ChainLimits, ConfigChange, Device, QueueIndex};
use tombolo_mem::{Sink, Source};

use crate::config::{self, Features, RANGE_SECTORS_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX, WRITEBACK_OFFSET};
use crate::request::{FLAG_UNMAP, Request, SERIAL_BYTES_MAX, Segment, kind};

/// Device options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name in the log and of threads.
    pub name: String,
    /// Serial number, visible in `/dev/disk/by-id/virtio-…`; at most [`SERIAL_BYTES_MAX`] bytes.
    pub serial: String,
    /// Number of queues; at least one.
    pub queues: u16,
}

/// Error of [`VirtioBlk::new`].
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The serial number is too long.
    #[error("a serial number must have at most {SERIAL_BYTES_MAX} bytes, but this one has {bytes}")]
    Serial {
        /// Length of the serial number in bytes.
        bytes: usize,
    },
}

/// A virtio-blk device for one guest. Several devices may share a disk.
pub struct VirtioBlk {
    disk: Arc<dyn BlockDevice>,
    profile: Profile,
    options: Options,
    cx: Ctx,
    /// Features accepted by the driver.
    negotiated: AtomicU64,
    /// `true` in write-back cache mode: at first, if the disk has a cache; then as the driver selects.
    writeback: AtomicBool,
    /// Watcher of the disk's size, registered for as long as this reference exists.
    watch: Mutex<Option<Arc<SizeWatch>>>,
}

impl VirtioBlk {
    /// Creates a device that serves `disk` in its own session.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn new(
        disk: Arc<dyn BlockDevice>,
        mut options: Options,
        session: SessionId,
    ) -> std::result::Result<Self, DeviceError> {
        let bytes = options.serial.len();
        if bytes > SERIAL_BYTES_MAX {
            return Err(DeviceError::Serial { bytes });
        }
        options.queues = options.queues.max(1);
        let profile = disk.profile();
        Ok(Self {
            disk,
            profile,
            options,
            cx: Ctx::root(session),
            negotiated: AtomicU64::new(0),
            writeback: AtomicBool::new(profile.has_cache),
            watch: Mutex::default(),
        })
    }

    fn perform(&self, kind: u32, sector: u64, payload: Source, space: Sink) -> Answer<()> {
        let outcome = match kind {
            kind::IN => self
                .range(sector, space.len() as u64)
                .map(|range| self.disk.read(&self.cx, range.offset, space)),
            kind::OUT => self
                .range(sector, payload.len() as u64)
                .map(|range| self.disk.write(&self.cx, range.offset, self.stability(), payload)),
            kind::FLUSH => Ok(self.disk.flush(&self.cx)),
            kind::GET_ID => Ok(self.identify(&space)),
            kind::DISCARD if self.profile.discards => self.discard(&payload),
            kind::WRITE_ZEROES => self.write_zeroes(&payload),
            _ => Err(Error::NotSupported),
        };
        outcome.unwrap_or_else(Answer::err)
    }

    fn range(&self, sector: u64, len_bytes: u64) -> Result<Range> {
        let offset = sector.checked_mul(u64::from(SECTOR_BYTES)).ok_or(Error::InvalidArgument)?;
        Ok(self.disk.geometry().check(offset, len_bytes)?)
    }

    /// Returns the stability of writes: to a disk with a cache, an answered write must be stable if FLUSH was
    /// not negotiated or the driver has turned the cache off (§5.2.6.2).
    fn stability(&self) -> Stability {
        let negotiated = Features::from_bits_retain(self.negotiated.load(Ordering::Relaxed));
        let is_off = negotiated.contains(Features::CONFIG_WCE) && !self.writeback.load(Ordering::Relaxed);
        if self.profile.has_cache && (is_off || !negotiated.contains(Features::FLUSH)) {
            Stability::DataSync
        } else {
            Stability::Unstable
        }
    }

    fn identify(&self, space: &Sink) -> Answer<()> {
        let mut serial = [0; SERIAL_BYTES_MAX];
        serial.iter_mut().zip(self.options.serial.bytes()).for_each(|(place, byte)| *place = byte);
        space.write_at(0, &serial);
        Answer::ok(())
    }

    fn discard(&self, payload: &Source) -> Result<Answer<()>> {
        let segment = Segment::only(payload)?;
        // A discard always unmaps, but setting the unmap flag in it is an error (§5.2.6.2).
        if segment.flags != 0 {
            return Err(Error::NotSupported);
        }
        Ok(self.disk.discard(&self.cx, self.range_of(&segment)?))
    }

    fn write_zeroes(&self, payload: &Source) -> Result<Answer<()>> {
        let segment = Segment::only(payload)?;
        if segment.flags & !FLAG_UNMAP != 0 {
            return Err(Error::NotSupported);
        }
        let may_unmap = segment.flags & FLAG_UNMAP != 0;
        let how = Zeroing { may_unmap, only_fast: false, stability: self.stability() };
        Ok(self.disk.write_zeroes(&self.cx, self.range_of(&segment)?, how))
    }

    fn range_of(&self, segment: &Segment) -> Result<Range> {
        if segment.sectors > RANGE_SECTORS_MAX {
            return Err(Error::InvalidArgument);
        }
        self.range(segment.sector, u64::from(segment.sectors) * u64::from(SECTOR_BYTES))
    }
}

impl Device for VirtioBlk {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn features(&self) -> u64 {
        Features::of(self.profile).bits()
    }

    /// Returns `true`: an unanswered request may be repeated with the same effect.
    fn repeats_requests(&self) -> bool {
        true
    }

    fn can_migrate(&self) -> bool {
        true
    }

    fn config(&self) -> Cow<'_, [u8]> {
        let writeback = self.writeback.load(Ordering::Relaxed);
        Cow::Owned(
            config::space(&self.disk.geometry(), self.profile, self.options.queues, writeback).to_vec(),
        )
    }

    fn set_config_change(&self, change: ConfigChange) {
        let Some(resize) = self.disk.resize() else { return };
        let watch: Arc<SizeWatch> = Arc::new(move |_| change.notify());
        resize.watch(&watch);
        *lock(&self.watch) = Some(watch);
    }

    fn write_config(&self, offset: u32, bytes: &[u8]) {
        let at = WRITEBACK_OFFSET.checked_sub(offset).and_then(|at| bytes.get(at as usize));
        if let Some(writeback) = at.filter(|_| self.profile.has_cache) {
            self.writeback.store(*writeback != 0, Ordering::Relaxed);
        }
    }

    fn queue_count(&self) -> u16 {
        self.options.queues
    }

    /// Returns limits for the largest offered request: its data segments, and a page for header and status.
    fn limits(&self) -> ChainLimits {
        ChainLimits { bytes_max: SEGMENTS_MAX * SEGMENT_BYTES_MAX + 4096, ..ChainLimits::default() }
    }

    fn negotiated(&self, features: u64) {
        self.negotiated.store(features, Ordering::Relaxed);
    }

    fn handle(&self, _queue: QueueIndex, chain: Chain) {
        let Some(Request { kind, sector, payload, space, reply }) = Request::receive(chain) else { return };
        match self.perform(kind, sector, payload, space) {
            Answer::Done(result) => reply.send(&result),
            Answer::Later(later) => task::spawn(async move { reply.send(&later.await) }),
        }
    }

    fn batch_handled(&self, _queue: QueueIndex) {
        self.disk.submit();
    }
}

impl std::fmt::Debug for VirtioBlk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtioBlk").field("options", &self.options).finish_non_exhaustive()
    }
}

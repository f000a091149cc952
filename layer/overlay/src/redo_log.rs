//! Creating and opening a redo log, and making it durable.

use std::sync::Arc;

use async_lock::Mutex;
use tombolo_core::block::{BlockDevice, Bounds, Geometry, OpenOptions, Profile, SECTOR_BYTES};
use tombolo_core::{Answer, Ctx, Result, Stability};
use tombolo_host_runtime::{task, to_its_end};
use tombolo_mem::{Buffer, Source};

use crate::disk::{Overlay, all};
use crate::kept::StateMemory;
use crate::layout::{self, BLOCK_BYTES, PAGE_BYTES, SEGMENT_BYTES};
use crate::states::{BlockState, States};
use crate::{Header, OverlayError};

/// Number of pages read concurrently, to hide the latency of remote disks.
const PAGES_AT_ONCE: u64 = 64;

/// Number of locks for concurrent changes of blocks.
pub(crate) const LOCKS: usize = 64;

/// State of an overlay, shared by its requests.
pub(crate) struct RedoLog {
    pub(crate) base: Arc<dyn BlockDevice>,
    /// Number of bytes of the base that the overlay uses; beyond them, blocks not written are zeroes.
    pub(crate) base_bytes: u64,
    pub(crate) log: Arc<dyn BlockDevice>,
    /// Size of the disk in bytes, a multiple of its block size.
    pub(crate) size_bytes: u64,
    pub(crate) states: States,
    /// `true` if the overlay was sealed when opened.
    is_sealed: bool,
    pub(crate) bounds: Bounds,
    /// Locks of blocks that are written for the first time or zeroed, by block number modulo [`LOCKS`].
    pub(crate) locks: [Mutex<()>; LOCKS],
    /// Locked while dirty pages are taken and written, and while a flush checks that there are none.
    flushing: Mutex<()>,
}

async fn read(disk: &dyn BlockDevice, cx: &Ctx, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut buffer = Buffer::new(len);
    let answer = disk.read(cx, offset, buffer.sink(0..len));
    disk.submit();
    answer.resolve().await?;
    Ok(buffer.as_slice().unwrap_or_default().to_vec())
}

async fn write(disk: &dyn BlockDevice, cx: &Ctx, offset: u64, bytes: Vec<u8>) -> Result<()> {
    let answer = disk.write(cx, offset, Stability::Unstable, Source::from(bytes));
    disk.submit();
    answer.resolve().await
}

pub(crate) async fn flush(disk: &dyn BlockDevice, cx: &Ctx) -> Result<()> {
    let answer = disk.flush(cx);
    disk.submit();
    answer.resolve().await
}

impl Header {
    /// Returns the length of a redo log with this header, in bytes.
    pub fn log_bytes(&self) -> u64 {
        layout::len_bytes(self.size_bytes)
    }

    /// Initializes `log`, which must read as zeroes, as an empty redo log, durably.
    pub async fn write_to(&self, cx: &Ctx, log: &dyn BlockDevice) -> std::result::Result<(), OverlayError> {
        check_length(self, log)?;
        write(log, cx, 0, self.to_page()?).await?;
        Ok(flush(log, cx).await?)
    }

    /// Reads the header of `log`, and verifies its checksum.
    pub async fn read_from(cx: &Ctx, log: &dyn BlockDevice) -> std::result::Result<Self, OverlayError> {
        if log.geometry().size_bytes < PAGE_BYTES {
            return Err(OverlayError::NotAnOverlay);
        }
        Self::from_page(&read(log, cx, 0, PAGE_BYTES as usize).await?)
    }
}

fn check_length(header: &Header, log: &dyn BlockDevice) -> std::result::Result<(), OverlayError> {
    let (found, wanted) = (log.geometry().size_bytes, header.log_bytes());
    if found < wanted { Err(OverlayError::TooShort { found, wanted }) } else { Ok(()) }
}

/// Returns `true` if length and fingerprint are those of the base at the overlay's creation. Earlier versions
/// ignored a partial sector at a file's end: such a base is one sector longer now, and that sector is
/// ignored.
fn is_base(header: &Header, base_bytes: u64, mark: &[u8]) -> bool {
    let is_padded =
        !mark.is_empty() && base_bytes.checked_sub(SECTOR_BYTES.into()) == Some(header.base_bytes);
    header.base_mark == mark && (is_padded || base_bytes == header.base_bytes)
}

/// Returns the states of all blocks: those that an earlier process left in `kept`, else those in the log.
async fn states_of(
    cx: &Ctx,
    header: &Header,
    log: &dyn BlockDevice,
    kept: Option<StateMemory>,
) -> std::result::Result<States, OverlayError> {
    let states = States::new(header.size_bytes, kept.clone());
    if let Some(kept) = &kept
        && kept.holds(header)?
    {
        states.adopt_retained();
        return Ok(states);
    }
    for first in (0..states.segments()).step_by(PAGES_AT_ONCE as usize) {
        let segments = first..states.segments().min(first + PAGES_AT_ONCE);
        let mut pages: Vec<_> = segments.map(|segment| (segment, Buffer::new(PAGE_BYTES as usize))).collect();
        let asked = pages.iter().map(|(segment, page)| {
            log.read(cx, layout::page_at(*segment), page.sink(0..PAGE_BYTES as usize))
        });
        let asked = all(asked.collect());
        log.submit();
        asked.resolve().await?;
        for (segment, page) in &mut pages {
            states.load(*segment, page.as_slice().unwrap_or_default())?;
        }
    }
    if header.seal.is_some_and(|seal| seal != states.sum()) {
        return Err(OverlayError::Torn);
    }
    kept.iter().try_for_each(|kept| kept.begin(header))?;
    Ok(states)
}

impl Overlay {
    /// Opens the redo log `log` over `base`. `base_mark` is the base's present fingerprint; the overlay is
    /// refused if it differs from the one in the header. The caller must ensure that no other program writes
    /// to `log` or `base`. With `kept`, the states outlive the process in this memory, which must belong to
    /// this redo log: the next process that opens it finds unflushed changes.
    pub async fn open(
        cx: &Ctx,
        base: Arc<dyn BlockDevice>,
        base_mark: &[u8],
        log: Arc<dyn BlockDevice>,
        options: &OpenOptions,
        kept: Option<StateMemory>,
    ) -> std::result::Result<Arc<Self>, OverlayError> {
        let header = Header::read_from(cx, &*log).await?;
        check_length(&header, &*log)?;
        if !is_base(&header, base.geometry().size_bytes, base_mark) {
            return Err(OverlayError::BaseChanged);
        }
        if header.seal.is_some() && !options.read_only {
            return Err(OverlayError::Sealed);
        }
        // A first write completes its block with data of the base, which are read in blocks of the base.
        let base_block_bytes = base.geometry().block_bytes;
        if u64::from(base_block_bytes) > BLOCK_BYTES {
            return Err(OverlayError::BaseBlocks { found: base_block_bytes, max: BLOCK_BYTES });
        }
        let block_bytes = options.block_bytes.max(base_block_bytes);
        // The redo log has space for whole blocks of its own.
        let geometry = Geometry::of_file(header.size_bytes).in_blocks(block_bytes.min(BLOCK_BYTES as u32));
        let geometry = geometry?.in_whole_blocks(block_bytes)?;
        let states = states_of(cx, &header, &*log, kept).await?;
        let read_only = options.read_only || log.profile().read_only;
        Ok(Arc::new(Self(Arc::new(RedoLog {
            base,
            base_bytes: header.base_bytes,
            log,
            size_bytes: geometry.size_bytes,
            states,
            is_sealed: header.seal.is_some(),
            bounds: Bounds::new(geometry, read_only),
            locks: [const { Mutex::new(()) }; LOCKS],
            flushing: Mutex::new(()),
        }))))
    }
}

impl Overlay {
    /// Returns `true` if the overlay was sealed when opened.
    pub fn is_sealed(&self) -> bool {
        self.0.is_sealed
    }

    /// Makes the overlay durable and seals it: from the next opening on it is read-only, and changed pages of
    /// states are detected. The header with the seal is written last, so that an incomplete copy is not
    /// mistaken for the whole. The caller must not write to the overlay meanwhile.
    pub async fn seal(&self, cx: &Ctx) -> std::result::Result<(), OverlayError> {
        let RedoLog { log, states, .. } = &*self.0;
        self.0.make_durable(cx).resolve().await?;
        let header = Header { seal: Some(states.sum()), ..Header::read_from(cx, &**log).await? };
        write(&**log, cx, 0, header.to_page()?).await?;
        Ok(flush(&**log, cx).await?)
    }
}

/// Source of a part of the disk: an offset in the base or the redo log, or zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Base(u64),
    Log(u64),
    Zero,
}

impl RedoLog {
    pub(crate) fn profile(&self) -> Profile {
        let read_only = self.bounds.is_read_only();
        Profile { read_only, has_cache: true, discards: !read_only, zeroes_fast: !read_only }
    }

    /// Returns the source of the disk's bytes from `offset` on, and the number of bytes that are contiguous
    /// in that source, at most up to `end`.
    pub(crate) fn locate(&self, offset: u64, end: u64) -> (Location, u64) {
        let (state, run_end) = self.states.run(offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        let end = end.min(run_end * BLOCK_BYTES);
        let len = end - offset;
        match state {
            BlockState::Log => {
                let in_segment = SEGMENT_BYTES - offset % SEGMENT_BYTES;
                (Location::Log(layout::data_at(offset)), len.min(in_segment))
            }
            BlockState::Base if offset < self.base_bytes => {
                (Location::Base(offset), len.min(self.base_bytes - offset))
            }
            BlockState::Base | BlockState::Zero => (Location::Zero, len),
        }
    }

    /// Makes all answered changes durable.
    pub(crate) fn make_durable(self: &Arc<Self>, cx: &Ctx) -> Answer<()> {
        // A concurrent flush may have taken dirty pages and not written them yet, so no flush may begin
        // during this check.
        let clean = task::defer_woken_tasks(|| {
            let _alone = self.flushing.try_lock()?;
            (!self.states.is_dirty()).then(|| self.log.flush(cx))
        });
        if let Some(answer) = clean {
            return answer;
        }
        let (redo, cx) = (self.clone(), cx.clone());
        to_its_end(async move {
            let _alone = redo.flushing.lock().await;
            let pages = redo.states.take_dirty();
            let written = redo.write_pages(&cx, &pages).await;
            if written.is_err() {
                redo.states.mark_dirty(&pages);
            }
            written
        })
    }

    /// Writes the data first, then the pages that refer to it.
    async fn write_pages(&self, cx: &Ctx, pages: &[(u64, Vec<u8>)]) -> Result<()> {
        flush(&*self.log, cx).await?;
        if pages.is_empty() {
            return Ok(());
        }
        for (segment, bytes) in pages {
            write(&*self.log, cx, layout::page_at(*segment), bytes.clone()).await?;
        }
        flush(&*self.log, cx).await
    }
}

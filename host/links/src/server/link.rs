//! State of one link, shared by its thread and its responders.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tombolo_core::lock;
use tombolo_mem::{LINE_BYTES, LinesMut, OutOfBounds, Source};
use tombolo_shm::address::{AddressError, BaseTable, Domain, GlobalAddress};
use tombolo_shm::doorbell::{Nudger, Ringer};
use tombolo_shm::link::{Ends, Extent, FRAME_BYTES, Features, Layout};
use tombolo_shm::ring::{Message, Prefetch, Producer};

use super::common::Common;
use super::counters::{Counters, Counts};
use super::service::Session;
use crate::end::{EndReason, EndState, ProtocolError};
use crate::forwarding::ForwardedRegions;

const LINES_PER_BUFFER: usize = FRAME_BYTES as usize / LINE_BYTES;
/// Number of cache lines prefetched in an answer's buffer: enough for a file's attributes.
const LINES_AHEAD: usize = 2;

/// One link. Its last owner, mostly its thread or a responder, frees its memory and drops the session.
pub(super) struct Link {
    pub(super) label: Arc<str>,
    pub(super) session: Arc<dyn Session>,
    pub(super) outcome: Arc<EndState>,
    pub(super) bases: BaseTable,
    /// Regions that the client has forwarded, if permitted.
    pub(super) forwarded_regions: OnceLock<Arc<ForwardedRegions>>,
    pub(super) counters: Counters,
    pub(super) layout: Layout,
    pub(super) features: Features,
    pub(super) peer: Extent,
    own: Extent,
    /// Prefetch of the next answer's slot.
    prefetch: Prefetch,
    /// Buffers of answers, as cache lines.
    buffers: LinesMut,
    producer: Mutex<Producer>,
    ringer: Ringer,
    /// Waker of the link's thread, for the end of the link.
    nudger: Nudger,
    /// For each buffer, `true` while its request is unanswered.
    outstanding: Box<[AtomicBool]>,
    common: Arc<Common>,
    /// Object that lives as long as the link, such as its permit. It is the last field, and so dropped last.
    pub(super) retained: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Link {
    pub(super) fn new(
        ends: &Ends,
        label: Arc<str>,
        session: Arc<dyn Session>,
        nudger: Nudger,
        common: Arc<Common>,
    ) -> Result<Self, OutOfBounds> {
        let layout = ends.layout;
        let producer = Producer::at(&ends.own, layout.ring_offset(), layout.slots(), ends.epoch)?;
        let ringer = Ringer::of(ends)?;
        let buffers = buffers(ends)?;
        common.totals.opened();
        Ok(Self {
            label,
            session,
            outcome: Arc::default(),
            bases: BaseTable::of_link(ends),
            forwarded_regions: OnceLock::new(),
            counters: Counters::default(),
            layout,
            features: ends.features,
            peer: ends.peer.clone(),
            own: ends.own.clone(),
            prefetch: producer.prefetch(),
            buffers,
            producer: Mutex::new(producer),
            ringer,
            nudger,
            outstanding: (0..layout.slots()).map(|_| AtomicBool::new(false)).collect(),
            common,
            retained: OnceLock::new(),
        })
    }

    /// Marks a request as outstanding. Returns an error if the previous one in the same buffer is unanswered.
    /// Called on the link's thread only.
    ///
    /// Since every id names a buffer, this also limits the requests outstanding.
    #[inline]
    pub(super) fn take(&self, id: u32) -> Result<(), ProtocolError> {
        let outstanding = self.outstanding_flag(id);
        if outstanding.load(Ordering::Acquire) {
            return Err(ProtocolError::StillOutstanding { id });
        }
        // Only this thread sets the flag, so no atomic exchange is needed.
        outstanding.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Prefetches the memory of the answer to a request likely to be answered soon: the transfer from the
    /// client's cache takes a while.
    #[inline]
    pub(super) fn fetch_ahead(&self, id: u32) {
        self.prefetch.fetch();
        let first = self.index(id) as usize * LINES_PER_BUFFER;
        (first..first + LINES_AHEAD).for_each(|line| self.buffers.claim(line));
    }

    #[inline]
    pub(super) fn is_outstanding(&self, id: u32) -> bool {
        self.outstanding_flag(id).load(Ordering::Relaxed)
    }

    /// Returns bulk memory of any registered domain, for reading.
    #[inline]
    pub(super) fn source(&self, address: GlobalAddress, len_bytes: u64) -> Result<Source, AddressError> {
        match self.forwarded_regions.get() {
            Some(forwarded_regions) if address.domain() >= Domain::FIRST_OTHER => {
                forwarded_regions.source(address, len_bytes)
            }
            _ => self.bases.source(address, len_bytes),
        }
    }

    /// Returns the first `len_bytes` of a request's buffer in the peer's memory, at most its capacity.
    pub(super) fn frame(&self, id: u32, len_bytes: usize) -> Source {
        let len = len_bytes.min(FRAME_BYTES as usize);
        let at = self.layout.buffer_offset(self.index(id)).unwrap_or(u64::MAX);
        let mut source = Source::new();
        if let Ok(place) = self.peer.place(at, len as u64) {
            // Pushing does not fail, because the layout was checked against the region's length.
            let _ = source.push(self.peer.region(), place, len);
        }
        source
    }

    /// Sends an answer. Wakes the client if it sleeps, unless the answer is quiet: the client does not wait
    /// for a quiet one, and finds it together with a later one.
    #[inline]
    pub(super) fn answer(&self, id: u32, kind: u32, body: [u8; 48], frame: &[u8], is_quiet: bool) {
        if self.outcome.is_over() {
            return;
        }
        let frame_len = frame.len() as u32;
        if frame_len > 0 {
            let at = self.layout.buffer_offset(self.index(id)).unwrap_or(u64::MAX);
            if self.own.write_at(at, frame).is_err() {
                self.end(EndReason::Failed("an answer has no buffer".into()));
                return;
            }
        }
        // Poisoning is checked after the whole answer was written, including data in bulk memory, and before
        // the slot's stamp makes it visible.
        if self.own.region().is_poisoned() {
            self.end(EndReason::local_memory_lost());
            return;
        }
        let message = Message { id, frame_len, kind, body };
        // The flag is cleared before the client can see the answer, because the client may reuse the buffer
        // at once.
        self.outstanding_flag(id).store(false, Ordering::Release);
        {
            let mut producer = lock(&self.producer);
            producer.push(&message);
            self.counters.answers.bump();
        }
        if !is_quiet {
            self.ringer.ring();
        }
    }

    /// Ends the link, unless it has ended before. Notifies the session and the link's thread, which finishes
    /// its current request. Logs a fault of either side.
    pub(super) fn end(&self, why: EndReason) {
        let is_fault = matches!(why, EndReason::ProtocolError(_) | EndReason::Failed(_));
        let text = is_fault.then(|| why.to_string());
        if !self.outcome.decide(why) {
            return;
        }
        self.nudger.nudge();
        self.session.ended();
        if let Some(why) = text {
            self.common.totals.cut();
            if let Some(suppressed) = self.common.cuts.allow() {
                tracing::warn!(link = &*self.label, %why, suppressed, "link cut");
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counters.read(self.ringer.rings())
    }

    #[inline]
    pub(super) fn index(&self, id: u32) -> u32 {
        id & (self.layout.slots() - 1)
    }

    #[inline]
    fn outstanding_flag(&self, id: u32) -> &AtomicBool {
        // Every index has a flag; the modulus eliminates the bounds check.
        &self.outstanding[self.index(id) as usize % self.outstanding.len()]
    }
}

fn buffers(ends: &Ends) -> Result<LinesMut, OutOfBounds> {
    let (slots, first) = (ends.layout.slots(), ends.layout.buffer_offset(0).unwrap_or(u64::MAX));
    let start = ends.own.place(first, u64::from(slots) * FRAME_BYTES)?;
    LinesMut::new(ends.own.region(), start, slots as usize * LINES_PER_BUFFER)
}

impl Drop for Link {
    fn drop(&mut self) {
        self.common.totals.closed(&self.counts());
    }
}

//! What the threads of one line share: requests on their way out, and what is known of each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use tombolo_mem::OutOfBounds;
use tombolo_shm::address::BaseTable;
use tombolo_shm::area::Area;
use tombolo_shm::doorbell::{Mode, Ringer};
use tombolo_shm::link::{Ends, Extent, Layout};
use tombolo_shm::ring::{Message, Prefetch, Producer};

use super::counters::{Counters, Counts};
use super::doze::Doze;
use super::ear::Doorbell;
use super::entry::{Entry, Phase};
use super::error::LineError;
use super::frame::{Buffer, FRAME_MAX, FrameWriter, spare_buffers};
use super::ids::Ids;
use super::intake::Intake;
use super::receiver::Rest;
use super::reply::Answer;
use super::ticket::{Stage, Ticket};
use super::wakes::{Wakes, wake};
use crate::end::{End, Fate};
use crate::passing::Introducer;
use tombolo_host_runtime::free_list::FreeList;
use tombolo_host_runtime::lock;

/// What the threads of one line share.
pub(super) struct Core {
    pub(super) label: Arc<str>,
    pub(super) mode: Mode,
    pub(super) layout: Layout,
    pub(super) own: Extent,
    pub(super) peer: Extent,
    pub(super) bases: BaseTable,
    /// Memory of further domains that the server knows, if it takes any.
    pub(super) introducer: OnceLock<Arc<Introducer>>,
    pub(super) fate: Fate,
    pub(super) ids: Ids,
    pub(super) spare: Arc<FreeList<Buffer>>,
    pub(super) counters: Counters,
    /// Answers that nobody has taken yet, while calls wait for ids.
    pub(super) aside: Mutex<HashMap<u32, Answer>>,
    /// Bulk memory of this side, and of the peer's.
    pub(super) areas: [Area; 2],
    pub(super) doorbell: Option<Doorbell>,
    entries: Box<[Entry]>,
    /// The slot of the next request.
    pub(super) prefetch: Prefetch,
    producer: Mutex<Producer>,
    ringer: Ringer,
    /// Who has it is the leader.
    pub(super) intake: Mutex<Intake>,
    /// How many calls are registered to be woken.
    pub(super) waiting: Waiting,
    /// Whether the leader sleeps on the doorbell, and whether it is to stop.
    pub(super) doze: Doze,
    /// Where the receiver thread rests while nobody needs it, and if there is no doorbell.
    pub(super) rest: Rest,
    /// Whether the server rings at its next answer; changed by the leader alone.
    pub(super) is_armed: AtomicBool,
}

/// A number that everybody changes, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Waiting(pub(super) AtomicUsize);

impl Core {
    pub(super) fn new(ends: &Ends, label: Arc<str>, mode: Mode) -> Result<Self, OutOfBounds> {
        let layout = ends.layout;
        let bulk = layout.bulk_offset()..layout.bytes();
        let producer = Producer::at(&ends.own, layout.ring_offset(), layout.slots(), ends.epoch)?;
        Ok(Self {
            label,
            mode,
            layout,
            own: ends.own.clone(),
            peer: ends.peer.clone(),
            bases: BaseTable::of_link(ends),
            introducer: OnceLock::new(),
            fate: Fate::default(),
            ids: Ids::new(layout.slots()),
            spare: spare_buffers(layout.slots() as usize),
            counters: Counters::default(),
            aside: Mutex::default(),
            areas: [Area::new(bulk.clone()), Area::new(bulk)],
            doorbell: Doorbell::new(ends)?,
            entries: (0..layout.slots()).map(Entry::new).collect(),
            prefetch: producer.prefetch(),
            producer: Mutex::new(producer),
            ringer: Ringer::of(ends)?,
            intake: Mutex::new(Intake::new(ends)?),
            waiting: Waiting::default(),
            doze: Doze::default(),
            rest: Rest::default(),
            is_armed: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(super) fn entry(&self, id: u32) -> &Entry {
        // There is one for each slot; the remainder tells the compiler so.
        &self.entries[self.index(id) as usize % self.entries.len()]
    }

    #[inline]
    pub(super) fn index(&self, id: u32) -> u32 {
        id & (self.layout.slots() - 1)
    }

    /// Where the variable part of that request, or of its answer, lies in either end.
    #[inline]
    pub(super) fn buffer(&self, id: u32) -> u64 {
        // Every index is that of a buffer.
        self.layout.buffer_offset(self.index(id)).unwrap_or(u64::MAX)
    }

    /// Encodes and sends a request with an id that is free.
    #[inline]
    pub(super) fn send(
        &self,
        id: u32,
        kind: u32,
        body: [u8; 48],
        frame: impl FnOnce(&mut FrameWriter<'_>),
    ) -> Result<(), LineError> {
        let len_bytes = {
            let mut writer = FrameWriter::shared(&self.own, self.buffer(id));
            frame(&mut writer);
            writer.len()
        };
        if len_bytes > FRAME_MAX {
            let mut wakes = Wakes::default();
            self.pass_on(self.ids.put_back(id), &mut wakes);
            wakes.wake_all();
            return Err(LineError::TooLong { len_bytes });
        }
        self.entry(id).set(id, Phase::Sent);
        self.push(&Message { id, frame_len: len_bytes as u32, kind, body });
        Ok(())
    }

    #[inline]
    fn push(&self, message: &Message) {
        // After all that belongs to the request was written: zeroes must not pass for somebody's data.
        if self.own.region().is_poisoned() {
            self.end(End::own_memory_gone());
            return;
        }
        {
            let mut producer = lock(&self.producer);
            producer.push(message);
            self.counters.calls.bump();
        }
        self.ringer.ring();
    }

    /// An answer was taken: its id goes to who waits for one, or is free.
    #[inline]
    pub(super) fn free(&self, id: u32, wakes: &mut Wakes) {
        let next = self.ids.give_back(id);
        if next.is_some() {
            self.pass_on(next, wakes);
        }
    }

    /// Sends the call that has waited longest, with an id that has become free.
    #[cold]
    fn pass_on(&self, mut next: Option<(Arc<Ticket>, u32)>, wakes: &mut Wakes) {
        while let Some((ticket, id)) = next {
            let mut state = ticket.lock();
            if state.stage != Stage::Waiting {
                drop(state);
                next = self.ids.put_back(id);
                continue;
            }
            if let Some(frame) = state.frame.take() {
                let mut writer = FrameWriter::shared(&self.own, self.buffer(id));
                writer.put(&frame[..ticket.frame_len.min(FRAME_MAX)]);
                self.spare.give_back(frame);
            }
            self.entry(id).set(id, Phase::Sent);
            state.stage = Stage::Sent(id);
            let waker = state.waker.take();
            drop(state);
            if waker.is_some() {
                self.waiting.leave();
            }
            wakes.push(waker);
            let frame_len = ticket.frame_len as u32;
            self.push(&Message { id, frame_len, kind: ticket.kind, body: ticket.body });
            return;
        }
    }

    /// A call waits for an id. Answers that nobody has taken are put aside, for it may be the same caller who waits for the one and would
    /// take the others later.
    #[cold]
    pub(super) fn put_all_aside(&self) {
        let mut wakes = Wakes::default();
        for entry in &self.entries {
            self.put_aside(entry, entry.desk(), &mut wakes);
        }
    }

    /// Why calls that are not answered have failed.
    #[cold]
    pub(super) fn lost(&self) -> LineError {
        let why = self.fate.why().unwrap_or(End::Stopped);
        LineError::Lost { label: self.label.clone(), why }
    }

    /// Ends the line, if it has not ended before: all calls that wait are woken, and find it so.
    #[cold]
    pub(super) fn end(&self, why: End) {
        let is_fault = matches!(why, End::Lie(_) | End::Failed(_));
        let text = is_fault.then(|| why.to_string());
        // Before anybody who waits can learn of it, and give memory back that the server may still read.
        if let Some(introducer) = self.introducer.get() {
            introducer.ended(&why);
        }
        if !self.fate.decide(why) {
            return;
        }
        if let Some(why) = text {
            tracing::warn!(link = &*self.label, %why, "link cut");
        }
        if let Some(doorbell) = &self.doorbell {
            doorbell.nudge();
        }
        self.rest.call();
        self.drive_away_for_good();
        // Whoever registers after this looks at the fate afterwards.
        for ticket in self.ids.take_waiting() {
            let waker = ticket.lock().waker.take();
            waker.into_iter().for_each(wake);
        }
        for entry in &self.entries {
            let (waker, spans) = {
                let mut desk = entry.desk();
                (desk.waker.take(), std::mem::take(&mut desk.spans))
            };
            // The server may still write there, but nobody will be given that memory again who does not know that.
            drop(spans);
            waker.into_iter().for_each(wake);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let (in_flight, queued) = self.ids.used_and_waiting();
        let named = self.introducer.get().map_or(0, |introducer| introducer.count());
        Counts { in_flight, queued, named, ..self.counters.read(self.ringer.rings()) }
    }
}

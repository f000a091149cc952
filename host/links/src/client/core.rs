//! State shared by the threads of one line: sending, and the state of each request.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread;

use tombolo_core::lock;
use tombolo_mem::OutOfBounds;
use tombolo_shm::address::BaseTable;
use tombolo_shm::area::Area;
use tombolo_shm::cells::DoorbellWord;
use tombolo_shm::doorbell::{Mode, PeerDoorbell, Ringer};
use tombolo_shm::link::{Ends, Extent, Features, Layout};
use tombolo_shm::ring::{Message, Prefetch, Producer};
use tombolo_shm::window::WindowReader;

use super::completion_slot::{Completion, CompletionSlot, Phase};
use super::counters::{Counters, Counts};
use super::error::LineError;
use super::ids::Ids;
use super::leader::{Intake, LeaderPark, Parker, Waiting};
use super::message::{Buffer, FRAME_MAX, FrameWriter, RawReply, spare_buffers};
use super::queued_request::{QueuedRequest, QueuedStage};
use super::wakes::{Wakes, wake};
use crate::end::{EndReason, EndState};
use crate::forwarding::RegionForwarder;
use tombolo_host_runtime::free_list::FreeList;

/// State shared by the threads of one line.
pub(super) struct Core {
    pub(super) label: Arc<str>,
    pub(super) mode: Mode,
    pub(super) layout: Layout,
    pub(super) features: Features,
    pub(super) own: Extent,
    pub(super) peer: Extent,
    pub(super) bases: BaseTable,
    /// Forwarder of other domains' memory, if the server accepts forwarded regions.
    pub(super) forwarder: OnceLock<Arc<RegionForwarder>>,
    /// The server's window, if the server sent one or maintains a mirror of it.
    pub(super) window: OnceLock<WindowReader>,
    pub(super) outcome: EndState,
    pub(super) ids: Ids,
    pub(super) spare: Arc<FreeList<Buffer>>,
    pub(super) counters: Counters,
    /// Replies moved out of their slots before their callers took them, by id: requests were queued for ids.
    pub(super) parked_replies: Mutex<HashMap<u32, RawReply>>,
    /// Allocators of bulk memory in this side's region, and in the server's: the client allocates in both.
    pub(super) areas: [Area; 2],
    pub(super) doorbell: Option<PeerDoorbell>,
    slots: Box<[CompletionSlot]>,
    /// Prefetch of the next request's slot.
    pub(super) prefetch: Prefetch,
    producer: Mutex<Producer>,
    ringer: Ringer,
    /// Locked by the leader.
    pub(super) intake: Mutex<Intake>,
    pub(super) waiting: Waiting,
    pub(super) leader_park: LeaderPark,
    /// Parking place of the receiver thread while no call is registered, or without a doorbell.
    pub(super) parker: Parker,
    /// `true` while the line is armed (see `intake`) for the receiver thread; changed by the leader only.
    pub(super) is_armed: AtomicBool,
}

impl Core {
    pub(super) fn new(ends: &Ends, label: Arc<str>, mode: Mode) -> Result<Self, OutOfBounds> {
        let layout = ends.layout;
        let bulk = layout.bulk_offset()..layout.bytes();
        let producer = Producer::at(&ends.own, layout.ring_offset(), layout.slots(), ends.epoch)?;
        Ok(Self {
            label,
            mode,
            layout,
            features: ends.features,
            own: ends.own.clone(),
            peer: ends.peer.clone(),
            bases: BaseTable::of_link(ends),
            forwarder: OnceLock::new(),
            window: OnceLock::new(),
            outcome: EndState::default(),
            ids: Ids::new(layout.slots()),
            spare: spare_buffers(layout.slots() as usize),
            counters: Counters::default(),
            parked_replies: Mutex::default(),
            areas: [Area::new(bulk.clone()), Area::new(bulk)],
            doorbell: PeerDoorbell::of(ends)?,
            slots: (0..layout.slots()).map(CompletionSlot::new).collect(),
            prefetch: producer.prefetch(),
            producer: Mutex::new(producer),
            ringer: Ringer::of(ends)?,
            intake: Mutex::new(Intake::new(ends)?),
            waiting: Waiting::default(),
            leader_park: LeaderPark::default(),
            parker: Parker::default(),
            is_armed: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(super) fn slot(&self, id: u32) -> &CompletionSlot {
        // Every index has a completion slot; the modulus eliminates the bounds check.
        &self.slots[self.index(id) as usize % self.slots.len()]
    }

    #[inline]
    pub(super) fn index(&self, id: u32) -> u32 {
        id & (self.layout.slots() - 1)
    }

    /// Returns the offset of an id's buffer: of the request's variable part in this side's memory, and of the
    /// answer's in the server's.
    #[inline]
    pub(super) fn buffer(&self, id: u32) -> u64 {
        // The offset exists, as an index is less than the number of buffers.
        self.layout.buffer_offset(self.index(id)).unwrap_or(u64::MAX)
    }

    /// Encodes and sends a request with a free id. If the arguments are too long, fails and frees the id.
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
            self.send_queued(self.ids.put_back(id), &mut wakes);
            wakes.wake_all();
            return Err(LineError::TooLong { len_bytes });
        }
        self.slot(id).set(id, Phase::Sent);
        self.push(&Message { id, frame_len: len_bytes as u32, kind, body });
        Ok(())
    }

    #[inline]
    fn push(&self, message: &Message) {
        // Poisoning is checked after the whole request was written, so that zeroes never pass for data.
        if self.own.region().is_poisoned() {
            self.end(EndReason::local_memory_lost());
            return;
        }
        {
            let mut producer = lock(&self.producer);
            producer.push(message);
            self.counters.calls.bump();
        }
        self.ringer.ring();
    }

    /// Becomes the leader, unless another thread is.
    #[inline]
    pub(super) fn try_lead(&self) -> Option<MutexGuard<'_, Intake>> {
        match self.intake.try_lock() {
            Ok(intake) => Some(intake),
            // A leader that panics leaves a consistent state, because it completes one message at a time.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Becomes the leader once no other thread is.
    pub(super) fn lead(&self) -> MutexGuard<'_, Intake> {
        lock(&self.intake)
    }

    /// Frees an id whose answer was taken, or passes it to the first queued request.
    #[inline]
    pub(super) fn free(&self, id: u32, wakes: &mut Wakes) {
        let next = self.ids.give_back(id);
        if next.is_some() {
            self.send_queued(next, wakes);
        }
    }

    /// Sends a queued call with an id that has become free; if the call was dropped, the next queued one.
    #[cold]
    fn send_queued(&self, mut next: Option<(Arc<QueuedRequest>, u32)>, wakes: &mut Wakes) {
        while let Some((queued, id)) = next {
            let mut state = queued.lock();
            if state.stage != QueuedStage::Waiting {
                drop(state);
                next = self.ids.put_back(id);
                continue;
            }
            if let Some(frame) = state.frame.take() {
                let mut writer = FrameWriter::shared(&self.own, self.buffer(id));
                writer.put(&frame[..queued.frame_len.min(FRAME_MAX)]);
                self.spare.give_back(frame);
            }
            self.slot(id).set(id, Phase::Sent);
            state.stage = QueuedStage::Sent(id);
            let waker = state.waker.take();
            drop(state);
            if waker.is_some() {
                self.waiting.leave();
            }
            wakes.push(waker);
            let frame_len = queued.frame_len as u32;
            self.push(&Message { id, frame_len, kind: queued.kind, body: queued.body });
            return;
        }
    }

    /// Parks all replies that their callers have not taken, which frees their ids. Otherwise a caller that
    /// waits for an id, before it takes the replies to its earlier calls, could wait forever.
    #[cold]
    pub(super) fn park_all_replies(&self) {
        let mut wakes = Wakes::default();
        for slot in &self.slots {
            self.park_reply(slot, slot.completion(), &mut wakes);
        }
    }

    /// Parks a reply not yet taken by its caller, and frees its id.
    #[cold]
    pub(super) fn park_reply(
        &self,
        slot: &CompletionSlot,
        mut completion: MutexGuard<'_, Completion>,
        wakes: &mut Wakes,
    ) {
        let (id, phase) = slot.load();
        if phase != Phase::Answered {
            return;
        }
        if let Some(answer) = completion.answer.take() {
            lock(&self.parked_replies).insert(id, answer);
        }
        slot.clear(id);
        drop(completion);
        self.free(id, wakes);
    }

    /// Takes the answer from the completion slot and frees the id, or takes the answer from the parked
    /// replies. Returns `None` if it was taken before.
    pub(super) fn take(&self, slot: &CompletionSlot, id: u32) -> Option<RawReply> {
        let answer = {
            let mut completion = slot.completion();
            if slot.load().0 != id {
                return lock(&self.parked_replies).remove(&id);
            }
            let answer = completion.answer.take()?;
            slot.set(id, Phase::Free);
            answer
        };
        let mut wakes = Wakes::default();
        self.free(id, &mut wakes);
        wakes.wake_all();
        Some(answer)
    }

    /// Returns kind and body of a reply that was received and not taken yet.
    pub(super) fn received(&self, id: u32) -> Option<(u32, [u8; 48])> {
        let slot = self.slot(id);
        let completion = slot.completion();
        let parts = |reply: &RawReply| (reply.kind, reply.body);
        match slot.load() {
            (issued, Phase::Answered) if issued == id => completion.answer.as_ref().map(parts),
            (issued, _) if issued == id => None,
            _ => lock(&self.parked_replies).get(&id).map(parts),
        }
    }

    /// Returns the error with which unanswered calls fail once the line has ended.
    #[cold]
    pub(super) fn lost(&self) -> LineError {
        let why = self.outcome.why().unwrap_or(EndReason::Stopped);
        LineError::Lost { label: self.label.clone(), why }
    }

    /// Ends the line, unless it has ended before. Wakes all waiting calls, which then fail.
    #[cold]
    pub(super) fn end(&self, why: EndReason) {
        let is_fault = matches!(why, EndReason::ProtocolError(_) | EndReason::Failed(_));
        let text = is_fault.then(|| why.to_string());
        // The forwarder is notified before any waiting caller can observe the end, and return memory that the
        // server may still read.
        if let Some(forwarder) = self.forwarder.get() {
            forwarder.ended(&why);
        }
        if !self.outcome.decide(why) {
            return;
        }
        if let Some(why) = text {
            tracing::warn!(link = &*self.label, %why, "link cut");
        }
        if let Some(doorbell) = &self.doorbell {
            doorbell.wake();
        }
        self.parker.unpark();
        self.stop_leader();
        // No later registration is missed: a caller checks the outcome after it has registered.
        for queued in self.ids.take_waiting() {
            let waker = queued.lock().waker.take();
            waker.into_iter().for_each(wake);
        }
        for slot in &self.slots {
            let (waker, spans) = {
                let mut completion = slot.completion();
                (completion.waker.take(), std::mem::take(&mut completion.spans))
            };
            // The server may still write to this memory, but this side allocates none of it any more.
            drop(spans);
            waker.into_iter().for_each(wake);
        }
    }

    /// Makes a parked leader release the lead to this thread. The caller must repeat this, because the leader
    /// may not be asleep yet.
    #[inline]
    pub(super) fn unpark_leader(&self) {
        if self.leader_park.is_parked() {
            self.leader_park.request_unpark();
            self.doorbell.iter().for_each(PeerDoorbell::wake);
        }
    }

    /// Stops a parked leader after the end of the link. A leader that ends the link itself, while it sends a
    /// queued request, stops at its next step.
    fn stop_leader(&self) {
        while self.leader_park.is_other_thread() {
            self.unpark_leader();
            thread::yield_now();
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let (in_flight, queued) = self.ids.used_and_waiting();
        let named = self.forwarder.get().map_or(0, |forwarder| forwarder.count());
        Counts { in_flight, queued, named, ..self.counters.read(self.ringer.rings()) }
    }
}

//! Programs that write, read, truncate and flush the file of a model server, and checks of the invariants of
//! `data`.

use std::sync::Arc;

use tombolo_core::fs::{ReadDone, Write, Written};
use tombolo_core::{Answer, Stability};
use tombolo_mem::{Buffer, Source};

use super::super::{ReadAhead, commit, pause, read, write};
use super::cases::{Slot, said, waited_for};
use super::{Asked, File, Model, Quirk, SIZES};
use crate::caller::Caller;

/// Maximum file size. Each byte is the number of its write; 0 was never written.
pub(super) const SIZE: usize = 96;

/// Memory limit of the mount: a copied piece takes 2048 bytes and its overhead.
const DIRTY_BYTES_MAX: usize = 7000;

struct Writes {
    number: u8,
    offset: usize,
    len: usize,
    stability: Stability,
    answer: Slot<Written>,
}

struct Reads {
    offset: usize,
    buffer: Buffer,
    /// The last answered write of each byte when the read began.
    answered: Vec<u8>,
    answer: Slot<ReadDone>,
}

struct Flushes {
    answered: Vec<u8>,
    /// Reported losses when it began.
    told: Vec<u8>,
    answer: Slot<()>,
}

pub(super) struct World {
    pub(super) server: Arc<Model>,
    pub(super) node: Arc<File>,
    ahead: ReadAhead,
    writes: Vec<Writes>,
    reads: Vec<Reads>,
    flushes: Vec<Flushes>,
    cut: Option<(usize, Slot<()>)>,
    numbers: u8,
    /// The last answered write of each byte.
    answered: Vec<u8>,
    /// The last refused write of each byte, and the last whose refusal was reported.
    lost: Vec<u8>,
    told: Vec<u8>,
    /// The last write of each byte that a truncation has removed.
    floor: Vec<u8>,
    /// Range of each write.
    covers: Vec<std::ops::Range<usize>>,
}

fn zeroes() -> Vec<u8> {
    vec![0; SIZE]
}

impl World {
    pub(super) fn new(in_flight_max: usize) -> Self {
        Self {
            server: Model::new(SIZES, DIRTY_BYTES_MAX, in_flight_max),
            node: Arc::default(),
            ahead: ReadAhead::default(),
            writes: Vec::new(),
            reads: Vec::new(),
            flushes: Vec::new(),
            cut: None,
            numbers: 0,
            answered: zeroes(),
            lost: zeroes(),
            told: zeroes(),
            floor: zeroes(),
            covers: std::iter::once(0..SIZE).collect(),
        }
    }

    pub(super) fn write(&mut self, offset: usize, len: usize, retainable: bool, stability: Stability) {
        let len = len.min(SIZE - offset);
        let overlaps = |other: &Writes| offset < other.offset + other.len && other.offset < offset + len;
        // Of two concurrent writes to one range either may win.
        if len == 0 || self.cut.is_some() || self.writes.iter().any(overlaps) || self.numbers == u8::MAX {
            return;
        }
        self.numbers += 1;
        let number = self.numbers;
        self.covers.push(offset..offset + len);
        let how = Write { offset: offset as u64, stability, retainable, ..Write::default() };
        let mut own = Buffer::new(len);
        own.as_mut_slice().expect("not lent yet").fill(number);
        let from: Source = own.source(0..len);
        let answer = waited_for(write(&self.server, &self.node, &Caller::default(), how, from, false));
        self.writes.push(Writes { number, offset, len, stability, answer });
        self.look();
        if !retainable && !self.writes.iter().any(|write| write.number == number) {
            // After the answer the memory belongs to the program again.
            own.as_mut_slice().expect("it was not retained").fill(0xEE);
        }
    }

    pub(super) fn read(&mut self, offset: usize, len: usize) {
        if self.cut.is_some() {
            return;
        }
        let buffer = Buffer::new(len);
        let into = buffer.sink(0..len);
        let answered = self.answered.clone();
        let caller = Caller::default();
        let answer = waited_for(read(&self.server, &self.node, &caller, &self.ahead, offset as u64, into));
        self.reads.push(Reads { offset, buffer, answered, answer });
        self.look();
    }

    pub(super) fn flush(&mut self) {
        let (answered, told) = (self.answered.clone(), self.told.clone());
        let answer = waited_for(commit(&self.server, &self.node, &Caller::default()));
        self.flushes.push(Flushes { answered, told, answer });
        self.look();
    }

    pub(super) fn cut(&mut self, size: usize) {
        // A write or read concurrent with a truncation may see either state.
        if self.cut.is_some() || !self.writes.is_empty() || !self.reads.is_empty() {
            return;
        }
        let (server, node) = (self.server.clone(), self.node.clone());
        let work = async move {
            let paused = pause(&server, &node, &Caller::default()).resolve().await?;
            server.ask(Asked::Cut(size as u64)).await?;
            paused.truncated(size as u64);
            Ok(())
        };
        self.cut = Some((size, waited_for(Answer::later(work))));
        self.look();
    }

    pub(super) fn work(&mut self, which: usize, quirk: Quirk) {
        if quirk.fails {
            self.note_loss(which);
        }
        self.server.work(which, quirk);
    }

    /// Records the bytes that a failing call loses.
    fn note_loss(&mut self, which: usize) {
        let state = self.server.state();
        let undone: Vec<_> = state.calls.iter().filter(|call| call.said.is_none()).collect();
        if undone.is_empty() {
            return;
        }
        match &undone[which % undone.len()].asked {
            Asked::Write { offset, bytes, .. } => {
                for (lost, byte) in self.lost[*offset as usize..].iter_mut().zip(bytes) {
                    *lost = (*lost).max(*byte);
                }
            }
            Asked::Commit => self.lost.fill(self.numbers),
            Asked::Read { .. } | Asked::Cut(_) => {}
        }
    }

    /// Returns `true` if the model permits a failure now.
    pub(super) fn may_fail(&self) -> bool {
        self.cut.is_none() && self.reads.is_empty()
    }

    pub(super) fn tell(&mut self, which: usize) {
        self.server.tell(which);
        self.look();
    }

    /// Takes and checks the answers.
    pub(super) fn look(&mut self) {
        self.look_at_writes();
        self.look_at_cut();
        self.look_at_flushes();
        self.look_at_reads();
        self.check_calls();
        let held = self.server.budget.held_bytes();
        assert!(held <= DIRTY_BYTES_MAX + (140 << 10), "{held} bytes are held");
    }

    fn look_at_writes(&mut self) {
        for write in std::mem::take(&mut self.writes) {
            match said(&write.answer) {
                None => self.writes.push(write),
                Some(Err(_)) => self.told.clone_from(&self.lost),
                Some(Ok(written)) => {
                    assert_eq!(written.count, write.len);
                    let place = write.offset..write.offset + write.len;
                    self.answered[place.clone()].fill(write.number);
                    if write.stability > Stability::Unstable {
                        let stable = &self.server.state().stable;
                        let kept =
                            stable.get(place).is_some_and(|kept| kept.iter().all(|b| *b >= write.number));
                        assert!(kept, "answered as stable: {} in {stable:?}", write.number);
                    }
                }
            }
        }
    }

    fn look_at_cut(&mut self) {
        let Some((size, result)) = self.cut.as_ref().and_then(|(size, slot)| Some((*size, said(slot)?)))
        else {
            return;
        };
        result.expect("nothing fails while a file is cut");
        self.cut = None;
        let flushed = self.flushes.iter_mut().map(|flush| &mut flush.answered);
        for image in flushed.chain([&mut self.answered, &mut self.lost, &mut self.told]) {
            image[size..].fill(0);
        }
        self.floor[size..].fill(self.numbers);
    }

    fn look_at_flushes(&mut self) {
        for flush in std::mem::take(&mut self.flushes) {
            match said(&flush.answer) {
                None => self.flushes.push(flush),
                Some(Err(_)) => self.told.clone_from(&self.lost),
                Some(Ok(())) => {
                    let stable = self.server.state().stable.clone();
                    // The truncated part may be gone already.
                    let end = self.cut.as_ref().map_or(SIZE, |(size, _)| *size);
                    for (at, flushed) in flush.answered[..end].iter().enumerate() {
                        let kept = stable.get(at).copied().unwrap_or(0);
                        let is_known_to_be_lost = flush.told[at] >= *flushed;
                        assert!(kept >= *flushed || is_known_to_be_lost, "byte {at}: {kept} for {flushed}");
                    }
                }
            }
        }
    }

    fn look_at_reads(&mut self) {
        for mut read in std::mem::take(&mut self.reads) {
            let Some(done) = said(&read.answer) else {
                self.reads.push(read);
                continue;
            };
            let done = done.expect("no READ fails");
            let bytes = read.buffer.as_slice().expect("it is not written to after the answer").to_vec();
            assert!(done.count == bytes.len() || done.eof, "short and not at the end");
            for (at, byte) in bytes.iter().enumerate() {
                let place = read.offset + at;
                let answered = read.answered.get(place).copied().unwrap_or(0);
                if at >= done.count {
                    assert!(answered == 0 || self.lost[place] >= answered, "byte {place} is missing");
                    continue;
                }
                assert!(
                    *byte >= answered || self.lost[place] >= answered,
                    "byte {place}: {byte}, not {answered}"
                );
                self.check_byte(place, *byte);
            }
        }
    }

    /// Checks that a byte was written there, after the last truncation.
    fn check_byte(&self, place: usize, byte: u8) {
        let from = self.covers.get(usize::from(byte)).is_some_and(|range| range.contains(&place));
        assert!(from, "byte {place}: {byte} was never written there");
        assert!(byte == 0 || byte > self.floor[place], "byte {place}: {byte} was cut off");
    }

    /// Checks that pending WRITEs do not overlap, and that the server has only written bytes.
    fn check_calls(&self) {
        let state = self.server.state();
        let mut sent: Vec<(u64, u64)> = Vec::new();
        for call in &state.calls {
            let Asked::Write { offset, bytes, .. } = &call.asked else { continue };
            assert!(bytes.len() <= SIZES.write_max);
            let (start, end) = (*offset, offset + bytes.len() as u64);
            assert!(sent.iter().all(|other| end <= other.0 || other.1 <= start), "two WRITEs race");
            sent.push((start, end));
        }
        if self.cut.is_none() {
            for (place, byte) in state.cache.iter().enumerate() {
                self.check_byte(place, *byte);
            }
        }
    }

    /// Executes all requests, and checks that nothing remains to wait for.
    pub(super) fn finish(&mut self) {
        // The second flush covers bytes that got memory only during the first.
        for _ in 0..2 {
            self.flush();
            self.drain();
        }
        let waiting = (self.writes.len(), self.reads.len(), self.flushes.len(), self.cut.is_some());
        assert_eq!(waiting, (0, 0, 0, false), "a caller waits for ever");
        assert!(self.node.as_ref().as_ref().is_clean());
        assert_eq!(self.server.budget.held_bytes(), 0);
        let state = self.server.state();
        for (place, answered) in self.answered.iter().enumerate() {
            let kept = state.stable.get(place).copied().unwrap_or(0);
            assert!(
                kept >= *answered || self.lost[place] >= *answered,
                "byte {place}: {kept}, not {answered}"
            );
        }
    }

    fn drain(&mut self) {
        for _ in 0..2000 {
            if self.server.state().calls.is_empty() {
                return;
            }
            self.work(0, Quirk::default());
            self.tell(0);
        }
        panic!("it goes on for ever");
    }
}

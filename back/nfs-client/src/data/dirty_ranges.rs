//! States of one file's written bytes: pure bookkeeping, without calls and without waiting.
//!
//! A piece *waits* until it may be sent, is *under way* until it is answered, and is *uncommitted* until it
//! is on stable storage; then it is forgotten. If the server loses it before that, it waits again.
//!
//! Invariants:
//! 1. Pieces under way share no byte. A piece that overlaps one under way, or an older one that waits, waits.
//! 2. Uncommitted pieces share no byte: a range overwritten on the server is cut out of older pieces when the
//!    newer piece is answered, not before, so that the older data remain if the newer WRITE fails.
//! 3. A piece is forgotten only when it is on stable storage, was overwritten or truncated, or its WRITE or
//!    COMMIT has failed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use tombolo_core::Stability;
use tombolo_mem::Source;
use tombolo_wire_nfs3::WriteVerifier;

use super::memory::Memory;
use super::piece::{Piece, WriteSeq, Wrote};
use crate::caller::Caller;

/// Losses after which a piece is sent as a stable WRITE, because the server's verifier is unreliable.
const LOSSES_MAX: u8 = 3;

/// Number of waiting pieces searched for one that may be sent.
const LOOK_AHEAD: usize = 64;

/// A write that may still be merged with others.
pub(super) struct NewWrite<'a> {
    pub(super) offset: u64,
    pub(super) stability: Stability,
    pub(super) caller: &'a Caller,
}

impl NewWrite<'_> {
    /// Returns the range in the file of the first `len` bytes of this write.
    pub(super) fn range(&self, len: usize) -> Range<u64> {
        self.offset..self.offset.saturating_add(len as u64)
    }
}

/// Written bytes of one file that are not on the server's stable storage.
#[derive(Debug, Default)]
pub(super) struct DirtyRanges {
    /// Waiting pieces, oldest first. They may overlap: the newer one wins.
    waiting: VecDeque<Piece>,
    waiting_bytes: usize,
    /// Sent and unanswered pieces by offset.
    under_way: BTreeMap<u64, Piece>,
    /// Answered, uncommitted pieces by offset.
    uncommitted: BTreeMap<u64, Uncommitted>,
    uncommitted_bytes: usize,
    /// Sequence number of the next write.
    next: u64,
}

#[derive(Clone, Debug)]
struct Uncommitted {
    piece: Piece,
    verifier: WriteVerifier,
    /// `true` if a pending COMMIT covers the piece.
    covered: bool,
    /// Summary of the older pieces that this piece overwrote while a pending COMMIT covered them.
    superseded: Option<Superseded>,
}

/// Covered pieces that were overwritten during a COMMIT. A flush of them need not wait for the newer piece,
/// unless the COMMIT returns another verifier; thus continuous overwriting does not delay a flush.
#[derive(Clone, Copy, Debug)]
struct Superseded {
    first: WriteSeq,
    /// Verifier of the pieces; `None` if there were several.
    verifier: Option<WriteVerifier>,
}

impl Superseded {
    fn and(self, other: Option<Superseded>) -> Superseded {
        let Some(other) = other else { return self };
        let verifier = self.verifier.filter(|verifier| other.verifier == Some(*verifier));
        Superseded { first: self.first.min(other.first), verifier }
    }
}

impl DirtyRanges {
    /// Queues the bytes of a write; [`next`](Self::next) returns them when they may be sent.
    pub(super) fn add(&mut self, write: &NewWrite<'_>, memory: Memory, piece_max: usize) {
        let seq = self.take_seq();
        let len = memory.len();
        let Some(memory) = self.join_last(write, memory, piece_max, seq) else { return };
        let piece = Piece {
            offset: write.offset,
            len,
            seq,
            first: seq,
            stability: write.stability,
            losses: 0,
            caller: write.caller.detached(),
            memory: Arc::new(memory),
            at: 0,
        };
        let first = self.cut_unsent(&piece);
        self.wait(Piece { first, ..piece });
    }

    /// Appends the bytes of a write to the last waiting piece, if the two can be one WRITE and the piece's
    /// buffer has space; otherwise returns `false`.
    pub(super) fn add_copy(&mut self, write: &NewWrite<'_>, from: &Source, piece_max: usize) -> bool {
        if from.is_empty() || !self.may_join_last(write, from.len(), piece_max) {
            return false;
        }
        let seq = self.next_seq();
        let Some(last) = self.waiting.back_mut() else { return false };
        if !Arc::get_mut(&mut last.memory).is_some_and(|memory| memory.append_copy(from)) {
            return false;
        }
        last.len += from.len();
        last.seq = seq;
        self.waiting_bytes += from.len();
        self.next += 1;
        true
    }

    /// Returns the next piece that may be sent, and marks it as under way.
    pub(super) fn next(&mut self) -> Option<Piece> {
        let index = self.first_free()?;
        let piece = self.waiting.remove(index)?;
        self.waiting_bytes -= piece.len;
        self.under_way.insert(piece.offset, piece.clone());
        Some(piece)
    }

    pub(super) fn has_next(&self) -> bool {
        self.first_free().is_some()
    }

    /// Records the reply to the WRITE at `offset`. Bytes that the server did not take wait again.
    pub(super) fn answered(&mut self, offset: u64, wrote: Wrote) {
        let Some(piece) = self.under_way.remove(&offset) else { return };
        let end = offset.saturating_add(wrote.count as u64);
        if let Some(rest) = piece.after(end) {
            self.wait(rest);
        }
        let Some(mut piece) = piece.before(end) else { return };
        let superseded = self.overwritten(&mut piece);
        if wrote.stability == Stability::Unstable {
            self.note_uncommitted(Uncommitted {
                piece,
                verifier: wrote.verifier,
                covered: false,
                superseded,
            });
        }
    }

    /// Discards the piece at `offset`, whose WRITE failed.
    pub(super) fn failed(&mut self, offset: u64) {
        self.under_way.remove(&offset);
    }

    /// Marks all uncommitted pieces as covered by a new COMMIT, and returns the user for it; `None` if there
    /// are none.
    pub(super) fn begin_commit(&mut self) -> Option<Caller> {
        let caller = self.uncommitted.values().next()?.piece.caller.clone();
        self.uncommitted.values_mut().for_each(|entry| entry.covered = true);
        Some(caller)
    }

    /// Records the reply to the COMMIT. Pieces with another verifier were lost and wait again (RFC 1813
    /// §3.3.21); returns their ranges.
    pub(super) fn committed(&mut self, verifier: WriteVerifier) -> Vec<Range<u64>> {
        let mut lost = Vec::new();
        self.take_covered(|entry| {
            if entry.verifier != verifier {
                lost.push(entry.piece);
            }
        });
        self.settle_superseded(|superseded| superseded.verifier == Some(verifier));
        let ranges = lost.iter().map(Piece::range).collect();
        for mut piece in lost {
            piece.losses = piece.losses.saturating_add(1);
            if piece.losses >= LOSSES_MAX {
                piece.stability = Stability::FileSync;
            }
            self.wait(piece);
        }
        ranges
    }

    /// Discards the covered pieces after a failed COMMIT.
    pub(super) fn commit_failed(&mut self) {
        self.take_covered(drop);
        self.settle_superseded(|_| true);
    }

    /// Records a truncation to `size` after all writes before `seq`, none of which is under way.
    pub(super) fn truncated(&mut self, size: u64, seq: WriteSeq) {
        let beyond: Vec<u64> = self.uncommitted_in(size..u64::MAX).collect();
        for offset in beyond {
            let Some(entry) = self.take_uncommitted(offset) else { continue };
            if entry.piece.seq >= seq {
                self.note_uncommitted(entry);
            } else if let Some(piece) = entry.piece.before(size) {
                self.note_uncommitted(Uncommitted { piece, ..entry });
            }
        }
        self.cut_waiting(&(size..u64::MAX), |piece| piece.seq < seq);
    }

    pub(super) fn next_seq(&self) -> WriteSeq {
        WriteSeq(self.next)
    }

    /// Returns the sequence number of the first write that the server may execute from now on: the oldest one
    /// under way, or the next if there is none.
    pub(super) fn first_unanswered(&self) -> WriteSeq {
        self.under_way.values().map(|piece| piece.seq).min().unwrap_or_else(|| self.next_seq())
    }

    /// Returns `true` if writes before `seq` wait or are under way.
    pub(super) fn has_pending(&self, seq: WriteSeq) -> bool {
        self.waiting.iter().chain(self.under_way.values()).any(|piece| piece.first < seq)
    }

    /// Returns `true` if writes before `seq` that overlap with the range wait or are under way.
    pub(super) fn has_pending_in(&self, range: &Range<u64>, seq: WriteSeq) -> bool {
        let mut pending = self.waiting.iter().chain(self.under_way.values());
        pending.any(|piece| piece.first < seq && piece.overlaps(range))
    }

    /// Returns `true` if writes before `seq` are answered but uncommitted.
    pub(super) fn has_uncommitted(&self, seq: WriteSeq) -> bool {
        let covers = |entry: &Uncommitted| entry.superseded.is_some_and(|superseded| superseded.first < seq);
        self.uncommitted.values().any(|entry| entry.piece.first < seq || covers(entry))
    }

    /// Makes a piece that waits a stable WRITE if there is no other piece, which saves a COMMIT.
    pub(super) fn make_only_piece_stable(&mut self) {
        let is_only = self.waiting.len() == 1 && self.under_way.is_empty() && self.uncommitted.is_empty();
        if let Some(only) = self.waiting.front_mut().filter(|_| is_only) {
            only.stability = Stability::FileSync;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty() && self.uncommitted.is_empty()
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    pub(super) fn uncommitted_bytes(&self) -> usize {
        self.uncommitted_bytes
    }

    /// Returns the offset behind the last byte of all pieces; `None` if there are none.
    pub(super) fn end(&self) -> Option<u64> {
        let waiting = self.waiting.iter().map(Piece::end).max();
        let under_way = self.under_way.last_key_value().map(|(_, piece)| piece.end());
        let uncommitted = self.uncommitted.last_key_value().map(|(_, entry)| entry.piece.end());
        waiting.max(under_way).max(uncommitted)
    }

    /// Returns the first unanswered byte of the range, or its end.
    pub(super) fn pending_from(&self, range: &Range<u64>) -> u64 {
        let pending =
            self.waiting.iter().chain(self.under_way.values()).filter(|piece| piece.overlaps(range));
        pending.map(|piece| piece.offset.max(range.start)).min().unwrap_or(range.end)
    }

    /// Returns the uncommitted pieces of the range in order.
    pub(super) fn uncommitted_pieces(&self, range: &Range<u64>) -> Vec<Piece> {
        let offsets = self.uncommitted_in(range.clone());
        let pieces = offsets.filter_map(|offset| self.uncommitted.get(&offset)?.piece.within(range));
        let mut pieces: Vec<Piece> = pieces.collect();
        pieces.reverse();
        pieces
    }

    fn take_seq(&mut self) -> WriteSeq {
        let seq = WriteSeq(self.next);
        self.next += 1;
        seq
    }

    /// Inserts a piece into the queue by its sequence number.
    fn wait(&mut self, piece: Piece) {
        self.waiting_bytes += piece.len;
        let index = self.waiting.partition_point(|other| other.seq <= piece.seq);
        self.waiting.insert(index, piece);
    }

    fn first_free(&self) -> Option<usize> {
        let looked_at = self.waiting.iter().take(LOOK_AHEAD);
        looked_at.enumerate().find_map(|(index, piece)| {
            let range = piece.range();
            let older = self.waiting.iter().take(index).any(|older| older.overlaps(&range));
            (!older && !self.is_under_way(&range)).then_some(index)
        })
    }

    fn is_under_way(&self, range: &Range<u64>) -> bool {
        let before_end = self.under_way.range(..range.end).next_back();
        before_end.is_some_and(|(_, piece)| piece.overlaps(range))
    }

    /// Appends the bytes to the last waiting piece if the two can be one WRITE; returns the memory otherwise.
    fn join_last(
        &mut self,
        write: &NewWrite<'_>,
        memory: Memory,
        piece_max: usize,
        seq: WriteSeq,
    ) -> Option<Memory> {
        let len = memory.len();
        if !self.may_join_last(write, len, piece_max) {
            return Some(memory);
        }
        let Some(last) = self.waiting.back_mut() else { return Some(memory) };
        let joined = Arc::get_mut(&mut last.memory).filter(|joined| joined.has_segments_for(&memory));
        let Some(joined) = joined else { return Some(memory) };
        joined.append(memory);
        last.len += len;
        last.seq = seq;
        self.waiting_bytes += len;
        None
    }

    fn may_join_last(&self, write: &NewWrite<'_>, len: usize, piece_max: usize) -> bool {
        let range = write.range(len);
        let Some(last) = self.waiting.back() else { return false };
        last.end() == write.offset
            && last.len + len <= piece_max
            && last.stability == write.stability
            && last.losses == 0
            && last.caller.identity == write.caller.identity
            // The piece uses all of its memory.
            && last.at == 0
            && last.len == last.memory.len()
            && !self.waiting.iter().any(|other| other.overlaps(&range))
    }

    /// Cuts the range of the new piece out of waiting pieces of the same user that require no higher
    /// stability. Returns the first write among those of the new piece and of the bytes cut out.
    fn cut_unsent(&mut self, new: &Piece) -> WriteSeq {
        let identity = new.caller.identity.clone();
        let may_cut = |old: &Piece| old.stability <= new.stability && old.caller.identity == identity;
        let cut = self.cut_waiting(&new.range(), may_cut);
        cut.map_or(new.first, |first| first.min(new.first))
    }

    /// Cuts the range out of the waiting pieces that may be cut; returns the first write in them.
    fn cut_waiting(&mut self, range: &Range<u64>, may_cut: impl Fn(&Piece) -> bool) -> Option<WriteSeq> {
        if !self.waiting.iter().any(|piece| piece.overlaps(range)) {
            return None;
        }
        let mut first: Option<WriteSeq> = None;
        for piece in std::mem::take(&mut self.waiting) {
            if !piece.overlaps(range) || !may_cut(&piece) {
                self.waiting.push_back(piece);
                continue;
            }
            first = Some(first.map_or(piece.first, |first| first.min(piece.first)));
            let rest = [piece.before(range.start), piece.after(range.end)];
            self.waiting.extend(rest.into_iter().flatten());
        }
        self.waiting_bytes = self.waiting.iter().map(|piece| piece.len).sum();
        first
    }

    /// Removes uncommitted and older waiting bytes that an answered piece has overwritten. Flushes that
    /// waited for these bytes now wait for the piece, or for the pending COMMIT if that covers the bytes.
    fn overwritten(&mut self, new: &mut Piece) -> Option<Superseded> {
        let range = new.range();
        let mut superseded: Option<Superseded> = None;
        let older: Vec<u64> = self.uncommitted_in(range.clone()).collect();
        for offset in older {
            let Some(entry) = self.take_uncommitted(offset) else { continue };
            if let Some(also) = entry.superseded {
                superseded = Some(also.and(superseded));
            }
            match entry.covered {
                true => {
                    let also = Superseded { first: entry.piece.first, verifier: Some(entry.verifier) };
                    superseded = Some(also.and(superseded));
                }
                false => new.first = new.first.min(entry.piece.first),
            }
            let rest = [entry.piece.before(range.start), entry.piece.after(range.end)];
            for piece in rest.into_iter().flatten() {
                self.note_uncommitted(Uncommitted { piece, ..entry.clone() });
            }
        }
        let seq = new.seq;
        if let Some(first) = self.cut_waiting(&range, |piece| piece.seq < seq) {
            new.first = new.first.min(first);
        }
        superseded
    }

    /// Clears the summaries of overwritten pieces after a COMMIT. Flushes that the COMMIT did not satisfy now
    /// wait for the overwriting pieces.
    fn settle_superseded(&mut self, is_settled: impl Fn(&Superseded) -> bool) {
        for entry in self.uncommitted.values_mut() {
            let Some(superseded) = entry.superseded.take() else { continue };
            if !is_settled(&superseded) {
                entry.piece.first = entry.piece.first.min(superseded.first);
            }
        }
    }

    fn note_uncommitted(&mut self, entry: Uncommitted) {
        self.uncommitted_bytes += entry.piece.len;
        let before = self.uncommitted.range_mut(..entry.piece.offset).next_back();
        if let Some((_, before)) = before {
            let alike = before.verifier == entry.verifier && before.covered == entry.covered;
            let alike = alike && before.superseded.is_none() && entry.superseded.is_none();
            if alike && before.piece.is_continued_by(&entry.piece) {
                return before.piece.extend(&entry.piece);
            }
        }
        self.uncommitted.insert(entry.piece.offset, entry);
    }

    fn take_uncommitted(&mut self, offset: u64) -> Option<Uncommitted> {
        let entry = self.uncommitted.remove(&offset)?;
        self.uncommitted_bytes -= entry.piece.len;
        Some(entry)
    }

    fn take_covered(&mut self, mut each: impl FnMut(Uncommitted)) {
        for (offset, entry) in std::mem::take(&mut self.uncommitted) {
            if entry.covered {
                self.uncommitted_bytes -= entry.piece.len;
                each(entry);
            } else {
                self.uncommitted.insert(offset, entry);
            }
        }
    }

    /// Returns the offsets of the uncommitted pieces that overlap with the range, last first.
    fn uncommitted_in(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let before_end = self.uncommitted.range(..range.end).rev();
        before_end.take_while(move |(_, entry)| entry.piece.end() > range.start).map(|(offset, _)| *offset)
    }
}

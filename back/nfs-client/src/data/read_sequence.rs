//! Read-ahead policy of one opening: when it reads ahead, and how far. A sequential reader doubles the
//! window.

use std::ops::Range;

/// Distance from the end of the preceding reads within which a read still counts as sequential: the larger of
/// this number of bytes and this multiple of its length. Concurrent reads of one file overtake each other.
const SLACK_BYTES: u64 = 512 << 10;
const SLACK_READS: u64 = 4;
/// Minimum read-ahead window in bytes, or four times the length of the read if that is longer, but at most
/// [`ReadAheadLimits::window_max`].
const WINDOW_MIN_BYTES: usize = 128 << 10;

/// Limits of read-ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAheadLimits {
    /// Maximum window in bytes; 0 disables read-ahead.
    pub(super) window_max: usize,
    /// Maximum size of a READ, in bytes.
    pub(super) piece_max: usize,
}

/// Access pattern of one opening.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadSequence {
    /// End of the furthest of consecutive reads. A file is expected to be read from its beginning.
    front: u64,
    /// Read-ahead window beyond the front, in bytes.
    window: usize,
}

impl ReadSequence {
    /// Records a read. Returns `false` if it is not sequential.
    pub(super) fn follows(&mut self, range: &Range<u64>, limits: &ReadAheadLimits) -> bool {
        let slack = (range.end - range.start).saturating_mul(SLACK_READS).max(SLACK_BYTES);
        let follows =
            range.start <= self.front.saturating_add(slack) && self.front <= range.end.saturating_add(slack);
        if !follows {
            *self = Self { front: range.end, window: 0 };
            return false;
        }
        if range.end > self.front || self.window == 0 {
            let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            let least = len.saturating_mul(4).max(WINDOW_MIN_BYTES);
            self.window = self.window.saturating_mul(2).max(least).min(limits.window_max);
        }
        self.front = self.front.max(range.end);
        true
    }

    /// Returns the next range to read ahead; `known_end` is the end of the existing read-ahead. `None` if too
    /// little of the window is free, or the file ends.
    pub(super) fn next(&self, known_end: u64, file_end: u64, limits: &ReadAheadLimits) -> Option<Range<u64>> {
        let start = known_end.max(self.front);
        let window_end = self.front.saturating_add(self.window as u64).min(file_end);
        // Half a window at a time, so that the reader consumes the other half meanwhile.
        let piece_max = (self.window / 2).min(limits.piece_max).max(1) as u64;
        let space = window_end.saturating_sub(start);
        let reaches_end = window_end == file_end && space > 0;
        (space >= piece_max || reaches_end).then(|| start..start + space.min(piece_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ReadAheadLimits = ReadAheadLimits { window_max: 4 << 20, piece_max: 256 << 10 };
    const K: u64 = 1 << 10;

    fn ahead_of(sequence: &ReadSequence, mut known_end: u64, file_end: u64) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        while let Some(piece) = sequence.next(known_end, file_end, &LIMITS) {
            known_end = piece.end;
            pieces.push(piece);
        }
        pieces
    }

    #[test]
    fn first_read_at_offset_zero_starts_read_ahead() {
        let mut sequence = ReadSequence::default();
        assert!(sequence.follows(&(0..128 * K), &LIMITS));
        let ahead = ahead_of(&sequence, 0, u64::MAX);
        assert_eq!(ahead, [128 * K..384 * K, 384 * K..640 * K]);
    }

    #[test]
    fn read_ahead_window_grows_to_limit_and_file_end() {
        let mut sequence = ReadSequence::default();
        for at in 0..100 {
            assert!(sequence.follows(&(at * 128 * K..(at + 1) * 128 * K), &LIMITS));
        }
        let end = |pieces: &[Range<u64>]| pieces.last().map(|piece| piece.end);
        assert_eq!(end(&ahead_of(&sequence, 0, u64::MAX)), Some(12_800 * K + (4 << 20)));
        assert_eq!(end(&ahead_of(&sequence, 0, 13_000 * K)), Some(13_000 * K));
        assert_eq!(ahead_of(&sequence, 0, 12_000 * K), []);
    }

    #[test]
    fn jumps_are_not_followed_and_their_continuation_is() {
        let mut sequence = ReadSequence::default();
        assert!(!sequence.follows(&(8 << 20..(8 << 20) + 4 * K), &LIMITS));
        assert_eq!(ahead_of(&sequence, 0, u64::MAX), []);
        assert!(sequence.follows(&((8 << 20) + 4 * K..(8 << 20) + 8 * K), &LIMITS));
        assert_ne!(ahead_of(&sequence, 0, u64::MAX), []);
        assert!(!sequence.follows(&(0..4 * K), &LIMITS));
    }

    #[test]
    fn reads_that_overtake_each_other_are_one_sequence() {
        for len in [128 * K, 1024 * K] {
            let mut sequence = ReadSequence::default();
            for at in [0, 2, 1, 4, 3, 6, 5] {
                assert!(sequence.follows(&(at * len..(at + 1) * len), &LIMITS), "{at}");
            }
            assert_eq!(sequence.front, 7 * len);
        }
    }

    #[test]
    fn zero_window_disables_read_ahead() {
        let off = ReadAheadLimits { window_max: 0, ..LIMITS };
        let mut sequence = ReadSequence::default();
        assert!(sequence.follows(&(0..128 * K), &off));
        assert_eq!(sequence.next(0, u64::MAX, &off), None);
    }
}

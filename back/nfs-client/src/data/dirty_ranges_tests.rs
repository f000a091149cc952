//! The dirty ranges against a naive model of a file, a server and its crashes.

use proptest::prelude::*;
use tombolo_core::Stability;
use tombolo_mem::Source;
use tombolo_wire_nfs3::WriteVerifier;

use super::allowance::Allowance;
use super::dirty_ranges::{DirtyRanges, NewWrite};
use super::memory::Memory;
use super::piece::{Piece, WriteSeq, Wrote, overlap};

use crate::caller::Caller;

const SIZE: usize = 64;
const PIECE_MAX: usize = 24;

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        len: usize,
    },
    Send,
    /// Executes a pending WRITE on the server, which takes `count` bytes of it.
    Answer {
        which: usize,
        count: usize,
        stability: Stability,
    },
    Commit,
    CommitAnswer,
    Restart,
    Truncate(u64),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let stability = prop_oneof![3 => Just(Stability::Unstable), 1 => Just(Stability::FileSync)];
    let step = prop_oneof![
        6 => (0..56u64, 1..9usize).prop_map(|(offset, len)| Step::Write { offset, len }),
        6 => Just(Step::Send),
        8 => (0..8usize, 1..30usize, stability)
            .prop_map(|(which, count, stability)| Step::Answer { which, count, stability }),
        2 => Just(Step::Commit),
        3 => Just(Step::CommitAnswer),
        1 => Just(Step::Restart),
        1 => (0..64u64).prop_map(Step::Truncate),
        2 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..120)
}

/// A file whose bytes are the numbers of their writes; 0 was never written.
#[derive(Default)]
struct World {
    dirty: DirtyRanges,
    /// Sequence numbers of the writes, by number.
    written: Vec<WriteSeq>,
    file: Vec<u8>,
    under_way: Vec<Piece>,
    commit_sent: bool,
    /// State of the server: its disk, its cache, and its verifier.
    stable: Vec<u8>,
    cache: Vec<u8>,
    boot: u8,
    /// Condition of each flush, and the file's content when it began.
    flushes: Vec<(WriteSeq, Vec<u8>)>,
}

impl World {
    fn new() -> Self {
        let zero = || vec![0; SIZE];
        Self { file: zero(), stable: zero(), cache: zero(), ..Self::default() }
    }

    fn write(&mut self, offset: u64, len: usize) {
        let number = u8::try_from(self.written.len() + 1).expect("few writes");
        self.written.push(self.dirty.next_seq());
        self.file[offset as usize..offset as usize + len].fill(number);
        let write = NewWrite { offset, stability: Stability::Unstable, caller: &Caller::default() };
        let source = Source::from(vec![number; len]);
        if number % 3 == 0 && self.dirty.add_copy(&write, &source, PIECE_MAX) {
            return;
        }
        let charge = Allowance::new(1 << 20).take(len).expect("within the budget");
        self.dirty.add(&write, Memory::keep(source, charge), PIECE_MAX);
    }

    fn send(&mut self) {
        let Some(piece) = self.dirty.next() else { return };
        assert!(piece.len <= PIECE_MAX);
        assert!(self.under_way.iter().all(|other| !overlap(&other.range(), &piece.range())), "a race");
        self.under_way.push(piece);
    }

    fn answer(&mut self, which: usize, count: usize, stability: Stability) {
        if self.under_way.is_empty() {
            return;
        }
        let piece = self.under_way.remove(which % self.under_way.len());
        let count = count.min(piece.len);
        let stability = stability.max(piece.stability);
        let bytes = piece.source().to_vec(count);
        assert_eq!(bytes.len(), count);
        let place = piece.offset as usize..piece.offset as usize + count;
        self.cache[place.clone()].copy_from_slice(&bytes);
        if stability > Stability::Unstable {
            self.stable[place].copy_from_slice(&bytes);
        }
        self.dirty.answered(piece.offset, Wrote { count, stability, verifier: self.verifier() });
    }

    fn commit(&mut self) {
        self.commit_sent = self.commit_sent || self.dirty.begin_commit().is_some();
    }

    fn commit_answer(&mut self) {
        if std::mem::take(&mut self.commit_sent) {
            self.stable.clone_from(&self.cache);
            self.dirty.committed(self.verifier());
        }
    }

    fn restart(&mut self) {
        self.boot += 1;
        self.cache.clone_from(&self.stable);
    }

    /// Truncates as a client does: after all replies, with no COMMIT pending.
    fn truncate(&mut self, size: u64) {
        self.drain();
        self.commit_answer();
        self.drain();
        for image in [&mut self.file, &mut self.cache, &mut self.stable] {
            image[size as usize..].fill(0);
        }
        self.flushes.clear();
        self.dirty.truncated(size, self.dirty.next_seq());
    }

    fn drain(&mut self) {
        while self.dirty.has_next() || !self.under_way.is_empty() {
            self.send();
            self.answer(0, PIECE_MAX, Stability::Unstable);
        }
    }

    fn verifier(&self) -> WriteVerifier {
        WriteVerifier([self.boot; 8])
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Write { offset, len } => self.write(offset, len),
            Step::Send => self.send(),
            Step::Answer { which, count, stability } => self.answer(which, count, stability),
            Step::Commit => self.commit(),
            Step::CommitAnswer => self.commit_answer(),
            Step::Restart => self.restart(),
            Step::Truncate(size) => self.truncate(size),
            Step::Flush => self.flushes.push((self.dirty.next_seq(), self.file.clone())),
        }
    }

    /// Checks that after a flush the server's disk has the flushed bytes or newer ones.
    fn check(&mut self) {
        let dirty = &self.dirty;
        let over = |seq: WriteSeq| !dirty.has_pending(seq) && !dirty.has_uncommitted(seq);
        for (_, file) in self.flushes.extract_if(.., |(seq, _)| over(*seq)) {
            let kept = self.stable.iter().zip(&file).all(|(stable, flushed)| stable >= flushed);
            assert!(kept, "flushed {file:?}\nstable  {:?}", self.stable);
        }
        let end = self.dirty.end().unwrap_or(0) as usize;
        assert!(end <= SIZE);
        if self.dirty.is_empty() {
            assert_eq!(self.dirty.uncommitted_bytes() + self.dirty.waiting_bytes(), 0);
            assert_eq!(self.stable, self.file);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dropped_pieces_are_on_stable_storage(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
        }
        for _ in 0..8 {
            world.drain();
            world.commit();
            world.commit_answer();
            world.check();
        }
        prop_assert!(world.dirty.is_empty());
        prop_assert_eq!(&world.stable, &world.file);
        prop_assert!(world.flushes.is_empty());
    }
}

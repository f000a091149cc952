//! What outlives the process: a file in memory that the kernel keeps when the process is killed.
//!
//! Before an operation runs, an *intent* is written: the request, and what was there before. When it has
//! ended, its *outcome*, and only then the answer goes out. A slot counts from the moment its state is
//! stored, which happens last and in one access; so whenever the process dies, a slot holds a whole record or
//! none.

mod file;
mod layout;
mod record;
mod slots;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tombolo_core::fs::Timestamp;
use tombolo_mem::Region;

use super::intent::{Claim, Intent};
use super::key::EntryKey;
use super::outcome::{Inode, Outcome};
use layout::state;
use record::{intent_bytes, outcome_bytes};
use slots::Slots;

pub use file::{Found, Lock, OpenError, Tree};
pub use record::{FoundIntent, StoredOutcome};
pub use slots::{FreeSlot, Reserved};

/// How many operations with an intent may be under way. More wait for one of them to end.
const INTENTS: u32 = 1024;

/// Intents of operations that were answered hold no more of those places. Without the oldest the next process
/// does one more anew.
const ANSWERED_INTENTS: usize = 256;

/// So many more outcomes have room than are kept: an entry more may be made by each thread that finds the
/// same gap.
pub const OUTCOMES_SPARE: usize = 256;

/// The mapped state file.
#[derive(Debug)]
pub struct Journal {
    region: Region,
    intents: Arc<Slots>,
    outcomes: Slots,
    /// Of operations that were answered, by their sequence.
    answered: Mutex<BTreeMap<u64, Intended>>,
    sequence: AtomicU64,
    /// Whether it was said that the file is of no use any more.
    lost: AtomicBool,
    /// Locked as long as this lives.
    _file: File,
}

/// An intent that is written down.
#[derive(Debug)]
pub struct Intended {
    slot: u32,
    sequence: u64,
    claim: Claim,
}

/// What the file has of an operation that was answered.
#[derive(Debug)]
pub enum Kept {
    /// Its outcome, in this slot.
    Outcome(u32),
    /// Its intent, of this sequence: the outcome could not be written, and the next process has to look what
    /// became of it.
    Intent(u64),
}

impl Journal {
    /// The number that the next operation or outcome will have. Each call gives another one.
    pub fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Room for an intent.
    pub fn room(&self) -> Option<Reserved> {
        self.intents.reserve()
    }

    /// Room for an intent, once there is some.
    pub fn wait_for_room(&self) -> FreeSlot {
        self.intents.wait()
    }

    /// Writes an intent down. `None` when it does not fit.
    pub fn intend(&self, key: &EntryKey, intent: Intent, sequence: u64, room: Reserved) -> Option<Intended> {
        if self.is_lost() {
            return None;
        }
        let claim = intent.deed.claim();
        let (bytes, len) = intent_bytes(&FoundIntent { key: *key, intent, sequence, time: now() })?;
        let slot = room.into_number()?;
        self.publish(intent_offset(slot), bytes.get(..len)?, state::INTENT);
        Some(Intended { slot, sequence, claim })
    }

    /// Writes down how it ended. If that cannot be kept, the intent stays.
    pub fn conclude(
        &self,
        key: &EntryKey,
        intended: Intended,
        outcome: &Outcome,
        node: Option<Inode>,
    ) -> Kept {
        let (sequence, ended) = (intended.sequence, self.next_sequence());
        let claim = match outcome {
            Outcome::Failed(_) => 0,
            _ => intended.claim.with(node).number(),
        };
        let kept = StoredOutcome { key: *key, outcome: outcome.clone(), sequence, time: now(), claim, ended };
        let Some(kept) = self.keep(&kept) else { return self.leave(intended) };
        // Only then: in between both are there, and the outcome counts.
        self.withdraw(intended);
        kept
    }

    /// The intent stays, though the operation was answered.
    fn leave(&self, intended: Intended) -> Kept {
        let sequence = intended.sequence;
        let mut answered = self.answered();
        answered.insert(sequence, intended);
        let oldest = if answered.len() > ANSWERED_INTENTS { answered.pop_first() } else { None };
        drop(answered);
        oldest.into_iter().for_each(|(_, oldest)| self.withdraw(oldest));
        Kept::Intent(sequence)
    }

    fn answered(&self) -> MutexGuard<'_, BTreeMap<u64, Intended>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an outcome down. `None` when there is no room, or it cannot be kept.
    pub fn keep(&self, kept: &StoredOutcome) -> Option<Kept> {
        let bytes = outcome_bytes(kept)?;
        let slot = self.outcomes.take()?;
        self.publish(self.outcome_offset(slot), &bytes, state::OUTCOME);
        Some(Kept::Outcome(slot))
    }

    /// Takes an intent back: it has come to nothing, or to an outcome.
    #[allow(clippy::needless_pass_by_value, reason = "it is used up")]
    pub fn withdraw(&self, intended: Intended) {
        self.set_state(intent_offset(intended.slot), state::FREE);
        self.intents.give_back(intended.slot);
    }

    /// Frees the slot of what is forgotten.
    pub fn free(&self, kept: &Kept) {
        match *kept {
            Kept::Outcome(slot) => {
                self.set_state(self.outcome_offset(slot), state::FREE);
                self.outcomes.give_back(slot);
            }
            Kept::Intent(sequence) => {
                let intended = self.answered().remove(&sequence);
                intended.into_iter().for_each(|intended| self.withdraw(intended));
            }
        }
    }

    /// All but the state first, which says that the rest is there.
    fn publish(&self, offset: usize, bytes: &[u8], state: u16) {
        let Some(behind) = bytes.get(size_of::<u16>()..) else { return };
        // Slots lie inside the region: their numbers come from `Slots`, which the region was made for.
        let _ = self.region.write_at(offset + size_of::<u16>(), behind);
        self.set_state(offset, state);
    }

    fn set_state(&self, offset: usize, state: u16) {
        let _ = self.region.store_u16(offset, state.to_le(), Ordering::Release);
        // What is done from here on, the operation itself above all, is done after.
        fence(Ordering::SeqCst);
    }

    fn outcome_offset(&self, slot: u32) -> usize {
        intent_offset(INTENTS) + slot as usize * layout::OUTCOME_BYTES
    }

    /// Whether the file was truncated from outside, so that no record reaches it.
    fn is_lost(&self) -> bool {
        let lost = self.region.is_poisoned();
        if lost && !self.lost.swap(true, Ordering::Relaxed) {
            tracing::error!("the state file of replies was cut: a crash will not be survived");
        }
        lost
    }
}

fn intent_offset(slot: u32) -> usize {
    layout::HEADER_BYTES + slot as usize * layout::INTENT_BYTES
}

/// The wall clock, by which file systems say when a node was born.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

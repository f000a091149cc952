//! The journal: a mapped file that survives the death of the process.
//!
//! Before an operation that must not run twice, an *intent* is written: the request's key, the expected
//! effect and the present state. After the operation and before its reply is sent, the *outcome* is written.
//! A slot becomes valid with its state, stored last in one access, so a killed process leaves either a whole
//! record or none.

mod file;
mod layout;
mod record;
mod slots;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use tombolo_core::fs::Timestamp;
use tombolo_core::lock;
use tombolo_mem::Region;

use super::intent::{Claim, RecordedEffect};
use super::key::EntryKey;
use super::outcome::{Inode, Outcome};
use layout::state;
use record::{intent_bytes, outcome_bytes};
use slots::Slots;

pub use file::{Lock, OpenError, RecoveredRecords, Tree};
pub use record::{StoredIntent, StoredOutcome};
pub use slots::{FreeSlot, Reserved};

/// Maximum number of operations with an intent in progress. Further operations wait.
const INTENTS: u32 = 1024;

/// Maximum number of intents retained for answered operations whose outcomes could not be written: a quarter
/// of [`INTENTS`], so that slots remain for new operations. The oldest is dropped; the next process would
/// perform a duplicate of its operation again.
const ANSWERED_INTENTS: usize = 256;

/// Spare outcome slots above the limit of entries, which concurrent threads may exceed by one each.
pub const OUTCOMES_SPARE: usize = 256;

/// The mapped state file, and the allocation of its slots.
#[derive(Debug)]
pub struct Journal {
    region: Region,
    intents: Arc<Slots>,
    outcomes: Slots,
    /// Intents of answered operations whose outcomes could not be written, by sequence.
    answered: Mutex<BTreeMap<u64, Intended>>,
    sequence: AtomicU64,
    /// `true` once the loss of the file has been logged.
    lost: AtomicBool,
    /// Open file that holds the lock.
    _file: File,
}

/// A recorded intent, which its operation's end withdraws or retains.
#[derive(Debug)]
pub struct Intended {
    slot: u32,
    sequence: u64,
    claim: Claim,
}

/// Record of an answered operation, freed with the operation's entry.
#[derive(Debug)]
pub enum JournalRecord {
    /// The operation's outcome, in this slot.
    Outcome(u32),
    /// The operation's intent, with this sequence: the outcome could not be written, so the next process has
    /// to determine it.
    Intent(u64),
}

impl Journal {
    /// Returns the next sequence number, unique for each call.
    pub fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    pub fn reserve_intent_slot(&self) -> Option<Reserved> {
        self.intents.reserve()
    }

    pub fn wait_for_intent_slot(&self) -> FreeSlot {
        self.intents.wait()
    }

    /// Records an intent. Returns `None` if it cannot be represented in a slot, or the file is lost.
    pub fn intend(
        &self,
        key: &EntryKey,
        effect: RecordedEffect,
        sequence: u64,
        slot_reservation: Reserved,
    ) -> Option<Intended> {
        if self.is_lost() {
            return None;
        }
        let claim = effect.claim();
        let (bytes, len) = intent_bytes(&StoredIntent { key: *key, effect, sequence, time: now() })?;
        let slot = slot_reservation.into_number()?;
        self.publish(intent_offset(slot), bytes.get(..len)?, state::INTENT);
        Some(Intended { slot, sequence, claim })
    }

    /// Records the outcome. If that is impossible, the intent stays.
    pub fn conclude(
        &self,
        key: &EntryKey,
        intended: Intended,
        outcome: &Outcome,
        node: Option<Inode>,
    ) -> JournalRecord {
        let (sequence, ended) = (intended.sequence, self.next_sequence());
        let claim = match outcome {
            Outcome::Failed(_) => 0,
            _ => intended.claim.with(node).number(),
        };
        let stored =
            StoredOutcome { key: *key, outcome: outcome.clone(), sequence, time: now(), claim, ended };
        let Some(record) = self.keep(&stored) else { return self.retain_intent(intended) };
        // The intent is withdrawn after the outcome is written: while both exist, the outcome takes
        // precedence.
        self.withdraw(intended);
        record
    }

    /// Retains the intent of an answered operation whose outcome could not be written, and withdraws the
    /// oldest such intent beyond [`ANSWERED_INTENTS`].
    fn retain_intent(&self, intended: Intended) -> JournalRecord {
        let sequence = intended.sequence;
        let mut answered = lock(&self.answered);
        answered.insert(sequence, intended);
        let oldest = if answered.len() > ANSWERED_INTENTS { answered.pop_first() } else { None };
        drop(answered);
        oldest.into_iter().for_each(|(_, oldest)| self.withdraw(oldest));
        JournalRecord::Intent(sequence)
    }

    /// Records an outcome. Returns `None` if no slot is free, or if the outcome cannot be represented.
    pub fn keep(&self, stored: &StoredOutcome) -> Option<JournalRecord> {
        let bytes = outcome_bytes(stored)?;
        let slot = self.outcomes.take()?;
        self.publish(self.outcome_offset(slot), &bytes, state::OUTCOME);
        Some(JournalRecord::Outcome(slot))
    }

    /// Removes an intent, and frees its slot.
    #[allow(clippy::needless_pass_by_value, reason = "it is used up")]
    pub fn withdraw(&self, intended: Intended) {
        self.set_state(intent_offset(intended.slot), state::FREE);
        self.intents.give_back(intended.slot);
    }

    /// Frees the slot of an evicted entry.
    pub fn free(&self, record: &JournalRecord) {
        match *record {
            JournalRecord::Outcome(slot) => {
                self.set_state(self.outcome_offset(slot), state::FREE);
                self.outcomes.give_back(slot);
            }
            JournalRecord::Intent(sequence) => {
                let intended = lock(&self.answered).remove(&sequence);
                intended.into_iter().for_each(|intended| self.withdraw(intended));
            }
        }
    }

    /// Writes the record, and its state last, which makes it valid.
    fn publish(&self, offset: usize, bytes: &[u8], state: u16) {
        let Some(behind) = bytes.get(size_of::<u16>()..) else { return };
        // The write lies within the region, because slot numbers are from `Slots`, which matches the region's
        // size.
        let _ = self.region.write_at(offset + size_of::<u16>(), behind);
        self.set_state(offset, state);
    }

    fn set_state(&self, offset: usize, state: u16) {
        let _ = self.region.store_u16(offset, state.to_le(), Ordering::Release);
        // This fence orders later effects, above all the operation itself, after the record.
        fence(Ordering::SeqCst);
    }

    fn outcome_offset(&self, slot: u32) -> usize {
        intent_offset(INTENTS) + slot as usize * layout::OUTCOME_BYTES
    }

    /// Returns `true` if the file was truncated from outside, so that records are lost.
    fn is_lost(&self) -> bool {
        let lost = self.region.is_poisoned();
        if lost && !self.lost.swap(true, Ordering::Relaxed) {
            tracing::error!("the state file of replies was truncated: replies no longer survive a crash");
        }
        lost
    }
}

fn intent_offset(slot: u32) -> usize {
    layout::HEADER_BYTES + slot as usize * layout::INTENT_BYTES
}

/// Returns the wall clock time, which file systems use for birth times.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

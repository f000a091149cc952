//! The table of requests in progress and answered.

use std::hash::RandomState;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use tombolo_core::lock;

use super::append_locks::AppendLock;
use super::counters::Counters;
use super::failure::Failure;
use super::hashed::Hashed;
use super::journal::{Intended, Journal, JournalRecord, Reserved, StoredOutcome};
use super::key::{ClientKey, EntryKey};
use super::observe::Observation;
use super::options::Limits;
use super::outcome::{Inode, Outcome, PendingReply};
use super::shard::{Answered, EntryState, Shard};

/// Number of shards, each with its own lock. All entries of a client are in one shard.
const SHARDS: usize = 16;

/// Maximum number of outdated entries dropped per request: more than a request adds, so that outdated
/// entries do not accumulate.
const OUTDATED_AT_ONCE: usize = 4;

/// The entries of all clients, limited in number and age.
#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    entries: AtomicUsize,
    limits: Limits,
    counters: Arc<Counters>,
    /// State file for the next process; `None` if outcomes are in memory only.
    journal: Option<Journal>,
}

/// State of a request when it is looked up.
#[derive(Debug)]
pub(super) enum Begin {
    /// New: the caller performs the operation, and passes its outcome to [`RunningEntry::keep`] or
    /// [`RunningEntry::abandon`].
    First(RunningEntry),
    /// New, but there is no space for an entry: it runs unrecorded.
    Unrecorded,
    /// In progress: the outcome will be that of the original.
    Running(Arc<PendingReply>),
    /// Answered, with this outcome.
    Answered(Outcome),
}

impl Table {
    pub fn new(limits: Limits, counters: Arc<Counters>, journal: Option<Journal>) -> Arc<Self> {
        Arc::new(Self {
            shards: Default::default(),
            hasher: RandomState::new(),
            entries: AtomicUsize::new(0),
            limits,
            counters,
            journal,
        })
    }

    /// Looks a request up, and adds it if it is new.
    pub fn begin(self: &Arc<Self>, key: EntryKey) -> Begin {
        let now = Instant::now();
        let client = Hashed::new(key.client(), &self.hasher);
        let hashed = Hashed::new(key, &self.hasher);
        let mut shard = self.shard(&client);
        for _ in 0..OUTDATED_AT_ONCE {
            let Some(outdated) = shard.outdated(now, self.limits.age) else { break };
            self.evict(&mut shard, outdated);
        }
        if let Some(existing) = self.existing(&mut shard, &hashed, now) {
            return existing;
        }
        if !self.make_space(&mut shard, &client) {
            drop(shard);
            if !self.make_space_elsewhere(&client) {
                self.counters.unremembered.increment();
                return Begin::Unrecorded;
            }
            // Concurrent threads may have found the same free space, so the limit may be exceeded by the
            // number of threads.
            shard = self.shard(&client);
            if let Some(existing) = self.existing(&mut shard, &hashed, now) {
                return existing;
            }
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        let number = shard.begin(hashed, client);
        drop(shard);
        Begin::First(RunningEntry {
            table: self.clone(),
            key,
            client,
            number,
            intended: None,
            append_lock: None,
            if_dropped: Failure::IO,
            finished: false,
        })
    }

    /// Returns the state of a known request; `None` if the request is new, or its outcome was too old.
    fn existing(&self, shard: &mut Shard, key: &Hashed<EntryKey>, now: Instant) -> Option<Begin> {
        let number = shard.find(key)?;
        match shard.state(number)? {
            EntryState::Running(pending) => {
                self.counters.hits_in_progress.increment();
                Some(Begin::Running(pending.get_or_insert_default().clone()))
            }
            EntryState::Answered(Answered { outcome, at, .. }) => {
                if now.saturating_duration_since(*at) <= self.limits.age {
                    self.counters.hits_done.increment();
                    return Some(Begin::Answered(outcome.clone()));
                }
                self.evict(shard, number);
                None
            }
        }
    }

    /// Adds an outcome of an earlier process. The newest must be added last, because each may evict an older
    /// one.
    pub fn restore(&self, stored: StoredOutcome) {
        let client = Hashed::new(stored.key.client(), &self.hasher);
        let key = Hashed::new(stored.key, &self.hasher);
        if !self.make_space(&mut self.shard(&client), &client) && !self.make_space_elsewhere(&client) {
            return;
        }
        let mut shard = self.shard(&client);
        if shard.find(&key).is_some() {
            return;
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        let number = shard.begin(key, client);
        let record = self.journal.as_ref().and_then(|journal| journal.keep(&stored));
        shard.answer(number, Answered { outcome: stored.outcome, at: Instant::now(), record });
    }

    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Makes space for another entry of `client`, by evicting an older one if necessary; `false` if that is
    /// impossible. While the total permits, a client may exceed [`Limits::entries_per_client`], unless it has
    /// few requests in progress: its entries then stay few enough for the CPU's cache.
    fn make_space(&self, shard: &mut Shard, client: &Hashed<ClientKey>) -> bool {
        let (entries, oldest) = shard.of(client);
        let has_all_it_asks_for = entries >= self.limits.entries_per_client && client.key.has_few_under_way();
        if !has_all_it_asks_for && self.entries.load(Ordering::Relaxed) < self.limits.entries {
            return true;
        }
        if entries >= self.limits.entries_per_client {
            return oldest.is_some_and(|oldest| self.evict(shard, oldest));
        }
        // A shard with few entries evicts none of its own: each new entry of a client would evict the
        // client's previous one. The caller then evicts from another shard.
        let has_its_part = shard.len() >= self.limits.entries.div_ceil(SHARDS);
        has_its_part && shard.oldest().is_some_and(|(oldest, _)| self.evict(shard, oldest))
    }

    /// Makes space by evicting the oldest answered entry of all clients; `false` if there is none, or
    /// `client` has reached its limit. The caller must have no shard locked, as each shard is locked in turn.
    fn make_space_elsewhere(&self, client: &Hashed<ClientKey>) -> bool {
        if self.shard(client).of(client).0 >= self.limits.entries_per_client {
            return false;
        }
        let oldest_of = |shard: &Mutex<Shard>| lock(shard).oldest().map(|(_, at)| at);
        let oldest = self.shards.iter().filter_map(|shard| Some((oldest_of(shard)?, shard)));
        let Some((_, shard)) = oldest.min_by_key(|(at, _)| *at) else { return false };
        let mut shard = lock(shard);
        shard.oldest().is_some_and(|(oldest, _)| self.evict(&mut shard, oldest))
    }

    fn evict(&self, shard: &mut Shard, number: u32) -> bool {
        let Some(state) = shard.remove(number) else { return false };
        if let (EntryState::Answered(Answered { record: Some(record), .. }), Some(journal)) =
            (state, &self.journal)
        {
            journal.free(&record);
        }
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.counters.evicted.increment();
        true
    }

    fn shard(&self, client: &Hashed<ClientKey>) -> MutexGuard<'_, Shard> {
        // The shard is chosen by the upper half of the hash, because the shard's map of clients uses the
        // lower half. The remainder is a valid index.
        let number = (client.hash >> 32) as usize % SHARDS;
        lock(self.shards.get(number).unwrap_or(&self.shards[0]))
    }
}

/// A request's entry, owned by its execution.
#[derive(Debug)]
pub(super) struct RunningEntry {
    table: Arc<Table>,
    key: EntryKey,
    client: Hashed<ClientKey>,
    /// Number of the entry in the client's shard.
    number: u32,
    intended: Option<Intended>,
    /// Lock against other appends to the file, released once the outcome is kept.
    append_lock: Option<AppendLock>,
    /// Outcome for waiters if the entry is dropped unfinished.
    if_dropped: Failure,
    finished: bool,
}

impl RunningEntry {
    /// Returns the journal, if there is one and the request's key is valid in the next process.
    pub fn journal(&self) -> Option<&Journal> {
        self.table.journal().filter(|_| self.key.outlives_the_process())
    }

    /// Marks the operation as cancellable: if its caller drops it, duplicates see `INTERRUPTED` instead of an
    /// I/O error.
    pub fn set_cancellable(&mut self) {
        self.if_dropped = Failure::INTERRUPTED;
    }

    /// Records the intent, with the state observed after `sequence` was taken. The operation runs even if the
    /// state could not be observed or the intent does not fit.
    pub fn intend(&mut self, observed: Option<Observation>, sequence: u64, slot_reservation: Reserved) {
        let Some(journal) = self.journal() else { return };
        let (effect, append_lock) =
            observed.map_or((None, None), |observed| (Some(observed.effect), observed.append_lock));
        let intended =
            effect.and_then(|effect| journal.intend(&self.key, effect, sequence, slot_reservation));
        if intended.is_none() {
            self.table.counters.unprotected.increment();
        }
        self.intended = intended;
        self.append_lock = append_lock;
    }

    /// Stores the outcome for waiters and later duplicates. `node` is the created or opened node.
    pub fn keep(mut self, outcome: Outcome, node: Option<Inode>) {
        self.finished = true;
        // The journal is written first: once a client has the reply, the next process must know the outcome
        // too.
        let record = match (&self.table.journal, self.intended.take()) {
            (Some(journal), Some(intended)) => Some(journal.conclude(&self.key, intended, &outcome, node)),
            _ => None,
        };
        if matches!(record, Some(JournalRecord::Intent(_))) {
            self.table.counters.unprotected.increment();
        }
        let answered = Answered { outcome, at: Instant::now(), record };
        let waited_for = self.table.shard(&self.client).answer(self.number, answered);
        self.table.counters.recorded.increment();
        if let Some((pending, outcome)) = waited_for {
            pending.keep(outcome);
        }
    }

    /// Answers the waiters, withdraws the intent and removes the entry, so that a later duplicate runs again.
    pub fn abandon(mut self, failure: Failure) {
        if let (Some(journal), Some(intended)) = (&self.table.journal, self.intended.take()) {
            journal.withdraw(intended);
        }
        self.remove(failure);
    }

    fn remove(&mut self, failure: Failure) {
        self.finished = true;
        let removed = self.table.shard(&self.client).remove(self.number);
        if let Some(state) = removed {
            self.table.entries.fetch_sub(1, Ordering::Relaxed);
            if let EntryState::Running(Some(pending)) = state {
                pending.keep(Outcome::Failed(failure));
            }
        }
    }
}

impl Drop for RunningEntry {
    /// Answers the waiters of a cancelled or panicked operation. After a panic the intent is withdrawn,
    /// because this process continues and needs its slot. Otherwise it stays for the next process, as this
    /// one ends.
    fn drop(&mut self) {
        if !self.finished {
            if thread::panicking()
                && let (Some(journal), Some(intended)) = (&self.table.journal, self.intended.take())
            {
                journal.withdraw(intended);
            }
            self.remove(self.if_dropped);
        }
    }
}

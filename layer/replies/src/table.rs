//! Which requests are under way or were answered.

use std::hash::RandomState;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::append_locks::AppendLock;
use super::counters::Counters;
use super::failure::Failure;
use super::hashed::Hashed;
use super::journal::{Intended, Journal, Kept, Reserved, StoredOutcome};
use super::key::{ClientKey, EntryKey};
use super::look::Seen;
use super::options::Limits;
use super::outcome::{Inode, Outcome, PendingReply};
use super::shard::{Answered, Shard, State};

/// So many locks; a client's entries are all behind one of them.
const SHARDS: usize = 16;

/// How many entries a request may drop because of their age, on its way. More than it adds, so none are left
/// over.
const OUTDATED_AT_ONCE: usize = 4;

/// The entries of all clients.
#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    entries: AtomicUsize,
    limits: Limits,
    counters: Arc<Counters>,
    /// Where outcomes are kept for the next process.
    journal: Option<Journal>,
}

/// What the table says to a request.
#[derive(Debug)]
pub(super) enum Begin {
    /// It is new. It holds the entry and must finish it.
    First(Entry),
    /// It is new, and there is no room for it: it runs, unrecorded.
    Unremembered,
    /// It is under way.
    Running(Arc<PendingReply>),
    /// It was answered.
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

    /// Looks a request up, and enters it when it is new.
    pub fn begin(self: &Arc<Self>, key: EntryKey) -> Begin {
        let now = Instant::now();
        let client = Hashed::new(key.client(), &self.hasher);
        let hashed = Hashed::new(key, &self.hasher);
        let mut shard = self.shard(&client);
        for _ in 0..OUTDATED_AT_ONCE {
            let Some(outdated) = shard.outdated(now, self.limits.age) else { break };
            self.evict(&mut shard, outdated);
        }
        if let Some(known) = self.known(&mut shard, &hashed, now) {
            return known;
        }
        if !self.make_room(&mut shard, &client) {
            drop(shard);
            if !self.make_room_elsewhere(&client) {
                self.counters.unremembered.count();
                return Begin::Unremembered;
            }
            // Other threads may have found the same gap meanwhile: the limit may be passed by as many as
            // there are threads.
            shard = self.shard(&client);
            if let Some(known) = self.known(&mut shard, &hashed, now) {
                return known;
            }
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        let number = shard.begin(hashed, client);
        drop(shard);
        Begin::First(Entry {
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

    /// What a request gets that is not new.
    fn known(&self, shard: &mut Shard, key: &Hashed<EntryKey>, now: Instant) -> Option<Begin> {
        let number = shard.find(key)?;
        match shard.state(number)? {
            State::Running(pending) => {
                self.counters.hits_in_progress.count();
                Some(Begin::Running(pending.get_or_insert_default().clone()))
            }
            State::Answered(Answered { outcome, at, .. }) => {
                if now.saturating_duration_since(*at) <= self.limits.age {
                    self.counters.hits_done.count();
                    return Some(Begin::Answered(outcome.clone()));
                }
                self.evict(shard, number);
                None
            }
        }
    }

    /// Enters an outcome that an earlier process came to. The newest must come last: one for which there is
    /// no room pushes out an older one.
    pub fn restore(&self, kept: StoredOutcome) {
        let client = Hashed::new(kept.key.client(), &self.hasher);
        let key = Hashed::new(kept.key, &self.hasher);
        if !self.make_room(&mut self.shard(&client), &client) && !self.make_room_elsewhere(&client) {
            return;
        }
        let mut shard = self.shard(&client);
        if shard.find(&key).is_some() {
            return;
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        let number = shard.begin(key, client);
        let record = self.journal.as_ref().and_then(|journal| journal.keep(&kept));
        shard.answer(number, Answered { outcome: kept.outcome, at: Instant::now(), kept: record });
    }

    /// Where outcomes are kept for the next process.
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Whether there is room for another entry of `client`, perhaps because an older one made it. While there
    /// is room for all, a client may have more than its part, unless it never asks for so many again: what it
    /// has then stays close at hand.
    fn make_room(&self, shard: &mut Shard, client: &Hashed<ClientKey>) -> bool {
        let (entries, oldest) = shard.of(client);
        let has_all_it_asks_for = entries >= self.limits.entries_per_client && client.key.has_few_under_way();
        if !has_all_it_asks_for && self.entries.load(Ordering::Relaxed) < self.limits.entries {
            return true;
        }
        if entries >= self.limits.entries_per_client {
            return oldest.is_some_and(|oldest| self.evict(shard, oldest));
        }
        // A shard that holds less than its part takes from another, or a client's only outcome would make
        // room for its next.
        let has_its_part = shard.len() >= self.limits.entries.div_ceil(SHARDS);
        has_its_part && shard.oldest().is_some_and(|(oldest, _)| self.evict(shard, oldest))
    }

    /// As `make_room`, among the entries of other clients: the oldest of all goes. Called with no shard
    /// locked; one is at a time.
    fn make_room_elsewhere(&self, client: &Hashed<ClientKey>) -> bool {
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
        if let (State::Answered(Answered { kept: Some(kept), .. }), Some(journal)) = (state, &self.journal) {
            journal.free(&kept);
        }
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.counters.evicted.count();
        true
    }

    fn shard(&self, client: &Hashed<ClientKey>) -> MutexGuard<'_, Shard> {
        // The upper half of the hash: the map inside goes by the lower. The remainder is a number of a shard.
        let number = (client.hash >> 32) as usize % SHARDS;
        lock(self.shards.get(number).unwrap_or(&self.shards[0]))
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request's entry, held by its execution.
#[derive(Debug)]
pub(super) struct Entry {
    table: Arc<Table>,
    key: EntryKey,
    client: Hashed<ClientKey>,
    /// Its number in its client's shard.
    number: u32,
    intended: Option<Intended>,
    /// Given to the next once the outcome is kept.
    append_lock: Option<AppendLock>,
    /// What waiters get if it is dropped unfinished.
    if_dropped: Failure,
    finished: bool,
}

impl Entry {
    /// The journal that this request belongs in.
    pub fn journal(&self) -> Option<&Journal> {
        self.table.journal().filter(|_| self.key.outlives_the_process())
    }

    /// Says that the operation may be given up.
    pub fn may_be_given_up(&mut self) {
        self.if_dropped = Failure::INTERRUPTED;
    }

    /// Writes down what is about to be done, seen since `sequence` was next. What cannot be seen or does not
    /// fit is done all the same.
    pub fn intend(&mut self, seen: Option<Seen>, sequence: u64, room: Reserved) {
        let Some(journal) = self.journal() else { return };
        let (intent, append_lock) = seen.map_or((None, None), |seen| (Some(seen.intent), seen.append_lock));
        let intended = intent.and_then(|intent| journal.intend(&self.key, intent, sequence, room));
        if intended.is_none() {
            self.table.counters.unprotected.count();
        }
        self.intended = intended;
        self.append_lock = append_lock;
    }

    /// Keeps the outcome, for waiters and later duplicates. `node` is what was made.
    pub fn keep(mut self, outcome: Outcome, node: Option<Inode>) {
        self.finished = true;
        // First where it is safe: once a client has the answer, the next process must know it too.
        let kept = match (&self.table.journal, self.intended.take()) {
            (Some(journal), Some(intended)) => Some(journal.conclude(&self.key, intended, &outcome, node)),
            _ => None,
        };
        if matches!(kept, Some(Kept::Intent(_))) {
            self.table.counters.unprotected.count();
        }
        let answered = Answered { outcome, at: Instant::now(), kept };
        let waited_for = self.table.shard(&self.client).answer(self.number, answered);
        self.table.counters.recorded.count();
        if let Some((pending, outcome)) = waited_for {
            pending.keep(outcome);
        }
    }

    /// Tells the waiters, and keeps nothing.
    pub fn drop_with(mut self, failure: Failure) {
        if let (Some(journal), Some(intended)) = (&self.table.journal, self.intended.take()) {
            journal.withdraw(intended);
        }
        self.take_out(failure);
    }

    fn take_out(&mut self, failure: Failure) {
        self.finished = true;
        let removed = self.table.shard(&self.client).remove(self.number);
        if let Some(state) = removed {
            self.table.entries.fetch_sub(1, Ordering::Relaxed);
            if let State::Running(Some(pending)) = state {
                pending.keep(Outcome::Failed(failure));
            }
        }
    }
}

impl Drop for Entry {
    /// It was given up, or its end is not known (a panic): its waiters should not wait for ever. The next
    /// process may find out, if it comes to that. After a panic this one goes on, and needs the room.
    fn drop(&mut self) {
        if !self.finished {
            if thread::panicking()
                && let (Some(journal), Some(intended)) = (&self.table.journal, self.intended.take())
            {
                journal.withdraw(intended);
            }
            self.take_out(self.if_dropped);
        }
    }
}

//! Which requests are under way or were answered.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::counters::Counters;
use super::failure::Failure;
use super::flight::Flight;
use super::key::{ClientKey, EntryKey};
use super::options::Limits;
use super::outcome::Outcome;
use super::shelf::{Answered, Shelf, State};

/// So many locks; a client's entries are all behind one of them.
const SHELVES: usize = 16;

/// How many entries a request may drop because of their age, on its way. More than it adds, so none are left over.
const OUTDATED_AT_ONCE: usize = 4;

/// The entries of all clients.
#[derive(Debug)]
pub(super) struct Table {
    shelves: [Mutex<Shelf>; SHELVES],
    hasher: RandomState,
    entries: AtomicUsize,
    limits: Limits,
    counters: Arc<Counters>,
}

/// What the table says to a request.
#[derive(Debug)]
pub(super) enum Begin {
    /// It is new. It holds the entry and must finish it.
    First(Entry),
    /// It is new, and there is no room for it: it runs, and nobody will know.
    Unremembered,
    /// It is under way.
    Running(Arc<Flight>),
    /// It was answered.
    Answered(Outcome),
}

impl Table {
    pub fn new(limits: Limits, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            shelves: Default::default(),
            hasher: RandomState::new(),
            entries: AtomicUsize::new(0),
            limits,
            counters,
        })
    }

    /// Looks a request up, and enters it when it is new.
    pub fn begin(self: &Arc<Self>, key: EntryKey) -> Begin {
        let now = Instant::now();
        let mut shelf = self.shelf(key.client());
        for _ in 0..OUTDATED_AT_ONCE {
            let Some(outdated) = shelf.outdated(now, self.limits.age) else { break };
            self.evict(&mut shelf, &outdated);
        }
        match shelf.find(&key) {
            Some(State::Running(flight)) => {
                self.counters.hits_in_progress.count();
                return Begin::Running(flight.get_or_insert_default().clone());
            }
            Some(State::Answered(Answered { outcome, at })) => {
                if now.saturating_duration_since(*at) <= self.limits.age {
                    self.counters.hits_done.count();
                    return Begin::Answered(outcome.clone());
                }
                self.evict(&mut shelf, &key);
            }
            None => {}
        }
        if !self.make_room(&mut shelf, key.client()) {
            drop(shelf);
            if !self.make_room_elsewhere(key.client()) {
                self.counters.unremembered.count();
                return Begin::Unremembered;
            }
            // Whoever else found the same gap meanwhile has it too: the limit may be passed by as many as there are threads.
            shelf = self.shelf(key.client());
            if shelf.find(&key).is_some() {
                drop(shelf);
                return self.begin(key);
            }
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        shelf.begin(key);
        Begin::First(Entry { table: self.clone(), key, finished: false })
    }

    /// Drops what a session's sequence numbers have left.
    pub fn forget(&self, client: ClientKey) {
        let mut shelf = self.shelf(client);
        while let Some(key) = shelf.oldest_of(client) {
            self.evict(&mut shelf, &key);
        }
    }

    /// Whether there is room for another entry of `client`, perhaps because an older one made it.
    fn make_room(&self, shelf: &mut Shelf, client: ClientKey) -> bool {
        if shelf.entries_of(client) >= self.limits.entries_per_client {
            return match shelf.oldest_of(client) {
                Some(oldest) => self.evict(shelf, &oldest),
                None => false,
            };
        }
        if self.entries.load(Ordering::Relaxed) < self.limits.entries {
            return true;
        }
        shelf.oldest().is_some_and(|oldest| self.evict(shelf, &oldest))
    }

    /// As `make_room`, among the entries of other clients. Called with no shelf locked.
    fn make_room_elsewhere(&self, client: ClientKey) -> bool {
        if self.shelf(client).entries_of(client) >= self.limits.entries_per_client {
            return false;
        }
        self.shelves.iter().any(|shelf| {
            let mut shelf = lock(shelf);
            shelf.oldest().is_some_and(|oldest| self.evict(&mut shelf, &oldest))
        })
    }

    fn evict(&self, shelf: &mut Shelf, key: &EntryKey) -> bool {
        let found = shelf.remove(key).is_some();
        if found {
            self.entries.fetch_sub(1, Ordering::Relaxed);
            self.counters.evicted.count();
        }
        found
    }

    fn shelf(&self, client: ClientKey) -> MutexGuard<'_, Shelf> {
        let number = self.hasher.hash_one(client) as usize % SHELVES;
        // The remainder is a number of a shelf.
        lock(self.shelves.get(number).unwrap_or(&self.shelves[0]))
    }
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request's entry, held by whoever performs it.
#[derive(Debug)]
pub(super) struct Entry {
    table: Arc<Table>,
    key: EntryKey,
    finished: bool,
}

impl Entry {
    /// Keeps the outcome, for those who wait and those who come.
    pub fn keep(mut self, outcome: Outcome) {
        self.finished = true;
        let answered = Answered { outcome, at: Instant::now() };
        let waited_for = self.table.shelf(self.key.client()).answer(&self.key, answered);
        self.table.counters.recorded.count();
        if let Some((flight, outcome)) = waited_for {
            flight.land(outcome);
        }
    }

    /// Tells those who wait, and keeps nothing.
    pub fn drop_with(mut self, failure: Failure) {
        self.take_out(failure);
    }

    fn take_out(&mut self, failure: Failure) {
        self.finished = true;
        let removed = self.table.shelf(self.key.client()).remove(&self.key);
        if let Some(state) = removed {
            self.table.entries.fetch_sub(1, Ordering::Relaxed);
            if let State::Running(Some(flight)) = state {
                flight.land(Outcome::Failed(failure));
            }
        }
    }
}

impl Drop for Entry {
    /// Nobody knows how it ended (a panic): who waits for it should not wait for ever.
    fn drop(&mut self) {
        if !self.finished {
            self.take_out(Failure::IO);
        }
    }
}

//! The entries of some clients, in the order of their age.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chain::{Chain, Linked, Links};
use super::flight::Flight;
use super::key::{ClientKey, EntryKey};
use super::outcome::Outcome;

/// One part of a [`Table`](super::table::Table).
#[derive(Debug, Default)]
pub(super) struct Shelf {
    index: HashMap<EntryKey, u32>,
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    /// All that are answered.
    answered: Chain,
    clients: HashMap<ClientKey, Client>,
}

/// What a client has here.
#[derive(Debug, Default)]
struct Client {
    entries: usize,
    answered: Chain,
}

#[derive(Debug)]
struct Entry {
    key: EntryKey,
    state: State,
    in_all: Links,
    in_client: Links,
}

/// How far an operation has come.
#[derive(Debug)]
pub(super) enum State {
    /// Under way; others may wait for it.
    Running(Option<Arc<Flight>>),
    /// Answered.
    Answered(Answered),
}

/// An outcome that is kept.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub outcome: Outcome,
    pub at: Instant,
    /// Where the journal keeps it.
    pub slot: Option<u32>,
}

impl Shelf {
    /// The entry of `key`.
    pub fn find(&mut self, key: &EntryKey) -> Option<&mut State> {
        let index = *self.index.get(key)?;
        self.entries.get_mut(index as usize).map(|entry| &mut entry.state)
    }

    /// Adds an entry for an operation that begins. There is none of this key.
    pub fn begin(&mut self, key: EntryKey) {
        let entry =
            Entry { key, state: State::Running(None), in_all: Links::default(), in_client: Links::default() };
        let vacant = self.vacant.pop().and_then(|index| Some((index, self.entries.get_mut(index as usize)?)));
        let index = match vacant {
            Some((index, place)) => {
                *place = entry;
                index
            }
            None => {
                self.entries.push(entry);
                // Limited far below, by the number of entries that a table may have.
                (self.entries.len() - 1) as u32
            }
        };
        self.index.insert(key, index);
        self.clients.entry(key.client()).or_default().entries += 1;
    }

    /// Keeps the outcome of an operation that was under way. If others wait for it, the caller must let it land.
    pub fn answer(&mut self, key: &EntryKey, answered: Answered) -> Option<(Arc<Flight>, Outcome)> {
        let index = *self.index.get(key)?;
        let entry = self.entries.get_mut(index as usize)?;
        let State::Running(flight) = &mut entry.state else { return None };
        let waited_for = flight.take().map(|flight| (flight, answered.outcome.clone()));
        entry.state = State::Answered(answered);
        self.answered.push(&mut InAll(&mut self.entries), index);
        if let Some(client) = self.clients.get_mut(&key.client()) {
            client.answered.push(&mut InClient(&mut self.entries), index);
        }
        waited_for
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: &EntryKey) -> Option<State> {
        let index = self.index.remove(key)?;
        let entry = self.entries.get_mut(index as usize)?;
        let state = std::mem::replace(&mut entry.state, State::Running(None));
        let client = self.clients.get_mut(&key.client())?;
        if matches!(state, State::Answered(_)) {
            self.answered.remove(&mut InAll(&mut self.entries), index);
            client.answered.remove(&mut InClient(&mut self.entries), index);
        }
        client.entries -= 1;
        if client.entries == 0 {
            self.clients.remove(&key.client());
        }
        self.vacant.push(index);
        Some(state)
    }

    /// How many entries a client has.
    pub fn entries_of(&self, client: ClientKey) -> usize {
        self.clients.get(&client).map_or(0, |client| client.entries)
    }

    /// The oldest answered entry of a client.
    pub fn oldest_of(&self, client: ClientKey) -> Option<EntryKey> {
        self.key_at(self.clients.get(&client)?.answered.oldest?)
    }

    /// The oldest answered entry.
    pub fn oldest(&self) -> Option<EntryKey> {
        self.key_at(self.answered.oldest?)
    }

    /// The oldest answered entry, if it is older than `age`.
    pub fn outdated(&self, now: Instant, age: Duration) -> Option<EntryKey> {
        let entry = self.entries.get(self.answered.oldest? as usize)?;
        let State::Answered(answered) = &entry.state else { return None };
        (now.saturating_duration_since(answered.at) > age).then_some(entry.key)
    }

    fn key_at(&self, index: u32) -> Option<EntryKey> {
        self.entries.get(index as usize).map(|entry| entry.key)
    }
}

struct InAll<'a>(&'a mut Vec<Entry>);

impl Linked for InAll<'_> {
    fn links(&mut self, index: u32) -> Option<&mut Links> {
        self.0.get_mut(index as usize).map(|entry| &mut entry.in_all)
    }
}

struct InClient<'a>(&'a mut Vec<Entry>);

impl Linked for InClient<'_> {
    fn links(&mut self, index: u32) -> Option<&mut Links> {
        self.0.get_mut(index as usize).map(|entry| &mut entry.in_client)
    }
}

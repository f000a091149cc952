//! The entries of some clients, in order of age.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use super::chain::{Chain, Linked, Links};
use super::hashed::{BuildPrecomputed, Hashed};
use super::journal::JournalRecord;
use super::key::{ClientKey, EntryKey};
use super::outcome::{Outcome, PendingReply};

/// A shard of a [`Table`](super::table::Table). Entries and clients have numbers of 32 bits, as a table has
/// far fewer entries than 2³².
#[derive(Debug, Default)]
pub(super) struct Shard {
    index: HashMap<Hashed<EntryKey>, u32, BuildPrecomputed>,
    entries: Slab<Entry>,
    /// All answered entries, the oldest reply first.
    answered: Chain,
    client_index: HashMap<Hashed<ClientKey>, u32, BuildPrecomputed>,
    clients: Slab<Client>,
}

/// A client's entries in this shard.
#[derive(Debug)]
struct Client {
    key: Hashed<ClientKey>,
    entries: usize,
    answered: Chain,
}

#[derive(Debug)]
struct Entry {
    key: Hashed<EntryKey>,
    /// Number of the client in [`Shard::clients`].
    client: u32,
    state: EntryState,
    /// Neighbours in [`Shard::answered`].
    in_all: Links,
    /// Neighbours in [`Client::answered`].
    in_client: Links,
}

#[derive(Debug)]
pub(super) enum EntryState {
    /// In progress, with the reply for which duplicates wait, if any.
    Running(Option<Arc<PendingReply>>),
    /// Answered: the outcome is kept for duplicates.
    Answered(Answered),
}

/// An outcome kept for duplicates, and the time of the reply, or of the restart that restored the outcome.
#[derive(Debug)]
pub(super) struct Answered {
    pub outcome: Outcome,
    pub at: Instant,
    /// The outcome's record in the journal, if any.
    pub record: Option<JournalRecord>,
}

impl Shard {
    pub fn find(&self, key: &Hashed<EntryKey>) -> Option<u32> {
        self.index.get(key).copied()
    }

    /// Returns the state of an entry; `None` if there is no entry of this number.
    pub fn state(&mut self, number: u32) -> Option<&mut EntryState> {
        self.entries.get_mut(number as usize).map(|entry| &mut entry.state)
    }

    /// Adds an entry for a new operation, and returns its number, valid until the entry is removed. `key`
    /// must not have an entry, as the index holds one number per key.
    pub fn begin(&mut self, key: Hashed<EntryKey>, client: Hashed<ClientKey>) -> u32 {
        let new_client = Client { key: client, entries: 0, answered: Chain::default() };
        let client =
            *self.client_index.entry(client).or_insert_with(|| self.clients.insert(new_client) as u32);
        if let Some(client) = self.clients.get_mut(client as usize) {
            client.entries += 1;
        }
        let (in_all, in_client) = (Links::default(), Links::default());
        let entry = Entry { key, client, state: EntryState::Running(None), in_all, in_client };
        let number = self.entries.insert(entry) as u32;
        self.index.insert(key, number);
        number
    }

    /// Stores the outcome of an operation in progress. Returns the promise to be kept, if duplicates wait for
    /// the outcome.
    pub fn answer(&mut self, number: u32, answered: Answered) -> Option<(Arc<PendingReply>, Outcome)> {
        let entry = self.entries.get_mut(number as usize)?;
        let EntryState::Running(pending) = &mut entry.state else { return None };
        let waited_for = pending.take().map(|pending| (pending, answered.outcome.clone()));
        entry.state = EntryState::Answered(answered);
        let client = entry.client;
        self.answered.push(&mut InAll(&mut self.entries), number);
        if let Some(client) = self.clients.get_mut(client as usize) {
            client.answered.push(&mut InClient(&mut self.entries), number);
        }
        waited_for
    }

    pub fn remove(&mut self, number: u32) -> Option<EntryState> {
        let entry = self.entries.get_mut(number as usize)?;
        let (key, client) = (entry.key, entry.client);
        let was_answered = matches!(entry.state, EntryState::Answered(_));
        self.index.remove(&key)?;
        if was_answered {
            self.answered.remove(&mut InAll(&mut self.entries), number);
        }
        if let Some(of_client) = self.clients.get_mut(client as usize) {
            if was_answered {
                of_client.answered.remove(&mut InClient(&mut self.entries), number);
            }
            of_client.entries -= 1;
            if of_client.entries == 0 {
                let key = of_client.key;
                self.client_index.remove(&key);
                self.clients.try_remove(client as usize);
            }
        }
        self.entries.try_remove(number as usize).map(|entry| entry.state)
    }

    /// Returns the number of a client's entries, and the oldest answered one.
    pub fn of(&self, client: &Hashed<ClientKey>) -> (usize, Option<u32>) {
        let client = self.client_index.get(client).and_then(|number| self.clients.get(*number as usize));
        client.map_or((0, None), |client| (client.entries, client.answered.oldest))
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the oldest answered entry, and the time of its reply.
    pub fn oldest(&self) -> Option<(u32, Instant)> {
        let oldest = self.answered.oldest?;
        let EntryState::Answered(answered) = &self.entries.get(oldest as usize)?.state else { return None };
        Some((oldest, answered.at))
    }

    /// Returns the oldest answered entry, if it is older than `age`.
    pub fn outdated(&self, now: Instant, age: Duration) -> Option<u32> {
        let (oldest, at) = self.oldest()?;
        (now.saturating_duration_since(at) > age).then_some(oldest)
    }
}

/// The entries as linked in [`Shard::answered`].
struct InAll<'a>(&'a mut Slab<Entry>);

impl Linked for InAll<'_> {
    fn links(&mut self, index: u32) -> Option<&mut Links> {
        self.0.get_mut(index as usize).map(|entry| &mut entry.in_all)
    }
}

/// The entries as linked in [`Client::answered`].
struct InClient<'a>(&'a mut Slab<Entry>);

impl Linked for InClient<'_> {
    fn links(&mut self, index: u32) -> Option<&mut Links> {
        self.0.get_mut(index as usize).map(|entry| &mut entry.in_client)
    }
}

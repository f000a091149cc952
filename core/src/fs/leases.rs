//! Leases of a whole tree: while a client holds one, no other client of the same server has changed anything.
//!
//! A server keeps them in a [`LeaseTable`]: before a change of one client the leases of all others are
//! recalled. A holder that does not give its lease back has it until its term is over. Each holder counts the
//! term from when it asked, the server from when it answered: so the holder is the first to stop believing.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::Answer;

/// What is asked about a lease. A number tells it from those that the same client had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAsk {
    /// To have one.
    Grant,
    /// To go on having this one. Is answered when it is recalled, or after a while.
    Keep(u64),
    /// It is given back.
    GiveBack(u64),
}

/// How a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// It is held.
    Held {
        /// Its number.
        epoch: u64,
        /// For so long from when it was asked about.
        term: Duration,
    },
    /// Another waits for it: it is to be given back.
    Recalled,
    /// It is not held.
    NotHeld {
        /// After so long it may be asked for again.
        after: Duration,
    },
}

/// How long a lease is held that nothing is heard of.
pub const LEASE_TERM: Duration = Duration::from_secs(20);

/// A holder's question is answered after this part of the term, if nothing happens: before its client takes
/// the server for one that is away.
const KEEP_PART: u32 = 20;

/// None is granted before others have changed nothing for this part of the term.
const QUIET_PART: u32 = 10;

/// What is kept, also over a crash, of whether leases may be held.
pub trait LeaseNote: std::fmt::Debug + Send + Sync {
    /// From now on they may be, or are not. False if that cannot be kept.
    fn set(&self, may_be_held: bool) -> bool;
}

/// Clients that hold one at a time.
const HOLDERS_MAX: usize = 256;

/// Clients of one party that hold one at a time.
const PARTY_HOLDERS_MAX: usize = 8;

/// A party is barred once others have waited for its recalled leases for this part of the term in all, or for
/// one that ran out.
const LATE_PART: u32 = 2;

/// The terms after which the waits for a party's leases are forgotten.
const WAITS_TERMS: u32 = 60;

/// The terms that a party is barred for, the first time. Each further time it is twice as long, up to
/// [`BAR_DOUBLINGS_MAX`] times.
const BAR_TERMS: u32 = 6;
const BAR_DOUBLINGS_MAX: u32 = 4;

/// Parties whose bars, and waits, are kept. Of more the bar that ends first is forgotten, and the shortest
/// wait.
const BARS_MAX: usize = 1024;

/// A client of a server: the party that answers for it, which it cannot choose, and what tells it from others
/// of the same party.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseClient(pub u64, pub u64);

/// The leases of a tree.
#[derive(Debug)]
pub struct LeaseTable {
    term: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// A server before this one may have granted some that are held until then: nothing is changed, and none
    /// is granted.
    free_from: Instant,
    note: Option<Box<dyn LeaseNote>>,
    is_noted: bool,
    epoch: u64,
    term: Duration,
    holders: Vec<Holder>,
    /// Parties that have let a recalled lease run out.
    bars: HashMap<u64, Bar>,
    /// Parties that others have waited for since they were barred last.
    waits: HashMap<u64, Waits>,
    /// Changes that are under way or wait for a lease.
    changing: HashMap<LeaseClient, usize>,
    /// The client that has last ended a change, and when; and when another than that.
    last: Option<(LeaseClient, Instant)>,
    last_other: Option<Instant>,
    /// Changes that wait for leases.
    waiting: Vec<Waker>,
    /// What goes on when this step is over.
    woken: Vec<Waker>,
    has_ended: bool,
}

#[derive(Debug)]
struct Holder {
    client: LeaseClient,
    epoch: u64,
    expires: Instant,
    recalled_at: Option<Instant>,
    /// Its question that waits, by a number of its own: when it is answered, and how.
    asking: Option<(u64, Instant, Option<Waker>)>,
}

/// The time that a party is granted none for.
#[derive(Clone, Copy, Debug)]
struct Bar {
    until: Instant,
    /// Times that it was barred before.
    doublings: u32,
}

/// The waits of others for the recalled leases of a party. Waits for several leases at once are one.
#[derive(Clone, Copy, Debug)]
struct Waits {
    since: Instant,
    counted_until: Instant,
    sum: Duration,
}

/// A change that is under way. While this lives no lease is granted to others.
#[derive(Debug)]
pub struct Changing {
    table: Arc<LeaseTable>,
    client: LeaseClient,
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.table.step(|state| state.ended(self.client, Instant::now()));
    }
}

impl LeaseTable {
    /// No leases. During the grace, which must be a term where a server before this one may have granted
    /// some, none is granted and all changes wait. `epoch` is another one for each table of a tree.
    pub fn new(term: Duration, grace: Duration, epoch: u64) -> Arc<Self> {
        Self::with(term, grace, epoch, None)
    }

    /// The same, where the note tells the next server whether it must have a grace. `was_set`: the server
    /// before has left it so.
    pub fn noted(term: Duration, was_set: bool, epoch: u64, note: Box<dyn LeaseNote>) -> Arc<Self> {
        Self::with(term, if was_set { term } else { Duration::ZERO }, epoch, Some(note))
    }

    fn with(term: Duration, grace: Duration, epoch: u64, note: Option<Box<dyn LeaseNote>>) -> Arc<Self> {
        let state = State {
            free_from: Instant::now() + grace,
            note,
            is_noted: !grace.is_zero(),
            epoch,
            term,
            holders: Vec::new(),
            bars: HashMap::new(),
            waits: HashMap::new(),
            changing: HashMap::new(),
            last: None,
            last_other: None,
            waiting: Vec::new(),
            woken: Vec::new(),
            has_ended: false,
        };
        Arc::new(Self { term, state: Mutex::new(state) })
    }

    /// A change of this client is to begin: waits until no other holds a lease.
    pub fn change(self: &Arc<Self>, client: LeaseClient) -> Answer<Changing> {
        let is_free = self.step(|state| {
            *state.changing.entry(client).or_default() += 1;
            state.recall(client, Instant::now())
        });
        let changing = Changing { table: self.clone(), client };
        if is_free {
            return Answer::ok(changing);
        }
        Answer::later(async move {
            poll_fn(|context| changing.table.step(|state| state.poll_free(client, context))).await;
            Ok(changing)
        })
    }

    /// Answers a client. What it asks waits for no longer than a part of the term.
    pub async fn ask(self: Arc<Self>, client: LeaseClient, ask: LeaseAsk) -> LeaseAnswer {
        match ask {
            LeaseAsk::Grant => self.step(|state| state.grant(client, self.term, Instant::now())),
            LeaseAsk::GiveBack(epoch) => {
                self.step(|state| state.leave(|holder| (holder.client, holder.epoch) == (client, epoch)));
                LeaseAnswer::NotHeld { after: self.term / QUIET_PART }
            }
            LeaseAsk::Keep(epoch) => {
                let number = self.step(State::next_epoch);
                let due = Instant::now() + self.term / KEEP_PART;
                let mut waits = false;
                poll_fn(|context| {
                    let began = (!std::mem::replace(&mut waits, true)).then_some(due);
                    self.step(|state| state.poll_keep((client, epoch, number), began, self.term, context))
                })
                .await
            }
        }
    }

    /// Looks at the time: to be called every second or so.
    pub fn tick(&self) {
        let now = Instant::now();
        self.step(|state| {
            state.leave(|holder| holder.expires <= now);
            state.wake_asking(|due| due <= now);
            if state.free_from <= now {
                let waiting = std::mem::take(&mut state.waiting);
                state.woken.extend(waiting);
            }
        });
    }

    /// The server ends: questions that wait are answered.
    pub fn end(&self) {
        self.step(|state| {
            state.has_ended = true;
            state.wake_asking(|_| true);
            let now = Instant::now();
            state.leave(|holder| holder.expires <= now);
            if state.is_noted && state.holders.is_empty() && state.free_from <= now {
                state.is_noted = !state.note.as_ref().is_none_or(|note| note.set(false));
            }
        });
    }

    /// Wakes those that are to go on once the state is not locked any more: they may look at it at once.
    fn step<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        let (result, woken) = {
            let mut state = self.state();
            (step(&mut state), std::mem::take(&mut state.woken))
        };
        woken.into_iter().for_each(Waker::wake);
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_epoch(&mut self) -> u64 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// Has questions looked at again that are to be answered at such a time.
    fn wake_asking(&mut self, is_concerned: impl Fn(Instant) -> bool) {
        let asking = self.holders.iter_mut().filter_map(|holder| holder.asking.as_mut());
        let concerned = asking.filter(|(_, due, _)| is_concerned(*due));
        self.woken.extend(concerned.filter_map(|(_, _, waker)| waker.take()));
    }

    /// Takes leases away. A recalled one that has run out bars its party, and so do long waits for others.
    fn leave(&mut self, is_gone: impl Fn(&Holder) -> bool) {
        let mut recalled = Vec::new();
        for holder in self.holders.extract_if(.., |holder| is_gone(holder)) {
            recalled.extend(holder.recalled_at.map(|from| (holder.client.0, from, holder.expires)));
            self.woken.extend(holder.asking.and_then(|(_, _, waker)| waker));
            self.woken.append(&mut self.waiting);
        }
        if recalled.is_empty() {
            return;
        }
        let now = Instant::now();
        for (party, from, expires) in recalled {
            if expires <= now || self.add_wait(party, from, now) {
                self.bar(party, now);
            }
        }
    }

    /// Counts the time that others have waited for a lease of a party. Returns true once it is too long in
    /// all.
    fn add_wait(&mut self, party: u64, from: Instant, now: Instant) -> bool {
        let (kept, allowed) = (self.term * WAITS_TERMS, self.term / LATE_PART);
        self.waits.retain(|_, waits| waits.since + kept > now);
        if self.waits.len() >= BARS_MAX && !self.waits.contains_key(&party) {
            let shortest = self.waits.iter().min_by_key(|(_, waits)| waits.sum).map(|(party, _)| *party);
            shortest.and_then(|party| self.waits.remove(&party));
        }
        let none = Waits { since: from, counted_until: from, sum: Duration::ZERO };
        let waits = self.waits.entry(party).or_insert(none);
        waits.sum += now.saturating_duration_since(from.max(waits.counted_until));
        waits.counted_until = now;
        waits.sum >= allowed
    }

    /// Grants a party none for a while: others had to wait for it.
    fn bar(&mut self, party: u64, now: Instant) {
        self.waits.remove(&party);
        let first = self.term * BAR_TERMS;
        let longest = first * (1 << BAR_DOUBLINGS_MAX);
        let before = self.bars.get(&party).filter(|bar| bar.until + longest > now);
        if before.is_some_and(|bar| bar.until > now) {
            return;
        }
        let doublings = before.map_or(0, |bar| (bar.doublings + 1).min(BAR_DOUBLINGS_MAX));
        if self.bars.len() >= BARS_MAX && !self.bars.contains_key(&party) {
            let ends_first = self.bars.iter().min_by_key(|(_, bar)| bar.until).map(|(party, _)| *party);
            ends_first.and_then(|party| self.bars.remove(&party));
        }
        self.bars.insert(party, Bar { until: now + first * (1 << doublings), doublings });
    }

    /// Returns the time that a party has to wait for before it is granted one, if its own leases or bars are
    /// in the way.
    fn party_waits(&self, client: LeaseClient, now: Instant) -> Option<Duration> {
        if let Some(bar) = self.bars.get(&client.0).filter(|bar| bar.until > now) {
            return Some(bar.until - now);
        }
        let others = || self.holders.iter().filter(|holder| holder.client != client);
        let is_full = others().count() >= HOLDERS_MAX;
        let has_many = others().filter(|holder| holder.client.0 == client.0).count() >= PARTY_HOLDERS_MAX;
        (is_full || has_many).then_some(self.term)
    }

    /// Recalls the leases of others than this client. Whether there are none.
    fn recall(&mut self, client: LeaseClient, now: Instant) -> bool {
        let mut is_free = self.free_from <= now;
        if self.holders.is_empty() {
            return is_free;
        }
        self.leave(|holder| holder.expires <= now);
        for holder in self.holders.iter_mut().filter(|holder| holder.client != client) {
            is_free = false;
            holder.recalled_at.get_or_insert(now);
            self.woken.extend(holder.asking.as_mut().and_then(|(_, _, waker)| waker.take()));
        }
        is_free
    }

    fn poll_free(&mut self, client: LeaseClient, context: &Context<'_>) -> Poll<()> {
        if self.recall(client, Instant::now()) {
            return Poll::Ready(());
        }
        if !self.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            self.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn ended(&mut self, client: LeaseClient, now: Instant) {
        if let Some(count) = self.changing.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.changing.remove(&client);
            }
        }
        let before = self.last.replace((client, now));
        if let Some((_, at)) = before.filter(|(before, _)| *before != client) {
            self.last_other = Some(at);
        }
    }

    fn grant(&mut self, client: LeaseClient, term: Duration, now: Instant) -> LeaseAnswer {
        self.leave(|holder| holder.expires <= now);
        let quiet = term / QUIET_PART;
        let last = match self.last {
            Some((last, at)) if last != client => Some(at),
            _ => self.last_other,
        };
        let quiet_from = last.map_or(now, |last| last + quiet).max(self.free_from);
        let is_recalled =
            self.holders.iter().any(|holder| holder.client == client && holder.recalled_at.is_some());
        let others_change = self.changing.keys().any(|changing| *changing != client);
        if quiet_from > now || is_recalled || others_change || self.has_ended {
            return LeaseAnswer::NotHeld { after: quiet.max(quiet_from.saturating_duration_since(now)) };
        }
        if let Some(after) = self.party_waits(client, now) {
            return LeaseAnswer::NotHeld { after };
        }
        if !self.is_noted {
            self.is_noted = self.note.as_ref().is_none_or(|note| note.set(true));
            if !self.is_noted {
                return LeaseAnswer::NotHeld { after: term };
            }
        }
        let epoch = self.next_epoch();
        self.leave(|holder| holder.client == client);
        self.holders.push(Holder { client, epoch, expires: now + term, recalled_at: None, asking: None });
        LeaseAnswer::Held { epoch, term }
    }

    /// A question of the holder of `epoch`, which has the number `asked`. It `began` now, and is to be
    /// answered then; or it is looked at again.
    fn poll_keep(
        &mut self,
        (client, epoch, asked): (LeaseClient, u64, u64),
        began: Option<Instant>,
        term: Duration,
        context: &Context<'_>,
    ) -> Poll<LeaseAnswer> {
        let (now, has_ended) = (Instant::now(), self.has_ended);
        let holder = self.holders.iter_mut().find(|holder| (holder.client, holder.epoch) == (client, epoch));
        let Some(holder) = holder.filter(|holder| holder.expires > now && !has_ended) else {
            return Poll::Ready(LeaseAnswer::NotHeld { after: term / QUIET_PART });
        };
        if holder.recalled_at.is_some() {
            return Poll::Ready(LeaseAnswer::Recalled);
        }
        holder.expires = now + term;
        if let Some(due) = began {
            // One that was asked before, on a connection that may be gone, is answered now.
            let before = holder.asking.replace((asked, due, None));
            self.woken.extend(before.and_then(|(_, _, waker)| waker));
        }
        match &mut holder.asking {
            Some((number, due, waker)) if *number == asked && *due > now => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(LeaseAnswer::Held { epoch, term }),
        }
    }
}

#[cfg(test)]
mod tests;

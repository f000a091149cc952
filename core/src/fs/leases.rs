//! Leases of a whole tree: while a client holds one, no other client of the same server changes anything.
//!
//! A server tracks them in a [`LeaseTable`]: a change of one client is executed once the leases of all others
//! have been recalled, and returned or expired. A lease expires at the end of its term. The holder counts the
//! term from its request, the server from its answer, and thus the holder's term ends first.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::{Answer, lock};

/// A lease operation. The epoch distinguishes a client's successive leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRequest {
    /// Request a lease of the tree.
    Grant,
    /// Renew the lease with this epoch. Answered on recall, else after about a twentieth of the term; at once
    /// if the lease is not held.
    Keep(u64),
    /// Return the lease with this epoch.
    GiveBack(u64),
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// The lease is held.
    Held {
        /// Epoch of the lease, for later requests about it.
        epoch: u64,
        /// Term of the lease, counted from the client's request.
        term: Duration,
    },
    /// A change of another client waits: the lease must be returned.
    Recalled,
    /// The lease is not held: it was refused, returned, or has expired.
    NotHeld {
        /// Delay after which the client may request a lease again.
        after: Duration,
    },
}

/// Term of a lease without renewal.
pub const LEASE_TERM: Duration = Duration::from_secs(20);

/// Divisor of the term that gives the time after which a renewal is answered if the lease is not recalled:
/// so soon that the client does not assume that the server is unreachable.
const KEEP_PART: u32 = 20;

/// Divisor of the term that gives the time without changes by others that is required for a grant.
const QUIET_PART: u32 = 10;

/// A persistent record of whether leases may be held, preserved over crashes.
pub trait LeaseNote: std::fmt::Debug + Send + Sync {
    /// Records whether leases may be held. Returns `false` if that cannot be stored.
    fn set(&self, may_be_held: bool) -> bool;
}

/// Maximum number of lease holders.
const HOLDERS_MAX: usize = 256;

/// Maximum number of lease holders of one party.
const PARTY_HOLDERS_MAX: usize = 8;

/// Divisor of the term that gives the time for which others may wait in total for a party's recalled leases.
/// After a longer wait, or after a recalled lease has expired, the party is barred.
const LATE_PART: u32 = 2;

/// Number of terms after which waits for a party's leases are forgotten.
const WAITS_TERMS: u32 = 60;

/// Length of a party's first bar in terms. A bar that begins soon after the previous one has ended (within
/// the length of the longest bar) is twice as long as the previous one.
const BAR_TERMS: u32 = 6;
/// Maximum number of doublings of a party's bars in a row: the longest bar is 16 times as long as the first.
const BAR_DOUBLINGS_MAX: u32 = 4;

/// Maximum number of recorded bars, and of parties with recorded waits. Beyond this number the bar that ends
/// first is dropped, or the party with the shortest waits.
const BARS_MAX: usize = 1024;

/// A client of a server: its responsible party, which it cannot choose, and a number that distinguishes
/// clients of the same party.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseClient(pub u64, pub u64);

/// The leases of a tree, and the changes that wait for their return. Shared by all threads of the server.
#[derive(Debug)]
pub struct LeaseTable {
    term: Duration,
    state: Mutex<LeaseTableState>,
}

#[derive(Debug)]
struct LeaseTableState {
    /// End of the grace period, in which a previous server's leases may be held: changes and grants wait.
    free_from: Instant,
    note: Option<Box<dyn LeaseNote>>,
    is_noted: bool,
    epoch: u64,
    term: Duration,
    holders: Vec<Holder>,
    /// Parties that have let a recalled lease expire, or made others wait too long.
    bars: HashMap<u64, Bar>,
    /// Parties that others have waited for since their last bar.
    waits: HashMap<u64, Waits>,
    /// Number of each client's changes that are in progress, or wait for others' leases to end.
    changing: HashMap<LeaseClient, usize>,
    /// The client that last finished a change, and the time of that change.
    last: Option<(LeaseClient, Instant)>,
    /// Time of the last change by any other client than the one in `last`.
    last_other: Option<Instant>,
    /// Wakers of changes that wait for leases to end.
    waiting: Vec<Waker>,
    /// Wakers to be called when the table is unlocked.
    woken: Vec<Waker>,
    has_ended: bool,
}

#[derive(Debug)]
struct Holder {
    client: LeaseClient,
    epoch: u64,
    expires: Instant,
    recalled_at: Option<Instant>,
    /// The pending renewal: its number, the time at which it is answered at the latest, and its waker.
    asking: Option<(u64, Instant, Option<Waker>)>,
}

/// A period during which a party is granted no lease.
#[derive(Clone, Copy, Debug)]
struct Bar {
    until: Instant,
    /// Number of times that the first bar's length was doubled for this one, up to [`BAR_DOUBLINGS_MAX`].
    doublings: u32,
}

/// The waits of others for the recalled leases of a party. Concurrent waits count once.
#[derive(Clone, Copy, Debug)]
struct Waits {
    since: Instant,
    counted_until: Instant,
    sum: Duration,
}

/// A change in progress. No lease is granted to other clients before it is dropped.
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
    /// Returns an empty table. During the grace period no lease is granted and all changes wait; the grace
    /// period must be one term if a previous server may have granted leases. `epoch`, from which leases are
    /// numbered, must differ for each table of a tree, or an earlier table's lease could pass for a new one.
    pub fn new(term: Duration, grace: Duration, epoch: u64) -> Arc<Self> {
        Self::with(term, grace, epoch, None)
    }

    /// Returns an empty table with a persistent note of whether leases may be held, by which the next server
    /// decides on a grace period. `was_set`: the note as left by the previous server.
    pub fn noted(term: Duration, was_set: bool, epoch: u64, note: Box<dyn LeaseNote>) -> Arc<Self> {
        Self::with(term, if was_set { term } else { Duration::ZERO }, epoch, Some(note))
    }

    fn with(term: Duration, grace: Duration, epoch: u64, note: Option<Box<dyn LeaseNote>>) -> Arc<Self> {
        let state = LeaseTableState {
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

    /// Begins a change of this client: recalls the leases of all other clients, and waits until they are
    /// returned or expired, and the grace period is over.
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

    /// Executes a lease operation of a client. A renewal pends until the lease ends, is recalled or is
    /// renewed by another request, and at most until the first [`tick`](Self::tick) after a twentieth of the
    /// term.
    pub async fn ask(self: Arc<Self>, client: LeaseClient, ask: LeaseRequest) -> LeaseAnswer {
        match ask {
            LeaseRequest::Grant => self.step(|state| state.grant(client, self.term, Instant::now())),
            LeaseRequest::GiveBack(epoch) => {
                self.step(|state| state.leave(|holder| (holder.client, holder.epoch) == (client, epoch)));
                LeaseAnswer::NotHeld { after: self.term / QUIET_PART }
            }
            LeaseRequest::Keep(epoch) => {
                let number = self.step(LeaseTableState::next_epoch);
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

    /// Expires leases and the grace period, and answers the renewals that are due. The server must call this
    /// about once a second.
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

    /// Ends the table, before its server ends: answers pending renewals, grants no more leases, and clears
    /// the note if no lease can be held any more.
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

    /// Runs `step` under the lock, then calls the collected wakers without the lock, because they may access
    /// the state at once.
    fn step<T>(&self, step: impl FnOnce(&mut LeaseTableState) -> T) -> T {
        let (result, woken) = {
            let mut state = lock(&self.state);
            (step(&mut state), std::mem::take(&mut state.woken))
        };
        woken.into_iter().for_each(Waker::wake);
        result
    }
}

impl LeaseTableState {
    fn next_epoch(&mut self) -> u64 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// Wakes the pending renewals whose deadline satisfies the predicate.
    fn wake_asking(&mut self, is_concerned: impl Fn(Instant) -> bool) {
        let asking = self.holders.iter_mut().filter_map(|holder| holder.asking.as_mut());
        let concerned = asking.filter(|(_, due, _)| is_concerned(*due));
        self.woken.extend(concerned.filter_map(|(_, _, waker)| waker.take()));
    }

    /// Removes the leases for which `is_gone` returns `true`. A recalled lease that has expired bars its
    /// party, and so do long waits for a lease.
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

    /// Adds a wait of others for a lease of a party. Returns `true` once the sum reaches the limit.
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

    /// Bars a party from leases for a while, because others had to wait for its leases.
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

    /// Returns the delay until a party's next request, if a bar or the number of holders prevents a grant.
    fn party_waits(&self, client: LeaseClient, now: Instant) -> Option<Duration> {
        if let Some(bar) = self.bars.get(&client.0).filter(|bar| bar.until > now) {
            return Some(bar.until - now);
        }
        let others = || self.holders.iter().filter(|holder| holder.client != client);
        let is_full = others().count() >= HOLDERS_MAX;
        let has_many = others().filter(|holder| holder.client.0 == client.0).count() >= PARTY_HOLDERS_MAX;
        (is_full || has_many).then_some(self.term)
    }

    /// Recalls the leases of all other clients. Returns `true` if there are none and the grace period is
    /// over.
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

    /// Polls renewal number `asked` of the lease with this epoch. `began`: on the first poll, the time from
    /// which on the renewal is answered even without a recall.
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
            // An earlier renewal, possibly of a dead connection, is answered now.
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

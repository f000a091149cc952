//! Leases of a whole tree: while a client holds one, no other client of the same server has changed anything.
//!
//! A server keeps them in a [`LeaseTable`]: before a change of one client the leases of all others are recalled. A holder that does not give
//! its lease back has it until its term is over. Each holder counts the term from when it asked, the server from when it answered: so the
//! holder is the first to stop believing.

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

/// A holder's question is answered after this part of the term, if nothing happens: before its client takes the server for one that is away.
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

/// A recalled lease that is given back after this part of the term, or never, bars its party.
const LATE_PART: u32 = 2;

/// The terms that a party is barred for, the first time. Each further time it is twice as long, up to [`BAR_DOUBLINGS_MAX`] times.
const BAR_TERMS: u32 = 6;
const BAR_DOUBLINGS_MAX: u32 = 4;

/// Parties whose bars are kept. Of more the one that ends first is forgotten.
const BARS_MAX: usize = 1024;

/// A client of a server: the party that answers for it, which it cannot choose, and what tells it from others of the same party.
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
    /// A server before this one may have granted some that are held until then: nothing is changed, and none is granted.
    free_from: Instant,
    note: Option<Box<dyn LeaseNote>>,
    is_noted: bool,
    epoch: u64,
    term: Duration,
    holders: Vec<Holder>,
    /// Parties that have let a recalled lease run out.
    bars: HashMap<u64, Bar>,
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
    /// Set when it is recalled: it is late from then on.
    late_from: Option<Instant>,
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
    /// No leases. During the grace, which must be a term where a server before this one may have granted some, none is granted and all changes
    /// wait. `epoch` is another one for each table of a tree.
    pub fn new(term: Duration, grace: Duration, epoch: u64) -> Arc<Self> {
        Self::with(term, grace, epoch, None)
    }

    /// The same, where the note tells the next server whether it must have a grace. `was_set`: the server before has left it so.
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

    /// Takes leases away. A recalled one that is late bars its party.
    fn leave(&mut self, is_gone: impl Fn(&Holder) -> bool) {
        let mut late = Vec::new();
        for holder in self.holders.extract_if(.., |holder| is_gone(holder)) {
            late.extend(holder.late_from.map(|from| (holder.client.0, from.min(holder.expires))));
            self.woken.extend(holder.asking.and_then(|(_, _, waker)| waker));
            self.woken.append(&mut self.waiting);
        }
        if late.is_empty() {
            return;
        }
        let now = Instant::now();
        late.retain(|(_, late_from)| *late_from <= now);
        late.into_iter().for_each(|(party, _)| self.bar(party, now));
    }

    /// Grants a party none for a while: others had to wait for it.
    fn bar(&mut self, party: u64, now: Instant) {
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

    /// Returns the time that a party has to wait for before it is granted one, if its own leases or bars are in the way.
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
            holder.late_from.get_or_insert(now + self.term / LATE_PART);
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
            self.holders.iter().any(|holder| holder.client == client && holder.late_from.is_some());
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
        self.holders.push(Holder { client, epoch, expires: now + term, late_from: None, asking: None });
        LeaseAnswer::Held { epoch, term }
    }

    /// A question of the holder of `epoch`, which has the number `asked`. It `began` now, and is to be answered then; or it is looked at again.
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
        if holder.late_from.is_some() {
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
mod tests {
    use std::task::Context;

    use super::*;

    const ONE: LeaseClient = LeaseClient(1, 1);
    const TWO: LeaseClient = LeaseClient(2, 1);
    const THREE: LeaseClient = LeaseClient(2, 2);
    /// Long enough that nothing runs out while a test lasts.
    const TERM: Duration = Duration::from_secs(3600);

    fn table(term: Duration) -> Arc<LeaseTable> {
        LeaseTable::new(term, Duration::ZERO, 7)
    }

    fn ask(table: &Arc<LeaseTable>, client: LeaseClient, ask: LeaseAsk) -> LeaseAnswer {
        crate::block_on(table.clone().ask(client, ask))
    }

    fn granted(table: &Arc<LeaseTable>, client: LeaseClient) -> u64 {
        match ask(table, client, LeaseAsk::Grant) {
            LeaseAnswer::Held { epoch, .. } => epoch,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn is_granted(table: &Arc<LeaseTable>, client: LeaseClient) -> bool {
        matches!(ask(table, client, LeaseAsk::Grant), LeaseAnswer::Held { .. })
    }

    /// As if the last change of any had been long ago.
    fn later(table: &LeaseTable) {
        let mut state = table.state();
        state.last = None;
        state.last_other = None;
    }

    fn now_or_later<T>(future: std::pin::Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_change_waits_until_all_others_have_given_back_and_its_own_lease_stays() {
        let table = table(TERM);
        let epochs = [ONE, TWO, THREE].map(|client| granted(&table, client));
        let Answer::Later(mut change) = table.change(ONE) else { panic!("it does not wait") };
        for (client, epoch) in [(TWO, epochs[1]), (THREE, epochs[2])] {
            assert!(now_or_later(change.as_mut()).is_pending());
            assert_eq!(ask(&table, client, LeaseAsk::Keep(epoch)), LeaseAnswer::Recalled);
            assert!(!is_granted(&table, client), "it is recalled");
            ask(&table, client, LeaseAsk::GiveBack(epoch));
        }
        let Poll::Ready(Ok(changing)) = now_or_later(change.as_mut()) else { panic!("it waits on") };
        assert!(!is_granted(&table, TWO), "the change is under way");
        drop(changing);
        assert!(!is_granted(&table, TWO), "it was made a moment ago");
        assert!(is_granted(&table, ONE), "it is its own");
        later(&table);
        assert!(is_granted(&table, TWO));
    }

    #[test]
    fn an_older_number_neither_gives_back_nor_keeps() {
        let table = table(TERM);
        let (old, new) = (granted(&table, ONE), granted(&table, ONE));
        ask(&table, ONE, LeaseAsk::GiveBack(old));
        assert!(matches!(ask(&table, ONE, LeaseAsk::Keep(old)), LeaseAnswer::NotHeld { .. }));
        assert!(matches!(table.change(TWO), Answer::Later(_)), "the new one is held");
        ask(&table, TWO, LeaseAsk::GiveBack(new));
        assert_eq!(ask(&table, ONE, LeaseAsk::Keep(new)), LeaseAnswer::Recalled, "it is not the other's");
    }

    #[test]
    fn a_question_waits_for_a_recall_and_a_second_one_ends_the_first() {
        let table = table(TERM);
        let epoch = granted(&table, ONE);
        let mut first = Box::pin(table.clone().ask(ONE, LeaseAsk::Keep(epoch)));
        let mut second = Box::pin(table.clone().ask(ONE, LeaseAsk::Keep(epoch)));
        assert!(now_or_later(first.as_mut()).is_pending());
        assert!(now_or_later(second.as_mut()).is_pending());
        assert!(matches!(now_or_later(first.as_mut()), Poll::Ready(LeaseAnswer::Held { .. })));
        drop(table.change(ONE));
        assert!(now_or_later(second.as_mut()).is_pending(), "its own change recalls nothing");
        let changing = table.change(TWO);
        assert!(matches!(now_or_later(second.as_mut()), Poll::Ready(LeaseAnswer::Recalled)));
        drop(changing);
    }

    #[test]
    fn one_that_nothing_is_heard_of_is_over_after_its_term_and_none_is_granted_after_a_start() {
        let table = table(Duration::ZERO);
        granted(&table, ONE);
        assert!(matches!(table.change(TWO), Answer::Done(Ok(_))), "it has run out");
        let restarted = LeaseTable::new(TERM, TERM, 8);
        assert!(!is_granted(&restarted, ONE), "an earlier server may have granted one to another");
        assert!(matches!(restarted.change(ONE), Answer::Later(_)), "which believes that nothing changes");
    }

    #[derive(Clone, Debug, Default)]
    struct Note(Arc<Mutex<Vec<bool>>>);

    impl LeaseNote for Note {
        fn set(&self, may_be_held: bool) -> bool {
            self.0.lock().unwrap().push(may_be_held);
            true
        }
    }

    #[test]
    fn the_next_server_is_told_whether_leases_may_be_held() {
        let note = Note::default();
        let server = |was_set| LeaseTable::noted(TERM, was_set, 9, Box::new(note.clone()));
        let first = server(false);
        assert!(matches!(first.change(ONE), Answer::Done(Ok(_))), "none were granted before");
        later(&first);
        let epochs = [ONE, TWO].map(|client| granted(&first, client));
        assert_eq!(*note.0.lock().unwrap(), [true], "before the first is granted, and once");
        ask(&first, ONE, LeaseAsk::GiveBack(epochs[0]));
        first.end();
        assert_eq!(*note.0.lock().unwrap(), [true], "one is still held");
        server(true).end();
        assert_eq!(*note.0.lock().unwrap(), [true], "those of before are");
        let last = server(false);
        let epoch = granted(&last, ONE);
        ask(&last, ONE, LeaseAsk::GiveBack(epoch));
        last.end();
        assert_eq!(*note.0.lock().unwrap(), [true, true, false]);
    }

    #[derive(Debug)]
    struct NoNote;

    impl LeaseNote for NoNote {
        fn set(&self, _: bool) -> bool {
            false
        }
    }

    #[test]
    fn none_is_granted_that_the_next_server_would_not_know_of() {
        assert!(!is_granted(&LeaseTable::noted(TERM, false, 9, Box::new(NoNote)), ONE));
    }

    #[test]
    fn a_waiting_change_that_is_given_up_and_an_end_leave_nothing_behind() {
        let table = table(TERM);
        let epoch = granted(&table, ONE);
        drop(table.change(TWO));
        assert!(table.state().changing.is_empty());
        ask(&table, ONE, LeaseAsk::GiveBack(epoch));
        later(&table);
        let epoch = granted(&table, ONE);
        let mut waits = Box::pin(table.clone().ask(ONE, LeaseAsk::Keep(epoch)));
        assert!(now_or_later(waits.as_mut()).is_pending());
        table.end();
        assert!(matches!(now_or_later(waits.as_mut()), Poll::Ready(LeaseAnswer::NotHeld { .. })));
    }

    #[test]
    fn holders_are_bounded() {
        let table = table(TERM);
        for number in 0..HOLDERS_MAX as u64 {
            granted(&table, LeaseClient(number, 1));
        }
        assert!(!is_granted(&table, LeaseClient(u64::MAX, 1)));
        assert!(is_granted(&table, LeaseClient(0, 1)), "one that has it may have it again");
    }

    #[test]
    fn one_party_leaves_leases_for_others() {
        let table = table(TERM);
        let granted: Vec<_> = (0..100).filter(|number| is_granted(&table, LeaseClient(1, *number))).collect();
        assert_eq!(granted, (0..PARTY_HOLDERS_MAX as u64).collect::<Vec<_>>());
        assert!(is_granted(&table, LeaseClient(1, 0)), "one that has it may have it again");
        assert!(is_granted(&table, LeaseClient(2, 0)));
    }

    /// Returns the number of terms that this client is granted none for.
    fn barred_terms(table: &Arc<LeaseTable>, client: LeaseClient) -> u128 {
        later(table);
        match ask(table, client, LeaseAsk::Grant) {
            LeaseAnswer::NotHeld { after } => (after.as_millis() + 60_000) / TERM.as_millis(),
            LeaseAnswer::Held { epoch, .. } => {
                ask(table, client, LeaseAsk::GiveBack(epoch));
                0
            }
            LeaseAnswer::Recalled => panic!("nothing was kept"),
        }
    }

    /// Has the term of a lease of this client end, for which a change may have waited.
    fn run_out(table: &Arc<LeaseTable>, client: LeaseClient, is_recalled: bool) {
        granted(table, client);
        let change = is_recalled.then(|| table.change(THREE));
        table.state().holders.iter_mut().for_each(|holder| holder.expires = Instant::now());
        table.tick();
        drop(change);
    }

    #[test]
    fn a_recalled_lease_that_runs_out_bars_its_party() {
        let table = table(TERM);
        run_out(&table, ONE, false);
        assert_eq!(barred_terms(&table, ONE), 0, "nobody waited for it");
        for terms in [6, 12, 24, 48, 96, 96] {
            run_out(&table, ONE, true);
            for number in [1, 2] {
                assert_eq!(barred_terms(&table, LeaseClient(1, number)), terms);
            }
            assert_eq!(barred_terms(&table, TWO), 0, "another party");
            let mut state = table.state();
            state.bars.values_mut().for_each(|bar| bar.until = Instant::now());
        }
        let long_ago = Instant::now().checked_sub(100 * TERM);
        let Some(long_ago) = long_ago else { return };
        table.state().bars.values_mut().for_each(|bar| bar.until = long_ago);
        run_out(&table, ONE, true);
        assert_eq!(barred_terms(&table, ONE), 6, "it is forgotten in the end");
    }

    #[test]
    fn a_lease_that_is_given_back_late_bars_its_party() {
        let table = table(TERM);
        for (is_late, terms) in [(false, 0), (true, 6)] {
            let epoch = granted(&table, ONE);
            let change = table.change(TWO);
            if is_late {
                let now = Instant::now();
                table.state().holders.iter_mut().for_each(|holder| holder.late_from = Some(now));
            }
            ask(&table, ONE, LeaseAsk::GiveBack(epoch));
            drop(change);
            assert_eq!(barred_terms(&table, ONE), terms);
        }
    }

    #[test]
    fn bars_are_bounded() {
        let table = table(TERM);
        let mut state = table.state();
        for party in 0..2 * BARS_MAX as u64 {
            state.bar(party, Instant::now());
        }
        assert_eq!(state.bars.len(), BARS_MAX);
        assert!(!state.bars.contains_key(&0) && state.bars.contains_key(&(2 * BARS_MAX as u64 - 1)));
    }
}

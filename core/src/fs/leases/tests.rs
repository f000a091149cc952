//! Tests of the lease table, mostly with simulated time.

use std::task::Context;

use super::*;

const ONE: LeaseClient = LeaseClient(1, 1);
const TWO: LeaseClient = LeaseClient(2, 1);
const THREE: LeaseClient = LeaseClient(2, 2);
/// Longer than any test.
const TERM: Duration = Duration::from_secs(3600);

fn table(term: Duration) -> Arc<LeaseTable> {
    LeaseTable::new(term, Duration::ZERO, 7)
}

fn ask(table: &Arc<LeaseTable>, client: LeaseClient, ask: LeaseRequest) -> LeaseAnswer {
    crate::block_on(table.clone().ask(client, ask))
}

fn granted(table: &Arc<LeaseTable>, client: LeaseClient) -> u64 {
    match ask(table, client, LeaseRequest::Grant) {
        LeaseAnswer::Held { epoch, .. } => epoch,
        other => panic!("not granted: {other:?}"),
    }
}

fn is_granted(table: &Arc<LeaseTable>, client: LeaseClient) -> bool {
    matches!(ask(table, client, LeaseRequest::Grant), LeaseAnswer::Held { .. })
}

/// Simulates that the last change was long ago.
fn later(table: &LeaseTable) {
    let mut state = lock(&table.state);
    state.last = None;
    state.last_other = None;
}

fn now_or_later<T>(future: std::pin::Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn change_waits_for_leases_of_other_clients_only() {
    let table = table(TERM);
    let epochs = [ONE, TWO, THREE].map(|client| granted(&table, client));
    let Answer::Later(mut change) = table.change(ONE) else { panic!("it does not wait") };
    for (client, epoch) in [(TWO, epochs[1]), (THREE, epochs[2])] {
        assert!(now_or_later(change.as_mut()).is_pending());
        assert_eq!(ask(&table, client, LeaseRequest::Keep(epoch)), LeaseAnswer::Recalled);
        assert!(!is_granted(&table, client), "it is recalled");
        ask(&table, client, LeaseRequest::GiveBack(epoch));
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
    ask(&table, ONE, LeaseRequest::GiveBack(old));
    assert!(matches!(ask(&table, ONE, LeaseRequest::Keep(old)), LeaseAnswer::NotHeld { .. }));
    assert!(matches!(table.change(TWO), Answer::Later(_)), "the new one is held");
    ask(&table, TWO, LeaseRequest::GiveBack(new));
    assert_eq!(ask(&table, ONE, LeaseRequest::Keep(new)), LeaseAnswer::Recalled, "it is not the other's");
}

#[test]
fn renewal_waits_for_recall_or_a_later_renewal() {
    let table = table(TERM);
    let epoch = granted(&table, ONE);
    let mut first = Box::pin(table.clone().ask(ONE, LeaseRequest::Keep(epoch)));
    let mut second = Box::pin(table.clone().ask(ONE, LeaseRequest::Keep(epoch)));
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
fn silent_lease_expires_and_grace_period_blocks_grants() {
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
fn lease_note_tells_next_server_about_leases() {
    let note = Note::default();
    let server = |was_set| LeaseTable::noted(TERM, was_set, 9, Box::new(note.clone()));
    let first = server(false);
    assert!(matches!(first.change(ONE), Answer::Done(Ok(_))), "none were granted before");
    later(&first);
    let epochs = [ONE, TWO].map(|client| granted(&first, client));
    assert_eq!(*note.0.lock().unwrap(), [true], "before the first is granted, and once");
    ask(&first, ONE, LeaseRequest::GiveBack(epochs[0]));
    first.end();
    assert_eq!(*note.0.lock().unwrap(), [true], "one is still held");
    server(true).end();
    assert_eq!(*note.0.lock().unwrap(), [true], "those of before are");
    let last = server(false);
    let epoch = granted(&last, ONE);
    ask(&last, ONE, LeaseRequest::GiveBack(epoch));
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
fn no_lease_is_granted_without_a_note() {
    assert!(!is_granted(&LeaseTable::noted(TERM, false, 9, Box::new(NoNote)), ONE));
}

#[test]
fn cancelled_change_and_end_release_everything() {
    let table = table(TERM);
    let epoch = granted(&table, ONE);
    drop(table.change(TWO));
    assert!(lock(&table.state).changing.is_empty());
    ask(&table, ONE, LeaseRequest::GiveBack(epoch));
    later(&table);
    let epoch = granted(&table, ONE);
    let mut waits = Box::pin(table.clone().ask(ONE, LeaseRequest::Keep(epoch)));
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

/// Returns the number of terms for which this client is barred.
fn barred_terms(table: &Arc<LeaseTable>, client: LeaseClient) -> u128 {
    later(table);
    match ask(table, client, LeaseRequest::Grant) {
        LeaseAnswer::NotHeld { after } => (after.as_millis() + 60_000) / TERM.as_millis(),
        LeaseAnswer::Held { epoch, .. } => {
            ask(table, client, LeaseRequest::GiveBack(epoch));
            0
        }
        LeaseAnswer::Recalled => panic!("nothing was kept"),
    }
}

/// Lets a lease of this client expire, optionally while a change waits for it.
fn run_out(table: &Arc<LeaseTable>, client: LeaseClient, is_recalled: bool) {
    granted(table, client);
    let change = is_recalled.then(|| table.change(THREE));
    lock(&table.state).holders.iter_mut().for_each(|holder| holder.expires = Instant::now());
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
        let mut state = lock(&table.state);
        state.bars.values_mut().for_each(|bar| bar.until = Instant::now());
    }
    let long_ago = Instant::now().checked_sub(100 * TERM);
    let Some(long_ago) = long_ago else { return };
    lock(&table.state).bars.values_mut().for_each(|bar| bar.until = long_ago);
    run_out(&table, ONE, true);
    assert_eq!(barred_terms(&table, ONE), 6, "it is forgotten in the end");
}

/// Simulates the passing of time for recorded recalls and waits.
fn pass(table: &LeaseTable, time: Duration) {
    let mut state = lock(&table.state);
    let earlier = |at: &mut Instant| *at = at.checked_sub(time).expect("a time");
    state.holders.iter_mut().filter_map(|holder| holder.recalled_at.as_mut()).for_each(earlier);
    for waits in state.waits.values_mut() {
        earlier(&mut waits.since);
        earlier(&mut waits.counted_until);
    }
}

/// Makes others wait this long for leases of one party, which are then returned.
fn make_wait(table: &Arc<LeaseTable>, clients: &[LeaseClient], time: Duration) {
    later(table);
    let epochs: Vec<_> = clients.iter().map(|client| granted(table, *client)).collect();
    let change = table.change(LeaseClient(9, 9));
    pass(table, time);
    for (client, epoch) in clients.iter().zip(epochs) {
        ask(table, *client, LeaseRequest::GiveBack(epoch));
    }
    drop(change);
}

#[test]
fn late_lease_return_bars_its_party() {
    let table = table(TERM);
    make_wait(&table, &[ONE], TERM / 4);
    assert_eq!(barred_terms(&table, ONE), 0);
    make_wait(&table, &[TWO], TERM / 2);
    assert_eq!(barred_terms(&table, TWO), 6);
}

#[test]
fn short_waits_for_a_partys_leases_add_up() {
    let table = table(TERM);
    for terms in [0, 0, 0, 0, 6] {
        make_wait(&table, &[ONE], TERM / 10);
        assert_eq!(barred_terms(&table, ONE), terms);
    }
    assert!(lock(&table.state).waits.is_empty(), "counted from the bar on");
    for _ in 0..20 {
        make_wait(&table, &[TWO], TERM / 10);
        assert_eq!(barred_terms(&table, TWO), 0, "long ago is forgotten");
        pass(&table, WAITS_TERMS * TERM / 3);
    }
    make_wait(&table, &[LeaseClient(3, 1), LeaseClient(3, 2)], TERM / 10);
    let sum = lock(&table.state).waits[&3].sum;
    assert!(sum < TERM * 3 / 20, "waits at once are one: {sum:?}");
}

#[test]
fn bars_and_waits_are_bounded() {
    let table = table(TERM);
    let mut state = lock(&table.state);
    let now = Instant::now();
    for party in 0..2 * BARS_MAX as u64 {
        state.bar(party, Instant::now());
        state.add_wait(party, now, now);
    }
    assert_eq!((state.bars.len(), state.waits.len()), (BARS_MAX, BARS_MAX));
    assert!(!state.bars.contains_key(&0) && state.bars.contains_key(&(2 * BARS_MAX as u64 - 1)));
}

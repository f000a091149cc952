use std::mem;

use super::*;

const LIMITS: BufferLimits =
    BufferLimits { total_bytes: 8 << 20, share_bytes: 4 << 20, retained_bytes: 2 << 20 };

#[test]
fn the_buffer_that_came_back_last_is_lent_first() {
    let buffers = Buffers::new(LIMITS);
    let (first, second) = (buffers.take(40_000).expect("one"), buffers.take(40_000).expect("two"));
    first.sink(0..1).write_at(0, b"1");
    second.sink(0..1).write_at(0, b"2");
    drop(first);
    drop(second);
    let again = buffers.take(33_000).expect("one that was used");
    assert_eq!(again.source(0..1).to_vec(1), b"2");
    assert_eq!(buffers.0.lent_bytes(), again.len());
}

#[test]
fn what_nobody_has_goes_with_its_stock() {
    let buffers = Buffers::new(LIMITS);
    let stock = Arc::downgrade(&buffers.0.share.stock);
    drop(buffers.take(100).expect("a buffer"));
    assert!(stock.upgrade().expect("it is there").has_spare());
    let kept = buffers.take(40_000).expect("another");
    drop(buffers);
    drop(kept);
    assert!(stock.upgrade().is_none(), "it is kept by its own buffers");
}

#[test]
fn a_buffer_that_somebody_still_reads_is_not_lent() {
    let buffers = Buffers::new(LIMITS);
    let lease = buffers.take(100).expect("a buffer");
    lease.sink(0..5).write_at(0, b"theirs");
    let source = lease.source(0..5);
    drop(lease);
    let other = buffers.take(100).expect("another");
    other.sink(0..5).write_at(0, b"other");
    assert_eq!(source.to_vec(5), b"their");
}

#[test]
fn every_lease_of_a_buffer_keeps_it() {
    let buffers = Buffers::new(LIMITS);
    let lease = buffers.take(100).expect("a buffer");
    let clone = lease.clone();
    drop(lease);
    assert_eq!(buffers.0.lent_bytes(), clone.len());
    drop(clone);
    assert_eq!(buffers.0.lent_bytes(), 0);
}

#[test]
fn a_client_has_its_share_and_another_still_gets_some() {
    let stock = Stock::new(LIMITS);
    let (greedy, other) = (Buffers(stock.account()), Buffers(stock.account()));
    let mut had: Vec<_> = std::iter::from_fn(|| greedy.take(1 << 20)).collect();
    assert_eq!(had.len(), 3, "of 1,036 KiB each");
    assert!(!greedy.0.has_room() && other.0.has_room());
    assert!(other.take(1 << 20).is_some());
    assert!(other.take(BUFFER_MAX_BYTES + 1).is_none());
    had.pop();
    assert!(greedy.take(1 << 20).is_some());
}

#[test]
fn what_is_not_needed_is_freed() {
    let stock = Stock::new(LIMITS);
    let buffers = Buffers(stock.account());
    let had: Vec<_> = std::iter::from_fn(|| buffers.take(1 << 20)).collect();
    drop(had);
    assert!(stock.retained_bytes.load(Ordering::Relaxed) <= LIMITS.retained_bytes);
    assert!(stock.has_spare());
    stock.trim();
    stock.trim();
    assert!(!stock.has_spare());
    // What is used again and again stays.
    for _ in 0..5 {
        drop(buffers.take(1 << 20));
        stock.trim();
        assert!(stock.has_spare());
    }
}

#[test]
fn a_few_that_hold_much_keep_nobody_out_who_has_little() {
    let stock = Stock::new(LIMITS);
    let greedy: Vec<_> = (0..4).map(|_| Buffers(stock.account())).collect();
    let modest = Buffers(stock.account());
    let mut had: Vec<_> = greedy.iter().map(|buffers| buffers.take(1 << 20)).collect();
    assert!(!stock.is_below_half() && modest.0.has_room());
    let own = modest.take(1 << 20);
    assert!(own.is_some() && !modest.0.has_room(), "now it has a long call");
    drop(own);
    while stock.has_any() {
        had.push(greedy[had.len() % 4].take(1 << 20));
    }
    assert!(!modest.0.has_room(), "there is nothing left");
    let told = Arc::new(Told(Mutex::default()));
    let _queued = [wait(&greedy[0].0, 1, true, &told), wait(&modest.0, 2, true, &told)];
    had.pop();
    assert!(!stock.is_below_half() && modest.0.has_room());
    assert_eq!(*lock(&told.0), [2], "the others hold half of it still");
}

#[test]
fn connections_that_hold_the_half_of_their_client_keep_no_other_of_it_out() {
    let stock = Stock::new(BufferLimits { total_bytes: 64 << 20, ..LIMITS });
    let share = stock.share();
    let (greedy, modest) = (Buffers(share.account()), Buffers(share.account()));
    let had = [greedy.take(1 << 20), greedy.take(1 << 20)];
    assert!(had.iter().all(Option::is_some));
    assert!(!greedy.0.has_room() && modest.0.has_room());
    let own = modest.take(1 << 20);
    assert!(own.is_some() && !modest.0.has_room(), "now it has a long call, and there is no other");
    let told = Arc::new(Told(Mutex::default()));
    let mut queued = wait(&greedy.0, 1, true, &told);
    let _modest = wait(&share.account(), 2, true, &told);
    drop(own);
    assert_eq!(*lock(&told.0), [2], "the other holds half of it still");
    drop(had);
    assert_eq!((share.lent_bytes(), greedy.0.lent_bytes(), stock.lent_bytes()), (0, 0, 0));
    assert_eq!(lock(&told.0)[..2], [2, 1]);
    wait_again(&greedy.0, 1, &told, &mut queued);
}

#[test]
fn one_that_has_next_to_nothing_now_waits_with_those_that_have() {
    let stock = Stock::new(BufferLimits { total_bytes: 64 << 20, ..LIMITS });
    let share = stock.share();
    let (crowd, honest) = (Buffers(share.account()), Buffers(share.account()));
    let (mut theirs, own) = (vec![crowd.take(1 << 20), crowd.take(1 << 20)], honest.take(1 << 20));
    let told = Arc::new(Told(Mutex::default()));
    let mut queued = wait(&honest.0, 1, true, &told);
    drop(own);
    assert_eq!(*lock(&told.0), [1], "its own is back");
    theirs.push(crowd.take(1 << 20));
    assert!(!honest.0.has_room());
    wait_again(&honest.0, 1, &told, &mut queued);
    theirs.pop();
    assert_eq!(*lock(&told.0), [1, 1], "the others have half of it still");
}

#[test]
fn a_client_that_has_next_to_nothing_now_waits_with_those_that_have() {
    let stock = Stock::new(LIMITS);
    let crowd: Vec<_> = (0..3).map(|_| Buffers(stock.account())).collect();
    let share = stock.share();
    let (busy, idle) = (Buffers(share.account()), share.account());
    let mut had: Vec<_> = (0..6).map(|at| crowd[at % 3].take(1 << 20).expect("a buffer")).collect();
    let own = busy.take(1 << 20).expect("one");
    assert!(!stock.has_any());
    let told = Arc::new(Told(Mutex::default()));
    let mut queued = wait(&idle, 1, true, &told);
    had.push(crowd[0].take(16 << 10).expect("a little"));
    drop(own);
    assert_eq!(lock(&told.0)[..], [1], "its client has nothing any more");
    had.push(crowd[1].take(1 << 20).expect("another"));
    wait_again(&idle, 1, &told, &mut queued);
    had.pop();
    assert_eq!(lock(&told.0)[..], [1, 1], "the others have more than half still");
}

#[test]
fn who_leaves_is_not_kept_by_the_queue() {
    let stock = Stock::new(LIMITS);
    let buffers = Buffers(stock.account());
    let had: Vec<_> = std::iter::from_fn(|| buffers.take(1 << 20)).collect();
    let told = Arc::new(Told(Mutex::default()));
    let before = Arc::strong_count(&told);
    let queued: Vec<_> = (0..10).map(|name| wait(&buffers.0, name, true, &told)).collect();
    drop(queued);
    assert_eq!(Arc::strong_count(&told), before);
    drop(had);
    assert!(lock(&told.0).is_empty());
}

fn wait(account: &Account, name: u8, is_there: bool, told: &Arc<Told>) -> Queued {
    let mut queued = Queued::default();
    let waiter: Arc<dyn Waiter> = Arc::new(One(name, is_there, told.clone()));
    account.wait_for_room(&waiter, &mut queued);
    queued
}

fn wait_again(account: &Account, name: u8, told: &Arc<Told>, queued: &mut Queued) {
    let waiter: Arc<dyn Waiter> = Arc::new(One(name, true, told.clone()));
    account.wait_for_room(&waiter, queued);
}

struct Told(Mutex<Vec<u8>>);
struct One(u8, bool, Arc<Told>);
impl Waiter for One {
    fn wake(&self) -> bool {
        lock(&self.2.0).push(self.0);
        self.1
    }
}

#[test]
fn who_waits_is_told_in_turn() {
    let stock = Stock::new(LIMITS);
    let buffers = Buffers(stock.account());
    let told = Arc::new(Told(Mutex::default()));
    let mut had: Vec<_> = std::iter::from_fn(|| buffers.take(1 << 19)).collect();
    let mut in_vain = wait(&buffers.0, 9, true, &told);
    buffers.0.share.waiters.wake_one();
    assert_eq!(mem::take(&mut *lock(&told.0)), [9]);
    let others = [(1, true), (2, false), (3, true), (4, true)];
    let _queued = others.map(|(name, is_there)| wait(&buffers.0, name, is_there, &told));
    wait_again(&buffers.0, 9, &told, &mut in_vain);
    while had.len() > 4 {
        had.pop();
    }
    assert!(lock(&told.0).is_empty(), "half a share is lent still");
    had.pop();
    assert_eq!(*lock(&told.0), [9], "who was told in vain comes first");
    had.pop();
    buffers.0.share.pass_on();
    assert_eq!(*lock(&told.0), [9, 1, 2, 3], "one that has left is passed over");
}

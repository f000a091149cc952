use std::mem;

use super::*;

const LIMITS: BufferLimits =
    BufferLimits { total_bytes: 8 << 20, share_bytes: 4 << 20, retained_bytes: 2 << 20 };

#[test]
fn the_buffer_returned_last_is_lent_first() {
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
fn free_buffers_are_dropped_with_their_pool() {
    let buffers = Buffers::new(LIMITS);
    let pool = Arc::downgrade(&buffers.0.share.pool);
    drop(buffers.take(100).expect("a buffer"));
    assert!(pool.upgrade().expect("it is there").has_spare());
    let kept = buffers.take(40_000).expect("another");
    drop(buffers);
    drop(kept);
    assert!(pool.upgrade().is_none(), "its own buffers keep it");
}

#[test]
fn a_buffer_with_a_live_source_is_not_lent() {
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
fn client_share_leaves_memory_to_others() {
    let pool = BufferPool::new(LIMITS);
    let (greedy, other) = (Buffers(pool.account()), Buffers(pool.account()));
    let mut had: Vec<_> = std::iter::from_fn(|| greedy.take(1 << 20)).collect();
    assert_eq!(had.len(), 3, "of 1,036 KiB each");
    assert!(!greedy.0.has_room() && other.0.has_room());
    assert!(other.take(1 << 20).is_some());
    assert!(other.take(BUFFER_MAX_BYTES + 1).is_none());
    had.pop();
    assert!(greedy.take(1 << 20).is_some());
}

#[test]
fn unneeded_buffers_are_freed() {
    let pool = BufferPool::new(LIMITS);
    let buffers = Buffers(pool.account());
    let had: Vec<_> = std::iter::from_fn(|| buffers.take(1 << 20)).collect();
    drop(had);
    assert!(pool.retained_bytes.load(Ordering::Relaxed) <= LIMITS.retained_bytes);
    assert!(pool.has_spare());
    pool.trim();
    pool.trim();
    assert!(!pool.has_spare());
    // Regularly reused buffers are retained.
    for _ in 0..5 {
        drop(buffers.take(1 << 20));
        pool.trim();
        assert!(pool.has_spare());
    }
}

#[test]
fn large_clients_do_not_exclude_light_ones() {
    let pool = BufferPool::new(LIMITS);
    let greedy: Vec<_> = (0..4).map(|_| Buffers(pool.account())).collect();
    let light = Buffers(pool.account());
    let mut had: Vec<_> = greedy.iter().map(|buffers| buffers.take(1 << 20)).collect();
    assert!(!pool.is_below_half() && light.0.has_room());
    let own = light.take(1 << 20);
    assert!(own.is_some() && !light.0.has_room(), "now it has a long call");
    drop(own);
    while pool.fits_long_call() {
        had.push(greedy[had.len() % 4].take(1 << 20));
    }
    assert!(!light.0.has_room(), "there is nothing left");
    let told = Arc::new(Told(Mutex::default()));
    let _queued = [wait(&greedy[0].0, 1, true, &told), wait(&light.0, 2, true, &told)];
    had.pop();
    assert!(!pool.is_below_half() && light.0.has_room());
    assert_eq!(*lock(&told.0), [2], "the others hold half of it still");
}

#[test]
fn large_connections_do_not_exclude_light_ones() {
    let pool = BufferPool::new(BufferLimits { total_bytes: 64 << 20, ..LIMITS });
    let share = pool.share();
    let (greedy, light) = (Buffers(share.account()), Buffers(share.account()));
    let had = [greedy.take(1 << 20), greedy.take(1 << 20)];
    assert!(had.iter().all(Option::is_some));
    assert!(!greedy.0.has_room() && light.0.has_room());
    let own = light.take(1 << 20);
    assert!(own.is_some() && !light.0.has_room(), "now it has a long call, and there is no other");
    let told = Arc::new(Told(Mutex::default()));
    let mut queued = wait(&greedy.0, 1, true, &told);
    let _modest = wait(&share.account(), 2, true, &told);
    drop(own);
    assert_eq!(*lock(&told.0), [2], "the other holds half of it still");
    drop(had);
    assert_eq!((share.lent_bytes(), greedy.0.lent_bytes(), pool.lent_bytes()), (0, 0, 0));
    assert_eq!(lock(&told.0)[..2], [2, 1]);
    wait_again(&greedy.0, 1, &told, &mut queued);
}

#[test]
fn connection_moves_to_light_queue() {
    let pool = BufferPool::new(BufferLimits { total_bytes: 64 << 20, ..LIMITS });
    let share = pool.share();
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
fn client_moves_to_light_queue() {
    let pool = BufferPool::new(LIMITS);
    let crowd: Vec<_> = (0..3).map(|_| Buffers(pool.account())).collect();
    let share = pool.share();
    let (busy, idle) = (Buffers(share.account()), share.account());
    let mut had: Vec<_> = (0..6).map(|at| crowd[at % 3].take(1 << 20).expect("a buffer")).collect();
    let own = busy.take(1 << 20).expect("one");
    assert!(!pool.fits_long_call());
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
fn a_dropped_waiter_leaves_the_queue() {
    let pool = BufferPool::new(LIMITS);
    let buffers = Buffers(pool.account());
    let had: Vec<_> = std::iter::from_fn(|| buffers.take(1 << 20)).collect();
    let told = Arc::new(Told(Mutex::default()));
    let before = Arc::strong_count(&told);
    let queued: Vec<_> = (0..10).map(|name| wait(&buffers.0, name, true, &told)).collect();
    drop(queued);
    assert_eq!(Arc::strong_count(&told), before);
    drop(had);
    assert!(lock(&told.0).is_empty());
}

fn wait(account: &ConnectionAccount, name: u8, is_there: bool, told: &Arc<Told>) -> Queued {
    let mut queued = Queued::default();
    let waiter: Arc<dyn Waiter> = Arc::new(One(name, is_there, told.clone()));
    account.wait_for_room(&waiter, &mut queued);
    queued
}

fn wait_again(account: &ConnectionAccount, name: u8, told: &Arc<Told>, queued: &mut Queued) {
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
fn waiters_are_woken_in_order() {
    let pool = BufferPool::new(LIMITS);
    let buffers = Buffers(pool.account());
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
    assert_eq!(*lock(&told.0), [9], "one woken in vain comes first");
    had.pop();
    buffers.0.share.wake_next();
    assert_eq!(*lock(&told.0), [9, 1, 2, 3], "one that has left is passed over");
}

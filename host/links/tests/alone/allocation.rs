//! Requests allocate nothing, however they are awaited; and an idle link uses no processor time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::process_time;
use super::test_host::{ECHO, TestHost};
use tombolo_allocations::of_all_threads;
use tombolo_host_links::client::{Line, Spans};
use tombolo_shm::doorbell::Mode;

/// Number of attempts to complete without allocations.
const TRIES: usize = 10;

/// Makes several concurrent calls, with frames, bulk memory and a dropped call.
fn round(line: &Line) {
    let frame = [7; 3000];
    let span = line.in_area().take(4096).expect("room");
    let first = line.call_with(ECHO, [1; 48], Spans::from(span), |writer| writer.put(&frame));
    let second = line.call(ECHO, [2; 48], |writer| writer.put(&frame[..10]));
    drop(line.call(ECHO, [3; 48], |_| {}));
    assert_eq!(second.wait().expect("an answer").frame.len(), 10);
    assert_eq!(first.wait().expect("an answer").frame.len(), 3000);
}

#[test]
fn calls_allocate_nothing_and_idle_links_do_nothing() {
    let _alone = crate::alone();
    for mode in [Mode::Poll, Mode::Event, Mode::Adaptive] {
        let host = TestHost::new(16, mode, mode);
        // With two threads one has to register while the other is the leader. One-time allocations of a
        // thread may occur late, such as at its first sleep: one of several attempts must do without.
        let barrier = Barrier::new(3);
        let over = AtomicBool::new(false);
        let mut allocations = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        barrier.wait();
                        if over.load(Relaxed) {
                            break;
                        }
                        (0..500).for_each(|_| round(&host.line));
                        barrier.wait();
                    }
                });
            }
            while allocations.len() < TRIES && !allocations.contains(&0) {
                let before = of_all_threads();
                barrier.wait();
                barrier.wait();
                allocations.push(of_all_threads() - before);
            }
            over.store(true, Relaxed);
            barrier.wait();
        });
        assert!(allocations.contains(&0), "{mode}: {allocations:?}");
    }
    for mode in [Mode::Event, Mode::Adaptive] {
        let host = TestHost::new(16, mode, mode);
        round(&host.line);
        let before = process_time();
        std::thread::sleep(Duration::from_secs(1));
        let used = process_time() - before;
        assert!(used < Duration::from_millis(20), "{mode}: {used:?} of a second");
    }
}

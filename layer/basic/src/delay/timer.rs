//! A thread that wakes delayed operations.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tombolo_core::lock;

/// Handle of the timer thread, which ends with the last reference.
pub(super) struct Timer {
    shared: Arc<TimerState>,
}

#[derive(Default)]
struct TimerState {
    sleepers: Mutex<Sleepers>,
    changed: Condvar,
}

#[derive(Default)]
struct Sleepers {
    /// Keyed by wake-up time, and a number that distinguishes equal times.
    by_time: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    /// `true` once the [`Timer`] was dropped: the thread wakes all sleepers and ends.
    over: bool,
}

impl Timer {
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let shared = Arc::<TimerState>::default();
        let of_thread = shared.clone();
        std::thread::Builder::new().name("delay".into()).spawn(move || run(&of_thread))?;
        Ok(Arc::new(Self { shared }))
    }

    /// Returns a future that is ready after `time`, counted from now.
    pub(super) fn sleep(&self, time: Duration) -> Sleep {
        let mut sleepers = lock(&self.shared.sleepers);
        sleepers.next += 1;
        Sleep { shared: self.shared.clone(), key: (Instant::now() + time, sleepers.next) }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        lock(&self.shared.sleepers).over = true;
        self.shared.changed.notify_one();
    }
}

/// Future of [`Timer::sleep`]: ready at the time in `key`, or at once when the timer thread has ended.
pub(super) struct Sleep {
    shared: Arc<TimerState>,
    key: (Instant, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut sleepers = lock(&self.shared.sleepers);
        // Without the timer thread nothing would wake this future.
        if sleepers.over || Instant::now() >= self.key.0 {
            return Poll::Ready(());
        }
        sleepers.by_time.insert(self.key, context.waker().clone());
        self.shared.changed.notify_one();
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        lock(&self.shared.sleepers).by_time.remove(&self.key);
    }
}

fn run(shared: &TimerState) {
    let mut sleepers = lock(&shared.sleepers);
    loop {
        let now = Instant::now();
        let later = sleepers.by_time.split_off(&(now, u64::MAX));
        let mut due = std::mem::replace(&mut sleepers.by_time, later);
        if sleepers.over {
            due.append(&mut sleepers.by_time);
        }
        let over = sleepers.over;
        if !due.is_empty() {
            // Wakers are called outside of the lock, because a waker may run any code.
            drop(sleepers);
            due.into_values().for_each(Waker::wake);
            sleepers = lock(&shared.sleepers);
            continue;
        }
        if over {
            return;
        }
        let next = sleepers.by_time.keys().next().map(|(time, _)| time.saturating_duration_since(now));
        sleepers = match next {
            Some(time) => {
                shared.changed.wait_timeout(sleepers, time).unwrap_or_else(PoisonError::into_inner).0
            }
            None => shared.changed.wait(sleepers).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::Answer;

    fn slept(sleep: Sleep) {
        let answer = Answer::later(async move {
            sleep.await;
            Ok(())
        });
        answer.wait().unwrap();
    }

    #[test]
    fn sleepers_wake_in_order_of_time() {
        let timer = Timer::start().unwrap();
        let began = Instant::now();
        let long = timer.sleep(Duration::from_millis(40));
        let waiter = std::thread::spawn(move || slept(long));
        slept(timer.sleep(Duration::from_millis(10)));
        assert!(began.elapsed() >= Duration::from_millis(10));
        waiter.join().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn sleepers_wake_when_the_timer_is_gone() {
        let timer = Timer::start().unwrap();
        let sleep = timer.sleep(Duration::from_secs(3600));
        let waiter = std::thread::spawn(move || slept(sleep));
        drop(timer);
        waiter.join().unwrap();
    }
}

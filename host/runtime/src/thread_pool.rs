//! A bounded thread pool for work that may block: cold reads, fsync, large removals, listings.
//!
//! A [`ThreadPool`] has a bounded number of threads. Each user (a session) has a [`Lane`] with a bounded
//! queue. Threads serve the lanes in turn, and with four threads or more no lane may occupy more than three
//! quarters of them (rounded up), so a client that requests much, or whose disk hangs, leaves threads for the
//! others. A job that panics fails alone.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::lock;
use tombolo_core::{Answer, Ctx, Error, Interrupt, Raised, RequestId, Result};

/// Limits of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPoolLimits {
    /// Number of threads, started on demand and retained. With 0, each job runs at once on the caller's
    /// thread (for simulations).
    pub threads: usize,
    /// Maximum number of queued jobs in one lane; further ones are refused.
    pub queue_len: usize,
}

impl Default for ThreadPoolLimits {
    /// Returns the defaults: 16 threads (a disk needs that many concurrent requests), 4,096 queued jobs per
    /// lane.
    fn default() -> Self {
        Self { threads: 16, queue_len: 4096 }
    }
}

/// A bounded set of threads that run jobs. Dropping it returns at once; queued jobs still run.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<PoolShared>,
}

impl ThreadPool {
    /// Returns a pool without threads yet; `name` is the name of its threads.
    pub fn new(name: &str, limits: ThreadPoolLimits) -> Self {
        let limits = ThreadPoolLimits { queue_len: limits.queue_len.max(1), ..limits };
        let shared =
            PoolShared { name: name.to_owned(), limits, state: Mutex::default(), work: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Returns a new lane for one user.
    pub fn lane(&self) -> Lane {
        let mut state = lock(&self.shared.state);
        let id = state.next_lane;
        state.next_lane += 1;
        Lane { shared: self.shared.clone(), id }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.work.notify_all();
    }
}

/// One user's queue in a [`ThreadPool`].
#[derive(Debug)]
pub struct Lane {
    shared: Arc<PoolShared>,
    id: u64,
}

impl Lane {
    /// Runs `job` on a thread of the pool.
    ///
    /// A job that has not begun fails with [`Error::Interrupted`] when the request's interrupt is raised,
    /// and with [`Error::TimedOut`] when a thread takes it from the queue after its deadline. A job that
    /// has begun is completed. Fails with [`Error::WouldBlock`] when the queue is full or the pool is
    /// dropped, and with [`Error::NoMemory`] if the pool has no thread and none can be started. The waker
    /// is called on the pool's thread, or on the thread whose job has found that none can be started.
    pub fn run<T: Send + 'static>(
        &self,
        cx: &Ctx,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        if self.shared.limits.threads == 0 {
            return job().into();
        }
        let job: JobFn<T> = Box::new(job);
        let phase = Mutex::new(Phase::Waiting { job, waker: None });
        let job = Arc::new(QueuedJob { phase, deadline: cx.deadline, request: cx.request });
        if let Err(refused) = self.shared.submit(self.id, job.clone()) {
            return Answer::Done(Err(refused));
        }
        Answer::Later(Box::pin(Outcome {
            job,
            interrupt: cx.interrupt.clone(),
            raised: cx.interrupt.raised(),
        }))
    }
}

/// State shared by the threads and users of a pool.
struct PoolShared {
    name: String,
    limits: ThreadPoolLimits,
    state: Mutex<PoolState>,
    work: Condvar,
}

#[derive(Default)]
struct PoolState {
    next_lane: u64,
    /// Lanes with queued or running jobs; the first lane that may run a job is served next.
    lanes: VecDeque<Queue>,
    /// Number of queued jobs in all lanes.
    waiting: usize,
    threads: usize,
    idle: usize,
    closing: bool,
}

struct Queue {
    id: u64,
    waiting: VecDeque<Arc<dyn Job>>,
    running: usize,
}

impl PoolShared {
    fn submit(self: &Arc<Self>, lane: u64, job: Arc<dyn Job>) -> Result<()> {
        let mut state = lock(&self.state);
        if state.closing {
            return Err(Error::WouldBlock);
        }
        let at = state.lanes.iter().position(|queue| queue.id == lane).unwrap_or_else(|| {
            state.lanes.push_back(Queue { id: lane, waiting: VecDeque::new(), running: 0 });
            state.lanes.len() - 1
        });
        let queue = &mut state.lanes[at];
        if queue.waiting.len() >= self.limits.queue_len {
            return Err(Error::WouldBlock);
        }
        queue.waiting.push_back(job);
        state.waiting += 1;
        // A further thread is needed if there are more queued jobs than idle threads. A thread that was
        // notified and has not woken yet is in `idle`, and its job in `waiting`.
        let start = state.waiting > state.idle && state.threads < self.limits.threads;
        state.threads += usize::from(start);
        drop(state);
        self.work.notify_one();
        if !start {
            return Ok(());
        }
        let shared = self.clone();
        let started = std::thread::Builder::new().name(self.name.clone()).spawn(move || shared.serve());
        if let Err(cause) = started {
            tracing::warn!(pool = %self.name, %cause, "cannot start a thread");
            self.start_failed();
        }
        Ok(())
    }

    /// Fails all queued jobs if the pool is left without a thread, because none would run them.
    fn start_failed(&self) {
        let mut state = lock(&self.state);
        state.threads -= 1;
        if state.threads > 0 {
            return;
        }
        state.waiting = 0;
        let lanes = std::mem::take(&mut state.lanes);
        drop(state);
        lanes.iter().flat_map(|queue| &queue.waiting).for_each(|job| job.fail(Error::NoMemory));
    }

    /// Runs jobs until the pool is closed and this thread can take no further one. Jobs that are left then,
    /// of lanes that occupy their share of threads, are run by the threads of those lanes.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some((lane, job)) = state.next(self.limits.threads) {
                drop(state);
                job.run();
                drop(job);
                state = lock(&self.state);
                state.finished(lane);
                // The lane may have occupied its share of threads; another of its jobs may run now.
                self.work.notify_one();
                continue;
            }
            if state.closing {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

impl PoolState {
    /// Returns the next job of the first lane below its share, and moves that lane to the end.
    fn next(&mut self, threads: usize) -> Option<(u64, Arc<dyn Job>)> {
        let share = (threads - threads / 4).max(1);
        let at = self.lanes.iter().position(|queue| !queue.waiting.is_empty() && queue.running < share)?;
        let mut queue = self.lanes.remove(at)?;
        let job = queue.waiting.pop_front();
        queue.running += usize::from(job.is_some());
        self.waiting -= usize::from(job.is_some());
        let lane = queue.id;
        self.lanes.push_back(queue);
        job.map(|job| (lane, job))
    }

    fn finished(&mut self, lane: u64) {
        let Some(at) = self.lanes.iter().position(|queue| queue.id == lane) else { return };
        let queue = &mut self.lanes[at];
        queue.running -= 1;
        if queue.running == 0 && queue.waiting.is_empty() {
            self.lanes.remove(at);
        }
    }
}

impl fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        write!(f, "ThreadPool({}: {} threads, {} lanes in use)", self.name, state.threads, state.lanes.len())
    }
}

type JobFn<T> = Box<dyn FnOnce() -> Result<T> + Send>;

/// A job with its state: the function until a thread runs it, then the result until the caller takes it.
struct QueuedJob<T> {
    phase: Mutex<Phase<T>>,
    deadline: Option<Instant>,
    request: RequestId,
}

/// Phase of a job. `Taken`: the caller has the result or has given the job up; also a placeholder under the
/// lock.
enum Phase<T> {
    Waiting { job: JobFn<T>, waker: Option<Waker> },
    Running { waker: Option<Waker> },
    Ended(Result<T>),
    Taken,
}

trait Job: Send + Sync {
    fn run(&self);

    /// Ends a job that has not begun.
    fn fail(&self, error: Error);
}

impl<T> QueuedJob<T> {
    /// Takes the job to run it, or returns `None` if it was abandoned.
    fn begin(&self) -> Option<JobFn<T>> {
        let mut phase = lock(&self.phase);
        match std::mem::replace(&mut *phase, Phase::Taken) {
            Phase::Waiting { job, waker } => {
                *phase = Phase::Running { waker };
                Some(job)
            }
            other => {
                *phase = other;
                None
            }
        }
    }

    fn end(&self, result: Result<T>) {
        let before = std::mem::replace(&mut *lock(&self.phase), Phase::Ended(result));
        if let Phase::Running { waker: Some(waker) } = before {
            waker.wake();
        }
    }
}

impl<T: Send + 'static> Job for QueuedJob<T> {
    fn run(&self) {
        let Some(job) = self.begin() else { return };
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return self.end(Err(Error::TimedOut));
        }
        let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| {
            let cause = panic_text(&*panic);
            tracing::error!(request = self.request.0, cause, "job panicked: failing its request");
            Err(Error::io(format!("panic: {cause}")))
        });
        self.end(result);
    }

    fn fail(&self, error: Error) {
        if self.begin().is_some() {
            self.end(Err(error));
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("?")
}

/// Future of a job's answer.
struct Outcome<T> {
    job: Arc<QueuedJob<T>>,
    interrupt: Interrupt,
    raised: Raised,
}

impl<T> Future for Outcome<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        // Registers for the interrupt before the phase is checked, so that no interrupt in between is missed.
        let raised = Pin::new(&mut self.raised).poll(context).is_ready() || self.interrupt.is_raised();
        let mut phase = lock(&self.job.phase);
        match &mut *phase {
            Phase::Waiting { .. } if raised => {
                // The job and everything that it owns are dropped now; the thread that dequeues it finds the
                // phase `Taken`.
                let given_up = std::mem::replace(&mut *phase, Phase::Taken);
                drop(phase);
                drop(given_up);
                Poll::Ready(Err(Error::Interrupted))
            }
            Phase::Waiting { waker, .. } | Phase::Running { waker } => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Phase::Ended(_) => match std::mem::replace(&mut *phase, Phase::Taken) {
                Phase::Ended(result) => Poll::Ready(result),
                _ => Poll::Pending,
            },
            // The future was polled after its completion.
            Phase::Taken => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use tombolo_core::SessionId;

    use super::*;

    fn cx() -> Ctx {
        Ctx { interrupt: Interrupt::new(), ..Ctx::root(SessionId(1)) }
    }

    fn pool(threads: usize, queue_len: usize) -> ThreadPool {
        ThreadPool::new("test", ThreadPoolLimits { threads, queue_len })
    }

    /// Occupies one thread until the returned sender is dropped or used.
    fn block(lane: &Lane) -> (mpsc::Sender<()>, Answer<()>) {
        let (go, wait) = mpsc::channel::<()>();
        let (began, begins) = mpsc::channel();
        let answer = lane.run(&cx(), move || {
            began.send(()).ok();
            wait.recv().ok();
            Ok(())
        });
        begins.recv().unwrap();
        (go, answer)
    }

    #[test]
    fn a_job_answers_from_another_thread() {
        let pool = pool(2, 8);
        let here = std::thread::current().id();
        let there = pool.lane().run(&cx(), || Ok(std::thread::current().id())).wait().unwrap();
        assert_ne!(here, there);
    }

    #[test]
    fn jobs_that_come_together_run_together() {
        let pool = pool(4, 8);
        let lane = pool.lane();
        lane.run(&cx(), || Ok(())).wait().unwrap();
        let (first, heard) = mpsc::channel();
        let waits = lane.run(&cx(), move || heard.recv_timeout(Duration::from_secs(5)).map_err(Error::io));
        let tells = lane.run(&cx(), move || first.send(7).map_err(Error::io));
        tells.wait().unwrap();
        assert_eq!(waits.wait().unwrap(), 7);
    }

    #[test]
    fn a_panic_fails_its_own_job_only() {
        let pool = pool(1, 8);
        let lane = pool.lane();
        let broken = lane.run(&cx(), || -> Result<()> { panic!("on purpose") });
        let Err(Error::Io { source: Some(source) }) = broken.wait() else { panic!("no error") };
        assert!(source.to_string().contains("on purpose"));
        assert_eq!(lane.run(&cx(), || Ok(7)).wait().unwrap(), 7);
    }

    #[test]
    fn interrupt_ends_queued_job_only() {
        let pool = pool(1, 8);
        let lane = pool.lane();
        let (go, running) = block(&lane);
        let cx = cx();
        let held = Arc::new(());
        let in_job = held.clone();
        let waiting = lane.run(&cx, move || {
            drop(in_job);
            Ok(())
        });
        let interrupt = cx.interrupt.clone();
        let raiser = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            interrupt.raise();
        });
        assert!(matches!(waiting.wait(), Err(Error::Interrupted)));
        assert_eq!(Arc::strong_count(&held), 1, "what the job held is free once the answer is there");
        raiser.join().unwrap();
        go.send(()).unwrap();
        running.wait().unwrap();
    }

    #[test]
    fn a_full_lane_refuses_and_does_not_grow() {
        let pool = pool(1, 2);
        let lane = pool.lane();
        let (go, running) = block(&lane);
        let queued: Vec<_> = (0..2).map(|n| lane.run(&cx(), move || Ok(n))).collect();
        assert!(matches!(lane.run(&cx(), || Ok(())).wait(), Err(Error::WouldBlock)));
        drop(go);
        running.wait().unwrap();
        assert_eq!(queued.into_iter().map(|answer| answer.wait().unwrap()).sum::<i32>(), 1);
    }

    #[test]
    fn a_lane_that_hangs_leaves_threads_to_the_others() {
        let pool = pool(4, 64);
        let (greedy, modest) = (pool.lane(), pool.lane());
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let hung: Vec<_> = (0..16)
            .map(|_| {
                let wait = wait.clone();
                greedy.run(&cx(), move || {
                    lock(&wait).recv().ok();
                    Ok(())
                })
            })
            .collect();
        assert_eq!(modest.run(&cx(), || Ok(1)).wait().unwrap(), 1);
        drop(go);
        hung.into_iter().for_each(|answer| answer.wait().unwrap());
    }

    #[test]
    fn failed_start_of_only_thread_fails_all_queued_jobs() {
        let pool = pool(1, 8);
        // A thread that is being started: jobs wait for it.
        lock(&pool.shared.state).threads = 1;
        let lanes = [pool.lane(), pool.lane()];
        let jobs = [0, 0, 1].map(|at: usize| lanes[at].run(&cx(), || Ok(())));
        pool.shared.start_failed();
        jobs.into_iter().for_each(|answer| assert!(matches!(answer.wait(), Err(Error::NoMemory))));
        assert_eq!(lanes[0].run(&cx(), || Ok(7)).wait().unwrap(), 7, "the next job starts a thread");
    }

    #[test]
    fn expired_deadline_skips_queued_job() {
        let pool = pool(1, 8);
        let lane = pool.lane();
        let (go, running) = block(&lane);
        let ran = Arc::new(AtomicUsize::new(0));
        let counter = ran.clone();
        let late = Ctx { deadline: Some(Instant::now()), ..cx() };
        let answer = lane.run(&late, move || Ok(counter.fetch_add(1, Ordering::Relaxed)));
        go.send(()).unwrap();
        assert!(matches!(answer.wait(), Err(Error::TimedOut)));
        assert_eq!(ran.load(Ordering::Relaxed), 0);
        running.wait().unwrap();
    }
}

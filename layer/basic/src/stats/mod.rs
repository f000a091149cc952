//! Counts every operation, and times them.
//!
//! Counts, errors and bytes are exact. Times are sampled: on a virtual machine two readings of the clock take
//! as long as a look-up that is answered from memory (about 100 ns against 300). So each thread's shard times
//! the first [`TIMED_FIRST`] calls of an operation and then every [`TIMED_EVERY`]th, which stands for that
//! many.

pub mod disk;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::fs::{Export, Op};
use tombolo_core::{Answer, Result};

pub use snapshot::{Operation, Snapshot};

use crate::around::{Around, Call, Layered, Payload};

/// The layer's behaviour; [`over`] applies it.
#[derive(Debug)]
pub struct Stats(Arc<Counters>);

/// `inner` with its operations counted in `counters`, which any number of exports and threads may share.
pub fn over(inner: Arc<dyn Export>, counters: Arc<Counters>) -> Layered<dyn Export, Stats> {
    Layered::new(inner, Arc::new(Stats::new(counters)))
}

impl Stats {
    /// Counts in `counters`.
    pub fn new(counters: Arc<Counters>) -> Self {
        Self(counters)
    }
}

impl Around for Stats {
    #[inline]
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let timing = Timing::begin(&self.0, call.op);
        match inner() {
            Answer::Done(result) => {
                timing.end(&self.0, transferred_bytes(&result));
                Answer::Done(result)
            }
            Answer::Later(later) => {
                let counters = self.0.clone();
                Answer::later(async move {
                    let result = later.await;
                    timing.end(&counters, transferred_bytes(&result));
                    result
                })
            }
        }
    }

    #[inline]
    fn unanswered(&self, op: Op, inner: impl FnOnce()) {
        let timing = Timing::begin(&self.0, op);
        inner();
        timing.end(&self.0, Some(0));
    }
}

#[inline]
fn transferred_bytes<T: Payload>(result: &Result<T>) -> Option<u64> {
    result.as_ref().ok().map(Payload::transferred_bytes)
}

/// One call under way.
struct Timing {
    op: Op,
    /// When it began, for calls that are timed, and how many calls it stands for.
    sample: Option<(Instant, Sample)>,
}

impl Timing {
    #[inline]
    fn begin(counters: &Counters, op: Op) -> Self {
        let sample = counters.count(op);
        Self { op, sample: sample.map(|sample| (Instant::now(), sample)) }
    }

    #[inline]
    /// It has transferred so much; `None` if it has failed.
    fn end(self, counters: &Counters, bytes: Option<u64>) {
        if let Some((began, sample)) = self.sample {
            counters.time(self.op, sample, began.elapsed());
        }
        match bytes {
            Some(bytes) => counters.transferred(self.op, bytes),
            None => counters.failed(self.op),
        }
    }
}

/// Of each operation, a shard times this many calls first.
pub const TIMED_FIRST: u64 = 64;
/// After them, it times every so manieth call.
pub const TIMED_EVERY: u64 = 16;

/// At most this many shards; threads beyond share.
const SHARDS_MAX: usize = 16;

/// Counts, errors, bytes and a histogram of times for each operation: a shard for each thread that asks, so
/// that queues on different cores do not pass cache lines around. About 160 KB for every core up to sixteen.
pub struct Counters {
    shards: Box<[Shard]>,
    /// Whether what has ended is counted too, so that it is known what is under way.
    of_disk: bool,
}

#[repr(align(128))]
struct Shard {
    cells: [Cell; Op::ALL.len()],
    /// Of a disk: operations that were answered, or that nothing waits for any more.
    ended: AtomicU64,
}

struct Cell {
    count: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// How many calls one that is timed stands for.
#[derive(Clone, Copy, Debug)]
struct Sample(u64);

impl Counters {
    /// All zero.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::zero(false))
    }

    /// The same for a disk, of which also is known how many operations are under way.
    pub fn of_disk() -> Arc<Self> {
        Arc::new(Self::zero(true))
    }

    fn zero(of_disk: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let shards = cores.clamp(1, SHARDS_MAX).next_power_of_two();
        Self { shards: (0..shards).map(|_| Shard::default()).collect(), of_disk }
    }

    /// What was counted so far. Taken while operations go on, so one operation's numbers may be a few calls
    /// apart.
    pub fn snapshot(&self) -> Snapshot {
        // First: what ends after it was read counts as under way, and nothing ends that has not begun.
        let ended: u64 = self.shards.iter().map(|shard| shard.ended.load(Ordering::Acquire)).sum();
        let operation = |op: Op| -> Operation {
            let cells = || self.shards.iter().map(|shard| &shard.cells[op.index()]);
            let sum = |field: fn(&Cell) -> &AtomicU64| -> u64 {
                cells().map(|cell| field(cell).load(Ordering::Relaxed)).sum()
            };
            let in_bucket = |index: usize| -> u64 {
                cells().map(|cell| cell.buckets[index].load(Ordering::Relaxed)).sum()
            };
            let histogram = (0..BUCKETS).map(|index| (bound_ns(index), in_bucket(index)));
            Operation {
                name: op.name().to_owned(),
                count: sum(|cell| &cell.count),
                errors: sum(|cell| &cell.errors),
                bytes: sum(|cell| &cell.bytes),
                total_ns: sum(|cell| &cell.total_ns),
                max_ns: cells().map(|cell| cell.max_ns.load(Ordering::Relaxed)).max().unwrap_or(0),
                histogram: histogram.filter(|(_, count)| *count > 0).collect(),
            }
        };
        let operations = Op::ALL.into_iter().map(operation);
        let operations: Vec<_> = operations.filter(|operation| operation.count > 0).collect();
        let begun: u64 = operations.iter().map(|operation| operation.count).sum();
        Snapshot { under_way: self.of_disk.then(|| begun.saturating_sub(ended)), operations }
    }

    /// An operation of a disk has ended.
    #[inline]
    fn ended(&self) {
        self.shard().ended.fetch_add(1, Ordering::Release);
    }

    /// Counts a call, and says whether it is to be timed.
    #[inline]
    fn count(&self, op: Op) -> Option<Sample> {
        let before = self.cell(op).count.fetch_add(1, Ordering::Relaxed);
        if before < TIMED_FIRST {
            Some(Sample(1))
        } else {
            before.is_multiple_of(TIMED_EVERY).then_some(Sample(TIMED_EVERY))
        }
    }

    fn time(&self, op: Op, Sample(weight): Sample, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let cell = self.cell(op);
        cell.total_ns.fetch_add(took_ns.saturating_mul(weight), Ordering::Relaxed);
        cell.max_ns.fetch_max(took_ns, Ordering::Relaxed);
        cell.buckets[bucket(took_ns)].fetch_add(weight, Ordering::Relaxed);
    }

    #[inline]
    fn transferred(&self, op: Op, bytes: u64) {
        if bytes > 0 {
            self.cell(op).bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    #[inline]
    fn failed(&self, op: Op) {
        self.cell(op).errors.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn cell(&self, op: Op) -> &Cell {
        &self.shard().cells[op.index()]
    }

    /// The calling thread's.
    #[inline]
    fn shard(&self) -> &Shard {
        // The number of shards is a power of two.
        &self.shards[thread_number() & (self.shards.len() - 1)]
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self { cells: std::array::from_fn(|_| Cell::default()), ended: AtomicU64::new(0) }
    }
}

impl Default for Cell {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            count: zero(),
            errors: zero(),
            bytes: zero(),
            total_ns: zero(),
            max_ns: zero(),
            buckets: std::array::from_fn(|_| zero()),
        }
    }
}

/// A small number of the calling thread's own.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is being torn down shares the first shard.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

// Buckets whose width grows with the value: one part in sixteen, from 1 ns to over a minute.

/// Each power of two is divided into this many buckets.
const STEPS: u64 = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Values from 2³⁶ ns (69 s) on share the last bucket.
const VALUE_BITS: u32 = 36;

/// How many buckets there are.
const BUCKETS: usize = bucket_below_limit((1 << VALUE_BITS) - 1) + 1;

/// The bucket of a value.
#[inline]
fn bucket(value_ns: u64) -> usize {
    bucket_below_limit(if value_ns >> VALUE_BITS == 0 { value_ns } else { (1 << VALUE_BITS) - 1 })
}

/// The largest value of a bucket, in nanoseconds.
fn bound_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    ((bucket % STEPS + STEPS + 1) << shift) - 1
}

const fn bucket_below_limit(value: u64) -> usize {
    if value < 2 * STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEP_BITS;
    (STEPS * (shift as u64 + 1) + ((value >> shift) & (STEPS - 1))) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stand_for_all_calls() {
        let counters = Counters::new();
        for _ in 0..TIMED_FIRST + 10 * TIMED_EVERY {
            if let Some(sample) = counters.count(Op::Getattr) {
                counters.time(Op::Getattr, sample, Duration::from_nanos(100));
            }
        }
        counters.failed(Op::Getattr);
        let snapshot = counters.snapshot();
        let [getattr] = &snapshot.operations[..] else { panic!("{snapshot:?}") };
        assert_eq!((getattr.name.as_str(), getattr.count, getattr.errors), ("getattr", 224, 1));
        assert_eq!(getattr.histogram.iter().map(|(_, count)| count).sum::<u64>(), 224);
        assert_eq!(getattr.total_ns, 22_400);
        assert_eq!(getattr.max_ns, 100);
    }

    #[test]
    fn threads_lose_no_counts() {
        let counters = Counters::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        counters.count(Op::Read);
                    }
                });
            }
        });
        assert_eq!(counters.snapshot().operations[0].count, 80_000);
    }

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        for exponent in 0..VALUE_BITS {
            for value in [1 << exponent, (1 << exponent) + 1, (2 << exponent) - 1, (3 << exponent) / 2] {
                let bucket = bucket(value);
                assert!(value <= bound_ns(bucket), "{value}");
                assert!(bucket == 0 || bound_ns(bucket - 1) < value, "{value}");
                assert!(bound_ns(bucket) as f64 <= value as f64 * (1.0 + 1.0 / STEPS as f64), "{value}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}

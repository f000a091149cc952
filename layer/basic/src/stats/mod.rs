//! Counts and times of all operations.
//!
//! [`Counters`] holds them, in shards that are shared by few threads each. Counts, errors and bytes are
//! exact. Times are read from [`Moment`], exact to a few percent, and sampled: in a virtual machine two
//! readings may cost 100 ns, and a look-up from memory 300. Each shard times the first [`TIMED_FIRST`] calls
//! of an operation, and then each [`TIMED_EVERY`]th, which counts for all of its interval.

pub mod disk;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tombolo_core::fs::{Export, Op};
use tombolo_core::{Answer, Result};
use tombolo_sys::moment::Moment;

pub use snapshot::{Operation, Snapshot};

use crate::around::{Around, Call, Layered, Payload};

/// The [`Around`] of this layer, which [`over`] applies.
#[derive(Debug)]
pub struct Stats(Arc<Counters>);

/// Wraps `inner`, counting its operations in `counters`, which may be shared by any number of exports and
/// threads.
pub fn over(inner: Arc<dyn Export>, counters: Arc<Counters>) -> Layered<dyn Export, Stats> {
    Layered::new(inner, Arc::new(Stats::new(counters)))
}

impl Stats {
    /// Creates a layer that counts in `counters`.
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

/// A call in progress, which is counted, and timed if it is a sample.
struct Timing {
    op: Op,
    /// Start of the call and the number of calls that it represents; `None` if it is not timed.
    sample: Option<(Moment, Sample)>,
}

impl Timing {
    #[inline]
    fn begin(counters: &Counters, op: Op) -> Self {
        let sample = counters.count(op);
        Self { op, sample: sample.map(|sample| (Moment::now(), sample)) }
    }

    /// Ends the call with the number of bytes transferred; `None` if it failed.
    #[inline]
    fn end(self, counters: &Counters, bytes: Option<u64>) {
        if let Some((began, sample)) = self.sample {
            let took = began.elapsed();
            // The maximum means that the processor's counter was reset, as by a suspension.
            if took < Duration::MAX {
                counters.time(self.op, sample, took);
            }
        }
        match bytes {
            Some(bytes) => counters.transferred(self.op, bytes),
            None => counters.failed(self.op),
        }
    }
}

/// Number of calls of each operation that a shard times first.
pub const TIMED_FIRST: u64 = 64;
/// Interval of timed calls after the first [`TIMED_FIRST`].
pub const TIMED_EVERY: u64 = 16;

/// Maximum number of shards; further threads share.
const SHARDS_MAX: usize = 16;

/// Counts, errors, bytes and a histogram of times for each operation, in shards: as many as cores, rounded up
/// to a power of two, at most sixteen. Threads are distributed among the shards, so that few share cache
/// lines. A shard takes about 160 KB.
pub struct Counters {
    shards: Box<[Shard]>,
    /// `true` if ended operations are counted too, so that the number in progress is known.
    of_disk: bool,
}

#[repr(align(128))]
struct Shard {
    cells: [Cell; Op::ALL.len()],
    /// For a disk: number of operations that were answered or dropped.
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

/// Number of calls that a timed one represents.
#[derive(Clone, Copy, Debug)]
struct Sample(u64);

impl Counters {
    /// Creates counters for exports, all zero.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::zero(false))
    }

    /// Creates counters for a disk, which also count operations in progress.
    pub fn of_disk() -> Arc<Self> {
        Arc::new(Self::zero(true))
    }

    fn zero(of_disk: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let shards = cores.clamp(1, SHARDS_MAX).next_power_of_two();
        Self { shards: (0..shards).map(|_| Shard::default()).collect(), of_disk }
    }

    /// Returns the current values. Operations continue while they are read, so the numbers of one operation
    /// may be a few calls apart.
    pub fn snapshot(&self) -> Snapshot {
        // Ends are read before beginnings: an operation that ends between the two readings counts as in
        // progress, and the difference is never negative.
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

    #[inline]
    fn ended(&self) {
        self.shard().ended.fetch_add(1, Ordering::Release);
    }

    /// Counts a call, and returns a sample if it is to be timed.
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

/// Returns a small number unique to the calling thread.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // Threads being torn down share the first shard.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

// Buckets of the histogram have increasing width, with a precision of one in sixteen, from 1 ns to over a
// minute.

/// Number of buckets for each power of two.
const STEPS: u64 = 16;
/// Binary logarithm of [`STEPS`].
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Values from 2³⁶ ns (69 s) on share the last bucket.
const VALUE_BITS: u32 = 36;

/// Number of buckets for times below the limit of [`VALUE_BITS`].
const BUCKETS: usize = bucket_below_limit((1 << VALUE_BITS) - 1) + 1;

/// Returns the index of the bucket in which a time is counted.
#[inline]
fn bucket(value_ns: u64) -> usize {
    bucket_below_limit(if value_ns >> VALUE_BITS == 0 { value_ns } else { (1 << VALUE_BITS) - 1 })
}

/// Returns the largest value of a bucket, in nanoseconds.
fn bound_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    ((bucket % STEPS + STEPS + 1) << shift) - 1
}

/// Returns the bucket of a time. Below 32 ns each value has a bucket; above, each power of two has [`STEPS`].
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
    fn values_lie_in_their_narrow_buckets() {
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

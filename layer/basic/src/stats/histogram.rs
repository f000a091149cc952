//! Buckets whose width grows with the value: one part in sixteen, from 1 ns to over a minute.

/// Each power of two is divided into this many buckets.
const STEPS: u64 = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Values from 2³⁶ ns (69 s) on share the last bucket.
const VALUE_BITS: u32 = 36;

/// How many buckets there are.
pub(super) const BUCKETS: usize = bucket_below_limit((1 << VALUE_BITS) - 1) + 1;

/// The bucket of a value.
#[inline]
pub(super) fn bucket(value_ns: u64) -> usize {
    bucket_below_limit(if value_ns >> VALUE_BITS == 0 { value_ns } else { (1 << VALUE_BITS) - 1 })
}

/// The largest value of a bucket, in nanoseconds.
pub(super) fn bound_ns(bucket: usize) -> u64 {
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

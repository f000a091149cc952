//! Snapshots of the counters, their differences, and statistics of the times.

use serde::{Deserialize, Serialize};

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Operations called at least once, in the order of the waist.
    pub operations: Vec<Operation>,
    /// For a disk: operations in progress at that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<u64>,
}

/// The counters of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Name ([`Op::name`](tombolo_core::fs::Op::name)).
    pub name: String,
    /// Number of calls.
    pub count: u64,
    /// Number of calls that failed.
    pub errors: u64,
    /// File data read or written, in bytes.
    pub bytes: u64,
    /// Total time of all calls in nanoseconds, estimated from the timed ones.
    pub total_ns: u64,
    /// Longest measured time, in nanoseconds; in a difference of snapshots an upper bound of it.
    pub max_ns: u64,
    /// Histogram of times: pairs of a bound in nanoseconds, and the number of calls that took at most that
    /// long but longer than the preceding bound. Ascending; bounds without calls are omitted.
    pub histogram: Vec<(u64, u64)>,
}

impl Snapshot {
    /// Returns the counters of the operation with this name; `None` if it was never called.
    pub fn operation(&self, name: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.name == name)
    }

    /// Returns the difference to `earlier`, an older snapshot of the same counters. `under_way` is that
    /// of `self`.
    pub fn since(&self, earlier: &Self) -> Self {
        let operations = self.operations.iter().map(|operation| match earlier.operation(&operation.name) {
            Some(before) => operation.since(before),
            None => operation.clone(),
        });
        let operations = operations.filter(|operation| operation.count > 0).collect();
        Self { operations, under_way: self.under_way }
    }
}

impl Operation {
    /// Returns the time within which `share` (0 to 1) of the calls ended, in nanoseconds, with a precision of
    /// one in sixteen. `None` if none was timed.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let total: u64 = self.histogram.iter().map(|(_, count)| count).sum();
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let bound = self.histogram.iter().find_map(|&(bound_ns, count)| {
            seen += count;
            (seen >= rank).then_some(bound_ns)
        });
        // The bound of the largest value's bucket may exceed that value.
        bound.map(|bound_ns| bound_ns.min(self.max_ns))
    }

    /// Returns the mean time of a call, in nanoseconds; 0 if none was timed.
    pub fn mean_ns(&self) -> u64 {
        let timed: u64 = self.histogram.iter().map(|(_, count)| count).sum();
        self.total_ns.checked_div(timed).unwrap_or(0)
    }

    fn since(&self, earlier: &Self) -> Self {
        let mut before = earlier.histogram.iter().peekable();
        let mut histogram = Vec::new();
        for &(bound_ns, count) in &self.histogram {
            while before.next_if(|(bound, _)| *bound < bound_ns).is_some() {}
            let old = before.next_if(|(bound, _)| *bound == bound_ns).map_or(0, |(_, count)| *count);
            if count > old {
                histogram.push((bound_ns, count - old));
            }
        }
        // The maximum of the interval, with the precision of the buckets.
        let longest = histogram.last().map_or(0, |(bound_ns, _)| *bound_ns);
        Self {
            name: self.name.clone(),
            count: self.count.saturating_sub(earlier.count),
            errors: self.errors.saturating_sub(earlier.errors),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            max_ns: self.max_ns.min(longest),
            histogram,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(histogram: &[(u64, u64)]) -> Operation {
        let count = histogram.iter().map(|(_, count)| count).sum();
        let max_ns = histogram.last().map_or(0, |(bound_ns, _)| *bound_ns);
        Operation { name: "read".into(), count, max_ns, histogram: histogram.to_vec(), ..Default::default() }
    }

    #[test]
    fn quantiles_count_from_the_first_answer() {
        let operation = operation(&[(10, 98), (100, 1), (1000, 1)]);
        assert_eq!(operation.quantile_ns(0.5), Some(10));
        assert_eq!(operation.quantile_ns(0.99), Some(100));
        assert_eq!(operation.quantile_ns(1.0), Some(1000));
        assert_eq!(Operation::default().quantile_ns(0.5), None);
    }

    #[test]
    fn an_interval_is_what_came_on_top() {
        let snapshot = |histogram, under_way| Snapshot { operations: vec![operation(histogram)], under_way };
        let earlier = snapshot(&[(10, 5), (1000, 1)], Some(3));
        let later = snapshot(&[(10, 7), (20, 2), (1000, 1)], Some(2));
        let since = later.since(&earlier);
        assert_eq!(since.operations[0].histogram, [(10, 2), (20, 2)]);
        assert_eq!((since.operations[0].count, since.operations[0].max_ns), (4, 20));
        assert_eq!(since.under_way, Some(2));
        assert!(later.since(&later).operations.is_empty());
    }

    #[test]
    fn snapshots_travel_as_json() {
        let snapshot = Snapshot { operations: vec![operation(&[(10, 5)])], under_way: None };
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
    }
}

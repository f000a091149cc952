//! Units and their text form.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    Nanoseconds,
    Seconds,
    BytesPerSecond,
    PerSecond,
    Bytes,
    Count,
    /// Multiple of another value.
    Times,
    Percent,
    /// Count per million bytes.
    PerMegabyte,
    /// Time per million bytes.
    NanosecondsPerMegabyte,
}

impl Unit {
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::BytesPerSecond | Unit::PerSecond)
    }

    /// Formats a value with its unit, to three digits.
    pub fn text(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds if value < 1e3 => format!("{} ns", digits(value)),
            Unit::Nanoseconds if value < 1e7 => format!("{} µs", digits(value / 1e3)),
            Unit::Nanoseconds => format!("{} ms", digits(value / 1e6)),
            Unit::Seconds => format!("{} s", digits(value)),
            Unit::BytesPerSecond => format!("{} MB/s", digits(value / 1e6)),
            Unit::PerSecond => format!("{} k/s", digits(value / 1e3)),
            Unit::Bytes => format!("{} MB", digits(value / 1e6)),
            Unit::Count => format!("{value:.0}"),
            Unit::Times => format!("{} ×", digits(value)),
            Unit::Percent => format!("{value:.3} %"),
            Unit::PerMegabyte => format!("{} /MB", digits(value)),
            Unit::NanosecondsPerMegabyte => format!("{} µs/MB", digits(value / 1e3)),
        }
    }
}

/// Formats three significant digits.
pub(super) fn digits(value: f64) -> String {
    let size = value.abs();
    let places = if size >= 99.95 {
        0
    } else if size >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_with_three_digits() {
        assert_eq!(Unit::Nanoseconds.text(7.894), "7.89 ns");
        assert_eq!(Unit::Nanoseconds.text(45_123.0), "45.1 µs");
        assert_eq!(Unit::Nanoseconds.text(82_611_000.0), "82.6 ms");
        assert_eq!(Unit::BytesPerSecond.text(2_345e6), "2345 MB/s");
        assert_eq!(Unit::Count.text(1024.0), "1024");
        assert_eq!(digits(99.96), "100");
    }
}

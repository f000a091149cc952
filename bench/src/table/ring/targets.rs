//! Targets of the figures.

use tombolo_shm::doorbell::Mode;

use super::LARGE_BYTES;
use super::speed::{ALONE, CACHE_LINE, COPIED, FUTEX, GETATTR, IN_PLACE, MANY, NATIVE, NULL, SIZES};
use crate::report::{Figure, Report, Unit};

/// Targets: at most 1.5 × a bare cache line, 1.25 × a bare futex, and 10 % over polling.
const POLL_TARGET: f64 = 0.667;
const EVENT_TARGET: f64 = 0.8;
const ADAPTIVE_TARGET: f64 = 0.909;
/// Maximum number of null requests that an operation may cost over its system call.
const GETATTR_NULLS: f64 = 1.5;
const DATA_NULLS: f64 = 2.0;
/// Bytes per second relative to the system call.
const RATE_TARGET: f64 = 0.9;
/// Size of reads and writes with a target.
const DATA_BYTES: usize = 4096;
/// Operations per second with many in flight.
const MANY_TARGET: f64 = 2e6;
/// Compares figures that have targets, and some others.
pub fn judge(report: &mut Report) {
    let [poll, event, adaptive] = [Mode::Poll, Mode::Event, Mode::Adaptive].map(Mode::name);
    let [line, futex] = [CACHE_LINE, FUTEX].map(|column| report.figure(NULL, column, "").cloned());
    for row in [NULL, ALONE] {
        for (mode, bare, target) in [(poll, &line, POLL_TARGET), (event, &futex, EVENT_TARGET)] {
            let ours = report.figure(row, mode, "").cloned();
            report.compare(ours.as_ref(), bare.as_ref(), Some(target));
        }
        report.compare_cells(row, (adaptive, ""), (poll, ""), Some(ADAPTIVE_TARGET));
    }
    let Some(null) = report.figure(NULL, poll, "").cloned() else { return };
    over(report, GETATTR, poll, &null, GETATTR_NULLS, true);
    over(report, GETATTR, adaptive, &null, GETATTR_NULLS, false);
    for (size, bytes) in SIZES {
        for row in [format!("read, {size}"), format!("write, {size}")] {
            if bytes >= LARGE_BYTES {
                report.compare_cells(&row, (IN_PLACE, ""), (NATIVE, ""), Some(RATE_TARGET));
                report.compare_cells(&row, (COPIED, ""), (NATIVE, ""), None);
            } else {
                let is_target = bytes == DATA_BYTES;
                over(report, &row, IN_PLACE, &null, DATA_NULLS, is_target);
                over(report, &row, COPIED, &null, DATA_NULLS, is_target);
            }
        }
    }
    let target = Figure::single(MANY, "", "2 M/s", Unit::PerSecond, MANY_TARGET);
    for (mode, wanted) in [(poll, Some(1.0)), (adaptive, None)] {
        let ours = report.figure(MANY, mode, "").cloned();
        report.compare(ours.as_ref(), Some(&target), wanted);
    }
}

/// Compares with the row's system call plus a number of null requests.
fn over(report: &mut Report, row: &str, ours: &str, null: &Figure, times: f64, is_target: bool) {
    let native = report.figure(row, NATIVE, "").and_then(|native| sum(native, null, times));
    let ours = report.figure(row, ours, "").cloned();
    report.compare(ours.as_ref(), native.as_ref(), is_target.then_some(1.0));
}

/// Adds a multiple of a figure to another, by round.
fn sum(one: &Figure, other: &Figure, times: f64) -> Option<Figure> {
    let rounds: Vec<f64> = if one.rounds.len() == other.rounds.len() {
        one.rounds.iter().zip(&other.rounds).map(|(one, other)| one + other * times).collect()
    } else {
        vec![one.spread.median + other.spread.median * times]
    };
    let label = format!("{} + {times} × {}", one.column, other.row);
    Figure::of_rounds(&one.row, "", &label, one.unit, rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(row: &str, column: &str, rounds: &[f64]) -> Figure {
        Figure::of_rounds(row, "", column, Unit::Nanoseconds, rounds.to_vec()).unwrap()
    }

    #[test]
    fn operation_is_compared_with_null_requests_of_its_round() {
        let mut report = Report::new("ring", "x", String::new(), false);
        report.figures = vec![
            figure(NULL, CACHE_LINE, &[200.0, 400.0, 200.0]),
            figure(NULL, "poll", &[250.0, 500.0, 250.0]),
            figure(GETATTR, NATIVE, &[625.0, 1250.0, 625.0]),
            figure(GETATTR, "poll", &[1000.0, 2000.0, 1000.0]),
        ];
        judge(&mut report);
        let ratio = |row: &str| report.ratios.iter().find(|ratio| ratio.row == row).unwrap();
        assert_eq!((ratio(NULL).spread.median, ratio(NULL).spread.max), (0.8, 0.8));
        assert_eq!((ratio(GETATTR).spread.min, ratio(GETATTR).spread.max), (1.0, 1.0));
        assert_eq!(ratio(GETATTR).other, "system call + 1.5 × null request");
        assert_eq!(ratio(GETATTR).target, Some(1.0));
    }
}

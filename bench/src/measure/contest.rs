//! Contests, in which contestants take turns.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::{Clock, Cost, CostMeter, Placement, SyscallCounter, Work, go_on, histogram, quantile_ns};
use crate::error::{Error, Result};

/// A contestant: its operation, servers and placement.
pub struct Entrant<'a> {
    /// Column and variant; row and column in a contest of several rows (`Report::contest_of_rows`).
    pub name: (String, String),
    pub work: Work<'a>,
    /// Processes whose costs count, and whose threads are placed.
    pub servers: Vec<u32>,
    /// Placement; `None` pins no threads.
    pub place: Option<Placement>,
}

impl<'a> Entrant<'a> {
    pub fn new(
        (column, variant): (&str, &str),
        work: Work<'a>,
        servers: &[u32],
        place: impl Into<Option<Placement>>,
    ) -> Self {
        let name = (column.to_owned(), variant.to_owned());
        Self { name, work, servers: servers.to_vec(), place: place.into() }
    }
}

/// Figures of one turn of a contestant.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Median of the operations, in nanoseconds.
    pub median_ns: f64,
    /// 99th percentile of the operations, in nanoseconds.
    pub p99_ns: f64,
    /// Time per operation over the whole turn, in nanoseconds.
    pub mean_ns: f64,
    /// Costs per operation other than time.
    pub cost: Cost,
}

/// The turns of one contestant.
pub struct Series {
    pub name: (String, String),
    /// Turns by round; all series of a contest have the same number.
    pub turns: Vec<Turn>,
    /// Times of all operations of all rounds.
    laps: Histogram<u64>,
    /// Costs per operation other than time, if they are to be printed.
    pub cost: Option<Cost>,
    /// System calls of the servers per operation, if they could be counted.
    pub server_syscalls: Option<f64>,
    /// Number of bytes per operation, if the figure is a rate.
    pub bytes: Option<u64>,
    /// `true` if the figure is operations per second.
    pub per_second: bool,
}

impl Series {
    /// Returns the `quantile` of the times of all operations, in nanoseconds.
    pub fn quantile_ns(&self, quantile: f64) -> f64 {
        quantile_ns(&self.laps, quantile)
    }
}

/// A failed contestant with the reason.
#[derive(Clone, Debug)]
pub struct Dropped {
    pub name: (String, String),
    pub reason: String,
}

#[derive(Clone, Copy, Debug)]
pub struct Contest {
    /// Number of turns per contestant.
    pub rounds: usize,
    /// Approximate length of a turn.
    pub turn: Duration,
    /// Maximum number of operations per turn.
    pub count_max: u64,
    /// `true` if costs are printed, which is not useful if they include the start of a turn.
    pub costs: bool,
    /// `true` if system calls are counted in a separate turn.
    pub count_syscalls: bool,
}

/// Minimum number of operations per turn, for a meaningful median.
const COUNT_MIN: u64 = 3;
/// Number of operations for the estimate of the turn's length.
const COUNT_PROBE: u64 = 8;

impl Contest {
    /// Describes the method for a report.
    pub fn condition(&self) -> String {
        format!(
            "{} rounds; in each round every contestant has one turn of about {} ms, in rotating order; \
             a figure is the median of its rounds (quartiles in brackets), a ratio the median of the ratios within each round",
            self.rounds,
            self.turn.as_millis()
        )
    }

    /// Runs all turns. A contestant that fails is dropped from then on, and reported.
    pub fn run(&self, entrants: Vec<Entrant<'_>>) -> (Vec<Series>, Vec<Dropped>) {
        let mut runners: Vec<Runner<'_>> = entrants.into_iter().map(Runner::new).collect();
        let mut dropped = Vec::new();
        keep(&mut runners, &mut dropped, |runner| runner.warm_up(self));
        for round in 0..self.rounds {
            // The order rotates, or the same contestant would be the first of each round.
            let first = if runners.is_empty() { 0 } else { round % runners.len() };
            runners.rotate_left(first);
            keep(&mut runners, &mut dropped, Runner::turn);
            let back = if runners.is_empty() { 0 } else { first.min(runners.len()) };
            runners.rotate_right(back);
        }
        if self.count_syscalls {
            keep(&mut runners, &mut dropped, Runner::count_syscalls);
        }
        (runners.into_iter().map(|runner| runner.into_series(self.costs)).collect(), dropped)
    }
}

/// Takes a step with each contestant, and drops those that fail.
fn keep<'a>(
    runners: &mut Vec<Runner<'a>>,
    dropped: &mut Vec<Dropped>,
    mut step: impl FnMut(&mut Runner<'a>) -> Result<()>,
) {
    runners.retain_mut(|runner| match step(runner) {
        Ok(()) => true,
        Err(error) => {
            dropped.push(Dropped { name: runner.entrant.name.clone(), reason: error.to_string() });
            false
        }
    });
}

struct Runner<'a> {
    entrant: Entrant<'a>,
    meter: CostMeter,
    count: u64,
    laps: Histogram<u64>,
    operations: u64,
    cost: Cost,
    turns: Vec<Turn>,
    syscalls: Option<f64>,
}

impl<'a> Runner<'a> {
    fn new(entrant: Entrant<'a>) -> Self {
        let meter = CostMeter::new(&entrant.servers, entrant.work.caller);
        Self {
            entrant,
            meter,
            count: COUNT_PROBE,
            laps: histogram(),
            operations: 0,
            cost: Cost::default(),
            turns: Vec::new(),
            syscalls: None,
        }
    }

    /// Prepares the caches, and finds the number of operations per turn.
    fn warm_up(&mut self, contest: &Contest) -> Result<()> {
        let count_max = self.entrant.work.count_max.min(contest.count_max).max(1);
        let mut count = COUNT_PROBE.min(count_max);
        for _ in 0..3 {
            let clock = self.run(count)?;
            let each_ns = clock.total().as_nanos().max(1) / u128::from(clock.count().max(1));
            let fitting = contest.turn.as_nanos() / each_ns.max(1);
            count = u64::try_from(fitting).unwrap_or(u64::MAX).clamp(COUNT_MIN.min(count_max), count_max);
            // A single long operation suffices.
            if clock.total() > contest.turn {
                break;
            }
        }
        self.count = count;
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        if let Some(place) = self.entrant.place {
            place.take(&self.entrant.servers)?;
        }
        let before = self.meter.now();
        let clock = self.run(self.count)?;
        let cost = self.meter.now() - before;
        self.cost += cost;
        self.operations += clock.count();
        self.turns.push(Turn {
            median_ns: clock.quantile_ns(0.5),
            p99_ns: clock.quantile_ns(0.99),
            mean_ns: clock.total().as_nanos() as f64 / clock.count().max(1) as f64,
            cost: cost.per(clock.count()),
        });
        // Cannot fail: both histograms have the same range.
        let _in_range = self.laps.add(clock.into_laps());
        Ok(())
    }

    fn count_syscalls(&mut self) -> Result<()> {
        let counters: Vec<_> =
            self.entrant.servers.iter().filter_map(|&server| SyscallCounter::start(server)).collect();
        if counters.is_empty() {
            return Ok(());
        }
        let clock = self.run(self.count)?;
        let calls: Option<u64> = counters.into_iter().map(SyscallCounter::stop).sum();
        self.syscalls = calls.map(|calls| calls as f64 / clock.count().max(1) as f64);
        Ok(())
    }

    fn run(&mut self, count: u64) -> Result<Clock> {
        go_on()?;
        if let Some(place) = self.entrant.place {
            place.take(&self.entrant.servers)?;
        }
        let mut clock = Clock::new();
        self.entrant.work.run(count, &mut clock)?;
        if clock.count() == 0 {
            let what = self.entrant.name.0.clone();
            return Err(Error::Wrong { what, answer: "no operation was timed".to_owned() });
        }
        Ok(clock)
    }

    fn into_series(self, costs: bool) -> Series {
        Series {
            name: self.entrant.name,
            turns: self.turns,
            laps: self.laps,
            cost: costs.then(|| self.cost.per(self.operations)),
            server_syscalls: self.syscalls,
            bytes: self.entrant.work.bytes,
            per_second: self.entrant.work.per_second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    fn entrant(
        name: &'static str,
        log: &Rc<RefCell<Vec<&'static str>>>,
        fail_at: Option<usize>,
    ) -> Entrant<'static> {
        let (log, mut runs) = (Rc::clone(log), 0);
        let work = Work::new(move |count, clock| {
            runs += 1;
            if fail_at == Some(runs) {
                return Err(Error::Absent("gone".to_owned()));
            }
            log.borrow_mut().push(name);
            clock.record(Duration::from_millis(10) * u32::try_from(count).unwrap(), count);
            Ok(())
        });
        Entrant::new((name, ""), work, &[], None::<Placement>)
    }

    const CONTEST: Contest = Contest {
        rounds: 3,
        turn: Duration::from_millis(50),
        count_max: 100,
        costs: true,
        count_syscalls: false,
    };

    #[test]
    fn contestants_take_turns_and_each_begins_once() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let entrants = ["a", "b", "c"].map(|name| entrant(name, &log, None)).into();
        let (series, dropped) = CONTEST.run(entrants);
        assert!(dropped.is_empty());
        let turns = log.borrow()[3..].concat();
        assert_eq!(turns, "abcbcacab");
        let names: Vec<_> = series.iter().map(|series| series.name.0.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(series.iter().all(|series| series.turns.len() == 3));
    }

    #[test]
    fn failing_contestant_is_named_and_others_continue() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let entrants = vec![entrant("a", &log, None), entrant("b", &log, Some(3)), entrant("c", &log, None)];
        let (series, dropped) = CONTEST.run(entrants);
        assert_eq!(dropped.len(), 1);
        assert_eq!((dropped[0].name.0.as_str(), dropped[0].reason.as_str()), ("b", "gone"));
        assert_eq!(series.len(), 2);
        assert!(series.iter().all(|series| series.turns.len() == 3));
    }
}

//! Table 2: gain of each step from the paper's client to its successor.

use super::PAPER;
use super::test_host::{Mover, Serves, TestHost};
use crate::drive::{Direction, Job, Kind};
use crate::error::Result;
use crate::nfs::Link;
use crate::report::{Figure, Report, Unit};

const ROUNDS: usize = 15;
const FILE_BYTES: usize = 32 << 20;
const PIECE_BYTES: usize = 32 << 10;
const LIMIT: u32 = 8;

const HERE: &str = "here";
const THROUGHPUT: &str = "throughput";
const SWITCHES: &str = "context switches";
const CPU: &str = "processor time";
const GAIN: &str = "times the step before";

/// Steps: name, client, and the paper's result in Mb/s.
const STEPS: [(&str, Kind, Option<f64>); 5] = [
    ("thread per request", Kind::BiodsGeneric, Some(45.3)),
    ("one thread", Kind::StepCopies, Some(47.5)),
    ("no copy", Kind::StepGenericCodec, Some(56.9)),
    ("lean codec", Kind::StepLean, None),
    ("the product", Kind::Tombolo, None),
];

pub(super) fn run(host: &TestHost<'_>) -> Report {
    let mut report = host.report("atomic-table-2", "Table 2 of Faber's paper: gain of each optimization");
    report.condition_of(&host.contest(ROUNDS));
    if let Err(error) = measure(host, &mut report) {
        report.absent(error.to_string());
    }
    report.condition(format!(
        "a file of {} MiB over loopback to a server that drops it, requests of {} KiB, {LIMIT} in flight. `thread per request`: data is copied into the \
         request, and behind its arguments by a generic XDR library (nfs3_types 0.5). `one thread`: the same two copies, sent by the program's thread, \
         received by another. `no copy`: data is sent from where it lies. `lean codec`: our own. `the product`: the same engine below the waist, with \
         write-behind, openings and attributes",
        FILE_BYTES >> 20,
        PIECE_BYTES >> 10
    ));
    report.condition(format!(
        "`{PAPER}`: Table 2 of the paper; it estimates the codec (Figure 3), and has no such step"
    ));
    report
}

fn measure(host: &TestHost<'_>, report: &mut Report) -> Result<()> {
    let server = host.server(Link::Loopback, Serves::Nothing)?;
    let file_bytes = host.plan.scaled(FILE_BYTES, 2 << 20);
    let job = Job { direction: Direction::Write, limit: LIMIT, piece_bytes: PIECE_BYTES, file_bytes };
    let mut entrants = Vec::new();
    for (step, kind, _) in STEPS {
        let (name, server, serves) = ((HERE, step), &server, Serves::Nothing);
        host.enter(
            &mut entrants,
            report,
            THROUGHPUT,
            Mover { name, kind, server, serves, job, count_max: 4 },
        );
    }
    let series = report.contest(THROUGHPUT, &host.contest(ROUNDS), entrants);
    for (step, _, megabits) in STEPS {
        let rate = megabits.map(|megabits| megabits * 1e6 / 8.0);
        let figure = rate.map(|rate| Figure::single(THROUGHPUT, step, PAPER, Unit::BytesPerSecond, rate));
        report.figures.extend(figure);
    }
    for pair in STEPS.windows(2) {
        let &[(before, ..), (step, ..)] = pair else { continue };
        for column in [HERE, PAPER] {
            let gained = gain(report, column, before, step);
            report.figures.extend(gained);
        }
        report.compare_cells(THROUGHPUT, (HERE, step), (HERE, before), None);
    }
    for series in &series {
        let counted = Figure::per_megabyte(SWITCHES, series, Unit::PerMegabyte, |cost| cost.caller_switches);
        let timed =
            Figure::per_megabyte(CPU, series, Unit::NanosecondsPerMegabyte, |cost| cost.caller_cpu_ns);
        report.figures.extend(counted.into_iter().chain(timed));
    }
    Ok(())
}

/// Returns a step's throughput relative to that of the previous step, by round.
fn gain(report: &Report, column: &str, before: &str, step: &str) -> Option<Figure> {
    let of = |step: &str| {
        let of_step =
            |figure: &&Figure| figure.row == THROUGHPUT && figure.column == column && figure.variant == step;
        report.figures.iter().find(of_step)
    };
    let (before, after) = (of(before)?, of(step)?);
    let rounds: Vec<f64> =
        after.rounds.iter().zip(&before.rounds).map(|(after, before)| after / before).collect();
    Figure::of_rounds(GAIN, step, column, Unit::Times, rounds)
}

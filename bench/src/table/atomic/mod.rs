//! `atomic`: tables and figures of Faber's paper for our client, compared with a client with a thread per
//! request, bare TCP and libnfs, over links of several speeds.
//!
//! Most are transfers of files: a sheet has the files and links as rows, and the clients as columns.

mod programs;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Part, Plan};
use crate::drive::{Direction, Job, Kind};
use crate::error::{Doing, Error, Result};
use crate::files::Place;
use crate::measure::{Contest, Placement, Series, Spread, Work};
use crate::nfs::work::{Driver, moves};
use crate::nfs::{Limit, Link, Network};
use crate::peer::Nfs;
use crate::report::{Figure, Ratio, Report, Unit};
use crate::sheet::{Named, Sheet, sheet};

const OURS: &str = "tombolo";
const BIODS: &str = "thread per request";
/// File that all clients write in turn.
const WRITTEN: &str = "written";

/// All parts in order, by name.
pub const PARTS: &[(&str, Part)] = &[
    ("table-1", |plan| part(plan, |host| transfers(host, sheet!(plan, "atomic-table-1")?, false, table_1))),
    ("table-2", |plan| part(plan, |host| transfers(host, sheet!(plan, "atomic-table-2")?, true, table_2))),
    ("figure-1", |plan| {
        part(plan, |host| transfers(host, sheet!(plan, "atomic-figure-1")?, false, figure_1))
    }),
    ("figure-3", |plan| part(plan, |host| transfers(host, sheet!(plan, "atomic-figure-3")?, true, plain))),
    ("figure-2", |plan| part(plan, |host| transfers(host, sheet!(plan, "atomic-figure-2")?, false, plain))),
    ("figure-4", |plan| part(plan, |host| transfers(host, sheet!(plan, "atomic-figure-4")?, false, plain))),
    ("figure-5", |plan| part(plan, |host| transfers(host, sheet!(plan, "atomic-figure-5")?, false, plain))),
    ("libnfs", |plan| part(plan, |host| transfers(host, sheet!(plan, "atomic-libnfs")?, true, plain))),
    ("copies", |plan| part(plan, programs::copies)),
    ("tree", |plan| part(plan, programs::tree)),
    ("build", |plan| part(plan, programs::build)),
];

/// Measures a part inside the run's network namespaces. The failure of a part is reported; the others are
/// still measured.
fn part<'a>(plan: &'a Plan, run: impl FnOnce(&TestHost<'a>) -> Result<Report>) -> Result<Report> {
    // Clears earlier pinning: programs started now may run anywhere.
    Placement::leave()?;
    let (memory, disk) = (Place::within(&plan.within)?, Place::within(&plan.disk)?);
    run(&TestHost { plan, memory, disk }).map_err(|error| match error {
        Error::Interrupted => error,
        other => Error::Absent(other.to_string()),
    })
}

/// Treatment of the data by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Serves {
    /// Tombolo's server, on a file system in memory.
    Memory,
    /// Tombolo's server, on a disk.
    Disk,
    /// Null server, which drops the data.
    Nothing,
    /// Bare TCP without a protocol ([`Limit::Swap`]).
    Bare,
}

/// Repeated transfer of a file: a row of a sheet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Transfer {
    name: String,
    link: Link,
    serves: Serves,
    direction: Direction,
    /// Size of a request, at most the file's.
    piece_kib: usize,
    /// Sizes of the file in a full run and in a smoke test; several are variants.
    file_kib: [Vec<usize>; 2],
    /// Maximum number of files per turn, if it does not follow from their size.
    count_max: Option<u64>,
    /// Clients that cannot make this transfer.
    #[serde(default)]
    except: Vec<Kind>,
    /// Name of the row with the clients' context switches per megabyte, if wanted.
    switches: Option<String>,
    /// Name of the row with the clients' processor time per megabyte, if wanted.
    cpu: Option<String>,
}

impl Named for Transfer {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Client that makes the transfers: a column of a sheet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mover {
    name: String,
    #[serde(default)]
    variant: String,
    kind: Kind,
    /// Requests in flight; 0 for the client's choice.
    #[serde(default)]
    limit: u32,
    /// Limits that are variants, in a full run and in a smoke test.
    limits: Option<[Vec<u32>; 2]>,
    /// Server and number of files, if not the row's.
    serves: Option<Serves>,
    count_max: Option<u64>,
}

type Transfers<'a> = Sheet<'a, Transfer, Mover>;

/// Test environment: networks, files and servers.
struct TestHost<'a> {
    plan: &'a Plan,
    memory: Place,
    disk: Place,
}

impl TestHost<'_> {
    /// Sets the words of a sheet that describe the environment.
    fn described<'p, R: Named + DeserializeOwned, C: DeserializeOwned>(
        &self,
        mut sheet: Sheet<'p, R, C>,
    ) -> Sheet<'p, R, C> {
        sheet.set("network", &Network::condition());
        sheet.set(
            "two_cores",
            &"`two cores`, as two machines with a processor each: all threads of the client have one core, the server's the other. \
             Each client is a process of its own; context switches (voluntary and not) and processor time are those of its threads, from /proc",
        );
        sheet
    }

    /// Starts a server at the other end of a link.
    fn server(&self, link: Link, serves: Serves) -> Result<Nfs> {
        Network::check(link)?;
        let place = self.place(serves);
        match serves {
            Serves::Memory | Serves::Disk => Nfs::tombolo_at(link, &place.shared(), place.folder()),
            Serves::Bare => Nfs::limit_at(link, Limit::Swap, &place.shared()),
            Serves::Nothing => Nfs::limit_at(link, Limit::Null, &place.shared()),
        }
    }

    fn place(&self, serves: Serves) -> &Place {
        if serves == Serves::Disk { &self.disk } else { &self.memory }
    }

    /// Returns a folder in memory that is not served.
    fn own(&self, name: &str) -> Result<PathBuf> {
        let folder = self.memory.beside(name);
        fs::create_dir_all(&folder).doing_to("make", &folder)?;
        Ok(folder)
    }

    /// Ensures that the file of a job exists, if the server has files.
    fn lay_out(&self, serves: Serves, job: &Job) -> Result<()> {
        if matches!(serves, Serves::Nothing | Serves::Bare) {
            return Ok(());
        }
        let reads = job.direction == Direction::Read;
        let path = self.place(serves).shared().join(job.file_name(WRITTEN));
        if fs::metadata(&path).is_ok_and(|there| !reads || there.len() == job.file_bytes as u64) {
            return Ok(());
        }
        fs::write(&path, vec![b'b'; job.file_bytes]).doing_to("write", &path)
    }

    /// Runs the contest of a row, with servers of its own.
    fn transfer(
        &self,
        report: &mut Report,
        contest: &Contest,
        transfer: &Transfer,
        (kib, movers): (usize, &[Mover]),
    ) -> Result<Vec<Series>> {
        let mut servers: Vec<(Serves, Nfs)> = Vec::new();
        let serves = |mover: &Mover| mover.serves.unwrap_or(transfer.serves);
        for serves in movers.iter().map(serves) {
            if servers.iter().all(|(known, _)| *known != serves) {
                servers.push((serves, self.server(transfer.link, serves)?));
            }
        }
        // A turn needs fewer files the longer they are.
        let count_max = transfer.count_max.unwrap_or(((64 << 10) / kib).clamp(1, 10_000) as u64);
        let mut entrants = Vec::new();
        for mover in movers {
            let Some((serves, server)) = servers.iter().find(|(known, _)| *known == serves(mover)) else {
                continue;
            };
            let job = transfer.job(kib, mover.limit);
            let file = if mover.kind == Kind::Libnfs { job.file_name(WRITTEN) } else { WRITTEN.to_owned() };
            let driver = self.lay_out(*serves, &job).and_then(|()| Driver::start(mover.kind, server, &file));
            let work = driver.map(|driver| moves(driver, job, mover.count_max.unwrap_or(count_max)));
            let (name, place) = ((&*mover.name, &*mover.variant), Placement::TwoCores);
            report.enter(&mut entrants, &transfer.name, name, work, &[server.server.id()], place);
        }
        Ok(report.contest(&transfer.name, contest, entrants))
    }

    /// Returns the usual contest, which counts no system calls.
    fn contest(&self) -> Contest {
        Contest { count_syscalls: false, ..self.plan.contest() }
    }

    fn scaled<'s, T>(&self, [full, quick]: &'s [Vec<T>; 2]) -> &'s [T] {
        if self.plan.quick { quick } else { full }
    }
}

impl Transfer {
    fn job(&self, kib: usize, limit: u32) -> Job {
        let file_bytes = kib << 10;
        let piece_bytes = (self.piece_kib << 10).min(file_bytes);
        Job { direction: self.direction, limit, piece_bytes, file_bytes }
    }
}

impl Mover {
    /// Returns the variants of a column.
    fn variants(&self, host: &TestHost<'_>) -> Vec<Self> {
        let Some(limits) = &self.limits else { return vec![self.clone()] };
        let variant = |limit| if limit == 0 { ADAPTIVE.to_owned() } else { format!("limit {limit}") };
        let limited = |&limit| Self { variant: variant(limit), limit, ..self.clone() };
        host.scaled(limits).iter().map(limited).collect()
    }
}

/// Function that completes a report of all transfers.
type Finish = fn(&TestHost<'_>, Transfers<'_>, Report) -> Result<Report>;

fn plain(_host: &TestHost<'_>, sheet: Transfers<'_>, report: Report) -> Result<Report> {
    Ok(sheet.finish(report))
}

fn transfers(host: &TestHost<'_>, sheet: Transfers<'_>, costs: bool, finish: Finish) -> Result<Report> {
    let sheet = host.described(sheet);
    let mut report = sheet.report();
    let contest = sheet.contest(Contest { costs, ..host.contest() });
    let all: Vec<Mover> = sheet.columns.iter().flat_map(|mover| mover.variants(host)).collect();
    for transfer in &sheet.rows {
        let sizes = host.scaled(&transfer.file_kib);
        for &kib in sizes {
            let mut movers = all.clone();
            movers.retain(|mover| !transfer.except.contains(&mover.kind));
            if sizes.len() > 1 {
                movers.iter_mut().for_each(|mover| mover.variant = size(kib));
            }
            let done = host.transfer(&mut report, &contest, transfer, (kib, &movers));
            let done = done.map(|series| add_costs(&mut report, &series, transfer));
            report.or_absent(&transfer.name, done)?;
        }
    }
    finish(host, sheet, report)
}

fn size(kib: usize) -> String {
    if kib >= 1 << 10 { format!("{} MiB", kib >> 10) } else { format!("{kib} KiB") }
}

/// Adds context switches and processor time of the clients per megabyte as rows of their own.
fn add_costs(report: &mut Report, series: &[Series], Transfer { switches, cpu, .. }: &Transfer) {
    for series in series {
        let counted = switches.as_ref().and_then(|row| {
            Figure::per_megabyte(row, series, Unit::PerMegabyte, |cost| cost.caller_switches)
        });
        let timed = cpu.as_ref().and_then(|row| {
            Figure::per_megabyte(row, series, Unit::NanosecondsPerMegabyte, |cost| cost.caller_cpu_ns)
        });
        report.figures.extend(counted.into_iter().chain(timed));
    }
}

/// Variant without a fixed limit.
const ADAPTIVE: &str = "adaptive";
/// Target: our best throughput relative to that of the client with a thread per request.
const THROUGHPUT_TARGET: f64 = 1.3;
/// Target: context switches of the client with a thread per request, relative to ours.
const SWITCHES_TARGET: f64 = 2.5;
/// Target: our throughput with the adaptive limit, relative to that with the best fixed limit.
const ADAPTIVE_TARGET: f64 = 0.9;

/// Compares throughput and context switches over the in-flight limit; and the adaptive limit.
fn table_1(_host: &TestHost<'_>, sheet: Transfers<'_>, mut report: Report) -> Result<Report> {
    for Transfer { name: throughput, switches, .. } in &sheet.rows {
        let [ours, theirs] = [OURS, BIODS].map(|column| report.best(throughput, column).cloned());
        report.compare(ours.as_ref(), theirs.as_ref(), Some(THROUGHPUT_TARGET));
        if let (Some(ours), Some(theirs), Some(switches)) = (ours, theirs, switches) {
            let (ours, theirs) = ((OURS, ours.variant.as_str()), (BIODS, theirs.variant.as_str()));
            report.compare_cells(switches, ours, theirs, Some(SWITCHES_TARGET));
        }
        adaptive(&mut report, throughput);
    }
    Ok(sheet.finish(report))
}

/// Compares the adaptive limit with the best fixed one.
fn adaptive(report: &mut Report, throughput: &str) {
    let of_ours = report.figures.iter().filter(|it| it.row == throughput && it.column == OURS);
    let (adaptive, fixed): (Vec<_>, Vec<_>) = of_ours.partition(|figure| figure.variant == ADAPTIVE);
    let best = fixed.into_iter().max_by(|a, b| a.spread.median.total_cmp(&b.spread.median));
    let (Some(best), Some(adaptive)) = (best.cloned(), adaptive.first().copied().cloned()) else { return };
    report.compare(Some(&adaptive), Some(&best), None);
    let ratios: Vec<f64> =
        adaptive.rounds.iter().zip(&best.rounds).map(|(ours, fixed)| ours / fixed).collect();
    let Some(bound) = median_at_least(&ratios) else { return };
    let (row, ours, best) = (format!("{throughput}, lower bound"), adaptive.label(), best.label());
    report.ratios.push(Ratio::new(&row, &ours, &best, Spread::single(bound), Some(ADAPTIVE_TARGET)));
}

/// Returns a lower bound of the median of the values' distribution, with a confidence of at least 95 % and
/// without assumptions about its shape. The k-th smallest of n values is below the median unless fewer than k
/// of them fall below it, which has the probability of fewer than k heads in n throws. `None` for fewer than
/// five values.
fn median_at_least(values: &[f64]) -> Option<f64> {
    const DOUBT: f64 = 0.05;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let throws = sorted.len();
    let mut probability = 0.5_f64.powi(i32::try_from(throws).ok()?);
    let mut fewer = 0.0;
    let mut bound = None;
    for (heads, value) in sorted.into_iter().enumerate() {
        fewer += probability;
        if fewer > DOUBT {
            break;
        }
        bound = Some(value);
        probability *= (throws - heads) as f64 / (heads + 1) as f64;
    }
    bound
}

/// Adds the gain of each step of the paper's Table 2 over the step before.
fn table_2(_host: &TestHost<'_>, sheet: Transfers<'_>, report: Report) -> Result<Report> {
    const THROUGHPUT: &str = "throughput";
    let steps: Vec<String> = sheet.columns.iter().map(|step| step.variant.clone()).collect();
    let mut report = sheet.finish(report);
    // The costs stay the last rows.
    let (mut figures, costs): (Vec<_>, Vec<_>) =
        report.figures.drain(..).partition(|figure| figure.row == THROUGHPUT);
    report.figures.append(&mut figures);
    for pair in steps.windows(2) {
        let [before, step] = pair else { continue };
        for column in ["here", "paper"] {
            let of = |step: &str| report.figure(THROUGHPUT, column, step).map(|figure| &figure.rounds);
            let Some((before, after)) = of(before).zip(of(step)) else { continue };
            let rounds = after.iter().zip(before).map(|(after, before)| after / before).collect();
            let gain = Figure::of_rounds("times the step before", step, column, Unit::Times, rounds);
            report.figures.extend(gain);
        }
        report.compare_cells(THROUGHPUT, ("here", step), ("here", before), None);
    }
    report.figures.extend(costs);
    Ok(report)
}

/// Adds rows for writes to this host's own file systems, without a network.
fn figure_1(host: &TestHost<'_>, sheet: Transfers<'_>, mut report: Report) -> Result<Report> {
    let contest = sheet.contest(Contest { costs: false, ..host.contest() });
    let job = sheet.rows.last().map(|rung| rung.job(host.scaled(&rung.file_kib)[0], 0));
    for (row, serves) in [("local, disk", Serves::Disk), ("local, memory", Serves::Memory)] {
        let Some(job) = job else { continue };
        let work = host.lay_out(serves, &job).and_then(|()| local_writes(&host.place(serves).shared(), job));
        let mut entrants = Vec::new();
        report.enter(&mut entrants, row, ("local", ""), work, &[], None::<Placement>);
        report.contest(row, &contest, entrants);
    }
    Ok(sheet.finish(report))
}

fn local_writes(folder: &Path, job: Job) -> Result<Work<'static>> {
    let path = folder.join(WRITTEN);
    let file = OpenOptions::new().write(true).open(&path).doing_to("open", &path)?;
    let piece = vec![b'l'; job.piece_bytes];
    let once = move || {
        for (at, bytes) in job.each() {
            file.write_all_at(&piece[..bytes], at as u64).doing_to("write", &path)?;
        }
        file.sync_all().doing_to("sync", &path)
    };
    Ok(Work::repeat(1, once).bytes(job.file_bytes as u64).count_max(4))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::BenchArgs;

    #[test]
    fn every_sheet_of_transfers_is_valid() {
        let plan = BenchArgs::parse_from(["tombolo-bench", "atomic"]).plan;
        let sheets: [Result<Transfers<'_>>; 8] = [
            sheet!(&plan, "atomic-table-1"),
            sheet!(&plan, "atomic-table-2"),
            sheet!(&plan, "atomic-figure-1"),
            sheet!(&plan, "atomic-figure-2"),
            sheet!(&plan, "atomic-figure-3"),
            sheet!(&plan, "atomic-figure-4"),
            sheet!(&plan, "atomic-figure-5"),
            sheet!(&plan, "atomic-libnfs"),
        ];
        for sheet in sheets {
            let sheet = sheet.unwrap();
            assert!(!sheet.rows.is_empty() && !sheet.columns.is_empty());
        }
    }

    #[test]
    fn bounds_are_those_of_the_binomial_table() {
        let values = |count: i32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(median_at_least(&values(4)), None);
        assert_eq!(median_at_least(&values(5)), Some(1.0));
        // P(fewer than 2 of 10) = 0.011, P(fewer than 3) = 0.055.
        assert_eq!(median_at_least(&values(10)), Some(2.0));
        // P(fewer than 4 of 15) = 0.018, P(fewer than 5) = 0.059.
        assert_eq!(median_at_least(&values(15)), Some(4.0));
    }
}

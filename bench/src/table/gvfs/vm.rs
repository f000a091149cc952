//! `vm-build`, `vm-latex`, `vm-seismic`: the paper's jobs by its method, in a virtual machine whose disk is a
//! file on the remote store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tombolo_wan::Profile;

use super::Plan;
use super::site::{Column, Site, drop_caches, folder};
use super::twice::{COLD, WARM, rounds};
use crate::args::GvfsArgs;
use crate::error::{Doing, Error, Result};
use crate::measure::go_on;
use crate::peer::in_checkout;
use crate::report::{Figure, Report, Unit};
use crate::table::guest::phases;

const IMAGE: &str = ".cache/vm/disk.img";
const ROUNDS: usize = 1;
const COLUMNS: [Column; 5] =
    [Column::Local, Column::Lan, Column::Nfs, Column::ExclusiveRedo, Column::WriteBack];
const QUICK_COLUMNS: [Column; 1] = [Column::Local];
/// Time limit of a guest, in seconds.
const LIFE_SECS: &str = "1500";
const MEMORY: &str = "512M";

/// A job; see `bench/peers/vm/job`.
struct Job {
    name: &'static str,
    title: &'static str,
    /// Parameters: iterations, MiB; in a quick run.
    size: &'static str,
    quick_size: &'static str,
    about: &'static str,
    paper: &'static str,
}

const BUILD: Job = Job {
    name: "build",
    title: "A C project built in a virtual machine with a remote disk",
    size: "",
    quick_size: "dep",
    about: "zstd without optimisation, in four steps as the paper's kernel: dependencies, the library, programs, installation. Cold; and again in the same guest after it has forgotten what it read (the paper's guest had not)",
    paper: "the paper: cold 84 % over local, warm 9 %; warm under 4 % over the LAN, and over 30 % better than the line without a cache",
};
const LATEX: Job = Job {
    name: "latex",
    title: "A document of 190 pages built in a virtual machine with a remote disk",
    size: "20",
    quick_size: "1",
    about: "latex, bibtex and dvipdfmx, each iteration with another version of one chapter; `later` is the mean of all but the first",
    paper: "the paper: first 225.7 s over the line, 217.3 s with a cache, some 12 s locally and over the LAN; later 8 % over local",
};
const SEISMIC: Job = Job {
    name: "seismic",
    title: "A seismic survey's phases in a virtual machine with a remote disk",
    size: "64",
    quick_size: "1",
    about: "the first phase writes a file of so many MiB (64), the second reads it, the third filters an eighth of it, the last computes; what a phase wrote is on the disk at its end",
    paper: "the paper's SPECseis: the last phase within 10 % of local everywhere",
};

pub fn build(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    run(plan, wanted, &BUILD)
}

pub fn latex(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    run(plan, wanted, &LATEX)
}

pub fn seismic(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    run(plan, wanted, &SEISMIC)
}

fn run(plan: &Plan, wanted: &GvfsArgs, job: &Job) -> Result<Report> {
    let image = in_checkout(Path::new(IMAGE)).map_err(|error| {
        Error::Absent(format!("no disk for a virtual machine: {error} (bench/peers/setup --vm makes it)"))
    })?;
    let mut report = plan.report(&format!("gvfs-vm-{}", job.name), job.title);
    let (folder, shared) = folder(wanted)?;
    let mut site = Site::new(plan, wanted, &shared, folder.path())?;
    let columns = wanted.columns(if plan.quick { &QUICK_COLUMNS } else { &VM_COLUMNS });
    // The slowest columns are measured only on request.
    let columns: Vec<Column> = columns
        .into_iter()
        .filter(|column| !wanted.column.is_empty() || plan.quick || COLUMNS.contains(column))
        .collect();
    if columns.contains(&Column::Lan) {
        site.add_plain_lan()?;
    }
    let rounds = rounds(plan, ROUNDS);
    let vm = Vm { image: &image, shared: &shared, beside: folder.path(), job, quick: plan.quick };
    for round in 0..rounds {
        for turn in 0..columns.len() {
            go_on()?;
            let Some(&column) = columns.get((turn + round) % columns.len()) else { continue };
            match vm.turn(&site, column, &mut report) {
                Ok(took) => took.into_iter().for_each(|(phase, secs)| add(&mut report, &phase, column, secs)),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => report.absent(format!("{}: {error}", column.name())),
            }
        }
    }
    compare(&mut report);
    report.condition(format!(
        "{rounds} rounds, in each of which every column has one turn: a UML guest with {MEMORY} of memory, whose disk is a file of its own in the far tree (below {}), \
         with all programs and files of the job on it. The guest's own clock, to 10 ms. Before each turn: a new mount, an empty cache, and the kernel's caches dropped",
        wanted.disk.display()
    ));
    report.condition(job.about.to_owned());
    report.condition(format!(
        "in the paper's words `{}` is WAN and `{}` WAN+C; under `{}` each write goes to the origin, and while a file is open for writing its \
         reads do too, so that a disk that the guest may write is slower through this cache than without it; `{}`: the guest's disk is only read, and what it writes goes into a local file",
        Column::Nfs.name(),
        Column::WriteBack.name(),
        Column::Exclusive.name(),
        Column::ExclusiveRedo.name()
    ));
    report.condition(job.paper.to_owned());
    site.describe(&mut report);
    if columns.contains(&Column::Lan) {
        let Profile { rate_bits_per_s, round_trip_us, .. } = Profile::LAN;
        report.condition(format!(
            "the LAN: {} Mbit/s and {} ms",
            rate_bits_per_s / 1_000_000,
            round_trip_us as f64 / 1e3
        ));
    }
    Ok(report)
}

/// All possible columns.
const VM_COLUMNS: [Column; 7] = [
    Column::Local,
    Column::Lan,
    Column::Nfs,
    Column::NfsRedo,
    Column::Exclusive,
    Column::ExclusiveRedo,
    Column::WriteBack,
];

struct Vm<'a> {
    image: &'a Path,
    shared: &'a Path,
    beside: &'a Path,
    job: &'a Job,
    quick: bool,
}

impl Vm<'_> {
    /// Returns the seconds of each phase, named `RUN.PHASE`.
    fn turn(&self, site: &Site, column: Column, report: &mut Report) -> Result<Vec<(String, f64)>> {
        // A new name each time, unknown to all caches.
        let disk = crate::table::folder(self.shared)?;
        let name = disk.path().join("disk");
        copy(self.image, &name)?;
        let redo = self.beside.join("redo");
        let _old = fs::remove_file(&redo);
        let side = site.fresh(column)?;
        drop_caches()?;
        let far = name.strip_prefix(self.shared).unwrap_or(&name);
        let before = site.origin().requests()?;
        let took = self.guest(&side.root.join(far), column.has_redo_log().then_some(&redo))?;
        if column.is_far() {
            let asked = site.origin().requests()?.since(&before).text();
            let what = format!("{}: requests at the origin", column.name());
            report.target(&what, "counted, in one turn", asked, None);
        }
        Ok(took)
    }

    fn guest(&self, disk: &Path, redo: Option<&PathBuf>) -> Result<Vec<(String, f64)>> {
        let run = in_checkout(Path::new("tests/guests/run"))?;
        let mut command = Command::new(&run);
        command.args(["uml", "--mem", MEMORY, "--timeout", LIFE_SECS, "--disk"]).arg(disk);
        if let Some(redo) = redo {
            command.arg("--redo").arg(redo);
        }
        command.arg(in_checkout(Path::new("bench/peers/vm/job"))?).arg(self.job.name);
        command.arg(if self.quick { self.job.quick_size } else { self.job.size });
        let output = command.stdin(Stdio::null()).output().doing_to("start", &run)?;
        if output.status.success() {
            return Ok(phases(&String::from_utf8_lossy(&output.stdout)));
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let last = said.trim().lines().next_back().unwrap_or_default();
        Err(Error::Server { program: "guest".to_owned(), what: last.to_owned() })
    }
}

/// Copies a file with its holes, and syncs it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "cp --sparse=always -- \"$1\" \"$2\" && sync -- \"$2\"", "sh"]).arg(from).arg(to);
    let status = command.stdin(Stdio::null()).status().doing_to("copy", from)?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Wrong { what: format!("copy {}", from.display()), answer: status.to_string() })
}

fn add(report: &mut Report, phase: &str, column: Column, secs: f64) {
    let (variant, row) = phase.split_once('.').unwrap_or((COLD, phase));
    let is_it = |figure: &&mut Figure| {
        figure.row == row && figure.variant == variant && figure.column == column.name()
    };
    let mut rounds = vec![secs];
    if let Some(at) = report.figures.iter_mut().find(is_it) {
        rounds.splice(0..0, at.rounds.iter().copied());
        if let Some(figure) = Figure::of_rounds(row, variant, column.name(), Unit::Seconds, rounds) {
            *at = figure;
        }
        return;
    }
    report.figures.extend(Figure::of_rounds(row, variant, column.name(), Unit::Seconds, rounds));
}

const ALL: &str = "in all";

/// Computes the sums of the phases of each column and run, and compares them.
fn compare(report: &mut Report) {
    for variant in [COLD, WARM] {
        for column in VM_COLUMNS.map(Column::name) {
            let of_it = report.figures.iter().filter(|it| it.column == column && it.variant == variant);
            let rows: Vec<&Vec<f64>> = of_it.map(|figure| &figure.rounds).collect();
            let rounds = rows.iter().map(|rounds| rounds.len()).min().unwrap_or_default();
            // A mean is not a phase, and a single phase needs no sum.
            if rows.len() < 2 || report.figure("later", column, variant).is_some() {
                continue;
            }
            let sums = (0..rounds).map(|round| rows.iter().map(|row| row[round]).sum()).collect();
            report.figures.extend(Figure::of_rounds(ALL, variant, column, Unit::Seconds, sums));
        }
        for row in [ALL, "first", "later"] {
            for ours in [Column::Exclusive, Column::ExclusiveRedo, Column::WriteBack] {
                for other in [Column::Local, Column::Lan, Column::Nfs] {
                    report.compare_cells(row, (ours.name(), variant), (other.name(), variant), None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_summed_per_run_and_means_are_not() {
        let mut report = Report::new("gvfs-vm-build", "x", String::new(), false);
        for (phase, secs) in [("cold.dep", 1.0), ("cold.core", 2.0), ("cold.dep", 3.0), ("cold.core", 5.0)] {
            add(&mut report, phase, Column::Local, secs);
        }
        add(&mut report, "cold.first", Column::Exclusive, 9.0);
        add(&mut report, "cold.later", Column::Exclusive, 2.0);
        compare(&mut report);
        let all = report.figure(ALL, Column::Local.name(), COLD).map(|figure| figure.rounds.clone());
        assert_eq!(all, Some(vec![3.0, 8.0]));
        assert!(report.figure(ALL, Column::Exclusive.name(), COLD).is_none());
    }
}

//! `build`: Apache httpd unpacked, configured, built and removed, on the directory itself and through mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Plan;
use super::sides::{Column, Place};
use crate::args::VnfsArgs;
use crate::error::{Doing, Error, Result};
use crate::files::Steps;
use crate::measure::{Placement, go_on};
use crate::peer::in_checkout;
use crate::report::{Figure, Report, Unit};

const SOURCE: &str = ".cache/sources/httpd.tar.gz";
pub const QUICK_SOURCE: &str = ".cache/sources/lua.tar.gz";
pub const STEPS: [(&str, &str); 4] = [
    ("unpack", "tar xzf \"$1\""),
    ("configure", "cd */ && ./configure -q >/dev/null 2>&1"),
    ("build", "make -s -j2 -C */ >/dev/null 2>&1"),
    ("remove", "rm -rf -- *"),
];
const QUICK_STEPS: [(&str, &str); 2] = [STEPS[0], STEPS[3]];
const ALL: &str = "in all";
const ROUNDS: usize = 3;
/// Target: at most 1.06 × local in total.
const TARGET: f64 = 0.943;

pub fn run(plan: &Plan, wanted: &VnfsArgs) -> Result<Report> {
    let (source, steps): (_, &[_]) = if plan.quick { (QUICK_SOURCE, &QUICK_STEPS) } else { (SOURCE, &STEPS) };
    let source = if plan.quick { in_checkout(Path::new(source))? } else { httpd()? };
    let mut report = plan.report("vnfs-build", "Apache httpd built on mounts");
    let folder = crate::table::folder(&wanted.disk)?;
    let place = Place { shared: folder.path().join("shared"), beside: folder.path().to_owned() };
    fs::create_dir(&place.shared).doing_to("make", &place.shared)?;
    Placement::leave()?;
    let rounds = plan.rounds_of(ROUNDS);
    let columns = wanted.columns();
    let times = timed(&place, &columns, &job(source, steps), rounds)?;
    enter(&mut report, steps, &columns, &times);
    report.condition(format!(
        "{rounds} rounds, in each of which every column has one turn, with servers and a mount of its own, on a directory below {}; output goes to \
         /dev/null; make runs two at a time; tarball, compiler and libraries are local. A ratio of 0.943 is 1.06 × local{}",
        wanted.disk.display(),
        if plan.quick { "; Lua, which is not built" } else { "" }
    ));
    report.condition("The paper: over ext3, NFS took 31.2 % more in all, VNFS 6.3 %".to_owned());
    Ok(report)
}

/// Returns the source archive; fails if it or a build dependency is missing.
pub fn httpd() -> Result<PathBuf> {
    let source = in_checkout(Path::new(SOURCE))
        .map_err(|error| Error::Absent(format!("{error} (tests/guests/fetch-source httpd fetches it)")))?;
    if Command::new("apr-1-config").arg("--version").output().is_err() {
        let lacks = "httpd needs libapr1-dev, libaprutil1-dev and libpcre2-dev";
        return Err(Error::Absent(lacks.to_owned()));
    }
    Ok(source)
}

fn job<'a>(source: PathBuf, steps: &'a [(&'a str, &'a str)]) -> Steps<'a> {
    Steps { steps, arguments: vec![source.into()] }
}

/// Returns the seconds by column, step and round.
fn timed(place: &Place, columns: &[Column], job: &Steps<'_>, rounds: usize) -> Result<Vec<Vec<Vec<f64>>>> {
    let mut times = vec![vec![Vec::new(); job.steps.len()]; columns.len()];
    for round in 0..rounds {
        for turn in 0..columns.len() {
            go_on()?;
            // The first has a colder compiler.
            let number = (turn + round) % columns.len();
            let side = place.fresh(columns[number])?;
            for (step, took) in job.timed(&side.path(Path::new("job")))?.into_iter().enumerate() {
                times[number][step].push(took.as_secs_f64());
            }
        }
    }
    Ok(times)
}

fn enter(report: &mut Report, steps: &[(&str, &str)], columns: &[Column], times: &[Vec<Vec<f64>>]) {
    let in_all = |column: &[Vec<f64>], round: usize| column.iter().map(|step| step[round]).sum();
    for (column, times) in columns.iter().zip(times) {
        let rounds = times.first().map_or(0, Vec::len);
        let all = (0..rounds).map(|round| in_all(times, round)).collect();
        let rows = steps.iter().map(|(name, _)| *name).zip(times.iter().cloned()).chain([(ALL, all)]);
        for (name, seconds) in rows {
            report.figures.extend(Figure::of_rounds(name, "", column.name(), Unit::Seconds, seconds));
        }
    }
    for (name, _) in steps.iter().copied().chain([(ALL, "")]) {
        for ours in [Column::Push, Column::Strict] {
            let target = (name == ALL).then_some(TARGET);
            report.compare_cells(name, (ours.name(), ""), (Column::Local.name(), ""), target);
            report.compare_cells(name, (ours.name(), ""), (Column::Nfs.name(), ""), None);
        }
    }
}

//! `vm-build`, `vm-latex`, `vm-seismic`: the jobs of the paper on GVFS, by its method, in a virtual machine
//! whose disk is a file of the remote tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tombolo_wan::Profile;

use super::site::{Column, Site, drop_caches};
use super::{COLD, WARM};
use crate::error::{Error, Result};
use crate::files::{Place, copy_with_holes};
use crate::measure::go_on;
use crate::peer::in_checkout;
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Sheet, turns};
use crate::table::guest::phases_of;

const IMAGE: &str = ".cache/vm/disk.img";
/// Columns that are slow, and measured only on request.
const ON_REQUEST: [Column; 2] = [Column::NfsRedo, Column::Exclusive];
/// Time limit of a guest, in seconds.
const LIFE_SECS: &str = "1500";
const MEMORY: &str = "512M";

/// A job of `bench/peers/vm/job`: name, and parameter (iterations, MiB).
type Job = (&'static str, &'static str);

/// Measures a job with its parameter in a full run and in a smoke test.
pub fn run(
    sheet: &mut Sheet<'_, String, Column>,
    report: &mut Report,
    job: &'static str,
    [full, quick]: [&'static str; 2],
) -> Result<()> {
    let plan = sheet.plan;
    let job = (job, if plan.quick { quick } else { full });
    let image = in_checkout(IMAGE).map_err(|error| {
        Error::Absent(format!("no disk for a virtual machine: {error} (bench/peers/setup --vm makes it)"))
    })?;
    let place = Place::within(&plan.disk)?;
    let mut site = Site::new(plan, &place)?;
    let all = if plan.quick { &sheet.columns[..1] } else { &sheet.columns };
    let mut columns = plan.columns(all, Column::id)?;
    columns.retain(|column| !plan.column.is_empty() || !ON_REQUEST.contains(column));
    if columns.contains(&Column::Lan) {
        site.add_plain_lan()?;
    }
    let vm = Vm { image: &image, place: &place, job };
    for column in turns(sheet.rounds(), &columns) {
        go_on()?;
        let done = vm.turn(&site, *column, report);
        report.or_absent(column.name(), done)?;
    }
    sum(report, &sheet.columns);
    site.describe(report);
    if columns.contains(&Column::Lan) {
        let Profile { rate_bits_per_s, round_trip_us, .. } = Profile::LAN;
        let (rate, trip_ms) = (rate_bits_per_s / 1_000_000, round_trip_us as f64 / 1e3);
        report.condition(format!("the LAN: {rate} Mbit/s and {trip_ms} ms"));
    }
    Ok(())
}

struct Vm<'a> {
    image: &'a Path,
    place: &'a Place,
    job: Job,
}

impl Vm<'_> {
    /// Measures the seconds of each phase, whose names in the guest are `RUN.PHASE`.
    fn turn(&self, site: &Site, column: Column, report: &mut Report) -> Result<()> {
        // A new name each time, unknown to all caches.
        let shared = self.place.shared();
        let disk = crate::table::folder(&shared)?;
        let name = disk.path().join("disk");
        copy_with_holes(self.image, &name)?;
        let redo = self.place.beside("redo");
        let _old = fs::remove_file(&redo);
        let side = site.fresh(column)?;
        drop_caches()?;
        let far = name.strip_prefix(&shared).unwrap_or(&name);
        let before = site.origin.requests()?;
        let took = self.guest(&side.root.join(far), column.has_redo_log().then_some(&redo))?;
        if column.is_far() {
            let asked = site.origin.requests()?.since(&before).text();
            let what = format!("{}: requests at the origin", column.name());
            report.target(&what, "counted, in one turn", asked, None);
        }
        for (phase, secs) in took {
            let (variant, row) = phase.split_once('.').unwrap_or((COLD, &phase));
            report.add(row, variant, column.name(), Unit::Seconds, secs);
        }
        Ok(())
    }

    fn guest(&self, disk: &Path, redo: Option<&PathBuf>) -> Result<Vec<(String, f64)>> {
        let mut command = Command::new(in_checkout("tests/guests/run")?);
        command.args(["uml", "--mem", MEMORY, "--timeout", LIFE_SECS, "--disk"]).arg(disk);
        if let Some(redo) = redo {
            command.arg("--redo").arg(redo);
        }
        command.arg(in_checkout("bench/peers/vm/job")?).args([self.job.0, self.job.1]);
        phases_of(&mut command)
    }
}

const ALL: &str = "in all";

/// Adds the sums of the phases of each column and run.
fn sum(report: &mut Report, columns: &[Column]) {
    for variant in [COLD, WARM] {
        for column in columns.iter().map(|column| column.name()) {
            let of_it = report.figures.iter().filter(|it| it.column == column && it.variant == variant);
            let rows: Vec<&Vec<f64>> = of_it.map(|figure| &figure.rounds).collect();
            let rounds = rows.iter().map(|rounds| rounds.len()).min().unwrap_or_default();
            // Rows with a "later" one are runs and their mean, not phases; a single phase needs no sum.
            if rows.len() < 2 || report.figure("later", column, variant).is_some() {
                continue;
            }
            let sums = (0..rounds).map(|round| rows.iter().map(|row| row[round]).sum()).collect();
            report.figures.extend(Figure::of_rounds(ALL, variant, column, Unit::Seconds, sums));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_summed_per_run_and_means_are_not() {
        let mut report = Report::new("gvfs-vm-build", "x", false);
        let [local, other] = [Column::Local, Column::Exclusive].map(Column::name);
        for (row, secs) in [("dep", 1.0), ("core", 2.0), ("dep", 3.0), ("core", 5.0)] {
            report.add(row, COLD, local, Unit::Seconds, secs);
        }
        report.add("first", COLD, other, Unit::Seconds, 9.0);
        report.add("later", COLD, other, Unit::Seconds, 2.0);
        sum(&mut report, &[Column::Local, Column::Exclusive]);
        let all = report.figure(ALL, Column::Local.name(), COLD).map(|figure| figure.rounds.clone());
        assert_eq!(all, Some(vec![3.0, 8.0]));
        assert!(report.figure(ALL, Column::Exclusive.name(), COLD).is_none());
    }
}

//! `clone`: start-up time of a virtual machine from a remote image, compared with a copy of the image, a
//! local image, and QEMU alone. `clone-s1`, `clone-s2` and `clone-p`: scenarios of the paper, eight clones of
//! one image or of eight, in sequence or concurrent.

mod answer;
mod eight;
mod floor;
mod golden;
mod host;
mod scp;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::Plan;
use super::site::{Site, drop_caches, folder};
use super::twice::{COLD, WARM, rounds};
use crate::args::GvfsArgs;
use crate::error::{Doing, Error, Result};
use crate::measure::{Spread, go_on};
use crate::report::{Figure, Report, Unit};

pub use answer::answered;
pub use eight::{p, s1, s2};

use floor::Floor;
use golden::{FULL, QUICK, Size, USUAL};
use host::{Host, Took};
use scp::Scp;

/// Kind of clone and source. Each is a column of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Qemu,
    Local,
    Scp,
    Nfs,
    Ours,
}

impl Way {
    const ALL: [Self; 5] = [Self::Qemu, Self::Local, Self::Scp, Self::Nfs, Self::Ours];

    fn name(self) -> &'static str {
        match self {
            Self::Qemu => "QEMU, plain copies",
            Self::Local => "clone, local image",
            Self::Scp => "scp, then local",
            Self::Nfs => "clone --no-cache",
            Self::Ours => "clone",
        }
    }
}

const ANSWERS: &str = "until it answers";
const READY: &str = "until the command ends";
const BYTES: &str = "bytes over the line until it answers";
const LATER: &str = "bytes over the line, its service used for 30 s";
const HELD: &str = "guest memory that the host holds then";
const ROUNDS: usize = 3;
const NO_CACHE: [&str; 1] = ["--no-cache"];
const IMAGE: &str = "golden";
/// Prefix of the condition with the counters.
const SHOWN: &str = "what the first clone had read by then (vm show): ";

/// Number of image bytes that are copied, unless a full run is requested.
const COPIED_BYTES: u64 = 32 << 20;
const SCP_TIMES: f64 = 50.0;
const OVER_LOCAL_S: f64 = 2.0;
const BYTES_MAX: f64 = 12.0 * 1024.0 * 1024.0;
const LATER_MAX: f64 = 40.0 * 1024.0 * 1024.0;
const OVER_QEMU_S: f64 = 0.1;
/// Time after which the service has everything it uses.
const USED: Duration = Duration::from_secs(30);

/// Images at the far end, and the environment at the near one.
struct Bed {
    site: Site,
    shared: PathBuf,
    size: Size,
    full: bool,
    /// `true` if the traffic after the answer is measured.
    rests: bool,
    folder: TempDir,
}

impl Bed {
    fn new(plan: &Plan, wanted: &GvfsArgs) -> Result<Self> {
        let size = if plan.quick {
            QUICK
        } else if wanted.full {
            FULL
        } else {
            USUAL
        };
        let (folder, shared) = folder(wanted)?;
        let site = Site::new(plan, wanted, &shared, folder.path())?;
        Ok(Self { site, shared, size, full: wanted.full, rests: !plan.quick, folder })
    }

    fn make(&self, name: &str) -> Result<PathBuf> {
        let image = self.shared.join(name);
        golden::make(&image, self.size)?;
        Ok(image)
    }

    fn host(&self) -> Result<Host<'_>> {
        Host::new(self.site.near(), self.folder.path())
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.site.origin().url())
    }

    /// Returns the bytes received over the WAN link, as counted at its far end.
    fn line_bytes(&self) -> Result<u64> {
        let table = format!("/proc/{}/net/dev", self.site.origin().server());
        let text = fs::read_to_string(&table).doing_to("read", Path::new(&table))?;
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("lo:"));
        // Eight receive columns follow the name (proc_pid_net(5)).
        let sent =
            lines.filter_map(|line| line.split_once(':')?.1.split_whitespace().nth(8)?.parse::<u64>().ok());
        Ok(sent.sum())
    }
}

/// Result of one turn.
struct Found {
    took: Took,
    bytes: Option<u64>,
    later: Option<u64>,
    held: Option<u64>,
}

/// Result of a variant.
type Variant = (&'static str, Found);

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let mut report = plan.report("gvfs-clone", "A virtual machine cloned from a remote image");
    let bed = Bed::new(plan, wanted)?;
    let image = bed.make(IMAGE)?;
    let here = bed.folder.path().join("here");
    copy(&image, &here)?;
    let floor = floor_of(&bed, &here)?;
    let ways: Vec<Way> =
        Way::ALL.into_iter().filter(|way| !plan.quick || !matches!(way, Way::Scp | Way::Nfs)).collect();
    let rounds = rounds(plan, ROUNDS);
    let mut rows: Vec<(Way, Vec<Variant>)> = ways.iter().map(|way| (*way, Vec::new())).collect();
    for round in 0..rounds {
        for turn in 0..ways.len() {
            go_on()?;
            let at = (turn + round) % ways.len();
            let (Some(&way), Some((_, found))) = (ways.get(at), rows.get_mut(at)) else { continue };
            match turn_of(way, &bed, &floor, &here, &mut report) {
                Ok(two) => found.extend(two),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => report.absent(format!("{}: {error}", way.name())),
            }
        }
    }
    for (way, found) in &rows {
        enter(&mut report, *way, found);
    }
    targets(&mut report);
    conditions(&mut report, &bed, &image, rounds)?;
    bed.site.describe(&mut report);
    Ok(report)
}

/// Returns the command line of a running clone, with copies of its image's files.
fn floor_of(bed: &Bed, image: &Path) -> Result<Floor> {
    let host = bed.host()?;
    let (clone, _) = host.clone(&image.to_string_lossy(), &[])?;
    Floor::new(&host, &clone, image, bed.folder.path())
}

fn turn_of(way: Way, bed: &Bed, floor: &Floor, here: &Path, report: &mut Report) -> Result<Vec<Variant>> {
    let host = bed.host()?;
    let local = here.to_string_lossy();
    match way {
        Way::Qemu => [COLD, WARM]
            .into_iter()
            .map(|variant| {
                floor.renew()?;
                forget(variant)?;
                let (_running, took) = floor.turn(&host)?;
                Ok((variant, Found { took, bytes: None, later: None, held: held(&floor.memory()) }))
            })
            .collect(),
        Way::Local => twice(bed, &host, &local, &[], report, way),
        Way::Scp => {
            let scp = Scp::new(bed.site.far(), bed.site.near(), bed.folder.path())?;
            let bytes = golden::bytes(here)?;
            let copied = scp.scaled(bytes, if bed.full { bytes } else { COPIED_BYTES })?;
            forget(COLD)?;
            let (_, took) = host.clone(&local, &[])?;
            let took = Took { ready: copied + took.ready, answered: copied + took.answered };
            Ok(vec![(COLD, Found { took, bytes: Some(bytes), later: None, held: None })])
        }
        Way::Nfs => twice(bed, &host, &bed.url(IMAGE), &NO_CACHE, report, way),
        Way::Ours => twice(bed, &host, &bed.url(IMAGE), &[], report, way),
    }
}

/// Makes two clones on one host, the first with empty caches.
fn twice(
    bed: &Bed,
    host: &Host<'_>,
    image: &str,
    options: &[&str],
    report: &mut Report,
    way: Way,
) -> Result<Vec<Variant>> {
    let mut both = Vec::new();
    for variant in [COLD, WARM] {
        forget(variant)?;
        let (before, asked) = (bed.line_bytes()?, bed.site.origin().requests()?);
        let (name, took) = host.clone(image, options)?;
        let bytes = bed.line_bytes()? - before;
        if way != Way::Local {
            let asked = bed.site.origin().requests()?.since(&asked).text();
            let what = format!("{}, {variant}: requests at the origin", way.name());
            report.targets.retain(|target| target.what != what);
            report.target(&what, "counted, in the last round", asked, None);
        }
        let held = held(&host.memory(&name));
        let mut found = Found { took, bytes: None, later: None, held };
        if way != Way::Local {
            found.bytes = Some(bytes);
            if variant == COLD && bed.rests {
                host.use_for(USED)?;
                found.later = Some(bed.line_bytes()? - before);
            }
        }
        if way == Way::Ours && variant == COLD {
            let shown = host.shown(&name)?;
            report.conditions.retain(|condition| !condition.starts_with(SHOWN));
            report.condition(format!("{SHOWN}{shown}"));
        }
        both.push((variant, found));
        host.remove(&name)?;
    }
    Ok(both)
}

fn forget(variant: &str) -> Result<()> {
    if variant == COLD { drop_caches() } else { Ok(()) }
}

/// Returns how much of a file is in the host's page cache, in bytes. `None` without fincore(1).
fn held(file: &Path) -> Option<u64> {
    let output =
        Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(file).output();
    String::from_utf8(output.ok()?.stdout).ok()?.trim().parse().ok()
}

/// Copies files with holes and times.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.args(["--archive", "--sparse=always"]).arg(from).arg(to);
    command.stderr(std::process::Stdio::piped());
    host::ended_well("cp", command.spawn().doing(|| "start cp".to_owned())?)
}

fn enter(report: &mut Report, way: Way, found: &[Variant]) {
    for variant in [COLD, WARM] {
        let of_it: Vec<&Found> =
            found.iter().filter(|(of, _)| *of == variant).map(|(_, found)| found).collect();
        let seconds = |of: fn(&Took) -> f64| of_it.iter().map(|found| of(&found.took)).collect::<Vec<_>>();
        let bytes = |of: fn(&Found) -> Option<u64>| {
            of_it.iter().filter_map(|it| of(it)).map(|it| it as f64).collect()
        };
        let rows = [
            (ANSWERS, Unit::Seconds, seconds(|took| took.answered.as_secs_f64())),
            (READY, Unit::Seconds, seconds(|took| took.ready.as_secs_f64())),
            (BYTES, Unit::Bytes, bytes(|found| found.bytes)),
            (LATER, Unit::Bytes, bytes(|found| found.later)),
            (HELD, Unit::Bytes, bytes(|found| found.held)),
        ];
        for (row, unit, rounds) in rows {
            report.figures.extend(Figure::of_rounds(row, variant, way.name(), unit, rounds));
        }
    }
}

/// Compares the report's figures with their targets.
fn targets(report: &mut Report) {
    report.compare_cells(ANSWERS, (Way::Ours.name(), COLD), (Way::Scp.name(), COLD), Some(SCP_TIMES));
    report.compare_cells(ANSWERS, (Way::Ours.name(), COLD), (Way::Nfs.name(), COLD), None);
    over(report, (Way::Ours, COLD), (Way::Local, COLD), OVER_LOCAL_S);
    over(report, (Way::Ours, WARM), (Way::Qemu, WARM), OVER_QEMU_S);
    over(report, (Way::Local, WARM), (Way::Qemu, WARM), OVER_QEMU_S);
    for (row, target, most) in [(BYTES, "≤ 12 MiB", BYTES_MAX), (LATER, "≤ 40 MiB", LATER_MAX)] {
        let found = report.figure(row, Way::Ours.name(), COLD).map(|figure| figure.spread.median);
        if let Some(bytes) = found {
            report.target(&format!("{row}, {COLD}"), target, Unit::Bytes.text(bytes), Some(bytes <= most));
        }
    }
}

/// Reports by how much one answers later than another, by round.
fn over(report: &mut Report, (ours, variant): (Way, &str), (other, other_variant): (Way, &str), most_s: f64) {
    let rounds =
        |way: Way, variant| report.figure(ANSWERS, way.name(), variant).map(|figure| figure.rounds.clone());
    let (Some(one), Some(two)) = (rounds(ours, variant), rounds(other, other_variant)) else { return };
    let over: Vec<f64> = one.iter().zip(two).map(|(one, two)| one - two).collect();
    let Some(Spread { median, q1, q3, .. }) = Spread::of(&over) else { return };
    report.target(
        &format!("{}, {variant}, answers later than {}, {other_variant}, by", ours.name(), other.name()),
        &format!("≤ {most_s} s"),
        format!("{median:.2} s ({q1:.2}–{q3:.2})"),
        Some(median <= most_s),
    );
}

fn conditions(report: &mut Report, bed: &Bed, image: &Path, rounds: usize) -> Result<()> {
    let Size { memory, disk, filled } = bed.size;
    report.condition(format!(
        "the machine: QEMU without KVM (TCG), Debian's cloud kernel and busybox's httpd, {memory} of memory and a disk of {disk}, of which {filled} cannot be \
         compressed; its image has {} MB in all. It has been rehearsed once (tombolo image rehearse)",
        golden::bytes(image)? / 1_000_000
    ));
    report.condition(format!(
        "{rounds} rounds, in each of which every column has one turn, in rotating order: a host with empty caches, on which two clones are made one after the other. \
         `{COLD}`: the first, after the kernel's caches were dropped; `{WARM}`: the second, when the first is removed. It answers when GET at its service brings its own \
         name, asked every 50 ms by a connection of its own; QEMU's guest has no name"
    ));
    report.condition(format!(
        "{}: scp(1) from sshd(8) over the line, of {}, and then a clone of a local image. {}: QEMU with the same command line on plain copies of the files, \
         the disk from qemu-storage-daemon. Bytes: what the far end of the line has sent, with headers. Memory held: the pages of the memory file in the page cache (fincore)",
        Way::Scp.name(),
        if bed.full { "all of the image" } else { "32 MiB, scaled to all of the image" },
        Way::Qemu.name(),
    ));
    Ok(())
}

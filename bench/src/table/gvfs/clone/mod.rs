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

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use super::Plan;
use super::site::{Site, drop_caches, folder};
use super::twice::{COLD, WARM};
use crate::error::{Doing, Result};
use crate::files::copy_with_holes;
use crate::measure::go_on;
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet, turns};

pub use answer::answered;
pub use eight::{p, s1, s2};

use floor::Floor;
use golden::{FULL, QUICK, Size, USUAL};
use host::{Host, Took};
use scp::Scp;

/// Kind of clone and source. Each is a column of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    Qemu,
    Local,
    Scp,
    Nfs,
    Ours,
}

impl Way {
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
const NO_CACHE: [&str; 1] = ["--no-cache"];
const IMAGE: &str = "golden";
/// Prefix of the condition with the counters.
const SHOWN: &str = "what the first clone had read by then (vm show): ";
/// Number of image bytes that are copied, unless a full run is requested.
const COPIED_BYTES: u64 = 32 << 20;
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
    fn new(plan: &Plan) -> Result<Self> {
        let size = if plan.quick {
            QUICK
        } else if plan.full {
            FULL
        } else {
            USUAL
        };
        let (folder, shared) = folder(plan)?;
        let site = Site::new(plan, &shared, folder.path())?;
        Ok(Self { site, shared, size, full: plan.full, rests: !plan.quick, folder })
    }

    /// Sets the words of a sheet that describe the machine of an image.
    fn describe<C: DeserializeOwned>(&self, sheet: &mut Sheet<'_, String, C>, image: &Path) -> Result<()> {
        let Size { memory, disk, filled } = self.size;
        let copied = if self.full { "all of the image" } else { "32 MiB, scaled to all of the image" };
        for (word, value) in [("memory", memory), ("disk", disk), ("filled", filled), ("copied", copied)] {
            sheet.set(word, &value);
        }
        sheet.set("image_mb", &(golden::bytes(image)? / 1_000_000));
        Ok(())
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

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_, String, Way> = sheet!(plan, "gvfs-clone")?;
    let mut report = sheet.report();
    let bed = Bed::new(plan)?;
    let image = bed.make(IMAGE)?;
    bed.describe(&mut sheet, &image)?;
    let here = bed.folder.path().join("here");
    copy_with_holes(&image, &here)?;
    let floor = floor_of(&bed, &here)?;
    let mut ways = sheet.columns.clone();
    ways.retain(|way| !plan.quick || !matches!(way, Way::Scp | Way::Nfs));
    for way in turns(sheet.rounds(), &ways) {
        go_on()?;
        let found = turn_of(*way, &bed, &floor, &here, &mut report);
        let done = found.map(|found| found.iter().for_each(|variant| enter(&mut report, *way, variant)));
        report.or_absent(way.name(), done)?;
    }
    Ok(bed.site.described(sheet.finish(report)))
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

fn enter(report: &mut Report, way: Way, (variant, found): &Variant) {
    let Found { took, bytes, later, held } = found;
    for (row, time) in [(ANSWERS, took.answered), (READY, took.ready)] {
        report.add(row, variant, way.name(), Unit::Seconds, time.as_secs_f64());
    }
    for (row, bytes) in [(BYTES, bytes), (LATER, later), (HELD, held)] {
        bytes.iter().for_each(|bytes| report.add(row, variant, way.name(), Unit::Bytes, *bytes as f64));
    }
}

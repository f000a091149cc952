//! `clone`: start-up time of a virtual machine from a remote image, compared with a copy of the image, a
//! local image, and QEMU alone. `clone-s1`, `clone-s2` and `clone-p`: scenarios of the paper, eight clones of
//! one image or of eight, in sequence or concurrent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

pub use host::answered;
use host::{FULL, Floor, Host, QUICK, Scp, Size, Took, USUAL, image_bytes, make_image};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::site::{Site, drop_caches};
use super::{COLD, Plan, WARM};
use crate::error::{Doing, Error, Result};
use crate::files::{Place, copy_with_holes};
use crate::measure::go_on;
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, turns};

mod host;

/// Kind of clone and source. Each is a column of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
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
    place: Place,
    size: Size,
    full: bool,
    /// `true` if the traffic after the answer is measured.
    rests: bool,
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
        let place = Place::within(&plan.disk)?;
        let site = Site::new(plan, &place)?;
        Ok(Self { site, place, size, full: plan.full, rests: !plan.quick })
    }

    /// Sets the words of a sheet that describe the machine of an image.
    fn describe<C: DeserializeOwned>(&self, sheet: &mut Sheet<'_, String, C>, image: &Path) -> Result<()> {
        let Size { memory, disk, filled } = self.size;
        let copied = if self.full { "all of the image" } else { "32 MiB, scaled to all of the image" };
        for (word, value) in [("memory", memory), ("disk", disk), ("filled", filled), ("copied", copied)] {
            sheet.set(word, &value);
        }
        sheet.set("image_mb", &(image_bytes(image)? / 1_000_000));
        Ok(())
    }

    fn make(&self, name: &str) -> Result<PathBuf> {
        let image = self.place.shared().join(name);
        make_image(&image, self.size)?;
        Ok(image)
    }

    fn host(&self) -> Result<Host<'_>> {
        Host::new(self.site.line.near(), self.place.folder())
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.site.origin.url())
    }

    /// Returns the bytes received over the WAN link, as counted at its far end.
    fn line_bytes(&self) -> Result<u64> {
        let table = format!("/proc/{}/net/dev", self.site.origin.server.id());
        let text = fs::read_to_string(&table).doing_to("read", Path::new(&table))?;
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("lo:"));
        // Eight receive columns follow the name (proc_pid_net(5)).
        let sent =
            lines.filter_map(|line| line.split_once(':')?.1.split_whitespace().nth(8)?.parse::<u64>().ok());
        Ok(sent.sum())
    }
}

/// Figure of one turn: row, variant, unit and value.
type Cell = (&'static str, &'static str, Unit, f64);

fn cells(variant: &'static str, took: Took, bytes: [Option<u64>; 3]) -> Vec<Cell> {
    let times = [(ANSWERS, took.answered), (READY, took.ready)];
    let times = times.map(|(row, time)| (row, variant, Unit::Seconds, time.as_secs_f64()));
    let bytes = [BYTES, LATER, HELD].into_iter().zip(bytes);
    let bytes = bytes.filter_map(|(row, bytes)| Some((row, variant, Unit::Bytes, bytes? as f64)));
    times.into_iter().chain(bytes).collect()
}

pub fn run(sheet: &mut Sheet<'_, String, Way>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let bed = Bed::new(plan)?;
    let image = bed.make(IMAGE)?;
    bed.describe(sheet, &image)?;
    let here = bed.place.beside("here");
    copy_with_holes(&image, &here)?;
    let floor = floor_of(&bed, &here)?;
    let mut ways = sheet.columns.clone();
    ways.retain(|way| !plan.quick || !matches!(way, Way::Scp | Way::Nfs));
    for way in turns(sheet.rounds(), &ways) {
        go_on()?;
        let found = turn_of(*way, &bed, &floor, &here, report);
        let done = found.map(|found| {
            found.into_iter().for_each(|(row, variant, unit, value)| {
                report.add(row, variant, way.name(), unit, value);
            });
        });
        report.or_absent(way.name(), done)?;
    }
    bed.site.describe(report);
    Ok(())
}

/// Returns the command line of a running clone, with copies of its image's files.
fn floor_of(bed: &Bed, image: &Path) -> Result<Floor> {
    let host = bed.host()?;
    let (clone, _) = host.clone(&image.to_string_lossy(), &[])?;
    Floor::new(&host, &clone, image, bed.place.folder())
}

fn turn_of(way: Way, bed: &Bed, floor: &Floor, here: &Path, report: &mut Report) -> Result<Vec<Cell>> {
    let host = bed.host()?;
    let local = here.to_string_lossy();
    match way {
        Way::Qemu => {
            let mut both = Vec::new();
            for variant in [COLD, WARM] {
                floor.renew()?;
                forget(variant)?;
                let (_running, took) = floor.turn(&host)?;
                both.extend(cells(variant, took, [None, None, held(&floor.memory())]));
            }
            Ok(both)
        }
        Way::Local => twice(bed, &host, &local, &[], report, way),
        Way::Scp => {
            let scp = Scp::new(bed.site.line.far(), bed.site.line.near(), bed.place.folder())?;
            let bytes = image_bytes(here)?;
            let copied = scp.scaled(bytes, if bed.full { bytes } else { COPIED_BYTES })?;
            forget(COLD)?;
            let (_, took) = host.clone(&local, &[])?;
            let took = Took { ready: copied + took.ready, answered: copied + took.answered };
            Ok(cells(COLD, took, [Some(bytes), None, None]))
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
) -> Result<Vec<Cell>> {
    let mut both = Vec::new();
    for variant in [COLD, WARM] {
        forget(variant)?;
        let (before, asked) = (bed.line_bytes()?, bed.site.origin.requests()?);
        let (name, took) = host.clone(image, options)?;
        let bytes = bed.line_bytes()? - before;
        if way != Way::Local {
            let asked = bed.site.origin.requests()?.since(&asked).text();
            let what = format!("{}, {variant}: requests at the origin", way.name());
            report.target(&what, "counted, in the last round", asked, None);
        }
        let held = held(&host.memory(&name));
        let mut later = None;
        if way != Way::Local && variant == COLD && bed.rests {
            host.use_for(USED)?;
            later = Some(bed.line_bytes()? - before);
        }
        both.extend(cells(variant, took, [(way != Way::Local).then_some(bytes), later, held]));
        if way == Way::Ours && variant == COLD {
            let shown = host.shown(&name)?;
            report.conditions.retain(|condition| !condition.starts_with(SHOWN));
            report.condition(format!("{SHOWN}{shown}"));
        }
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

const CLONES: usize = 8;
const ALL_ANSWER: &str = "until all answer";
const FIRST: &str = "the first";
const EACH_LATER: &str = "each later one, mean";
const BYTES_IN_ALL: &str = "bytes over the line";
const ONE: &str = "one clone";
const S1: &str = "S1, one image";
const S1_NFS: &str = "S1, --no-cache";
const P_NFS: &str = "P, --no-cache";
const S2: &str = "S2, eight images";
const S3: &str = "S3, eight images, LAN cache";
const P: &str = "P, one image, at once";
const P_LOCAL: &str = "local image, at once";
const S_LOCAL: &str = "local images";

/// Time until each clone answered, total time, and bytes received over the WAN link.
struct Done {
    each: Vec<Duration>,
    all: Duration,
    bytes: u64,
}

/// Measures eight clones of one image in sequence.
pub fn s1(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    measure(sheet, report, ("gvfs-clone-s1", 1), |bed, names, report| {
        side_by_side(bed, names, [S_LOCAL, S1], Order::InTurn, report)?;
        without_cache(bed, names, S1_NFS, Order::InTurn, report)
    })
}

/// Measures clones of eight images in sequence; also on a LAN where another host has cloned them before.
pub fn s2(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    measure(sheet, report, ("gvfs-clone-s2", CLONES), |bed, names, report| {
        side_by_side(bed, names, [S_LOCAL, S2], Order::InTurn, report)?;
        bed.site.add_lan(report);
        if let Some((lan, url)) = bed.site.second() {
            let images: Vec<String> = names.iter().map(|name| format!("{url}/{name}")).collect();
            clones(bed, &Host::new(lan, bed.place.folder())?, &images, &[], Order::InTurn)?;
            both(bed, &Host::new(lan, bed.place.folder())?, S3, &images, Order::InTurn, report)?;
        }
        Ok(())
    })
}

/// Measures eight concurrent clones of one image.
pub fn p(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    measure(sheet, report, ("gvfs-clone-p", 1), |bed, names, report| {
        both(bed, &bed.host()?, ONE, &[bed.url(&names[0])], Order::InTurn, report)?;
        side_by_side(bed, names, [P_LOCAL, P], Order::AtOnce, report)?;
        without_cache(bed, names, P_NFS, Order::AtOnce, report)
    })
}

/// Measures a scenario with this number of images.
fn measure(
    sheet: &mut Sheet<'_>,
    report: &mut Report,
    (name, images): (&str, usize),
    scenario: impl FnOnce(&mut Bed, &[String], &mut Report) -> Result<()>,
) -> Result<()> {
    if sheet.plan.quick {
        let lacks =
            "a minute and more, which would show no more of the bench than `clone`: left out of quick runs";
        return Err(Error::Absent(lacks.to_owned()));
    }
    report.name = name.to_owned();
    let mut bed = Bed::new(sheet.plan)?;
    let names: Vec<String> = (0..images).map(|number| format!("golden-{number}")).collect();
    for name in &names {
        go_on()?;
        let image = bed.make(name)?;
        bed.describe(sheet, &image)?;
    }
    scenario(&mut bed, &names, report)?;
    bed.site.describe(report);
    Ok(())
}

/// Compares [`CLONES`] clones of local images with as many over the WAN link, of the named images in turn.
fn side_by_side(
    bed: &Bed,
    names: &[String],
    columns: [&str; 2],
    order: Order,
    report: &mut Report,
) -> Result<()> {
    let names: Vec<&String> = names.iter().cycle().take(CLONES).collect();
    let local = names.iter().map(|name| bed.place.shared().join(name).display().to_string()).collect();
    let far: Vec<String> = names.iter().map(|name| bed.url(name)).collect();
    for (column, images) in columns.into_iter().zip([local, far]) {
        both(bed, &bed.host()?, column, &images, order, report)?;
    }
    Ok(())
}

/// Measures clones that each read the image at its origin: always cold, because nothing is cached.
fn without_cache(bed: &Bed, names: &[String], column: &str, order: Order, report: &mut Report) -> Result<()> {
    let far: Vec<String> = names.iter().cycle().take(CLONES).map(|name| bed.url(name)).collect();
    one(bed, &bed.host()?, (column, COLD), &far, (order, &NO_CACHE), report)
}

/// Begin of a clone: after the previous one has answered, or with all others.
#[derive(Clone, Copy)]
enum Order {
    InTurn,
    AtOnce,
}

/// Makes the clones twice, first with cold and then with warm caches.
fn both(
    bed: &Bed,
    host: &Host<'_>,
    column: &str,
    images: &[String],
    order: Order,
    report: &mut Report,
) -> Result<()> {
    [COLD, WARM]
        .into_iter()
        .try_for_each(|variant| one(bed, host, (column, variant), images, (order, &[]), report))
}

/// Makes the clones once, and adds their figures to the report.
fn one(
    bed: &Bed,
    host: &Host<'_>,
    (column, variant): (&str, &str),
    images: &[String],
    (order, options): (Order, &[&str]),
    report: &mut Report,
) -> Result<()> {
    go_on()?;
    forget(variant)?;
    let done = clones(bed, host, images, options, order).map(|done| enter(report, column, variant, &done));
    report.or_absent(&format!("{column}, {variant}"), done)
}

/// Makes clones, which run until all have answered and are then removed.
fn clones(bed: &Bed, host: &Host<'_>, images: &[String], options: &[&str], order: Order) -> Result<Done> {
    let (before, begun) = (bed.line_bytes()?, Instant::now());
    let (mut names, mut waiting, mut took) = (Vec::new(), Vec::new(), Vec::new());
    for image in images {
        go_on()?;
        let starting = host.begin(image, options)?;
        names.push(starting.name.clone());
        match order {
            Order::InTurn => took.push(starting.done()?),
            Order::AtOnce => waiting.push(thread::spawn(move || starting.done())),
        }
    }
    for thread in waiting {
        took.push(thread.join().unwrap_or(Err(Error::Interrupted))?);
    }
    let each = took.iter().map(|took| took.answered).collect();
    let done = Done { each, all: begun.elapsed(), bytes: bed.line_bytes()? - before };
    names.iter().try_for_each(|name| host.remove(name))?;
    Ok(done)
}

fn enter(report: &mut Report, column: &str, variant: &str, done: &Done) {
    let mut add = |row: &str, unit, value: f64| report.add(row, variant, column, unit, value);
    add(ALL_ANSWER, Unit::Seconds, done.all.as_secs_f64());
    if let Some((first, later)) = done.each.split_first() {
        add(FIRST, Unit::Seconds, first.as_secs_f64());
        let later: Duration = later.iter().sum();
        let count = done.each.len().saturating_sub(1);
        if count > 0 {
            add(EACH_LATER, Unit::Seconds, later.as_secs_f64() / count as f64);
        }
    }
    add(BYTES_IN_ALL, Unit::Bytes, done.bytes as f64);
}

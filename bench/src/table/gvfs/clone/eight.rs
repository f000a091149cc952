//! `clone-s1`, `clone-s2` and `clone-p`: scenarios of the paper.

use std::time::{Duration, Instant};

use super::host::{Host, Starting};
use super::{Bed, NO_CACHE, forget};
use crate::error::{Error, Result};
use crate::measure::go_on;
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet};
use crate::table::Plan;
use crate::table::gvfs::twice::{COLD, WARM};

const CLONES: usize = 8;
const ALL: &str = "until all answer";
const FIRST: &str = "the first";
const LATER: &str = "each later one, mean";
const BYTES: &str = "bytes over the line";
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
pub fn s1(plan: &Plan) -> Result<Report> {
    measure(plan, ("gvfs-clone-s1", 1), |bed, names, report| {
        side_by_side(bed, names, [S_LOCAL, S1], in_turn, report)?;
        without_cache(bed, names, S1_NFS, in_turn, report)
    })
}

/// Measures clones of eight images in sequence; also on a LAN where another host has cloned them before.
pub fn s2(plan: &Plan) -> Result<Report> {
    measure(plan, ("gvfs-clone-s2", CLONES), |bed, names, report| {
        side_by_side(bed, names, [S_LOCAL, S2], in_turn, report)?;
        bed.site.add_lan(report);
        if let Some((lan, url)) = bed.site.second() {
            let images: Vec<String> = names.iter().map(|name| format!("{url}/{name}")).collect();
            in_turn(bed, &Host::new(lan, bed.folder.path())?, &images, &[])?;
            both(bed, &Host::new(lan, bed.folder.path())?, S3, &images, in_turn, report)?;
        }
        Ok(())
    })
}

/// Measures eight concurrent clones of one image.
pub fn p(plan: &Plan) -> Result<Report> {
    measure(plan, ("gvfs-clone-p", 1), |bed, names, report| {
        both(bed, &bed.host()?, ONE, &[bed.url(&names[0])], in_turn, report)?;
        side_by_side(bed, names, [P_LOCAL, P], at_once, report)?;
        without_cache(bed, names, P_NFS, at_once, report)
    })
}

/// Measures a scenario with this number of images.
fn measure(
    plan: &Plan,
    (name, images): (&'static str, usize),
    scenario: impl FnOnce(&mut Bed, &[String], &mut Report) -> Result<()>,
) -> Result<Report> {
    if plan.quick {
        let lacks =
            "a minute and more, which would show no more of the bench than `clone`: left out of quick runs";
        return Err(Error::Absent(lacks.to_owned()));
    }
    let mut sheet: Sheet<'_> = sheet!(plan, "gvfs-clone-eight")?;
    sheet.name = name;
    let (mut report, mut bed) = (sheet.report(), Bed::new(plan)?);
    let names: Vec<String> = (0..images).map(|number| format!("golden-{number}")).collect();
    for name in &names {
        go_on()?;
        let image = bed.make(name)?;
        bed.describe(&mut sheet, &image)?;
    }
    scenario(&mut bed, &names, &mut report)?;
    Ok(bed.site.described(sheet.finish(report)))
}

/// Compares clones of local images with clones over the WAN link; one image is used for all.
fn side_by_side(
    bed: &Bed,
    names: &[String],
    columns: [&str; 2],
    turn: Turn,
    report: &mut Report,
) -> Result<()> {
    let names: Vec<&String> = names.iter().cycle().take(CLONES).collect();
    let local = names.iter().map(|name| bed.shared.join(name).display().to_string()).collect();
    let far: Vec<String> = names.iter().map(|name| bed.url(name)).collect();
    for (column, images) in columns.into_iter().zip([local, far]) {
        both(bed, &bed.host()?, column, &images, turn, report)?;
    }
    Ok(())
}

/// Measures clones that each read the image at its origin: always cold, because nothing is cached.
fn without_cache(bed: &Bed, names: &[String], column: &str, turn: Turn, report: &mut Report) -> Result<()> {
    let far: Vec<String> = names.iter().cycle().take(CLONES).map(|name| bed.url(name)).collect();
    one(bed, &bed.host()?, (column, COLD), &far, (turn, &NO_CACHE), report)
}

type Turn = fn(&Bed, &Host<'_>, &[String], &[&str]) -> Result<Done>;

fn both(
    bed: &Bed,
    host: &Host<'_>,
    column: &str,
    images: &[String],
    turn: Turn,
    report: &mut Report,
) -> Result<()> {
    [COLD, WARM]
        .into_iter()
        .try_for_each(|variant| one(bed, host, (column, variant), images, (turn, &[]), report))
}

fn one(
    bed: &Bed,
    host: &Host<'_>,
    (column, variant): (&str, &str),
    images: &[String],
    (turn, options): (Turn, &[&str]),
    report: &mut Report,
) -> Result<()> {
    go_on()?;
    forget(variant)?;
    let done = turn(bed, host, images, options).map(|done| enter(report, column, variant, &done));
    report.or_absent(&format!("{column}, {variant}"), done)
}

/// Makes each clone after the previous one has answered. All run until the end.
fn in_turn(bed: &Bed, host: &Host<'_>, images: &[String], options: &[&str]) -> Result<Done> {
    let (before, begun) = (bed.line_bytes()?, Instant::now());
    let mut each = Vec::new();
    let mut made = Vec::new();
    for image in images {
        go_on()?;
        let (name, took) = host.clone(image, options)?;
        each.push(took.answered);
        made.push(name);
    }
    let done = Done { each, all: begun.elapsed(), bytes: bed.line_bytes()? - before };
    made.iter().try_for_each(|name| host.remove(name))?;
    Ok(done)
}

fn at_once(bed: &Bed, host: &Host<'_>, images: &[String], options: &[&str]) -> Result<Done> {
    let (before, begun) = (bed.line_bytes()?, Instant::now());
    let starting = images.iter().map(|image| host.begin(image, options)).collect::<Result<Vec<_>>>()?;
    let names: Vec<String> = starting.iter().map(|starting| starting.name.clone()).collect();
    let waiting: Vec<_> =
        starting.into_iter().map(|it| std::thread::spawn(move || Starting::done(it))).collect();
    let took = waiting.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Interrupted)));
    let each = took.map(|took| took.map(|took| took.answered)).collect::<Result<Vec<_>>>()?;
    let done = Done { each, all: begun.elapsed(), bytes: bed.line_bytes()? - before };
    names.iter().try_for_each(|name| host.remove(name))?;
    Ok(done)
}

fn enter(report: &mut Report, column: &str, variant: &str, done: &Done) {
    let mut add = |row: &str, unit, value: f64| report.add(row, variant, column, unit, value);
    add(ALL, Unit::Seconds, done.all.as_secs_f64());
    if let Some((first, later)) = done.each.split_first() {
        add(FIRST, Unit::Seconds, first.as_secs_f64());
        let later: Duration = later.iter().sum();
        let count = done.each.len().saturating_sub(1);
        if count > 0 {
            add(LATER, Unit::Seconds, later.as_secs_f64() / count as f64);
        }
    }
    add(BYTES, Unit::Bytes, done.bytes as f64);
}

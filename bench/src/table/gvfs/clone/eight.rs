//! `clone-s1`, `clone-s2` and `clone-p`: scenarios of the paper.

use std::time::{Duration, Instant};

use super::host::{Host, Starting};
use super::{Bed, NO_CACHE, forget};
use crate::args::GvfsArgs;
use crate::error::{Error, Result};
use crate::measure::go_on;
use crate::report::{Figure, Report, Unit};
use crate::table::Plan;
use crate::table::gvfs::twice::{COLD, WARM};

const CLONES: usize = 8;
const ALL: &str = "until all answer";
const FIRST: &str = "the first";
const LATER: &str = "each later one, mean";
const BYTES: &str = "bytes over the line";
/// Maximum share of the time added by the WAN link that a cache on the LAN may add over local.
const LAN_TARGET: f64 = 0.3;
const BYTES_TARGET: f64 = 1.05;
const TIME_TARGET: f64 = 1.3;

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
pub fn s1(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let (mut report, bed, names) = begun(plan, wanted, "gvfs-clone-s1", 1)?;
    side_by_side(&bed, &names, [S_LOCAL, S1], in_turn, &mut report)?;
    without_cache(&bed, &names, S1_NFS, in_turn, &mut report)?;
    ended(report, &bed, &names)
}

/// Measures clones of eight images in sequence; also on a LAN where another host has cloned them before.
pub fn s2(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let (mut report, mut bed, names) = begun(plan, wanted, "gvfs-clone-s2", CLONES)?;
    side_by_side(&bed, &names, [S_LOCAL, S2], in_turn, &mut report)?;
    bed.site.add_lan(&mut report);
    if let Some((lan, url)) = bed.site.second() {
        let images: Vec<String> = names.iter().map(|name| format!("{url}/{name}")).collect();
        in_turn(&bed, &Host::new(lan, bed.folder.path())?, &images, &[])?;
        both(&bed, &Host::new(lan, bed.folder.path())?, S3, &images, in_turn, &mut report)?;
    }
    let of = |column: &str| report.figure(ALL, column, COLD).map(|figure| figure.spread.median);
    let added = |column| Some(of(column)? - of(S_LOCAL)?);
    let what = format!("{S3}: time that it adds to {S_LOCAL}, of what {S2} adds");
    let added = added(S3).zip(added(S2));
    share(&mut report, &what, added, LAN_TARGET);
    ended(report, &bed, &names)
}

/// Measures eight concurrent clones of one image.
pub fn p(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let (mut report, bed, names) = begun(plan, wanted, "gvfs-clone-p", 1)?;
    both(
        &bed,
        &bed.host()?,
        ONE,
        &[bed.url(names.first().map_or("", String::as_str))],
        in_turn,
        &mut report,
    )?;
    side_by_side(&bed, &names, [P_LOCAL, P], at_once, &mut report)?;
    without_cache(&bed, &names, P_NFS, at_once, &mut report)?;
    let of = |row: &str, column: &str| report.figure(row, column, COLD).map(|figure| figure.spread.median);
    let shares = [
        (format!("{P}: time, of {P_LOCAL}"), of(ALL, P).zip(of(ALL, P_LOCAL)), TIME_TARGET),
        (format!("{P}: bytes over the line, of {ONE}"), of(BYTES, P).zip(of(BYTES, ONE)), BYTES_TARGET),
    ];
    for (what, of_other, most) in shares {
        share(&mut report, &what, of_other, most);
    }
    ended(report, &bed, &names)
}

fn begun(plan: &Plan, wanted: &GvfsArgs, name: &str, images: usize) -> Result<(Report, Bed, Vec<String>)> {
    if plan.quick {
        let lacks =
            "a minute and more, which would show no more of the bench than `clone`: left out of quick runs";
        return Err(Error::Absent(lacks.to_owned()));
    }
    let report = plan.report(name, "Eight virtual machines cloned from remote images");
    let bed = Bed::new(plan, wanted)?;
    let names: Vec<String> = (0..images).map(|number| format!("golden-{number}")).collect();
    for name in &names {
        go_on()?;
        bed.make(name)?;
    }
    Ok((report, bed, names))
}

fn ended(mut report: Report, bed: &Bed, names: &[String]) -> Result<Report> {
    super::conditions(&mut report, bed, &bed.shared.join(names.first().map_or("", String::as_str)), 1)?;
    report.condition(format!(
        "eight clones on one host, which all run until the end. `{WARM}`: all are made again after the first are removed. {S2}: of machines booted separately. {S3}: on a host \
         of a LAN whose cache has them, as another host has made them"
    ));
    report.condition(
        "the paper: S1 1056 s cold and 200 s warm; P, of eight images on eight hosts, 150.3 s and 32 s; the first ≤ 160 s, with local caches ≤ 25 s, with the LAN's ≤ 80 s"
            .to_owned(),
    );
    bed.site.describe(&mut report);
    Ok(report)
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

fn share(report: &mut Report, what: &str, of_other: Option<(f64, f64)>, most: f64) {
    let Some((one, other)) = of_other else { return };
    let share = one / other;
    report.target(
        &format!("{what}, {COLD}"),
        &format!("≤ {most}"),
        format!("{share:.2}"),
        Some(share <= most),
    );
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
    match turn(bed, host, images, options) {
        Ok(done) => enter(report, column, variant, &done),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) => report.absent(format!("{column}, {variant}: {error}")),
    }
    Ok(())
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
    let mut add = |row: &str, unit, value: f64| {
        report.figures.push(Figure::single(row, variant, column, unit, value));
    };
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

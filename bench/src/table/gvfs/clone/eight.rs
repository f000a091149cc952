//! `clone-eight`: the paper's scenarios.

use std::time::{Duration, Instant};

use super::host::{Host, Starting};
use super::{Bed, forget};
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
/// The time over local that a LAN's cache adds, of what the line adds.
const LAN_TARGET: f64 = 0.3;
const BYTES_TARGET: f64 = 1.05;
const TIME_TARGET: f64 = 1.3;

const S1: &str = "S1, one image";
const S2: &str = "S2, eight images";
const S3: &str = "S3, eight images, LAN cache";
const P: &str = "P, one image, at once";
const P_LOCAL: &str = "local image, at once";
const S_LOCAL: &str = "local images";

/// How long each clone took to answer, all of them, and what came over the line.
struct Done {
    each: Vec<Duration>,
    all: Duration,
    bytes: u64,
}

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    if plan.quick {
        let lacks = "minutes, which would show no more of the bench than `clone`: left out of quick runs";
        return Err(Error::Absent(lacks.to_owned()));
    }
    let mut report =
        plan.report("gvfs-clone-eight", "Eight virtual machines cloned from images that are far");
    let mut bed = Bed::new(plan, wanted)?;
    bed.site.add_lan(&mut report);
    let names: Vec<String> = (0..CLONES).map(|number| format!("golden-{number}")).collect();
    for name in &names {
        go_on()?;
        bed.make(name)?;
    }
    let one = vec![names.first().cloned().unwrap_or_default(); CLONES];
    scenarios(&bed, &names, &one, &mut report)?;
    targets(&mut report);
    super::conditions(&mut report, &bed, &bed.shared.join(&one[0]), 1)?;
    report.condition(format!(
        "{S1}: clones of one image one after the other on one host; {S2}: one of each of eight images, of machines that were booted apart; {S3}: the same on a host on a LAN \
         whose cache has made them once; {P}: all are begun at once. `{WARM}`: all are made once more, when the first are removed"
    ));
    report.condition(
        "the paper: S1 1056 s cold and 200 s warm; P, of eight images on eight hosts, 150.3 s and 32 s; first ≤ 160 s, with local caches ≤ 25 s, with the LAN's ≤ 80 s"
            .to_owned(),
    );
    bed.site.describe(&mut report);
    Ok(report)
}

fn scenarios(bed: &Bed, names: &[String], one: &[String], report: &mut Report) -> Result<()> {
    let far = |name: &String| bed.url(name);
    let local = |name: &String| bed.shared.join(name).display().to_string();
    let far_of = |names: &[String]| names.iter().map(far).collect::<Vec<_>>();
    let local_of = |names: &[String]| names.iter().map(local).collect::<Vec<_>>();
    let turns: [(&str, Vec<String>, Turn); 5] = [
        (S_LOCAL, local_of(names), in_turn),
        (S1, far_of(one), in_turn),
        (S2, far_of(names), in_turn),
        (P_LOCAL, local_of(one), at_once),
        (P, far_of(one), at_once),
    ];
    for (column, images, turn) in turns {
        let host = bed.host()?;
        both(bed, &host, column, &images, turn, report)?;
    }
    if let Some((lan, url)) = bed.site.second() {
        let images: Vec<String> = names.iter().map(|name| format!("{url}/{name}")).collect();
        // Another host of the LAN has made them before.
        let before = Host::new(lan, bed.folder.path())?;
        in_turn(bed, &before, &images)?;
        drop(before);
        both(bed, &Host::new(lan, bed.folder.path())?, S3, &images, in_turn, report)?;
    }
    Ok(())
}

type Turn = fn(&Bed, &Host<'_>, &[String]) -> Result<Done>;

fn both(
    bed: &Bed,
    host: &Host<'_>,
    column: &str,
    images: &[String],
    turn: Turn,
    report: &mut Report,
) -> Result<()> {
    for variant in [COLD, WARM] {
        go_on()?;
        forget(variant)?;
        match turn(bed, host, images) {
            Ok(done) => enter(report, column, variant, &done),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => report.absent(format!("{column}, {variant}: {error}")),
        }
    }
    Ok(())
}

/// Each when the one before has answered. All run until the end.
fn in_turn(bed: &Bed, host: &Host<'_>, images: &[String]) -> Result<Done> {
    let (before, begun) = (bed.line_bytes()?, Instant::now());
    let mut each = Vec::new();
    let mut made = Vec::new();
    for image in images {
        go_on()?;
        let (name, took) = host.clone(image, &[])?;
        each.push(took.answered);
        made.push(name);
    }
    let done = Done { each, all: begun.elapsed(), bytes: bed.line_bytes()? - before };
    made.iter().try_for_each(|name| host.remove(name))?;
    Ok(done)
}

fn at_once(bed: &Bed, host: &Host<'_>, images: &[String]) -> Result<Done> {
    let (before, begun) = (bed.line_bytes()?, Instant::now());
    let starting = images.iter().map(|image| host.begin(image, &[])).collect::<Result<Vec<_>>>()?;
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
        add(LATER, Unit::Seconds, later.as_secs_f64() / (CLONES - 1) as f64);
    }
    add(BYTES, Unit::Bytes, done.bytes as f64);
}

fn targets(report: &mut Report) {
    let of = |row: &str, column: &str| report.figure(row, column, COLD).map(|figure| figure.spread.median);
    let added = |column| Some(of(ALL, column)? - of(ALL, S_LOCAL)?);
    let shares = [
        (format!("{P}: time, of {P_LOCAL}"), of(ALL, P).zip(of(ALL, P_LOCAL)), TIME_TARGET),
        (format!("{P}: bytes over the line, of {S1}"), of(BYTES, P).zip(of(BYTES, S1)), BYTES_TARGET),
        (
            format!("{S3}: time that it adds to {S_LOCAL}, of what {S2} adds"),
            added(S3).zip(added(S2)),
            LAN_TARGET,
        ),
    ];
    for (what, share, most) in shares {
        let Some((one, other)) = share else { continue };
        let share = one / other;
        report.target(
            &format!("{what}, {COLD}"),
            &format!("≤ {most}"),
            format!("{share:.2}"),
            Some(share <= most),
        );
    }
}

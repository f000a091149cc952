//! A C project unpacked, built and removed over an NFS mount: how far from a local directory, and how many calls it takes beside the
//! kernel's client.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::OURS;
use super::bed::{Bed, Serves};
use crate::error::{Doing, Error, Result};
use crate::measure::{Spread, go_on};
use crate::nfs::{Counts, Link, Tap};
use crate::peer::{Mount, in_checkout};
use crate::report::{Figure, Report, Unit};

const LOCAL: &str = "local directory";
const KERNEL: &str = "kernel client, in a guest";
const ROUNDS: usize = 3;
const SOURCE: &str = ".cache/sources/lua.tar.gz";
const GUEST: &str = "tests/guests/run";
/// The steps: what each is called, and what a shell does in an empty directory.
const STEPS: [(&str, &str); 3] = [
    ("unpack", "tar xzf \"$1\""),
    ("build", "make -s -C */src \"$2\" >/dev/null"),
    ("remove", "rm -rf -- *"),
];
/// Everything that runs without libraries of the system's own.
const TARGET: &str = "posix";
/// One file.
const QUICK_TARGET: &str = "lapi.o";

/// Measures.
pub(super) fn run(bed: &Bed<'_>) -> Result<Report> {
    let mut report = bed.report("atomic-build", "A C project built over an NFS mount");
    let source = in_checkout(Path::new(SOURCE))
        .map_err(|error| Error::Absent(format!("{error} (tests/guests/fetch-source lua fetches it)")))?;
    let job = Job { source, target: if bed.plan.quick { QUICK_TARGET } else { TARGET } };
    let server = bed.server(Link::Loopback, Serves::Memory)?;
    let tap = Tap::before(server.nfs())?;
    let point = bed.own("mount")?;
    let url = format!("nfs://{}/shared", server.nfs());
    let rounds = if bed.plan.rounds_given { bed.plan.rounds } else { bed.plan.scaled(ROUNDS, 1) };
    let mut times = vec![[const { Vec::new() }; STEPS.len()]; 2];
    {
        let mount = Mount::of_url(&url, &point)?;
        for round in 0..rounds {
            let places = [bed.own("local")?, mount.point().join("built")];
            for number in 0..places.len() {
                // Whoever goes first has a colder compiler.
                let place = (number + round) % places.len();
                for (step, took) in job.timed(&places[place])?.into_iter().enumerate() {
                    times[place][step].push(took.as_secs_f64());
                }
            }
        }
    }
    for (step, (name, _)) in STEPS.into_iter().enumerate() {
        for (place, column) in [LOCAL, OURS].into_iter().enumerate() {
            let rounds = &times[place][step];
            let Some(spread) = Spread::of(rounds) else { continue };
            let figure = Figure::single(name, "", column, Unit::Seconds, spread.median);
            report.figures.push(Figure { spread, rounds: rounds.clone(), ..figure });
        }
        let (ours, local) = (report.figure(name, OURS, "").cloned(), report.figure(name, LOCAL, "").cloned());
        report.compare(ours.as_ref(), local.as_ref(), None);
    }
    let mut counted = vec![(OURS, count_ours(bed, &job, &tap)?)];
    match count_in_guest(bed, &job, &tap) {
        Ok(counts) => counted.push((KERNEL, counts)),
        Err(error) => report.absent(format!("{KERNEL}: {error}")),
    }
    calls(&mut report, &counted);
    report.condition(format!(
        "Lua 5.4.4 (`make {}`) by {rounds} rounds in turn, in a directory in memory and over `tombolo mount nfs://…` of another on our server, with the options \
         that a mount has by default; compiler and source are local",
        job.target
    ));
    report.condition(format!(
        "calls: counted between client and server, in runs of their own, mount and unmount included. `{KERNEL}`: Linux 6.1 in User Mode Linux, with its \
         defaults but `nolock`; times there would say nothing"
    ));
    Ok(report)
}

struct Job {
    source: PathBuf,
    target: &'static str,
}

impl Job {
    /// How long each step took in a new directory.
    fn timed(&self, folder: &Path) -> Result<[Duration; STEPS.len()]> {
        fs::create_dir_all(folder).doing_to("make", folder)?;
        let mut took = [Duration::ZERO; STEPS.len()];
        for ((step, script), took) in STEPS.into_iter().zip(&mut took) {
            go_on()?;
            let begun = Instant::now();
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(&self.source).arg(self.target).current_dir(folder);
            finish(step, &mut command)?;
            *took = begun.elapsed();
        }
        fs::remove_dir(folder).doing_to("remove", folder)?;
        Ok(took)
    }

    /// All steps, for a shell elsewhere.
    fn script(&self, folder: &str) -> String {
        let steps = STEPS.map(|(_, script)| script).join(" && ");
        format!(
            "set -- '{}' '{}' && mkdir '{folder}' && cd '{folder}' && {steps} && cd / && rmdir '{folder}'",
            self.source.display(),
            self.target
        )
    }
}

fn finish(what: &str, command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().doing(|| what.to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    Err(Error::Wrong { what: what.to_owned(), answer: format!("{}: {last}", output.status) })
}

/// What our client calls for one job.
fn count_ours(bed: &Bed<'_>, job: &Job, tap: &Tap) -> Result<Counts> {
    let url = format!("nfs://127.0.0.1:{}/shared", tap.port());
    let mount = Mount::of_url(&url, &bed.own("mount")?)?;
    job.timed(&mount.point().join("counted"))?;
    drop(mount);
    Ok(tap.take())
}

/// The same by the kernel of a guest, which sees this host's tree and so the compiler.
fn count_in_guest(bed: &Bed<'_>, job: &Job, tap: &Tap) -> Result<Counts> {
    if bed.plan.quick {
        return Err(Error::Absent("not in a quick run".to_owned()));
    }
    let guest = in_checkout(Path::new(GUEST))?;
    let script = job.script("/mnt/shared/counted");
    let mut command = Command::new(guest);
    command.args(["uml", "--nfs", &format!("{}/shared", tap.port()), "--timeout", "180"]);
    command.args(["--command", "sh", "-c", &script]);
    finish("a guest", &mut command)?;
    Ok(tap.take())
}

fn calls(report: &mut Report, counted: &[(&str, Counts)]) {
    let procedures: BTreeSet<&String> = counted.iter().flat_map(|(_, counts)| counts.keys()).collect();
    for procedure in procedures {
        for (column, counts) in counted {
            let count = counts.get(procedure).copied().unwrap_or_default() as f64;
            let row = format!("calls: {procedure}");
            report.figures.push(Figure::single(&row, "", column, Unit::Count, count));
        }
    }
    for (column, counts) in counted {
        let all = counts.values().sum::<u64>() as f64;
        report.figures.push(Figure::single("calls: all", "", column, Unit::Count, all));
    }
    let of = |column: &str| report.figure("calls: all", column, "").cloned();
    let (ours, kernel) = (of(OURS), of(KERNEL));
    report.compare(ours.as_ref(), kernel.as_ref(), None);
}

//! Build of a C project over an NFS mount, compared with a local directory.

use std::path::Path;

use super::OURS;
use super::test_host::{Serves, TestHost};
use crate::error::{Error, Result};
use crate::files::Steps;
use crate::nfs::Link;
use crate::peer::{Mount, in_checkout};
use crate::report::{Figure, Report, Unit};

const LOCAL: &str = "local directory";
const ROUNDS: usize = 3;
const SOURCE: &str = ".cache/sources/lua.tar.gz";
/// Steps: names and shell commands, run in an empty directory.
const STEPS: [(&str, &str); 3] = [
    ("unpack", "tar xzf \"$1\""),
    ("build", "make -s -C */src \"$2\" >/dev/null"),
    ("remove", "rm -rf -- *"),
];
/// Targets without external libraries.
const TARGET: &str = "posix";
const QUICK_TARGET: &str = "lapi.o";

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let mut report = host.report("atomic-build", "A C project built over an NFS mount");
    let source = in_checkout(Path::new(SOURCE))
        .map_err(|error| Error::Absent(format!("{error} (tests/guests/fetch-source lua fetches it)")))?;
    let target = if host.plan.quick { QUICK_TARGET } else { TARGET };
    let job = Steps { steps: &STEPS, arguments: vec![source.into(), target.into()] };
    let server = host.server(Link::Loopback, Serves::Memory)?;
    let point = host.own("mount")?;
    let url = format!("nfs://{}/shared", server.nfs());
    let rounds = if host.plan.rounds_given { host.plan.rounds } else { host.plan.scaled(ROUNDS, 1) };
    let mut times = vec![[const { Vec::new() }; STEPS.len()]; 2];
    {
        let mount = Mount::of_url(&url, &point)?;
        for round in 0..rounds {
            let places = [host.own("local")?, mount.point().join("built")];
            for number in 0..places.len() {
                // The first place has a colder compiler.
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
            report.figures.extend(Figure::of_rounds(name, "", column, Unit::Seconds, rounds.clone()));
        }
        report.compare_cells(name, (OURS, ""), (LOCAL, ""), None);
    }
    report.condition(format!(
        "Lua 5.4.4 (`make {}`) by {rounds} rounds in turn, in a directory in memory and over `tombolo mount nfs://…` of another on our server, with the options \
         that a mount has by default; compiler and source are local",
        target
    ));
    Ok(report)
}

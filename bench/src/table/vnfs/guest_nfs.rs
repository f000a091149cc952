//! `guest-nfs`: a guest's kernel NFS client compared with a mount over shared memory with change
//! notifications, in the same guest and of the same server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use super::Plan;
use super::build::QUICK_SOURCE;
use crate::args::VnfsArgs;
use crate::error::{Doing, Error, Result};
use crate::measure::{Placement, go_on};
use crate::peer::{Nfs, Program, find, in_checkout, this_program};
use crate::report::{Figure, Report, Unit};
use crate::table::guest::phases;

const NFS: &str = "the kernel's NFS client";
const PUSH: &str = "shm+mmapper:, push";
/// Names of the mounts in the guest.
const SIDES: [(&str, &str); 2] = [("nfs", NFS), ("push", PUSH)];
const ROWS: [&str; 3] = ["postmark", "unpack", "remove"];
const FILES: usize = 2_000;
const QUICK_FILES: usize = 50;
const ROUNDS: usize = 3;
const SOURCE: &str = ".cache/sources/httpd.tar.gz";
const PORT: u16 = 2049;
const MEMORY: &str = "64M";
const LIFE_SECS: &str = "600";
/// Shell command that runs the remaining command line in an empty network.
const ALONE: &str = "ip link set lo up && exec \"$@\"";

pub fn run(plan: &Plan, wanted: &VnfsArgs) -> Result<Report> {
    let mut report =
        plan.report("vnfs-guest-nfs", "A guest's own NFS client, and a mount over shared memory");
    let files = wanted.files.unwrap_or(plan.scaled(FILES, QUICK_FILES));
    let source = in_checkout(Path::new(if plan.quick { QUICK_SOURCE } else { SOURCE }));
    let source = source.or_else(|_| in_checkout(Path::new(QUICK_SOURCE)))?;
    let folder = plan.folder()?;
    let (shared, memory) = (folder.path().join("shared"), folder.path().join("memory"));
    fs::create_dir(&shared).doing_to("make", &shared)?;
    Placement::leave()?;
    let rounds = if plan.quick { 1 } else { plan.rounds_of(ROUNDS) };
    let mut times = [const { [const { Vec::new() }; ROWS.len()] }; SIDES.len()];
    for _ in 0..rounds {
        go_on()?;
        let took = turn(&shared, &memory, folder.path(), &source, files);
        // Prerequisites missing in a guest are missing on this machine.
        let took = took.map_err(|error| match error {
            Error::Interrupted => error,
            other => Error::Absent(other.to_string()),
        })?;
        for (phase, secs) in took {
            let (side, row) = phase.split_once('.').unwrap_or_default();
            let at = SIDES.iter().position(|it| it.0 == side).zip(ROWS.iter().position(|it| *it == row));
            if let Some(rounds) = at.and_then(|(side, row)| times.get_mut(side)?.get_mut(row)) {
                rounds.push(secs);
            }
        }
    }
    for ((_, column), rows) in SIDES.into_iter().zip(times) {
        for (row, rounds) in ROWS.into_iter().zip(rows) {
            report.figures.extend(Figure::of_rounds(row, "", column, Unit::Seconds, rounds));
        }
    }
    for row in ROWS {
        report.compare_cells(row, (PUSH, ""), (NFS, ""), None);
    }
    report.condition(format!(
        "{rounds} rounds, each with a server and a UML guest of 512 MB of its own, which mounts both and uses one after the other; its own clock, to 10 ms. Only ratios \
         within the guest mean something: a system call takes some 10 µs there. Each row ends with sync(1)"
    ));
    report.condition(format!(
        "postmark: {files} files and as many transactions, 512 B to 9.7 KB, read and append 1:1; unpack and remove: {}. What is shared lies below {}: to make it \
         stable costs the server nothing, as with the paper's asynchronous export",
        source.file_name().unwrap_or_default().to_string_lossy(),
        plan.within.display()
    ));
    Ok(report)
}

/// Returns the seconds of each row, named `SIDE.ROW`.
fn turn(
    shared: &Path,
    memory: &Path,
    beside: &Path,
    source: &Path,
    files: usize,
) -> Result<Vec<(String, f64)>> {
    let (tombolo, _old) = (find(Program::Tombolo)?, fs::remove_file(memory));
    let region = |separator: &str| {
        let mut option = memory.as_os_str().to_owned();
        option.push(format!(",{separator}{MEMORY}"));
        option
    };
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", ALONE, "sh"]).arg(&tombolo).arg("serve").arg(shared);
    command.arg("--host-watch").arg("--shm-file").arg(region("size="));
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let server = Nfs::by_command(command, address, shared, beside)?;
    let network = format!("/proc/{}/ns/net", server.server());
    let name = fs::read_link(&network).doing_to("look at", Path::new(&network))?;
    let run = in_checkout(Path::new("tests/guests/run"))?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={network}")).arg("--").arg(&run);
    command.env("TOMBOLO_NETWORK", name).env("TOMBOLO_STATIC", &tombolo);
    command.args(["uml", "--mem", "512M", "--timeout", LIFE_SECS]);
    command.arg("--nfs").arg(format!("{PORT}{}", server.export()));
    command.arg("--shm").arg(region("")).arg("--tombolo");
    command.arg(in_checkout(Path::new("bench/peers/vm/job"))?).arg("mounts").arg(files.to_string());
    command.arg(this_program()?).arg(source);
    let output = command.stdin(Stdio::null()).output().doing_to("start", &run)?;
    if output.status.success() {
        return Ok(phases(&String::from_utf8_lossy(&output.stdout)));
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let last = said.trim().lines().next_back().unwrap_or_default();
    Err(Error::Server { program: "guest".to_owned(), what: last.to_owned() })
}

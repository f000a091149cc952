//! `guest-nfs`: a guest's kernel NFS client compared with a mount over shared memory with change
//! notifications, in the same guest and of the same server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use super::Plan;
use crate::error::{Doing, Error, Result};
use crate::measure::{Placement, go_on};
use crate::peer::{Nfs, Program, find, in_checkout, this_program};
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet};
use crate::table::guest::phases_of;
use crate::table::mounts::Place;

/// Names of the mounts in the guest, in the order of the columns.
const SIDES: [&str; 2] = ["nfs", "push"];
const PORT: u16 = 2049;
const MEMORY: &str = "64M";
const LIFE_SECS: &str = "600";
/// Shell command that runs the remaining command line in an empty network.
const ALONE: &str = "ip link set lo up && exec \"$@\"";

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_> = sheet!(plan, "vnfs-guest-nfs")?;
    let mut report = sheet.report();
    let files = plan.files.unwrap_or(sheet.number("files"));
    let tarball = |project| in_checkout(Path::new(&format!(".cache/sources/{project}.tar.gz")));
    let source = tarball(if plan.quick { "lua" } else { "httpd" }).or_else(|_| tarball("lua"))?;
    sheet.set("files", &files);
    sheet.set("source", &source.file_name().unwrap_or_default().to_string_lossy());
    let folder = plan.folder()?;
    let place = Place::new(folder.path())?;
    Placement::leave()?;
    for _ in 0..sheet.rounds() {
        go_on()?;
        // Prerequisites missing in a guest are missing on this machine.
        let took = turn(&place, &source, files).map_err(|error| match error {
            Error::Interrupted => error,
            other => Error::Absent(other.to_string()),
        })?;
        for (phase, secs) in took {
            let (side, row) = phase.split_once('.').unwrap_or_default();
            let column = SIDES.iter().zip(&sheet.columns).find(|(name, _)| **name == side);
            if let Some((_, column)) = column.filter(|_| sheet.rows.iter().any(|known| known == row)) {
                report.add(row, "", column, Unit::Seconds, secs);
            }
        }
    }
    Ok(sheet.finish(report))
}

/// Returns the seconds of each row, named `SIDE.ROW`.
fn turn(Place { shared, beside }: &Place, source: &Path, files: usize) -> Result<Vec<(String, f64)>> {
    let memory = beside.join("memory");
    let (tombolo, _old) = (find(Program::Tombolo)?, fs::remove_file(&memory));
    let region = |separator: &str| format!("{},{separator}{MEMORY}", memory.display());
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
    phases_of(&mut command)
}

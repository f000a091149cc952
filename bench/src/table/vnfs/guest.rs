//! File systems in one guest: an ext4 disk of its own, and mounts of one host directory, by the guest
//! kernel's NFS client, over shared memory, and by virtio-fs. `bench/peers/vm/job` performs the work in the
//! guest.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Mail;
use crate::error::{Doing, Error, Result};
use crate::files::Place;
use crate::measure::{Placement, go_on};
use crate::peer::{AtSocket, Nfs, Server, TOMBOLO, find, in_checkout, this_program};
use crate::report::{Report, Unit};
use crate::sheet::{Named, Row, Sheet};
use crate::table::guest::{make_disk, phases_of};

/// File system in the guest, as a column of a sheet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mounted {
    name: String,
    /// Name of the file system in the guest's job, and in `--column`.
    side: String,
}

/// Sides by a virtio-fs server of their own, named after its coherence policy.
const VIRTIO_FS: [&str; 2] = ["always", "strict"];
/// The side by the guest kernel's NFS client to nfs-ganesha.
const BY_GANESHA: &str = "ganesha";
const PORT: u16 = 2049;
const GANESHA_PORTS: [u16; 2] = [2050, 2051];
const MEMORY: &str = "64M";
const LIFE_SECS: &str = "7200";
/// Shell command that enables loopback in a new network namespace, then runs its arguments.
const ALONE: &str = "ip link set lo up && exec \"$@\"";
/// Row with the sum of all phases.
const IN_ALL: &str = "in all";

/// Kind of guest, as `tests/guests/run` names it.
#[derive(Clone, Copy)]
enum Kind {
    Uml,
    Qemu,
}

/// Job of [`mail`] in the guest.
const POSTMARK: &str = "postmark";

/// Duration of [`calls`] on each file system.
const CALLS_SECS: &str = "15";
const QUICK_CALLS_SECS: &str = "1";

/// Measures Postmark's job with each row's sizes and ratio of reads, under User Mode Linux.
pub fn postmark(sheet: &mut Sheet<'_, Row<Mail>, Mounted>, report: &mut Report) -> Result<()> {
    mail(Kind::Uml, sheet, report)
}

/// Measures Postmark's job under QEMU's emulation; not in a quick run, which would mostly boot.
pub fn qemu(sheet: &mut Sheet<'_, Row<Mail>, Mounted>, report: &mut Report) -> Result<()> {
    if sheet.plan.quick {
        return Err(Error::Absent("without --quick: a guest of QEMU boots for half a minute".to_owned()));
    }
    mail(Kind::Qemu, sheet, report)
}

fn mail(kind: Kind, sheet: &mut Sheet<'_, Row<Mail>, Mounted>, report: &mut Report) -> Result<()> {
    let files = sheet.plan.files.unwrap_or(sheet.number("files"));
    sheet.set("files", &files);
    let group = |Mail { bytes_max, reads }: &Mail| format!("{bytes_max}:{reads}");
    let mut words = vec![POSTMARK.to_owned(), files.to_string()];
    words.extend(sheet.rows.iter().map(|row| group(&row.work)));
    let rows: Vec<_> = sheet.rows.iter().map(|row| (group(&row.work), row.name.clone())).collect();
    rounds((kind, Unit::Seconds), sheet, report, &words, &rows)
}

/// Measures single system calls while C files are compiled on the same file system.
pub fn calls(sheet: &mut Sheet<'_, String, Mounted>, report: &mut Report) -> Result<()> {
    let source = in_checkout(".cache/sources/lua.tar.gz")?;
    let secs = if sheet.plan.quick { QUICK_CALLS_SECS } else { CALLS_SECS };
    sheet.set("secs", &secs);
    let rows: Vec<_> = sheet.rows.iter().map(|row| (row.replace(", ", "-"), row.clone())).collect();
    let words = ["calls".to_owned(), source.display().to_string(), secs.to_owned()];
    rounds((Kind::Uml, Unit::Nanoseconds), sheet, report, &words, &rows)
}

/// Measures an unpacked source tree: searched, copied, listed and removed.
pub fn tree(sheet: &mut Sheet<'_, String, Mounted>, report: &mut Report) -> Result<()> {
    steps("tree", sheet, report)
}

/// Measures a project unpacked, configured, built and removed.
pub fn build(sheet: &mut Sheet<'_, String, Mounted>, report: &mut Report) -> Result<()> {
    steps("build", sheet, report)
}

/// Measures a job whose phases are named like the rows, on a project's tarball.
fn steps(job: &str, sheet: &mut Sheet<'_, String, Mounted>, report: &mut Report) -> Result<()> {
    let tarball = |project| in_checkout(format!(".cache/sources/{project}.tar.gz"));
    let source = tarball(if sheet.plan.quick { "lua" } else { "httpd" }).or_else(|_| tarball("lua"))?;
    sheet.set("source", &source.file_name().unwrap_or_default().to_string_lossy());
    let rows: Vec<_> = sheet.rows.iter().map(|row| (row.clone(), row.clone())).collect();
    rounds((Kind::Uml, Unit::Seconds), sheet, report, &[job.to_owned(), source.display().to_string()], &rows)
}

/// Runs a job in a new guest in each round, and reports its phases: `rows` are names of phases and rows.
fn rounds<R: Named + DeserializeOwned>(
    (kind, unit): (Kind, Unit),
    sheet: &mut Sheet<'_, R, Mounted>,
    report: &mut Report,
    job: &[String],
    rows: &[(String, String)],
) -> Result<()> {
    let plan = sheet.plan;
    let placement = plan.place.first().copied().unwrap_or(Placement::Unpinned);
    sheet.set("placement", &placement.label());
    let place = Place::within(&plan.within)?;
    let mut columns = plan.columns(&sheet.columns, |Mounted { side, .. }| side.clone())?;
    // A quick run shows once that each side can be mounted.
    if plan.quick && job[0] != POSTMARK {
        columns.retain(|column| column.side == "push");
    }
    let sides: Vec<_> = columns.iter().map(|column| column.side.as_str()).collect();
    for _ in 0..sheet.rounds() {
        go_on()?;
        Placement::leave()?;
        // A guest that fails is taken for one that lacks a prerequisite: the table is skipped.
        let took = turn(kind, &place, placement, &sides, job).map_err(|error| match error {
            Error::Interrupted => error,
            other => Error::Absent(other.to_string()),
        })?;
        for Mounted { name: column, side } in &columns {
            let phases = took.iter().filter_map(|(phase, secs)| Some((phase.split_once('.')?, *secs)));
            let of_side = phases.filter(|((of, _), _)| of == side).map(|((_, phase), secs)| (phase, secs));
            let of_side: Vec<_> = of_side.collect();
            for (phase, row) in rows {
                let secs = match of_side.iter().find(|(name, _)| name == phase) {
                    Some((_, secs)) => *secs,
                    None if phase == IN_ALL => of_side.iter().map(|(_, secs)| secs).sum(),
                    None => continue,
                };
                let scale = if unit == Unit::Nanoseconds { 1e9 } else { 1.0 };
                report.add(row, "", column, unit, secs * scale);
            }
        }
    }
    Ok(())
}

/// Boots a guest that performs the job once on each side; returns the seconds of each phase, named
/// `SIDE.PHASE`.
fn turn(
    kind: Kind,
    place: &Place,
    placement: Placement,
    sides: &[&str],
    job: &[String],
) -> Result<Vec<(String, f64)>> {
    let [memory, bell, files_at, image, disk_at]: [PathBuf; 5] =
        ["memory", "bell", "virtiofs.sock", "image", "disk.sock"].map(|name| place.beside(name));
    let (shared, tombolo) = (place.shared(), find(TOMBOLO)?);
    for old in [&memory, &image] {
        let _absent = fs::remove_file(old);
    }
    make_disk(&image)?;
    let disk = AtSocket::virtio_blk(TOMBOLO, &image, &disk_at, false)?;
    let region = |separator: &str| format!("{},{separator}{MEMORY}", memory.display());
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", ALONE, "sh"]).arg(&tombolo).arg("serve").arg(&shared);
    command.arg("--host-watch").arg("--shm-file").arg(format!("{},bell={}", region("size="), bell.display()));
    command.arg("--virtiofs").arg(&files_at);
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let server = Nfs::by_command(command, address, &shared, place.folder())?;
    let network = format!("/proc/{}/ns/net", server.server.id());
    let mut others = Vec::new();
    let mut options: Vec<OsString> = Vec::new();
    for side in VIRTIO_FS.iter().filter(|side| sides.contains(side)) {
        let other = AtSocket::tagged((TOMBOLO, &[]), &shared, &place.beside(side), side, side)?;
        options.extend(["--virtiofs".into(), format!("{},{side}", other.place.display()).into()]);
        others.push(other.server);
    }
    let mut ganesha = None;
    if sides.contains(&BY_GANESHA) {
        // The guest mounts an export at a directory of its last component.
        let export = shared.join(BY_GANESHA);
        fs::create_dir_all(&export).doing_to("make", &export)?;
        let [nfs, mount] = GANESHA_PORTS;
        let other = ganesha.insert(Nfs::ganesha_in(&network, &export, place.folder(), (nfs, mount))?);
        options.extend(["--nfs".into(), format!("{nfs}{},mountport={mount}", other.export).into()]);
    }
    // The guest inherits this thread's core.
    let ids = others.iter().chain(ganesha.as_ref().map(|it| &it.server)).map(Server::id);
    placement.take(&ids.chain([server.server.id(), disk.server.id()]).collect::<Vec<_>>())?;
    let name = fs::read_link(&network).doing_to("look at", Path::new(&network))?;
    let run = in_checkout("tests/guests/run")?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={network}")).arg("--").arg(&run);
    command.env("TOMBOLO_NETWORK", name).env("TOMBOLO_STATIC", &tombolo);
    match kind {
        Kind::Uml => command.arg("uml"),
        Kind::Qemu => command.args(["qemu", "--module", "ext4"]),
    };
    command.args(["--mem", "512M", "--timeout", LIFE_SECS]);
    command.arg("--nfs").arg(format!("{PORT}{}", server.export));
    command.arg("--shm").arg(region("")).arg("--bell").arg(&bell).arg("--tombolo");
    command.arg("--virtiofs").arg(&files_at).arg("--blk").arg(&disk_at).args(options);
    command.arg("--add").arg(this_program()?);
    command.arg(in_checkout("bench/peers/vm/job")?).args(["mounts", &sides.join(" ")]).args(job);
    phases_of(&mut command)
}

//! Two parts about one file: `warm`: a completely cached file through the proxy's front ends, compared with
//! the same front ends on the directory itself. `tls`: a mount with and without TLS, over the WAN link, a LAN
//! and the loopback.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Deserialize;
use tempfile::TempDir;
use tombolo_wan::{Profile, Side as End, Wan};

use super::FILE;
use super::site::{Column, READ_ONLY, cached, drop_caches, line, mounted, proxy_of};
use crate::drive::Direction;
use crate::error::{Doing, Result};
use crate::files::{PIECE_BYTES, Place, Tree, random_file, read_first};
use crate::measure::{Clock, Contest, CostMeter, Placement, Work, go_on};
use crate::nfs::Wait;
use crate::nfs::work::transfer;
use crate::peer::{Mount, Nfs, TOMBOLO, completed, find, free_port};
use crate::report::{Report, Unit};
use crate::sheet::{Row, Sheet, turns};

/// File equal to [`FILE`], since one is dropped from the page cache and the other is not.
const DROPPED_FILE: &str = "large.dropped";
const OUTSTANDING: u32 = 8;
/// Variants: state of the file's pages in the kernel at the begin of a pass.
const KEPT: &str = "pages kept";
const DROPPED: &str = "pages dropped";
/// Delay after a close, whose RELEASE reaches the server asynchronously: the next opening gets passthrough
/// only if no opening without it remains.
const CLOSE_PATIENCE: Duration = Duration::from_millis(200);

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Read {
    /// Through a mount, in pieces of 1 MiB, in order.
    Sequential,
    /// Through a mount, in pieces of 4 KiB, in random order.
    Random,
    /// By NFS READs of 1 MiB.
    Large,
    /// By NFS READs of 4 KiB.
    Small,
}

impl Read {
    fn piece_bytes(self) -> u32 {
        if matches!(self, Self::Sequential | Self::Large) { 1 << 20 } else { 4096 }
    }
}

/// Name of a column: the directory itself takes the place of its mount.
fn name(column: Column) -> &'static str {
    if column == Column::Dir { "the directory" } else { column.name() }
}

/// Measures a completely cached file through the proxy's front ends.
pub fn warm(sheet: &mut Sheet<'_, Row<Read>, Column>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let place = Place::within(&plan.disk)?;
    for name in [FILE, DROPPED_FILE] {
        random_file(&place.shared().join(name), Tree::LARGE_BYTES as u64)?;
    }
    // The origin receives no more requests, so no WAN link is needed.
    let origin = Nfs::tombolo(&place.shared(), place.folder())?;
    let columns = plan.columns(&sheet.columns, Column::id)?;
    let is_by_nfs = |row: &&Row<Read>| matches!(row.work, Read::Large | Read::Small);
    let (by_nfs, by_mounts): (Vec<_>, Vec<_>) = sheet.rows.iter().partition(is_by_nfs);
    let bed = Bed { contest: plan.timed(), columns, place: &place, origin: &origin };
    bed.read_mounts(report, &by_mounts)?;
    bed.read_servers(report, &by_nfs)?;
    Ok(())
}

struct Bed<'a> {
    contest: Contest,
    columns: Vec<Column>,
    place: &'a Place,
    origin: &'a Nfs,
}

impl Bed<'_> {
    fn read_mounts(&self, report: &mut Report, rows: &[&Row<Read>]) -> Result<()> {
        let program = || find(TOMBOLO).map(Command::new);
        let dir = format!("dir:{}", self.place.shared().display());
        let (url, at) = (self.origin.url(), |name| self.place.beside(name));
        let sides = [
            (Column::Dir, mounted(program()?, &dir, &at("bare"))?),
            (Column::Exclusive, cached(program()?, &url, "exclusive", &[], &at("proxied"))?),
            (Column::ReadOnly, cached(program()?, &url, "exclusive", &READ_ONLY, &at("read-only"))?),
        ];
        for Row { name: row, work: read } in rows {
            let mut entrants = Vec::new();
            for (column, side) in sides.iter().filter(|(column, _)| self.columns.contains(column)) {
                for (variant, file) in [(KEPT, FILE), (DROPPED, DROPPED_FILE)] {
                    let work = reads(&side.root.join(file), *read, variant == DROPPED);
                    let cell = (name(*column), variant);
                    report.enter(&mut entrants, row, cell, work, &side.servers(), Placement::Free);
                }
            }
            let proxies = sides.iter().filter(|(column, _)| *column != Column::Dir);
            let before: Vec<_> = proxies.map(|(column, side)| (column, side, side.requests())).collect();
            report.contest(row, &self.contest, entrants);
            for (column, side, before) in before {
                let found = before.and_then(|before| Ok(side.requests()?.since(&before).text()));
                let found = found.unwrap_or_else(|error| error.to_string());
                let what = format!("{row}: requests that reached the {}", column.name());
                report.target(&what, "counted", found, None);
            }
        }
        Ok(())
    }

    fn read_servers(&self, report: &mut Report, rows: &[&Row<Read>]) -> Result<()> {
        let cache = crate::table::folder(self.place.folder())?;
        let command = Command::new(find(TOMBOLO)?);
        let command = proxy_of(command, &self.origin.url(), cache.path(), "exclusive");
        let proxy =
            Nfs::by_command(command, free_port()?, &self.place.shared(), self.place.folder())?.ready()?;
        for Row { name: row, work: read } in rows {
            let (mut entrants, piece_bytes) = (Vec::new(), read.piece_bytes());
            let servers = [(Column::Dir, self.origin), (Column::Exclusive, &proxy)];
            for (column, server) in servers.into_iter().filter(|server| self.columns.contains(&server.0)) {
                let work = transfer(server, FILE, Wait::Sleep, Direction::Read, piece_bytes, OUTSTANDING);
                let work = work.and_then(|(mut work, _)| {
                    // Fetches all of the file into the proxy's cache.
                    work.run((Tree::LARGE_BYTES / piece_bytes as usize) as u64, &mut Clock::new())?;
                    Ok(work)
                });
                report.enter(
                    &mut entrants,
                    row,
                    (name(column), ""),
                    work,
                    &[server.server.id()],
                    Placement::Free,
                );
            }
            report.contest(row, &self.contest, entrants);
        }
        Ok(())
    }
}

/// Reads the pieces of a file repeatedly, each once per pass.
fn reads(path: &Path, read: Read, drops: bool) -> Result<Work<'static>> {
    let piece_bytes = read.piece_bytes();
    // Fetches all of the file into the proxy's cache.
    read_first(path, Tree::LARGE_BYTES as u64, &mut vec![0; PIECE_BYTES])?;
    thread::sleep(CLOSE_PATIENCE);
    let (file, path) = (File::open(path).doing_to("open", path)?, path.to_owned());
    let mut pieces: Vec<u64> = (0..Tree::LARGE_BYTES as u64 / u64::from(piece_bytes)).collect();
    if read == Read::Random {
        Rng::with_seed(1).shuffle(&mut pieces);
    }
    let mut buffer = vec![0; piece_bytes as usize];
    let mut pass = move |clock: &mut Clock, count: usize| {
        if drops {
            forget(&path)?;
        }
        clock.start();
        let pieces = pieces.get(..count).unwrap_or(&pieces);
        for piece in pieces {
            file.read_exact_at(&mut buffer, piece * u64::from(piece_bytes)).doing_to("read", &path)?;
        }
        clock.lap_of(pieces.len() as u64);
        Ok(pieces.len())
    };
    pass(&mut Clock::new(), usize::MAX)?;
    let run = move |count, clock: &mut Clock| {
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        while left > 0 {
            left -= pass(clock, left)?;
        }
        Ok(())
    };
    Ok(Work::new(run).bytes(u64::from(piece_bytes)))
}

/// Drops the pages of a file from the page cache.
fn forget(path: &Path) -> Result<()> {
    let mut from = std::ffi::OsString::from("if=");
    from.push(path);
    let mut command = Command::new("dd");
    command.arg(from).args(["of=/dev/null", "iflag=nocache", "count=0", "status=none"]);
    command.status().doing(|| "start dd".to_owned()).map(drop)
}

const COLUMNS: [&str; 2] = ["plain", "TLS 1.3, both sides with certificates"];
/// Ports without and with TLS, in the server's own network.
const PORTS: [u16; 2] = [2049, 2050];

/// Network between client and server in a measurement of TLS.
struct Far {
    name: &'static str,
    /// WAN or LAN link; `None` for the loopback.
    line: Option<Wan>,
    /// Number of pieces of [`PIECE_BYTES`] to read.
    pieces: usize,
}

/// Measures a mount with and without TLS.
pub fn tls(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let place = Place::within(&plan.disk)?;
    let (pieces, pieces_near) = (sheet.number("pieces"), sheet.number("pieces_near"));
    random_file(&place.shared().join(FILE), (pieces_near * PIECE_BYTES) as u64)?;
    let wan = plan.profile.unwrap_or(if plan.quick { Profile::LAN } else { Profile::WAN });
    sheet.set("line", &wan.name);
    let places = [
        Far { name: "the line", line: Some(line(&wan)?), pieces },
        Far { name: "a LAN", line: Some(line(&Profile::LAN)?), pieces: pieces_near },
        Far { name: "this host", line: None, pieces: pieces_near },
    ];
    let units = [Unit::Nanoseconds, Unit::BytesPerSecond, Unit::NanosecondsPerMegabyte];
    for far in &places {
        let site = TlsSite::new(far, &place)?;
        for is_tls in turns(sheet.rounds(), &[false, true]) {
            go_on()?;
            let values = site.turn(*is_tls, far, sheet.number("looks"))?;
            for ((row, unit), value) in sheet.rows.iter().zip(units).zip(values) {
                report.add(row, far.name, COLUMNS[usize::from(*is_tls)], unit, value);
            }
        }
    }
    Ok(())
}

/// A server at the far end with both ports, and its certificates.
struct TlsSite<'a> {
    server: Nfs,
    near: Option<&'a End>,
    address: Ipv4Addr,
    /// Ports without and with TLS.
    ports: [u16; 2],
    folder: TempDir,
}

impl<'a> TlsSite<'a> {
    fn new(place: &'a Far, served: &Place) -> Result<Self> {
        let (folder, shared) = (crate::table::folder(served.folder())?, served.shared());
        let far = place.line.as_ref().map(Wan::far);
        let address = far.map_or(Ipv4Addr::LOCALHOST, End::address);
        let ports = if far.is_some() { PORTS } else { [free_port()?.port(), free_port()?.port()] };
        let at = |name: &str| folder.path().join(name);
        keys(&["ca"], &at("ca"))?;
        for (name, host) in [("server", Some(address.to_string())), ("client", None)] {
            let out = at(name).display().to_string();
            let host = host.map(|host| format!("--host={host}"));
            let words: Vec<&str> =
                ["issue", name, "--out", &out].into_iter().chain(host.as_deref()).collect();
            keys(&words, &at("ca"))?;
        }
        let mut command = command(far)?;
        command.arg("serve").arg(&shared).args(["--nfs-no-udp", "--tls-dir"]).arg(at("server"));
        command.args(["--nfs-tls", &SocketAddr::from((address, ports[1])).to_string()]);
        let plain = SocketAddr::from((address, ports[0]));
        let server = Nfs::by_command(command, plain, &shared, folder.path())?;
        Ok(Self { server, near: place.line.as_ref().map(Wan::near), address, ports, folder })
    }

    /// Returns the time of a request in nanoseconds, the rate in bytes per second, and the processor time in
    /// nanoseconds per million bytes.
    fn turn(&self, is_tls: bool, place: &Far, looks: usize) -> Result<[f64; 3]> {
        let point = self.folder.path().join(if is_tls { "secure" } else { "open" });
        let client = self.folder.path().join("client");
        let (port, secured) = match is_tls {
            true => (self.ports[1], format!("&xprtsec=mtls&tlsdir={}", client.display())),
            false => (self.ports[0], String::new()),
        };
        let url = format!("nfs://{}:{port}{}?noac{secured}", self.address, self.server.export);
        let mut command = command(self.near)?;
        command.args(["mount", "-f", &url]).arg(&point);
        let mount = Mount::by_command(command, &point)?;
        let path: PathBuf = point.join(FILE);
        let look = || fs::metadata(&path).doing_to("stat", &path);
        look()?;
        let begun = Instant::now();
        for _ in 0..looks {
            look()?;
        }
        let latency_ns = begun.elapsed().as_nanos() as f64 / looks as f64;
        drop_caches()?;
        let bytes = (place.pieces * PIECE_BYTES) as u64;
        let meter = CostMeter::new(&[self.server.server.id(), mount.server.id()], None);
        let (before, begun) = (meter.now(), Instant::now());
        read_first(&path, bytes, &mut vec![0; PIECE_BYTES])?;
        let (seconds, cost) = (begun.elapsed().as_secs_f64(), meter.now() - before);
        Ok([latency_ns, bytes as f64 / seconds, cost.server_cpu_ns / (bytes as f64 / 1e6)])
    }
}

fn command(end: Option<&End>) -> Result<Command> {
    let program = find(TOMBOLO)?;
    Ok(end.map_or_else(|| Command::new(&program), |end| end.command(&program)))
}

fn keys(words: &[&str], authority: &Path) -> Result<()> {
    let mut command = command(None)?;
    command.arg("keys").args(words).arg("--ca").arg(authority);
    completed("tombolo keys", &mut command).map(drop)
}

//! `tls`: a mount with and without TLS, over the WAN link, a LAN and the loopback.

use std::fs::{self, File};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use tempfile::TempDir;
use tombolo_wan::{Profile, Side as End, Wan};

use super::Plan;
use super::site::{drop_caches, folder, line};
use super::stream::fill;
use super::twice::rounds;
use crate::args::GvfsArgs;
use crate::error::{Doing, Error, Result};
use crate::measure::{CostMeter, go_on};
use crate::peer::{Mount, Program, Server, find, free_port, is_listening_in};
use crate::report::{Figure, Report, Unit};

const FILE: &str = "large";
const PIECE_BYTES: u64 = 1 << 20;
/// Size of the file: 64 MiB over the WAN link, four times as much on faster ones.
const PIECES: usize = 64;
const QUICK_PIECES: usize = 4;
/// Number of attribute requests.
const LOOKS: usize = 400;
const QUICK_LOOKS: usize = 20;
const ROUNDS: usize = 5;
const LATENCY: &str = "GETATTR, one at a time";
const BULK: &str = "READ, in order";
const CPU: &str = "READ, in order: processor time of client and server";
const PLAIN: &str = "plain";
const TLS: &str = "TLS 1.3, both sides with certificates";
/// Ports without and with TLS, in the server's own network.
const PORTS: [u16; 2] = [2049, 2050];
/// Targets: at most 1.1 times the time over the WAN link (as times better), and at least 0.9 of the rate on
/// the LAN.
const LATENCY_TARGET: f64 = 0.91;
const BULK_TARGET: f64 = 0.9;

/// Network of a measurement.
struct Place {
    name: &'static str,
    line: Option<Wan>,
    pieces: usize,
    latency_target: Option<f64>,
    bulk_target: Option<f64>,
}

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let mut report = plan.report("gvfs-tls", "NFS with and without TLS");
    let (folder, shared) = folder(wanted)?;
    let pieces = plan.scaled(PIECES, QUICK_PIECES);
    fill(&shared.join(FILE), 4 * pieces)?;
    let far = wanted.profile.unwrap_or(if plan.quick { Profile::LAN } else { Profile::WAN });
    let place = |name, line, pieces, latency_target, bulk_target| Place {
        name,
        line,
        pieces,
        latency_target,
        bulk_target,
    };
    let places = [
        place("the line", Some(line(&far)?), pieces, Some(LATENCY_TARGET), None),
        place("a LAN", Some(line(&Profile::LAN)?), 4 * pieces, None, Some(BULK_TARGET)),
        place("this host", None, 4 * pieces, None, None),
    ];
    let (rounds, looks) = (rounds(plan, ROUNDS), plan.scaled(LOOKS, QUICK_LOOKS));
    for place in &places {
        measured(&mut report, place, &shared, folder.path(), (rounds, looks))?;
    }
    report.condition(format!(
        "the line: `{}`; the LAN: 1 Gbit/s and 0.3 ms. `{LATENCY}`: the mean of {looks} stat(2) through `tombolo mount -o noac`. `{BULK}`: read(2) of 1 MiB at a \
         time after the kernel's caches were dropped, {pieces} MiB over the line and {} MiB elsewhere. {rounds} rounds, in each of which either has a mount of \
         its own, in turn",
        far.name,
        4 * pieces
    ));
    Ok(report)
}

fn measured(
    report: &mut Report,
    place: &Place,
    shared: &Path,
    beside: &Path,
    (rounds, looks): (usize, usize),
) -> Result<()> {
    let site = TlsSite::new(place, shared, beside)?;
    let mut found = [const { [const { Vec::new() }; 3] }; 2];
    for round in 0..rounds {
        for turn in 0..2 {
            go_on()?;
            let is_tls = (round + turn) % 2 == 1;
            let times = site.turn(is_tls, place, looks)?;
            let kept = &mut found[usize::from(is_tls)];
            kept.iter_mut().zip(times).for_each(|(rounds, value)| rounds.push(value));
        }
    }
    let units = [Unit::Nanoseconds, Unit::BytesPerSecond, Unit::NanosecondsPerMegabyte];
    for (column, kept) in [PLAIN, TLS].into_iter().zip(found) {
        for ((row, unit), values) in [LATENCY, BULK, CPU].into_iter().zip(units).zip(kept) {
            report.figures.extend(Figure::of_rounds(row, place.name, column, unit, values));
        }
    }
    for (row, target) in [(LATENCY, place.latency_target), (BULK, place.bulk_target), (CPU, None)] {
        report.compare_cells(row, (TLS, place.name), (PLAIN, place.name), target);
    }
    Ok(())
}

/// A server at the far end with both ports, and its certificates.
struct TlsSite<'a> {
    server: Server,
    near: Option<&'a End>,
    address: Ipv4Addr,
    /// Ports without and with TLS.
    ports: [u16; 2],
    folder: TempDir,
    name: String,
}

impl<'a> TlsSite<'a> {
    fn new(place: &'a Place, shared: &Path, beside: &Path) -> Result<Self> {
        let folder = crate::table::folder(beside)?;
        let far = place.line.as_ref().map(Wan::far);
        let address = far.map_or(Ipv4Addr::LOCALHOST, End::address);
        let ports = match far {
            Some(_) => PORTS,
            None => [free_port()?.port(), free_port()?.port()],
        };
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
        command.arg("serve").arg(shared).args(["--squash", "none", "--nfs-no-udp"]);
        command.args(["--nfs", &SocketAddr::from((address, ports[0])).to_string()]);
        command
            .args(["--nfs-tls", &SocketAddr::from((address, ports[1])).to_string(), "--tls-dir"])
            .arg(at("server"));
        command.arg("--control").arg(at("control")).env("XDG_STATE_HOME", folder.path());
        let mut server = Server::start(Program::Tombolo.name(), &mut command)?;
        let network = server.id().to_string();
        server.wait_until("answer", || ports.iter().all(|port| is_listening_in(&network, *port)))?;
        let name = shared.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { server, near: place.line.as_ref().map(Wan::near), address, ports, folder, name })
    }

    /// Returns the time of a request in nanoseconds, the rate in bytes per second, and the processor time in
    /// nanoseconds per million bytes.
    fn turn(&self, is_tls: bool, place: &Place, looks: usize) -> Result<[f64; 3]> {
        let point = self.folder.path().join(if is_tls { "secure" } else { "open" });
        let client = self.folder.path().join("client");
        let (port, secured) = match is_tls {
            true => (self.ports[1], format!("&xprtsec=mtls&tlsdir={}", client.display())),
            false => (self.ports[0], String::new()),
        };
        let url = format!("nfs://{}:{port}/{}?noac{secured}", self.address, self.name);
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
        let bytes = place.pieces as u64 * PIECE_BYTES;
        let meter = CostMeter::new(&[self.server.id(), mount.server()], None);
        let (before, begun) = (meter.now(), Instant::now());
        read(&path, bytes)?;
        let (seconds, cost) = (begun.elapsed().as_secs_f64(), meter.now() - before);
        Ok([latency_ns, bytes as f64 / seconds, cost.server_cpu_ns / (bytes as f64 / 1e6)])
    }
}

/// Reads `bytes` of a file, which may be longer.
fn read(path: &Path, bytes: u64) -> Result<()> {
    let (mut file, mut buffer) = (File::open(path).doing_to("open", path)?, vec![0; PIECE_BYTES as usize]);
    for _ in 0..bytes / PIECE_BYTES {
        go_on()?;
        file.read_exact(&mut buffer).doing_to("read", path)?;
    }
    Ok(())
}

fn command(end: Option<&End>) -> Result<Command> {
    let program = find(Program::Tombolo)?;
    Ok(end.map_or_else(|| Command::new(&program), |end| end.command(&program)))
}

fn keys(words: &[&str], authority: &Path) -> Result<()> {
    let mut command = command(None)?;
    command.arg("keys").args(words).arg("--ca").arg(authority);
    let ran = command.output().doing(|| "run tombolo keys".to_owned())?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(Error::Wrong {
            what: "tombolo keys".to_owned(),
            answer: String::from_utf8_lossy(&ran.stderr).into_owned(),
        }),
    }
}

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
use crate::error::{Doing, Result};
use crate::measure::{CostMeter, go_on};
use crate::peer::{Mount, Program, Server, completed, find, free_port};
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet, turns};

const FILE: &str = "large";
const PIECE_BYTES: u64 = 1 << 20;
const COLUMNS: [&str; 2] = ["plain", "TLS 1.3, both sides with certificates"];
/// Ports without and with TLS, in the server's own network.
const PORTS: [u16; 2] = [2049, 2050];

/// Network of a measurement.
struct Place {
    name: &'static str,
    line: Option<Wan>,
    pieces: usize,
}

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_> = sheet!(plan, "gvfs-tls")?;
    let mut report = sheet.report();
    let (folder, shared) = folder(plan)?;
    let (pieces, pieces_near) = (sheet.number("pieces"), sheet.number("pieces_near"));
    fill(&shared.join(FILE), pieces_near)?;
    let far = plan.profile.unwrap_or(if plan.quick { Profile::LAN } else { Profile::WAN });
    sheet.set("line", &far.name);
    let places = [
        Place { name: "the line", line: Some(line(&far)?), pieces },
        Place { name: "a LAN", line: Some(line(&Profile::LAN)?), pieces: pieces_near },
        Place { name: "this host", line: None, pieces: pieces_near },
    ];
    let units = [Unit::Nanoseconds, Unit::BytesPerSecond, Unit::NanosecondsPerMegabyte];
    for place in &places {
        let site = TlsSite::new(place, &shared, folder.path())?;
        for is_tls in turns(sheet.rounds(), &[false, true]) {
            go_on()?;
            let values = site.turn(*is_tls, place, sheet.number("looks"))?;
            for ((row, unit), value) in sheet.rows.iter().zip(units).zip(values) {
                report.add(row, place.name, COLUMNS[usize::from(*is_tls)], unit, value);
            }
        }
    }
    Ok(sheet.finish(report))
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
        command.arg("serve").arg(shared).args(["--squash", "none", "--nfs-no-udp"]);
        command.args(["--nfs", &SocketAddr::from((address, ports[0])).to_string()]);
        command
            .args(["--nfs-tls", &SocketAddr::from((address, ports[1])).to_string(), "--tls-dir"])
            .arg(at("server"));
        command.arg("--control").arg(at("control")).env("XDG_STATE_HOME", folder.path());
        let server = Server::listening(Program::Tombolo.name(), &mut command, &ports)?;
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
    completed("tombolo keys", &mut command).map(drop)
}

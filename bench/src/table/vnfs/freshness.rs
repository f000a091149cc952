//! `freshness`: time from the completion of a change until notified viewers see it: a mount with change
//! notifications, and the library.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use libtombolo::CachedTree;
use serde::Deserialize;
use tombolo_core::fs::NodeId;

use super::Plan;
use super::client::{Client, Writer, cached};
use crate::error::{Doing, Error, OrWrong, Result};
use crate::measure::{Clock, go_on};
use crate::peer::{Mount, Shm};
use crate::report::{Report, Unit};
use crate::sheet::{Row, Sheet, sheet};

const MOUNT: &str = "stat on a push mount";
const LIBRARY: &str = "CachedTree";

/// Interval between changes, varied to avoid a rhythm.
const REST: Duration = Duration::from_micros(200);
const STEP: Duration = Duration::from_micros(37);
/// Time limit for a change to become visible.
const PATIENCE: Duration = Duration::from_secs(5);
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

const FOLDER: &str = "d";
const FILE: &str = "d/file";

/// Author of a change, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Change {
    ClientChmod,
    ClientAppend,
    HostChmod,
    HostAppend,
}

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_, Row<Change>> = sheet!(plan, "vnfs-freshness")?;
    let mut report = sheet.report();
    let folder = plan.folder()?;
    let shared = folder.path().join("shared");
    fs::create_dir_all(shared.join(FOLDER)).doing_to("make", &shared)?;
    fs::write(shared.join(FILE), "").doing_to("make", &shared)?;
    let server = Shm::tombolo(&shared, &folder.path().join("link"), &["--host-watch"])?;
    let client = Client::linked(&server)?;
    let mut changer = Changer::new(&client, &shared)?;
    let mount = Mount::with(&server.url(), "coherence=push", &folder.path().join("mount"));
    let cached = cached(&server)?;
    let mut viewers: Vec<(&str, Viewer<'_>)> = Vec::new();
    match &mount {
        Ok(mount) => viewers.push((MOUNT, by_stat(mount.point().join(FILE)))),
        Err(error) => report.absent(format!("{MOUNT}: {error}")),
    }
    viewers.push((LIBRARY, by_library(&cached)));
    let cells =
        sheet.rows.iter().flat_map(|row| viewers.iter().map(move |viewer| (row, viewer, Clock::new())));
    let mut cells: Vec<_> = cells.collect();
    for number in 0..sheet.number("changes") {
        for (row, (_, look), clock) in &mut cells {
            go_on()?;
            // It has the state before.
            see(look, changer.state)?;
            thread::sleep(REST + STEP * (number % 5) as u32);
            let wanted = changer.change(row.work)?;
            clock.record(see(look, wanted)?, 1);
        }
    }
    for (row, (viewer, _), clock) in cells {
        for (variant, quantile) in QUANTILES {
            report.add(&row.name, variant, viewer, Unit::Nanoseconds, clock.quantile_ns(quantile));
        }
    }
    Ok(sheet.finish(report))
}

/// State of the file after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    mode: u32,
    bytes: u64,
}

/// Function that reads the state once.
type Viewer<'a> = Box<dyn Fn() -> Result<State> + 'a>;

fn by_stat(path: PathBuf) -> Viewer<'static> {
    Box::new(move || {
        let found = fs::metadata(&path).doing_to("look at", &path)?;
        Ok(State { mode: found.mode() & 0o7777, bytes: found.size() })
    })
}

fn by_library(cached: &CachedTree) -> Viewer<'_> {
    Box::new(|| {
        let found = cached.stat(FILE.as_bytes()).wait().or_wrong("stat")?;
        Ok(State { mode: found.mode.bits(), bytes: found.size })
    })
}

/// Author of both kinds of changes to one file, as client and as host process.
struct Changer<'a> {
    client: &'a Client,
    node: NodeId,
    writer: Writer<'a>,
    path: PathBuf,
    file: File,
    state: State,
}

impl<'a> Changer<'a> {
    fn new(client: &'a Client, shared: &Path) -> Result<Self> {
        let (node, writer) = (client.find(FILE.as_ref())?, client.writer(FILE.as_ref())?);
        let path = shared.join(FILE);
        let file = OpenOptions::new().write(true).open(&path).doing_to("open", &path)?;
        let state = State { mode: 0o600, bytes: 0 };
        client.chmod(node, state.mode)?;
        Ok(Self { client, node, writer, path, file, state })
    }

    /// Changes the file; returns the new state.
    fn change(&mut self, change: Change) -> Result<State> {
        match change {
            Change::ClientChmod | Change::HostChmod => self.state.mode ^= 0o044,
            Change::ClientAppend | Change::HostAppend => self.state.bytes += 1,
        }
        let (State { mode, bytes }, path) = (self.state, &self.path);
        match change {
            Change::ClientChmod => self.client.chmod(self.node, mode)?,
            Change::ClientAppend => self.writer.write(bytes - 1)?,
            Change::HostChmod => {
                fs::set_permissions(path, Permissions::from_mode(mode)).doing_to("change", path)?;
            }
            Change::HostAppend => self.file.write_all_at(b"h", bytes - 1).doing_to("write", path)?,
        }
        Ok(self.state)
    }
}

/// Returns the time until that state is visible.
fn see(look: &Viewer<'_>, wanted: State) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        let found = look()?;
        let took = begun.elapsed();
        if found == wanted {
            return Ok(took);
        }
        if took > PATIENCE {
            let answer = format!("{found:?} instead of {wanted:?} after {} s", PATIENCE.as_secs());
            return Err(Error::Wrong { what: "look".to_owned(), answer });
        }
    }
}

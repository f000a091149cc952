//! `freshness`: time from the completion of a change until notified viewers see it: a mount with change
//! notifications, and the library.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use libtombolo::CachedTree;
use tombolo_core::fs::NodeId;

use super::Plan;
use super::client::{Client, Writer, cached};
use crate::args::VnfsArgs;
use crate::error::{Doing, Error, Result, wrong};
use crate::measure::{Clock, go_on};
use crate::peer::{Mount, Shm};
use crate::report::{Figure, Report, Unit};

const MOUNT: &str = "stat on a push mount";
const LIBRARY: &str = "CachedTree";

const CHANGES: usize = 2_000;
const QUICK_CHANGES: usize = 20;
/// Interval between changes, varied to avoid a rhythm.
const REST: Duration = Duration::from_micros(200);
const STEP: Duration = Duration::from_micros(37);
/// Time limit for a change to become visible.
const PATIENCE: Duration = Duration::from_secs(5);
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

const FOLDER: &str = "d";
const FILE: &str = "d/file";

/// Author of a change, with a target for the 99th percentile until it is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Client,
    Host,
}

impl By {
    const ALL: [By; 2] = [By::Client, By::Host];

    fn name(self) -> &'static str {
        match self {
            By::Client => "another client",
            By::Host => "a process of the host",
        }
    }

    fn target_ms(self) -> f64 {
        match self {
            By::Client => 1.0,
            By::Host => 2.0,
        }
    }
}

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Change of the permission bits.
    Chmod,
    /// Append of one byte.
    Append,
}

impl Deed {
    const ALL: [Deed; 2] = [Deed::Chmod, Deed::Append];

    fn name(self) -> &'static str {
        match self {
            Deed::Chmod => "chmod",
            Deed::Append => "a byte appended",
        }
    }
}

pub fn run(plan: &Plan, _wanted: &VnfsArgs) -> Result<Report> {
    let title = "From the end of a change until it is seen by those that do not ask";
    let mut report = plan.report("vnfs-freshness", title);
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
    let changes = plan.scaled(CHANGES, QUICK_CHANGES);
    let taken = measure(&mut changer, &viewers, changes)?;
    tell(&mut report, &taken);
    report.condition(format!(
        "{changes} changes of each kind by each, in turns, 200 to 340 µs apart; from when the change was answered (the system call, or the request, has \
         returned) until a loop of looks in the same thread sees it. No thread is pinned"
    ));
    report.condition(format!(
        "one server with --host-watch; `{}`: a session of its own over a link; `{}`: this process, by system calls on the directory, which lies below {}",
        By::Client.name(),
        By::Host.name(),
        plan.within.display()
    ));
    Ok(report)
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
        let found = cached.stat(FILE.as_bytes()).wait().map_err(|error| wrong("stat", &error))?;
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
    fn change(&mut self, by: By, deed: Deed) -> Result<State> {
        match deed {
            Deed::Chmod => self.state.mode ^= 0o044,
            Deed::Append => self.state.bytes += 1,
        }
        let State { mode, bytes } = self.state;
        match (by, deed) {
            (By::Client, Deed::Chmod) => self.client.chmod(self.node, mode)?,
            (By::Client, Deed::Append) => self.writer.write(bytes - 1)?,
            (By::Host, Deed::Chmod) => {
                fs::set_permissions(&self.path, Permissions::from_mode(mode))
                    .doing_to("change", &self.path)?;
            }
            (By::Host, Deed::Append) => {
                self.file.write_all_at(b"h", bytes - 1).doing_to("write", &self.path)?;
            }
        }
        Ok(self.state)
    }
}

/// Times by author, change and viewer.
type Taken = Vec<((By, Deed, &'static str), Clock)>;

fn measure(
    changer: &mut Changer<'_>,
    viewers: &[(&'static str, Viewer<'_>)],
    changes: usize,
) -> Result<Taken> {
    let kinds = By::ALL.into_iter().flat_map(|by| Deed::ALL.map(|deed| (by, deed)));
    let mut taken: Taken = Vec::new();
    for (by, deed) in kinds {
        taken.extend(viewers.iter().map(|(viewer, _)| ((by, deed, *viewer), Clock::new())));
    }
    for number in 0..changes {
        for ((by, deed, viewer), clock) in &mut taken {
            go_on()?;
            let Some((_, look)) = viewers.iter().find(|(name, _)| name == viewer) else { continue };
            // It has the state before.
            see(look, changer.state)?;
            thread::sleep(REST + STEP * (number % 5) as u32);
            let wanted = changer.change(*by, *deed)?;
            clock.record(see(look, wanted)?, 1);
        }
    }
    Ok(taken)
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

fn tell(report: &mut Report, taken: &Taken) {
    for ((by, deed, viewer), clock) in taken {
        let row = format!("{}: {}", by.name(), deed.name());
        for (variant, quantile) in QUANTILES {
            let ns = clock.quantile_ns(quantile);
            report.figures.push(Figure::single(&row, variant, viewer, Unit::Nanoseconds, ns));
        }
    }
    for ((by, deed, viewer), clock) in taken {
        let what = format!("{}: {}, {viewer}: 99 of 100", by.name(), deed.name());
        let ns = clock.quantile_ns(0.99);
        let found = Unit::Nanoseconds.text(ns);
        report.target(&what, &format!("≤ {} ms", by.target_ms()), found, Some(ns <= by.target_ms() * 1e6));
    }
}

//! Three tables about change notifications ("notices"):
//!
//! - [`freshness`]: time from the completion of a change until a viewer sees it. Viewers are a mount with
//!   change notifications, and the library.
//! - [`price`]: cost of notices for the author of a change. Authors are a session of the same export in this
//!   process, and a process of the host by its own system calls.
//! - [`clients`]: memory of a server, and cost of a change, by the number of notified clients.

use std::fs::{self, File, OpenOptions, Permissions};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtombolo::CachedTree;
use serde::Deserialize;
use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::{File as OpenFile, NodeId, OpenFlags, Watchers};

use super::library::{cached, linked};
use crate::error::{Doing, Error, OrWrong, Result};
use crate::files::{Place, fill};
use crate::measure::{Clock, Contest, Entrant, Held, Placement, Work, go_on, mappings};
use crate::peer::{AtSocket, Mount};
use crate::report::{Report, Unit};
use crate::session::Session;
use crate::sheet::{Row, Sheet, turns};

const MOUNT: &str = "stat on a push mount";
const LIBRARY: &str = "CachedTree";

/// Interval between changes, so that all clients are notified of one before the next.
const REST: Duration = Duration::from_micros(200);
/// Unit by which [`freshness`] varies [`REST`], so that changes are not in step with periodic work.
const STEP: Duration = Duration::from_micros(37);
/// Time limit for a change to become visible, for the kernel to start or end a watch, and for clients to end.
const PATIENCE: Duration = Duration::from_secs(10);
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

const FILE: &str = "d/file";

/// Author of a change, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    ClientChmod,
    ClientAppend,
    HostChmod,
    HostAppend,
}

/// Measures the time from the completion of a change until notified viewers see it.
pub fn freshness(sheet: &mut Sheet<'_, Row<Change>>, report: &mut Report) -> Result<()> {
    let place = Place::within(&sheet.plan.within)?;
    let shared = place.shared();
    fill(&shared, [(FILE.into(), 0)].into_iter())?;
    let server = AtSocket::links(&shared, &place.beside("link"), &["--host-watch"])?;
    let client = linked(&server)?;
    let mut changer = Changer::new(&client, &shared)?;
    let mount = report.present(MOUNT, Mount::of_url(&server.url(), Some("push"), &place.beside("mount")));
    let cached = cached(&server)?;
    let mut viewers: Vec<(&str, Viewer<'_>)> = Vec::new();
    viewers.extend(mount.iter().map(|mount| (MOUNT, by_stat(mount.point.join(FILE)))));
    viewers.push((LIBRARY, by_library(&cached)));
    let cells =
        sheet.rows.iter().flat_map(|row| viewers.iter().map(move |viewer| (row, viewer, Clock::new())));
    let mut cells: Vec<_> = cells.collect();
    for number in 0..sheet.number("changes") {
        for (row, (_, look), clock) in &mut cells {
            go_on()?;
            // The viewer must first have seen the previous change.
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
    Ok(())
}

/// State of the file, by which a viewer recognizes a change.
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

/// Author of changes to one file, both as a client of the server and as a process of the host.
struct Changer<'a> {
    client: &'a Session,
    open: OpenFile,
    path: PathBuf,
    file: File,
    state: State,
}

impl<'a> Changer<'a> {
    fn new(client: &'a Session, shared: &Path) -> Result<Self> {
        let open = client.open(FILE.as_ref(), OpenFlags::WRITE)?;
        let path = shared.join(FILE);
        let file = OpenOptions::new().write(true).open(&path).doing_to("open", &path)?;
        let state = State { mode: 0o600, bytes: 0 };
        client.chmod(open.node, state.mode)?;
        Ok(Self { client, open, path, file, state })
    }

    /// Changes the file; returns the new state.
    fn change(&mut self, change: Change) -> Result<State> {
        match change {
            Change::ClientChmod | Change::HostChmod => self.state.mode ^= 0o044,
            Change::ClientAppend | Change::HostAppend => self.state.bytes += 1,
        }
        let (State { mode, bytes }, path) = (self.state, &self.path);
        match change {
            Change::ClientChmod => self.client.chmod(self.open.node, mode)?,
            Change::ClientAppend => self.client.write_byte(self.open, bytes - 1)?,
            Change::HostChmod => {
                fs::set_permissions(path, Permissions::from_mode(mode)).doing_to("change", path)?;
            }
            Change::HostAppend => self.file.write_all_at(b"h", bytes - 1).doing_to("write", path)?,
        }
        Ok(self.state)
    }
}

/// Returns the time until the viewer `look` sees the state `wanted`; fails after [`PATIENCE`].
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

/// Number of files changed in turn, since a notice that equals a pending one would be merged with it.
const CHANGED: u64 = 64;
const CHMOD: &str = "chmod through the waist";
const BESIDE: &str = "host not watched";
const WATCHED: &str = "host watched";
/// Numbers of sessions that watch for changes, and their columns.
const WATCHING: [(usize, &str); 3] =
    [(0, "0 sessions watch"), (1, "1 session watches"), (16, "16 sessions watch")];
/// Number of checks per change whether any session watches: before the change, for the notice, and after it.
const LOOKS: u64 = 3;
/// Row of the cost of these checks when no session watches.
const LOOK: &str = "the looks for sessions that watch";

const WRITE: &str = "a process of the host: 1 byte written";
const CREATE: &str = "a process of the host: a file created";
const AT_ONCE: u64 = 16;

/// Measures the cost of change notifications for the author of a change.
pub fn price(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let place = Place::within(&plan.within)?;
    let shared = place.shared();
    fill(&shared, (0..CHANGED).map(|number| (name(number), 0)))?;
    in_process(report, &plan.timed(), &shared)?;
    by_the_host(report, &plan.timed(), &shared, &place.beside("link"))?;
    Ok(())
}

fn name(number: u64) -> PathBuf {
    format!("f{number}").into()
}

fn in_process(report: &mut Report, contest: &Contest, shared: &Path) -> Result<()> {
    let mut entrants = Vec::new();
    for (watch_host, variant) in [(false, BESIDE), (true, WATCHED)] {
        let export = LocalDir::open(shared, Options { watch_host, ..Options::default() });
        let export = export.or_wrong("local-dir")?;
        for (watching, column) in WATCHING {
            let work = chmods(export.clone(), watching, watch_host);
            entrants.push(Entrant::new((column, variant), work, &[], Placement::Free));
        }
    }
    report.contest(CHMOD, contest, entrants);
    let look = vec![Entrant::new((WATCHING[0].1, ""), looks(), &[], Placement::Free)];
    report.contest(LOOK, &Contest { count_max: 10_000_000, ..*contest }, look);
    Ok(())
}

/// Changes the files while `watching` other sessions watch.
fn chmods(export: LocalDir, watching: usize, watch_host: bool) -> Work<'static> {
    let (own, mut mode) = ("self", 0o600);
    Work::new(move |count, clock| {
        await_watch(own, false)?;
        let changer = Session::attached(&export)?;
        let nodes = (0..CHANGED).map(|number| changer.find(&name(number))).collect::<Result<Vec<_>>>()?;
        // Threads started from here on may run anywhere, as a server's do.
        Placement::leave()?;
        let watching = (0..watching).map(|_| watcher(&export)).collect::<Result<Vec<_>>>()?;
        Placement::Free.take(&[])?;
        if watch_host {
            watching.iter().try_for_each(Session::sees_all)?;
        }
        for _ in 0..count.div_ceil(CHANGED) {
            mode ^= 0o044;
            clock.start();
            for node in &nodes {
                changer.chmod(*node, mode)?;
            }
            clock.lap_of(CHANGED);
            watching.iter().try_for_each(Session::take_notices)?;
        }
        Ok(())
    })
}

/// Creates a session that is notified of changes, and has looked at all files so that their changes count.
fn watcher(export: &LocalDir) -> Result<Session> {
    let watcher = Session::attached(export)?;
    watcher.watch()?;
    for number in 0..CHANGED {
        let node = watcher.find(&name(number))?;
        watcher.look(node)?;
    }
    watcher.take_notices()?;
    Ok(watcher)
}

/// Makes the checks that a change makes: whether any session watches.
fn looks() -> Work<'static> {
    let watchers = Watchers::<()>::default();
    Work::repeat(CHANGED, move || {
        for _ in 0..CHANGED * LOOKS {
            black_box(black_box(&watchers).any());
        }
        Ok(())
    })
}

fn by_the_host(report: &mut Report, contest: &Contest, shared: &Path, socket: &Path) -> Result<()> {
    let server = AtSocket::links(shared, socket, &["--host-watch"])?;
    for row in [WRITE, CREATE] {
        let mut entrants = Vec::new();
        for variant in [BESIDE, WATCHED] {
            let work = match row {
                WRITE => writes(&server, variant == WATCHED, shared)?,
                _ => creates(&server, variant == WATCHED, shared),
            };
            entrants.push(Entrant::new(
                ("system call", variant),
                work,
                &[server.server.id()],
                Placement::Free,
            ));
        }
        report.contest(row, contest, entrants);
    }
    Ok(())
}

fn writes<'a>(server: &'a AtSocket, watched: bool, shared: &Path) -> Result<Work<'a>> {
    let path = shared.join(name(0));
    let file = OpenOptions::new().write(true).open(&path).doing_to("open", &path)?;
    Ok(Work::new(move |count, clock| {
        let _watcher = remote_watcher(server, watched)?;
        clock.start();
        for _ in 0..count.div_ceil(AT_ONCE) {
            for _ in 0..AT_ONCE {
                file.write_all_at(b"w", 0).doing_to("write", &path)?;
            }
            clock.lap_of(AT_ONCE);
        }
        Ok(())
    }))
}

fn creates<'a>(server: &'a AtSocket, watched: bool, shared: &Path) -> Work<'a> {
    let path = shared.join("new");
    Work::new(move |count, clock| {
        let _watcher = remote_watcher(server, watched)?;
        for _ in 0..count {
            clock.time(|| File::create_new(&path).map(drop)).doing_to("create", &path)?;
            fs::remove_file(&path).doing_to("remove", &path)?;
        }
        Ok(())
    })
}

/// Creates a session of the server that is notified of changes by the host, if `watched`. Otherwise waits
/// until the server watches nothing, since the watch of an earlier session ends asynchronously.
fn remote_watcher(server: &AtSocket, watched: bool) -> Result<Option<Session>> {
    let process = server.server.id().to_string();
    if !watched {
        await_watch(&process, false)?;
        return Ok(None);
    }
    let watcher = linked(server)?;
    watcher.watch()?;
    watcher.sees_all()?;
    watcher.look(watcher.find(&name(0))?)?;
    await_watch(&process, true)?;
    Ok(Some(watcher))
}

/// Waits until a process watches a file system, or until it watches none if not `wanted`.
fn await_watch(process: &str, wanted: bool) -> Result<()> {
    let begun = Instant::now();
    while watches(process)? != wanted {
        if begun.elapsed() > PATIENCE {
            let what = format!("the watch of process {process}");
            return Err(Error::Wrong {
                what,
                answer: format!("not {wanted} after {} s", PATIENCE.as_secs()),
            });
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns `true` if the process has a descriptor of fanotify(7).
fn watches(process: &str) -> Result<bool> {
    let folder = PathBuf::from(format!("/proc/{process}/fd"));
    let descriptors = fs::read_dir(&folder).doing_to("list", &folder)?.flatten();
    // Descriptors closed meanwhile are skipped.
    let targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    Ok(targets.into_iter().any(|target| target.as_os_str() == "anon_inode:[fanotify]"))
}

/// Name of the memory file that the server shares with its clients as the window.
const WINDOW_FILE: &str = "tombolo-window";

/// Measures memory of a server, and cost of a change, by the number of notified clients.
pub fn clients(sheet: &mut Sheet<'_, String, usize>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let (place, files) = (Place::within(&plan.within)?, sheet.number("files"));
    fill(&place.shared(), (0..files as u64).map(|number| (name(number), 0)))?;
    Placement::leave()?;
    for clients in turns(sheet.rounds(), &sheet.columns[..plan.scaled(sheet.columns.len(), 2)]) {
        go_on()?;
        let column = if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        let values = measure_clients((&place, files), *clients, sheet.number("changes"))?;
        for (row, value) in sheet.rows.iter().zip(values) {
            let unit = if row.starts_with("chmod") { Unit::Nanoseconds } else { Unit::Bytes };
            report.add(row, "", &column, unit, value);
        }
    }
    Ok(())
}

/// Subscribes a client to changes, and looks at all files so that their changes count; returns the nodes.
fn known_to(client: &Session, files: usize) -> Result<Vec<NodeId>> {
    client.watch()?;
    client.sees_all()?;
    let look = |number| {
        let node = client.find(&name(number))?;
        client.look(node).map(|()| node)
    };
    (0..files as u64).map(look).collect()
}

/// Returns the rows' values with this number of clients, in the sheet's order.
fn measure_clients((place, files): (&Place, usize), clients: usize, changes: usize) -> Result<[f64; 7]> {
    let server = AtSocket::links(&place.shared(), &place.beside("link"), &["--host-watch"])?;
    let process = server.server.id().to_string();
    let changer = linked(&server)?;
    let nodes = known_to(&changer, files)?;
    let alone = change_ns(&changer, &nodes, changes)?;
    let (before, own_before) = (Held::by(&process)?, Held::by("self")?);
    let told = (0..clients)
        .map(|_| {
            go_on()?;
            let client = linked(&server)?;
            known_to(&client, files).map(|_| client)
        })
        .collect::<Result<Vec<_>>>()?;
    let over = AtomicBool::new(false);
    let (after, own_after, window, latency_ns) = thread::scope(|scope| {
        let waiting: Vec<_> = told.iter().map(|client| scope.spawn(|| wait(client, &over))).collect();
        let found = (|| {
            let latency_ns = change_ns(&changer, &nodes, changes)?;
            let window = mappings(&process, &[WINDOW_FILE])?;
            Ok((Held::by(&process)?, Held::by("self")?, window, latency_ns))
        })();
        over.store(true, Ordering::Relaxed);
        // Each client receives one more notice, and then checks for the end.
        let begun = Instant::now();
        while waiting.iter().any(|thread| !thread.is_finished()) && begun.elapsed() < PATIENCE {
            changer.chmod(nodes[0], 0o600 + (begun.elapsed().as_micros() as u32 & 7))?;
            thread::sleep(Duration::from_millis(5));
        }
        // Clients that still wait for a notice are woken by the end of the server.
        if waiting.iter().any(|thread| !thread.is_finished()) {
            drop(server);
        }
        for thread in waiting {
            thread.join().map_err(|_| lost("a thread"))??;
        }
        found
    })?;
    let each = |after: f64, before: f64| (after - before).max(0.0) / clients as f64;
    Ok([
        after.memory_bytes,
        after.shared_bytes,
        window.iter().map(|part| part.resident_bytes).sum::<u64>() as f64,
        each(after.memory_bytes, before.memory_bytes),
        each(own_after.memory_bytes, own_before.memory_bytes),
        alone,
        latency_ns,
    ])
}

fn lost(what: &str) -> Error {
    Error::Wrong { what: what.to_owned(), answer: "it is lost".to_owned() }
}

/// Receives notices as they arrive, until `over`.
fn wait(client: &Session, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        client.watch()?;
    }
    Ok(())
}

/// Returns the median latency of a change, in nanoseconds.
fn change_ns(changer: &Session, nodes: &[NodeId], changes: usize) -> Result<f64> {
    let mut clock = Clock::new();
    for (number, node) in nodes.iter().cycle().take(changes).enumerate() {
        // A new mode each time: setting the same mode is no change.
        let mode = 0o600 + (number / nodes.len().max(1)) as u32 % 8;
        clock.time(|| changer.chmod(*node, mode))?;
        thread::sleep(REST);
    }
    Ok(clock.quantile_ns(0.5))
}

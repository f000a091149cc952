//! `price`: cost of change notifications for the author of a change: a session of the same export in this
//! process, and another process of the host by its own system calls.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::Watchers;

use super::Plan;
use super::client::Client;
use crate::error::{Doing, Error, OrWrong, Result};
use crate::files::fill;
use crate::measure::{Contest, Entrant, Placement, Work};
use crate::peer::Shm;
use crate::report::Report;
use crate::sheet::{Sheet, sheet};
use crate::table::mounts::Place;

/// Number of files changed in turn, so that no notice equals a pending one.
const FILES: u64 = 64;
const CHMOD: &str = "chmod through the waist";
const BESIDE: &str = "host not watched";
const WATCHED: &str = "host watched";
/// Numbers of watching sessions.
const WATCHING: [(usize, &str); 3] =
    [(0, "0 sessions watch"), (1, "1 session watches"), (16, "16 sessions watch")];
/// Number of checks for watching sessions per change: before it, for the notice, and after it.
const LOOKS: u64 = 3;
const LOOK: &str = "the looks for sessions that watch";

const WRITE: &str = "a process of the host: 1 byte written";
const CREATE: &str = "a process of the host: a file created";
const AT_ONCE: u64 = 16;
/// Time limit of the kernel for starting or ending a watch.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "vnfs-price")?;
    let mut report = sheet.report();
    let folder = plan.folder()?;
    let Place { shared, beside } = Place::new(folder.path())?;
    fill(&shared, (0..FILES).map(|number| (name(number), 0)))?;
    in_process(&mut report, &plan.timed(), &shared)?;
    by_the_host(&mut report, &plan.timed(), &shared, &beside.join("link"))?;
    Placement::leave()?;
    Ok(sheet.finish(report))
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
        let changer = Client::attached(&export)?;
        let nodes = (0..FILES).map(|number| changer.find(&name(number))).collect::<Result<Vec<_>>>()?;
        // Threads started from here on may run anywhere, as a server's do.
        Placement::leave()?;
        let watching = (0..watching).map(|_| watcher(&export)).collect::<Result<Vec<_>>>()?;
        Placement::Free.take(&[])?;
        if watch_host {
            watching.iter().try_for_each(Client::sees_all)?;
        }
        for _ in 0..count.div_ceil(FILES) {
            mode ^= 0o044;
            clock.start();
            for node in &nodes {
                changer.chmod(*node, mode)?;
            }
            clock.lap_of(FILES);
            watching.iter().try_for_each(Client::take_notices)?;
        }
        Ok(())
    })
}

/// Creates a session that has cached all files and is notified of changes.
fn watcher(export: &LocalDir) -> Result<Client> {
    let watcher = Client::attached(export)?;
    watcher.watch()?;
    for number in 0..FILES {
        let node = watcher.find(&name(number))?;
        watcher.look(node)?;
    }
    watcher.take_notices()?;
    Ok(watcher)
}

fn looks() -> Work<'static> {
    let watchers = Watchers::<()>::default();
    Work::repeat(FILES, move || {
        for _ in 0..FILES * LOOKS {
            black_box(black_box(&watchers).any());
        }
        Ok(())
    })
}

fn by_the_host(report: &mut Report, contest: &Contest, shared: &Path, socket: &Path) -> Result<()> {
    let server = Shm::tombolo(shared, socket, &["--host-watch"])?;
    for row in [WRITE, CREATE] {
        let mut entrants = Vec::new();
        for variant in [BESIDE, WATCHED] {
            let work = match row {
                WRITE => writes(&server, variant == WATCHED, shared)?,
                _ => creates(&server, variant == WATCHED, shared),
            };
            entrants.push(Entrant::new(("system call", variant), work, &[server.server()], Placement::Free));
        }
        report.contest(row, contest, entrants);
    }
    Ok(())
}

fn writes<'a>(server: &'a Shm, watched: bool, shared: &Path) -> Result<Work<'a>> {
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

fn creates<'a>(server: &'a Shm, watched: bool, shared: &Path) -> Work<'a> {
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

/// Creates a session that is notified of changes by the host, if requested; otherwise the server watches
/// nothing.
fn remote_watcher(server: &Shm, watched: bool) -> Result<Option<Client>> {
    let process = server.server().to_string();
    if !watched {
        await_watch(&process, false)?;
        return Ok(None);
    }
    let watcher = Client::linked(server)?;
    watcher.watch()?;
    watcher.sees_all()?;
    watcher.look(watcher.find(&name(0))?)?;
    await_watch(&process, true)?;
    Ok(Some(watcher))
}

/// Waits until a process watches a file system, or none.
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

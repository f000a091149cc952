//! `library`: the library's `CachedTree` compared with its `Tree`, which has no cache, and with system calls
//! on the same files. It also counts requests for cached files while another client writes to one other file.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use libtombolo::{CacheOptions, CachedTree, Last, Tree, User, block_on};
use serde::Deserialize;
use tombolo_back_vrpc_client::VrpcExport;
use tombolo_core::fs::{Mode as FileMode, OpenFlags};
use tombolo_core::{Error as FsError, Identity};
use tombolo_mem::Buffer;
use tombolo_shm::doorbell::Mode;

use crate::error::{Doing, OrWrong, Result, same, wrong};
use crate::files::{Place, fill};
use crate::measure::{Entrant, Placement, Work, go_on};
use crate::peer::AtSocket;
use crate::report::{Report, Unit};
use crate::session::{Session, UNSEEN, absent};
use crate::sheet::{Row, Sheet};
use crate::table::ring::Endpoint;

fn export(server: &AtSocket) -> VrpcExport {
    VrpcExport::new(Endpoint::of(server, Mode::default()))
}

/// Returns a new session over a link of its own.
pub fn linked(server: &AtSocket) -> Result<Session> {
    Session::attached(&export(server))
}

pub fn tree(server: &AtSocket) -> Result<Tree> {
    let user = User { identity: Identity::ROOT, umask: FileMode::new(0o022), realm: "bench".to_owned() };
    Tree::attach(&export(server), user).or_wrong("attach")
}

/// Returns a caching tree; fails with `Absent` if it cannot cache, since the server does not watch its host.
pub fn cached(server: &AtSocket) -> Result<CachedTree> {
    let cached = CachedTree::new(tree(server)?, CacheOptions::default());
    cached.stat(b"/").wait().or_wrong("stat")?;
    if cached.is_empty() { Err(absent(UNSEEN)) } else { Ok(cached) }
}

const CACHED: &str = "CachedTree";
const PLAIN: &str = "Tree, which remembers nothing";
const LOCAL: &str = "system calls";

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Look {
    Stat,
    /// Stat of a name that does not exist.
    Absent,
    Read,
    List,
}

const FILE: &str = "a/b/c/d/file";
const NOTHING: &str = "a/b/c/d/nothing";
const LISTED: &str = "listed";
const NAMES: usize = 100;
const FILE_BYTES: usize = 4096;
/// Number of operations per reading of the clock.
const AT_ONCE: u64 = 64;

const NEIGHBOURS: &str = "looks at other files that must ask, beside a busy writer";
const NEIGHBOUR_FILES: usize = 1_000;
/// Maximum share of look-ups that need a request, in percent.
const ASK_MAX: f64 = 0.1;
const BUSY: &str = "busy/file";

pub fn library(sheet: &mut Sheet<'_, Row<Look>>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let place = Place::within(&plan.within)?;
    let shared = place.shared();
    lay_out(&shared)?;
    let server = AtSocket::links(&shared, &place.beside("link"), &["--host-watch"])?;
    let (cached, plain, servers) = (cached(&server)?, tree(&server)?, [server.server.id()]);
    for row in &sheet.rows {
        // The first read sets the access time, a change, after which the entry is fetched once more.
        let first = by_cache(&cached, row.work);
        (0..3).try_for_each(|_| first())?;
        let before = cached.counts();
        let entrants = [
            (CACHED, by_cache(&cached, row.work)),
            (PLAIN, by_tree(&plain, row.work)),
            (LOCAL, by_calls(&shared, row.work)),
        ]
        .map(|(column, once)| Entrant::new((column, ""), many(once), &servers, Placement::Free));
        report.contest(&row.name, &plan.timed(), entrants.into());
        let asked = cached.counts().asked - before.asked;
        let what = format!("{}: questions that were asked", row.name);
        report.target(&what, "counted", asked.to_string(), None);
    }
    neighbours(report, &server, &cached, sheet.number("looks"))?;
    Ok(())
}

fn lay_out(shared: &Path) -> Result<()> {
    let names = [FILE, BUSY].map(str::to_owned).into_iter();
    let names = names.chain((0..NAMES).map(|number| format!("{LISTED}/file-{number:03}")));
    let names = names.chain((0..NEIGHBOUR_FILES).map(neighbour));
    fill(shared, names.map(|name| (name.into(), FILE_BYTES)))
}

fn neighbour(number: usize) -> String {
    format!("near/file-{number:04}")
}

/// Function that runs one operation, and fails on a wrong answer.
type Once<'a> = Box<dyn Fn() -> Result<()> + 'a>;

fn many(once: Once<'_>) -> Work<'_> {
    Work::repeat(AT_ONCE, move || (0..AT_ONCE).try_for_each(|_| once()))
}

fn by_cache<'a>(cached: &'a CachedTree, look: Look) -> Once<'a> {
    match look {
        Look::Stat => Box::new(|| {
            let found = cached.stat(FILE.as_bytes()).wait().or_wrong("stat")?;
            same("library", found.size as usize, FILE_BYTES)
        }),
        Look::Absent => Box::new(|| nothing(cached.stat(NOTHING.as_bytes()).wait())),
        Look::Read => Box::new(|| {
            let bytes = cached.read(FILE.as_bytes()).wait().or_wrong("read")?;
            let mut buffer = [0; FILE_BYTES];
            let read = bytes.as_deref().unwrap_or_default().read(black_box(&mut buffer));
            same("library", read.doing(|| "copy".to_owned())?, FILE_BYTES)
        }),
        Look::List => Box::new(|| {
            let list = cached.list(LISTED.as_bytes()).wait().or_wrong("list")?;
            same("library", black_box(list).len(), NAMES)
        }),
    }
}

fn by_tree<'a>(tree: &'a Tree, look: Look) -> Once<'a> {
    let find = |path: &'static str| tree.find(path.as_bytes(), Last::Follow);
    match look {
        Look::Stat => Box::new(move || {
            let found = block_on(async { find(FILE).await?.attr().await }).or_wrong("stat")?;
            same("library", found.size as usize, FILE_BYTES)
        }),
        Look::Absent => Box::new(move || nothing(block_on(find(NOTHING)))),
        Look::Read => {
            let buffer = Buffer::new(FILE_BYTES);
            Box::new(move || {
                let read = block_on(async {
                    let file = find(FILE).await?.open(OpenFlags::READ).await?;
                    file.read_at(0, buffer.sink(0..FILE_BYTES)).resolve().await
                });
                same("library", read.or_wrong("read")?.count, FILE_BYTES)
            })
        }
        Look::List => Box::new(move || {
            let count: std::result::Result<usize, FsError> = block_on(async {
                let (mut listing, mut count) = (find(LISTED).await?.list(false).await?, 0);
                while let Some(page) = listing.next_page().await? {
                    count += black_box(page).len();
                }
                Ok(count)
            });
            same("library", count.or_wrong("list")?, NAMES)
        }),
    }
}

fn by_calls(shared: &Path, look: Look) -> Once<'static> {
    let [file, absent, listed] = [FILE, NOTHING, LISTED].map(|path| shared.join(path));
    match look {
        Look::Stat => Box::new(move || {
            same("library", fs::metadata(&file).doing_to("look at", &file)?.len() as usize, FILE_BYTES)
        }),
        Look::Absent => Box::new(move || match fs::metadata(&absent) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => same("library", usize::from(other.is_ok()), 0),
        }),
        Look::Read => Box::new(move || {
            let mut buffer = [0; FILE_BYTES];
            let read = File::open(&file).and_then(|mut file| file.read(black_box(&mut buffer)));
            same("library", read.doing_to("read", &file)?, FILE_BYTES)
        }),
        Look::List => Box::new(move || {
            let mut count = 0;
            for entry in fs::read_dir(&listed).doing_to("list", &listed)? {
                black_box(entry.doing_to("list", &listed)?.file_name());
                count += 1;
            }
            same("library", count, NAMES)
        }),
    }
}

fn nothing<T>(answer: std::result::Result<T, FsError>) -> Result<()> {
    match answer {
        Err(FsError::NotFound) => Ok(()),
        Err(error) => Err(wrong("look at nothing", &error)),
        Ok(_) => same("library", 1, 0),
    }
}

/// Measures the share of cached look-ups that need a request while another client writes to one other file.
fn neighbours(report: &mut Report, server: &AtSocket, cached: &CachedTree, looks: usize) -> Result<()> {
    let paths: Vec<String> = (0..NEIGHBOUR_FILES).map(neighbour).collect();
    let look = |path: &String| match cached.stat(path.as_bytes()).wait() {
        Ok(found) => same("library", found.size as usize, FILE_BYTES),
        Err(error) => Err(wrong("stat", &error)),
    };
    paths.iter().try_for_each(look)?;
    let client = linked(server)?;
    let (is_done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let asked = thread::scope(|scope| {
        let writing = scope.spawn(|| write_until(&client, &is_done, &written));
        while written.load(Ordering::Relaxed) == 0 && !writing.is_finished() {
            thread::yield_now();
        }
        let before = cached.counts().asked;
        let looked = paths.iter().cycle().take(looks).try_for_each(look);
        let asked = cached.counts().asked - before;
        is_done.store(true, Ordering::Relaxed);
        let wrote = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        looked.and(wrote).map(|()| asked)
    })?;
    let written = written.load(Ordering::Relaxed);
    go_on()?;
    let percent = asked as f64 / looks as f64 * 100.0;
    report.add(NEIGHBOURS, "", CACHED, Unit::Percent, percent);
    let found = format!("{} ({asked} of {looks}, beside {written} writes)", Unit::Percent.text(percent));
    report.target(NEIGHBOURS, &format!("< {ASK_MAX} %"), found, Some(percent < ASK_MAX));
    Ok(())
}

fn write_until(client: &Session, is_done: &AtomicBool, written: &AtomicU64) -> Result<()> {
    let file = client.open(BUSY.as_ref(), OpenFlags::WRITE)?;
    while !is_done.load(Ordering::Relaxed) {
        client.write_byte(file, 0)?;
        written.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

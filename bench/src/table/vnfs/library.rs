//! `library`: the caching library compared with system calls on the same files and with the library without a
//! cache; and the cost of a busy neighbour.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use libtombolo::{CachedTree, Last, Tree, block_on};
use tombolo_core::Error as FsError;
use tombolo_core::fs::OpenFlags;
use tombolo_mem::Buffer;

use super::Plan;
use super::client::{Client, cached, tree};
use crate::args::VnfsArgs;
use crate::error::{Doing, Error, Result, wrong};
use crate::measure::{Contest, Entrant, Placement, Work, go_on};
use crate::peer::Shm;
use crate::report::{Figure, Report, Unit};

const CACHED: &str = "CachedTree";
const PLAIN: &str = "Tree, which remembers nothing";
const LOCAL: &str = "system calls";

const STAT: &str = "stat, 5 names deep";
const ABSENT: &str = "stat of what is not there";
const READ: &str = "open+read 4 KiB+close";
const LIST: &str = "list 100 names";
/// Rows with target ratios to system calls: at most 0.25 × and 2 × their time.
const ROWS: [(&str, Option<f64>); 4] = [(STAT, Some(4.0)), (ABSENT, None), (READ, Some(0.5)), (LIST, None)];

const FOLDER: &str = "a/b/c/d";
const FILE: &str = "a/b/c/d/file";
const NOTHING: &str = "a/b/c/d/nothing";
const LISTED: &str = "listed";
const NAMES: usize = 100;
const FILE_BYTES: usize = 4096;
/// Operations per reading of the clock.
const AT_ONCE: u64 = 64;

const NEIGHBOURS: &str = "looks at other files that must ask, beside a busy writer";
const NEIGHBOUR_FILES: usize = 1_000;
const LOOKS: usize = 2_000_000;
const QUICK_LOOKS: usize = 20_000;
/// Maximum share of look-ups that need a request, in percent.
const ASK_MAX: f64 = 0.1;
const BUSY: &str = "busy/file";

pub fn run(plan: &Plan, _wanted: &VnfsArgs) -> Result<Report> {
    let mut report =
        plan.report("vnfs-library", "The caching library, over a link to a server on the same host");
    let folder = plan.folder()?;
    let shared = folder.path().join("shared");
    lay_out(&shared)?;
    let server = Shm::tombolo(&shared, &folder.path().join("link"), &["--host-watch"])?;
    let cached = cached(&server)?;
    let contest = plan.timed();
    warm(&mut report, &contest, &server, &cached, &shared)?;
    Placement::leave()?;
    neighbours(&mut report, &server, &cached, plan.scaled(LOOKS, QUICK_LOOKS))?;
    report.condition_of(&contest);
    report.condition(format!(
        "one server with --host-watch, and a session over a link of its own for each tree; {AT_ONCE} operations between two looks at the clock; the \
         caller, one thread, is pinned, the server is not. The files lie below {}. A ratio of 4 is 0.25 × local, one of 0.5 is 2 × local",
        plan.within.display()
    ));
    report.condition(format!(
        "`{READ}`: into memory of the caller, also from what `CachedTree` keeps; `{LIST}`: names, numbers and types"
    ));
    Ok(report)
}

fn lay_out(shared: &Path) -> Result<()> {
    let make = |path: &str| fs::create_dir_all(shared.join(path)).doing_to("make", shared);
    let write = |path: &str| fs::write(shared.join(path), vec![b'x'; FILE_BYTES]).doing_to("write", shared);
    [FOLDER, LISTED, "busy", "near"].into_iter().try_for_each(make)?;
    [FILE, BUSY].into_iter().try_for_each(write)?;
    (0..NAMES).try_for_each(|number| write(&format!("{LISTED}/file-{number:03}")))?;
    (0..NEIGHBOUR_FILES).try_for_each(|number| write(&neighbour(number)))
}

fn neighbour(number: usize) -> String {
    format!("near/file-{number:04}")
}

fn warm(
    report: &mut Report,
    contest: &Contest,
    server: &Shm,
    cached: &CachedTree,
    shared: &Path,
) -> Result<()> {
    let plain = tree(server)?;
    for (row, target) in ROWS {
        // The first read sets the access time, which is a change.
        let first = by_cache(cached, row);
        (0..3).try_for_each(|_| first())?;
        let before = cached.counts();
        let (by_cache, by_tree, by_calls) =
            (by_cache(cached, row), by_tree(&plain, row), by_calls(shared, row));
        let servers = [server.server()];
        report.contest(
            row,
            contest,
            vec![
                Entrant::new((CACHED, ""), many(by_cache), &servers, Placement::Free),
                Entrant::new((PLAIN, ""), many(by_tree), &servers, Placement::Free),
                Entrant::new((LOCAL, ""), many(by_calls), &servers, Placement::Free),
            ],
        );
        report.compare_cells(row, (CACHED, ""), (LOCAL, ""), target);
        report.compare_cells(row, (CACHED, ""), (PLAIN, ""), None);
        let asked = cached.counts().asked - before.asked;
        report.target(&format!("{row}: questions that were asked"), "counted", asked.to_string(), None);
    }
    Ok(())
}

/// Function that runs one operation, and fails on a wrong answer.
type Once<'a> = Box<dyn Fn() -> Result<()> + 'a>;

fn many(once: Once<'_>) -> Work<'_> {
    Work::repeat(AT_ONCE, move || (0..AT_ONCE).try_for_each(|_| once()))
}

fn by_cache<'a>(cached: &'a CachedTree, row: &str) -> Once<'a> {
    match row {
        STAT => Box::new(|| {
            let found = cached.stat(FILE.as_bytes()).wait().map_err(|error| wrong("stat", &error))?;
            right(found.size as usize, FILE_BYTES)
        }),
        ABSENT => Box::new(|| nothing(cached.stat(NOTHING.as_bytes()).wait())),
        READ => Box::new(|| {
            let bytes = cached.read(FILE.as_bytes()).wait().map_err(|error| wrong("read", &error))?;
            let mut buffer = [0; FILE_BYTES];
            let read = bytes.as_deref().unwrap_or_default().read(black_box(&mut buffer));
            right(read.doing(|| "copy".to_owned())?, FILE_BYTES)
        }),
        _ => Box::new(|| {
            let list = cached.list(LISTED.as_bytes()).wait().map_err(|error| wrong("list", &error))?;
            right(black_box(list).len(), NAMES)
        }),
    }
}

fn by_tree<'a>(tree: &'a Tree, row: &str) -> Once<'a> {
    let find = |path: &'static str| tree.find(path.as_bytes(), Last::Follow);
    match row {
        STAT => Box::new(move || {
            let found =
                block_on(async { find(FILE).await?.attr().await }).map_err(|error| wrong("stat", &error))?;
            right(found.size as usize, FILE_BYTES)
        }),
        ABSENT => Box::new(move || nothing(block_on(find(NOTHING)))),
        READ => {
            let buffer = Buffer::new(FILE_BYTES);
            Box::new(move || {
                let read = block_on(async {
                    let file = find(FILE).await?.open(OpenFlags::READ).await?;
                    file.read_at(0, buffer.sink(0..FILE_BYTES)).resolve().await
                });
                right(read.map_err(|error| wrong("read", &error))?.count, FILE_BYTES)
            })
        }
        _ => Box::new(move || {
            let count = block_on(async {
                let (mut listing, mut count) = (find(LISTED).await?.list(false).await?, 0);
                while let Some(page) = listing.next_page().await? {
                    count += black_box(page).len();
                }
                Ok(count)
            });
            right(count.map_err(|error: FsError| wrong("list", &error))?, NAMES)
        }),
    }
}

fn by_calls(shared: &Path, row: &str) -> Once<'static> {
    let [file, absent, listed] = [FILE, NOTHING, LISTED].map(|path| shared.join(path));
    match row {
        STAT => Box::new(move || {
            right(fs::metadata(&file).doing_to("look at", &file)?.len() as usize, FILE_BYTES)
        }),
        ABSENT => Box::new(move || match fs::metadata(&absent) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => right(usize::from(other.is_ok()), 0),
        }),
        READ => Box::new(move || {
            let mut buffer = [0; FILE_BYTES];
            let read = File::open(&file).and_then(|mut file| file.read(black_box(&mut buffer)));
            right(read.doing_to("read", &file)?, FILE_BYTES)
        }),
        _ => Box::new(move || {
            let mut count = 0;
            for entry in fs::read_dir(&listed).doing_to("list", &listed)? {
                black_box(entry.doing_to("list", &listed)?.file_name());
                count += 1;
            }
            right(count, NAMES)
        }),
    }
}

fn right(found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::Wrong { what: "library".to_owned(), answer: format!("{found} instead of {wanted}") })
}

fn nothing<T>(answer: std::result::Result<T, FsError>) -> Result<()> {
    match answer {
        Err(FsError::NotFound) => Ok(()),
        Err(error) => Err(wrong("look at nothing", &error)),
        Ok(_) => right(1, 0),
    }
}

/// Measures how many look-ups need a request while another file is written continuously.
fn neighbours(report: &mut Report, server: &Shm, cached: &CachedTree, looks: usize) -> Result<()> {
    let paths: Vec<String> = (0..NEIGHBOUR_FILES).map(neighbour).collect();
    let look = |path: &String| match cached.stat(path.as_bytes()).wait() {
        Ok(found) => right(found.size as usize, FILE_BYTES),
        Err(error) => Err(wrong("stat", &error)),
    };
    paths.iter().try_for_each(look)?;
    let client = Client::linked(server)?;
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
    report.figures.push(Figure::single(NEIGHBOURS, "", CACHED, Unit::Percent, percent));
    let found = format!("{} ({asked} of {looks}, beside {written} writes)", Unit::Percent.text(percent));
    report.target(NEIGHBOURS, &format!("< {ASK_MAX} %"), found, Some(percent < ASK_MAX));
    Ok(())
}

fn write_until(client: &Client, is_done: &AtomicBool, written: &AtomicU64) -> Result<()> {
    let writer = client.writer(BUSY.as_ref())?;
    while !is_done.load(Ordering::Relaxed) {
        writer.write(0)?;
        written.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

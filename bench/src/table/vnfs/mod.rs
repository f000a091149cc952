//! `vnfs`: caches with change notifications, in parts, each with its own report.
//!
//! Named after the VNFS paper, whose figures are shown in [`postmark`]: VNFS makes the pages of a host's
//! files visible to guests, and notifies the guests' caches of changes. The equivalents in Tombolo are a
//! mount with `coherence=push` and the library's `CachedTree`, which need no requests for unchanged files.
//!
//! To add a part: its sheet, `bench/tables/vnfs-PART.toml`; a function that adds the sheet's figures to a
//! report; a line with both in [`PARTS`]; its rows in `docs/benchmarks.md`. Missing prerequisites are
//! reported as [`Error::Absent`], or as missing columns with the reason.
//!
//! Reading order: [`SmallTree`], [`mounts`]; [`library`], [`notices`]; the other parts in any order.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use library::tree;
use libtombolo::{CacheOptions, CachedTree};
use serde::Deserialize;

use crate::error::{Doing, Error, OrWrong, Result};
use crate::files::{Place, Postmark, fill};
use crate::measure::{Clock, Contest, Entrant, Placement, Work, go_on};
use crate::peer::{AtSocket, completed};
use crate::report::Report;
use crate::sheet::{Row, Sheet, part};
use crate::table::mounts::{Side, Way, measure_steps};
use crate::table::{Part, Plan};

mod calls;
mod guest;
mod library;
mod notices;

pub use calls::print_medians;

/// All parts in order, by name.
pub const PARTS: &[(&str, Part)] = &[
    ("mounts", part!("vnfs-mounts", mounts)),
    ("freshness", part!("vnfs-freshness", notices::freshness)),
    ("price", part!("vnfs-price", notices::price)),
    ("library", part!("vnfs-library", library::library)),
    ("line", part!("vnfs-line", line)),
    ("postmark", part!("vnfs-postmark", postmark)),
    ("build", part!("vnfs-build", build)),
    ("calls", part!("vnfs-calls", calls::run)),
    ("clients", part!("vnfs-clients", notices::clients)),
    ("guest-postmark", part!("vnfs-guest-postmark", guest::postmark)),
    ("guest-tree", part!("vnfs-guest-tree", guest::tree)),
    ("guest-build", part!("vnfs-guest-build", guest::build)),
    ("guest-calls", part!("vnfs-guest-calls", guest::calls)),
    ("guest-qemu", part!("vnfs-guest-qemu", guest::qemu)),
];

/// Operation of a row: [`stat`], [`find_newer`], [`list_long`] or [`git_status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Walk {
    Stat,
    Find,
    List,
    Status,
}

/// Columns whose requests are counted: mounts that are notified of changes.
const NOTIFIED: [&str; 2] = ["dir:, push", "shm:, push"];

/// Measures repeated reads of metadata through mounts with each policy, compared with the directory itself.
fn mounts(sheet: &mut Sheet<'_, Row<Walk>, Way>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let tree = SmallTree::new(&plan.disk, sheet.number("files"))?;
    let repository = report.present("git status", make_repository(&tree.place.shared()));
    let newest = tree.newest()?;
    let sides = Way::sides(&sheet.columns, &tree.place, report);
    let contest = sheet.contest(plan.timed());
    let (hot, listed) = (sheet.number("hot"), sheet.number("listed"));
    for row in sheet.rows.iter().filter(|row| row.work != Walk::Status || repository.is_some()) {
        let work = |side: &Side| match row.work {
            Walk::Stat => stat(side, &tree, hot),
            Walk::Find => find_newer(&side.root, &newest),
            Walk::List => list_long(&side.root, &tree.folders(listed)),
            Walk::Status => git_status(&side.root),
        };
        // Programs run unpinned; our own loop has one core.
        Placement::leave()?;
        let place = (row.work == Walk::Stat).then_some(Placement::Free);
        measure(report, &row.name, &contest, &sides, place, work)?;
    }
    Ok(())
}

/// Measures one row, after a warm-up of every side; reports the requests to the servers of notified mounts.
fn measure(
    report: &mut Report,
    row: &str,
    contest: &Contest,
    sides: &[Side],
    place: Option<Placement>,
    work: impl Fn(&Side) -> Work<'static>,
) -> Result<()> {
    for side in sides {
        go_on()?;
        // A failing operation fails again in its turn, which reports it.
        let _reported = work(side).run(1, &mut Clock::new());
    }
    let notified = sides.iter().filter(|side| NOTIFIED.contains(&side.name.as_str()));
    let before: Vec<_> = notified.map(|side| (side, side.requests())).collect();
    let entrant = |side: &Side| Entrant::new((&side.name, ""), work(side), &side.servers(), place);
    report.contest(row, contest, sides.iter().map(entrant).collect());
    for (side, before) in before {
        let found = before.and_then(|before| Ok(side.requests()?.since(&before).text()));
        let found = found.unwrap_or_else(|error| error.to_string());
        report.target(&format!("{row}, {}: requests in all rounds", side.name), "counted", found, None);
    }
    Ok(())
}

/// Calls stat(2) for `count` files spread over the tree, all of them per reading of the clock.
pub fn stat(side: &Side, tree: &SmallTree, count: usize) -> Work<'static> {
    let paths: Vec<PathBuf> = tree.some(count).iter().map(|path| side.root.join(path)).collect();
    Work::repeat(paths.len() as u64, move || {
        paths.iter().try_for_each(|path| fs::metadata(path).doing_to("look at", path).map(drop))
    })
}

/// Number of files per directory.
const PER_FOLDER: usize = 100;
const BYTES: usize = 1024;
/// Age of the files. git reads the contents of files that are not older than its index.
const AGE: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// A tree of many small files under version control.
pub struct SmallTree {
    pub place: Place,
    files: usize,
}

impl SmallTree {
    /// Creates `files` files below `within`.
    pub fn new(within: &Path, files: usize) -> Result<Self> {
        let tree = Self { place: Place::within(within)?, files };
        fill(&tree.place.shared(), (0..files).map(|number| (Self::file(number), BYTES)))?;
        let then = SystemTime::now() - AGE;
        for path in (0..files).map(|number| tree.place.shared().join(Self::file(number))) {
            let file = File::options().write(true).open(&path);
            file.and_then(|file| file.set_modified(then)).doing_to("date", &path)?;
        }
        Ok(tree)
    }

    /// Creates a file next to the tree, dated one day from now. It is thus newer than all nodes of the tree,
    /// also those to which a mount gives the current time.
    pub fn newest(&self) -> Result<PathBuf> {
        let path = self.place.beside("newest");
        let file = File::create(&path);
        file.and_then(|file| file.set_modified(SystemTime::now() + DAY)).doing_to("make", &path)?;
        Ok(path)
    }

    /// Returns a file, relative to the root.
    pub fn file(number: usize) -> PathBuf {
        format!("d{:03}/f{:05}", number / PER_FOLDER, number).into()
    }

    /// Returns the directories of the first `files` files, relative to the root.
    pub fn folders(&self, files: usize) -> Vec<PathBuf> {
        let firsts = (0..self.files.min(files)).step_by(PER_FOLDER);
        firsts.filter_map(|number| Self::file(number).parent().map(PathBuf::from)).collect()
    }

    /// Returns `count` files from all over the tree, relative to the root.
    pub fn some(&self, count: usize) -> Vec<PathBuf> {
        let step = (self.files / count.max(1)).max(1);
        (0..self.files).step_by(step).take(count).map(Self::file).collect()
    }
}

/// Runs `find -newer` over a whole tree. `than` must be newer than all of it, since output is an error.
pub fn find_newer(root: &Path, than: &Path) -> Work<'static> {
    let (root, than) = (root.to_owned(), than.to_owned());
    once(move || {
        let mut command = Command::new("find");
        command.arg(&root).arg("-newer").arg(&than);
        command
    })
}

/// Runs `ls -lR` for some directories of a tree.
pub fn list_long(root: &Path, folders: &[PathBuf]) -> Work<'static> {
    let folders: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    once(move || {
        let mut command = Command::new("ls");
        command.arg("-lR").args(&folders).stdout(Stdio::null());
        command
    })
}

/// Runs `git status` in an unchanged repository. It writes nothing, not even its index.
pub fn git_status(root: &Path) -> Work<'static> {
    let root = root.to_owned();
    once(move || git(&root, &["--no-optional-locks", "status", "--porcelain"]))
}

/// Creates a repository of all files of a tree.
pub fn make_repository(root: &Path) -> Result<()> {
    let commit = ["-c", "user.name=bench", "-c", "user.email=bench", "commit", "-q", "-m", "all"];
    for arguments in [&["init", "-q"][..], &["add", "-A"], &commit] {
        silent(&mut git(root, arguments))?;
    }
    Ok(())
}

/// Returns a git command that ignores the user's and the machine's settings.
fn git(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(["-c", "safe.directory=*", "-c", "gc.auto=0"]).args(arguments);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command
}

/// Returns an operation that runs the program once, which is a whole turn.
fn once(command: impl Fn() -> Command + 'static) -> Work<'static> {
    Work::repeat(1, move || silent(&mut command())).count_max(1)
}

/// Runs a program that must produce no output.
fn silent(command: &mut Command) -> Result<()> {
    let what = command.get_program().to_string_lossy().into_owned();
    let said = completed(&what, command)?;
    if said.is_empty() { Ok(()) } else { Err(Error::Wrong { what, answer: said }) }
}

/// Parameters of a row of [`postmark`].
#[derive(Deserialize)]
struct Mail {
    /// Maximum file size.
    bytes_max: usize,
    /// Number of reads per append.
    reads: u32,
}

/// Figures of the VNFS paper: change of Postmark's time compared with NFS, in two runs.
const PAPER: &str = "the paper's VNFS: −46 % and −37 %";

/// Measures Postmark's job on the directory itself, over NFS, and over links with and without change
/// notifications.
fn postmark(sheet: &mut Sheet<'_, Row<Mail>, Way>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let files = plan.files.unwrap_or(sheet.number("files"));
    sheet.set("files", &files);
    let place = Place::within(&plan.disk)?;
    let contest = sheet.contest(plan.timed());
    let ways = plan.columns(&sheet.columns, Way::id)?;
    Placement::leave()?;
    for Row { name, work: Mail { bytes_max, reads } } in &sheet.rows {
        let job = Postmark { files, transactions: files, bytes_max: *bytes_max, reads: *reads };
        let entrant = |way: Way| {
            let name = way.name.clone();
            Entrant::new((&name, ""), mail(&place, way, job), &[], None::<Placement>)
        };
        report.contest(name, &contest, ways.iter().cloned().map(entrant).collect());
        ["shm:, push", "shm:, strict"].into_iter().for_each(|ours| saved(report, name, ours));
    }
    Ok(())
}

fn mail(place: &Place, way: Way, job: Postmark) -> Work<'static> {
    let place = place.clone();
    let run = move |_, clock: &mut Clock| {
        let side = way.side(&place)?;
        clock.time(|| job.run(&side.root.join("job")))
    };
    Work::new(run).count_max(1)
}

/// Reports the time of a column compared with that over NFS, as the paper does.
fn saved(report: &mut Report, row: &str, ours: &str) {
    let figures = report.figure(row, ours, "").zip(report.figure(row, "nfs:, auto", ""));
    let Some(times) = figures.map(|(ours, nfs)| ours.spread.median / nfs.spread.median) else { return };
    let more = format!("{:+.0} %", (times - 1.0) * 100.0).replace('-', "−");
    report.target(&format!("{row}, {ours}: time against NFS"), PAPER, more, None);
}

/// Measures Apache httpd unpacked, configured, built and removed, on the directory itself and through mounts.
fn build(sheet: &mut Sheet<'_, String, Way>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let job = sheet.script(if plan.quick { "lua" } else { "httpd" })?.with_archive()?;
    let place = Place::within(&plan.disk)?;
    measure_steps(sheet, report, &place, &job)
}

const LOOK_ROW: &str = "a look at a file";

/// Measures a stat, by system calls on the directory and on mounts, and by the library, in one row.
fn line(sheet: &mut Sheet<'_, String, Way>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let count = sheet.number("files");
    let files = SmallTree::new(&plan.disk, count)?;
    let sides = Way::sides(&sheet.columns, &files.place, report);
    let server =
        AtSocket::links(&files.place.shared(), &files.place.beside("library.link"), &["--host-watch"])?;
    let cached = CachedTree::new(tree(&server)?, CacheOptions::default());
    let by_calls = sides.iter().map(|side| {
        Entrant::new((&side.name, ""), stat(side, &files, count), &side.servers(), Placement::Free)
    });
    let library = look_by_library(&cached, &files, count);
    let library = Entrant::new(("the library", ""), library, &[server.server.id()], Placement::Free);
    let entrants = by_calls.chain([library]).collect();
    report.contest(LOOK_ROW, &sheet.contest(plan.timed()), entrants);
    Ok(())
}

fn look_by_library<'a>(cached: &'a CachedTree, files: &SmallTree, count: usize) -> Work<'a> {
    let paths = files.some(count).into_iter().map(|path| path.into_os_string().into_encoded_bytes());
    let paths: Vec<Vec<u8>> = paths.collect();
    Work::repeat(paths.len() as u64, move || {
        let look = |path: &Vec<u8>| cached.stat(path).wait().or_wrong("stat");
        paths.iter().try_for_each(|path| look(path).map(drop))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_with_output_and_missing_program_are_errors() {
        assert!(silent(&mut Command::new("true")).is_ok());
        assert!(
            silent(Command::new("echo").arg("changed"))
                .is_err_and(|error| error.to_string().contains("changed"))
        );
        assert!(matches!(silent(&mut Command::new("no program has this name")), Err(Error::Absent(_))));
    }
}

//! File operations of a program, by system calls: the same for a FUSE mount and the directory below it.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub use postmark::Postmark;
use serde::Deserialize;
use tempfile::TempDir;

use crate::error::{Doing, Error, Result};
use crate::measure::{Clock, Work, go_on};
use crate::peer::{completed, in_checkout};

mod postmark;

/// Number of small files per folder.
const PER_FOLDER: usize = 1000;

/// A temporary folder with the directory to be served, `shared`; mounts and sockets are next to that
/// directory. Removed with the last clone of this value.
#[derive(Clone, Debug)]
pub struct Place(Rc<TempDir>);

impl Place {
    /// Creates a folder below another, with an empty directory.
    pub fn within(parent: &Path) -> Result<Self> {
        let place = Self(Rc::new(crate::table::folder(parent)?));
        fs::create_dir(place.shared()).doing_to("make", &place.shared())?;
        Ok(place)
    }

    /// Returns the directory to be served.
    pub fn shared(&self) -> PathBuf {
        self.beside("shared")
    }

    /// Returns the path of a mount point or socket next to the served directory.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }
}

/// A directory with the files that operations need.
#[derive(Debug)]
pub struct Tree {
    pub place: Place,
    /// Number of small files.
    pub files: usize,
}

impl Tree {
    pub const SMALL_BYTES: usize = 4096;
    pub const LARGE_BYTES: usize = 64 << 20;

    /// Creates a tree below `within` with `files` small files and a large one.
    pub fn new(within: &Path, files: usize) -> Result<Self> {
        let tree = Self { place: Place::within(within)?, files };
        let new = tree.place.shared().join(Self::new_folder());
        fs::create_dir(&new).doing_to("make", &new)?;
        fill(&tree.place.shared(), (0..files).map(|number| (Self::small(number), Self::SMALL_BYTES)))?;
        let large = tree.place.shared().join(Self::large());
        fs::write(&large, vec![b'y'; Self::LARGE_BYTES]).doing_to("write", &large)?;
        Ok(tree)
    }

    /// Returns a small file, relative to the root.
    pub fn small(number: usize) -> PathBuf {
        format!("d{}/f{number}", number / PER_FOLDER).into()
    }

    /// Returns the large file, relative to the root.
    pub fn large() -> &'static Path {
        Path::new("large")
    }

    /// Returns the folder for temporary files, relative to the root.
    pub fn new_folder() -> &'static Path {
        Path::new("new")
    }
}

/// Creates files of these sizes below `root`, and the missing directories.
pub fn fill(root: &Path, files: impl Iterator<Item = (PathBuf, usize)>) -> Result<()> {
    fs::create_dir_all(root).doing_to("make", root)?;
    let mut folder = root.to_owned();
    for (name, bytes) in files {
        let path = root.join(name);
        if let Some(parent) = path.parent().filter(|parent| *parent != folder) {
            go_on()?;
            fs::create_dir_all(parent).doing_to("make", parent)?;
            folder = parent.to_owned();
        }
        fs::write(&path, vec![b'x'; bytes]).doing_to("write", &path)?;
    }
    Ok(())
}

/// Number of files that one pass of [`small_files`] creates and removes.
const BATCH: u64 = 32;

/// Creates a folder, writes small files into it, lists it, stats and reads each file, and removes all; the
/// figure is files per second. `root` is the tree's location; `name` distinguishes contestants.
pub fn small_files(root: &Path, name: &str) -> Work<'static> {
    let folder = root.join(Tree::new_folder()).join(format!("{name}.files"));
    let content = vec![b'z'; Tree::SMALL_BYTES];
    let once = move || {
        fs::create_dir(&folder).doing_to("make", &folder)?;
        for number in 0..BATCH {
            let path = folder.join(number.to_string());
            let mut file = File::create_new(&path).doing_to("create", &path)?;
            file.write_all(&content).doing_to("write", &path)?;
        }
        let mut seen = 0;
        let mut read = Vec::with_capacity(content.len());
        for entry in fs::read_dir(&folder).doing_to("list", &folder)? {
            let path = entry.doing_to("list", &folder)?.path();
            let bytes = fs::metadata(&path).doing_to("look at", &path)?.len();
            read.clear();
            File::open(&path).and_then(|mut file| file.read_to_end(&mut read)).doing_to("read", &path)?;
            if read != content || bytes != read.len() as u64 {
                let what = format!("read {}", path.display());
                return Err(Error::Wrong { what, answer: format!("{} bytes of {bytes}", read.len()) });
            }
            seen += 1;
        }
        if seen != BATCH {
            let what = format!("list {}", folder.display());
            return Err(Error::Wrong { what, answer: format!("{seen} entries") });
        }
        for number in 0..BATCH {
            let path = folder.join(number.to_string());
            fs::remove_file(&path).doing_to("remove", &path)?;
        }
        fs::remove_dir(&folder).doing_to("remove", &folder)
    };
    Work::repeat(BATCH, once).per_second(true)
}

/// Number of files opened repeatedly.
const HOT: usize = 64;

/// Opens, reads 4 KiB of, and closes files in the tree at `root`.
pub fn open_read_close(root: &Path) -> Work<'static> {
    let paths: Vec<PathBuf> = (0..HOT).map(|number| root.join(Tree::small(number))).collect();
    let (mut next, mut buffer) = (0, vec![0; Tree::SMALL_BYTES]);
    Work::repeat(1, move || {
        let path = &paths[next];
        next = (next + 1) % HOT;
        let got = File::open(path).doing_to("open", path)?.read(&mut buffer).doing_to("read", path)?;
        whole("read", path, got as u64, Tree::SMALL_BYTES)
    })
}

/// Creates a file, writes 4 KiB, closes and unlinks it; `name` distinguishes contestants. The file is opened
/// write-only, as by cp, tar and compilers.
pub fn create_write_unlink(root: &Path, name: &str) -> Work<'static> {
    let path = root.join(Tree::new_folder()).join(name);
    let content = vec![b'z'; Tree::SMALL_BYTES];
    let mut create = OpenOptions::new();
    create.write(true).create_new(true);
    Work::repeat(1, move || {
        let mut file = create.open(&path).doing_to("create", &path)?;
        file.write_all(&content).doing_to("write", &path)?;
        drop(file);
        fs::remove_file(&path).doing_to("remove", &path)
    })
}

/// Creates and removes a directory; `name` distinguishes contestants.
pub fn mkdir_rmdir(root: &Path, name: &str) -> Work<'static> {
    let path = root.join(Tree::new_folder()).join(format!("{name}.d"));
    Work::repeat(1, move || {
        fs::create_dir(&path).doing_to("make", &path)?;
        fs::remove_dir(&path).doing_to("remove", &path)
    })
}

/// Lifetime of names in the caller's kernel, one second, with a margin.
const NAMES_AGE: Duration = Duration::from_millis(1100);

/// Small files of one mount, each used at most once during the lifetime of its name.
pub struct ColdNames {
    paths: Vec<PathBuf>,
    next: Cell<usize>,
    last_given: Cell<Instant>,
}

impl ColdNames {
    /// Returns all small files of the tree at `root`.
    pub fn new(root: &Path, tree: &Tree) -> Rc<Self> {
        let paths = (0..tree.files).map(|number| root.join(Tree::small(number))).collect();
        Rc::new(Self { paths, next: Cell::new(0), last_given: Cell::new(Instant::now()) })
    }

    /// Returns the next files; sleeps before the first are reused, until all names have expired.
    fn take(&self, count: usize) -> &[PathBuf] {
        let count = count.min(self.paths.len());
        if self.next.get() + count > self.paths.len() {
            std::thread::sleep(NAMES_AGE.saturating_sub(self.last_given.get().elapsed()));
            self.next.set(0);
        }
        self.last_given.set(Instant::now());
        let from = self.next.replace(self.next.get() + count);
        self.paths.get(from..from + count).unwrap_or_default()
    }
}

/// Reads attributes of files whose names have expired in the caller's kernel, so that each requires a
/// request. All operations on a mount must share one [`ColdNames`]: each use of a name makes it valid again.
pub fn stat(names: &Rc<ColdNames>) -> Work<'static> {
    let (names, count_max) = (Rc::clone(names), names.paths.len() as u64 / 16);
    let run = move |count, clock: &mut Clock| {
        let paths = names.take(usize::try_from(count).unwrap_or(usize::MAX));
        clock.start();
        for path in paths {
            let size = fs::metadata(path).doing_to("look at", path)?.len();
            clock.lap();
            whole("stat", path, size, Tree::SMALL_BYTES)?;
        }
        Ok(())
    };
    Work::new(run).count_max(count_max)
}

/// Fails unless `got` is the expected number of bytes.
pub(super) fn whole(what: &str, path: &Path, got: u64, wanted: usize) -> Result<()> {
    if got == wanted as u64 {
        return Ok(());
    }
    Err(Error::Wrong { what: format!("{what} {}", path.display()), answer: format!("{got} bytes") })
}

/// Size of a read or write.
pub const PIECE_BYTES: usize = 1 << 20;
const PIECES: u64 = (Tree::LARGE_BYTES / PIECE_BYTES) as u64;

/// Opens, reads completely, and closes the large file of the tree at `root`.
pub fn stream_read(root: &Path) -> Work<'static> {
    let (path, mut buffer) = (root.join(Tree::large()), vec![0; PIECE_BYTES]);
    let once = move || read_first(&path, Tree::LARGE_BYTES as u64, &mut buffer);
    Work::repeat(PIECES, once).bytes(PIECE_BYTES as u64)
}

/// Reads the first `bytes` of a file, in pieces as long as the buffer.
pub fn read_first(path: &Path, bytes: u64, buffer: &mut [u8]) -> Result<()> {
    let (mut file, mut got) = (File::open(path).doing_to("open", path)?, 0);
    while got < bytes {
        go_on()?;
        match file.read(buffer).doing_to("read", path)? {
            0 => return whole("read", path, got, bytes as usize),
            count => got += count as u64,
        }
    }
    Ok(())
}

/// Creates a file of incompressible bytes, and syncs it.
pub fn random_file(path: &Path, bytes: u64) -> Result<()> {
    let (mut rng, mut piece) = (fastrand::Rng::with_seed(1), vec![0; PIECE_BYTES]);
    let mut file = File::create(path).doing_to("create", path)?;
    for at in (0..bytes).step_by(PIECE_BYTES) {
        go_on()?;
        rng.fill(&mut piece);
        let count = PIECE_BYTES.min((bytes - at) as usize);
        file.write_all(&piece[..count]).doing_to("write", path)?;
    }
    file.sync_all().doing_to("write", path)
}

/// Opens, overwrites completely, and closes a large file; `name` distinguishes contestants.
pub fn stream_write(root: &Path, name: &str) -> Work<'static> {
    let path = root.join(Tree::new_folder()).join(format!("{name}.large"));
    let content = vec![b'w'; PIECE_BYTES];
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let once = move || {
        let mut file = options.open(&path).doing_to("open", &path)?;
        (0..PIECES).try_for_each(|_| file.write_all(&content)).doing_to("write", &path)
    };
    Work::repeat(PIECES, once).bytes(PIECE_BYTES as u64)
}

/// Returns a project's archive; fails if it or what its build depends on is missing.
fn source(project: &str) -> Result<PathBuf> {
    if project == "httpd" && Command::new("apr-1-config").arg("--version").output().is_err() {
        return Err(Error::Absent("httpd needs libapr1-dev, libaprutil1-dev and libpcre2-dev".to_owned()));
    }
    in_checkout(format!(".cache/sources/{project}.tar.gz"))
        .map_err(|error| Error::Absent(format!("{error} (tests/guests/fetch-source {project} fetches it)")))
}

/// Copies a file or directory with holes and times, and syncs it.
pub fn copy_with_holes(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    completed("cp", command.args(["--archive", "--sparse=always", "--"]).arg(from).arg(to))?;
    File::open(to).and_then(|file| file.sync_all()).doing_to("sync", to)
}

/// Job of several shell commands, as a sheet has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Archive of the project, without its extension.
    #[serde(default)]
    pub archive: String,
    #[serde(default)]
    pub about: String,
    /// Names and commands.
    pub steps: Vec<(String, String)>,
    /// Command that runs after the steps, until it is terminated.
    #[serde(default)]
    pub load: String,
    #[serde(skip)]
    pub arguments: Vec<OsString>,
}

impl Script {
    /// Sets the project's archive as argument; fails if it is missing.
    pub fn with_archive(mut self) -> Result<Self> {
        self.arguments = vec![source(&self.archive)?.into()];
        Ok(self)
    }

    pub fn names(&self) -> Vec<&str> {
        self.steps.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the time of each step in a new directory, which the last step must leave empty.
    pub fn timed(&self, folder: &Path) -> Result<Vec<Duration>> {
        let took = self.done(folder)?;
        fs::remove_dir(folder).doing_to("remove", folder)?;
        Ok(took)
    }

    /// Runs steps that may leave files, and returns their times.
    pub fn done(&self, folder: &Path) -> Result<Vec<Duration>> {
        fs::create_dir_all(folder).doing_to("make", folder)?;
        let step = |(name, script): &(String, String)| {
            go_on()?;
            let begun = Instant::now();
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).args(&self.arguments).current_dir(folder);
            completed(name, &mut command)?;
            Ok(begun.elapsed())
        };
        self.steps.iter().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_cleans_up_and_detects_a_wrong_byte() {
        let within = tempfile::tempdir().unwrap();
        let tree = Tree::new(within.path(), 1).unwrap();
        let mut files = small_files(&tree.place.shared(), "test");
        let mut clock = Clock::new();
        files.run(40, &mut clock).unwrap();
        assert_eq!(clock.count(), 64, "whole folders");
        let left = fs::read_dir(tree.place.shared().join(Tree::new_folder())).unwrap().count();
        assert_eq!(left, 0);
        // The name is occupied by a file.
        fs::write(tree.place.shared().join(Tree::new_folder()).join("test.files"), "").unwrap();
        assert!(files.run(1, &mut Clock::new()).is_err());
    }
}

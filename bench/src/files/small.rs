//! Operations on small files.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Tree;
use crate::error::{Doing, Error, Result};
use crate::measure::{Clock, Work};

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
        let paths = (0..tree.files()).map(|number| root.join(Tree::small(number))).collect();
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
/// request. All users of a mount share the names.
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

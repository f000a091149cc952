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

/// Files that are opened over and over.
const HOT: usize = 64;

fn hot(root: &Path) -> Vec<PathBuf> {
    (0..HOT).map(|number| root.join(Tree::small(number))).collect()
}

/// open, read 4 KiB, close.
pub struct OpenReadClose {
    paths: Vec<PathBuf>,
    buffer: Vec<u8>,
}

impl OpenReadClose {
    /// On the tree as seen at `root`.
    pub fn new(root: &Path) -> Self {
        Self { paths: hot(root), buffer: vec![0; Tree::SMALL_BYTES] }
    }
}

impl Work for OpenReadClose {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let mut paths = self.paths.iter().cycle();
        clock.start();
        for _ in 0..count {
            let Some(path) = paths.next() else { break };
            let mut file = File::open(path).doing_to("open", path)?;
            let got = file.read(&mut self.buffer).doing_to("read", path)?;
            drop(file);
            clock.lap();
            if got != Tree::SMALL_BYTES {
                return Err(Error::Wrong {
                    what: format!("read {}", path.display()),
                    answer: format!("{got} bytes"),
                });
            }
        }
        Ok(())
    }
}

/// create, write 4 KiB, close, unlink.
pub struct CreateWriteUnlink {
    path: PathBuf,
    content: Vec<u8>,
}

impl CreateWriteUnlink {
    /// On the tree as seen at `root`; `name` tells contestants apart.
    pub fn new(root: &Path, name: &str) -> Self {
        Self { path: root.join(Tree::new_folder()).join(name), content: vec![b'z'; Tree::SMALL_BYTES] }
    }
}

impl Work for CreateWriteUnlink {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        // For writing only, as cp, tar and compilers do.
        let mut create = OpenOptions::new();
        create.write(true).create_new(true);
        clock.start();
        for _ in 0..count {
            let mut file = create.open(&self.path).doing_to("create", &self.path)?;
            file.write_all(&self.content).doing_to("write", &self.path)?;
            drop(file);
            fs::remove_file(&self.path).doing_to("remove", &self.path)?;
            clock.lap();
        }
        Ok(())
    }
}

/// mkdir, rmdir.
pub struct MkdirRmdir {
    path: PathBuf,
}

impl MkdirRmdir {
    /// On the tree as seen at `root`; `name` tells contestants apart.
    pub fn new(root: &Path, name: &str) -> Self {
        Self { path: root.join(Tree::new_folder()).join(format!("{name}.d")) }
    }
}

impl Work for MkdirRmdir {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        clock.start();
        for _ in 0..count {
            fs::create_dir(&self.path).doing_to("make", &self.path)?;
            fs::remove_dir(&self.path).doing_to("remove", &self.path)?;
            clock.lap();
        }
        Ok(())
    }
}

/// Names age in the caller's kernel for one second; a little more is safe.
const NAMES_AGE: Duration = Duration::from_millis(1100);

/// The small files of one mount, each given out at most once in the time that names are remembered.
pub struct ColdNames {
    paths: Vec<PathBuf>,
    next: Cell<usize>,
    last_given: Cell<Instant>,
}

impl ColdNames {
    /// All small files of the tree as seen at `root`.
    pub fn new(root: &Path, tree: &Tree) -> Rc<Self> {
        let paths = (0..tree.files()).map(|number| root.join(Tree::small(number))).collect();
        Rc::new(Self { paths, next: Cell::new(0), last_given: Cell::new(Instant::now()) })
    }

    /// The next so many; sleeps before they begin again, until all of them are forgotten.
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

/// stat of a file whose name the caller's kernel has forgotten, so that the server is asked.
pub struct Stat {
    names: Rc<ColdNames>,
}

impl Stat {
    /// With these names, which all that use one mount have in common.
    pub fn new(names: &Rc<ColdNames>) -> Self {
        Self { names: Rc::clone(names) }
    }
}

impl Work for Stat {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let paths = self.names.take(usize::try_from(count).unwrap_or(usize::MAX));
        clock.start();
        for path in paths {
            let size = fs::metadata(path).doing_to("look at", path)?.len();
            clock.lap();
            if size != Tree::SMALL_BYTES as u64 {
                return Err(Error::Wrong {
                    what: format!("stat {}", path.display()),
                    answer: format!("{size} bytes"),
                });
            }
        }
        Ok(())
    }

    fn count_max(&self) -> u64 {
        self.names.paths.len() as u64 / 16
    }
}

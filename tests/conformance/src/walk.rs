//! A random walk: the host and several mounts of one directory change it in turn, and after each change every
//! mount must show the same tree as a plain directory with the same changes.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use fastrand::Rng;

/// Limit until a change is visible: a notice takes some 100 µs, but a busy machine may delay any program.
const BOUND: Duration = Duration::from_secs(10);
/// Few names, so that they are created, moved and removed repeatedly.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const DIRECTORIES: [&str; 3] = ["", "x", "y"];

/// Visible state of a name: type and mode, link count, size, and data, target or names.
type Shown = (u32, u64, u64, Vec<u8>);

fn path(random: &mut Rng) -> PathBuf {
    Path::new(DIRECTORIES[random.usize(..DIRECTORIES.len())]).join(NAMES[random.usize(..NAMES.len())])
}

/// A change of a tree. Its outcome depends on the tree alone.
#[derive(Debug)]
enum Change {
    Write(PathBuf, Vec<u8>),
    Append(PathBuf),
    Cut(PathBuf, u64),
    Mode(PathBuf, u32),
    Link(PathBuf, PathBuf),
    Symlink(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    MakeDirectory(PathBuf),
    RemoveDirectory(PathBuf),
}

impl Change {
    fn random(random: &mut Rng, step: usize) -> Self {
        // Moves and removals include directories.
        let any = |random: &mut Rng| match random.usize(..8) {
            0 => DIRECTORIES[1 + random.usize(..2)].into(),
            _ => path(random),
        };
        match random.usize(..12) {
            0 | 1 => {
                let len = 1 + random.usize(..9000);
                Self::Write(path(random), format!("{step:*<len$}").into_bytes())
            }
            2 => Self::Append(path(random)),
            3 => Self::Cut(path(random), random.u64(..10_000)),
            4 => Self::Mode(any(random), 0o700 + random.u32(..0o100)),
            5 => Self::Link(path(random), path(random)),
            6 => Self::Symlink(path(random), path(random)),
            7 => Self::Rename(any(random), any(random)),
            8 | 9 => Self::Remove(path(random)),
            10 => Self::MakeDirectory(any(random)),
            _ => Self::RemoveDirectory(any(random)),
        }
    }

    fn apply(&self, root: &Path) -> io::Result<()> {
        let at = |path: &PathBuf| root.join(path);
        match self {
            Self::Write(path, data) => fs::write(at(path), data),
            Self::Append(path) => {
                io::Write::write_all(&mut fs::OpenOptions::new().append(true).open(at(path))?, b"more")
            }
            Self::Cut(path, len) => fs::OpenOptions::new().write(true).open(at(path))?.set_len(*len),
            Self::Mode(path, mode) => fs::set_permissions(at(path), fs::Permissions::from_mode(*mode)),
            Self::Link(from, to) => fs::hard_link(at(from), at(to)),
            Self::Symlink(target, path) => symlink(target, at(path)),
            Self::Rename(from, to) => fs::rename(at(from), at(to)),
            Self::Remove(path) => fs::remove_file(at(path)),
            Self::MakeDirectory(path) => fs::create_dir(at(path)),
            Self::RemoveDirectory(path) => fs::remove_dir(at(path)),
        }
    }
}

/// Returns the state of every possible name in the tree.
fn shown(root: &Path) -> BTreeMap<PathBuf, Option<Shown>> {
    let names = DIRECTORIES.iter().flat_map(|dir| NAMES.iter().map(move |name| Path::new(dir).join(name)));
    let all = names.chain(DIRECTORIES.iter().map(PathBuf::from));
    all.map(|path| (path.clone(), show(&root.join(path)).ok())).collect()
}

fn show(path: &Path) -> io::Result<Shown> {
    let meta = fs::symlink_metadata(path)?;
    let content = if meta.is_symlink() {
        fs::read_link(path)?.into_os_string().into_encoded_bytes()
    } else if meta.is_dir() {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_encoded_bytes()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        names.join(&b'/')
    } else {
        fs::read(path)?
    };
    // Sizes of directories differ between file systems.
    Ok((meta.mode(), meta.nlink(), if meta.is_dir() { 0 } else { meta.len() }, content))
}

/// Applies `steps` random changes to `host`, through it or one of its `mounts`, and to the private `twin`.
/// Compares outcomes, and the trees after each step.
pub fn run(seed: u64, steps: usize, host: &Path, twin: &Path, mounts: &[PathBuf]) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    for step in 0..steps {
        let change = Change::random(&mut random, step);
        let by = match random.usize(..1 + mounts.len()) {
            0 => host,
            mount => &mounts[mount - 1],
        };
        let expected = change.apply(twin).map_err(|error| error.raw_os_error());
        let outcome = change.apply(by).map_err(|error| error.raw_os_error());
        let told = |what: String| format!("seed {seed}, step {step}: {change:?} by {}: {what}", by.display());
        if outcome != expected {
            return Err(told(format!("{outcome:?}, and {expected:?} on the plain directory")));
        }
        let expected = shown(twin);
        let until = Instant::now() + BOUND;
        for mount in mounts {
            loop {
                let now = shown(mount);
                if now == expected {
                    break;
                }
                if Instant::now() >= until {
                    let wrong = now.iter().find(|(path, it)| expected.get(*path) != Some(*it));
                    let right = wrong.and_then(|(path, _)| expected.get(path));
                    return Err(told(format!("{} shows {wrong:?}, not {right:?}", mount.display())));
                }
                thread::yield_now();
            }
        }
    }
    Ok(())
}

//! Where to mount.

mod mountinfo;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::assembly::options::submounts::Submounts;
use crate::failure::{Failure, Outcome};

pub use mountinfo::{MountEntry, MountTable, mounted_at};

/// The type under which our mounts are listed.
pub const KIND: &str = "fuse.tombolo";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Absolute, without links.
    pub path: PathBuf,
    /// Whether a mount of ours whose server died is still there, in the way.
    pub dead: bool,
}

impl MountPoint {
    /// Looks whether `path` is a directory where nothing is mounted yet.
    pub fn checked(path: &Path) -> Result<Self, Failure> {
        let mounting = format!("mount at {}", path.display());
        let cannot = |error: &io::Error| Failure::cannot(&mounting, error);
        let point = absolute(path).map_err(|error| cannot(&error))?;
        let entry = mounted_at(&point).map_err(|error| cannot(&error))?;
        let ours = entry.as_ref().is_some_and(|entry| entry.kind == KIND);
        // What the kernel still knows of a dead mount's root it tells for a while; to list it, it asks.
        let there = point
            .metadata()
            .and_then(|metadata| if ours { fs::read_dir(&point).map(|_| metadata) } else { Ok(metadata) });
        match (&there, entry) {
            (Err(error), Some(entry))
                if error.kind() == io::ErrorKind::NotConnected && entry.kind == KIND =>
            {
                Ok(Self { path: point, dead: true })
            }
            (Err(error), _) => Err(cannot(error)),
            (Ok(metadata), _) if !metadata.is_dir() => {
                Err(Failure::cannot(&mounting, "it is not a directory"))
            }
            // systemd keeps an autofs mount in the place of one to come.
            (Ok(_), Some(entry)) if entry.kind != "autofs" => {
                let busy = format!("busy: a file system of type {} is mounted there", entry.kind);
                let remedy = format!("unmount it first: tombolo umount {}", point.display());
                Err(Failure::cannot(&mounting, busy).remedy(remedy))
            }
            (Ok(_), _) => Ok(Self { path: point, dead: false }),
        }
    }

    /// Refuses a place inside the directory that is to be shown there: its server would ask itself, and wait
    /// for itself. Where mounts are hidden it never gets there.
    pub fn is_apart_from(&self, dir: &Path, submounts: Submounts) -> Outcome {
        let inside = self.path.starts_with(dir) && self.path != dir;
        if submounts == Submounts::Hide || !inside {
            return Ok(());
        }
        let mounting = format!("mount at {}", self.path.display());
        let reason = format!("it lies inside of {}", dir.display());
        Err(Failure::cannot(mounting, reason).remedy("choose a place outside, or hide submounts"))
    }

    /// The path as one word of at most so many bytes, for the names of files: its end, which tells most.
    pub fn word(&self, bytes_max: usize) -> String {
        let word = self.path.to_string_lossy().trim_matches('/').replace('/', "-");
        let start = word.char_indices().map(|(at, _)| at).find(|at| word.len() - at <= bytes_max);
        word[start.unwrap_or(0)..].trim_start_matches('-').to_owned()
    }
}

/// The path without links and relative parts, but for the last component: where a server died, that one
/// cannot be asked.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => {
                    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                    Ok(parent.canonicalize()?.join(name))
                }
                _ => Err(error),
            }
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_keeps_its_end() {
        let point = MountPoint { path: "/srv/größe/mnt".into(), dead: false };
        assert_eq!(point.word(100), "srv-größe-mnt");
        assert_eq!(point.word(7), "ße-mnt".to_owned());
        assert_eq!(point.word(4), "mnt");
    }
}

//! Mount points: their validation, and the mounts that exist at them.

mod mountinfo;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::assembly::options::submounts::Submounts;
use crate::failure::{Failure, OrCannot, Outcome};

pub use mountinfo::{MountEntry, MountTable, mounted_at};

/// File system type of Tombolo's mounts.
pub const KIND: &str = "fuse.tombolo";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Absolute path without symbolic links.
    pub path: PathBuf,
    /// `true` if a mount of ours with a dead server is still at the path.
    pub dead: bool,
}

impl MountPoint {
    /// Checks that `path` is a directory with nothing mounted on it except an autofs mount, or is a mount
    /// of ours with a dead server.
    pub fn checked(path: &Path) -> Result<Self, Failure> {
        let mounting = format!("mount at {}", path.display());
        let point = absolute(path).or_cannot(&mounting)?;
        let entry = mounted_at(&point).or_cannot(&mounting)?;
        let ours = entry.as_ref().is_some_and(|entry| entry.kind == KIND);
        // The kernel may answer from cached attributes of a dead mount's root; listing queries the server.
        let there = point
            .metadata()
            .and_then(|metadata| if ours { fs::read_dir(&point).map(|_| metadata) } else { Ok(metadata) });
        match (&there, entry) {
            (Err(error), Some(entry))
                if error.kind() == io::ErrorKind::NotConnected && entry.kind == KIND =>
            {
                Ok(Self { path: point, dead: true })
            }
            (Err(error), _) => Err(Failure::cannot(&mounting, error)),
            (Ok(metadata), _) if !metadata.is_dir() => {
                Err(Failure::cannot(&mounting, "it is not a directory"))
            }
            // systemd keeps an autofs mount at the mount point.
            (Ok(_), Some(entry)) if entry.kind != "autofs" => {
                let busy = format!("busy: a file system of type {} is mounted there", entry.kind);
                let remedy = format!("unmount it first: tombolo umount {}", point.display());
                Err(Failure::cannot(&mounting, busy).remedy(remedy))
            }
            (Ok(_), _) => Ok(Self { path: point, dead: false }),
        }
    }

    /// Refuses a mount point inside the exported directory, where the server would wait for itself. Allowed
    /// with hidden submounts, which the server never enters.
    pub fn is_apart_from(&self, dir: &Path, submounts: Submounts) -> Outcome {
        let inside = self.path.starts_with(dir) && self.path != dir;
        if submounts == Submounts::Hide || !inside {
            return Ok(());
        }
        let mounting = format!("mount at {}", self.path.display());
        let reason = format!("it is inside {}", dir.display());
        Err(Failure::cannot(mounting, reason).remedy("choose a mount point outside, or hide submounts"))
    }

    /// Returns the path as one word of at most `bytes_max` bytes, for file names: its end, the most specific
    /// part.
    pub fn word(&self, bytes_max: usize) -> String {
        let word = self.path.to_string_lossy().trim_matches('/').replace('/', "-");
        let start = word.char_indices().map(|(at, _)| at).find(|at| word.len() - at <= bytes_max);
        word[start.unwrap_or(0)..].trim_start_matches('-').to_owned()
    }
}

/// Returns the absolute path of a mount point and what is mounted there; fails if nothing is.
pub fn existing(path: &Path, doing: &str) -> Result<(PathBuf, MountEntry), Failure> {
    let point = absolute(path).or_cannot(doing)?;
    let entry = mounted_at(&point).or_cannot(doing)?;
    let entry = entry.ok_or_else(|| Failure::cannot(doing, "nothing is mounted there"))?;
    Ok((point, entry))
}

/// Resolves symbolic links and relative parts, except in the last component if it is a dead mount, which
/// cannot be accessed.
fn absolute(path: &Path) -> io::Result<PathBuf> {
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

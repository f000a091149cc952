//! Trees that can be exported.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::fs::Export;
use tombolo_layer_basic::readonly;

use crate::failure::{Failure, OrCannot};
use crate::location::{
    self, LinkOptions, Location, NfsOptions, NfsShmUrl, NfsUrl, NotMounted, OpenOptions, ShmLocation,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// Local directory, as a canonical path.
    Dir(PathBuf),
    /// Export of another server over shared memory.
    Shm(ShmLocation),
    /// Export of an NFS server.
    Nfs(NfsUrl),
    /// Export of an NFS server over shared memory.
    NfsShm(NfsShmUrl),
}

/// A tree opened by [`Tree::open`].
pub struct OpenedTree {
    pub export: Arc<dyn Export>,
    /// NFS client of the tree, for its counters; `None` if the tree is not on an NFS server.
    pub client: Option<Arc<NfsExport>>,
}

impl Tree {
    /// Parses a tree argument: a location as for `tombolo mount`, or an existing directory.
    pub fn of_word(word: &Path) -> Result<Self, Failure> {
        let serving = format!("serve {}", word.display());
        let not_there = |error| Failure::cannot(&serving, &error);
        let dir = match Location::of_word(word.as_os_str()) {
            Ok(Location::Shm(place)) => return place.absolute().map(Self::Shm).map_err(not_there),
            Ok(Location::NfsShm(url)) => return url.absolute().map(Self::NfsShm).map_err(not_there),
            // A directory can have a name of the form SERVER:/EXPORT.
            Ok(Location::Nfs(url)) if Self::is_location(word) => return Ok(Self::Nfs(url)),
            Ok(Location::Dir(dir)) if Self::is_location(word) => dir,
            // An invalid location is reported; anything else may be the name of a directory.
            Err(mistake) if Self::is_location(word) => return Err(Failure::usage(mistake)),
            _ => word.to_owned(),
        };
        let dir = dir.canonicalize().map_err(not_there)?;
        if !dir.is_dir() {
            return Err(Failure::cannot(&serving, "it is not a directory"));
        }
        Ok(Self::Dir(dir))
    }

    /// Returns `true` if the argument is a location with a scheme (`dir:` included) rather than a plain path.
    pub fn is_location(word: &Path) -> bool {
        let word = word.to_str().and_then(|word| word.split_once(':'));
        word.is_some_and(|(front, rest)| match front {
            "dir" => true,
            "nfs" | "nfs+ssh" => rest.starts_with("//"),
            _ if ShmLocation::is_scheme(front) || NfsShmUrl::is_scheme(front) => true,
            // Unknown schemes are reported; a directory with such a name is written with ./ in front.
            _ => rest.starts_with("//") && is_scheme(front),
        })
    }

    /// Returns the default name: the last component.
    pub fn name(&self) -> String {
        match self {
            Self::Dir(dir) => dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Shm(place) | Self::NfsShm(NfsShmUrl { place, .. }) => {
                place.name().unwrap_or_default().to_owned()
            }
            Self::Nfs(url) => {
                let path = String::from_utf8_lossy(&url.path);
                path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
            }
        }
    }

    pub fn dir(&self) -> Option<&Path> {
        match self {
            Self::Dir(dir) => Some(dir),
            _ => None,
        }
    }

    /// Opens the tree, with `options` for a directory and `nfs` for an NFS server. Makes the first connection
    /// to a server.
    pub fn open(&self, options: DirOptions, nfs: NfsOptions) -> Result<OpenedTree, Failure> {
        let serving = format!("serve {self}");
        let asked = OpenOptions { read_only: options.read_only, nfs, ..OpenOptions::default() };
        let mounted = |mounted: Result<NfsExport, NotMounted>| {
            let client = Arc::new(mounted.map_err(|failed| failed.while_doing(&serving))?);
            Ok(OpenedTree { export: client.clone(), client: Some(client) })
        };
        let export: Arc<dyn Export> = match self {
            Self::Dir(dir) => Arc::new(LocalDir::open(dir, options).or_cannot(&serving)?),
            Self::Shm(place) => {
                let opened = Location::Shm(place.clone()).open(&OpenOptions::default())?;
                if !opened.path.is_empty() {
                    let only_above = "no export has that name, only a parent directory";
                    return Err(Failure::cannot(&serving, only_above));
                }
                match options.read_only {
                    true => Arc::new(readonly::over(opened.export)),
                    false => opened.export,
                }
            }
            Self::Nfs(url) => {
                let patience = url.options.clone().then(&asked.nfs).retry().unwrap_or_default();
                let attempt = || location::mount(url, &asked);
                return mounted(location::retry_until_reachable(Some(Instant::now()), patience, attempt));
            }
            Self::NfsShm(url) => {
                return mounted(location::mount_nfs_shm(url, &LinkOptions::default(), &asked));
            }
        };
        Ok(OpenedTree { export, client: None })
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dir(dir) => dir.display().fmt(f),
            Self::Shm(place) => place.fmt(f),
            Self::Nfs(url) => url.fmt(f),
            Self::NfsShm(url) => url.fmt(f),
        }
    }
}

/// Returns `true` if the word has the syntax of a URL scheme (RFC 3986 §3.1).
fn is_scheme(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_word_is_shm_location_or_directory() {
        let top = tempfile::tempdir().expect("a directory");
        let odd = top.path().join("a:b");
        std::fs::create_dir(&odd).expect("made");
        let tree = |word: &Path| Tree::of_word(word).map_err(|failure| format!("{failure:?}"));
        assert_eq!(tree(&odd), Ok(Tree::Dir(odd.canonicalize().expect("there"))));
        let place = tree(Path::new("shm:/run/s/src")).expect("a place");
        assert_eq!((place.to_string().as_str(), place.name().as_str()), ("shm:/run/s/src", "src"));
        assert!(place.dir().is_none());
        assert!(tree(Path::new("shm:s")).expect_err("no name").contains("write shm:SOCKET/NAME"));
        assert!(tree(&top.path().join("none")).is_err());
        for word in ["s3://bucket/src", "https://host/src", "nbd://host/src"] {
            let mistake = tree(Path::new(word)).expect_err(word);
            assert!(mistake.contains("unknown scheme"), "{mistake}");
        }
        for word in ["./s3://bucket", "3s://bucket", "a/b://c", "host:/src"] {
            assert!(!Tree::is_location(Path::new(word)), "{word}");
        }
    }
}

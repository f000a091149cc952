//! Opening of local directories and files.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};

use crate::failure::{Failure, OrCannot};

use super::{End, OpenOptions, Opened};

/// Opens the directory itself, or the parent directory of a file or of a name to be created.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Opened, Failure> {
    let opening = format!("open {}", path.display());
    let (dir, path) = split(path, options.end).or_cannot(&opening)?;
    let options = DirOptions { read_only: options.read_only, ..DirOptions::default() };
    let export = LocalDir::open(&dir, options).or_cannot(&opening)?;
    Ok(Opened { export: Arc::new(export), path, nfs: None })
}

/// Splits a path into an existing directory and a path within it.
fn split(path: &Path, end: End) -> io::Result<(PathBuf, Vec<u8>)> {
    // The system resolves the path, because a server of the directory cannot follow links that lead outside.
    let target = path.canonicalize();
    match (&target, path.file_name(), end) {
        (Ok(target), _, End::Target) if target.is_dir() => Ok((target.clone(), Vec::new())),
        (Ok(target), _, End::Target) => in_parent(target),
        // `.`, `..` and `/` are not names.
        (Ok(target), None, End::Name) => Ok((target.clone(), Vec::new())),
        (Err(error), None, _) => Err(error.kind().into()),
        (_, Some(_), _) => in_parent(path),
    }
}

fn in_parent(path: &Path) -> io::Result<(PathBuf, Vec<u8>)> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::NotFound)?;
    let parent = parent.canonicalize()?;
    if !parent.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok((parent, name.as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn local_path_splits_into_directory_and_name() {
        let top = tempfile::tempdir().expect("a directory");
        let top = top.path().canonicalize().expect("there");
        fs::create_dir(top.join("dir")).expect("made");
        fs::write(top.join("file"), "x").expect("made");
        symlink("dir", top.join("link")).expect("made");
        let at = |path: &str, end| split(&top.join(path), end).map_err(|error| error.kind());
        let within = |dir: &str, name: &str| Ok((top.join(dir), name.as_bytes().to_vec()));
        assert_eq!(at("dir", End::Target), within("dir", ""));
        assert_eq!(at("link", End::Target), within("dir", ""));
        assert_eq!(at("link", End::Name), Ok((top.clone(), b"link".to_vec())));
        assert_eq!(at("dir/", End::Name), Ok((top.clone(), b"dir".to_vec())));
        assert_eq!(at("link/new", End::Target), within("dir", "new"));
        assert_eq!(at("file", End::Target), Ok((top.clone(), b"file".to_vec())));
        assert_eq!(at("dir/..", End::Name), Ok((top.clone(), Vec::new())));
        assert_eq!(at("none/new", End::Target), Err(io::ErrorKind::NotFound));
        assert_eq!(at("file/new", End::Target), Err(io::ErrorKind::NotADirectory));
    }
}

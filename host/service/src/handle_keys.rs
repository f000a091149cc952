//! The file of a server's handle [`Keys`] in its state directory.
//!
//! The file is text, as specified in `docs/formats/handles.md`. With a copy of it, servers of the same file
//! system accept each other's handles.

use thiserror::Error;

use crate::state_dir::{ServerFiles, StateError};
use tombolo_host_runtime::signing_keys::{KeyId, Keys, KeysError, MalformedKeys};

/// Name of the file.
pub const FILE_NAME: &str = "handle-keys";

/// Maximum length of a valid file in bytes.
const FILE_BYTES_MAX: usize = 64 << 10;

/// Error of reading or changing the keys.
#[derive(Debug, Error)]
pub enum HandleKeysError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The file is malformed. It is never repaired: a wrong guess would make every client's handles stale.
    #[error("{FILE_NAME}, {0}")]
    Malformed(MalformedKeys),
    /// There are no keys: the server has never issued handles.
    #[error(
        "there are no keys yet: they are made when a server serves NFS or shared memory for the first time"
    )]
    None,
    /// The change is invalid.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// Returns a server's keys; creates them if there are none.
pub fn open(files: &ServerFiles) -> Result<Keys, HandleKeysError> {
    let _lock = files.lock()?;
    match parse_file(files.read(FILE_NAME)?.as_deref())? {
        Some(keys) => Ok(keys),
        None => write(files, Keys::random()?),
    }
}

/// Returns a server's keys, or [`HandleKeysError::None`] if there are none.
pub fn read(files: &ServerFiles) -> Result<Keys, HandleKeysError> {
    parse_file(files.read(FILE_NAME)?.as_deref())?.ok_or(HandleKeysError::None)
}

/// Adds a new key, which signs from now on. Returns all keys.
pub fn rotate(files: &ServerFiles) -> Result<Keys, HandleKeysError> {
    let _lock = files.lock()?;
    write(files, read(files)?.rotate()?)
}

/// Retires a key: handles signed with it become stale.
pub fn retire(files: &ServerFiles, id: KeyId) -> Result<Keys, HandleKeysError> {
    let _lock = files.lock()?;
    write(files, read(files)?.retire(id)?)
}

fn write(files: &ServerFiles, keys: Keys) -> Result<Keys, HandleKeysError> {
    files.write(FILE_NAME, keys.text().as_bytes())?;
    Ok(keys)
}

fn parse_file(bytes: Option<&[u8]>) -> Result<Option<Keys>, HandleKeysError> {
    let Some(bytes) = bytes else { return Ok(None) };
    let wrong = |what| HandleKeysError::Malformed(MalformedKeys { line: 1, what });
    if bytes.len() > FILE_BYTES_MAX {
        return Err(wrong("far too long"));
    }
    let text = str::from_utf8(bytes).map_err(|_| wrong("not text"))?;
    Keys::parse(text).map(Some).map_err(HandleKeysError::Malformed)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::state_dir::StateDir;

    fn ids(keys: &Keys) -> Vec<u8> {
        keys.ids().map(|KeyId(id)| id).collect()
    }

    #[test]
    fn keys_are_made_once_rotated_and_retired() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(&dir.path().join("state")).expect("state");
        let files = state.files_of("server").expect("a server's files");
        assert!(matches!(read(&files), Err(HandleKeysError::None)));
        assert!(matches!(rotate(&files), Err(HandleKeysError::None)));
        let first = open(&files).expect("made");
        assert_eq!(open(&files).expect("opened"), first);
        let path = dir.path().join("state/server/handle-keys");
        assert_eq!(path.metadata().expect("the file").permissions().mode() & 0o777, 0o600);
        let second = rotate(&files).expect("rotate");
        assert_eq!(ids(&second), [2, 1]);
        assert_eq!(second.find(KeyId(1)), Some(first.newest().1));
        assert_ne!(second.newest().1, first.newest().1);
        assert!(matches!(retire(&files, KeyId(2)), Err(HandleKeysError::Keys(KeysError::Newest(_)))));
        assert!(matches!(retire(&files, KeyId(9)), Err(HandleKeysError::Keys(KeysError::Unknown(_)))));
        let third = retire(&files, KeyId(1)).expect("retire");
        assert_eq!((ids(&third), third.retired()), (vec![2], &[KeyId(1)][..]));
        assert_eq!(read(&files).expect("read"), third);
    }

    #[test]
    fn an_id_is_never_given_twice() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(&dir.path().join("state")).expect("state");
        let files = state.files_of("server").expect("a server's files");
        let mut text = String::from("version 1\nkey 254 000102030405060708090a0b0c0d0e0f\n");
        for id in 0..=252 {
            let _ = writeln!(text, "retired {id}");
        }
        files.write(FILE_NAME, text.as_bytes()).expect("write");
        assert_eq!(ids(&rotate(&files).expect("one is left")), [255, 254]);
        retire(&files, KeyId(254)).expect("retire");
        assert_eq!(ids(&rotate(&files).expect("the last one")), [253, 255]);
        assert!(matches!(rotate(&files), Err(HandleKeysError::Keys(KeysError::Full))));
    }

    #[test]
    fn a_malformed_file_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(&dir.path().join("state")).expect("state");
        let files = state.files_of("server").expect("a server's files");
        files.write(FILE_NAME, b"version 2\n").expect("write");
        let error = open(&files).expect_err("another version");
        assert!(error.to_string().starts_with("handle-keys, line 1: "), "{error}");
        assert_eq!(files.read(FILE_NAME).expect("read").as_deref(), Some(&b"version 2\n"[..]));
    }
}

//! What handles are signed with that clients may keep: a file of keys in the state directory.
//!
//! The newest key signs; older ones are good until they are retired, so that clients that hold handles do not notice a new
//! one. The file is text, described in `docs/formats/handles.md`; whoever copies it to another server of the same file
//! system makes both accept each other's handles.

use std::fmt::Write as _;

use thiserror::Error;
use tombolo_sys::random;

use crate::state_dir::{ServerFiles, StateError};

/// The name of the file in a server's state.
pub const FILE_NAME: &str = "handle-keys";

/// A file that is longer is none of ours, in bytes.
const FILE_BYTES_MAX: usize = 64 << 10;

/// A key, of 128 bits. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 16]);

/// Names a key in handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u8);

/// All keys of a server, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    newest: (KeyId, Key),
    /// From younger to older.
    older: Vec<(KeyId, Key)>,
    retired: Vec<KeyId>,
}

/// What is wrong with the keys.
#[derive(Debug, Error)]
pub enum KeysError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The file makes no sense. It is never repaired: a guess would make every client's handles stale.
    #[error("{FILE_NAME}, line {line}: {what}")]
    Malformed {
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// There are no keys yet: the server has never given handles out.
    #[error(
        "there are no keys yet: they are made when a server serves NFS or memory in common for the first time"
    )]
    None,
    /// The system gives no random bytes.
    #[error("no random bytes for a key")]
    Random(#[source] tombolo_sys::Errno),
    /// There is no such key.
    #[error("there is no key {}", .0.0)]
    Unknown(KeyId),
    /// It is the one that signs.
    #[error("key {} signs new handles: make another one first, with `tombolo keys rotate`", .0.0)]
    Newest(KeyId),
    /// All 256 ids are in use or retired.
    #[error("there are no ids left for another key")]
    Full,
}

impl Key {
    /// A new one.
    pub fn random() -> Result<Self, KeysError> {
        let mut bytes = [0; 16];
        random::fill(&mut bytes).map_err(KeysError::Random)?;
        Ok(Self(bytes))
    }

    /// Its bytes, for whoever signs.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

impl Keys {
    /// One new key, with id 1.
    pub fn random() -> Result<Self, KeysError> {
        Ok(Self { newest: (KeyId(1), Key::random()?), older: Vec::new(), retired: Vec::new() })
    }

    /// The keys of a server, made if there are none.
    pub fn open(files: &ServerFiles) -> Result<Self, KeysError> {
        Self::change(files, |keys| Ok(if keys.is_none() { Some(Self::random()?) } else { None }))
    }

    /// The keys of a server, if there are any.
    pub fn read(files: &ServerFiles) -> Result<Self, KeysError> {
        parse_file(files.read(FILE_NAME)?.as_deref())?.ok_or(KeysError::None)
    }

    /// Makes a new key, which signs from now on.
    pub fn rotate(files: &ServerFiles) -> Result<Self, KeysError> {
        Self::change(files, |keys| {
            let mut keys = keys.ok_or(KeysError::None)?;
            let id = keys.free_id().ok_or(KeysError::Full)?;
            keys.older.insert(0, std::mem::replace(&mut keys.newest, (id, Key::random()?)));
            Ok(Some(keys))
        })
    }

    /// Gives a key up: handles that were signed with it are stale from now on.
    pub fn retire(files: &ServerFiles, id: KeyId) -> Result<Self, KeysError> {
        Self::change(files, |keys| {
            let mut keys = keys.ok_or(KeysError::None)?;
            if keys.newest.0 == id {
                return Err(KeysError::Newest(id));
            }
            let index = keys.older.iter().position(|key| key.0 == id).ok_or(KeysError::Unknown(id))?;
            keys.older.remove(index);
            keys.retired.push(id);
            Ok(Some(keys))
        })
    }

    /// The ids, from the newest to the oldest.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> {
        std::iter::once(self.newest.0).chain(self.older.iter().map(|key| key.0))
    }

    /// The ids of those that were given up.
    pub fn retired(&self) -> &[KeyId] {
        &self.retired
    }

    /// The one that signs.
    pub fn newest(&self) -> (KeyId, &Key) {
        (self.newest.0, &self.newest.1)
    }

    /// A key that is good.
    pub fn find(&self, id: KeyId) -> Option<&Key> {
        std::iter::once(&self.newest).chain(&self.older).find(|key| key.0 == id).map(|key| &key.1)
    }

    /// Whether it was given up.
    pub fn is_retired(&self, id: KeyId) -> bool {
        self.retired.contains(&id)
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let mut keys = Vec::new();
        let mut retired = Vec::new();
        let mut version = false;
        for (index, line) in text.lines().enumerate() {
            let wrong = |what| KeysError::Malformed { line: index + 1, what };
            let id = |text: &str| text.parse().map(KeyId).map_err(|_| wrong("an id is 0 to 255"));
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [comment, ..] if comment.starts_with('#') => {}
                ["version", "1"] => version = true,
                _ if !version => return Err(wrong("`version 1` comes first")),
                ["key", number, hex] => {
                    keys.push((id(number)?, key(hex).ok_or_else(|| wrong("a key is 32 hex digits"))?));
                }
                ["retired", number] => retired.push(id(number)?),
                _ => return Err(wrong("neither `key ID HEX` nor `retired ID`")),
            }
        }
        let wrong = |what| KeysError::Malformed { line: text.lines().count(), what };
        let mut ids: Vec<KeyId> = keys.iter().map(|key| key.0).chain(retired.iter().copied()).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(wrong("two keys with one id"));
        }
        let mut keys = keys.into_iter();
        let newest = keys.next().ok_or_else(|| wrong("no key"))?;
        Ok(Self { newest, older: keys.collect(), retired })
    }

    fn text(&self) -> String {
        let mut text = String::from(
            "# What file handles are signed with. Keep it secret; `tombolo keys` changes it.\nversion 1\n",
        );
        for (KeyId(id), Key(bytes)) in std::iter::once(&self.newest).chain(&self.older) {
            let _ = write!(text, "key {id} ");
            for byte in bytes {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
        for KeyId(id) in &self.retired {
            let _ = writeln!(text, "retired {id}");
        }
        text
    }

    /// Reads the keys, and writes what `change` makes of them, if anything.
    fn change(
        files: &ServerFiles,
        change: impl FnOnce(Option<Self>) -> Result<Option<Self>, KeysError>,
    ) -> Result<Self, KeysError> {
        let turn = files.lock()?;
        let before = parse_file(files.read(FILE_NAME)?.as_deref())?;
        let after = match change(before.clone())? {
            Some(after) => {
                files.write(FILE_NAME, after.text().as_bytes())?;
                Some(after)
            }
            None => before,
        };
        drop(turn);
        after.ok_or(KeysError::None)
    }

    /// An id that no handle can bear: the next one that is neither in use nor retired.
    fn free_id(&self) -> Option<KeyId> {
        let taken = |id: &KeyId| self.find(*id).is_some() || self.is_retired(*id);
        let KeyId(newest) = self.newest.0;
        (1..=u8::MAX).map(|step| KeyId(newest.wrapping_add(step))).find(|id| !taken(id))
    }
}

fn parse_file(bytes: Option<&[u8]>) -> Result<Option<Keys>, KeysError> {
    let Some(bytes) = bytes else { return Ok(None) };
    let wrong = |what| KeysError::Malformed { line: 1, what };
    if bytes.len() > FILE_BYTES_MAX {
        return Err(wrong("far too long"));
    }
    Keys::parse(str::from_utf8(bytes).map_err(|_| wrong("not text"))?).map(Some)
}

fn key(hex: &str) -> Option<Key> {
    let mut key = [0; 16];
    if hex.len() != 2 * key.len() || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(Key(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::StateDir;
    use std::os::unix::fs::PermissionsExt;

    fn ids(keys: &Keys) -> Vec<u8> {
        keys.ids().map(|KeyId(id)| id).collect()
    }

    #[test]
    fn keys_are_made_once_rotated_and_retired() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::open(&dir.path().join("state")).expect("state");
        let files = state.files_of("server").expect("a server's files");
        assert!(matches!(Keys::read(&files), Err(KeysError::None)));
        assert!(matches!(Keys::rotate(&files), Err(KeysError::None)));
        let first = Keys::open(&files).expect("made");
        assert_eq!(Keys::open(&files).expect("opened"), first);
        let path = dir.path().join("state/server/handle-keys");
        assert_eq!(path.metadata().expect("the file").permissions().mode() & 0o777, 0o600);
        let second = Keys::rotate(&files).expect("rotate");
        assert_eq!(ids(&second), [2, 1]);
        assert_eq!(second.find(KeyId(1)), Some(first.newest().1));
        assert_ne!(second.newest().1, first.newest().1);
        assert!(matches!(Keys::retire(&files, KeyId(2)), Err(KeysError::Newest(_))));
        assert!(matches!(Keys::retire(&files, KeyId(9)), Err(KeysError::Unknown(_))));
        let third = Keys::retire(&files, KeyId(1)).expect("retire");
        assert_eq!((ids(&third), third.retired()), (vec![2], &[KeyId(1)][..]));
        assert_eq!(Keys::read(&files).expect("read"), third);
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
        assert_eq!(ids(&Keys::rotate(&files).expect("one is left")), [255, 254]);
        Keys::retire(&files, KeyId(254)).expect("retire");
        assert_eq!(ids(&Keys::rotate(&files).expect("the last one")), [253, 255]);
        assert!(matches!(Keys::rotate(&files), Err(KeysError::Full)));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_refused_and_left_alone() {
        let good = "key 1 000102030405060708090a0b0c0d0e0f";
        for text in [
            String::new(),
            "version 2\n".into(),
            good.into(),
            "version 1\n".into(),
            format!("version 1\n{good}\n{good}\n"),
            format!("version 1\n{good}\nretired 1\n"),
            format!("version 1\n{good}0\n"),
            "version 1\nkey 256 000102030405060708090a0b0c0d0e0f\n".into(),
            "version 1\nkey 1 +00102030405060708090a0b0c0d0e0f\n".into(),
            format!("version 1\n{good}\nbanana\n"),
        ] {
            assert!(matches!(Keys::parse(&text), Err(KeysError::Malformed { .. })), "{text:?}");
        }
        assert!(Keys::parse(&format!("# a remark\n\nversion 1\n{good}\n")).is_ok());
    }

    #[test]
    fn no_key_is_shown() {
        let keys = Keys::parse("version 1\nkey 1 deadbeefdeadbeefdeadbeefdeadbeef\n").expect("keys");
        let shown = format!("{keys:?}");
        assert!(!shown.contains("deadbeef") && !shown.contains("222") && shown.contains("secret"), "{shown}");
    }
}

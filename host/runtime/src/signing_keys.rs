//! Keys that sign what clients store and return: file handles, and references over links.
//!
//! The newest key of [`Keys`] signs; older ones are valid until the operator retires them, so that a new key
//! does not affect clients with existing handles.
//!
//! Non-goals: the file that preserves them over restarts (`tombolo_host_service::handle_keys`), the signed
//! data and the algorithm.

use std::fmt::Write as _;

use thiserror::Error;
use tombolo_sys::random;

/// A key of 128 bits, hidden from debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 16]);

/// Identifier of a key, which each signed handle contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u8);

/// All keys of a server, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    newest: (KeyId, Key),
    /// Other valid keys, from newer to older.
    older: Vec<(KeyId, Key)>,
    retired: Vec<KeyId>,
}

/// Reason why keys cannot be created or changed.
#[derive(Debug, Error)]
pub enum KeysError {
    /// Random numbers are not available.
    #[error("no random numbers for a key")]
    Random(#[source] tombolo_sys::Errno),
    /// The key does not exist.
    #[error("no such key: {}", .0.0)]
    Unknown(KeyId),
    /// The key is the one that signs.
    #[error("key {} signs new handles: create another one first, with `tombolo keys rotate`", .0.0)]
    Newest(KeyId),
    /// All 256 ids are in use or retired.
    #[error("no key ids left")]
    Full,
}

/// An error in the text of keys.
#[derive(Debug, Error)]
#[error("line {line}: {what}")]
pub struct MalformedKeys {
    /// Line number, from 1.
    pub line: usize,
    /// Description of the error.
    pub what: &'static str,
}

impl Key {
    /// Returns a new random key.
    pub fn random() -> Result<Self, KeysError> {
        let mut bytes = [0; 16];
        random::fill(&mut bytes).map_err(KeysError::Random)?;
        Ok(Self(bytes))
    }

    /// Returns the key's bytes, for signing.
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
    /// Returns one new key, with id 1.
    pub fn random() -> Result<Self, KeysError> {
        Ok(Self { newest: (KeyId(1), Key::random()?), older: Vec::new(), retired: Vec::new() })
    }

    /// Adds a new key, which signs from now on.
    pub fn rotate(mut self) -> Result<Self, KeysError> {
        let id = self.free_id().ok_or(KeysError::Full)?;
        self.older.insert(0, std::mem::replace(&mut self.newest, (id, Key::random()?)));
        Ok(self)
    }

    /// Removes a key: handles signed with it are stale from now on.
    pub fn retire(mut self, id: KeyId) -> Result<Self, KeysError> {
        if self.newest.0 == id {
            return Err(KeysError::Newest(id));
        }
        let index = self.older.iter().position(|key| key.0 == id).ok_or(KeysError::Unknown(id))?;
        self.older.remove(index);
        self.retired.push(id);
        Ok(self)
    }

    /// Returns the ids, from the newest to the oldest.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> {
        std::iter::once(self.newest.0).chain(self.older.iter().map(|key| key.0))
    }

    /// Returns the ids of retired keys.
    pub fn retired(&self) -> &[KeyId] {
        &self.retired
    }

    /// Returns the signing key.
    pub fn newest(&self) -> (KeyId, &Key) {
        (self.newest.0, &self.newest.1)
    }

    /// Returns the key with this id, unless it is unknown or retired.
    pub fn find(&self, id: KeyId) -> Option<&Key> {
        std::iter::once(&self.newest).chain(&self.older).find(|key| key.0 == id).map(|key| &key.1)
    }

    /// Returns `true` if the key was retired.
    pub fn is_retired(&self, id: KeyId) -> bool {
        self.retired.contains(&id)
    }

    /// Parses the text of keys (docs/formats/handles.md).
    pub fn parse(text: &str) -> Result<Self, MalformedKeys> {
        let mut keys = Vec::new();
        let mut retired = Vec::new();
        let mut version = false;
        for (index, line) in text.lines().enumerate() {
            let wrong = |what| MalformedKeys { line: index + 1, what };
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
        let wrong = |what| MalformedKeys { line: text.lines().count(), what };
        let mut ids: Vec<KeyId> = keys.iter().map(|key| key.0).chain(retired.iter().copied()).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(wrong("two keys with one id"));
        }
        let mut keys = keys.into_iter();
        let newest = keys.next().ok_or_else(|| wrong("no key"))?;
        Ok(Self { newest, older: keys.collect(), retired })
    }

    /// Returns the text of the keys, which [`parse`](Self::parse) reads.
    pub fn text(&self) -> String {
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

    /// Returns an id that no handle can contain: the next one neither in use nor retired.
    fn free_id(&self) -> Option<KeyId> {
        let taken = |id: &KeyId| self.find(*id).is_some() || self.is_retired(*id);
        let KeyId(newest) = self.newest.0;
        (1..=u8::MAX).map(|step| KeyId(newest.wrapping_add(step))).find(|id| !taken(id))
    }
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

    #[test]
    fn a_malformed_text_is_refused() {
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
            assert!(Keys::parse(&text).is_err(), "{text:?}");
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

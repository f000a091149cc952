//! Keys that sign what clients keep and bring back: file handles, and references over links.
//!
//! The newest key signs; older ones are good until they are retired, so that clients that hold handles do not
//! notice a new one.
//!
//! Not here: the file that keeps them over restarts (`tombolo_host_service::handle_keys`), what is signed and
//! how.

use std::fmt::Write as _;

use thiserror::Error;
use tombolo_sys::random;

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

/// Why keys cannot be made or changed.
#[derive(Debug, Error)]
pub enum KeysError {
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

/// A text that does not describe keys.
#[derive(Debug, Error)]
#[error("line {line}: {what}")]
pub struct MalformedKeys {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl Key {
    /// A new one.
    pub fn random() -> Result<Self, KeysError> {
        let mut bytes = [0; 16];
        random::fill(&mut bytes).map_err(KeysError::Random)?;
        Ok(Self(bytes))
    }

    /// Its bytes, for signing.
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

    /// The same with a new key, which signs from now on.
    pub fn rotate(mut self) -> Result<Self, KeysError> {
        let id = self.free_id().ok_or(KeysError::Full)?;
        self.older.insert(0, std::mem::replace(&mut self.newest, (id, Key::random()?)));
        Ok(self)
    }

    /// The same without a key: what was signed with it is stale from now on.
    pub fn retire(mut self, id: KeyId) -> Result<Self, KeysError> {
        if self.newest.0 == id {
            return Err(KeysError::Newest(id));
        }
        let index = self.older.iter().position(|key| key.0 == id).ok_or(KeysError::Unknown(id))?;
        self.older.remove(index);
        self.retired.push(id);
        Ok(self)
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

    /// Reads their text (docs/formats/handles.md).
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

    /// Their text.
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

    /// An id that no handle can bear: the next one that is neither in use nor retired.
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

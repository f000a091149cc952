//! Record of added sessions in the cache directory, from which the next start restores them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tombolo_host_runtime::private;
use tombolo_host_service::control::Start;

use crate::failure::{Failure, OrCannot, Outcome};

/// Record of the added sessions, as last written, and the path of its file.
pub struct Saved {
    path: PathBuf,
    sessions: BTreeMap<String, Start>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    #[serde(default)]
    session: BTreeMap<String, Start>,
}

const FILE: &str = "sessions.toml";

const HEAD: &str = "# Sessions created with `tombolo session create` and not yet detached. A running proxy rewrites this file.\n\n";

impl Saved {
    /// Reads the record of a cache directory.
    pub fn read(cache: &Path) -> Result<Self, Failure> {
        let path = cache.join(FILE);
        let reading = format!("read sessions from {}", path.display());
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.or_cannot(&reading)?,
        };
        let contents: Contents = toml::from_str(&text).map_err(|error| {
            Failure::cannot(&reading, error.message().to_owned())
                .remedy("fix it, or move it away and create the sessions again")
        })?;
        Ok(Self { path, sessions: contents.session })
    }

    pub fn all(&self) -> &BTreeMap<String, Start> {
        &self.sessions
    }

    pub fn put(&mut self, name: &str, start: &Start) -> Outcome {
        let mut sessions = self.sessions.clone();
        sessions.insert(name.into(), start.clone());
        self.write(sessions)
    }

    pub fn remove(&mut self, name: &str) -> Outcome {
        let mut sessions = self.sessions.clone();
        match sessions.remove(name) {
            Some(_) => self.write(sessions),
            None => Ok(()),
        }
    }

    /// Writes the file atomically and durably.
    fn write(&mut self, sessions: BTreeMap<String, Start>) -> Outcome {
        let writing = format!("write sessions to {}", self.path.display());
        let contents = Contents { session: sessions };
        let text = toml::to_string(&contents).or_cannot(&writing)?;
        let draft = self.path.with_extension("new");
        let write = || {
            let mut file = private::draft(&draft)?;
            file.write_all(HEAD.as_bytes())?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        write().or_cannot(&writing)?;
        self.sessions = contents.session;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_sessions_are_restored() {
        let dir = tempfile::tempdir().expect("a directory");
        let start =
            |word: &str| Start { command: vec![word.into(), "größe".into()], directory: "/a".into() };
        let mut saved = Saved::read(dir.path()).expect("none yet");
        assert!(saved.all().is_empty());
        saved.put("one.b", &start("1")).expect("put");
        saved.put("two", &start("2")).expect("put");
        saved.remove("one.b").expect("remove");
        saved.remove("none").expect("remove");
        let saved = Saved::read(dir.path()).expect("read");
        assert_eq!(saved.all(), &BTreeMap::from([("two".to_owned(), start("2"))]));
        fs::write(dir.path().join(FILE), "session = 7").expect("write");
        assert!(Saved::read(dir.path()).is_err());
    }
}

//! `DIR[=/NAME]`: a directory to share or the tree of another server (`shm:SOCKET/NAME`, `nfs://HOST/NAME`),
//! and its export name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::assembly::plan::tree::Tree;
use crate::setting::Setting;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportArg {
    /// The directory or location as the user wrote it.
    pub dir: PathBuf,
    pub name: Option<ExportName>,
}

/// The name of an export: `/`, or `/` and components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportName(String);

impl ExportName {
    /// Returns the default name of a tree: `/` and its last component.
    pub fn of(tree: &Tree) -> Self {
        Self(format!("/{}", tree.name()))
    }

    /// Returns the name as one word, for the name of the server and its sockets: `-` in place of `/`, and
    /// `root` for `/` alone.
    pub fn word(&self) -> String {
        let word = self.0.trim_start_matches('/').replace('/', "-");
        if word.is_empty() { "root".into() } else { word }
    }
}

/// Parses the exports after the first word of an argument: settings other than `export=/NAME` are errors.
pub fn named_exports<'a>(settings: impl Iterator<Item = Setting<'a>>) -> Result<Vec<ExportName>, String> {
    let named = settings.map(|setting| match (setting.name, setting.value) {
        ("export", Some(_)) => setting.parsed(),
        _ => Err(format!("{:?} is not export=/NAME", setting.text)),
    });
    named.collect()
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ExportName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |part: &str| !matches!(part, "" | "." | "..");
        let plain = text == "/" || text.split('/').skip(1).all(plain);
        if text.starts_with('/') && plain && !text.contains(['\0', ',', '\n']) {
            Ok(Self(text.into()))
        } else {
            Err(format!("{text:?} is not the name of an export: write /NAME, without `.`, `..`, `,` or `//`"))
        }
    }
}

impl FromStr for ExportArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The last `=/` counts, so that a directory with `=/` in its path can be given a name.
        let (dir, name) = match text.rfind("=/") {
            Some(at) => (&text[..at], Some(text[at + 1..].parse()?)),
            None => (text, None),
        };
        if dir.is_empty() {
            return Err("the directory is missing: write DIR or DIR=/NAME".into());
        }
        Ok(Self { dir: dir.into(), name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_or_without_a_name() {
        let parsed = |text: &str| text.parse::<ExportArg>().map(|arg| (arg.dir, arg.name.map(|name| name.0)));
        assert_eq!(parsed("/srv/src"), Ok(("/srv/src".into(), None)));
        assert_eq!(parsed("src=/a/b"), Ok(("src".into(), Some("/a/b".into()))));
        assert_eq!(parsed("/odd=/dir=/name"), Ok(("/odd=/dir".into(), Some("/name".into()))));
        assert_eq!(parsed("a=b"), Ok(("a=b".into(), None)));
        for bad in ["", "=/name", "dir=/..", "dir=/a/", "dir=/a//b", "dir=/a/../b", "dir=/./a"] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }
}

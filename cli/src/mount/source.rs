//! What can be mounted.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::failure::Failure;

/// What to mount, as `KIND:…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `dir:PATH`: a directory of this host.
    Dir(PathBuf),
}

impl Source {
    /// The same with its links and relative parts resolved; fails when it is not there.
    pub fn checked(self) -> Result<Self, Failure> {
        let mounting = format!("mount {self}");
        let Self::Dir(path) = self;
        let path = path.canonicalize().map_err(|error| Failure::cannot(&mounting, &error))?;
        if !path.is_dir() {
            return Err(Failure::cannot(&mounting, "it is not a directory"));
        }
        Ok(Self::Dir(path))
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("dir", path)) if !path.is_empty() => Ok(Self::Dir(path.into())),
            _ => Err(format!("{text:?} is not something to mount: write dir:PATH")),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Dir(path) = self;
        write!(f, "dir:{}", path.display())
    }
}

//! Directory, directly and through mounts: columns of several tables.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Doing, Result};
use crate::peer::{Mount, Nfs, Requests, Shm};
use crate::report::Report;

/// Access to a directory, as a column of a sheet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    pub name: String,
    /// Name in `--column`.
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub over: Over,
    /// Policy of the mount, if not the program's default.
    pub coherence: Option<String>,
    /// `true` if the server watches its host for changes.
    #[serde(default)]
    pub watch: bool,
}

impl Way {
    pub fn id(&self) -> String {
        self.id.clone()
    }
}

/// Path of a request to the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// The directory itself.
    #[default]
    Itself,
    /// Our mount of the directory.
    Dir,
    /// libfuse's mount of the directory.
    PassthroughLl,
    /// Our mount over a link to a new server of ours.
    Link,
    /// Our mount over TCP on this host, from a new server of ours.
    Nfs,
}

/// Location of a row. Dropping it unmounts, and then ends the server.
pub struct Side {
    pub name: String,
    pub root: PathBuf,
    mount: Option<Mount>,
    // Dropped after the mount.
    behind: Option<Behind>,
}

/// Server of a mount's client.
enum Behind {
    Shm(Shm),
    Nfs(Nfs),
}

/// A directory, and the parent of mounts and sockets.
#[derive(Clone, Debug)]
pub struct Place {
    pub shared: PathBuf,
    pub beside: PathBuf,
}

impl Place {
    /// Creates an empty directory below `beside`.
    pub fn new(beside: &Path) -> Result<Self> {
        let shared = beside.join("shared");
        fs::create_dir(&shared).doing_to("make", &shared)?;
        Ok(Self { shared, beside: beside.to_owned() })
    }

    /// Returns the available sides; missing ones are reported.
    pub fn sides(&self, ways: &[Way], report: &mut Report) -> Vec<Side> {
        let mut sides = Vec::new();
        for way in ways {
            match self.side(way) {
                Ok(side) => sides.push(side),
                Err(error) => report.absent(format!("{}: {error}", way.name)),
            }
        }
        sides
    }

    /// Creates a side with its own mount and server.
    pub fn side(&self, way: &Way) -> Result<Side> {
        let Self { shared, beside } = self;
        let words = way.name.split([':', ',', ' ', '.']).filter(|word| !word.is_empty());
        let point = beside.join(words.collect::<Vec<_>>().join("-"));
        let (url, behind) = match way.over {
            Over::Itself => {
                return Ok(Side { name: way.name.clone(), root: shared.clone(), mount: None, behind: None });
            }
            Over::Dir | Over::PassthroughLl => (format!("dir:{}", shared.display()), None),
            Over::Link => {
                let options: &[_] = if way.watch { &["--host-watch"] } else { &[] };
                let server = Shm::tombolo(shared, &point.with_extension("link"), options)?;
                (server.url(), Some(Behind::Shm(server)))
            }
            Over::Nfs => {
                let server = Nfs::tombolo(shared, beside)?;
                (server.url(), Some(Behind::Nfs(server)))
            }
        };
        let mount = match &way.coherence {
            _ if way.over == Over::PassthroughLl => Mount::by_libfuse(shared, &point)?,
            Some(policy) => Mount::with(&url, &format!("coherence={policy}"), &point)?,
            None => Mount::of_url(&url, &point)?,
        };
        Ok(Side { name: way.name.clone(), root: point, mount: Some(mount), behind })
    }
}

impl Side {
    /// Returns the server processes that a caller waits for.
    pub fn servers(&self) -> Vec<u32> {
        let behind = self.behind.as_ref().map(|behind| match behind {
            Behind::Shm(server) => server.server(),
            Behind::Nfs(server) => server.server(),
        });
        self.mount.iter().map(Mount::server).chain(behind).collect()
    }

    pub fn path(&self, relative: &Path) -> PathBuf {
        self.root.join(relative)
    }

    /// Returns the requests that reached the mount; none without one.
    pub fn requests(&self) -> Result<Requests> {
        self.mount.as_ref().map_or_else(|| Ok(Requests::default()), Mount::requests)
    }
}

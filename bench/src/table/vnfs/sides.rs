//! Directory, directly and through mounts.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::error::Result;
use crate::peer::{Mount, Nfs, Shm};

/// Location of a row. Dropping it unmounts, and then ends the server.
pub struct Side {
    pub name: &'static str,
    pub root: PathBuf,
    pub mount: Option<Mount>,
    // Dropped after the mount.
    _behind: Behind,
}

/// Server of a mount's client.
enum Behind {
    Nothing,
    Shm(#[expect(dead_code, reason = "kept")] Shm),
    Nfs(#[expect(dead_code, reason = "kept")] Nfs),
}

/// Location of a job that writes, each time with a new server and mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// The directory itself
    Local,
    /// Our mount of our NFS server over loopback
    Nfs,
    /// A mount over a link without caching
    Strict,
    /// A mount over a link with change notifications
    Push,
}

impl Column {
    pub const ALL: [Self; 4] = [Self::Local, Self::Nfs, Self::Strict, Self::Push];

    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "the directory itself",
            Self::Nfs => "nfs:, auto",
            Self::Strict => "shm:, strict",
            Self::Push => "shm:, push",
        }
    }
}

/// A directory, and the parent of mounts and sockets.
#[derive(Clone, Debug)]
pub struct Place {
    pub shared: PathBuf,
    pub beside: PathBuf,
}

impl Place {
    pub fn local(&self, name: &'static str) -> Side {
        Side { name, root: self.shared.clone(), mount: None, _behind: Behind::Nothing }
    }

    /// Mounts the directory.
    pub fn of_dir(&self, name: &'static str, policy: &str) -> Result<Side> {
        self.mounted(name, &format!("dir:{}", self.shared.display()), policy, Behind::Nothing)
    }

    /// Mounts over a link to a new server with these options.
    pub fn over_link(&self, name: &'static str, policy: &str, options: &[&str]) -> Result<Side> {
        let socket = self.point(name).with_extension("link");
        let server = Shm::tombolo(&self.shared, &socket, options)?;
        self.mounted(name, &server.url(), policy, Behind::Shm(server))
    }

    /// Mounts over TCP on this host, from a new server.
    pub fn over_nfs(&self, name: &'static str, policy: &str) -> Result<Side> {
        let server = Nfs::tombolo(&self.shared, &self.beside)?;
        self.mounted(name, &server.url(), policy, Behind::Nfs(server))
    }

    /// Creates a side for one turn, because watching the host would slow down the others.
    pub fn fresh(&self, column: Column) -> Result<Side> {
        let name = column.name();
        match column {
            Column::Local => Ok(self.local(name)),
            Column::Nfs => self.over_nfs(name, "auto"),
            Column::Strict => self.over_link(name, "strict", &[]),
            Column::Push => self.over_link(name, "push", &["--host-watch"]),
        }
    }

    fn mounted(&self, name: &'static str, url: &str, policy: &str, behind: Behind) -> Result<Side> {
        let point = self.point(name);
        let mount = Mount::with(url, &format!("coherence={policy}"), &point)?;
        Ok(Side { name, root: point, mount: Some(mount), _behind: behind })
    }

    fn point(&self, name: &str) -> PathBuf {
        let words = name.split([':', ',', ' ', '.']).filter(|word| !word.is_empty());
        self.beside.join(words.collect::<Vec<_>>().join("-"))
    }
}

impl Side {
    /// Returns the server processes that a caller waits for.
    pub fn servers(&self) -> Vec<u32> {
        self.mount.iter().map(Mount::server).collect()
    }

    pub fn path(&self, relative: &Path) -> PathBuf {
        self.root.join(relative)
    }
}

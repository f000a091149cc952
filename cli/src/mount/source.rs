//! What is mounted: opened, and named.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::fs::Export;

use crate::failure::Failure;
use crate::location::{self, Location, OpenOptions};

use super::Mount;
use super::options::MountOptions;

/// What was opened.
pub struct Source {
    /// The tree.
    pub export: Arc<dyn Export>,
    /// The client of its server, where it has one.
    pub nfs: Option<Arc<NfsExport>>,
}

/// The same location with its links and relative parts resolved; fails when it is not there, or has no such options.
/// Servers are not asked yet.
pub fn checked(location: Location, options: &MountOptions) -> Result<Location, Failure> {
    match &location {
        Location::Nfs(_) if options.submounts.is_some() => Err(Failure::usage(
            "mount option submounts=… is for directories of this host: a server decides it by itself",
        )),
        Location::Nfs(_) => Ok(location),
        Location::Dir(_) if options.nfs.words().next().is_some() => {
            let foreign: Vec<_> = options.nfs.words().collect();
            Err(Failure::usage(format!(
                "mount option {} is for servers, not for directories of this host",
                foreign.join(",")
            )))
        }
        Location::Dir(_) if options.no_kernel_checks => Err(Failure::usage(
            "mount option noperm is for servers: in a directory of this host only the kernel checks permissions",
        )),
        Location::Dir(path) => directory(path).map(Location::Dir),
    }
}

fn directory(path: &Path) -> Result<std::path::PathBuf, Failure> {
    let mounting = format!("mount dir:{}", path.display());
    let path = path.canonicalize().map_err(|error| Failure::cannot(&mounting, &error))?;
    if !path.is_dir() {
        return Err(Failure::cannot(&mounting, "it is not a directory"));
    }
    Ok(path)
}

/// What mount(8) lists as the source.
pub fn name(location: &Location) -> String {
    match location {
        Location::Nfs(url) => url.mount_word(),
        Location::Dir(path) => path.display().to_string(),
    }
}

impl Source {
    /// Opens it. Whoever starts a server again waits for the server behind it too.
    pub fn open(mount: &Mount, again: bool) -> Result<Self, Failure> {
        match &mount.source {
            Location::Nfs(url) => {
                let options = OpenOptions {
                    read_only: mount.options.read_only,
                    nfs: mount.options.nfs_options(&url.options),
                    ..OpenOptions::default()
                };
                let nfs = Arc::new(mounted(url, &options, again)?);
                Ok(Self { export: nfs.clone(), nfs: Some(nfs) })
            }
            Location::Dir(path) => {
                let options = DirOptions {
                    read_only: mount.options.read_only,
                    submounts: mount.options.submounts.unwrap_or_default().into(),
                    ..DirOptions::default()
                };
                let opened = LocalDir::open(path, options);
                let opened = opened
                    .map_err(|error| Failure::cannot(format_args!("mount {}", mount.source), &error))?;
                Ok(Self { export: Arc::new(opened), nfs: None })
            }
        }
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

fn mounted(url: &location::NfsUrl, options: &OpenOptions, again: bool) -> Result<NfsExport, Failure> {
    let mut pause = PAUSE_MIN;
    loop {
        match location::mount(url, options) {
            Err(failed) if again && failed.away => {
                tracing::warn!(reason = failed.reason, "the server is away: trying again");
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
            outcome => return outcome.map_err(|failed| failed.while_doing(&format!("mount {url}"))),
        }
    }
}

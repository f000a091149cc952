//! The export: one directory, and the state shared by its sessions.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use thiserror::Error;
use tombolo_core::Result;
use tombolo_core::fs::{Client, Export, FileSystem, Watchers};
use tombolo_host_runtime::descriptors::DescriptorBudget;
use tombolo_host_runtime::pace::Pace;
use tombolo_host_runtime::thread_pool::ThreadPool;
use tombolo_sys::open::{OwnDescriptors, open_root};
use tombolo_sys::stat::stat;
use tombolo_sys::{Errno, creds};

use crate::attr::birth_ns;
use crate::host_watch::HostWatch;
use crate::mounts::{Mounts, packed};
use crate::options::Options;
use crate::overlapping;
use crate::state::{ExportState, LastMountScan, LocalSession, Location};
use crate::table::{Identity, Key};
use crate::turns::Turns;
use crate::waiting::Waiting;

/// Reasons why a directory cannot be served.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The directory cannot be opened, for instance because it does not exist or may not be entered.
    #[error("cannot open {}", path.display())]
    Root {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
    /// `/proc/self/fd` is missing, through which `O_PATH` descriptors are reopened.
    #[error("/proc is not mounted")]
    Proc(#[source] Errno),
}

/// A served directory of the host.
#[derive(Clone, Debug)]
pub struct LocalDir(Arc<ExportState>);

impl LocalDir {
    /// Serves the directory at `path`; symbolic links in `path` are followed once, by this call.
    ///
    /// Must be called in the process that serves: neither the pool's threads nor the descriptor of
    /// `/proc/self/fd` can be used after a fork.
    pub fn open(path: &Path, options: Options) -> std::result::Result<Self, OpenError> {
        let refused = |source| OpenError::Root { path: path.to_owned(), source };
        let root = open_root(path).map_err(refused)?;
        let own = OwnDescriptors::open().map_err(OpenError::Proc)?.with_helper(options.help.clone());
        let facts = stat(root.as_fd()).map_err(refused)?;
        let mounts = Mounts::default();
        mounts.register(&own, root.as_fd(), &facts).map_err(|_| refused(Errno::IO))?;
        let key = Key { inode: facts.inode, device: packed(facts.device), mount: 0 };
        let identity = Identity { key, birth: birth_ns(&facts), kind: facts.kind() };
        let export = Arc::new(ExportState {
            root: Location::new(identity, Arc::new(root)),
            own,
            mounts,
            pool: ThreadPool::new("local-dir", options.pool),
            pace: Pace::default(),
            write_pace: Pace::default(),
            may_assume: creds::may_assume(),
            waiting: Waiting::default(),
            root_handle: OnceLock::new(),
            last_mount_scan: LastMountScan::default(),
            sessions: AtomicUsize::new(0),
            node_descriptors: DescriptorBudget::of_process().cache(options.descriptors),
            options,
            turns: Turns::default(),
            watchers: Watchers::default(),
            host_watch: HostWatch::default(),
            window: OnceLock::new(),
        });
        overlapping::opened(&export);
        Ok(Self(export))
    }
}

impl Export for LocalDir {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(LocalSession::new(self.0.clone(), client)?))
    }
}

//! `tombolo proxy`: a tree that is far away, cached here and served on all front ends.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::assembly::options::ServerOptions;
use crate::assembly::options::cache::{CACHE, CacheOptions};
use crate::assembly::plan::Plan;
use crate::assembly::servers;
use crate::failure::Outcome;

/// Cache a tree that is far away, and share it with guests, other processes and NFS clients.
///
/// DIR is where it lies: nfs://HOST/NAME, nfs+ssh://HOST/PATH, shm:SOCKET/NAME or a directory. What was
/// looked at once is answered from the cache directory, as the contract allows. Stays in the foreground;
/// otherwise as `tombolo serve`.
///
/// With --mode write-back, SIGUSR1 has all changes brought to the origin, SIGUSR2 has that done and
/// everything asked anew, and SIGINT or SIGTERM ends it when the origin has everything; a second one ends it
/// at once. What the origin does not have then is kept for the next start.
///
/// `tombolo session create` has it serve more trees while it runs, each as a session with its own origin,
/// options and part of the cache directory; they come back when it is started again. What these options ask
/// for is the session `default`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ProxyArgs {
    #[command(flatten)]
    options: ServerOptions,
    /// The directory of the cache, which is made if it is missing. One proxy at a time has it, and it is of
    /// one origin.
    #[arg(long, value_name = "DIR", help_heading = CACHE)]
    cache: PathBuf,
    #[command(flatten)]
    cache_options: CacheOptions,
    /// End when no process has had a link over shared memory for so many seconds. For --shm alone. It takes
    /// no sessions then, and so is confined to its own tree.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    end_when_unused: Option<u32>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo proxy nfs://far.example/src --cache /var/cache/tombolo/src --fuse /mnt/src
  tombolo proxy nfs://far.example/src --cache /var/cache/src --contract exclusive --fuse /mnt/src --coherence push
  tombolo proxy nfs://far.example/src --cache /var/cache/src --mode write-back --contract exclusive --fuse /mnt/src
  tombolo proxy nfs://far.example/golden --cache /var/cache/golden --share-cache --virtiofs /run/vm1.sock
  tombolo proxy nfs://far.example/golden --cache /var/cache/g2 --borrow-from /var/cache/golden --virtiofs /run/vm2.sock
  tombolo proxy nfs://far.example/src --cache /var/cache/src --data-from nfs://cache.lan/src --fuse /mnt/src
  tombolo proxy nfs+ssh://far.example/srv/src --cache /var/cache/src --fuse /mnt/src
  tombolo proxy nfs://far.example/home --cache /var/cache/home --nfs :2049 --allow 10.0.0.0/8";

impl ProxyArgs {
    pub fn run(self) -> Outcome {
        let plan = Plan::of_proxy(self.options, self.cache, self.cache_options)?;
        let unused = self.end_when_unused.map(|seconds| Duration::from_secs(seconds.into()));
        servers::serve(&plan.ending_when_unused(unused)?)
    }
}

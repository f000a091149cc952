//! `tombolo proxy`: caches a remote tree and serves it through all front ends.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args};

use crate::assembly::options::ServerOptions;
use crate::assembly::options::cache::{CACHE, CacheOptions};
use crate::assembly::options::session::{ORIGIN, describe_for_proxy};
use crate::assembly::plan::Plan;
use crate::assembly::servers;
use crate::failure::Outcome;

/// Cache a remote tree and share it, like `tombolo serve`.
///
/// Data read once are served from the cache directory, as --contract allows. Runs in the foreground, like
/// `tombolo serve`. At least one endpoint is required: --virtiofs, --fd, --fuse, --shm, --shm-file, --nfs or
/// --nfs-tls.
///
/// With --mode write-back, SIGUSR1 sends all changes to the origin; SIGUSR2 does so and then revalidates
/// everything cached; SIGINT or SIGTERM ends the proxy once the origin has all changes, and a second signal
/// ends it at once. Changes not yet sent are kept for the next start.
///
/// `tombolo session create` adds trees to a running proxy, each as a session with its own origin, options and
/// part of the cache directory; sessions are restored at the next start. The tree on this command line is the
/// session `default`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(override_usage = "tombolo proxy [OPTIONS] --cache <DIR> <LOCATION[=/NAME]>")]
#[command(mut_arg("dir", describe_origin), mut_args(of_proxy))]
pub struct ProxyArgs {
    #[command(flatten)]
    options: ServerOptions,
    /// Cache directory, created if it is missing. It belongs to this origin (that of a session to the part
    /// sessions/NAME), and one proxy at a time uses it.
    #[arg(long, value_name = "DIR", help_heading = CACHE)]
    cache: PathBuf,
    #[command(flatten)]
    cache_options: CacheOptions,
    /// End after so many seconds without a shared-memory client. Only for proxies with --shm alone. Such a
    /// proxy accepts no sessions, so it can be confined to its own tree and cache.
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

/// Hides the options that a proxy refuses, and describes the others as they apply to a proxy.
fn of_proxy(option: Arg) -> Arg {
    let is_refused = matches!(option.get_id().as_str(), "ask" | "keep");
    if is_refused { option.hide(true) } else { describe_for_proxy(option) }
}

/// Replaces the help of `tombolo serve DIR[=/NAME]`.
fn describe_origin(dir: Arg) -> Arg {
    let help = format!("{ORIGIN}. Exactly one; its export name is by default `/` and its last component");
    dir.value_name("LOCATION[=/NAME]").help(help).long_help(None::<&str>)
}

impl ProxyArgs {
    pub fn run(self) -> Outcome {
        let plan = Plan::of_proxy(self.options, self.cache, self.cache_options)?;
        let unused = self.end_when_unused.map(|seconds| Duration::from_secs(seconds.into()));
        servers::serve(&plan.ending_when_unused(unused)?)
    }
}

//! `tombolo proxy`: a tree that is far away, cached here and served on all front ends.

use clap::Args;

use crate::assembly::options::ServerOptions;
use crate::assembly::options::cache::CacheOptions;
use crate::assembly::options::coherence::Coherence;
use crate::assembly::plan::Plan;
use crate::assembly::plan::cache::CachePlan;
use crate::assembly::servers;
use crate::failure::{Failure, Outcome};

/// Cache a tree that is far away, and share it with guests, other processes and NFS clients.
///
/// DIR is where it lies: nfs://HOST/NAME, shm:SOCKET/NAME or a directory. What was looked at once is answered from the cache directory,
/// as the contract allows. Stays in the foreground; otherwise as `tombolo serve`.
///
/// With --mode write-back, SIGUSR1 has all changes brought to the origin, SIGUSR2 has that done and everything asked anew, and SIGINT or
/// SIGTERM ends it when the origin has everything; a second one ends it at once. What the origin does not have then is kept for the next
/// start.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ProxyArgs {
    #[command(flatten)]
    options: ServerOptions,
    #[command(flatten)]
    cache: CacheOptions,
}

const EXAMPLES: &str = "\
Examples:
  tombolo proxy nfs://far.example/src --cache /var/cache/tombolo/src --fuse /mnt/src
  tombolo proxy nfs://far.example/src --cache /var/cache/src --contract exclusive --fuse /mnt/src --coherence push
  tombolo proxy nfs://far.example/src --cache /var/cache/src --mode write-back --contract exclusive --fuse /mnt/src
  tombolo proxy nfs://far.example/golden --cache /var/cache/golden --share-cache --virtiofs /run/vm1.sock
  tombolo proxy nfs://far.example/golden --cache /var/cache/g2 --borrow-from /var/cache/golden --virtiofs /run/vm2.sock
  tombolo proxy nfs://far.example/home --cache /var/cache/home --nfs :2049 --allow 10.0.0.0/8";

impl ProxyArgs {
    pub fn run(self) -> Outcome {
        if self.options.dir.len() != 1 {
            let problem = "cannot cache: one location is needed";
            return Err(Failure::usage(problem).remedy("write `tombolo proxy nfs://HOST/NAME --cache DIR …`"));
        }
        if !self.options.ask.is_empty() {
            let problem = "--ask is not for a cache, which believes what its contract says";
            return Err(Failure::usage(problem).remedy("use --contract"));
        }
        let mut plan = Plan::new(self.options)?;
        let says_of_lease = self.cache.take_lease || self.cache.no_lease;
        let mut cache = CachePlan::new(self.cache)?;
        if plan.layers.read_only {
            cache.refuse_changes()?;
        }
        if says_of_lease && !cache.is_exclusive() {
            let problem = "--take-lease and --no-lease are for the contract exclusive";
            return Err(Failure::usage(problem).remedy("leave them out, or add --contract exclusive"));
        }
        if plan.front_ends.coherence == Coherence::Push && !cache.tells_changes() {
            let problem = "--coherence push takes a contract under which all changes come through the proxy";
            return Err(Failure::usage(problem).remedy("add --contract exclusive or immutable"));
        }
        plan.layers.read_only |= cache.is_read_only();
        plan.cache = Some(cache);
        servers::serve(&plan)
    }
}

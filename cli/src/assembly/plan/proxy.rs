//! Plan of a caching proxy.

use std::path::PathBuf;

use super::Plan;
use super::cache::CachePlan;
use crate::assembly::options::ServerOptions;
use crate::assembly::options::cache::CacheOptions;
use crate::assembly::options::coherence::Coherence;
use crate::failure::Failure;

impl Plan {
    /// Validates the options of a proxy as a whole. `dir` is the cache directory.
    pub fn of_proxy(options: ServerOptions, dir: PathBuf, cache: CacheOptions) -> Result<Self, Failure> {
        if options.dir.len() != 1 {
            let problem = "cannot cache: exactly one location is required";
            return Err(Failure::usage(problem).remedy("write `tombolo proxy nfs://HOST/NAME --cache DIR …`"));
        }
        if !options.ask.is_empty() {
            let problem = "--ask does not apply to a cache, whose --contract determines freshness";
            return Err(Failure::usage(problem).remedy("use --contract"));
        }
        if options.keep == Some(true) {
            return Err(Failure::usage("--keep does not support caches").remedy("leave it out"));
        }
        let mut plan = Self::new(options)?;
        let says_of_lease = cache.take_lease || cache.no_lease;
        let mut cache = CachePlan::new(dir, cache)?;
        if plan.layers.read_only {
            cache.refuse_changes()?;
        }
        if says_of_lease && !cache.is_exclusive() {
            let problem = "--take-lease and --no-lease require --contract exclusive";
            return Err(Failure::usage(problem).remedy("omit them, or add --contract exclusive"));
        }
        if plan.front_ends.coherence == Coherence::Push && !cache.tells_changes() {
            let problem = "--coherence push requires a contract with all changes made through the proxy";
            return Err(Failure::usage(problem).remedy("add --contract exclusive or immutable"));
        }
        plan.layers.read_only |= cache.is_read_only();
        plan.cache = Some(cache);
        Ok(plan)
    }
}

//! What is cached of a tree, and where.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::SessionId;
use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Options, Policy};

use super::tree::Tree;
use crate::assembly::options::cache::{CacheMode, CacheOptions, contract_word};
use crate::assembly::options::policy::{PolicyFile, block_bytes};
use crate::failure::Failure;

/// A cache over an export.
#[derive(Clone, Debug)]
pub struct CachePlan {
    pub dir: PathBuf,
    store: StoreOptions,
    policy: Policy,
}

impl CachePlan {
    pub fn new(asked: CacheOptions) -> Result<Self, Failure> {
        let file = asked.policy.as_deref().map(PolicyFile::read).transpose()?.unwrap_or_default();
        let mut store = StoreOptions::default();
        if let Some(size) = asked.cache_size.or(file.cache_size) {
            store.capacity_bytes = size.0;
        }
        if let Some(size) = asked.block_size {
            store.block_bytes = block_bytes(size).ok_or_else(|| {
                let problem = "--block-size is no power of two from 4K to 1M";
                Failure::usage(problem).remedy("write for example --block-size 64K")
            })?;
        }
        let mut options = file.settings.over(Options::default());
        if asked.block_size.is_some() {
            options.block_bytes = None;
        }
        if let Some(contract) = asked.contract {
            options.contract = contract.0;
        }
        if let Some(mode) = asked.mode {
            options.read_only = mode == CacheMode::ReadOnly;
        }
        if let Some(seconds) = asked.attr_refresh {
            options.attr_refresh = Duration::from_secs(seconds.into());
        }
        let rules = asked.rule.iter().chain(&file.rules).map(|rule| rule.over(options)).collect();
        Ok(Self { dir: asked.cache, store, policy: Policy { default: options, rules } })
    }

    /// Whether nothing can be changed.
    pub fn is_read_only(&self) -> bool {
        self.policy.is_read_only()
    }

    /// Whether mounts can be told of all changes.
    pub fn tells_changes(&self) -> bool {
        self.policy.tells_changes()
    }

    /// How much data it may hold.
    pub fn capacity_bytes(&self) -> u64 {
        self.store.capacity_bytes
    }

    /// Puts the cache over what was opened of a tree.
    pub fn over(&self, tree: &Tree, origin: &dyn Export) -> Result<Arc<CacheExport>, Failure> {
        let serving = format!("cache {tree} in {}", self.dir.display());
        let volume = {
            let client =
                Client { session: SessionId(0), label: "volume".into(), checks: PermissionCheck::Caller };
            let fs = origin.attach(&client).map_err(|error| Failure::cannot(&serving, &error))?;
            let handles = fs.persistent_handles();
            let handles = handles.ok_or_else(|| Failure::cannot(&serving, "its files have no handles"))?;
            handles.volume()
        };
        let identity = OriginIdentity { location: place(tree), volume };
        let store =
            Store::open(&self.dir, &identity, self.store).map_err(|error| not_opened(&serving, &error))?;
        let cached = tombolo_layer_cache::over(origin, store, self.policy.clone());
        cached.map(Arc::new).map_err(|error| Failure::cannot(&serving, &error))
    }

    /// What the line that begins with `ready` says.
    pub fn words(&self) -> String {
        let Policy { default, rules } = &self.policy;
        let mode = if default.read_only { "read-only" } else { "write-through" };
        let rules = if rules.is_empty() { String::new() } else { format!(" rules={}", rules.len()) };
        format!("{} mode={mode} contract={}{rules}", self.dir.display(), contract_word(default.contract))
    }
}

/// Where a tree is, without how it is asked.
fn place(tree: &Tree) -> String {
    let text = tree.to_string();
    match tree {
        Tree::Nfs(_) | Tree::NfsShm(_) => text.split('?').next().unwrap_or_default().to_owned(),
        Tree::Dir(_) | Tree::Shm(_) => text,
    }
}

/// Why a cache directory is not used, and what to do about it.
pub fn not_opened(doing: &str, error: &OpenError) -> Failure {
    let failure = Failure::cannot(doing, error);
    match error {
        OpenError::InUse { .. } => {
            failure.remedy("end that process, or choose another directory with --cache")
        }
        OpenError::OtherOrigin { .. } | OpenError::Foreign { .. } => {
            failure.remedy("choose another directory with --cache")
        }
        OpenError::OtherVolume { path, .. } => failure.remedy(format_args!(
            "if that is meant to be so, empty the cache: tombolo cache drop {}",
            path.display()
        )),
        OpenError::Io { .. } | OpenError::Database { .. } => failure,
    }
}

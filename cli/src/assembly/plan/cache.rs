//! What is cached of a tree, and where.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::SessionId;
use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Options};

use super::tree::Tree;
use crate::assembly::options::cache::{CacheMode, CacheOptions, contract_word};
use crate::failure::Failure;

/// A cache over an export.
#[derive(Clone, Debug)]
pub struct CachePlan {
    pub dir: PathBuf,
    store: StoreOptions,
    options: Options,
}

/// The sizes that a block may have, in bytes.
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 20;

impl CachePlan {
    pub fn new(asked: CacheOptions) -> Result<Self, Failure> {
        let mut store = StoreOptions::default();
        if let Some(size) = asked.cache_size {
            store.capacity_bytes = size.0;
        }
        if let Some(size) = asked.block_size {
            if !size.0.is_power_of_two() || !BLOCK_BYTES.contains(&size.0) {
                let problem = "--block-size is no power of two from 4K to 1M";
                return Err(Failure::usage(problem).remedy("write for example --block-size 64K"));
            }
            store.block_bytes = u32::try_from(size.0).unwrap_or(store.block_bytes);
        }
        let mut options = Options {
            contract: asked.contract.map(|contract| contract.0).unwrap_or_default(),
            read_only: asked.mode == Some(CacheMode::ReadOnly),
            ..Options::default()
        };
        if let Some(seconds) = asked.attr_refresh {
            options.attr_refresh = Duration::from_secs(seconds.into());
        }
        Ok(Self { dir: asked.cache, store, options })
    }

    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Whether mounts can be told of all changes.
    pub fn tells_changes(&self) -> bool {
        self.options.contract.tells_changes()
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
        let cached = tombolo_layer_cache::over(origin, store, self.options);
        cached.map(Arc::new).map_err(|error| Failure::cannot(&serving, &error))
    }

    /// What the line that begins with `ready` says.
    pub fn words(&self) -> String {
        let mode = if self.options.read_only { "read-only" } else { "write-through" };
        format!("{} mode={mode} contract={}", self.dir.display(), contract_word(self.options.contract))
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

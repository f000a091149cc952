//! Cache of a proxy: validated options, and the opening of the cache over an export.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tombolo_core::fs::{Client, Export, PermissionCheck, Timestamp};
use tombolo_core::{Error, SessionId};
use tombolo_host_service::sandbox::Needs;
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{
    BorrowOptions, CacheExport, Claim, Connect, LEASE_NAME, LEASE_PERIOD, LeaseError, Life, Options, Policy,
};
use tombolo_layer_write_back::{self as write_back, WriteBackExport};

use super::needs;
use super::tree::Tree;
use super::write_back::{dir_in, options_of, refuse_what_is_kept, try_out};
use crate::assembly::hints::nfs::host_name;
use crate::assembly::options::cache::{CacheMode, CacheOptions, contract_word};
use crate::assembly::options::policy::{PolicyFile, block_bytes};
use crate::commands::files::shown;
use crate::commands::files::user::Myself;
use crate::failure::{Failure, OrCannot};
use crate::location::{self, NfsOptions, NfsUrl, OpenOptions};

/// Validated options of a cache; nothing is open yet.
#[derive(Clone, Debug)]
pub struct CachePlan {
    pub dir: PathBuf,
    store: StoreOptions,
    policy: Policy,
    lease: Lease,
    /// Machine id, read before a sandbox hides it.
    machine: String,
    is_shared: bool,
    borrows_from: Option<PathBuf>,
    data_from: Option<NfsUrl>,
    record: Option<PathBuf>,
    /// Write-back options, if enabled.
    write_back: Option<write_back::Options>,
}

/// Lease policy of a cache with an exclusive contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    /// Acquire the lease if it is free.
    Free,
    /// Take the lease over from another proxy.
    Taken,
    /// Acquire no lease.
    None,
}

impl CachePlan {
    /// Validates the options of the cache in directory `dir`, and reads the policy file. The directory is
    /// created later, by [`CachePlan::needs`] or [`CachePlan::over`].
    pub fn new(dir: PathBuf, asked: CacheOptions) -> Result<Self, Failure> {
        let file = asked.policy.as_deref().map(PolicyFile::read).transpose()?.unwrap_or_default();
        let mut store = StoreOptions::default();
        if let Some(size) = asked.cache_size.or(file.cache_size) {
            store.capacity_bytes = size.0;
        }
        if let Some(size) = asked.block_size {
            store.block_bytes = block_bytes(size).ok_or_else(|| {
                let problem = "--block-size must be a power of two from 4K to 1M";
                Failure::usage(problem).remedy("for example --block-size 64K")
            })?;
        }
        if asked.borrow_from.as_ref() == Some(&dir) {
            let problem = "--borrow-from and --cache name the same directory";
            return Err(Failure::usage(problem).remedy("give each proxy its own --cache directory"));
        }
        let mut options = file.settings.over(Options::default());
        if asked.block_size.is_some() {
            options.block_bytes = None;
        }
        if let Some(contract) = asked.contract {
            options.contract = contract.0;
        }
        let mode = asked.mode.or(file.settings.mode()).unwrap_or_default();
        options.read_only = mode == CacheMode::ReadOnly;
        options.sidecars = !asked.no_sidecars;
        if let Some(seconds) = asked.attr_refresh {
            options.attr_refresh = Duration::from_secs(seconds.into());
        }
        let rules = asked.rule.iter().chain(&file.rules).map(|rule| rule.over(options)).collect();
        let policy = Policy { default: options, rules };
        let lease = match (asked.take_lease, asked.no_lease) {
            (true, _) => Lease::Taken,
            (_, true) => Lease::None,
            _ => Lease::Free,
        };
        let write_back = options_of(mode, asked.write_back_limit.or(file.write_back_limit), &policy)?;
        Ok(Self {
            dir,
            store,
            policy,
            lease,
            machine: Life::machine(),
            is_shared: asked.share_cache,
            borrows_from: asked.borrow_from,
            data_from: asked.data_from,
            record: asked.record,
            write_back,
        })
    }

    /// Makes the cache refuse all changes, whatever the rules say. Fails with write-back.
    pub fn refuse_changes(&mut self) -> Result<(), Failure> {
        if self.write_back.is_some() {
            let problem = "--read-only and --mode write-back exclude each other";
            return Err(Failure::usage(problem).remedy("omit one of them"));
        }
        let rules = self.policy.rules.iter_mut().map(|rule| &mut rule.options);
        rules.chain([&mut self.policy.default]).for_each(|options| options.read_only = true);
        Ok(())
    }

    /// Returns `true` if no file can be changed.
    pub fn is_read_only(&self) -> bool {
        self.policy.is_read_only()
    }

    /// Returns `true` if any file has the exclusive contract.
    pub fn is_exclusive(&self) -> bool {
        self.policy.is_exclusive()
    }

    /// Returns `true` if every contract lets the proxy notify mounts of all changes.
    pub fn tells_changes(&self) -> bool {
        self.policy.tells_changes()
    }

    /// Returns `true` if the cache acquires the tree's lease, which other proxies with an exclusive contract
    /// respect.
    pub fn takes_lease(&self, tree: &Tree) -> bool {
        let is_over_nfs = matches!(tree, Tree::Nfs(_) | Tree::NfsShm(_));
        is_over_nfs && self.lease != Lease::None && self.policy.is_exclusive()
    }

    /// Returns the needs of the cache. Creates its directory, because a sandbox cannot allow a missing one.
    pub fn needs(&self) -> Needs {
        // Errors are reported when the directory is used.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        let lists = needs::directories_of([self.dir.clone()]);
        let mut needs = Needs { lists, changes: vec![self.dir.clone()], ..Needs::default() };
        needs.changes.extend(self.borrows_from.clone());
        if let Some(url) = &self.data_from {
            needs::join(&mut needs, needs::of_client(url));
        }
        needs
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.store.capacity_bytes
    }

    /// Adds write-back over an open cache; `None` in the other modes.
    pub fn write_back_over(
        &self,
        tree: &Tree,
        cache: &Arc<CacheExport>,
    ) -> Result<Option<Arc<WriteBackExport>>, Failure> {
        let serving = format!("cache {tree} in {}", self.dir.display());
        let Some(options) = self.write_back else { return Ok(None) };
        try_out(&serving, &self.dir, &**cache)?;
        let export = write_back::over(&**cache, &dir_in(&self.dir), options).or_cannot(&serving)?;
        export.learn_root(&Myself::ask().identity);
        let cache = Arc::downgrade(cache);
        export.grant_locks_while(move || cache.upgrade().is_some_and(|cache| !cache.has_lost_lease()));
        Ok(Some(Arc::new(export)))
    }

    /// Opens the cache over the tree's export, and acquires the tree's lease under the conditions of
    /// [`CachePlan::takes_lease`]. Fails if the directory has unsent changes and write-back is not enabled.
    pub fn over(&self, tree: &Tree, origin: &dyn Export) -> Result<Arc<CacheExport>, Failure> {
        let serving = format!("cache {tree} in {}", self.dir.display());
        let volume = {
            let client =
                Client { session: SessionId(0), label: "volume".into(), checks: PermissionCheck::Caller };
            let fs = origin.attach(&client).or_cannot(&serving)?;
            let handles = fs.persistent_handles();
            let handles =
                handles.ok_or_else(|| Failure::cannot(&serving, "the file system has no file handles"))?;
            handles.volume()
        };
        let identity = OriginIdentity { location: place(tree), volume };
        let store =
            Store::open(&self.dir, &identity, self.store).map_err(|error| not_opened(&serving, &error))?;
        if self.write_back.is_none() {
            let remedy = "start the proxy with --mode write-back --contract exclusive";
            refuse_what_is_kept(&serving, &self.dir, remedy)?;
        }
        let policy = self.policy.clone();
        let mut cached = if self.takes_lease(tree) {
            let cached = tombolo_layer_cache::over_leased(origin, store, policy, self.claim());
            cached.map_err(|error| not_leased(&serving, &error))?
        } else {
            let cached = tombolo_layer_cache::over(origin, store, policy);
            cached.map_err(|error| self.not_granted(&serving, &error))?
        };
        if self.is_shared {
            cached.share().or_cannot(&serving)?;
        }
        if let Some(dir) = &self.borrows_from {
            cached.borrow_from(dir, BorrowOptions::default()).or_cannot(&serving)?;
        }
        if let Some(path) = &self.record {
            let recording = format!("record in {}", path.display());
            cached.record(File::create(path).or_cannot(recording)?);
        }
        if let Some(url) = &self.data_from {
            let taken = cached.take_data_from(&url.to_string(), connecting(url.clone()), FIRST_WAIT);
            taken.map_err(|_| {
                let problem = "the origin provides no digests to verify --data-from";
                Failure::cannot(&serving, problem)
                    .remedy("omit --data-from, or serve the origin with tombolo serve of this version")
            })?;
        }
        Ok(Arc::new(cached))
    }

    fn not_granted(&self, doing: &str, error: &Error) -> Failure {
        let (problem, remedy) = match error {
            Error::NotSupported if self.policy.is_leased() => (
                "the origin grants no leases",
                "use --contract close-to-open, or serve the origin's directory with tombolo serve of this version, \
                 as an export that does not overlap others",
            ),
            Error::NotPermitted if self.policy.is_leased() => (
                "the origin's server grants no leases to this host",
                "start the server with --leases and this host's address or network (or use its --nfs-tls port with a certificate), \
                 or use --contract close-to-open",
            ),
            Error::AccessDenied if self.policy.is_leased() => (
                "the origin's server grants leases only to users who may list and search the root of its export",
                "permit that (with --squash root, root is another user on the server), or use --contract close-to-open",
            ),
            error => return Failure::cannot(doing, error),
        };
        Failure::cannot(doing, problem).remedy(remedy)
    }

    fn claim(&self) -> Claim {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp { secs: now.as_secs().try_into().unwrap_or(0), nanos: 0 };
        Claim {
            identity: Myself::ask().identity,
            host: host_name(),
            process: std::process::id().to_string(),
            since: shown::time(now),
            life: Life::of_this_process(self.machine.clone()),
            takes: self.lease == Lease::Taken,
            may_come_later: self.write_back.is_some()
                && !matches!(write_back::kept_in(&dir_in(&self.dir)), Ok(0)),
            lasts: self.write_back.is_some(),
            period: LEASE_PERIOD,
        }
    }

    pub fn mode(&self) -> &'static str {
        match self.write_back {
            Some(_) => "write-back",
            None if self.policy.default.read_only => "read-only",
            None => "write-through",
        }
    }

    /// Returns the default contract as on the command line.
    pub fn contract(&self) -> String {
        contract_word(self.policy.default.contract)
    }

    /// Returns the cache's part of the `ready` line.
    pub fn words(&self, tree: &Tree) -> String {
        let (mode, rules) = (self.mode(), &self.policy.rules);
        let rules = if rules.is_empty() { String::new() } else { format!(" rules={}", rules.len()) };
        let lease = if self.takes_lease(tree) { format!(" lease={LEASE_NAME}") } else { String::new() };
        let shared = if self.is_shared { " shared" } else { "" };
        let borrows = self.borrows_from.as_ref().map(|dir| format!(" borrows-from={}", dir.display()));
        let contract = self.contract();
        let borrows = borrows.unwrap_or_default();
        let middle = self.data_from.as_ref().map(|url| format!(" data-from={url}")).unwrap_or_default();
        format!(
            "{} mode={mode} contract={contract}{rules}{lease}{shared}{borrows}{middle}",
            self.dir.display()
        )
    }
}

/// Maximum wait for another host's cache at the start.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Returns a connector to another host's cache, whose requests time out soon.
fn connecting(url: NfsUrl) -> Connect {
    Box::new(move || {
        let nfs = NfsOptions::for_cache().then(&NfsOptions::fails_soon());
        let export = location::mount(&url, &OpenOptions { nfs, ..OpenOptions::default() });
        let export = export.map_err(|error| Error::io(error.reason))?;
        let (session, label) = (SessionId(0), "data from a cache".into());
        export.attach(&Client { session, label, checks: PermissionCheck::BackEnd })
    })
}

/// Returns the location of a tree without connection options, by which the cache recognises its origin.
fn place(tree: &Tree) -> String {
    let text = tree.to_string();
    match tree {
        Tree::Nfs(_) | Tree::NfsShm(_) => text.split('?').next().unwrap_or_default().to_owned(),
        Tree::Dir(_) | Tree::Shm(_) => text,
    }
}

/// Reports why the tree's lease was not acquired, with a remedy.
fn not_leased(doing: &str, error: &LeaseError) -> Failure {
    let failure = Failure::cannot(doing, error);
    match error {
        LeaseError::Held { .. } | LeaseError::Overtaken { .. } => failure.remedy(
            "stop that proxy, take over its lease with --take-lease, or use --contract close-to-open",
        ),
        LeaseError::Unwritable { .. } => failure.remedy(
            "use --contract immutable if the tree does not change, --contract close-to-open, \
            or --no-lease if all changes are made through this proxy",
        ),
        LeaseError::Origin(_) => failure,
    }
}

/// Reports why a cache directory cannot be used, with a remedy.
pub fn not_opened(doing: &str, error: &OpenError) -> Failure {
    let failure = Failure::cannot(doing, error);
    match error {
        OpenError::InUse { path, .. } => failure.remedy(format_args!(
            "stop that process, or choose another directory with --cache; --borrow-from {} uses the data in this one, \
             if that process has --share-cache",
            path.display()
        )),
        OpenError::OtherOrigin { path, .. } => failure.remedy(format_args!(
            "choose another directory with --cache (or another session name), or remove this cache: tombolo cache drop {}",
            path.display()
        )),
        OpenError::OtherOwner { .. } => failure
            .remedy("run the proxy as that user, change the directory's owner, or choose another one with --cache"),
        OpenError::Foreign { .. } => failure.remedy("choose another directory with --cache"),
        OpenError::OtherVolume { path, .. } => failure.remedy(format_args!(
            "if this is intended, remove the cache: tombolo cache drop {}",
            path.display()
        )),
        OpenError::Io { .. } | OpenError::Database { .. } => failure,
    }
}

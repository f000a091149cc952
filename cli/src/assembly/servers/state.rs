//! State that outlives the server: handle keys and records of executed requests, shared by all front ends of
//! an export; and the NFS service over it, independent of the transport.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tombolo_core::fs::{Client, Export, LEASE_TERM, LeaseNote, LeaseTable, NodeId, PermissionCheck};
use tombolo_core::{Ctx, SessionId, lock};
use tombolo_front_nfs_server::{ExportOptions, Groups, Identities, NfsService, Options, Signer};
use tombolo_host_runtime::signing_keys::Keys;
use tombolo_host_service::handle_keys;
use tombolo_host_service::state_dir::{ServerFiles, ServerState, StateDir, StateError};
use tombolo_layer_basic::recall;
use tombolo_layer_handle_table as handle_table;
use tombolo_layer_replies as replies;
use tombolo_layer_replies::Replies;

use crate::assembly::plan::nfs::NfsPlan;
use crate::assembly::plan::tree::Tree;
use crate::assembly::plan::{Plan, PlannedExport};
use crate::failure::{Failure, OrCannot};

/// Durable state. Nothing is opened before it is needed.
pub struct DurableState {
    /// State directory given with `--state`, if any.
    asked: Option<PathBuf>,
    /// `true` if the server fails without durable state.
    must: bool,
    name: String,
    /// Exports in the plan's order, without the layer that executes each request once.
    sources: Vec<(PlannedExport, Arc<dyn Export>)>,
    nfs: NfsPlan,
    session_ids: Arc<AtomicU64>,
    /// For each export of the plan, `true` if leases may be granted.
    may_lease: Vec<bool>,
    opened: OnceLock<Opened>,
    /// Lock of the thread that opens the state.
    opening: Mutex<()>,
}

/// Opened state. The state directory is released last.
struct Opened {
    keys: Arc<Keys>,
    signer: Arc<Signer>,
    /// Exports by index in the plan, each opened once for all front ends.
    exports: Mutex<BTreeMap<usize, Arc<Replies>>>,
    /// Leases of the exports that grant any.
    leases: BTreeMap<usize, Arc<LeaseTable>>,
    /// State directory, or the reason why there is none.
    state: Result<ServerState, Failure>,
}

impl DurableState {
    /// Creates the state for the exports of a plan, in the same order.
    pub fn new(plan: &Plan, exports: &[Arc<dyn Export>], session_ids: &Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self {
            asked: plan.state.clone(),
            must: plan.state.is_some() || plan.front_ends.nfs.is_any() || plan.keep.is_some(),
            name: plan.name(),
            sources: plan.exports.iter().cloned().zip(exports.iter().cloned()).collect(),
            nfs: plan.front_ends.nfs.clone(),
            session_ids: session_ids.clone(),
            may_lease: (0..plan.exports.len()).map(|index| may_lease(plan, index)).collect(),
            opened: OnceLock::new(),
            opening: Mutex::default(),
        })
    }

    pub fn service(&self, offered: &[usize]) -> Result<Arc<NfsService>, Failure> {
        let opened = self.opened()?;
        if let Err(missing) = &opened.state {
            return Err(Failure::cannot("serve NFS", missing.to_string()));
        }
        let mut exports = Vec::with_capacity(offered.len());
        for &index in offered {
            let Some((planned, source)) = self.sources.get(index) else { continue };
            exports.push(ExportOptions {
                name: planned.name.to_string(),
                export: opened.once(index, planned, source)?,
                session: SessionId(self.session_ids.fetch_add(1, Ordering::Relaxed)),
                squash: self.nfs.squash,
                allow: self.nfs.allow.clone(),
                durability: self.nfs.durability,
                leases: opened.leases.get(&index).cloned(),
                lease_holders: self.nfs.lease_holders.clone(),
            });
        }
        let groups = self.nfs.manage_gids.then(Groups::new);
        let identities = Identities::new(groups).under(self.nfs.claims.clone());
        NfsService::new(Options { exports, signer: opened.signer.clone(), identities }).or_cannot("serve NFS")
    }

    /// Returns the export with this index in the plan, wrapped to execute each request once and to recall
    /// leases; `None` if the plan has no such export.
    ///
    /// Unless a state directory was named, or NFS or --keep needs one, the export works without durable state
    /// too; clients then fail after a restart.
    pub fn once(&self, index: usize) -> Result<Option<Arc<dyn Export>>, Failure> {
        let Some((planned, source)) = self.sources.get(index) else { return Ok(None) };
        let export = self.opened()?.once(index, planned, source)?;
        self.recalling(index, export).map(Some)
    }

    /// Wraps an export for front ends other than NFS: leases of NFS clients are recalled before a change.
    pub fn recalling(&self, index: usize, export: Arc<dyn Export>) -> Result<Arc<dyn Export>, Failure> {
        if !self.may_lease.get(index).is_some_and(|may| *may) {
            return Ok(export);
        }
        Ok(match self.opened()?.leases.get(&index) {
            Some(table) => Arc::new(recall::over(export, Arc::clone(table))),
            None => export,
        })
    }

    pub fn keys(&self) -> Result<Arc<Keys>, Failure> {
        Ok(Arc::clone(&self.opened()?.keys))
    }

    /// Returns the counter from which all front ends take the ids of their sessions.
    pub fn session_ids(&self) -> &Arc<AtomicU64> {
        &self.session_ids
    }

    /// Logs a warning if a front end needs durable state and there is none.
    pub fn warn(&self) {
        if let Some(missing) = self.opened.get().and_then(|opened| opened.state.as_ref().err()) {
            tracing::warn!("clients will lose state when this server is restarted: {missing}");
        }
    }

    fn opened(&self) -> Result<&Opened, Failure> {
        let _alone = lock(&self.opening);
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let state = match self.open_state() {
            Err(failure) if self.must => return Err(failure),
            state => state,
        };
        let (keys, leases) = match &state {
            Ok(state) => {
                let keys = handle_keys::open(state.files());
                let keys = keys.or_cannot(format_args!("use {}", state.path().display()))?;
                (keys, self.leases(state.files())?)
            }
            Err(_) => (Keys::random().or_cannot("create a key for file handles")?, BTreeMap::new()),
        };
        let signer = Arc::new(Signer::new(keys.clone()));
        let opened = Opened { keys: Arc::new(keys), signer, exports: Mutex::default(), leases, state };
        Ok(self.opened.get_or_init(|| opened))
    }

    fn leases(&self, files: &ServerFiles) -> Result<BTreeMap<usize, Arc<LeaseTable>>, Failure> {
        let leased =
            self.sources.iter().enumerate().filter(|(index, _)| self.may_lease.get(*index) == Some(&true));
        let table = |(index, (planned, _)): (usize, &(PlannedExport, _))| {
            let name = format!("leases-{}", one_component(&planned.name.to_string()));
            let before = files.read(&name).or_cannot("read the state of leases")?;
            let was_set = before.is_some_and(|text| text != NONE_HELD);
            let (epoch, note) =
                (RandomState::new().build_hasher().finish(), Note { files: files.clone(), name });
            Ok((index, LeaseTable::noted(LEASE_TERM, was_set, epoch, Box::new(note))))
        };
        leased.map(table).collect()
    }

    /// Opens the state directory of this server, keyed by the name of its first export and that export's
    /// source.
    fn open_state(&self) -> Result<ServerState, Failure> {
        let path = state_path(self.asked.as_deref())?;
        let keeping = format!("keep state in {}", path.display());
        let source = self.sources.first().map_or_else(String::new, |(export, _)| export.tree.to_string());
        let state = StateDir::open(&path).and_then(|state| state.server_of(&self.name, &source));
        state.map_err(|error| {
            let remedy = match error {
                // That server may serve this one's connection.
                StateError::InUse { .. } if self.nfs.over_stdio => {
                    "the running server has other options: use the same, wait for its last connection to end, or choose another directory with --state DIR"
                }
                StateError::InUse { .. } => {
                    "stop that server, or give this one its own directory with --state DIR"
                }
                _ => "choose another directory with --state DIR",
            };
            Failure::cannot(&keeping, &error).remedy(remedy)
        })
    }
}

impl Opened {
    fn once(
        &self,
        index: usize,
        planned: &PlannedExport,
        source: &Arc<dyn Export>,
    ) -> Result<Arc<Replies>, Failure> {
        let mut exports = lock(&self.exports);
        if let Some(export) = exports.get(&index) {
            return Ok(export.clone());
        }
        let export = match &self.state {
            Ok(state) => once(source, planned, state.path())?,
            Err(_) => Arc::new(replies::over(source.clone(), &replies::Options::default())),
        };
        exports.insert(index, export.clone());
        Ok(export)
    }
}

/// Returns `true` if leases may be granted: NFS clients must have access, and all changes by clients must
/// pass through this export. That excludes cached and remote trees, and directories that overlap with another
/// export, whose changes recall no lease of this one.
fn may_lease(plan: &Plan, index: usize) -> bool {
    let directory = |export: &PlannedExport| match &export.tree {
        Tree::Dir(path) => path.canonicalize().ok(),
        _ => None,
    };
    let Some(own) = plan.exports.get(index).and_then(directory) else { return false };
    let others = plan.exports.iter().enumerate().filter(|(other, _)| *other != index);
    let overlaps = |other: PathBuf| other.starts_with(&own) || own.starts_with(&other);
    let is_apart = !others.filter_map(|(_, other)| directory(other)).any(overlaps);
    plan.cache.is_none() && plan.front_ends.nfs.offers(index) && is_apart
}

/// Durable file that says whether leases of an export may be held, for the next start of the server.
#[derive(Debug)]
struct Note {
    files: ServerFiles,
    name: String,
}

const NONE_HELD: &[u8] = b"none\n";

impl LeaseNote for Note {
    fn set(&self, may_be_held: bool) -> bool {
        let text = if may_be_held { b"held\n" } else { NONE_HELD };
        let written = self.files.write(&self.name, text);
        written.inspect_err(|error| tracing::warn!(%error, "no leases are granted")).is_ok()
    }
}

/// Returns the given state directory or the default.
pub fn state_path(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    match asked {
        Some(path) => Ok(path.to_owned()),
        None => StateDir::default_path()
            .or_cannot("find the state directory")
            .map_err(|failure| failure.remedy("choose one with --state DIR")),
    }
}

/// Opens an export with file handles that executes each request once, also across a crash of this process.
fn once(export: &Arc<dyn Export>, planned: &PlannedExport, state: &Path) -> Result<Arc<Replies>, Failure> {
    let name = one_component(&planned.name.to_string());
    let export = with_handles(export, planned, &state.join(format!("handles-{name}")))?;
    let path = state.join(format!("replies-{name}"));
    let replies = replies::open(export, &replies::Options::default(), &path);
    replies.map(Arc::new).or_cannot(format_args!("use {}", path.display()))
}

/// Returns the export, with handles from a table if its own are too long or missing.
fn with_handles(
    export: &Arc<dyn Export>,
    planned: &PlannedExport,
    table: &Path,
) -> Result<Arc<dyn Export>, Failure> {
    let serving = format!("serve {} across restarts of this server", planned.name);
    let client = Client { session: SessionId(0), label: "handles".into(), checks: PermissionCheck::Caller };
    let fs = export.attach(&client).or_cannot(&serving)?;
    let root =
        fs.persistent_handles().map(|handles| handles.handle_of(&Ctx::root(SessionId(0)), NodeId::ROOT));
    if root.is_some_and(|root| root.wait().is_ok_and(|root| Signer::can_sign(&root))) {
        return Ok(export.clone());
    }
    let why = match planned.tree {
        Tree::Dir(_) | Tree::Shm(_) => "they require root, and a file system that supports them",
        Tree::Nfs(_) | Tree::NfsShm(_) => "those of its server are too long to be signed",
    };
    tracing::warn!(
        "no file handles for {}: {why}; clients must look up files again after a rename",
        planned.tree
    );
    let over = handle_table::over(export.clone(), table);
    over.map(|export| Arc::new(export) as _).or_cannot(&serving)
}

/// Encodes the name of an export as one path component; different names remain different.
fn one_component(name: &str) -> String {
    name.trim_start_matches('/').replace('%', "%25").replace('/', "%2f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_export_names_stay_distinct() {
        let names = ["/", "/a", "/a/b", "/a%2fb", "/a-b"].map(one_component);
        assert_eq!(names, ["", "a", "a%2fb", "a%252fb", "a-b"]);
    }
}

//! One session's view of the export: the waist's operations as calls of NFS.
//!
//! Look-ups, attribute queries, reads and writes are answered immediately if the cached state suffices. Most
//! other operations are futures that wait for the server where necessary. Reading order: `file_system`
//! (dispatch), `view` (common helpers), then by kind.

mod attributes;
mod data;
mod file_system;
mod finding;
mod handles;
mod lending;
mod listing;
mod making;
mod opening;
mod packed_writes;
mod recovery;
mod removing;
mod server;
mod verifiers;
mod view;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tombolo_core::Budget as Counts;
use tombolo_core::fs::{NodeId, PermissionCheck, Profile};
use tombolo_host_rpc::client::Interrupts;
use tombolo_host_runtime::pending::Pending;
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf};

use crate::calls::Nfs;
use crate::data::Budget;
use crate::listed_ahead::ListedAhead;
use crate::nodes::Nodes;
use crate::openings::Openings;
use crate::options::Options;
use crate::root::Root;
use packed_writes::PackedWrites;

pub(crate) use file_system::NfsFileSystem;

/// One session, shared by its pending operations.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) nfs: Nfs,
    pub(crate) nodes: Nodes,
    pub(crate) budget: Arc<Budget>,
    openings: Openings,
    profile: Profile,
    /// Party that checks permissions: the session's client or the server.
    checks: PermissionCheck,
    root: Arc<Root>,
    read_ahead_bytes: usize,
    read_ahead_time: Duration,
    interrupts: Interrupts,
    verifiers: verifiers::Verifiers,
    /// Counter for the names of files unlinked while open.
    silly: std::sync::atomic::AtomicU64,
    /// Pending removals, by directory, of files unlinked while open that were closed since. A directory with
    /// no other files is empty for callers, so its removal waits for them.
    silly_removals: Pending<NodeId>,
    has_side_program: AtomicBool,
    packed_writes: PackedWrites,
    listed_ahead: ListedAhead,
}

/// Parameters of a new session.
pub(crate) struct Beginning<'a> {
    pub nfs: Nfs,
    pub budget: Arc<Budget>,
    pub handle: FileHandleBuf,
    pub fattr: &'a Fattr3,
    pub asked: std::time::Instant,
    pub profile: Profile,
    pub checks: PermissionCheck,
    pub root: Arc<Root>,
    pub options: &'a Options,
    pub has_side_program: bool,
}

impl Session {
    pub(crate) fn new(beginning: Beginning<'_>) -> Self {
        let Beginning { nfs, budget, handle, fattr, asked, profile, checks, root, options, has_side_program } =
            beginning;
        let counts = Counts::new(options.limits);
        Self {
            nfs,
            nodes: Nodes::new(handle, fattr, asked, options.attributes, counts.clone()),
            budget,
            openings: Openings::new(counts),
            profile,
            checks,
            root,
            read_ahead_bytes: options.read_ahead_bytes,
            // Read-ahead is valid no longer than attributes.
            read_ahead_time: options.attributes.file_min,
            interrupts: options.rpc.interrupts,
            verifiers: verifiers::Verifiers::new(),
            silly: std::sync::atomic::AtomicU64::new(0),
            silly_removals: Pending::default(),
            has_side_program: has_side_program.into(),
            packed_writes: PackedWrites::default(),
            listed_ahead: ListedAhead::default(),
        }
    }
}

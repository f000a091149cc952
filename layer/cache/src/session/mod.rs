//! One session of the cache: the waist's operations, answered from cached state or by the origin.
//!
//! An operation with valid cached state is answered immediately; otherwise it is a future that queries the
//! origin and caches the answer. Reading order: `file_system` (dispatch), `view` (common helpers), then by
//! kind.

mod advising;
mod ahead;
mod changes;
mod changing;
mod coming;
mod file_system;
mod finding;
mod handles;
mod known;
mod lending;
mod listing;
mod offering;
mod opening;
mod reading;
mod removing;
mod trace;
mod view;
mod xattrs;

use std::sync::{Arc, Once};

use tombolo_core::Budget;
use tombolo_core::fs::{NoticeQueue, Profile};

use crate::cache::Cache;
use crate::openings::Openings;

use known::Known;

pub(crate) use file_system::CachedFileSystem;
pub(crate) use lending::lend;

/// A session, shared by its operations in progress.
pub(crate) struct Session {
    pub cache: Arc<Cache>,
    pub openings: Openings,
    pub profile: Profile,
    /// Notices of changes by other sessions, once this one has subscribed.
    pub notices: Arc<NoticeQueue>,
    /// Subscription to [`Cache::watchers`], at the first request for notices.
    pub watch: Once,
    /// Nodes of which the client has look-ups.
    pub known: Known,
    /// `true` if the session can be notified of all changes.
    pub tells_changes: bool,
}

impl Session {
    pub(crate) fn new(cache: &Arc<Cache>) -> Self {
        // `Write::by_owner` is not supported, as the origin itself checks permissions.
        let origin = cache.origin.fs.profile();
        let profile =
            Profile { read_only: origin.read_only || cache.is_read_only(), writes_by_owner: false, ..origin };
        let counts = Budget::new(tombolo_core::Limits::default());
        let tells_changes = cache.tells_changes();
        Self {
            cache: cache.clone(),
            openings: Openings::new(counts),
            profile,
            notices: Arc::default(),
            watch: Once::new(),
            known: Known::default(),
            tells_changes,
        }
    }
}

//! Prefetch of the root's names and a user's permissions there, for use while the origin is unreachable.

use std::sync::Arc;

use tombolo_core::fs::{AccessMask, FileSystem, NodeId};
use tombolo_core::{Ctx, Identity, Result};

use crate::below::list;

/// Maximum number of pages read; a larger root is not read to its end.
const PAGES_MAX: usize = 256;

/// Prefetches the root's names and a user's permissions on the root, with and without the user's
/// supplementary groups, as requests may have either. The cache `below` stores the results.
pub(crate) async fn learn_root(below: Arc<dyn FileSystem>, cx: Ctx, user: Identity) {
    let alone = Identity { groups: None, ..user.clone() };
    let has_groups = user != alone;
    for identity in [Some(user), has_groups.then_some(alone)].into_iter().flatten() {
        learn_rights(&*below, &Ctx { identity: identity.clone(), ..cx.clone() }).await;
        if let Err(error) = learn_names(&*below, &Ctx { identity, ..cx.clone() }).await {
            tracing::debug!(%error, "cannot list the root in advance");
        }
    }
}

/// Requests the rights to read, search and write, and if that fails only the first two, because a refusal
/// does not state which of the rights is denied.
async fn learn_rights(below: &dyn FileSystem, cx: &Ctx) {
    let reads = AccessMask::READ | AccessMask::EXECUTE;
    for mask in [reads | AccessMask::WRITE, reads] {
        if below.access(cx, NodeId::ROOT, mask).resolve().await.is_ok() {
            return;
        }
    }
}

async fn learn_names(below: &dyn FileSystem, cx: &Ctx) -> Result<()> {
    let mut pages = 0;
    list(below, cx, NodeId::ROOT, |_| {
        pages += 1;
        pages < PAGES_MAX
    })
    .await
}

//! What is done at once, and what goes to the pool.

use std::sync::Arc;

use tombolo_core::fs::{Name, NodeId};
use tombolo_core::{Answer, Ctx, Error, Resource, Result};
use tombolo_sys::stat::{self, Stat};

use crate::pace::Pace;
use crate::session::{LocalSession, Session};

/// Removing or cutting off more than this (4 MiB, in units of 512 bytes) takes the file system long enough to matter.
const BIG_BLOCKS: u64 = 8192;

impl LocalSession {
    /// Whether work on names around `node` may be done at once.
    #[inline]
    pub(crate) fn is_quick(&self, node: NodeId) -> bool {
        self.0.export.pace.is_quick() && self.0.is_local(node)
    }

    /// Does work on names at once, and learns how long it takes.
    #[inline]
    pub(crate) fn now<T>(&self, work: impl FnOnce(&Session) -> Result<T>) -> Answer<T> {
        Answer::Done(self.0.export.pace.timed(|| work(&self.0)))
    }

    /// Does work on names in the pool, and learns how long it takes there.
    pub(crate) fn later<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce(&Session, &Ctx) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.in_pool(cx, move |session, cx| session.export.pace.timed(|| work(session, cx)))
    }

    /// Does work in the pool that is slow by nature.
    pub(crate) fn in_pool<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce(&Session, &Ctx) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let Some(permit) = self.0.budget.take(Resource::Pending, 1) else {
            return Answer::err(Error::WouldBlock);
        };
        let (session, own_cx) = (Arc::clone(&self.0), cx.clone());
        self.0.lane.run(cx, move || {
            let _permit = permit;
            work(&session, &own_cx)
        })
    }
}

impl Session {
    /// Whether a node lies on this machine.
    #[inline]
    pub(crate) fn is_local(&self, node: NodeId) -> bool {
        let mounts = &self.export.mounts;
        mounts.all_local()
            || self.location_at_hand(node).ok().flatten().is_some_and(|location| {
                mounts.mount(location.identity.key.mount).is_ok_and(|mount| mount.local)
            })
    }

    /// Whether taking this name away frees much space.
    pub(crate) fn is_big(&self, parent: NodeId, name: Name<'_>) -> bool {
        let Ok(Some(dir)) = self.location_at_hand(parent) else { return false };
        stat::stat_entry(dir.fd(), name.as_bytes()).is_ok_and(|stat| is_big(&stat) && stat.links == 1)
    }

    /// How quick small writes are.
    pub(crate) fn write_pace(&self) -> &Pace {
        &self.export.write_pace
    }
}

/// Whether a file holds enough to be slow to free.
pub(crate) fn is_big(stat: &Stat) -> bool {
    stat.is_regular() && stat.blocks > BIG_BLOCKS
}

//! Operations whose duplicates are answered without repeating their effect: arguments, execution, and the
//! reply to duplicates. Across a restart this holds for those with an [`ExpectedEffect`] only.
//!
//! The reply to a duplicate reflects the current state: the node is resolved anew, which counts a look-up as
//! the first reply did, and attributes are current. The attributes before a change are not known any more.

mod changing;
mod making;
mod naming;

use std::future::Future;

use tombolo_core::fs::{Attr, Change, Created, Entry, File, FileSystem, Made, Renamed, Written};
use tombolo_core::{Answer, Ctx, Result};

use super::inner::InnerSession;
use super::intent::ExpectedEffect;
use super::outcome::Outcome;

pub(super) use changing::{Append, Setattr, WithoutResult, Write};
pub(super) use making::{Create, CreateUnnamed};
pub(super) use naming::{Named, NamedReply, Rename, makes, removes};

/// An operation with its arguments, to be performed once.
pub(super) trait Call: Send + Sized + 'static {
    type Reply: Reply;

    /// Returns the effect to record in the journal. `None`: the outcome is kept in memory only, because the
    /// operation is too frequent (writes), without effect after the process (locks), or idempotent.
    fn expected_effect(&self) -> Option<ExpectedEffect> {
        None
    }

    /// Returns `true` if the operation is cancelled when its caller disconnects: a lock request that waits,
    /// as the caller could not release the lock any more.
    fn is_cancellable(&self) -> bool {
        false
    }

    /// Performs the operation.
    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Self::Reply>;

    /// Answers a duplicate whose original ended with `outcome`, which is never a failure.
    fn answer_duplicate(
        self,
        inner: InnerSession,
        outcome: Outcome,
    ) -> impl Future<Output = Result<Self::Reply>> + Send;
}

/// A reply of an operation, from which the outcome to keep follows.
pub(super) trait Reply: Send + 'static {
    /// Returns the entry that the reply counts as a look-up.
    fn entry(&self) -> Option<&Entry> {
        None
    }

    /// Returns the outcome to keep. Called only if there is no [`entry`](Self::entry).
    fn outcome(&self) -> Outcome {
        Outcome::Done
    }

    /// Releases the references in a reply that was not delivered.
    fn give_back(&self, fs: &dyn FileSystem, cx: &Ctx) {
        if let Some(entry) = self.entry() {
            fs.forget(cx, &[(entry.node, 1)]);
        }
    }
}

impl Reply for () {}

impl Reply for Change {}

impl Reply for Renamed {}

impl Reply for (Attr, Change) {}

impl Reply for Written {
    fn outcome(&self) -> Outcome {
        Outcome::Wrote { count: self.count as u64, stability: self.stability }
    }
}

impl Reply for Made {
    fn entry(&self) -> Option<&Entry> {
        Some(&self.entry)
    }
}

impl Reply for Created {
    fn entry(&self) -> Option<&Entry> {
        Some(&self.entry)
    }

    fn give_back(&self, fs: &dyn FileSystem, cx: &Ctx) {
        fs.release(cx, File { node: self.entry.node, open: self.open });
        fs.forget(cx, &[(self.entry.node, 1)]);
    }
}

//! The operations that are answered once, each with its arguments, what it runs, and how its answer is given
//! again.
//!
//! An answer given again is made of what is true then: the node is resolved anew, which counts a look-up as
//! the first answer did, and attributes are fresh. Of a directory's or a file's change only the attributes
//! from after are known.

mod changing;
mod making;
mod removing;

use std::future::Future;

use tombolo_core::fs::{Attr, Change, Created, Entry, File, FileSystem, Made, Renamed, Written};
use tombolo_core::{Answer, Ctx, Result};

use super::below::Below;
use super::intent::Trail;
use super::outcome::Outcome;
use tombolo_core::fs::Op;

pub(super) use changing::{Allocate, Append, GiveLock, RemoveXattr, SetXattr, Setattr, TakeLock, Write};
pub(super) use making::{Create, CreateUnnamed, Link, Mkdir, Mknod, Symlink};
pub(super) use removing::{Rename, Rmdir, Unlink};

/// One operation with its arguments.
pub(super) trait Call: Send + Sized + 'static {
    /// What it answers with.
    type Reply: Reply;
    /// Its name.
    const OP: Op;

    /// Whether its outcome is kept in memory only: there is too much of the kind (writes), it means nothing
    /// once the process is gone (locks), or running it again does what running it once did.
    fn is_fleeting(&self) -> bool {
        false
    }

    /// Where it will leave its trace, for the journal. `None`: what a crash leaves of it cannot be told, or
    /// need not.
    fn trail(&self) -> Option<Trail> {
        None
    }

    /// Whether it is given up when its caller goes away: it only waits, and must not take what is not wanted
    /// any more.
    fn is_given_up(&self) -> bool {
        false
    }

    /// Performs it.
    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Self::Reply>;

    /// The answer to a duplicate, whose first came to `outcome`: not a failure.
    fn again(self, below: Below, outcome: Outcome) -> impl Future<Output = Result<Self::Reply>> + Send;
}

/// What an operation answers with.
pub(super) trait Reply: Send + 'static {
    /// The node that it names, if it does.
    fn entry(&self) -> Option<&Entry> {
        None
    }

    /// The outcome to keep, when there is no such node.
    fn outcome(&self) -> Outcome {
        Outcome::Done
    }

    /// Gives back what the answer holds: it was not taken.
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

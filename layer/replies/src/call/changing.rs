//! Calls that change attributes or data, and calls without a result.

use std::sync::Arc;

use tombolo_core::fs::{self, Attr, Change, File, FileSystem, NodeId, SetAttr, SyncScope, Written};
use tombolo_core::{Answer, Ctx, Error, Result, Stability, Want};
use tombolo_mem::Source;

use super::Call;
use crate::append_locks::AppendLocks;
use crate::inner::InnerSession;
use crate::intent::ExpectedEffect;
use crate::outcome::Outcome;

pub(crate) struct Setattr {
    pub node: NodeId,
    pub file: Option<File>,
    pub set: SetAttr,
}

impl Call for Setattr {
    type Reply = (Attr, Change);

    /// Returns the effect of changes with a guard, which matches once only, and of changes of size, which if
    /// repeated would undo later writes.
    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let must_not_repeat = self.set.guard_ctime.is_some() || self.set.size.is_some();
        must_not_repeat.then_some(ExpectedEffect::Changes { node: self.node, set: self.set })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<(Attr, Change)> {
        fs.setattr(cx, self.node, self.file, &self.set)
    }

    async fn answer_duplicate(self, inner: InnerSession, _: Outcome) -> Result<(Attr, Change)> {
        let attr = inner.fs.getattr(&inner.cx, self.node, self.file).resolve().await?;
        let after = inner.cx.want.contains(Want::CHANGE_ATTRS).then_some(attr);
        Ok((attr, Change { before: None, after }))
    }
}

pub(crate) struct Write {
    pub file: File,
    pub how: fs::Write,
    pub from: Source,
}

impl Call for Write {
    type Reply = Written;

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Written> {
        fs.write(cx, self.file, &self.how, self.from)
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<Written> {
        let (count, stability) = match outcome {
            Outcome::Wrote { count, stability } => (count as usize, stability),
            _ => (0, Stability::Unstable),
        };
        Ok(Written { count, stability, file: inner.change(self.file.node).await })
    }
}

/// An append. Repeated, it would duplicate its data.
pub(crate) struct Append {
    pub file: File,
    pub how: fs::Write,
    pub from: Source,
    /// Required stability, according to the request and the opening.
    pub stability: Stability,
    pub append_locks: Arc<AppendLocks>,
}

impl Call for Append {
    type Reply = Written;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let (len, append_locks) = (self.from.len() as u64, self.append_locks.clone());
        Some(ExpectedEffect::Appends { node: self.file.node, len, append_locks })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Written> {
        fs.write(cx, self.file, &self.how, self.from)
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<Written> {
        let Outcome::Wrote { count, stability } = outcome else { return Err(Error::Io { source: None }) };
        if stability < self.stability {
            // The process that wrote the data was killed before it made them stable.
            inner.fs.fsync(&inner.cx, self.file, SyncScope::All).resolve().await?;
        }
        let stability = stability.max(self.stability);
        Ok(Written { count: count as usize, stability, file: inner.change(self.file.node).await })
    }
}

pub(crate) struct WithoutResult<F> {
    pub effect: Option<ExpectedEffect>,
    /// `true` for a lock request that waits, which its caller may cancel.
    pub is_cancellable: bool,
    pub run: F,
}

impl<F: FnOnce(&dyn FileSystem, &Ctx) -> Answer<()> + Send + 'static> Call for WithoutResult<F> {
    type Reply = ();

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        self.effect.clone()
    }

    fn is_cancellable(&self) -> bool {
        self.is_cancellable
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<()> {
        (self.run)(fs, cx)
    }

    async fn answer_duplicate(self, _: InnerSession, _: Outcome) -> Result<()> {
        Ok(())
    }
}

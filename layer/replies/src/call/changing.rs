use std::sync::Arc;

use tombolo_core::fs::{
    self, AllocateMode, Attr, Change, File, FileSystem, Lock, LockFamily, LockOwner, LockRange, NodeId,
    SetAttr, SyncScope, Written, XattrNameBuf, XattrSet, within,
};
use tombolo_core::{Answer, Ctx, Error, Result, Stability, Want};
use tombolo_mem::Source;

use super::Call;
use crate::append_locks::AppendLocks;
use crate::inner::InnerSession;
use crate::intent::{ExpectedEffect, ValueMark, XattrChange};
use crate::outcome::Outcome;
use tombolo_core::fs::Op;

pub(crate) struct Setattr {
    pub node: NodeId,
    pub file: Option<File>,
    pub set: SetAttr,
}

impl Call for Setattr {
    type Reply = (Attr, Change);
    const OP: Op = Op::Setattr;

    /// Returns `false` for changes with a guard, which matches once only, and for changes of size, which if
    /// repeated would undo later writes.
    fn is_in_memory_only(&self) -> bool {
        self.set.guard_ctime.is_none() && self.set.size.is_none()
    }

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let expected_effect = ExpectedEffect::Changes { node: self.node, set: self.set };
        (!self.is_in_memory_only()).then_some(expected_effect)
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
    const OP: Op = Op::Write;

    fn is_in_memory_only(&self) -> bool {
        true
    }

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
    const OP: Op = Op::Write;

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

/// Implements the replies of operations without a result. Without `lasting`, their outcomes are in memory
/// only.
macro_rules! answers_nothing {
    ($op:ident) => {
        answers_nothing!(lasting $op);

        fn is_in_memory_only(&self) -> bool {
            true
        }
    };
    (lasting $op:ident) => {
        type Reply = ();
        const OP: Op = Op::$op;

        async fn answer_duplicate(self, _: InnerSession, _: Outcome) -> Result<()> {
            Ok(())
        }
    };
}

pub(crate) struct SetXattr {
    pub node: NodeId,
    pub name: XattrNameBuf,
    pub value: Box<[u8]>,
    pub how: XattrSet,
    pub kill_set_gid: bool,
}

impl Call for SetXattr {
    answers_nothing!(lasting Setxattr);

    /// Returns `true` for unconditional setting, which is idempotent.
    fn is_in_memory_only(&self) -> bool {
        self.how == XattrSet::Any
    }

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let value = ValueMark::of(&self.value);
        let change = match self.how {
            XattrSet::Any => return None,
            XattrSet::Create => XattrChange::Make(value),
            XattrSet::Replace => XattrChange::Replace(value),
        };
        Some(ExpectedEffect::Xattr { node: self.node, name: self.name.clone(), change })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<()> {
        within(fs.xattrs(), |xattrs| {
            xattrs.set(cx, self.node, self.name.as_name(), &self.value, self.how, self.kill_set_gid)
        })
    }
}

pub(crate) struct RemoveXattr {
    pub node: NodeId,
    pub name: XattrNameBuf,
}

impl Call for RemoveXattr {
    answers_nothing!(lasting Removexattr);

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let change = XattrChange::Remove;
        Some(ExpectedEffect::Xattr { node: self.node, name: self.name.clone(), change })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<()> {
        within(fs.xattrs(), |xattrs| xattrs.remove(cx, self.node, self.name.as_name()))
    }
}

pub(crate) struct TakeLock {
    pub file: File,
    pub lock: Lock,
    pub wait: bool,
}

impl Call for TakeLock {
    answers_nothing!(Lock);

    fn is_cancellable(&self) -> bool {
        self.wait
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<()> {
        within(fs.locks(), |locks| locks.lock(cx, self.file, &self.lock, self.wait))
    }
}

pub(crate) struct GiveLock {
    pub file: File,
    pub family: LockFamily,
    pub range: LockRange,
    pub owner: LockOwner,
}

impl Call for GiveLock {
    answers_nothing!(Unlock);

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<()> {
        within(fs.locks(), |locks| locks.unlock(cx, self.file, self.family, self.range, self.owner))
    }
}

pub(crate) struct Allocate {
    pub file: File,
    pub offset: u64,
    pub len: u64,
    pub mode: AllocateMode,
}

impl Call for Allocate {
    answers_nothing!(Allocate);

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<()> {
        within(fs.ranges(), |ranges| ranges.allocate(cx, self.file, self.offset, self.len, self.mode))
    }
}

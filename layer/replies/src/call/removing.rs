use tombolo_core::fs::{Change, FileSystem, NameBuf, NodeId, RenameFlags, Renamed};
use tombolo_core::{Answer, Ctx, Result};

use super::Call;
use crate::inner::InnerSession;
use crate::intent::ExpectedEffect;
use crate::outcome::Outcome;
use tombolo_core::fs::Op;

pub(crate) struct Unlink {
    pub parent: NodeId,
    pub name: NameBuf,
}

impl Call for Unlink {
    type Reply = Change;
    const OP: Op = Op::Unlink;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        Some(ExpectedEffect::Removes { parent: self.parent, name: self.name.clone() })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Change> {
        fs.unlink(cx, self.parent, self.name.as_name())
    }

    async fn answer_duplicate(self, inner: InnerSession, _: Outcome) -> Result<Change> {
        Ok(inner.change(self.parent).await)
    }
}

pub(crate) struct Rmdir {
    pub parent: NodeId,
    pub name: NameBuf,
}

impl Call for Rmdir {
    type Reply = Change;
    const OP: Op = Op::Rmdir;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        Some(ExpectedEffect::Removes { parent: self.parent, name: self.name.clone() })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Change> {
        fs.rmdir(cx, self.parent, self.name.as_name())
    }

    async fn answer_duplicate(self, inner: InnerSession, _: Outcome) -> Result<Change> {
        Ok(inner.change(self.parent).await)
    }
}

pub(crate) struct Rename {
    pub from_parent: NodeId,
    pub from: NameBuf,
    pub to_parent: NodeId,
    pub to: NameBuf,
    pub flags: RenameFlags,
}

impl Call for Rename {
    type Reply = Renamed;
    const OP: Op = Op::Rename;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        Some(ExpectedEffect::Renames {
            from_parent: self.from_parent,
            from: self.from.clone(),
            to_parent: self.to_parent,
            to: self.to.clone(),
        })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Renamed> {
        let (from, to) = (self.from.as_name(), self.to.as_name());
        fs.rename(cx, self.from_parent, from, self.to_parent, to, self.flags)
    }

    async fn answer_duplicate(self, inner: InnerSession, _: Outcome) -> Result<Renamed> {
        let from_dir = inner.change(self.from_parent).await;
        Ok(Renamed { from_dir, to_dir: inner.change(self.to_parent).await })
    }
}

use tombolo_core::fs::{self, Created, Device, FileSystem, FileType, Made, NameBuf, NewMode, NodeId};
use tombolo_core::{Answer, Ctx, Result};

use super::Call;
use crate::inner::InnerSession;
use crate::intent::ExpectedEffect;
use crate::outcome::Outcome;
use tombolo_core::fs::Op;

pub(crate) struct Create {
    pub parent: NodeId,
    pub name: NameBuf,
    pub how: fs::Create,
}

impl Call for Create {
    type Reply = Created;
    const OP: Op = Op::Create;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let (parent, name) = (self.parent, self.name.clone());
        Some(ExpectedEffect::Makes { parent, name, file_type: FileType::Regular })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Created> {
        fs.create(cx, self.parent, self.name.as_name(), &self.how)
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<Created> {
        created(&inner, &outcome, self.parent, Some(&self.name), &self.how).await
    }
}

pub(crate) struct CreateUnnamed {
    pub parent: NodeId,
    pub how: fs::Create,
}

impl Call for CreateUnnamed {
    type Reply = Created;
    const OP: Op = Op::CreateUnnamed;

    /// Returns `true`: a file without a name does not outlive the process that has it open.
    fn is_in_memory_only(&self) -> bool {
        true
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Created> {
        fs.create_unnamed(cx, self.parent, &self.how)
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<Created> {
        created(&inner, &outcome, self.parent, None, &self.how).await
    }
}

async fn created(
    inner: &InnerSession,
    outcome: &Outcome,
    parent: NodeId,
    name: Option<&NameBuf>,
    how: &fs::Create,
) -> Result<Created> {
    let entry = inner.entry(outcome, name.map(|name| (parent, name))).await?;
    match inner.open(entry.node, how.flags).await {
        Ok(open) => Ok(Created { entry, open, dir: inner.change(parent).await }),
        Err(error) => {
            inner.forget(entry.node);
            Err(error)
        }
    }
}

pub(crate) struct Mkdir {
    pub parent: NodeId,
    pub name: NameBuf,
    pub mode: NewMode,
}

impl Call for Mkdir {
    type Reply = Made;
    const OP: Op = Op::Mkdir;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let (parent, name) = (self.parent, self.name.clone());
        Some(ExpectedEffect::Makes { parent, name, file_type: FileType::Directory })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Made> {
        fs.mkdir(cx, self.parent, self.name.as_name(), self.mode)
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<Made> {
        made(&inner, &outcome, self.parent, &self.name).await
    }
}

pub(crate) struct Symlink {
    pub parent: NodeId,
    pub name: NameBuf,
    pub target: Box<[u8]>,
}

impl Call for Symlink {
    type Reply = Made;
    const OP: Op = Op::Symlink;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let (parent, name) = (self.parent, self.name.clone());
        Some(ExpectedEffect::Makes { parent, name, file_type: FileType::Symlink })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Made> {
        fs.symlink(cx, self.parent, self.name.as_name(), &self.target)
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<Made> {
        made(&inner, &outcome, self.parent, &self.name).await
    }
}

pub(crate) struct Mknod {
    pub parent: NodeId,
    pub name: NameBuf,
    pub file_type: FileType,
    pub mode: NewMode,
    pub rdev: Device,
}

impl Call for Mknod {
    type Reply = Made;
    const OP: Op = Op::Mknod;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let (parent, name) = (self.parent, self.name.clone());
        Some(ExpectedEffect::Makes { parent, name, file_type: self.file_type })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Made> {
        fs.mknod(cx, self.parent, self.name.as_name(), self.file_type, self.mode, self.rdev)
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<Made> {
        made(&inner, &outcome, self.parent, &self.name).await
    }
}

pub(crate) struct Link {
    pub node: NodeId,
    pub parent: NodeId,
    pub name: NameBuf,
}

impl Call for Link {
    type Reply = Made;
    const OP: Op = Op::Link;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        Some(ExpectedEffect::Links { node: self.node, parent: self.parent, name: self.name.clone() })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Made> {
        fs.link(cx, self.node, self.parent, self.name.as_name())
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<Made> {
        made(&inner, &outcome, self.parent, &self.name).await
    }
}

async fn made(inner: &InnerSession, outcome: &Outcome, parent: NodeId, name: &NameBuf) -> Result<Made> {
    let entry = inner.entry(outcome, Some((parent, name))).await?;
    Ok(Made { entry, dir: inner.change(parent).await })
}

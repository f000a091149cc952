use tombolo_core::fs::{self, Created, Device, FileSystem, FileType, Made, NameBuf, NewMode, NodeId};
use tombolo_core::{Answer, Ctx, Result};

use super::Call;
use crate::below::Below;
use crate::intent::Trail;
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

    fn trail(&self) -> Option<Trail> {
        let (parent, name) = (self.parent, self.name.clone());
        Some(Trail::Makes { parent, name, file_type: FileType::Regular })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Created> {
        fs.create(cx, self.parent, self.name.as_name(), &self.how)
    }

    async fn again(self, below: Below, outcome: Outcome) -> Result<Created> {
        created(&below, &outcome, self.parent, Some(&self.name), &self.how).await
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
    fn is_fleeting(&self) -> bool {
        true
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Created> {
        fs.create_unnamed(cx, self.parent, &self.how)
    }

    async fn again(self, below: Below, outcome: Outcome) -> Result<Created> {
        created(&below, &outcome, self.parent, None, &self.how).await
    }
}

async fn created(
    below: &Below,
    outcome: &Outcome,
    parent: NodeId,
    name: Option<&NameBuf>,
    how: &fs::Create,
) -> Result<Created> {
    let entry = below.entry(outcome, name.map(|name| (parent, name))).await?;
    match below.open(entry.node, how.flags).await {
        Ok(open) => Ok(Created { entry, open, dir: below.change(parent).await }),
        Err(error) => {
            below.forget(entry.node);
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

    fn trail(&self) -> Option<Trail> {
        let (parent, name) = (self.parent, self.name.clone());
        Some(Trail::Makes { parent, name, file_type: FileType::Directory })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Made> {
        fs.mkdir(cx, self.parent, self.name.as_name(), self.mode)
    }

    async fn again(self, below: Below, outcome: Outcome) -> Result<Made> {
        made(&below, &outcome, self.parent, &self.name).await
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

    fn trail(&self) -> Option<Trail> {
        let (parent, name) = (self.parent, self.name.clone());
        Some(Trail::Makes { parent, name, file_type: FileType::Symlink })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Made> {
        fs.symlink(cx, self.parent, self.name.as_name(), &self.target)
    }

    async fn again(self, below: Below, outcome: Outcome) -> Result<Made> {
        made(&below, &outcome, self.parent, &self.name).await
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

    fn trail(&self) -> Option<Trail> {
        let (parent, name) = (self.parent, self.name.clone());
        Some(Trail::Makes { parent, name, file_type: self.file_type })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Made> {
        fs.mknod(cx, self.parent, self.name.as_name(), self.file_type, self.mode, self.rdev)
    }

    async fn again(self, below: Below, outcome: Outcome) -> Result<Made> {
        made(&below, &outcome, self.parent, &self.name).await
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

    fn trail(&self) -> Option<Trail> {
        Some(Trail::Links { node: self.node, parent: self.parent, name: self.name.clone() })
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<Made> {
        fs.link(cx, self.node, self.parent, self.name.as_name())
    }

    async fn again(self, below: Below, outcome: Outcome) -> Result<Made> {
        made(&below, &outcome, self.parent, &self.name).await
    }
}

async fn made(below: &Below, outcome: &Outcome, parent: NodeId, name: &NameBuf) -> Result<Made> {
    let entry = below.entry(outcome, Some((parent, name))).await?;
    Ok(Made { entry, dir: below.change(parent).await })
}

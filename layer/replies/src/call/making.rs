//! Calls that create and open a file.

use tombolo_core::fs::{self, Created, FileSystem, FileType, NameBuf, NodeId};
use tombolo_core::{Answer, Ctx, Result};

use super::Call;
use crate::inner::InnerSession;
use crate::intent::ExpectedEffect;
use crate::outcome::Outcome;

pub(crate) struct Create {
    pub parent: NodeId,
    pub name: NameBuf,
    pub how: fs::Create,
}

impl Call for Create {
    type Reply = Created;

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

/// Creation of a file without a name, which does not outlive the process that has it open.
pub(crate) struct CreateUnnamed {
    pub parent: NodeId,
    pub how: fs::Create,
}

impl Call for CreateUnnamed {
    type Reply = Created;

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

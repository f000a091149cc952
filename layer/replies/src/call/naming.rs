//! Calls that make, remove or move a name.

use tombolo_core::fs::{Change, FileSystem, FileType, Made, Name, NameBuf, NodeId, RenameFlags, Renamed};
use tombolo_core::{Answer, Ctx, Result};

use super::{Call, Reply};
use crate::inner::InnerSession;
use crate::intent::ExpectedEffect;
use crate::outcome::Outcome;

/// A change of one name in a directory: `effect` describes it for the journal, `run` performs it.
pub(crate) struct Named<E, F> {
    pub parent: NodeId,
    pub name: NameBuf,
    pub effect: E,
    pub run: F,
}

pub(crate) trait NamedReply: Reply + Sized {
    /// Rebuilds the reply from the operation's outcome.
    fn rebuilt(
        inner: &InnerSession,
        outcome: &Outcome,
        place: (NodeId, &NameBuf),
    ) -> impl Future<Output = Result<Self>> + Send;
}

impl NamedReply for Made {
    async fn rebuilt(inner: &InnerSession, outcome: &Outcome, place: (NodeId, &NameBuf)) -> Result<Self> {
        let entry = inner.entry(outcome, Some(place)).await?;
        Ok(Self { entry, dir: inner.change(place.0).await })
    }
}

impl NamedReply for Change {
    async fn rebuilt(inner: &InnerSession, _: &Outcome, (parent, _): (NodeId, &NameBuf)) -> Result<Self> {
        Ok(inner.change(parent).await)
    }
}

pub(crate) fn makes(file_type: FileType) -> impl Fn(NodeId, NameBuf) -> ExpectedEffect + Send {
    move |parent, name| ExpectedEffect::Makes { parent, name, file_type }
}

pub(crate) fn removes(parent: NodeId, name: NameBuf) -> ExpectedEffect {
    ExpectedEffect::Removes { parent, name }
}

impl<E, F, R: NamedReply> Call for Named<E, F>
where
    E: Fn(NodeId, NameBuf) -> ExpectedEffect + Send + 'static,
    F: FnOnce(&dyn FileSystem, &Ctx, Name<'_>) -> Answer<R> + Send + 'static,
{
    type Reply = R;

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        Some((self.effect)(self.parent, self.name.clone()))
    }

    fn run(self, fs: &dyn FileSystem, cx: &Ctx) -> Answer<R> {
        (self.run)(fs, cx, self.name.as_name())
    }

    async fn answer_duplicate(self, inner: InnerSession, outcome: Outcome) -> Result<R> {
        let Self { parent, name, .. } = self;
        R::rebuilt(&inner, &outcome, (parent, &name)).await
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

    fn expected_effect(&self) -> Option<ExpectedEffect> {
        let Self { from_parent, to_parent, .. } = *self;
        let (from, to) = (self.from.clone(), self.to.clone());
        Some(ExpectedEffect::Renames { from_parent, from, to_parent, to })
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

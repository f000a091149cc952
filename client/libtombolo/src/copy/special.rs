//! Copies of symbolic links, pipes, sockets and devices: a new object of the same type is made.

use tombolo_core::fs::{Attr, FileType, Mode, Name};
use tombolo_core::{Answer, Error};

use crate::node::Node;

use super::entry::{AtTarget, Entry, Trouble};
use super::event::Step;
use super::{Work, attributes};

impl Work {
    pub(super) async fn symlink(&self, entry: &Entry) -> Result<Option<Node>, Trouble> {
        let target = entry.from.read_link().resolve().await.map_err(|error| (Step::Read, error))?;
        self.make(entry, |dir, name| dir.make_link(name, &target)).await
    }

    pub(super) async fn special(&self, entry: &Entry) -> Result<Option<Node>, Trouble> {
        if !self.options.recursive {
            return Err((Step::OmitSpecial, Error::InvalidArgument));
        }
        let Attr { file_type, rdev, .. } = entry.attr;
        let mode: Mode = attributes::first_mode(&self.options, &entry.attr);
        let device = match file_type {
            FileType::BlockDevice | FileType::CharDevice => rdev,
            _ => tombolo_core::fs::Device::default(),
        };
        self.make(entry, |dir, name| dir.make_special(name, file_type, mode, device)).await
    }

    /// Makes a copy by `make`, and replaces what exists at the target, if the options allow that.
    async fn make(
        &self,
        entry: &Entry,
        make: impl Fn(&Node, Name<'_>) -> Answer<Node>,
    ) -> Result<Option<Node>, Trouble> {
        let making = |error| (Step::Make, error);
        let made = match self.look_at_target(entry).await? {
            AtTarget::Left(node) => {
                self.counters.skipped.increment();
                return Ok(Some(node));
            }
            AtTarget::Free => make(entry.dir()?, entry.name()).resolve().await.map_err(making)?,
            AtTarget::Taken => {
                let (part, _claim) = entry.part(self)?;
                // An earlier copy may have left a file under the temporary name.
                entry.clean_up(part.as_name()).await;
                let made = make(entry.dir()?, part.as_name()).resolve().await.map_err(making)?;
                if let Err(trouble) = entry.rename(&part).await {
                    entry.clean_up(part.as_name()).await;
                    return Err(trouble);
                }
                made
            }
        };
        self.counters.others.increment();
        self.tell_copied(entry);
        let attr = made.attr().await.map_err(making)?;
        if let Some(set) = attributes::to_preserve(self, &entry.attr, &attr, made.tree()) {
            attributes::apply(self, set, |set| made.set_attr(set)).await?;
        }
        Ok(Some(made))
    }
}

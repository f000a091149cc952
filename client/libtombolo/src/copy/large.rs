//! The copy of a file in pieces, through a part that can be resumed.

use std::sync::Arc;

use tombolo_core::fs::{Create, Exclusive, FileType, NameBuf, NewMode, OpenFlags, SetAttr, SetTime};

use crate::node::Node;

use super::entry::{Entry, Trouble};
use super::event::{Event, Step};
use super::small::{reading, writing};
use super::transfer::{Outcome, Transfer};
use super::{Work, attributes, mark};

/// Minimum number of valid bytes of a part that is retained for resuming.
const WORTH_KEEPING_BYTES: u64 = 1 << 20;

impl Work {
    /// Copies a file through a part; `None` if the copy was stopped before the end of the file.
    pub(super) async fn large(self: &Arc<Self>, entry: &Entry) -> Result<Option<Node>, Trouble> {
        let source = entry.from.open(OpenFlags::READ).await.map_err(reading)?;
        let (part, _claim) = entry.part(self)?;
        let start = self.start_of(entry, &part).await;
        let dir = entry.dir()?;
        let mode =
            NewMode { mode: attributes::first_mode(&self.options, &entry.attr), umask: dir.tree().umask() };
        let truncate = if start == 0 { OpenFlags::TRUNCATE } else { OpenFlags::empty() };
        let how = Create { mode, flags: OpenFlags::WRITE | truncate, exclusive: Exclusive::No };
        let target = dir.create(part.as_name(), how).await.map_err(|error| (Step::Make, error))?;
        let transfer = Transfer::new(self.clone(), source, target, entry.attr, start);
        self.counters.passed(start);
        let trouble = match transfer.run().await {
            Outcome::Complete => match self.complete(entry, &transfer, start > 0).await {
                Ok(()) => {
                    entry.rename(&part).await?;
                    return Ok(Some(transfer.to.node().clone()));
                }
                Err(trouble @ (Step::Attributes | Step::Owner, _)) => {
                    entry.rename(&part).await?;
                    return Err(trouble);
                }
                Err(trouble) => Some(trouble),
            },
            Outcome::Stopped => None,
            Outcome::Failed(trouble) => Some(trouble),
        };
        let is_bad = matches!(trouble, Some((Step::Changed, _)));
        self.leave(entry, &transfer, &part, is_bad).await;
        trouble.map_or(Ok(None), Err)
    }

    /// Returns the position from which a part is resumed; 0 if there is no valid part, or none may be
    /// resumed.
    async fn start_of(&self, entry: &Entry, part: &NameBuf) -> u64 {
        let Ok(dir) = entry.dir() else { return 0 };
        if !self.options.resume || entry.dir.is_new {
            return 0;
        }
        let Ok(found) = dir.find(part.as_name()).resolve().await else { return 0 };
        match found.attr().await {
            Ok(attr) if attr.file_type == FileType::Regular => mark::read(&entry.attr, &attr),
            _ => 0,
        }
    }

    /// Completes the target after all writes: flushes it and sets size and attributes. Fails if the source of
    /// a resumed copy has changed.
    async fn complete(&self, entry: &Entry, transfer: &Transfer, resumed: bool) -> Result<(), Trouble> {
        let target = &transfer.to;
        target.flush().resolve().await.map_err(writing)?;
        if resumed {
            let now = transfer.from.attr_now().resolve().await.map_err(reading)?;
            if (now.size, now.mtime) != (entry.attr.size, entry.attr.mtime) {
                return Err((Step::Changed, tombolo_core::Error::NotSync));
            }
        }
        if let Some(size) = transfer.size_to_set() {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            target.set_attr(&set).resolve().await.map_err(writing)?;
        }
        let Some(made) = target.attr_found() else { return Ok(()) };
        let preserve = attributes::to_preserve(self, &entry.attr, made, target.node().tree());
        // The mark in the access time must not remain.
        let unmark = || SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
        match preserve.or_else(|| (resumed || transfer.is_marked()).then(unmark)) {
            Some(set) => attributes::apply(self, set, |set| target.set_attr(set)).await,
            None => Ok(()),
        }
    }

    /// Marks an incomplete part, or removes it when too little of it is valid.
    async fn leave(&self, entry: &Entry, transfer: &Transfer, part: &NameBuf, is_bad: bool) {
        let resumable =
            if is_bad { 0 } else { transfer.mark().await.unwrap_or_else(|_| transfer.marked_bytes()) };
        if resumable < WORTH_KEEPING_BYTES {
            entry.clean_up(part.as_name()).await;
            return;
        }
        self.counters.parts_kept.increment();
        self.observer.see(Event::PartKept { to: entry.dir.to_path(entry.name()), size_bytes: resumable });
    }
}

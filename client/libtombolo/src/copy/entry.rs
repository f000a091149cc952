//! The copy of one entry that is not a directory.

use std::sync::Arc;

use tombolo_core::Error;
use tombolo_core::fs::{Attr, FileType, Name, NameBuf, RenameFlags};

use crate::node::Node;
use crate::tree::is_same_file;

use super::claims::Claim;
use super::directory::Directory;
use super::event::Step;
use super::links::Role;
use super::{Existing, PIECE_BYTES, Work, attributes, part};

/// A file, link, pipe, socket or device to copy, with the directory and name of its copy.
pub(super) struct Entry {
    pub from: Node,
    pub attr: Attr,
    /// Path of the source as the user wrote it; `None` if it has the name of its copy, in the source
    /// directory that corresponds to `dir`.
    pub from_path: Option<Vec<u8>>,
    pub dir: Arc<Directory>,
    pub name: NameBuf,
}

/// The step and error of a [`Failure`](super::Failure).
pub(super) type Trouble = (Step, Error);

pub(super) enum AtTarget {
    /// Nothing exists at the target.
    Free,
    /// An existing object that the copy replaces.
    Taken,
    /// An existing object that is left as it is: the options require that, or it is complete already.
    Left(Node),
}

impl Entry {
    /// Returns the target directory; fails once that is being finished.
    pub fn dir(&self) -> Result<&Node, Trouble> {
        self.dir.node().ok_or((Step::Make, Error::Stale))
    }

    pub fn name(&self) -> Name<'_> {
        self.name.as_name()
    }

    /// Returns the temporary name of an incomplete copy, with the claim on it.
    pub fn part(&self, work: &Work) -> Result<(NameBuf, Claim), Trouble> {
        let dir = self.dir()?;
        let longest = dir.tree().fs().profile().name_max;
        let part = part::part_name(self.name(), longest).map_err(|error| (Step::Make, error))?;
        let claim = work.claims.take(dir.id(), &part).ok_or((Step::Twice, Error::Busy))?;
        Ok((part, claim))
    }

    /// Renames a complete copy to its final name.
    pub async fn rename(&self, part: &NameBuf) -> Result<(), Trouble> {
        let dir = self.dir()?;
        let renamed = dir.rename(part.as_name(), dir, self.name(), RenameFlags::empty()).resolve().await;
        renamed.map_err(|error| (Step::Rename, error))
    }

    /// Removes an unfinished file; a failure is ignored, as the caller reports why the file is unfinished.
    pub async fn clean_up(&self, name: Name<'_>) {
        if let Ok(dir) = self.dir() {
            let _ = dir.remove(name).resolve().await;
        }
    }
}

impl Work {
    pub(super) async fn copy_entry(self: &Arc<Self>, entry: Entry) {
        self.counters.met_files.increment();
        if entry.attr.file_type == FileType::Regular {
            self.counters.met_bytes.add(entry.attr.size);
        }
        if let Err((step, error)) = self.entry(&entry).await {
            let from = entry.from_path.as_deref().unwrap_or(entry.name().as_bytes());
            self.failed(entry.dir.failure(from, entry.name(), step, error));
        }
    }

    async fn entry(self: &Arc<Self>, entry: &Entry) -> Result<(), Trouble> {
        if self.is_stopped() {
            return Ok(());
        }
        let mut duty = None;
        if self.options.preserve && entry.attr.nlink > 1 {
            match self.links.meet(entry.from.tree().realm(), &entry.attr) {
                Role::First(first) => duty = Some(first),
                Role::Further(first) => {
                    if let Some(node) = first.copied().await {
                        return self.further_name(entry, &node).await;
                    }
                }
            }
        }
        let made = match entry.attr.file_type {
            FileType::Regular => self.regular(entry).await?,
            FileType::Symlink => self.symlink(entry).await?,
            _ => self.special(entry).await?,
        };
        if let (Some(duty), Some(node)) = (duty, made) {
            duty.copied(node);
        }
        Ok(())
    }

    /// Copies a regular file; returns its copy if there is a complete one.
    async fn regular(self: &Arc<Self>, entry: &Entry) -> Result<Option<Node>, Trouble> {
        let place = self.look_at_target(entry).await?;
        if let AtTarget::Left(node) = place {
            self.counters.skipped.increment();
            self.counters.passed(entry.attr.size);
            return Ok(Some(node));
        }
        let copied = if entry.attr.size <= PIECE_BYTES as u64 {
            self.small(entry, matches!(place, AtTarget::Taken)).await.map(Some)
        } else {
            self.large(entry).await
        };
        if matches!(copied, Ok(Some(_))) {
            self.counters.files.increment();
            self.tell_copied(entry);
        }
        copied
    }

    /// Links `node`, the copy of the same source file under another name, instead of copying once more.
    async fn further_name(&self, entry: &Entry, node: &Node) -> Result<(), Trouble> {
        let fail = |error| (Step::Make, error);
        let place = self.look_at_target(entry).await?;
        let (dir, same) = (entry.dir()?, node.attr().await.map_err(fail)?);
        let found = attributes::unless_missing(match place {
            AtTarget::Free => Err(Error::NotFound),
            _ => dir.find(entry.name()).resolve().await,
        });
        if let Some(found) = found.map_err(fail)? {
            let attr = found.attr().await.map_err(fail)?;
            let is_name_of_it = is_same_file((found.tree(), &attr), (node.tree(), &same));
            if is_name_of_it || self.options.existing == Existing::Keep {
                self.counters.skipped.increment();
                self.counters.passed(entry.attr.size);
                return Ok(());
            }
            dir.remove(entry.name()).resolve().await.map_err(fail)?;
        }
        dir.add_name(node.id(), entry.name()).resolve().await.map_err(fail)?;
        self.counters.passed(entry.attr.size);
        self.counters.files.increment();
        self.tell_copied(entry);
        Ok(())
    }

    pub(super) fn tell_copied(&self, entry: &Entry) {
        entry.dir.tell_copied(entry.from_path.as_deref(), entry.name());
    }

    /// Examines the entry's name at the target. Fails if an object there must not be replaced.
    pub(super) async fn look_at_target(&self, entry: &Entry) -> Result<AtTarget, Trouble> {
        if entry.dir.is_new {
            return Ok(AtTarget::Free);
        }
        let fail = |error| (Step::Make, error);
        let found = entry.dir()?.find(entry.name()).resolve().await;
        let Some(found) = attributes::unless_missing(found).map_err(fail)? else { return Ok(AtTarget::Free) };
        let attr = found.attr().await.map_err(fail)?;
        if is_same_file((entry.from.tree(), &entry.attr), (found.tree(), &attr)) {
            return Err((Step::SameFile, Error::InvalidArgument));
        }
        if self.options.existing == Existing::Keep {
            return Ok(AtTarget::Left(found));
        }
        if attr.file_type == FileType::Directory {
            return Err((Step::OtherKind, Error::IsDirectory));
        }
        let replaceable = matches!(attr.file_type, FileType::Regular | FileType::Symlink);
        if entry.attr.file_type == FileType::Regular && !replaceable {
            return Err((Step::OntoSpecial, Error::BadType));
        }
        let grain = |node: &Node| node.tree().fs().profile().time_granularity_ns;
        let grain = grain(&entry.from).max(grain(&found));
        let is_there = self.options.resume && attributes::is_same(&entry.attr, &attr, grain);
        Ok(if is_there { AtTarget::Left(found) } else { AtTarget::Taken })
    }
}

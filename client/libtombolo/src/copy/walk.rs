//! Walks over the source directories of a copy: several at a time, each depth first.

use std::sync::Arc;

use tombolo_core::Error;
use tombolo_core::fs::{Attr, FileType, NameBuf};

use crate::above::too_deep;
use crate::listing::{Item, Listing};
use crate::node::Node;
use crate::run::Permit;
use crate::{DEPTH_MAX, LISTINGS_OPEN};

use super::Work;
use super::directory::Directory;
use super::entry::Entry;
use super::event::{Failure, Step};

struct Level {
    /// The directory at the target that gets the listed entries.
    dir: Arc<Directory>,
    listing: Listing,
}

impl Work {
    pub(super) fn begin_source(
        self: Arc<Self>,
        from: Node,
        path: Vec<u8>,
        top: Arc<Directory>,
        name: NameBuf,
        unfinished: Option<NameBuf>,
    ) {
        let work = self.clone();
        self.spawn(async move {
            let attr = match from.attr().await {
                Ok(attr) => attr,
                Err(error) => return work.failed(top.failure(&path, name.as_name(), Step::Read, error)),
            };
            if attr.file_type == FileType::Directory {
                if !work.options.recursive {
                    let step = Step::OmitDirectory;
                    return work.failed(top.failure(&path, name.as_name(), step, Error::IsDirectory));
                }
                let branch = Branch { from, attr, from_path: Some(path), dir: top, name, unfinished };
                return work.branch(branch).await;
            }
            let permit = work.files.take(1).await;
            work.copy_entry(Entry { from, attr, from_path: Some(path), dir: top, name }).await;
            drop(permit);
        });
    }

    /// Begins to copy the contents of a directory that the user named.
    pub(super) fn begin_contents(self: Arc<Self>, from: Node, path: Vec<u8>, top: Directory) {
        let work = self.clone();
        self.spawn(async move {
            let dir = Arc::new(top.for_contents(&from, path).await);
            match from.list(true).await {
                Ok(listing) => work.walk(Level { dir, listing }).await,
                Err(error) => work.failed(dir.own_failure(Step::Read, error)),
            }
        });
    }

    /// Copies a directory and its descendants, as one of the concurrent walks.
    fn begin_branch(self: &Arc<Self>, branch: Branch, permit: Permit) {
        let work = self.clone();
        self.spawn(async move {
            work.branch(branch).await;
            drop(permit);
        });
    }

    async fn branch(self: &Arc<Self>, branch: Branch) {
        match self.enter(branch).await {
            Ok(level) => self.walk(level).await,
            Err(failure) => self.failed(failure),
        }
    }

    /// Walks a directory depth first, handing subdirectories to idle walkers. Memory is thus bounded by the
    /// depth, and directories are created while others are listed.
    async fn walk(self: &Arc<Self>, top: Level) {
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            if self.is_stopped() {
                return;
            }
            let item = match level.listing.next().await {
                Ok(Some(item)) => item,
                Ok(None) => {
                    levels.pop();
                    continue;
                }
                Err(error) => {
                    self.failed(level.dir.own_failure(Step::Read, error));
                    levels.pop();
                    continue;
                }
            };
            match self.item(level, item).await {
                Ok(None) => {}
                Ok(Some(below)) => {
                    levels.push(below);
                    if let Some(above) = levels.iter_mut().nth_back(LISTINGS_OPEN) {
                        above.listing.set_aside();
                    }
                }
                Err(failure) => self.failed(failure),
            }
        }
    }

    /// Begins to copy an entry. Returns a directory for this walk to descend into if all walkers are busy.
    async fn item(self: &Arc<Self>, level: &Level, item: Item) -> Result<Option<Level>, Failure> {
        let Item { name, node, .. } = item;
        let found = match node {
            Some(node) => Ok(node),
            None => level.listing.dir().find(name.as_name()).resolve().await,
        };
        let fail = |error| level.dir.failure(name.as_name().as_bytes(), name.as_name(), Step::Read, error);
        let from = match found {
            Ok(from) => from,
            // The name was removed after it was listed.
            Err(Error::NotFound) => return Ok(None),
            Err(error) => return Err(fail(error)),
        };
        let attr = from.attr().await.map_err(fail)?;
        let dir = level.dir.clone();
        if attr.file_type == FileType::Directory {
            let branch = Branch { from, attr, from_path: None, dir, name, unfinished: None };
            if let Some(permit) = self.walkers.try_take() {
                self.begin_branch(branch, permit);
                return Ok(None);
            }
            return self.enter(branch).await.map(Some);
        }
        let permit = self.files.take(1).await;
        let work = self.clone();
        self.spawn(async move {
            work.copy_entry(Entry { from, attr, from_path: None, dir, name }).await;
            drop(permit);
        });
        Ok(None)
    }

    /// Makes a directory at the target and lists the source's.
    async fn enter(self: &Arc<Self>, branch: Branch) -> Result<Level, Failure> {
        let Branch { from, attr, from_path, dir, name, unfinished } = branch;
        let from_name = from_path.as_deref().unwrap_or(name.as_name().as_bytes());
        let fail = |error| dir.failure(from_name, name.as_name(), Step::Read, error);
        if dir.depth >= DEPTH_MAX {
            return Err(fail(too_deep()));
        }
        // The source is opened first, so that a directory that may not be read leaves nothing at the target.
        let listing = from.list(true).await.map_err(fail)?;
        let dir = dir.make(&from, attr, from_path.as_deref(), name.as_name(), unfinished).await?;
        Ok(Level { dir, listing })
    }
}

struct Branch {
    from: Node,
    attr: Attr,
    from_path: Option<Vec<u8>>,
    dir: Arc<Directory>,
    name: NameBuf,
    unfinished: Option<NameBuf>,
}

//! Removing trees.

use tombolo_core::fs::{Error, FileType, Name, NameBuf, Result};

use crate::DEPTH_MAX;
use crate::listing::Listing;
use crate::node::Node;
use crate::run::Window;

/// Removals under way at once.
const IN_FLIGHT: usize = 64;

/// A directory that something is added to all the time is listed so often.
const ROUNDS_MAX: u32 = 3;

/// What became of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Names that were removed.
    pub removed: u64,
    /// Names that were not.
    pub failed: u64,
}

/// Removes a name, and if it is a directory's everything below it, many names at a time. What cannot be removed is told to
/// `failed` with its path, which begins with `path`; the rest is removed all the same.
pub async fn remove_tree(
    dir: &Node,
    name: Name<'_>,
    path: &[u8],
    failed: &mut (dyn FnMut(&[u8], &Error) + Send),
) -> Removal {
    let mut task = Task { levels: Vec::new(), removal: Removal::default(), plus: false, failed };
    match dir.find(name).resolve().await {
        Ok(node) => match task.begin(dir, node, name.to_owned(), path.to_vec()).await {
            Ok(()) => task.run().await,
            Err(error) => task.fail(path, &error),
        },
        Err(error) => task.fail(path, &error),
    }
    task.removal
}

struct Task<'a> {
    levels: Vec<Level>,
    removal: Removal,
    /// Listings say of what kind entries are only when they are asked for everything (RFC 1813 §3.3.16, READDIR).
    plus: bool,
    failed: &'a mut (dyn FnMut(&[u8], &Error) + Send),
}

/// A directory that is being emptied.
struct Level {
    parent: Node,
    name: NameBuf,
    path: Vec<u8>,
    node: Node,
    listing: Listing,
    page: std::vec::IntoIter<crate::listing::Item>,
    going: Window<(NameBuf, Result<()>)>,
    /// What failed here, and what was removed in this round.
    failed: u64,
    removed: u64,
    round: u32,
}

impl Task<'_> {
    /// Removes what is no directory, begins with what is.
    async fn begin(&mut self, parent: &Node, node: Node, name: NameBuf, path: Vec<u8>) -> Result<()> {
        if node.attr().await?.file_type != FileType::Directory {
            parent.remove(name.as_name()).resolve().await?;
            self.removal.removed += 1;
            return Ok(());
        }
        if self.levels.len() >= DEPTH_MAX as usize {
            return Err(Error::NameTooLong);
        }
        let listing = node.list(self.plus).await?;
        let page = Vec::new().into_iter();
        let (parent, going) = (parent.clone(), Window::new());
        self.levels.push(Level {
            parent,
            name,
            path,
            node,
            listing,
            page,
            going,
            failed: 0,
            removed: 0,
            round: 1,
        });
        Ok(())
    }

    async fn run(&mut self) {
        while let Some(level) = self.levels.last_mut() {
            let Some(item) = level.page.next() else {
                match level.listing.next_page().await {
                    Ok(Some(page)) if !self.plus && page.iter().any(|item| item.file_type.is_none()) => {
                        self.plus = true;
                        self.list_again().await;
                    }
                    Ok(Some(page)) => level.page = page.into_iter(),
                    Ok(None) => self.finish_level().await,
                    Err(error) => self.give_up_listing(&error).await,
                }
                continue;
            };
            if item.file_type.is_none_or(|file_type| file_type == FileType::Directory) {
                let (node, path) = (level.node.clone(), joined(&level.path, item.name.as_name()));
                let found = match item.node {
                    Some(found) => Ok(found),
                    None => node.find(item.name.as_name()).resolve().await,
                };
                let outcome = match found {
                    Ok(found) => self.begin(&node, found, item.name, path.clone()).await,
                    // Somebody else did it.
                    Err(Error::NotFound) => Ok(()),
                    Err(error) => Err(error),
                };
                if let Err(error) = outcome {
                    self.fail(&path, &error);
                }
                continue;
            }
            let answer = level.node.remove(item.name.as_name());
            level.going.add(async move { (item.name, answer.resolve().await) });
            if level.going.len() >= IN_FLIGHT {
                self.settle().await;
            }
        }
    }

    /// Begins a directory anew.
    async fn list_again(&mut self) {
        let Some(level) = self.levels.last_mut() else { return };
        match level.node.list(self.plus).await {
            Ok(listing) => level.listing = listing,
            Err(error) => self.give_up_listing(&error).await,
        }
    }

    async fn give_up_listing(&mut self, error: &Error) {
        if let Some(path) = self.levels.last().map(|level| level.path.clone()) {
            self.fail(&path, error);
            self.finish_level().await;
        }
    }

    /// Waits for the oldest removal; false when there is none.
    async fn settle(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else { return false };
        let Some((name, outcome)) = level.going.next().await else { return false };
        match outcome {
            // Somebody else did it.
            Ok(()) | Err(Error::NotFound) => {
                level.removed += 1;
                self.removal.removed += 1;
            }
            Err(error) => {
                let path = joined(&level.path, name.as_name());
                self.fail(&path, &error);
            }
        }
        true
    }

    /// Removes a directory that was emptied.
    async fn finish_level(&mut self) {
        while self.settle().await {}
        let Some(mut level) = self.levels.pop() else { return };
        // It stays, as what is left in it does, of which has been told.
        if level.failed > 0 {
            self.note_failure();
            return;
        }
        match level.parent.remove_dir(level.name.as_name()).resolve().await {
            Ok(()) => {
                self.removal.removed += 1;
                if let Some(up) = self.levels.last_mut() {
                    up.removed += 1;
                }
            }
            // Something was added, or the listing skipped some when others were removed.
            Err(Error::NotEmpty) if level.round < ROUNDS_MAX && level.removed > 0 => {
                match level.node.list(self.plus).await {
                    Ok(listing) => {
                        (level.listing, level.removed) = (listing, 0);
                        level.round += 1;
                        self.levels.push(level);
                    }
                    Err(error) => self.fail(&level.path, &error),
                }
            }
            Err(error) => self.fail(&level.path, &error),
        }
    }

    fn fail(&mut self, path: &[u8], error: &Error) {
        (self.failed)(path, error);
        self.removal.failed += 1;
        self.note_failure();
    }

    /// The directory that we are in cannot be removed.
    fn note_failure(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.failed += 1;
        }
    }
}

fn joined(dir: &[u8], name: Name<'_>) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    path
}

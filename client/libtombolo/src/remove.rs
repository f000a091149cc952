//! Removing trees.

use tombolo_core::fs::{FileType, Name, NameBuf};
use tombolo_core::{Error, Result};

use crate::LISTINGS_OPEN;
use crate::above::Above;
use crate::listing::{Item, Listing};
use crate::node::Node;
use crate::run::Window;

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

/// Removes a name, and if it is a directory's everything below it, many names at a time. What cannot be
/// removed is told to `failed` with its path, which begins with `path`; the rest is removed all the same.
pub async fn remove_tree(
    dir: &Node,
    name: Name<'_>,
    path: &[u8],
    failed: &mut (dyn FnMut(&[u8], &Error) + Send),
) -> Removal {
    let (levels, above) = (Vec::new(), Above::default());
    let mut task = Task { path, levels, above, removal: Removal::default(), plus: false, failed };
    let begun = match dir.find(name).resolve().await {
        Ok(node) => task.begin(dir, node, name.to_owned()).await,
        Err(error) => Err(error),
    };
    match begun {
        Ok(()) => task.run().await,
        Err(error) => task.fail(None, &error),
    }
    task.removal
}

struct Task<'a> {
    /// Of the first level.
    path: &'a [u8],
    levels: Vec<Level>,
    above: Above,
    removal: Removal,
    /// Listings say of what kind entries are only when they are asked for everything (RFC 1813 §3.3.16,
    /// READDIR).
    plus: bool,
    failed: &'a mut (dyn FnMut(&[u8], &Error) + Send),
}

struct Level {
    parent: Node,
    name: NameBuf,
    listing: Listing,
    going: Window<(NameBuf, Result<()>)>,
    /// What failed here, and what was removed in this round.
    failed: u64,
    removed: u64,
    round: u32,
}

impl Task<'_> {
    /// Removes what is no directory, begins with what is.
    async fn begin(&mut self, parent: &Node, node: Node, name: NameBuf) -> Result<()> {
        let attr = node.attr().await?;
        if attr.file_type != FileType::Directory {
            parent.remove(name.as_name()).resolve().await?;
            self.removal.removed += 1;
            return Ok(());
        }
        self.above.enter(self.levels.len(), &node)?;
        let listing = node.list(self.plus).await?;
        let (parent, going) = (parent.clone(), Window::new());
        self.levels.push(Level { parent, name, listing, going, failed: 0, removed: 0, round: 1 });
        if let Some(above) = self.levels.iter_mut().nth_back(LISTINGS_OPEN) {
            above.listing.set_aside();
        }
        Ok(())
    }

    async fn run(&mut self) {
        while let Some(level) = self.levels.last_mut() {
            match level.listing.next().await {
                Ok(Some(item)) if !self.plus && item.file_type.is_none() => {
                    self.plus = true;
                    self.list_again().await;
                }
                Ok(Some(item)) => self.item(item).await,
                Ok(None) => self.finish_level().await,
                Err(Error::BadCookie) => self.list_what_is_left().await,
                Err(error) => self.give_up_listing(&error).await,
            }
        }
    }

    async fn item(&mut self, item: Item) {
        let Some(level) = self.levels.last_mut() else { return };
        let dir = level.listing.dir();
        if item.file_type.is_some_and(|file_type| file_type != FileType::Directory) {
            let answer = dir.remove(item.name.as_name());
            level.going.add(async move { (item.name, answer.resolve().await) });
            if level.going.len() >= IN_FLIGHT {
                self.settle().await;
            }
            return;
        }
        let dir = dir.clone();
        let found = match item.node {
            Some(found) => Ok(found),
            None => dir.find(item.name.as_name()).resolve().await,
        };
        let begun = match found {
            Ok(found) => self.begin(&dir, found, item.name.clone()).await,
            Err(error) => Err(error),
        };
        match begun {
            // Another process did it.
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => self.fail(Some(item.name.as_name()), &error),
        }
    }

    async fn list_again(&mut self) {
        let Some(level) = self.levels.last_mut() else { return };
        match level.listing.dir().list(self.plus).await {
            Ok(listing) => level.listing = listing,
            Err(error) => self.give_up_listing(&error).await,
        }
    }

    /// Begins anew a directory whose place in the listing the server has forgotten, since it changed (RFC
    /// 1813 §3.3.16). Each time there is less in it.
    async fn list_what_is_left(&mut self) {
        while self.settle().await {}
        let Some(level) = self.levels.last_mut() else { return };
        // What failed would fail, and be told, once more.
        if level.failed > 0 || level.removed == 0 {
            return self.give_up_listing(&Error::BadCookie).await;
        }
        level.removed = 0;
        self.list_again().await;
    }

    async fn give_up_listing(&mut self, error: &Error) {
        self.fail(None, error);
        self.finish_level().await;
    }

    /// Waits for the oldest removal; false when there is none.
    async fn settle(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else { return false };
        let Some((name, outcome)) = level.going.next().await else { return false };
        match outcome {
            // Another process did it.
            Ok(()) | Err(Error::NotFound) => {
                level.removed += 1;
                self.removal.removed += 1;
            }
            Err(error) => self.fail(Some(name.as_name()), &error),
        }
        true
    }

    async fn finish_level(&mut self) {
        while self.settle().await {}
        let Some(mut level) = self.levels.pop() else { return };
        // It stays, as what is left in it does, of which has been told.
        if level.failed > 0 {
            self.note_failure();
            return;
        }
        let name = level.name.as_name();
        let outcome = match level.parent.remove_dir(name).resolve().await {
            Ok(()) => {
                self.removal.removed += 1;
                if let Some(up) = self.levels.last_mut() {
                    up.removed += 1;
                }
                return;
            }
            // Something was added, or the listing skipped some when others were removed.
            Err(Error::NotEmpty) if level.round < ROUNDS_MAX && level.removed > 0 => {
                level.listing.dir().list(self.plus).await
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(listing) => {
                (level.listing, level.removed) = (listing, 0);
                level.round += 1;
                self.levels.push(level);
            }
            Err(error) => {
                let name = (!self.levels.is_empty()).then_some(name);
                self.fail(name, &error);
            }
        }
    }

    /// Something failed with an entry of the directory that we are in, or with that directory.
    fn fail(&mut self, name: Option<Name<'_>>, error: &Error) {
        let mut path = self.path.to_vec();
        for name in self.levels.iter().skip(1).map(|level| level.name.as_name()).chain(name) {
            if !path.is_empty() && !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
        }
        (self.failed)(&path, error);
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

//! Removal of trees.

use tombolo_core::fs::{FileType, Name, NameBuf};
use tombolo_core::{Error, Result};

use crate::LISTINGS_OPEN;
use crate::above::Above;
use crate::listing::{Item, Listing};
use crate::node::Node;
use crate::path::joined;
use crate::run::Window;

/// Maximum number of removals in flight in one directory.
const IN_FLIGHT: usize = 64;

/// Maximum number of attempts at a directory that is still not empty after its entries were removed.
const ROUNDS_MAX: u32 = 3;

/// Outcome of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Number of names removed, including some that another process removed first.
    pub removed: u64,
    /// Number of failures reported. Directories that stay because of failed entries do not count.
    pub failed: u64,
}

/// Removes a name, and a directory's descendants, many at a time. `failed` is called with the path of each
/// failure, which begins with `path`; other names are still removed.
pub async fn remove_tree(
    dir: &Node,
    name: Name<'_>,
    path: &[u8],
    failed: &mut (dyn FnMut(&[u8], &Error) + Send),
) -> Removal {
    let (levels, above) = (Vec::new(), Above::default());
    let mut task = Task { path, levels, above, removal: Removal::default(), plus: false, failed };
    let found = dir.find(name).resolve().await;
    match task.begin(dir, found, name.to_owned()).await {
        Ok(()) => task.run().await,
        Err(error) => task.fail(None, &error),
    }
    task.removal
}

struct Task<'a> {
    /// Path of the object to be removed, as given by the caller.
    path: &'a [u8],
    levels: Vec<Level>,
    above: Above,
    removal: Removal,
    /// `true` once a listing reported no types: then listings include the attributes (RFC 1813 §3.3.16,
    /// READDIR).
    plus: bool,
    failed: &'a mut (dyn FnMut(&[u8], &Error) + Send),
}

struct Level {
    parent: Node,
    name: NameBuf,
    listing: Listing,
    going: Window<(NameBuf, Result<()>)>,
    /// Failures in this directory.
    failed: u64,
    /// Names removed since the directory was last listed.
    removed: u64,
    /// Attempts to empty and remove the directory, at most [`ROUNDS_MAX`].
    round: u32,
}

impl Task<'_> {
    /// Removes a non-directory, or enters a directory.
    async fn begin(&mut self, parent: &Node, found: Result<Node>, name: NameBuf) -> Result<()> {
        let node = found?;
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
        match self.begin(&dir, found, item.name.clone()).await {
            // `Error::NotFound`: another process removed the entry.
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

    /// Lists a directory from the start after a change of it has made the server forget the position in the
    /// listing (RFC 1813 §3.3.16). Gives up if no entry was removed since the last listing or one failed.
    async fn list_what_is_left(&mut self) {
        while self.settle().await {}
        let Some(level) = self.levels.last_mut() else { return };
        // Failed entries would fail and be reported again.
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

    /// Waits for the oldest removal; `false` when there is none.
    async fn settle(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else { return false };
        let Some((name, outcome)) = level.going.next().await else { return false };
        match outcome {
            // `Error::NotFound`: another process removed the file.
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
        // A directory with an entry that could not be removed stays too. The entry's failure was reported.
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
            // Something was added, or the listing skipped entries while others were removed.
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

    /// Reports a failure of an entry of the current directory, or without `name` of that directory.
    fn fail(&mut self, name: Option<Name<'_>>, error: &Error) {
        let names = self.levels.iter().skip(1).map(|level| level.name.as_name()).chain(name);
        let path = joined(std::iter::once(self.path).chain(names.map(|name| name.as_bytes())));
        (self.failed)(&path, error);
        self.removal.failed += 1;
        self.note_failure();
    }

    /// Records that the innermost directory of the walk cannot be removed.
    fn note_failure(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.failed += 1;
        }
    }
}

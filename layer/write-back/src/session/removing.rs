//! Removal and renaming.

use tombolo_core::fs::{AccessMask, Attr, Change, FileType, NameBuf, NodeId, RenameFlags, Renamed};
use tombolo_core::{Error, Result};

use super::View;
use super::finding::Seen;
use super::making::touch_dir;
use crate::tree::{Target, Tree, is_hidden};

impl View {
    pub(super) async fn remove(self, parent: NodeId, name: NameBuf, as_directory: bool) -> Result<Change> {
        let user = &self.cx.identity;
        loop {
            let dir = self.directory(parent).await?;
            let seen = self.find(parent, &name).await?;
            let (target, attr) = seen.found.ok_or(Error::NotFound)?;
            self.check_remove(parent, &dir, &attr).await?;
            match (target.file_type == FileType::Directory, as_directory) {
                (false, true) => return Err(Error::NotDirectory),
                (true, false) => return Err(Error::IsDirectory),
                (true, true) => self.check_empty(target.node).await?,
                _ => {}
            }
            let (removed, ticket) = self.shared().change(|tree| {
                if !seen.holds(tree) || !is_still_empty(tree, target) {
                    return Ok(None);
                }
                tree.set_name(parent, &name, seen.below, None, user);
                drop_name(tree, target, &attr);
                Ok(Some(touch_dir(tree, parent, &dir, -i32::from(as_directory), user)))
            })?;
            if let Some((before, after)) = removed {
                return self.stable_if_keyed((self.told(&before, after), ticket)).await;
            }
        }
    }

    pub(super) async fn rename(
        self,
        from_parent: NodeId,
        from: NameBuf,
        to_parent: NodeId,
        to: NameBuf,
        flags: RenameFlags,
    ) -> Result<Renamed> {
        let (from, to) = ((from_parent, from), (to_parent, to));
        let is_swap = flags.contains(RenameFlags::EXCHANGE);
        if flags.contains(RenameFlags::WHITEOUT) || is_swap && flags.contains(RenameFlags::NO_REPLACE) {
            return Err(Error::InvalidArgument);
        }
        if is_hidden(&to.1) {
            return Err(Error::AccessDenied);
        }
        loop {
            // Both directories are checked before any name in them.
            let dirs = (self.searched(from.0).await?, self.searched(to.0).await?);
            let (source, target) = (self.find(from.0, &from.1).await?, self.find(to.0, &to.1).await?);
            let moved = source.found.ok_or(Error::NotFound)?;
            match target.found {
                Some(_) if flags.contains(RenameFlags::NO_REPLACE) => return Err(Error::Exists),
                None if is_swap => return Err(Error::NotFound),
                _ => {}
            }
            self.check_kinship((from.0, moved.0), (to.0, target.target()), is_swap).await?;
            let is_same = target.target() == Some(moved.0);
            if !is_same {
                self.check_rename((from.0, &dirs.0, &moved), (to.0, &dirs.1, target.found.as_ref()), is_swap)
                    .await?;
            }
            let (renamed, ticket) = self.shared().change(|tree| {
                let is_free =
                    is_swap || is_same || target.target().is_none_or(|target| is_still_empty(tree, target));
                if !source.holds(tree) || !target.holds(tree) || !is_free {
                    return Ok(None);
                }
                // Two names of one file both remain (rename(2)).
                let changes = match is_same {
                    true => ((dirs.0, dirs.0), (dirs.1, dirs.1)),
                    false => self.move_name(tree, (&source, &dirs.0), (&target, &dirs.1), is_swap),
                };
                let other = target.target().filter(|_| is_swap);
                if [Some(moved.0), other].into_iter().flatten().any(is_directory) {
                    // Walks towards the root that pass through a moved directory must start again.
                    tree.epoch += 1;
                }
                Ok(Some(changes))
            })?;
            if let Some((from, to)) = renamed {
                let renamed =
                    Renamed { from_dir: self.told(&from.0, from.1), to_dir: self.told(&to.0, to.1) };
                return self.stable_if_keyed((renamed, ticket)).await;
            }
        }
    }

    /// Returns the attributes of a directory that the user may search.
    async fn searched(&self, dir: NodeId) -> Result<Attr> {
        let attr = self.directory(dir).await?;
        self.check(dir, AccessMask::EXECUTE).await?;
        Ok(attr)
    }

    /// Refuses to move a directory into itself, or to replace a directory that contains the moved node.
    async fn check_kinship(
        &self,
        (from_dir, moved): (NodeId, Target),
        (to_dir, target): (NodeId, Option<Target>),
        is_swap: bool,
    ) -> Result<()> {
        if is_directory(moved) && self.is_within(to_dir, moved.node).await? {
            return Err(Error::InvalidArgument);
        }
        match target.filter(|target| *target != moved && is_directory(*target)) {
            Some(target) if self.is_within(from_dir, target.node).await? => {
                Err(if is_swap { Error::InvalidArgument } else { Error::NotEmpty })
            }
            _ => Ok(()),
        }
    }

    /// Checks that the user may rename, that the types of both nodes are compatible, and that a directory to
    /// be replaced is empty.
    async fn check_rename(
        &self,
        (from_dir, from_attr, moved): (NodeId, &Attr, &(Target, Attr)),
        (to_dir, to_attr, target): (NodeId, &Attr, Option<&(Target, Attr)>),
        is_swap: bool,
    ) -> Result<()> {
        let is_directory = |found: &(Target, Attr)| found.0.file_type == FileType::Directory;
        self.check_remove(from_dir, from_attr, &moved.1).await?;
        match target {
            None => self.check_add(to_dir).await?,
            Some(found) => {
                self.check_remove(to_dir, to_attr, &found.1).await?;
                match (is_directory(moved), is_directory(found)) {
                    _ if is_swap => {}
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    _ => {}
                }
            }
        }
        if from_dir != to_dir {
            // A directory's `..` is written when its parent changes.
            for found in [Some(moved), target.filter(|_| is_swap)].into_iter().flatten() {
                if is_directory(found) {
                    self.check(found.0.node, AccessMask::WRITE).await?;
                }
            }
        }
        match target {
            Some(found) if !is_swap && is_directory(found) => self.check_empty(found.0.node).await,
            _ => Ok(()),
        }
    }

    /// Moves a name, or exchanges two. Returns the attributes of the source's and of the target's directory,
    /// each before and after.
    fn move_name(
        &self,
        tree: &mut Tree,
        (source, from_attr): (&Seen, &Attr),
        (target, to_attr): (&Seen, &Attr),
        is_swap: bool,
    ) -> ((Attr, Attr), (Attr, Attr)) {
        let user = &self.cx.identity;
        let (from, to) = (source.dir, target.dir);
        // Changes of both directories' numbers of subdirectories.
        let mut more = (0, 0);
        if let Some((moved, attr)) = &source.found {
            let is_directory = moved.file_type == FileType::Directory;
            tree.set_name(from, &source.name, source.below, target.target().filter(|_| is_swap), user);
            tree.set_name(to, &target.name, target.below, Some(*moved), user);
            let node = tree.touch(moved.node, attr);
            node.touch_names(0);
            if is_directory {
                node.parent = Some(to);
                more = (more.0 - 1, more.1 + 1);
            }
        }
        match &target.found {
            Some((swapped, attr)) if is_swap => {
                let node = tree.touch(swapped.node, attr);
                node.touch_names(0);
                if swapped.file_type == FileType::Directory {
                    node.parent = Some(from);
                    more = (more.0 + 1, more.1 - 1);
                }
            }
            Some((replaced, attr)) => {
                drop_name(tree, *replaced, attr);
                more.1 -= i32::from(replaced.file_type == FileType::Directory);
            }
            None => {}
        }
        if from == to {
            let (before, after) = touch_dir(tree, to, to_attr, more.0 + more.1, user);
            return ((before, after), (before, after));
        }
        let from = touch_dir(tree, from, from_attr, more.0, user);
        (from, touch_dir(tree, to, to_attr, more.1, user))
    }
}

fn is_directory(target: Target) -> bool {
    target.file_type == FileType::Directory
}

/// Updates a node that has lost a name; a directory has lost its only one.
fn drop_name(tree: &mut Tree, target: Target, attr: &Attr) {
    let node = tree.touch(target.node, attr);
    match node.is_directory() {
        true => {
            node.touch_names(0);
            node.attr.nlink = 0;
        }
        false => node.touch_names(-1),
    }
    tree.forget_if_unused(target.node);
}

/// Returns `true` if nothing was created here in a directory since it was found empty, or if the target is no
/// directory. If another writer has created something at the origin, the removal there brings the directory
/// back (`origin::conflicts`).
fn is_still_empty(tree: &Tree, target: Target) -> bool {
    target.file_type != FileType::Directory
        || !tree.names.get(&target.node).into_iter().flatten().any(|(_, place)| place.local.is_some())
}

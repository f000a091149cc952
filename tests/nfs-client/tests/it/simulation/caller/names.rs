//! Creation, renaming and removal of names.

use tombolo_core::Error;
use tombolo_core::fs::{Name, RenameFlags};

use super::{Caller, mode};
use crate::simulation::model::{Id, Kind};

/// Maximum depth of directories.
const DEPTH_MAX: usize = 3;

fn name_of(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).expect("a name")
}

const fn exists(error: &Error) -> bool {
    matches!(error, Error::Exists)
}

const fn is_gone(error: &Error) -> bool {
    matches!(error, Error::NotFound)
}

impl Caller {
    pub(super) async fn mkdir(&mut self) {
        let (dir, name) = self.some_name();
        if self.model.path(dir).len() >= DEPTH_MAX {
            return;
        }
        self.note(|| format!("mkdir {} in {dir}", name.escape_ascii()));
        let parent = self.directory(dir).await;
        let made = self.fs.mkdir(&self.cx, parent, name_of(name), mode(0o755)).resolve().await;
        if self.model.find(dir, name).is_some() {
            assert!(matches!(made, Err(Error::Exists)), "mkdir of what exists: {made:?}");
            return;
        }
        let entry = match self.done("mkdir", made, exists) {
            Some(made) => {
                self.look_ups.push((made.entry.node, 1));
                made.entry
            }
            None => self.entry(parent, name).await.expect("it was made"),
        };
        let empty = Kind::Directory(std::collections::BTreeMap::new());
        let id = self.model.make(dir, name, empty, entry.attr.fileid, 0o755);
        self.check_attr("mkdir", id, &entry.attr);
    }

    pub(super) async fn symlink(&mut self) {
        let (dir, name) = self.some_name();
        if self.model.find(dir, name).is_some() {
            return;
        }
        let target = format!("../somewhere/{}", self.rng.below(1000)).into_bytes();
        self.note(|| format!("symlink {} in {dir}", name.escape_ascii()));
        let parent = self.directory(dir).await;
        let made = self.fs.symlink(&self.cx, parent, name_of(name), &target).resolve().await;
        let entry = match self.done("symlink", made, exists) {
            Some(made) => {
                self.look_ups.push((made.entry.node, 1));
                made.entry
            }
            None => self.entry(parent, name).await.expect("it was made"),
        };
        let mode = entry.attr.mode.bits();
        let id = self.model.make(dir, name, Kind::Symlink(target), entry.attr.fileid, mode);
        self.check_attr("symlink", id, &entry.attr);
    }

    /// Adds a second name to some file.
    pub(super) async fn link(&mut self) {
        let Some((from_dir, from, id)) = self.some_entry(|kind| matches!(kind, Kind::File(_))) else {
            return;
        };
        let (dir, name) = self.some_name();
        self.note(|| format!("link {} in {dir} to {id}", name.escape_ascii()));
        let from_parent = self.directory(from_dir).await;
        let node = self.entry(from_parent, &from).await.expect("it is there").node;
        let parent = self.directory(dir).await;
        let made = self.fs.link(&self.cx, node, parent, name_of(name)).resolve().await;
        if self.model.find(dir, name).is_some() {
            assert!(matches!(made, Err(Error::Exists)), "link to what exists: {made:?}");
            return;
        }
        let linked = self.done("link", made, exists);
        self.model.link(id, dir, name);
        if let Some(made) = linked {
            self.look_ups.push((made.entry.node, 1));
            self.check_attr("link", id, &made.entry.attr);
        }
    }

    /// Removes some name, or tries to.
    pub(super) async fn remove(&mut self) {
        let (dir, name) = match self.some_entry(|_| true) {
            Some((dir, name, _)) if self.rng.chance(800) => (dir, name),
            _ => {
                let (dir, name) = self.some_name();
                (dir, name.to_vec())
            }
        };
        self.note(|| format!("remove {} in {dir}", name.escape_ascii()));
        let parent = self.directory(dir).await;
        let Some(id) = self.model.find(dir, &name) else {
            let removed = self.fs.unlink(&self.cx, parent, name_of(&name)).resolve().await;
            assert!(matches!(removed, Err(Error::NotFound)), "unlink of nothing: {removed:?}");
            return;
        };
        match self.model.node(id).kind.clone() {
            Kind::Directory(entries) => self.rmdir(dir, &name, id, entries.is_empty()).await,
            Kind::File(_) | Kind::Symlink(_) => {
                self.leaves_behind(dir, id);
                let removed = self.fs.unlink(&self.cx, parent, name_of(&name)).resolve().await;
                self.done("unlink", removed, is_gone);
                self.model.unlink(dir, &name);
            }
        }
    }

    async fn rmdir(&mut self, dir: Id, name: &[u8], id: Id, is_empty: bool) {
        // Removed open files remain in the directory under silly names, possibly for a while.
        if self.not_empty.contains(&id) {
            return;
        }
        let parent = self.directory(dir).await;
        let removed = self.fs.rmdir(&self.cx, parent, name_of(name)).resolve().await;
        if !is_empty {
            assert!(matches!(removed, Err(Error::NotEmpty)), "rmdir of what is not empty: {removed:?}");
            return;
        }
        self.done("rmdir", removed, is_gone);
        self.model.unlink(dir, name);
    }

    /// Records that removing an open file's last name leaves a silly name.
    fn leaves_behind(&mut self, dir: Id, id: Id) {
        if self.model.node(id).opens > 0 {
            self.not_empty.insert(dir);
        }
    }

    /// Renames some name, possibly over another file's.
    pub(super) async fn rename(&mut self) {
        let Some((from_dir, from, id)) = self.some_entry(|_| true) else { return };
        let (to_dir, to) = self.some_name();
        let is_directory = matches!(self.model.node(id).kind, Kind::Directory(_));
        let target = self.model.find(to_dir, to);
        let onto_directory = target.is_some_and(|id| matches!(self.model.node(id).kind, Kind::Directory(_)));
        let too_deep = self.model.path(to_dir).len() >= DEPTH_MAX;
        if is_directory && (target.is_some() || self.model.is_below(to_dir, id) || too_deep) || onto_directory
        {
            return;
        }
        self.note(|| {
            let (from, to) = (from.escape_ascii(), to.escape_ascii());
            format!("rename {from} in {from_dir} to {to} in {to_dir}, over {target:?}")
        });
        if let Some(target) = target {
            self.leaves_behind(to_dir, target);
        }
        let from_parent = self.directory(from_dir).await;
        let to_parent = self.directory(to_dir).await;
        let flags = RenameFlags::empty();
        let renamed = self
            .fs
            .rename(&self.cx, from_parent, name_of(&from), to_parent, name_of(to), flags)
            .resolve()
            .await;
        self.done("rename", renamed, is_gone);
        self.model.rename((from_dir, &from), (to_dir, to));
    }
}

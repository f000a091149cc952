//! Creation of new nodes, and sending of files' changes.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{
    Attr, Create, Entry, Exclusive, File, FileType, Mode, NewMode, NodeId, OpenFlags, SetAttr, WeakAttr,
};
use tombolo_core::{Ctx, Error, Identity, Result};

use super::attributes::is_refusal;
use super::plan::Chosen;
use super::round::Round;
use crate::tree::{Set, Target, Tree};

/// A file opened at the cache for writing, its attributes at that time, and the context of its opener.
pub(super) struct OpenBelow {
    pub file: File,
    pub attr: Attr,
    pub cx: Ctx,
}

impl Chosen {
    /// Returns `true` if another writer has changed the data at the origin since the recorded version.
    fn is_theirs(&self, attr: &Attr) -> bool {
        self.version.is_some_and(|version| !is_same_data(&version, attr))
    }
}

impl Round {
    /// Creates new directories, parents first.
    pub(super) fn make_directories(self: &Arc<Self>) {
        for level in &self.plan.new_directories {
            let chosen = level.iter().filter_map(|id| self.plan.nodes.get(id));
            for chosen in chosen.filter(|chosen| !self.lacks_home(chosen)) {
                let (round, chosen) = (self.clone(), chosen.clone());
                self.start(chosen.id, async move { round.make(&chosen).await.map(drop) });
            }
            self.window.wait();
        }
    }

    /// Sends files, links and devices, with data and attributes, and creates new ones.
    pub(super) fn send_files(self: &Arc<Self>) {
        for chosen in self.plan.files().filter(|chosen| !self.lacks_home(chosen)) {
            let (round, chosen) = (self.clone(), chosen.clone());
            self.start(chosen.id, async move { round.send_file(&chosen).await });
        }
        self.window.wait();
    }

    /// Sends the attributes of directories, after all changes of entries in them.
    pub(super) fn send_directories(self: &Arc<Self>) {
        for chosen in self.plan.directories().filter(|chosen| self.takes_attributes(chosen.id)) {
            let (round, chosen) = (self.clone(), chosen.clone());
            self.start(chosen.id, async move {
                let below = round.below(chosen.id)?;
                let cx = round.cx(Identity::ROOT);
                let attr = match round.shared.below.getattr(&cx, below, None).resolve().await {
                    Err(Error::Stale | Error::NotFound) => return round.leave_gone(&chosen),
                    attr => attr?,
                };
                round.set_attributes(&chosen, below, &attr, None).await
            });
        }
        self.window.wait();
    }

    /// Sends the changes of one file, which is created first if it is new.
    async fn send_file(&self, chosen: &Chosen) -> Result<()> {
        let made = match chosen.home {
            Some(_) => Some(self.make(chosen).await?),
            None => None,
        };
        let below = self.below(chosen.id)?;
        let mut met_in = None;
        let (attr, open) = match made {
            Some((attr, open)) => (attr, open),
            None => {
                // The directory is looked up first, as the cache forgets it if the file turns out to be gone.
                met_in = self.directory_of(chosen.id).await;
                let cx = self.cx(Identity::ROOT);
                match self.shared.below.getattr(&cx, below, None).resolve().await {
                    Ok(attr) => (attr, None),
                    // Another writer has removed the file.
                    Err(Error::Stale | Error::NotFound) if !chosen.layers.is_empty() => {
                        return self.keep_ours(chosen, None, met_in).await;
                    }
                    Err(Error::Stale | Error::NotFound) => return self.leave_gone(chosen),
                    Err(error) => return Err(error),
                }
            }
        };
        let open = match open {
            None if chosen.layers.is_empty() => None,
            None => match self.open_permitted(chosen, below, met_in).await {
                Ok(Some(open)) => Some(open),
                Ok(None) => return Ok(()),
                // Another writer has removed the file.
                Err(Error::Stale | Error::NotFound) => return self.keep_ours(chosen, None, met_in).await,
                Err(error) => return Err(error),
            },
            open => open,
        };
        if open.is_none() {
            self.begin_change(chosen).await?;
        } else if let Some(open) = &open
            && chosen.home.is_none()
        {
            let is_theirs = chosen.is_theirs(&open.attr);
            let kept = match open.attr.nlink {
                // Another writer has removed the file.
                0 => self.keep_ours(chosen, None, met_in).await,
                _ if is_theirs => self.keep_ours(chosen, Some(open.attr), met_in).await,
                _ => self.begin_change(chosen).await,
            };
            if open.attr.nlink == 0 || is_theirs || kept.is_err() {
                self.release(&open.cx, open.file);
                return kept;
            }
        }
        let sent = match &open {
            Some(open) if !chosen.layers.is_empty() => self.send_data(chosen, open).await,
            _ => Ok(()),
        };
        let sent = match sent {
            Ok(()) => self.set_attributes(chosen, below, &attr, open.as_ref()).await,
            failed => failed,
        };
        if let Some(open) = open {
            self.release(&open.cx, open.file);
        }
        sent
    }

    /// Drops changes of attributes of a node that another writer has removed.
    fn leave_gone(&self, chosen: &Chosen) -> Result<()> {
        tracing::warn!(node = chosen.id.0, "another client has removed the node to be changed");
        self.yield_to_another(chosen.id, |tree| {
            if let Some(node) = tree.node_mut(chosen.id) {
                node.set_nothing();
            }
        })
    }

    /// Discards the recorded version of a node in the journal before this layer changes the node at the
    /// origin, so that after a crash the change is not mistaken for another writer's.
    async fn begin_change(&self, chosen: &Chosen) -> Result<()> {
        if chosen.version.is_none() {
            return Ok(());
        }
        let forget = |tree: &mut Tree| tree.node_mut(chosen.id).map(|node| node.version = None);
        let (_, ticket) = self.shared.note(forget);
        self.shared.journal.stable(ticket).await
    }

    /// Opens a file for writing. If that is refused, sets the file's requested mode, which may permit it, and
    /// opens again; or returns `None` if another writer has changed the file, and both versions were kept.
    async fn open_permitted(
        &self,
        chosen: &Chosen,
        below: NodeId,
        met_in: Option<NodeId>,
    ) -> Result<Option<OpenBelow>> {
        match self.open_to_write(chosen, below).await {
            Err(error) if is_refusal(&error) && chosen.set.contains(Set::MODE) => {
                let cx = Ctx { fetched_since: Some(Instant::now()), ..self.cx(Identity::ROOT) };
                let attr = self.shared.below.getattr(&cx, below, None).resolve().await?;
                if chosen.is_theirs(&attr) {
                    return self.keep_ours(chosen, Some(attr), met_in).await.map(|()| None);
                }
                // The recorded version stays, as a mode changes neither size nor mtime.
                let owner = Identity { uid: chosen.attr.uid, gid: chosen.attr.gid, groups: None };
                let users = [chosen.user.clone(), owner, Identity::ROOT];
                let set = SetAttr { mode: Some(chosen.attr.mode), ..SetAttr::default() };
                self.by_first(&users, |cx| self.shared.below.setattr(cx, below, None, &set)).await?;
                self.open_to_write(chosen, below).await.map(Some)
            }
            opened => opened.map(Some),
        }
    }

    /// Opens a file for writing as the first who may: the changing user, the owner, or the superuser.
    async fn open_to_write(&self, chosen: &Chosen, below: NodeId) -> Result<OpenBelow> {
        let fs = &self.shared.below;
        let owner = Identity { uid: chosen.attr.uid, gid: chosen.attr.gid, groups: None };
        let users = [chosen.user.clone(), owner, Identity::ROOT];
        let (opened, cx) = self.by_first(&users, |cx| fs.open(cx, below, OpenFlags::WRITE)).await?;
        let file = File { node: below, open: opened.open };
        match fs.getattr(&cx, below, Some(file)).resolve().await {
            Ok(attr) => Ok(OpenBelow { file, attr, cx }),
            Err(error) => {
                self.release(&cx, file);
                Err(error)
            }
        }
    }

    /// Creates a node at its `home`. If the name exists, an earlier attempt has created it: nothing else uses
    /// hidden names, or names in new directories.
    async fn make(&self, chosen: &Chosen) -> Result<(Attr, Option<OpenBelow>)> {
        let Some((dir, name)) = &chosen.home else { return Err(Error::Stale) };
        let (dir, name) = (self.below(*dir)?, name.as_name());
        let (fs, attr) = (&self.shared.below, &chosen.attr);
        let users = [chosen.maker(), chosen.user.clone(), Identity::ROOT];
        // Excess permissions are removed with the final attributes.
        let owner = if chosen.is_directory() { 0o700 } else { 0o600 };
        let mode = NewMode::settled(Mode::new(attr.mode.bits() & 0o777 | owner));
        let made = match attr.file_type {
            FileType::Regular => {
                let flags = OpenFlags::READ | OpenFlags::WRITE;
                let how = Create { mode, flags, exclusive: Exclusive::No };
                let (created, cx) = self.by_first(&users, |cx| fs.create(cx, dir, name, &how)).await?;
                let Entry { node, attr } = created.entry;
                let file = File { node, open: created.open };
                self.note_maker(chosen, &cx);
                self.bind(chosen, node, &cx);
                return Ok((attr, Some(OpenBelow { file, attr, cx })));
            }
            FileType::Directory => self.by_first(&users, |cx| fs.mkdir(cx, dir, name, mode)).await,
            FileType::Symlink => {
                let link = chosen.link.as_deref().unwrap_or_default();
                self.by_first(&users, |cx| fs.symlink(cx, dir, name, link)).await
            }
            file_type => {
                self.by_first(&users, |cx| fs.mknod(cx, dir, name, file_type, mode, attr.rdev)).await
            }
        };
        let (entry, cx) = match made {
            Ok((made, cx)) => {
                self.note_maker(chosen, &cx);
                (made.entry, cx)
            }
            Err(Error::Exists) => self.by_first(&users, |cx| fs.lookup(cx, dir, name)).await?,
            Err(error) => return Err(error),
        };
        if entry.attr.file_type != attr.file_type {
            return Err(Error::Exists);
        }
        self.bind(chosen, entry.node, &cx);
        Ok((entry.attr, None))
    }

    /// Records a node if it was created as its owner. If such a node has another owner at the origin, the
    /// origin maps the local owner to that user.
    fn note_maker(&self, chosen: &Chosen, cx: &Ctx) {
        let maker = &cx.identity;
        if *maker == chosen.maker() && (maker.uid, maker.gid) == (chosen.attr.uid, chosen.attr.gid) {
            self.found().made_by_owner.insert(chosen.id);
        }
    }

    /// Records the cache's number of a created node, and releases the look-up of the creation.
    fn bind(&self, chosen: &Chosen, below: NodeId, cx: &Ctx) {
        self.shared.below.forget(cx, &[(below, 1)]);
        self.shared.note(|tree| {
            tree.bind(chosen.id, below);
            if let Some((dir, name)) = &chosen.home {
                let target = Target { node: chosen.id, file_type: chosen.attr.file_type };
                tree.set_below(*dir, name, Some(target));
            }
        });
    }
}

/// Returns `true` if a file with these attributes has the data of `version`: a change of data changes size or
/// mtime. A change of ctime alone may be this layer's own: a rename, a link, or a change in progress when an
/// earlier run ended.
pub(super) fn is_same_data(version: &WeakAttr, attr: &Attr) -> bool {
    (version.size, version.mtime) == (attr.size, attr.mtime)
}

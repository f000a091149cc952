//! Operations on names.

use tombolo_nfs_tests::client::mode;
use tombolo_wire_nfs3::args::{
    CreateArgs, CreateHow, DirOpArgs, LinkArgs, MkdirArgs, RenameArgs, SymlinkArgs,
};
use tombolo_wire_nfs3::results::{CreateOk, LinkWcc, LookupReply, ReadlinkReply, RenameWcc};
use tombolo_wire_nfs3::{Call, CreateVerifier, FileHandleBuf, Procedure, Reply, Sattr3, Status, WccData};

use super::{Entry, File, FileId, Worker, handle_of};
use crate::failure::{Result, wrong};

impl Worker {
    /// Creates a random object under a free name.
    pub(super) fn fill(&mut self, dir: usize, name: String) -> Result<()> {
        match self.random.usize(..8) {
            0 | 1 => self.create(dir, name, true),
            2 => self.create(dir, name, false),
            3 => self.mkdir(dir, name),
            4 => self.symlink(dir, name),
            5 => self.link_some_file(dir, name),
            6 => self.move_something_to(dir, name),
            _ => self.is_absent(dir, &name),
        }
    }

    /// Performs a random operation on a non-file.
    pub(super) fn use_other(&mut self, dir: usize, name: &str, entry: &Entry) -> Result<()> {
        match (self.random.usize(..3), entry) {
            (0, entry) => self.is_there(dir, name, entry),
            (1, Entry::Symlink(handle, target)) => self.readlink(*handle, target),
            (_, Entry::Symlink(..)) => self.remove(dir, name),
            (_, _) => self.rmdir(dir, name),
        }
    }

    fn create(&mut self, dir: usize, name: String, exclusive: bool) -> Result<()> {
        let how = if exclusive {
            CreateHow::Exclusive(CreateVerifier(self.random.u64(..).to_be_bytes()))
        } else {
            CreateHow::Guarded(mode(0o644))
        };
        let handle = self.dirs[dir].handle;
        let location = DirOpArgs { dir: handle.as_handle(), name: name.as_bytes() };
        let handle = self.make(&Call::Create(CreateArgs { location, how }))?;
        let file = FileId(self.files.len());
        self.files.push(Some(File::new(handle)));
        self.dirs[dir].entries.insert(name, Entry::File(file));
        Ok(())
    }

    fn mkdir(&mut self, dir: usize, name: String) -> Result<()> {
        let handle = self.dirs[dir].handle;
        let location = DirOpArgs { dir: handle.as_handle(), name: name.as_bytes() };
        let handle = self.make(&Call::Mkdir(MkdirArgs { location, attributes: mode(0o644) }))?;
        self.dirs[dir].entries.insert(name, Entry::Dir(handle));
        Ok(())
    }

    fn symlink(&mut self, dir: usize, name: String) -> Result<()> {
        let target = format!("target-{:x}", self.random.u64(..));
        let handle = self.dirs[dir].handle;
        let location = DirOpArgs { dir: handle.as_handle(), name: name.as_bytes() };
        let call =
            Call::Symlink(SymlinkArgs { location, attributes: Sattr3::default(), target: target.as_bytes() });
        let handle = self.make(&call)?;
        self.dirs[dir].entries.insert(name, Entry::Symlink(handle, target));
        Ok(())
    }

    fn make(&mut self, call: &Call<'_>) -> Result<FileHandleBuf> {
        let mut answer = None;
        let made: CreateOk<'_> = self.change::<_, WccData>(call, &mut answer)?;
        handle_of(made.object)
    }

    fn link_some_file(&mut self, dir: usize, name: String) -> Result<()> {
        let Some(file) = self.some_file() else { return Ok(()) };
        let (handle, to) = (self.file(file)?.handle, self.dirs[dir].handle);
        let link = DirOpArgs { dir: to.as_handle(), name: name.as_bytes() };
        let call = Call::Link(LinkArgs { file: handle.as_handle(), link });
        let linked: LinkWcc = self.change::<_, LinkWcc>(&call, &mut None)?;
        let known = self.file_mut(file)?;
        known.names += 1;
        let names = known.names;
        self.dirs[dir].entries.insert(name, Entry::File(file));
        match linked.attributes {
            Some(attributes) if attributes.nlink != names => {
                wrong(format!("LINK: {} links, where {names} were made", attributes.nlink))
            }
            _ => Ok(()),
        }
    }

    /// Renames another name to this one, except between two names of one file, where the call does nothing.
    fn move_something_to(&mut self, dir: usize, name: String) -> Result<()> {
        let (from_dir, from_name) = self.place();
        let Some(entry) = self.dirs[from_dir].entries.get(&from_name).cloned() else { return Ok(()) };
        self.rename((from_dir, &from_name), (dir, &name))?;
        self.dirs[from_dir].entries.remove(&from_name);
        self.dirs[dir].entries.insert(name, entry);
        Ok(())
    }

    /// Renames a file over another.
    pub(super) fn move_over(&mut self, dir: usize, name: String, replaced: FileId) -> Result<()> {
        let (from_dir, from_name) = self.place();
        let Some(Entry::File(file)) = self.dirs[from_dir].entries.get(&from_name).cloned() else {
            return Ok(());
        };
        if file == replaced {
            return Ok(());
        }
        self.rename((from_dir, &from_name), (dir, &name))?;
        self.dirs[from_dir].entries.remove(&from_name);
        self.dirs[dir].entries.insert(name, Entry::File(file));
        self.loses_a_name(replaced)
    }

    fn rename(&mut self, from: (usize, &str), to: (usize, &str)) -> Result<()> {
        let (from_dir, to_dir) = (self.dirs[from.0].handle, self.dirs[to.0].handle);
        let from = DirOpArgs { dir: from_dir.as_handle(), name: from.1.as_bytes() };
        let to = DirOpArgs { dir: to_dir.as_handle(), name: to.1.as_bytes() };
        self.change::<RenameWcc, RenameWcc>(&Call::Rename(RenameArgs { from, to }), &mut None).map(drop)
    }

    pub(super) fn remove(&mut self, dir: usize, name: &str) -> Result<()> {
        let handle = self.dirs[dir].handle;
        let location = DirOpArgs { dir: handle.as_handle(), name: name.as_bytes() };
        self.change::<WccData, WccData>(&Call::Remove(location), &mut None)?;
        match self.dirs[dir].entries.remove(name) {
            Some(Entry::File(file)) => self.loses_a_name(file),
            _ => Ok(()),
        }
    }

    fn rmdir(&mut self, dir: usize, name: &str) -> Result<()> {
        let handle = self.dirs[dir].handle;
        let location = DirOpArgs { dir: handle.as_handle(), name: name.as_bytes() };
        self.change::<WccData, WccData>(&Call::Rmdir(location), &mut None)?;
        self.dirs[dir].entries.remove(name);
        Ok(())
    }

    fn loses_a_name(&mut self, file: FileId) -> Result<()> {
        let known = self.file_mut(file)?;
        known.names -= 1;
        if known.names == 0 {
            self.files[file.0] = None;
        }
        Ok(())
    }

    /// Checks that a name does not exist.
    fn is_absent(&mut self, dir: usize, name: &str) -> Result<()> {
        let handle = self.dirs[dir].handle;
        let answer =
            self.call(&Call::Lookup(DirOpArgs { dir: handle.as_handle(), name: name.as_bytes() }), &[])?;
        match answer.results::<LookupReply<'_>>()? {
            Reply::Failed(Status::NoEnt, _) => Ok(()),
            other => wrong(format!("LOOKUP of {name}, which must not exist: {other:?}")),
        }
    }

    /// Checks that a name leads to the acknowledged node, with the handle returned for it.
    pub(super) fn is_there(&mut self, dir: usize, name: &str, entry: &Entry) -> Result<()> {
        let known = match entry {
            Entry::File(file) => self.file(*file)?.handle,
            Entry::Symlink(handle, _) | Entry::Dir(handle) => *handle,
        };
        let handle = self.dirs[dir].handle;
        let answer =
            self.call(&Call::Lookup(DirOpArgs { dir: handle.as_handle(), name: name.as_bytes() }), &[])?;
        match answer.results::<LookupReply<'_>>()? {
            Reply::Ok(found) if found.object == known.as_handle() => Ok(()),
            other => wrong(format!("LOOKUP of {name}, {known:?}: {other:?}")),
        }
    }

    fn readlink(&mut self, handle: FileHandleBuf, target: &str) -> Result<()> {
        let answer = self.call(&Call::Readlink(handle.as_handle()), &[])?;
        match answer.results::<ReadlinkReply<'_>>()? {
            Reply::Ok(link) if link.target == target.as_bytes() => Ok(()),
            other => wrong(format!("READLINK of a link to {target}: {other:?}")),
        }
    }

    /// Repeats a call that was answered earlier, like a network that delays packets. It must get the same
    /// answer and have no effect: its object may be gone by now, or exist again.
    pub(super) fn repeat_older_call(&mut self) -> Result<()> {
        let random = &mut self.random;
        let Some((message, procedure)) = self.history.kept(|len| random.usize(..len)) else { return Ok(()) };
        self.history.note(format!("{:08x} {procedure:?} again", message.xid));
        let answer = self.client.exchange(&message)?;
        self.history.end(&answer)?;
        self.repeated += 1;
        // The results of all procedures begin with their status.
        let status = match procedure {
            Procedure::Create | Procedure::Mkdir | Procedure::Symlink => {
                answer.results::<Reply<CreateOk<'_>, WccData>>()?.status().copied()
            }
            Procedure::Link => answer.results::<Reply<LinkWcc, LinkWcc>>()?.status().copied(),
            Procedure::Rename => answer.results::<Reply<RenameWcc, RenameWcc>>()?.status().copied(),
            _ => answer.results::<Reply<WccData, WccData>>()?.status().copied(),
        };
        match (status, procedure) {
            (None, _) => Ok(()),
            // Its object is gone, so no handle is left to return.
            (
                Some(Status::Stale | Status::NoEnt),
                Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Link,
            ) => Ok(()),
            (Some(status), _) => wrong(format!("{procedure:?}, sent again after its answer: {status:?}")),
        }
    }

    fn some_file(&mut self) -> Option<FileId> {
        let from = self.random.usize(..self.files.len().max(1));
        let mut around = (from..self.files.len()).chain(0..from);
        around.find(|&file| self.files[file].is_some()).map(FileId)
    }
}

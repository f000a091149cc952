//! One session: every request in the name of who its user is here, and every answer with the owners that clients know.

use std::sync::Arc;

use tombolo_core::fs::{
    AllocateMode, Changes, Entry, File, FileSystem, Lock, LockFamily, LockOwner, LockRange, Locks, NodeId,
    PersistentHandle, PersistentHandles, Profile, Ranges, SetAttr, Versions, Volume, Whence, XattrName,
    XattrSet, Xattrs,
};
use tombolo_core::fs::{Attr, Change};
use tombolo_core::{Answer, Ctx, Error};

use crate::IdMap;
use crate::translate::{Answered, access_list, inward, is_access_list};

/// A session over another one.
pub(crate) struct Session {
    inner: Arc<dyn FileSystem>,
    map: Arc<IdMap>,
}

impl Session {
    pub(crate) fn new(inner: Arc<dyn FileSystem>, map: Arc<IdMap>) -> Self {
        Self { inner, map }
    }

    /// The same request, of the user here.
    fn inward(&self, cx: &Ctx) -> Ctx {
        // What was found under a name has the owners that the client knows; it is looked at again.
        Ctx { identity: self.map.identity(&cx.identity), found: None, ..cx.clone() }
    }

    fn mapped<T: Answered>(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<T>,
    ) -> Answer<T> {
        let map = self.map.clone();
        call(&*self.inner, &self.inward(cx)).map(move |mut answer| {
            answer.outward(&map);
            answer
        })
    }

    /// An operation of a group, which is offered only where the file system below has it.
    fn in_group<G: ?Sized, T: Answered>(
        &self,
        cx: &Ctx,
        group: Option<&G>,
        call: impl FnOnce(&G, &Ctx) -> Answer<T>,
    ) -> Answer<T> {
        match group {
            Some(group) => self.mapped(cx, |_, cx| call(group, cx)),
            None => Answer::err(Error::NotSupported),
        }
    }
}

impl FileSystem for Session {
    tombolo_core::forward!(with self.mapped;
        lookup getattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir rename open flush fsync read write
        readdir statfs syncfs
    );

    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.inner.forget(&self.inward(cx), look_ups);
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.inner.release(&self.inward(cx), file);
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        match inward(set, &self.map) {
            Ok(set) => self.mapped(cx, |fs, cx| fs.setattr(cx, node, file, &set)),
            Err(error) => Answer::err(error),
        }
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.inner.xattrs().map(|_| self as &dyn Xattrs)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        self.inner.locks().map(|_| self as &dyn Locks)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.inner.persistent_handles().map(|_| self as &dyn PersistentHandles)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        self.inner.ranges().map(|_| self as &dyn Ranges)
    }

    // Notices and versions name no users. Files to be read in place of this are opened by users, so there are none.
    fn changes(&self) -> Option<&dyn Changes> {
        self.inner.changes()
    }

    fn versions(&self) -> Option<&dyn Versions> {
        self.inner.versions()
    }
}

impl Xattrs for Session {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        let value =
            self.in_group(cx, self.inner.xattrs(), |xattrs, cx| xattrs.get(cx, node, name, limit_bytes));
        if !is_access_list(name.as_bytes()) {
            return value;
        }
        let map = self.map.clone();
        value.map(move |list| {
            let mapped = access_list(
                &list,
                |id| Some(map.users.outward_or_anonymous(id)),
                |id| Some(map.groups.outward_or_anonymous(id)),
            );
            mapped.unwrap_or(list)
        })
    }

    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Answer<()> {
        let mapped = match is_access_list(name.as_bytes()) {
            true => access_list(value, |id| self.map.users.inward(id), |id| self.map.groups.inward(id)),
            false => Some(value.to_vec()),
        };
        let Some(value) = mapped else { return Answer::err(Error::InvalidArgument) };
        self.in_group(cx, self.inner.xattrs(), |xattrs, cx| {
            xattrs.set(cx, node, name, &value, how, kill_set_gid)
        })
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.in_group(cx, self.inner.xattrs(), |xattrs, cx| xattrs.list(cx, node, limit_bytes))
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        self.in_group(cx, self.inner.xattrs(), |xattrs, cx| xattrs.remove(cx, node, name))
    }
}

impl Locks for Session {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        self.in_group(cx, self.inner.locks(), |locks, cx| locks.test(cx, file, lock))
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        self.in_group(cx, self.inner.locks(), |locks, cx| locks.lock(cx, file, lock, wait))
    }

    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        self.in_group(cx, self.inner.locks(), |locks, cx| locks.unlock(cx, file, family, range, owner))
    }
}

impl PersistentHandles for Session {
    fn volume(&self) -> Volume {
        self.inner.persistent_handles().map(|handles| handles.volume()).unwrap_or_default()
    }

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        self.in_group(cx, self.inner.persistent_handles(), |handles, cx| handles.handle_of(cx, node))
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        self.in_group(cx, self.inner.persistent_handles(), |handles, cx| handles.resolve(cx, handle))
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.in_group(cx, self.inner.persistent_handles(), |handles, cx| handles.parent(cx, node))
    }

    fn again(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.in_group(cx, self.inner.persistent_handles(), |handles, cx| handles.again(cx, node))
    }

    fn make_stable(&self, cx: &Ctx, nodes: &[NodeId]) -> Answer<()> {
        self.in_group(cx, self.inner.persistent_handles(), |handles, cx| handles.make_stable(cx, nodes))
    }
}

impl Ranges for Session {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        self.in_group(cx, self.inner.ranges(), |ranges, cx| ranges.allocate(cx, file, offset, len, mode))
    }

    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        self.in_group(cx, self.inner.ranges(), |ranges, cx| ranges.seek(cx, file, offset, whence))
    }

    fn copy(
        &self,
        cx: &Ctx,
        from: File,
        from_offset: u64,
        to: File,
        to_offset: u64,
        len: u64,
    ) -> Answer<u64> {
        self.in_group(cx, self.inner.ranges(), |ranges, cx| {
            ranges.copy(cx, from, from_offset, to, to_offset, len)
        })
    }
}

//! Sessions with mapped ids: requests on behalf of the host's user, replies with the client's owners.

use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Change, File, FileSystem, Lending, Locks, NodeId, PersistentHandles, Ranges, SetAttr, XattrName,
    XattrSet, Xattrs, within,
};
use tombolo_core::{Answer, Ctx, Error, or_answer};

use crate::IdMap;
use crate::translate::{Reply, access_list, inward, is_access_list};

/// A session that maps the ids in requests to the inner session, and in its replies.
pub(crate) struct Session {
    inner: Arc<dyn FileSystem>,
    map: Arc<IdMap>,
}

impl Session {
    pub(crate) fn new(inner: Arc<dyn FileSystem>, map: Arc<IdMap>) -> Self {
        Self { inner, map }
    }

    /// Returns the context of a request with its user mapped to the host's.
    fn inward(&self, cx: &Ctx) -> Ctx {
        // The attributes in `found` have the client's owners, so they are dropped, and the inner session
        // looks the names up again.
        Ctx { identity: self.map.identity(&cx.identity), found: None, ..cx.clone() }
    }

    fn mapped<T: Reply>(&self, cx: &Ctx, call: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<T>) -> Answer<T> {
        let map = self.map.clone();
        call(&*self.inner, &self.inward(cx)).map(move |mut answer| {
            answer.outward(&map);
            answer
        })
    }
}

impl FileSystem for Session {
    tombolo_core::forward!(with self.mapped;
        lookup getattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir rename open flush fsync read write
        readdir statfs syncfs
    );

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.inner.forget(&self.inward(cx), look_ups);
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.inner.release(&self.inward(cx), file);
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let set = or_answer!(inward(set, &self.map));
        self.mapped(cx, |fs, cx| fs.setattr(cx, node, file, &set))
    }

    tombolo_core::forward!(offer self.inner; xattrs locks persistent_handles ranges lending);

    // Notices, versions and descriptors contain no ids. Backing files are not offered.
    tombolo_core::forward!(to self.inner; profile is_prompt changes versions descriptors);
}

impl Xattrs for Session {
    tombolo_core::forward!(with self.mapped; list remove);

    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        let value =
            self.mapped(cx, |fs, cx| within(fs.xattrs(), |xattrs| xattrs.get(cx, node, name, limit_bytes)));
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
        let set = |value: &[u8]| {
            self.mapped(cx, |fs, cx| {
                within(fs.xattrs(), |xattrs| xattrs.set(cx, node, name, value, how, kill_set_gid))
            })
        };
        if !is_access_list(name.as_bytes()) {
            return set(value);
        }
        match access_list(value, |id| self.map.users.inward(id), |id| self.map.groups.inward(id)) {
            Some(list) => set(&list),
            None => Answer::err(Error::InvalidArgument),
        }
    }
}

impl Locks for Session {
    tombolo_core::forward!(with self.mapped; test lock unlock);
}

impl PersistentHandles for Session {
    tombolo_core::forward!(to self.inner; volume);
    tombolo_core::forward!(with self.mapped; handle_of resolve parent node_by_number record recall);
}

impl Ranges for Session {
    tombolo_core::forward!(with self.mapped; allocate seek copy);
}

impl Lending for Session {
    tombolo_core::forward!(with self.mapped; lend);
}

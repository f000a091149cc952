//! Recall of NFS clients' leases before another front end's session changes the tree. The NFS server, which
//! grants the leases, consults the same [`LeaseTable`] itself and needs no such layer.

use std::sync::Arc;

use tombolo_core::fs::{
    Client, Export, File, FileSystem, LeaseClient, LeaseTable, NodeId, OpenFlags, Opened, Ranges, Write,
    Written, Xattrs,
};
use tombolo_core::{Answer, Ctx, Result};
use tombolo_mem::Source;

use crate::arguments::{Keep, Lend};

/// An export whose changes first recall the leases of other clients.
pub struct Recall {
    inner: Arc<dyn Export>,
    table: Arc<LeaseTable>,
}

/// Wraps `inner`, recalling the leases in `table` before each change.
pub fn over(inner: Arc<dyn Export>, table: Arc<LeaseTable>) -> Recall {
    Recall { inner, table }
}

impl Export for Recall {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let (inner, table) = (self.inner.attach(client)?, self.table.clone());
        Ok(Arc::new(Recalling { inner, table, client: LeaseClient(client.session.0, 0) }))
    }
}

struct Recalling {
    inner: Arc<dyn FileSystem>,
    table: Arc<LeaseTable>,
    client: LeaseClient,
}

impl Recalling {
    /// Performs a change once no other client has a lease; immediately if none has one.
    fn change<T: Send + 'static>(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        match self.table.change(self.client) {
            Answer::Done(changing) => match call(&*self.inner, cx) {
                done @ Answer::Done(_) => done,
                later => later.map_result(move |result| {
                    drop(changing);
                    result
                }),
            },
            Answer::Later(waiting) => {
                let (inner, cx) = (self.inner.clone(), cx.clone());
                Answer::later(async move {
                    let _changing = waiting.await?;
                    call(&*inner, &cx).resolve().await
                })
            }
        }
    }
}

impl FileSystem for Recalling {
    tombolo_core::forward!(later self.change;
        setattr create create_unnamed mkdir symlink mknod link unlink rmdir rename
    );
    tombolo_core::forward!(to self.inner;
        profile lookup forget getattr access readlink release is_prompt flush fsync read readdir statfs syncfs
        locks persistent_handles changes versions backing_files descriptors digests packing lending
    );
    tombolo_core::forward!(offer self.inner; xattrs ranges);

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        match flags.contains(OpenFlags::TRUNCATE) {
            true => self.change(cx, move |fs, cx| fs.open(cx, node, flags)),
            false => self.inner.open(cx, node, flags),
        }
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        let how = *how;
        self.change(cx, move |fs, cx| fs.write(cx, file, &how, from))
    }
}

impl Xattrs for Recalling {
    tombolo_core::forward!(to self.inner; get list);
    tombolo_core::forward!(later self.change; set remove);
}

impl Ranges for Recalling {
    tombolo_core::forward!(to self.inner; seek);
    tombolo_core::forward!(later self.change; allocate copy);
}

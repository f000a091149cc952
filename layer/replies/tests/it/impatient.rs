//! An export that returns no handles to interrupted requests.

use std::sync::Arc;

use tombolo_core::fs::{FileSystem, NodeId, PersistentHandle, PersistentHandles, within};
use tombolo_core::{Answer, Ctx, Error};

/// A session of an export that returns no handles to interrupted requests.
pub struct Impatient(pub Arc<dyn FileSystem>);

impl FileSystem for Impatient {
    tombolo_core::forward!(to self.0;
        profile lookup forget getattr setattr access readlink create create_unnamed mkdir symlink mknod link
        unlink rmdir rename open release flush fsync read write readdir statfs syncfs
    );
    tombolo_core::forward!(own self; persistent_handles);
}

impl PersistentHandles for Impatient {
    tombolo_core::forward!(to self.0; volume resolve parent node_by_number);

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        if cx.interrupt.is_raised() {
            return Answer::err(Error::Interrupted);
        }
        within(self.0.persistent_handles(), |handles| handles.handle_of(cx, node))
    }
}

//! An export without persistent handles.

use std::sync::Arc;

use tombolo_core::fs::FileSystem;

/// A session of an export without persistent handles.
pub struct WithoutHandles(pub Arc<dyn FileSystem>);

impl FileSystem for WithoutHandles {
    tombolo_core::forward!(to self.0;
        profile lookup forget getattr setattr access readlink create create_unnamed mkdir symlink mknod link
        unlink rmdir rename open release flush fsync read write readdir statfs syncfs
    );
}

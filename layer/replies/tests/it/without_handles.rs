//! An export without persistent handles.

use std::sync::Arc;

use tombolo_core::Result;
use tombolo_core::fs::{Client, Export, FileSystem};

pub struct WithoutHandles(pub Arc<dyn Export>);

struct Session(Arc<dyn FileSystem>);

impl Export for WithoutHandles {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Session(self.0.attach(client)?)))
    }
}

impl FileSystem for Session {
    tombolo_core::forward!(to self.0;
        profile lookup forget getattr setattr access readlink create create_unnamed mkdir symlink mknod link
        unlink rmdir rename open release flush fsync read write readdir statfs syncfs
    );
}

//! Operations on files as a program makes them, by system calls: the same code for a FUSE mount and for the directory
//! beneath it.

mod batch;
mod small;
mod stream;
mod tree;

pub use batch::SmallFiles;
pub use small::{ColdNames, CreateWriteUnlink, MkdirRmdir, OpenReadClose, Stat};
pub use stream::{StreamRead, StreamWrite};
pub use tree::Tree;

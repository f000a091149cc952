//! File operations of a program, by system calls: the same code for a FUSE mount and for the directory below
//! it.

mod batch;
mod holes;
mod postmark;
mod small;
mod source;
mod steps;
mod stream;
mod tree;

pub use batch::small_files;
pub use holes::copy_with_holes;
pub use postmark::Postmark;
pub use small::{ColdNames, create_write_unlink, mkdir_rmdir, open_read_close, stat};
pub use source::source;
pub use steps::Steps;
pub use stream::{stream_read, stream_write};
pub use tree::{Tree, fill};

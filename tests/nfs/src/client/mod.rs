//! A thin, blocking client with control over every byte.
//!
//! [`Nfs`] has a method for each procedure. [`Message`] is a call word by word; [`Stream`] and [`Datagrams`]
//! send it or arbitrary bytes.

mod answers;
mod caller;
mod calls;
mod connection;
mod datagrams;
mod message;
mod mount;
mod nfs;
mod stream;

pub use answers::{Bytes, Expect, Found, LinkTarget, ListedEntry, Listing, New};
pub use caller::Caller;
pub use calls::{DATA, calls_on, calls_with_names, changes_of_names};
pub use connection::{Connection, Transport, fresh_xid};
pub use datagrams::Datagrams;
pub use message::{Answer, Auth, Message, Verdict, encoded};
pub use mount::Mounted;
pub use nfs::{Nfs, dir_op_args, mode};
pub use stream::{PATIENCE, Stream, closes, fragment};

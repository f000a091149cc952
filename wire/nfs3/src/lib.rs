//! NFS version 3 and MOUNT version 3 (RFC 1813): typed calls and results.
//!
//! A codec without I/O, for servers and clients. Arguments and results borrow from the message, which must be
//! private memory; decoding does not allocate. File data are not decoded: [`Data`] is their position in the
//! message.
//!
//! - [`Call::decode`] decodes the arguments of a [`Procedure`], whose structures are in [`args`].
//! - [`results`] has the results of procedures, a [`Reply`] each; [`listing`] encodes directory listings
//!   entry by entry.
//! - [`mount`] is the MOUNT protocol; [`side`] is the extension program of our own servers.
//! - [`status`] and [`attr`] convert between the waist's types and NFS's; only these two know the waist.
//!
//! ```
//! use tombolo_wire_nfs3::args::DirOpArgs;
//! use tombolo_wire_nfs3::results::LookupReply;
//! use tombolo_wire_nfs3::{Call, FileHandle, Procedure, Reply, Status};
//! use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};
//!
//! let dir = FileHandle::new(b"root").expect("at most 64 bytes");
//! let mut arguments = Vec::new();
//! Call::Lookup(DirOpArgs { dir, name: b"a" }).encode(&mut Encoder::new(&mut arguments));
//!
//! let call = Call::decode(Procedure::Lookup, &mut Decoder::new(&arguments), arguments.len())?;
//! let mut results = Vec::new();
//! let reply = match call {
//!     Call::Lookup(args) if args.dir == dir => LookupReply::Failed(Status::NoEnt, None),
//!     _ => LookupReply::Failed(Status::BadHandle, None),
//! };
//! reply.encode(&mut Encoder::new(&mut results));
//!
//! let reply = LookupReply::decode(&mut Decoder::new(&results))?;
//! assert_eq!(reply, Reply::Failed(Status::NoEnt, None));
//! # Ok::<(), tombolo_wire_xdr::Error>(())
//! ```
//!
//! Non-goals: execution of procedures, validation of names, permissions; RPC headers (`wire/rpc`).
//!
//! Reading order: `call`, `args`, `results`, `listing`.
#![forbid(unsafe_code)]

pub mod args;
pub mod attr;
mod call;
mod data;
mod fattr;
mod handle;
pub mod listing;
pub mod mount;
mod nfsstat;
mod reply;
pub mod results;
mod sattr;
pub mod side;
pub mod status;
mod verifier;

pub use call::{Call, PROGRAM, Procedure, VERSION};
pub use data::Data;
pub use fattr::{FATTR_BYTES, Fattr3, FileType3, NfsTime3, PostOpAttr, SpecData3, WccAttr, WccData};
pub use handle::{FileHandle, FileHandleBuf, HANDLE_BYTES_MAX};
pub use nfsstat::Status;
pub use reply::Reply;
pub use sattr::{Sattr3, SetTime3};
pub use verifier::{Cookie3, CookieVerifier, CreateVerifier, WriteVerifier};

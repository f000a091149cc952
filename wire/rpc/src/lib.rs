//! ONC RPC version 2 (RFC 5531): records out of a byte stream, the headers of calls and replies, credentials.
//!
//! A codec without I/O, for servers and clients. [`Records`] finds messages in what a TCP connection brought;
//! a datagram is a message by itself. [`CallHeader`] is what comes before a procedure's arguments,
//! [`ReplyHeader`] what comes before its results. Nothing here allocates but [`RecordAssembler`], which glues
//! records that came in pieces, up to a limit.
//!
//! ```
//! use tombolo_wire_rpc::{Accepted, CallHeader, Credential, ReplyHeader, Xid};
//! use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};
//!
//! // A client asks.
//! let mut message = Vec::new();
//! let call = CallHeader::new(Xid(7), 100_003, 3, 0, Credential::None);
//! call.encode(&mut Encoder::new(&mut message));
//!
//! // A server decodes the header; arguments would follow in `arguments`.
//! let mut arguments = Decoder::new(&message);
//! let mut reply = Vec::new();
//! match CallHeader::receive(&mut arguments) {
//!     Ok(call) => ReplyHeader::success(call.xid).encode(&mut Encoder::new(&mut reply)),
//!     Err(fault) => if let Some(refusal) = fault.reply() { refusal.encode(&mut Encoder::new(&mut reply)) },
//! }
//!
//! // The client decodes the header; results would follow.
//! let header = ReplyHeader::decode(&mut Decoder::new(&reply))?;
//! assert_eq!((header.xid, header.accepted()), (Xid(7), Some(Accepted::Success)));
//! # Ok::<(), tombolo_wire_xdr::Error>(())
//! ```
//!
//! Not here: a portmapper ([`portmap`] is what a client of one says), RPCSEC_GSS, what a procedure means,
//! access control.
//!
//! Reading order: `record`, `call`, `auth`, `reply`, `portmap`, `tls`.
#![forbid(unsafe_code)]

mod auth;
mod call;
pub mod portmap;
mod record;
mod reply;
mod tls;

pub use auth::{
    AuthFlavor, AuthSys, BODY_BYTES_MAX, Credential, GIDS_MAX, Gids, MACHINE_BYTES_MAX, Verifier,
};
pub use call::{CallFault, CallHeader};
pub use record::{Found, Mark, RecordAssembler, RecordError, Records};
pub use reply::{Accepted, AuthStat, Rejected, ReplyBody, ReplyHeader, SUCCESS_BYTES};
pub use tls::Probe;

/// The version of RPC itself.
pub const RPC_VERSION: u32 = 2;

/// Names a call among those of one client (RFC 5531 §9). Not a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xid(pub u32);

const CALL: u32 = 0;
const REPLY: u32 = 1;

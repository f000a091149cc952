//! ONC RPC version 2 (RFC 5531): record marking, headers of calls and replies, credentials.
//!
//! A codec without I/O, for servers and clients. [`Records`] finds messages in a TCP stream; a datagram is a
//! message by itself. [`CallHeader`] precedes a procedure's arguments, [`ReplyHeader`] its results. Only
//! [`RecordAssembler`] has memory of its own: it reassembles fragmented records, up to a limit.
//!
//! ```
//! use tombolo_wire_rpc::{Accepted, CallHeader, Credential, ReplyHeader, Xid};
//! use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};
//!
//! // A client sends a call.
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
//! Non-goals: a portmapper ([`portmap`] has the client's messages only), RPCSEC_GSS, the meaning of
//! procedures, access control.
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
pub use record::{Mark, RecordAssembler, RecordError, RecordScan, Records};
pub use reply::{Accepted, AuthStat, Rejected, ReplyBody, ReplyHeader, SUCCESS_BYTES};
pub use tls::Probe;

/// Version of RPC itself.
pub const RPC_VERSION: u32 = 2;

/// The identifier of a call, unique per client (RFC 5531 §9). Not a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xid(pub u32);

const CALL: u32 = 0;
const REPLY: u32 = 1;

//! The header of a reply (RFC 5531 §9).

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Error, Result, xdr_enum, xdr_union};

use crate::{REPLY, Verifier, Xid};

const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;

/// Encoded length of [`ReplyHeader::success`], in bytes: the position of the results.
pub const SUCCESS_BYTES: usize = 24;

xdr_enum! {
    /// The reason of an authentication failure (`auth_stat`).
    pub enum AuthStat {
        /// No failure: meaningless in a denial.
        Ok = 0,
        /// The credential is malformed.
        BadCred = 1,
        /// The client must start again with another credential.
        RejectedCred = 2,
        /// The verifier is malformed.
        BadVerf = 3,
        /// The verifier expired or was used before.
        RejectedVerf = 4,
        /// The flavor is too weak for this server.
        TooWeak = 5,
        /// The server's own verifier is invalid; reported to the client by its RPC library.
        InvalidResp = 6,
        /// Unknown reason.
        Failed = 7,
        /// Kerberos: an error without a status of its own.
        KerbGeneric = 8,
        /// Kerberos: the ticket expired.
        TimeExpire = 9,
        /// Kerberos: a problem with the ticket file.
        TktFile = 10,
        /// Kerberos: the authenticator cannot be decoded.
        Decode = 11,
        /// Kerberos: wrong address in the ticket.
        NetAddr = 12,
        /// RPCSEC_GSS: no credential for the user.
        GssCredProblem = 13,
        /// RPCSEC_GSS: a problem with the context.
        GssCtxProblem = 14,
    }
}

xdr_union! {
    /// The outcome of an accepted call (`accept_stat`).
    pub enum Accepted: "accept_stat" {
        /// Executed; the results follow.
        Success = 0,
        /// The server does not have the program.
        ProgUnavail = 1,
        /// Unsupported version of the program.
        ProgMismatch {
            /// Lowest supported version.
            low: u32,
            /// Highest supported version.
            high: u32,
        } = 2,
        /// The program does not have the procedure.
        ProcUnavail = 3,
        /// The arguments cannot be decoded.
        GarbageArgs = 4,
        /// Failure of the server, such as lack of memory.
        SystemErr = 5,
    }
}

xdr_union! {
    /// The reason of a denial (`reject_stat`).
    pub enum Rejected: "reject_stat" {
        /// Unsupported version of RPC.
        RpcMismatch {
            /// Lowest supported version.
            low: u32,
            /// Highest supported version.
            high: u32,
        } = 0,
        /// Authentication failure, with its reason.
        Auth(reason: AuthStat) = 1,
    }
}

/// The body of a reply (`reply_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    /// The call was accepted.
    Accepted {
        /// The server's verifier. Ours is always AUTH_NONE.
        verifier: Verifier<'a>,
        /// Outcome of the call.
        status: Accepted,
    },
    /// The call was denied.
    Denied(Rejected),
}

/// The header before a procedure's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader<'a> {
    /// Identifier of the call that is answered.
    pub xid: Xid,
    /// Outcome: accepted, even if not executed, or denied.
    pub body: ReplyBody<'a>,
}

impl ReplyHeader<'static> {
    /// Returns the reply to an accepted call.
    #[inline]
    #[must_use]
    pub const fn accept(xid: Xid, status: Accepted) -> Self {
        Self { xid, body: ReplyBody::Accepted { verifier: Verifier::NONE, status } }
    }

    /// Returns the reply to an executed call. Its results follow.
    #[inline]
    #[must_use]
    pub const fn success(xid: Xid) -> Self {
        Self::accept(xid, Accepted::Success)
    }

    /// Returns the reply to a denied call.
    #[must_use]
    pub const fn reject(xid: Xid, why: Rejected) -> Self {
        Self { xid, body: ReplyBody::Denied(why) }
    }
}

impl ReplyHeader<'_> {
    /// Returns the outcome of the call; `None` if it was denied.
    #[must_use]
    pub const fn accepted(&self) -> Option<Accepted> {
        match self.body {
            ReplyBody::Accepted { status, .. } => Some(status),
            ReplyBody::Denied(_) => None,
        }
    }
}

impl Encode for ReplyHeader<'_> {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.u32(self.xid.0).u32(REPLY);
        match &self.body {
            ReplyBody::Accepted { verifier, status } => xdr.u32(ACCEPTED).value(verifier).value(status),
            ReplyBody::Denied(why) => xdr.u32(DENIED).value(why),
        };
    }
}

impl<'a> Decode<'a> for ReplyHeader<'a> {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        let xid = Xid(xdr.u32()?);
        match xdr.u32()? {
            REPLY => {}
            value => return Err(Error::BadEnum { name: "reply", value }),
        }
        let body = match xdr.u32()? {
            ACCEPTED => ReplyBody::Accepted { verifier: xdr.value()?, status: xdr.value()? },
            DENIED => ReplyBody::Denied(xdr.value()?),
            value => return Err(Error::BadEnum { name: "reply_stat", value }),
        };
        Ok(Self { xid, body })
    }
}

//! The header of a call (RFC 5531 §9), and the replies to invalid ones.

use tombolo_wire_xdr::{Decoder, Encode, Encoder};

use crate::auth::CredentialFault;
use crate::{
    Accepted, AuthFlavor, AuthStat, CALL, Credential, RPC_VERSION, Rejected, ReplyHeader, Verifier, Xid,
};

/// The header before a procedure's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHeader<'a> {
    /// Identifier of the call, repeated in its reply.
    pub xid: Xid,
    /// Number of the called program, such as that of NFS.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Number of the procedure in that version of the program.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: Credential<'a>,
}

/// The reason why a message is not a call that can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFault {
    /// A message that is too short, or not a call: no reply is possible.
    #[error("not an RPC call")]
    NotCall,
    /// A call that ends before its credential.
    #[error("truncated call header")]
    Short {
        /// Identifier of the call, for the reply.
        xid: Xid,
    },
    /// A call that is refused.
    #[error("refused: {why:?}")]
    Refused {
        /// Identifier of the call, for the reply.
        xid: Xid,
        /// Reason of the refusal, for the reply.
        why: Rejected,
    },
}

impl CallFault {
    /// Returns the reply; `None` if none is possible.
    #[must_use]
    pub fn reply(&self) -> Option<ReplyHeader<'static>> {
        match *self {
            Self::NotCall => None,
            Self::Short { xid } => Some(ReplyHeader::accept(xid, Accepted::GarbageArgs)),
            Self::Refused { xid, why } => Some(ReplyHeader::reject(xid, why)),
        }
    }
}

impl<'a> CallHeader<'a> {
    /// Returns the header of a call to be made.
    #[must_use]
    pub const fn new(
        xid: Xid,
        program: u32,
        version: u32,
        procedure: u32,
        credential: Credential<'a>,
    ) -> Self {
        Self { xid, program, version, procedure, credential }
    }

    /// Decodes the header of a received message. Afterwards the decoder is at the arguments.
    ///
    /// Program, version and procedure are returned unchecked, for the server to look up.
    ///
    /// # Errors
    /// [`CallFault`], from which [`CallFault::reply`] makes the reply. Checked in this order: version of RPC,
    /// credential, verifier.
    #[inline]
    pub fn receive(xdr: &mut Decoder<'a>) -> Result<Self, CallFault> {
        let xid = xdr.u32().map(Xid).map_err(|_| CallFault::NotCall)?;
        match xdr.u32() {
            Ok(CALL) => {}
            _ => return Err(CallFault::NotCall),
        }
        let short = |_| CallFault::Short { xid };
        let refused = |why| CallFault::Refused { xid, why };
        if xdr.u32().map_err(short)? != RPC_VERSION {
            return Err(refused(Rejected::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION }));
        }
        let program = xdr.u32().map_err(short)?;
        let version = xdr.u32().map_err(short)?;
        let procedure = xdr.u32().map_err(short)?;
        let credential = Credential::receive(xdr).map_err(|fault| {
            refused(Rejected::Auth(match fault {
                CredentialFault::Malformed => AuthStat::BadCred,
                CredentialFault::Unknown => AuthStat::RejectedCred,
            }))
        })?;
        match xdr.value::<Verifier<'_>>() {
            Ok(Verifier { flavor: AuthFlavor::NONE, .. }) => {}
            _ => return Err(refused(Rejected::Auth(AuthStat::BadVerf))),
        }
        Ok(Self { xid, program, version, procedure, credential })
    }
}

impl Encode for CallHeader<'_> {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.u32(self.xid.0)
            .u32(CALL)
            .u32(RPC_VERSION)
            .u32(self.program)
            .u32(self.version)
            .u32(self.procedure);
        xdr.value(&self.credential).value(&Verifier::NONE);
    }
}

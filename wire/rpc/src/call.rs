//! The header of a call (RFC 5531 §9), and what is answered when it is none.

use tombolo_wire_xdr::{Decoder, Encode, Encoder};

use crate::auth::CredentialFault;
use crate::{
    Accepted, AuthFlavor, AuthStat, CALL, Credential, RPC_VERSION, Rejected, ReplyHeader, Verifier, Xid,
};

/// What comes before a procedure's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHeader<'a> {
    /// Names the call.
    pub xid: Xid,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// What to do.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: Credential<'a>,
}

/// Why a message is no call that could be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFault {
    /// It is too short to name a call, or it is not a call: nothing can be answered.
    #[error("not an RPC call")]
    NotCall,
    /// It names a call and ends before its credential begins.
    #[error("truncated call header")]
    Short {
        /// The call.
        xid: Xid,
    },
    /// The call is refused.
    #[error("refused: {why:?}")]
    Refused {
        /// The call.
        xid: Xid,
        /// Why.
        why: Rejected,
    },
}

impl CallFault {
    /// What to answer; `None` where silence is all that is left.
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
    /// A call to be made.
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

    /// Reads the header of a received message. The arguments are what is left.
    ///
    /// Program, version and procedure are whatever the caller says: whether there are such is the server's to
    /// know.
    ///
    /// # Errors
    /// [`CallFault`] says what to answer, checked in this order: RPC's version, the credential, the verifier.
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

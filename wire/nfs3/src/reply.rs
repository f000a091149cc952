//! Results of procedures: a union whose discriminant is the status.

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Result};

use crate::Status;

const OK: u32 = 0;

/// The results of a procedure: a union over its status. The failed arm has contents, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<T, F, S = Status> {
    /// Results of a successful call.
    Ok(T),
    /// Status of a failed call, and the contents of its failed arm.
    Failed(S, F),
}

impl<T, F, S> Reply<T, F, S> {
    /// Returns the status; `None` on success.
    #[inline]
    pub const fn status(&self) -> Option<&S> {
        match self {
            Self::Ok(_) => None,
            Self::Failed(status, _) => Some(status),
        }
    }
}

impl<T: Encode, F: Encode, S: Encode> Encode for Reply<T, F, S> {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        match self {
            Self::Ok(results) => xdr.u32(OK).value(results),
            Self::Failed(status, rest) => xdr.value(status).value(rest),
        };
    }
}

impl<'a, T: Decode<'a>, F: Decode<'a>, S: Decode<'a>> Decode<'a> for Reply<T, F, S> {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        let mut ahead = xdr.clone();
        if ahead.u32()? == OK {
            *xdr = ahead;
            xdr.value().map(Self::Ok)
        } else {
            Ok(Self::Failed(xdr.value()?, xdr.value()?))
        }
    }
}

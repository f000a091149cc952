//! Success or failure, each with results of its own.

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Result};

use crate::Status;

const OK: u32 = 0;

/// What a procedure answers: a union over its status. The failed arm carries attributes, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<T, F, S = Status> {
    /// It was done.
    Ok(T),
    /// It failed.
    Failed(S, F),
}

impl<T, F, S> Reply<T, F, S> {
    /// The status; `None` is success.
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

//! Attributes to set (RFC 1813 §2.6, `sattr3`).

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Error, Result, xdr_struct};

use crate::NfsTime3;

/// A time to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime3 {
    /// Do not change.
    #[default]
    DontChange,
    /// Set to the server's current time.
    Server,
    /// Set to this time.
    Client(NfsTime3),
}

impl<'a> Decode<'a> for SetTime3 {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        match xdr.u32()? {
            0 => Ok(Self::DontChange),
            1 => Ok(Self::Server),
            2 => xdr.value().map(Self::Client),
            value => Err(Error::BadEnum { name: "time_how", value }),
        }
    }
}

impl Encode for SetTime3 {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        match self {
            Self::DontChange => xdr.u32(0),
            Self::Server => xdr.u32(1),
            Self::Client(time) => xdr.u32(2).value(time),
        };
    }
}

xdr_struct! {
    /// Attribute changes. `None` leaves an attribute unchanged.
    #[derive(Default)]
    pub struct Sattr3 {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Size in bytes.
        pub size: Option<u64>,
        /// Last read.
        pub atime: SetTime3,
        /// Last change of the data.
        pub mtime: SetTime3,
    }
}

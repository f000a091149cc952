//! Opaque marks that server and client hand each other (RFC 1813 §2.4).

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Result};

macro_rules! opaque_mark {
    ($($(#[$meta:meta])* $name:ident($type:ty);)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $type);

        impl<'a> Decode<'a> for $name {
            #[inline]
            fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
                xdr.value().map(Self)
            }
        }

        impl Encode for $name {
            #[inline]
            fn encode(&self, xdr: &mut Encoder<'_>) {
                xdr.value(&self.0);
            }
        }
    )+};
}

opaque_mark! {
    /// Tells a client whether unstable writes may have been lost: it changes when they were (`writeverf3`).
    WriteVerifier([u8; 8]);
    /// Tells a retried exclusive create from another one (`createverf3`).
    CreateVerifier([u8; 8]);
    /// Tells a server whether a directory's cookies are still good (`cookieverf3`).
    CookieVerifier([u8; 8]);
    /// Where a listing goes on; 0 at the start (`cookie3`).
    Cookie3(u64);
}

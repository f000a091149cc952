//! Opaque values exchanged by server and client (RFC 1813 §2.4).

use tombolo_wire_xdr::xdr_as;

// Declares a type for each value, so that they cannot be confused.
macro_rules! opaque_mark {
    ($($(#[$meta:meta])* $name:ident($type:ty);)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $type);

        xdr_as! { $name: Self, |mark: &Self| mark.0; }
    )+};
}

opaque_mark! {
    /// A value that changes when unstable writes may have been lost (`writeverf3`).
    WriteVerifier([u8; 8]);
    /// A value that distinguishes a retried exclusive create from another one (`createverf3`).
    CreateVerifier([u8; 8]);
    /// A value by which a server recognises cookies of a directory that are no longer valid (`cookieverf3`).
    CookieVerifier([u8; 8]);
    /// A position in a listing; 0: the start (`cookie3`).
    Cookie3(u64);
}

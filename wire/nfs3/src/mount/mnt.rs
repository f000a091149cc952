//! Argument and results of MNT (RFC 1813 appendix I §5.2.1).

use tombolo_wire_rpc::AuthFlavor;
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Few, Result, xdr_enum, xdr_struct};

use crate::{FileHandle, Reply};

/// Maximum length of a path, in bytes (`MNTPATHLEN`).
pub const PATH_BYTES_MAX: usize = 1024;
/// Maximum length of the name of a client or a group of clients, in bytes (`MNTNAMLEN`).
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum number of flavors in the results of MNT.
pub const FLAVORS_MAX: usize = 16;

macro_rules! bounded_string {
    ($($(#[$meta:meta])* $name:ident, $limit:ident;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name<'a>(&'a [u8]);

        impl<'a> $name<'a> {
            /// Returns a text of these bytes; `None` if there are more than its limit.
            #[must_use]
            pub const fn new(bytes: &'a [u8]) -> Option<Self> {
                if bytes.len() <= $limit { Some(Self(bytes)) } else { None }
            }

            /// Returns the bytes, unvalidated.
            #[must_use]
            pub const fn as_bytes(self) -> &'a [u8] {
                self.0
            }
        }

        impl std::fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }

        impl<'a> Decode<'a> for $name<'a> {
            fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
                xdr.opaque($limit).map(Self)
            }
        }

        impl Encode for $name<'_> {
            fn encode(&self, xdr: &mut Encoder<'_>) {
                xdr.opaque(self.0);
            }
        }
    )+};
}

bounded_string! {
    /// A path on the server (`dirpath`), at most [`PATH_BYTES_MAX`]. A longer one violates the type and is
    /// garbage.
    DirPath, PATH_BYTES_MAX;
    /// The name of a client or of a group of clients (`name`), at most [`NAME_BYTES_MAX`].
    MountName, NAME_BYTES_MAX;
}

xdr_enum! {
    /// The reason of a failed MNT (`mountstat3`).
    pub enum Status {
        /// The caller is not the owner, or lacks the privilege.
        Perm = 1,
        /// The path does not exist.
        NoEnt = 2,
        /// I/O error.
        Io = 5,
        /// Permission denied.
        Acces = 13,
        /// The path is not a directory.
        NotDir = 20,
        /// Invalid argument.
        Inval = 22,
        /// Name too long.
        NameTooLong = 63,
        /// The operation is not supported.
        NotSupp = 10_004,
        /// An error without a status of its own.
        ServerFault = 10_006,
    }
}

/// Results of MNT.
pub type MntReply<'a> = Reply<MntOk<'a>, (), Status>;

xdr_struct! {
    /// A mounted directory (`mountres3_ok`).
    pub struct MntOk<'a> {
        /// Handle of the directory, for NFS calls.
        pub handle: FileHandle<'a>,
        /// Accepted credential flavors, in order of preference.
        pub flavors: Flavors,
    }
}

/// A list of credential flavors: the protocol sets no limit, but no server offers more than [`FLAVORS_MAX`].
pub type Flavors = Few<AuthFlavor, FLAVORS_MAX>;

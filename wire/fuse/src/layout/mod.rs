//! Structures of the FUSE protocol, byte for byte as in `include/uapi/linux/fuse.h`, one file per group of
//! operations.
//!
//! Fields have the kernel's meaning and names, for comparison with the header, but `type` is `kind`, and
//! leading underscores are omitted. All integers are in the host's byte order; virtio-fs guests with another
//! order are not supported. Values are copied out of buffers (`read_from_prefix`) and into them (`as_bytes`),
//! so no buffer needs any alignment.
#![allow(missing_docs, reason = "names that the kernel's header explains")]

pub mod attr;
pub mod dir;
pub mod header;
pub mod init;
pub mod lock;
pub mod misc;
pub mod notify;
pub mod open;
pub mod rw;
pub mod xattr;

/// Declares structures of the protocol with their derives. The number behind a name is the kernel's size of
/// the structure, which is checked at compile time.
macro_rules! wire_struct {
    ($(
        $(#[$meta:meta])* pub struct $name:ident: $size:literal {
            $($(#[$fmeta:meta])* pub $field:ident: $ty:ty),+ $(,)?
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),+ }

        const _: () = assert!(size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
    )+};
}
pub(crate) use wire_struct;

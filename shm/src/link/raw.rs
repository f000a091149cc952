//! Declaration of the structures in shared memory and in messages.

/// Declares structures whose offsets are checked at compile time: `Name: start..end { offset field: type }`,
/// with offsets from the start of the memory or message. All numbers are little-endian.
macro_rules! raw {
    ($(struct $name:ident: $start:literal..$end:literal { $($at:literal $field:ident: $ty:ty,)+ })+) => {$(
        #[derive(
            Clone, Copy,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
            zerocopy::Unaligned,
        )]
        #[repr(C)]
        struct $name { $($field: $ty),+ }

        const _: () = {
            assert!($start + size_of::<$name>() == $end, stringify!($name));
            $(assert!($start + std::mem::offset_of!($name, $field) == $at, stringify!($name.$field));)+
        };
    )+};
}

pub(super) use raw;

//! Macros that declare types together with their layout.

/// Declares a structure (RFC 4506 §4.14) whose fields are encoded in order, with both directions.
///
/// It has at most one lifetime, that of the message.
#[macro_export]
macro_rules! xdr_struct {
    ($(#[$meta:meta])* pub struct $name:ident<$a:lifetime> {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<$a> { $($(#[$field_meta])* pub $field: $type,)+ }

        impl<$a> $crate::Decode<$a> for $name<$a> {
            #[inline]
            fn decode(xdr: &mut $crate::Decoder<$a>) -> $crate::Result<Self> {
                Ok(Self { $($field: xdr.value()?,)+ })
            }
        }

        impl $crate::Encode for $name<'_> {
            #[inline]
            fn encode(&self, xdr: &mut $crate::Encoder<'_>) {
                $(xdr.value(&self.$field);)+
            }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)+ }

        impl<'a> $crate::Decode<'a> for $name {
            #[inline]
            fn decode(xdr: &mut $crate::Decoder<'a>) -> $crate::Result<Self> {
                Ok(Self { $($field: xdr.value()?,)+ })
            }
        }

        impl $crate::Encode for $name {
            #[inline]
            fn encode(&self, xdr: &mut $crate::Encoder<'_>) {
                $(xdr.value(&self.$field);)+
            }
        }
    };
}

/// Declares an enumeration (RFC 4506 §4.3) with both directions. Decoding an undefined number fails with
/// [`Error::BadEnum`](crate::Error::BadEnum).
#[macro_export]
macro_rules! xdr_enum {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$case_meta:meta])* $case:ident = $value:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$case_meta])* $case = $value,)+ }

        impl $name {
            /// All values, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$case,)+];

            /// Returns the value with this number in the protocol.
            #[inline]
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($value => Some(Self::$case),)+
                    _ => None,
                }
            }

            /// Returns the protocol's number.
            #[inline]
            #[must_use]
            pub const fn number(self) -> u32 {
                self as u32
            }
        }

        impl<'a> $crate::Decode<'a> for $name {
            #[inline]
            fn decode(xdr: &mut $crate::Decoder<'a>) -> $crate::Result<Self> {
                let value = xdr.u32()?;
                Self::from_number(value).ok_or($crate::Error::BadEnum { name: stringify!($name), value })
            }
        }

        impl $crate::Encode for $name {
            #[inline]
            fn encode(&self, xdr: &mut $crate::Encoder<'_>) {
                xdr.u32(self.number());
            }
        }
    };
}

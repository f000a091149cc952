//! Macros that declare types together with their layout.

/// Declares structures (RFC 4506 §4.14) whose fields are encoded in order, and implements `Encode` and
/// `Decode` for them.
///
/// A structure has at most one lifetime, that of the message from which its slices are borrowed.
#[macro_export]
macro_rules! xdr_struct {
    ($($(#[$meta:meta])* pub struct $name:ident $(<$a:lifetime>)? {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)+
    })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $(<$a>)? { $($(#[$field_meta])* pub $field: $type,)+ }

        $crate::xdr_struct!(@decode $name $($a)?: $($field)+);

        impl $(<$a>)? $crate::Encode for $name $(<$a>)? {
            #[inline]
            fn encode(&self, xdr: &mut $crate::Encoder<'_>) {
                $(xdr.value(&self.$field);)+
            }
        }
    )+};
    (@decode $name:ident: $($field:ident)+) => {
        $crate::xdr_struct!(@decode_as $name, 'a: $($field)+);
    };
    (@decode $name:ident $a:lifetime: $($field:ident)+) => {
        $crate::xdr_struct!(@decode_as $name<$a>, $a: $($field)+);
    };
    (@decode_as $name:ty, $a:lifetime: $($field:ident)+) => {
        impl<$a> $crate::Decode<$a> for $name {
            #[inline]
            fn decode(xdr: &mut $crate::Decoder<$a>) -> $crate::Result<Self> {
                Ok(Self { $($field: xdr.value()?,)+ })
            }
        }
    };
}

/// Implements `Encode` and `Decode` for a type that is encoded as another type: `Type: conversion from the
/// other type, conversion to the other type;`.
#[macro_export]
macro_rules! xdr_as {
    ($($name:ty: $from:expr, $to:expr;)+) => {$(
        impl<'a> $crate::Decode<'a> for $name {
            #[inline]
            fn decode(xdr: &mut $crate::Decoder<'a>) -> $crate::Result<Self> {
                xdr.value().map($from)
            }
        }

        impl $crate::Encode for $name {
            #[inline]
            fn encode(&self, xdr: &mut $crate::Encoder<'_>) {
                xdr.value(&$to(self));
            }
        }
    )+};
}

/// Declares an enumeration (RFC 4506 §4.3), and implements `Encode` and `Decode` for it. Decoding an
/// undefined number fails with [`Error::BadEnum`](crate::Error::BadEnum).
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
            /// All values, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$case,)+];

            /// Returns the value with this number in the protocol, if it is defined.
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

/// Declares a union over a number (RFC 4506 §4.15), whose arms have values in parentheses or named ones in
/// braces, and implements `Encode` and `Decode` for it. Decoding an undefined number fails with
/// [`Error::BadEnum`](crate::Error::BadEnum), which has the name of the number's type.
#[macro_export]
macro_rules! xdr_union {
    ($(#[$meta:meta])* pub enum $name:ident: $discriminant:literal {
        $(
            $(#[$case_meta:meta])*
            $case:ident
            $(($value:ident: $type:ty))?
            $({ $($(#[$field_meta:meta])* $field:ident: $field_type:ty,)+ })?
            = $number:literal,
        )+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$case_meta])* $case $(($type))? $({ $($(#[$field_meta])* $field: $field_type,)+ })?,)+
        }

        impl<'a> $crate::Decode<'a> for $name {
            #[inline]
            fn decode(xdr: &mut $crate::Decoder<'a>) -> $crate::Result<Self> {
                match xdr.u32()? {
                    $($number => Ok(
                        Self::$case $((xdr.value::<$type>()?))? $({ $($field: xdr.value()?,)+ })?
                    ),)+
                    value => Err($crate::Error::BadEnum { name: $discriminant, value }),
                }
            }
        }

        impl $crate::Encode for $name {
            #[inline]
            fn encode(&self, xdr: &mut $crate::Encoder<'_>) {
                match self {
                    $(Self::$case $(($value))? $({ $($field,)+ })? => {
                        xdr.u32($number) $(.value($value))? $($(.value($field))+)?;
                    })+
                }
            }
        }
    };
}

/// Declares the `Procedure` and `Call` of a program: its procedures, alone and with their arguments. The
/// function that decodes the arguments is named first. Encoding a call encodes its arguments alone.
#[macro_export]
macro_rules! xdr_program {
    (
        $(#[$decode_meta:meta])* $visibility:vis fn $decode:ident;
        $($(#[$meta:meta])* $case:ident $(($value:ident: $type:ty))? = $number:literal,)+
    ) => {
        $crate::xdr_enum! {
            /// A procedure. RPC answers PROC_UNAVAIL to any other number.
            pub enum Procedure { $($(#[$meta])* $case = $number,)+ }
        }

        /// A procedure with its arguments.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Call<'a> { $($(#[$meta])* $case $(($type))?,)+ }

        impl<'a> Call<'a> {
            $(#[$decode_meta])*
            #[inline]
            $visibility fn $decode(procedure: Procedure, xdr: &mut $crate::Decoder<'a>) -> $crate::Result<Self> {
                match procedure {
                    $(Procedure::$case => Ok(Self::$case $((xdr.value::<$type>()?))?),)+
                }
            }

            /// Returns the procedure.
            #[must_use]
            pub const fn procedure(&self) -> Procedure {
                match self {
                    $(Self::$case { .. } => Procedure::$case,)+
                }
            }
        }

        impl $crate::Encode for Call<'_> {
            fn encode(&self, xdr: &mut $crate::Encoder<'_>) {
                match self {
                    $(Self::$case $(($value))? => { $(xdr.value($value);)? })+
                }
            }
        }
    };
}

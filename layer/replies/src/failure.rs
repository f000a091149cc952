//! Errors as numbers, which can be cloned and stored.

use tombolo_core::Error;

/// Defines pairs of number and error. The numbers are those of `docs/formats/replies.md` and never change.
macro_rules! failures {
    ($($number:literal => $error:ident,)+) => {
        /// An error as a number, without its cause.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) struct Failure(u16);

        impl Failure {
            /// Any error without a number of its own.
            pub const IO: Self = Self(1);
            /// The operation was interrupted, or its caller has disconnected.
            pub const INTERRUPTED: Self = Self(23);

            /// Returns the failure with this number; `None` if there is none.
            pub fn from_number(number: u16) -> Option<Self> {
                [1 $(, $number)+].contains(&number).then_some(Self(number))
            }

            pub fn number(self) -> u16 {
                self.0
            }

            pub fn error(self) -> Error {
                match self.0 {
                    $($number => Error::$error,)+
                    _ => Error::Io { source: None },
                }
            }
        }

        impl From<&Error> for Failure {
            fn from(error: &Error) -> Self {
                match error {
                    $(Error::$error => Self($number),)+
                    _ => Self::IO,
                }
            }
        }
    };
}

failures! {
    2 => NotPermitted,
    3 => AccessDenied,
    4 => NotFound,
    5 => Exists,
    6 => NotDirectory,
    7 => IsDirectory,
    8 => NotEmpty,
    9 => CrossDevice,
    10 => InvalidArgument,
    11 => NameTooLong,
    12 => SymlinkLoop,
    13 => TooManyLinks,
    14 => FileTooLarge,
    15 => NoSpace,
    16 => QuotaExceeded,
    17 => ReadOnly,
    18 => Busy,
    19 => TextBusy,
    20 => WouldBlock,
    21 => Deadlock,
    22 => NoLocks,
    23 => Interrupted,
    24 => TimedOut,
    25 => Stale,
    26 => BadOpen,
    27 => BadCookie,
    28 => NotSync,
    29 => NoAttribute,
    30 => OutOfRange,
    31 => TooBig,
    32 => Overflow,
    33 => NoDevice,
    34 => NotSupported,
    35 => NotImplemented,
    36 => BadType,
    37 => NotDevice,
    38 => NoMemory,
    39 => TooManyOpen,
    40 => Disconnected,
}

/// Returns `true` for transient errors, which are not recorded: a retry executes the operation again.
pub(super) fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::WouldBlock
            | Error::Busy
            | Error::Interrupted
            | Error::TimedOut
            | Error::NoMemory
            | Error::TooManyOpen
            | Error::Disconnected
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_stands_for_one_error_and_back() {
        let known: Vec<_> = (0..=u16::MAX).filter_map(Failure::from_number).collect();
        assert_eq!(known.len(), 40);
        for failure in known {
            assert_eq!(Failure::from(&failure.error()), failure, "{:?}", failure.error());
        }
    }
}

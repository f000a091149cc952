//! Conversion between [`Error`] and its numbers on the wire.
//!
//! Both directions are exhaustive matches: a new error does not compile until it has a number. Only the
//! cause of an I/O error is lost; it remains in the log of the side where it occurred.

use tombolo_core::Error;

macro_rules! statuses {
    ($($name:ident = $number:literal),+ $(,)?) => {
        /// The failure of an operation on the wire. The names are those of the waist's [`Error`]; the numbers
        /// never change, and 0 is success.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "the waist's words, explained there")]
        pub enum Status { $($name = $number),+ , Io = 255 }

        impl Status {
            /// All statuses, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)+ Self::Io];

            /// Returns the status with this number; `None` for 0 and for unknown ones.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)+
                    255 => Some(Self::Io),
                    _ => None,
                }
            }
        }

        impl From<&Error> for Status {
            fn from(error: &Error) -> Self {
                match error {
                    $(Error::$name => Self::$name,)+
                    Error::Io { .. } => Self::Io,
                }
            }
        }

        impl From<Status> for Error {
            fn from(status: Status) -> Self {
                match status {
                    $(Status::$name => Self::$name,)+
                    Status::Io => Self::Io { source: None },
                }
            }
        }
    };
}

statuses! {
    NotPermitted = 1,
    AccessDenied = 2,
    NotFound = 3,
    Exists = 4,
    NotDirectory = 5,
    IsDirectory = 6,
    NotEmpty = 7,
    CrossDevice = 8,
    InvalidArgument = 9,
    NameTooLong = 10,
    SymlinkLoop = 11,
    TooManyLinks = 12,
    FileTooLarge = 13,
    NoSpace = 14,
    QuotaExceeded = 15,
    ReadOnly = 16,
    Busy = 17,
    TextBusy = 18,
    WouldBlock = 19,
    Deadlock = 20,
    NoLocks = 21,
    Interrupted = 22,
    TimedOut = 23,
    Stale = 24,
    BadOpen = 25,
    BadCookie = 26,
    NotSync = 27,
    NoAttribute = 28,
    OutOfRange = 29,
    TooBig = 30,
    Overflow = 31,
    NoDevice = 32,
    NotSupported = 33,
    NotImplemented = 34,
    BadType = 35,
    NotDevice = 36,
    NoMemory = 37,
    TooManyOpen = 38,
    Disconnected = 39,
}

impl Status {
    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_comes_back_as_itself() {
        for &status in Status::ALL {
            let error = Error::from(status);
            assert_eq!(Status::from(&error), status);
            assert_eq!(Status::from_number(status.number()), Some(status));
            let name = format!("{error:?}");
            assert!(name.starts_with(&format!("{status:?}")), "{name} from {status:?}");
        }
        assert_eq!(Status::from_number(0), None);
        assert_eq!(Status::from_number(40), None);
    }
}

//! Mapping between the waist's errors and NBD's.

use tombolo_core::Error;

/// The outcome of a request. NBD defines only these; any other number counts as EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs)]
pub enum Status {
    Ok = 0,
    Perm = 1,
    Io = 5,
    NoMem = 12,
    Inval = 22,
    NoSpc = 28,
    Overflow = 75,
    NotSup = 95,
    Shutdown = 108,
}

impl Status {
    /// Returns the status with this number on the wire; [`Status::Inval`] for numbers that NBD does not
    /// define.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Ok,
            1 => Self::Perm,
            5 => Self::Io,
            12 => Self::NoMem,
            28 => Self::NoSpc,
            75 => Self::Overflow,
            95 => Self::NotSup,
            108 => Self::Shutdown,
            _ => Self::Inval,
        }
    }
}

/// Returns the status that represents `error` in a reply.
#[must_use]
pub fn to_status(error: &Error) -> Status {
    match error {
        Error::NotPermitted | Error::AccessDenied | Error::ReadOnly => Status::Perm,
        Error::NoSpace | Error::QuotaExceeded | Error::FileTooLarge => Status::NoSpc,
        Error::NoMemory => Status::NoMem,
        Error::InvalidArgument => Status::Inval,
        Error::NotSupported | Error::NotImplemented => Status::NotSup,
        Error::Overflow | Error::TooBig => Status::Overflow,
        _ => Status::Io,
    }
}

/// Fails with the waist's error for `status`, unless that is [`Status::Ok`].
pub fn from_status(status: Status) -> Result<(), Error> {
    Err(match status {
        Status::Ok => return Ok(()),
        Status::Perm => Error::NotPermitted,
        Status::Io => Error::Io { source: None },
        Status::NoMem => Error::NoMemory,
        Status::Inval => Error::InvalidArgument,
        Status::NoSpc => Error::NoSpace,
        Status::Overflow => Error::Overflow,
        Status::NotSup => Error::NotSupported,
        Status::Shutdown => Error::Disconnected,
    })
}

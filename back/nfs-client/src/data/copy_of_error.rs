//! One failure for several waiters.

use tombolo_core::Error;
use tombolo_wire_nfs3::status;

/// Copies a failure; the cause is reduced to its text.
pub(super) fn copy_of(error: &Error) -> Error {
    match error {
        Error::Io { source: Some(source) } => Error::io(Text::of(source.as_ref())),
        Error::TimedOut => Error::TimedOut,
        Error::Interrupted => Error::Interrupted,
        Error::Disconnected => Error::Disconnected,
        Error::NoMemory => Error::NoMemory,
        // All other errors were converted from a status of the server.
        other => status::from_status(status::to_status(other)),
    }
}

/// Text of an error and its causes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Text(String);

impl Text {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        Self(text)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use super::*;

    #[test]
    fn copied_error_keeps_kind_and_message() {
        let all = [Error::NoSpace, Error::QuotaExceeded, Error::Stale, Error::TimedOut, Error::AccessDenied];
        for error in all {
            assert_eq!(discriminant(&copy_of(&error)), discriminant(&error));
        }
        let deep = Error::io(std::io::Error::other("host:/name: Write: broken"));
        let Error::Io { source: Some(source) } = copy_of(&copy_of(&deep)) else { panic!("an I/O error") };
        assert_eq!(source.to_string(), "host:/name: Write: broken");
    }
}

//! Errors of measurements.

use std::path::Path;

use thiserror::Error;

/// Reason for a missing figure.
#[derive(Debug, Error)]
pub enum Error {
    /// The system refused an operation.
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    /// A measured program failed to start or ended too early.
    #[error("{program}: {what}")]
    Server { program: String, what: String },
    /// A column cannot be measured on this machine, for a reason that the user can fix.
    #[error("{0}")]
    Absent(String),
    /// The run was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// A server replied incorrectly, so a figure for it would be meaningless.
    #[error("{what}: wrong answer: {answer}")]
    Wrong { what: String, answer: String },
}

/// Returns an error for a wrong answer, with its chain of causes.
pub fn wrong(what: &str, error: &(impl std::error::Error + ?Sized)) -> Error {
    // The last in the chain is the root cause.
    let mut answer = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        answer = format!("{answer}: {error}");
        source = error.source();
    }
    Error::Wrong { what: what.to_owned(), answer }
}

/// Fails unless the number found, of bytes or items, is the wanted one.
#[inline]
pub fn same(what: &str, found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::Wrong { what: what.to_owned(), answer: format!("{found} instead of {wanted}") })
}

/// Conversion of an error that means a wrong answer; `what` is the operation.
pub trait OrWrong<T> {
    fn or_wrong(self, what: &str) -> Result<T>;
}

impl<T, E: std::error::Error> OrWrong<T> for std::result::Result<T, E> {
    #[inline]
    fn or_wrong(self, what: &str) -> Result<T> {
        self.map_err(|error| wrong(what, &error))
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Conversion of a system error; `what` is the operation.
pub trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
    /// Reports the operation and its file.
    fn doing_to(self, what: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }

    fn doing_to(self, what: &str, path: &Path) -> Result<T> {
        self.doing(|| format!("{what} {}", path.display()))
    }
}

//! What keeps a measurement from being made.

use std::path::Path;

use thiserror::Error;

/// Why there is no figure.
#[derive(Debug, Error)]
pub enum Error {
    /// The system refused something.
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    /// A program that is measured ended too early, or did not begin.
    #[error("{program}: {what}")]
    Server { program: String, what: String },
    /// A column cannot be measured here, for a reason that the reader can mend.
    #[error("{0}")]
    Absent(String),
    /// The run was asked to end.
    #[error("interrupted")]
    Interrupted,
    /// A server answered wrongly: a figure for it would mean nothing.
    #[error("{what}: wrong answer: {answer}")]
    Wrong { what: String, answer: String },
}

/// A wrong answer, told by an error and what caused it.
pub fn wrong(what: &str, error: &(impl std::error::Error + ?Sized)) -> Error {
    // The last in the chain is what happened.
    let mut answer = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        answer = format!("{answer}: {error}");
        source = error.source();
    }
    Error::Wrong { what: what.to_owned(), answer }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Says what was being done when the system refused it.
pub trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
    /// Names the operation and the file it was done to.
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

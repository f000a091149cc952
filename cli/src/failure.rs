//! Failures: one line for people, an exit code for scripts.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use tombolo_host_runtime::signals::StopSignal;

pub type Outcome = Result<(), Failure>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The command was valid, but failed.
    Failed = 1,
    /// Invalid command line or configuration.
    Usage = 2,
    /// Ended by SIGINT: 128 plus the signal's number, as in shells.
    Interrupted = 130,
    /// Ended by SIGTERM.
    Terminated = 143,
}

/// A failure of a command: its message, which is empty if it has been printed already, and the exit code.
#[derive(Debug)]
pub struct Failure {
    text: String,
    code: Code,
}

impl Failure {
    /// Returns `cannot DOING: REASON`.
    pub fn cannot(doing: impl fmt::Display, reason: impl Into<Reason>) -> Self {
        Self { text: format!("cannot {doing}: {}", reason.into().0), code: Code::Failed }
    }

    /// Returns the failure for invalid input of the user.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: Code::Usage }
    }

    /// Prefixes the failure with the name of its session.
    pub fn of_session(self, name: &str) -> Self {
        Self { text: format!("session {name}: {}", self.text), ..self }
    }

    /// Returns a failure reported by another process.
    pub fn told(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: Code::Failed }
    }

    /// Returns a failure without text, because it has been reported already.
    pub fn silent() -> Self {
        Self { text: String::new(), code: Code::Failed }
    }

    /// Returns a failure that another process has reported and ended with. An exit code that is no [`Code`]
    /// becomes 1.
    pub fn with_exit_code(code: i32) -> Self {
        let known = [Code::Usage, Code::Interrupted, Code::Terminated];
        let code = known.into_iter().find(|known| *known as i32 == code).unwrap_or(Code::Failed);
        Self { text: String::new(), code }
    }

    /// Returns the failure for a signal, which has been reported.
    pub fn stopped(signal: StopSignal) -> Self {
        let code = if signal.is_interrupt() { Code::Interrupted } else { Code::Terminated };
        Self { text: String::new(), code }
    }

    /// Returns `true` if a signal has ended the command.
    pub fn is_stop(&self) -> bool {
        matches!(self.code, Code::Interrupted | Code::Terminated)
    }

    /// Appends advice to the message, after a semicolon.
    pub fn remedy(mut self, what: impl fmt::Display) -> Self {
        self.text = format!("{}; {what}", self.text);
        self
    }

    pub fn remedy_if(self, applies: bool, what: impl fmt::Display) -> Self {
        if applies { self.remedy(what) } else { self }
    }

    pub fn print(&self) {
        if !self.text.is_empty() {
            // In one piece: other servers of a VM may write to the same log. Nothing can be reported if
            // standard error is closed.
            let line = format!("tombolo: {}\n", one_line(&self.text));
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }

    pub fn code(&self) -> Code {
        self.code
    }
}

/// Conversion of errors to failures.
pub trait OrCannot<T> {
    /// Fails with `cannot DOING: REASON`, the reason being the error.
    fn or_cannot(self, doing: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: Error> OrCannot<T> for Result<T, E> {
    fn or_cannot(self, doing: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::cannot(doing, &error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Text of the reason of a failure.
pub struct Reason(String);

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.0
    }
}

impl<E: Error> From<&E> for Reason {
    /// Concatenates the error and its sources, each once: some texts already contain their source's.
    fn from(error: &E) -> Self {
        let mut text = plain(&error.to_string());
        let mut source = error.source();
        while let Some(error) = source {
            let more = plain(&error.to_string());
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            source = error.source();
        }
        Self(text)
    }
}

/// Removes the suffix ` (os error N)` of the standard library.
fn plain(text: &str) -> String {
    match text.rfind(" (os error ") {
        Some(start) if text.ends_with(')') => text[..start].to_owned(),
        _ => text.to_owned(),
    }
}

/// Joins lines and escapes control characters, so that foreign text cannot control the terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        if letter.is_control() { line.extend(letter.escape_default()) } else { line.push(letter) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_other_processes_are_kept() {
        let kept = [2, 130, 143, 1, 101].map(|code| Failure::with_exit_code(code).code() as i32);
        assert_eq!(kept, [2, 130, 143, 1, 1]);
    }

    #[test]
    fn a_failure_is_one_line_without_numbers() {
        let error = std::io::Error::from_raw_os_error(2);
        let failure = Failure::cannot("serve /x", &error).remedy("make\nit");
        assert_eq!(one_line(&failure.text), "cannot serve /x: No such file or directory; make it");
        assert_eq!(one_line("it stands on \x1b[2J"), "it stands on \\u{1b}[2J");
    }
}

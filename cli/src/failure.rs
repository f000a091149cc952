//! Failures, as people and scripts see them: one line, and an exit code.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use tombolo_host_runtime::signals::StopSignal;

pub type Outcome = Result<(), Failure>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The command was understood, and could not be done.
    Failed = 1,
    /// The command line or the configuration makes no sense.
    Usage = 2,
    /// SIGINT ended it, in the way of shells: 128 and the signal's number.
    Interrupted = 130,
    /// SIGTERM ended it.
    Terminated = 143,
}

#[derive(Debug)]
pub struct Failure {
    text: String,
    code: Code,
}

impl Failure {
    /// `cannot DOING: REASON`, for what went wrong while doing it.
    pub fn cannot(doing: impl fmt::Display, reason: impl Into<Reason>) -> Self {
        Self { text: format!("cannot {doing}: {}", reason.into().0), code: Code::Failed }
    }

    /// Something is wrong with what the user wrote.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: Code::Usage }
    }

    /// The same, of a session that is one of several.
    pub fn of_session(self, name: &str) -> Self {
        Self { text: format!("session {name}: {}", self.text), ..self }
    }

    /// What another process has said of a failure.
    pub fn told(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: Code::Failed }
    }

    /// A failure that another process has explained already.
    pub fn silent() -> Self {
        Self { text: String::new(), code: Code::Failed }
    }

    /// Another process has ended with that code, and has explained it.
    pub fn as_told(code: i32) -> Self {
        let code = if code == Code::Usage as i32 { Code::Usage } else { Code::Failed };
        Self { text: String::new(), code }
    }

    /// A signal ended it, and that has been told.
    pub fn stopped(signal: StopSignal) -> Self {
        let code = if signal.is_interrupt() { Code::Interrupted } else { Code::Terminated };
        Self { text: String::new(), code }
    }

    pub fn is_stop(&self) -> bool {
        matches!(self.code, Code::Interrupted | Code::Terminated)
    }

    pub fn remedy(mut self, what: impl fmt::Display) -> Self {
        self.text = format!("{}; {what}", self.text);
        self
    }

    pub fn print(&self) {
        if !self.text.is_empty() {
            // With standard error closed the exit code says enough.
            let _ = writeln!(io::stderr(), "tombolo: {}", one_line(&self.text));
        }
    }

    pub fn code(&self) -> Code {
        self.code
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
    /// The error and its sources, each once: some texts contain their source's, some do not.
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

/// The standard library ends its texts with ` (os error N)`: noise to all but programmers.
fn plain(text: &str) -> String {
    match text.rfind(" (os error ") {
        Some(start) if text.ends_with(')') => text[..start].to_owned(),
        _ => text.to_owned(),
    }
}

/// What others have written, as in a file that comes from elsewhere, does not steer the terminal.
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
    fn a_failure_is_one_line_without_numbers() {
        let error = std::io::Error::from_raw_os_error(2);
        let failure = Failure::cannot("serve /x", &error).remedy("make\nit");
        assert_eq!(one_line(&failure.text), "cannot serve /x: No such file or directory; make it");
        assert_eq!(one_line("it stands on \x1b[2J"), "it stands on \\u{1b}[2J");
    }
}

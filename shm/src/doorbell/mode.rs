use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::doorbell::umwait;

/// A consumer's waiting strategy. Each side chooses its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Polls continuously, yielding the processor now and then so that a producer on the same processor can
    /// run. Occupies a processor.
    Poll,
    /// Sleeps at once. Costs a wake-up for each message that has not arrived already.
    Event,
    /// Polls for an adaptive time, about 50 µs at most (500 µs with a bell), then sleeps. Free when idle.
    #[default]
    Adaptive,
    /// Polls as [`Poll`](Self::Poll) does, with the processor resting until the awaited line is written.
    /// Needs x86's WAITPKG.
    Umwait,
}

/// An unknown name of a mode.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown doorbell mode {word:?}: use poll, event, adaptive or umwait")]
pub struct UnknownMode {
    word: String,
}

impl Mode {
    /// All modes, for parsing and for messages.
    pub const ALL: [Mode; 4] = [Mode::Poll, Mode::Event, Mode::Adaptive, Mode::Umwait];

    /// Returns `true` if this processor supports the mode. An unsupported mode waits as [`Poll`](Self::Poll)
    /// does.
    pub fn is_available(self) -> bool {
        self != Mode::Umwait || umwait::is_available()
    }

    /// Returns the name by which a user selects the mode.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Poll => "poll",
            Mode::Event => "event",
            Mode::Adaptive => "adaptive",
            Mode::Umwait => "umwait",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Mode, UnknownMode> {
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == word);
        mode.ok_or_else(|| UnknownMode { word: word.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_modes_parse_by_name() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let unknown = "mwait".parse::<Mode>().expect_err("no such mode");
        assert!(unknown.to_string().contains("\"mwait\""));
    }
}

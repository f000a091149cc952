//! The log, on standard error.

use std::io::{self, IsTerminal};

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The environment variable that says what to log, over what the command line says.
pub const VARIABLE: &str = "TOMBOLO_LOG";

/// Why the log cannot be set up.
#[derive(Debug, Error)]
pub enum LogError {
    /// The directives make no sense.
    #[error("{VARIABLE}={directives:?}: {source}")]
    Directives {
        /// What was said.
        directives: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// There is a log already.
    #[error("{0}")]
    Again(#[from] tracing_subscriber::util::TryInitError),
}

/// How much to log: warnings and errors, and more or less of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbosity(i32);

impl Verbosity {
    /// `more` steps towards everything, `less` towards nothing.
    pub fn new(more: u8, less: u8) -> Self {
        Self(i32::from(more) - i32::from(less))
    }

    fn level(self) -> LevelFilter {
        match self.0 {
            ..=-2 => LevelFilter::OFF,
            -1 => LevelFilter::ERROR,
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            3.. => LevelFilter::TRACE,
        }
    }
}

/// Begins logging to standard error. `directives` (`info`, or `warn,tombolo_host=debug`) count before `verbosity`.
pub fn start(verbosity: Verbosity, directives: Option<&str>) -> Result<(), LogError> {
    let filter = filter(verbosity, directives)?;
    let terminal = io::stderr().is_terminal();
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(terminal);
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    Ok(())
}

fn filter(verbosity: Verbosity, directives: Option<&str>) -> Result<Targets, LogError> {
    match directives {
        None | Some("") => Ok(Targets::new().with_default(verbosity.level())),
        Some(directives) => directives
            .parse()
            .map_err(|source| LogError::Directives { directives: directives.into(), source }),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn directives_count_before_verbosity() {
        let by_level = filter(Verbosity::new(1, 0), None).expect("a filter");
        assert!(by_level.would_enable("tombolo_host", &Level::INFO));
        assert!(!by_level.would_enable("tombolo_host", &Level::DEBUG));
        let by_name = filter(Verbosity::new(0, 1), Some("warn,tombolo_host=debug")).expect("a filter");
        assert!(by_name.would_enable("tombolo_host::control", &Level::DEBUG));
        assert!(!by_name.would_enable("tombolo_layer", &Level::INFO));
        assert!(filter(Verbosity::default(), Some("a=b=c")).is_err());
    }
}

//! The log: to standard error, and for a background mount also to the system log.

use std::io::{self, IsTerminal};
use std::path::Path;

use thiserror::Error;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::syslog::{self, Syslog};

/// Environment variable with log directives, which override the command line.
pub const VARIABLE: &str = "TOMBOLO_LOG";

/// Error of setting up the log.
#[derive(Debug, Error)]
pub enum LogError {
    /// The directives are malformed.
    #[error("{VARIABLE}={directives:?}: {source}")]
    Directives {
        /// The directives.
        directives: String,
        /// Cause.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging has been started already.
    #[error("{0}")]
    Again(#[from] tracing_subscriber::util::TryInitError),
}

/// Verbosity relative to warnings and errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbosity(i32);

impl Verbosity {
    /// Returns a verbosity `more` steps higher and `less` steps lower than the default.
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

/// Destination of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard error.
    StandardError,
    /// Standard error, and the system log once [`daemon::leave_terminal`](crate::daemon::leave_terminal) has
    /// redirected standard error to a file.
    Background,
}

/// Starts logging. `directives` (`info`, or `warn,tombolo_host=debug`) override `verbosity`.
pub fn start(
    verbosity: Verbosity,
    directives: Option<&str>,
    destination: Destination,
) -> Result<(), LogError> {
    let filter = filter(verbosity, directives)?;
    let in_background = destination == Destination::Background;
    // No colours in files; a background process's terminal is replaced by a file later.
    let colours = io::stderr().is_terminal() && !in_background;
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(colours);
    let system = in_background.then(|| syslog_layer(Path::new(syslog::PLACE)).ok()).flatten();
    tracing_subscriber::registry().with(filter).with(lines).with(system).try_init()?;
    Ok(())
}

/// Creates the system log's layer, without time and level, which the system log adds.
pub(crate) fn syslog_layer<S>(place: &Path) -> io::Result<impl Layer<S> + use<S>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let syslog = Syslog::new(place)?;
    Ok(fmt::layer().with_writer(syslog).with_ansi(false).without_time().with_level(false))
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
        assert!(by_name.would_enable("tombolo_host_service::control", &Level::DEBUG));
        assert!(!by_name.would_enable("tombolo_layer", &Level::INFO));
        assert!(filter(Verbosity::default(), Some("a=b=c")).is_err());
    }
}

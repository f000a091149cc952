//! `tombolo top`: live operation counters of servers.

mod keys;
mod screen;
mod source;
mod view;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::failure::{Failure, OrCannot, Outcome};
use screen::{Screen, ScreenAction};
use source::Source;

/// Show the operations of running servers: their number and latency.
///
/// On a terminal, q quits, and the arrow keys, Page Up and Page Down scroll. Otherwise tables are printed one
/// after the other. Latency is measured by the server, from the decoded request to its reply.
///
/// `total s` (time spent), `count`, `errors` and `MB` are totals since the server's start. `per second` and
/// the latencies (mean, median, 99th percentile) are those since the last update; with --once, since the
/// start.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Control sockets (by default all in this user's default directory).
    socket: Vec<PathBuf>,
    /// Print totals since the servers' start, and exit.
    #[arg(long)]
    once: bool,
    /// Print JSON, one value per line.
    #[arg(long)]
    json: bool,
    /// Update interval in seconds.
    #[arg(short = 'n', long, default_value = "1", value_name = "SECONDS", value_parser = interval)]
    interval: Duration,
}

const EXAMPLES: &str = "\
Examples:
  tombolo top
  tombolo top --once --json | jq '.servers[].exports[].name'";

impl TopArgs {
    /// Shows the counters until the user quits or the last server ends.
    pub fn run(&self) -> Outcome {
        let mut sources = source::connect(&self.socket)?;
        let live = !self.once && !self.json && io::stdout().is_terminal();
        let mut screen = Screen::new(live).or_cannot("use the terminal")?;
        loop {
            let text = self.sample(&mut sources)?;
            match screen.show(&text) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                shown => shown.or_cannot("print the counters")?,
            }
            if self.once {
                return Ok(());
            }
            match screen.wait(self.interval, &text) {
                Ok(ScreenAction::GoOn) => {}
                Ok(ScreenAction::Quit) => return Ok(()),
                Err(error) => return Err(Failure::cannot("use the terminal", &error)),
            }
        }
    }

    /// Queries all servers. Servers that have ended are dropped; fails after the last one.
    fn sample(&self, sources: &mut Vec<Source>) -> Result<String, Failure> {
        let mut samples = Vec::with_capacity(sources.len());
        let mut last_failure = None;
        sources.retain_mut(|source| match source.sample() {
            Ok(sample) => {
                samples.push(sample);
                true
            }
            Err(failure) => {
                last_failure = Some(failure);
                false
            }
        });
        if let (true, Some(failure)) = (samples.is_empty(), last_failure) {
            return Err(failure);
        }
        Ok(if self.json { view::as_json(&samples) } else { view::as_tables(&samples) })
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.1 to 3600".into())
}

/// Prints text at once; fails if the reader has closed its end.
fn print(out: &mut impl Write, text: &str) -> io::Result<()> {
    writeln!(out, "{text}")?;
    out.flush()
}

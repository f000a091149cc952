//! `tombolo session`: how far changes have come that a proxy keeps back.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::json;
use tombolo_host_service::control::{self, Client};

use crate::commands::files::shown::short_size;
use crate::failure::{Failure, Outcome};
use crate::service::counters::{Counters, WriteBackState};
use crate::service::status::ask;

/// See and steer how changes get to the origin of a proxy with --mode write-back.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SessionArgs {
    #[command(subcommand)]
    action: Action,
    /// The proxy's control socket (by default that of the only one that runs).
    #[arg(long, value_name = "SOCKET", global = true)]
    control: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Action {
    /// Show how far changes have come.
    Show {
        /// As one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Have all changes brought to the origin, and wait for that.
    Flush,
    /// The same, and have the origin asked anew for all that is cached.
    Invalidate,
    /// Wait until all that was changed before is on the local disk, or at the origin.
    Wait {
        /// For the local disk.
        #[arg(long, conflicts_with = "remote")]
        local: bool,
        /// For the origin, which is the default.
        #[arg(long)]
        remote: bool,
        /// Fail after so long.
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u32>,
    },
}

const EXAMPLES: &str = "\
Examples:
  tombolo session show
  tombolo session wait --local
  tombolo session flush --control /run/tombolo/src.sock";

type States = BTreeMap<String, WriteBackState>;

/// A wait looks so often.
const PAUSE: Duration = Duration::from_millis(20);

impl SessionArgs {
    pub fn run(&self) -> Outcome {
        let mut proxy = Proxy::find(self.control.clone())?;
        match &self.action {
            Action::Show { json } => proxy.show(*json),
            Action::Flush => proxy.flush("flush"),
            Action::Invalidate => proxy.flush("invalidate"),
            Action::Wait { local, timeout, .. } => {
                proxy.wait(*local, timeout.map(|seconds| Duration::from_secs(seconds.into())))
            }
        }
    }
}

/// A running proxy that keeps changes back.
struct Proxy {
    socket: PathBuf,
    client: Client,
}

impl Proxy {
    fn find(socket: Option<PathBuf>) -> Result<Self, Failure> {
        let finding = "find a proxy with --mode write-back";
        let remedy = "name its control socket with --control";
        let is_named = socket.is_some();
        let sockets = match socket {
            Some(socket) => vec![socket],
            None => control::sockets(&control::default_directory())
                .map_err(|error| Failure::cannot(finding, &error).remedy(remedy))?,
        };
        let mut found = Vec::new();
        for socket in sockets {
            match Client::connect(&socket) {
                Ok(client) => found.push(Self { socket, client }),
                Err(error) if is_named => {
                    return Err(Failure::cannot(
                        format_args!("ask the server at {}", socket.display()),
                        &error,
                    ));
                }
                Err(_) => {}
            }
        }
        let mut keeping = Vec::new();
        for mut proxy in found {
            if !proxy.states()?.is_empty() {
                keeping.push(proxy);
            }
        }
        match (keeping.pop(), keeping.is_empty()) {
            (Some(proxy), true) => Ok(proxy),
            (Some(_), false) => Err(Failure::cannot(finding, "several run").remedy(remedy)),
            (None, _) if is_named => Err(Failure::cannot(finding, "that one keeps no changes back")),
            (None, _) => Err(Failure::cannot(finding, "none runs").remedy(remedy)),
        }
    }

    fn states(&mut self) -> Result<States, Failure> {
        ask::<Counters>(&mut self.client, &self.socket, "stats").map(|counters| counters.write_backs)
    }

    fn show(&mut self, is_json: bool) -> Outcome {
        let states = self.states()?;
        let text = match is_json {
            true => json!(states).to_string(),
            false => states.iter().map(|(name, state)| words(name, state)).collect::<Vec<_>>().join("\n"),
        };
        writeln!(io::stdout(), "{text}").map_err(|error| Failure::cannot("write", &error))
    }

    fn flush(&mut self, request: &str) -> Outcome {
        let states: States = ask(&mut self.client, &self.socket, request)?;
        match states.iter().find_map(|(name, state)| Some((name, state, state.failure.as_ref()?))) {
            None => Ok(()),
            Some((name, state, failure)) => {
                let flushing = format!("bring all changes of {name} to the origin");
                let left = format!("{} are kept and tried again", short_size(state.dirty_bytes));
                Err(Failure::cannot(flushing, failure.clone()).remedy(left))
            }
        }
    }

    fn wait(&mut self, is_local: bool, timeout: Option<Duration>) -> Outcome {
        let (begun, wanted) = (Instant::now(), self.states()?);
        let reached = |now: &WriteBackState| if is_local { now.on_disk } else { now.at_origin };
        let has_come = |now: &States| {
            wanted.iter().all(|(name, then)| now.get(name).is_some_and(|now| reached(now) >= then.change))
        };
        while !has_come(&self.states()?) {
            if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                let place = if is_local { "the local disk" } else { "the origin" };
                return Err(Failure::cannot(format_args!("wait until {place} has all changes"), "timed out"));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

fn words(name: &str, state: &WriteBackState) -> String {
    let failure = state.failure.as_ref().map(|failure| format!("\nfailure    {failure}"));
    format!(
        "export     {name}\nchange     {}\non disk    {}\nat origin  {}\nto go      {} in {} files and names\n\
         oldest     {:.0} s\nconflicts  {}\ntorn       {}{}",
        state.change,
        state.on_disk,
        state.at_origin,
        short_size(state.dirty_bytes),
        state.dirty_nodes,
        state.oldest_ns as f64 / 1e9,
        state.conflicts,
        state.torn,
        failure.unwrap_or_default(),
    )
}

//! `tombolo session`: the sessions of a proxy, and how far changes have come that it keeps back.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::json;
use tombolo_host_service::control::{self, AskError, Client, Start};

use crate::assembly::options::session::SessionOptions;
use crate::commands::files::shown::short_size;
use crate::failure::{Failure, Outcome};
use crate::service::counters::{Counters, WriteBackState};
use crate::service::sessions::{SessionState, SessionStatus};
use crate::service::status::{EndpointStatus, ask};

/// Have a running proxy serve more trees, and see and steer how changes get to their origins.
///
/// What the proxy was started for is its session `default`. Each other one has its own origin, options, front
/// ends and part of the cache directory; they come back when the proxy is started again.
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
    /// Have the proxy serve one more tree, with the options of `tombolo proxy`.
    Create(Box<SessionOptions>),
    /// Show all sessions.
    List {
        /// As one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// End a session: when its origin has everything, or saying what it lacks, which is kept for the proxy's
    /// next start.
    Detach {
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Show how far changes have come.
    Show {
        #[command(flatten)]
        of: Of,
        /// As one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Have all changes brought to the origin, and wait for that.
    Flush(Of),
    /// The same, and have the origin asked anew for all that is cached.
    Invalidate(Of),
    /// Wait until all that was changed before is on the local disk, or at the origin.
    Wait {
        #[command(flatten)]
        of: Of,
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

/// Which sessions are meant.
#[derive(Args)]
struct Of {
    /// Of this session only.
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo session create lib nfs://far.example/lib --contract exclusive --mode write-back --fuse /mnt/lib
  tombolo session list
  tombolo session wait lib --local
  tombolo session detach lib
  tombolo session flush --control /run/tombolo/src.sock";

type States = BTreeMap<String, WriteBackState>;

/// A wait looks so often.
const PAUSE: Duration = Duration::from_millis(20);

impl SessionArgs {
    pub fn run(&self) -> Outcome {
        let find = |wanted| Proxy::find(self.control.clone(), wanted);
        match &self.action {
            Action::Create(options) => {
                options.check()?;
                find(Wanted::Sessions)?.create(options.name.as_str())
            }
            Action::List { json } => find(Wanted::Sessions)?.list(*json),
            Action::Detach { name } => find(Wanted::Sessions)?.detach(name),
            Action::Show { of, json } => find(Wanted::KeptBack)?.show(of.name.as_deref(), *json),
            Action::Flush(of) => find(Wanted::KeptBack)?.flush("flush", of.name.as_deref()),
            Action::Invalidate(of) => find(Wanted::KeptBack)?.flush("invalidate", of.name.as_deref()),
            Action::Wait { of, local, timeout, .. } => {
                let timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
                find(Wanted::KeptBack)?.wait(of.name.as_deref(), *local, timeout)
            }
        }
    }
}

/// What a server must have to be the one that is meant.
#[derive(Clone, Copy)]
enum Wanted {
    /// Sessions: it is a proxy.
    Sessions,
    /// Changes that it keeps back.
    KeptBack,
}

/// The words behind `create`, which a control socket may be called too.
fn behind_create(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = true;
    words
        .skip_while(move |word| {
            // The first one is the program.
            let is_create = !is_value && word == "create";
            is_value = !is_value && word == "--control";
            !is_create
        })
        .skip(1)
}

/// A running proxy.
struct Proxy {
    socket: PathBuf,
    client: Client,
}

impl Proxy {
    fn find(socket: Option<PathBuf>, wanted: Wanted) -> Result<Self, Failure> {
        let (finding, lacks) = match wanted {
            Wanted::Sessions => ("find a proxy", "that server is no proxy"),
            Wanted::KeptBack => ("find a proxy with --mode write-back", "that one keeps no changes back"),
        };
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
                    let asking = format!("ask the server at {}", socket.display());
                    return Err(Failure::cannot(asking, &error));
                }
                Err(_) => {}
            }
        }
        let mut meant = Vec::new();
        for mut proxy in found {
            if proxy.has(wanted)? {
                meant.push(proxy);
            }
        }
        match (meant.pop(), meant.is_empty()) {
            (Some(proxy), true) => Ok(proxy),
            (Some(_), false) => Err(Failure::cannot(finding, "several run").remedy(remedy)),
            (None, _) if is_named => Err(Failure::cannot(finding, lacks)),
            (None, _) => Err(Failure::cannot(finding, "none runs").remedy(remedy)),
        }
    }

    fn has(&mut self, wanted: Wanted) -> Result<bool, Failure> {
        match wanted {
            Wanted::Sessions => Ok(self.client.ask("sessions").is_ok()),
            Wanted::KeptBack => Ok(!self.states(None)?.is_empty()),
        }
    }

    fn sessions(&mut self) -> Result<Vec<SessionStatus>, Failure> {
        ask(&mut self.client, &self.socket, "sessions")
    }

    fn session(&mut self, name: &str) -> Result<Option<SessionStatus>, Failure> {
        Ok(self.sessions()?.into_iter().find(|session| session.name == name))
    }

    /// What becomes of a session that is being made, or ended; nothing if it is gone.
    fn outcome(&mut self, name: &str) -> Result<Option<SessionStatus>, Failure> {
        loop {
            match self.session(name)? {
                Some(SessionStatus { state: SessionState::Starting | SessionState::Ending, .. }) => {
                    thread::sleep(PAUSE);
                }
                session => return Ok(session),
            }
        }
    }

    fn create(&mut self, name: &str) -> Outcome {
        // The proxy reads the words itself: it has to know them at its next start too.
        let words = behind_create(env::args_os());
        let command = words
            .map(OsString::into_string)
            .collect::<Result<_, _>>()
            .map_err(|word| Failure::usage(format!("{}: only words in UTF-8 can be kept", word.display())))?;
        let directory =
            env::current_dir().map_err(|error| Failure::cannot("find the directory that this is", &error))?;
        let asked = self.client.start_session(name, Start { command, directory });
        asked.map_err(|error| self.refused(error))?;
        let Some(session) = self.outcome(name)? else {
            return Err(Failure::told(format!("the session {name} has ended")));
        };
        if session.state != SessionState::Running {
            // Of one that cannot be made nothing stays, but for what an earlier one has kept.
            let _ = self.client.ask_session("session-detach", name);
            let failure = Failure::told(session.failure.unwrap_or_default());
            return Err(failure.remedy("no session was made: try again when that is mended"));
        }
        say(&ways(&session, "ready ").join("\n"))
    }

    fn list(&mut self, is_json: bool) -> Outcome {
        let sessions = self.sessions()?;
        if is_json {
            return say(&json!(sessions).to_string());
        }
        let lines = sessions.iter().flat_map(|session| {
            let SessionStatus { name, state, source, mode, contract, failure, .. } = session;
            let promises =
                if mode.is_empty() { String::new() } else { format!(" mode={mode} contract={contract}") };
            let first = format!("{name} {state} {source}{promises}");
            let failure = failure.iter().map(|failure| format!("  {failure}"));
            std::iter::once(first).chain(ways(session, "  ")).chain(failure).collect::<Vec<_>>()
        });
        say(&lines.collect::<Vec<_>>().join("\n"))
    }

    fn detach(&mut self, name: &str) -> Outcome {
        self.client.ask_session("session-detach", name).map_err(|error| self.refused(error))?;
        match self.outcome(name)?.and_then(|session| session.failure) {
            Some(failure) => Err(Failure::told(failure)),
            None => Ok(()),
        }
    }

    /// The proxy's words if it has refused something; otherwise what is wrong with asking it.
    fn refused(&self, error: AskError) -> Failure {
        match error {
            AskError::Refused { reason } => Failure::told(reason),
            error => Failure::cannot(format_args!("ask the proxy at {}", self.socket.display()), &error),
        }
    }

    /// Of one session, or of all.
    fn states(&mut self, session: Option<&str>) -> Result<States, Failure> {
        let mut states = ask::<Counters>(&mut self.client, &self.socket, "stats")?.write_backs;
        if let Some(name) = session {
            let Some(session) = self.session(name)? else {
                let problem = "there is none of that name";
                return Err(Failure::cannot(format_args!("find the session {name}"), problem)
                    .remedy("see tombolo session list"));
            };
            states.retain(|export, _| *export == session.export);
            if states.is_empty() {
                let problem = format!("it is {}, with the mode {}", session.state, session.mode);
                return Err(Failure::cannot(format_args!("see what the session {name} keeps back"), problem));
            }
        }
        Ok(states)
    }

    fn show(&mut self, session: Option<&str>, is_json: bool) -> Outcome {
        let states = self.states(session)?;
        say(&match is_json {
            true => json!(states).to_string(),
            false => states.iter().map(|(name, state)| words(name, state)).collect::<Vec<_>>().join("\n"),
        })
    }

    /// The proxy does not let us wait: we look until each flush is over.
    fn flush(&mut self, request: &str, session: Option<&str>) -> Outcome {
        let asked = match session {
            Some(session) => self.client.ask_session(request, session),
            None => self.client.ask(request),
        };
        let before = asked.map_err(|error| self.refused(error))?;
        let before: States = serde_json::from_value(before)
            .map_err(|error| Failure::cannot(format_args!("read the answer to {request}"), &error))?;
        for (name, before) in &before {
            let flushing = format!("bring all changes of {name} to the origin");
            let now = loop {
                match self.states(None)?.remove(name) {
                    None => return Err(Failure::cannot(flushing, "its session has ended")),
                    Some(now) if before.is_settled(&now) => break now,
                    Some(_) => thread::sleep(PAUSE),
                }
            };
            if let Some(failure) = before.refusal(&now) {
                let left = format!("{} are kept and tried again", short_size(now.dirty_bytes));
                return Err(Failure::cannot(flushing, failure.to_owned()).remedy(left));
            }
        }
        Ok(())
    }

    fn wait(&mut self, session: Option<&str>, is_local: bool, timeout: Option<Duration>) -> Outcome {
        let (begun, wanted) = (Instant::now(), self.states(session)?);
        let reached = |now: &WriteBackState| if is_local { now.on_disk } else { now.at_origin };
        let has_come = |now: &States| {
            wanted.iter().all(|(name, then)| now.get(name).is_some_and(|now| reached(now) >= then.change))
        };
        loop {
            let now = self.states(session)?;
            let refusals = wanted.iter().filter_map(|(name, then)| then.lasting_refusal(now.get(name)?));
            if let Some(refusal) = refusals.filter(|_| !is_local).map(str::to_owned).next() {
                return Err(Failure::cannot("wait until the origin has all changes", refusal).remedy(
                    "see tombolo session show; once the origin allows it, tombolo session flush tries again",
                ));
            }
            if has_come(&now) {
                return Ok(());
            }
            if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                let place = if is_local { "the local disk" } else { "the origin" };
                return Err(Failure::cannot(format_args!("wait until {place} has all changes"), "timed out"));
            }
            thread::sleep(PAUSE);
        }
    }
}

fn say(text: &str) -> Outcome {
    writeln!(io::stdout(), "{text}").map_err(|error| Failure::cannot("write", &error))
}

/// How one gets at a session, a line each.
fn ways(session: &SessionStatus, begin: &str) -> Vec<String> {
    let line = |way: &EndpointStatus| format!("{begin}{} {} export={}", way.kind, way.at, way.export);
    session.endpoints.iter().map(line).collect()
}

fn words(name: &str, state: &WriteBackState) -> String {
    let failure = state.failure.as_ref().map(|failure| format!("\nfailure    {failure}"));
    format!(
        "export     {name}\nchange     {}\non disk    {}\nat origin  {}\nto go      {} in {} files and names\n\
         oldest     {:.0} s\nconflicts  {}\ntorn       {}\nrefused    {}{}",
        state.change,
        state.on_disk,
        state.at_origin,
        short_size(state.dirty_bytes),
        state.dirty_nodes,
        state.oldest_ns as f64 / 1e9,
        state.conflicts,
        state.torn,
        state.refused,
        failure.unwrap_or_default(),
    )
}

//! `tombolo session`: sessions of a proxy, and the progress of their changes.

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
use crate::failure::{Failure, OrCannot, Outcome};
use crate::service::counters::{Counters, WriteBackState};
use crate::service::sessions::{SessionState, SessionStatus};
use crate::service::status::{EndpointStatus, ask};

/// Add trees to a running proxy, and control the sending of changes.
///
/// The tree that the proxy was started with is its session `default`. Every other session has its own origin,
/// options, front ends and part of the cache directory, and is restored when the proxy is started again.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SessionArgs {
    #[command(subcommand)]
    action: Action,
    /// Control socket of the proxy (by default the only suitable one in $XDG_RUNTIME_DIR/tombolo, in
    /// /run/tombolo for root, otherwise in /tmp/tombolo-UID).
    #[arg(long, value_name = "SOCKET", global = true)]
    control: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Action {
    /// Serve another tree, with the options of `tombolo proxy` except those that exist once per proxy.
    Create(Box<SessionOptions>),
    /// List all sessions.
    ///
    /// States: starting; running; waiting (restored at the proxy's start, and retried); ending (detached,
    /// sends its changes); kept (detached with unsent changes, restored at the proxy's next start); ended
    /// (detached, see `tombolo session detach --help`); failed (could not be created).
    List {
        /// Print one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// End a session once its origin has all changes.
    ///
    /// Ends its front ends, and then sends the changes. If the origin has them all, the proxy forgets the
    /// session; its cache directory remains. Otherwise the command fails: the session serves nothing, is
    /// listed as `kept`, and retains the unsent changes until it is created again, or restored at the proxy's
    /// next start. The command also fails if the origin has some files in two versions (NAME.conflict-…); the
    /// session is then listed as `ended`, and is not restored.
    Detach {
        /// Session to end.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Show the progress of changes to the origin, and the refused ones.
    ///
    /// Changes are numbered: `change` is the last one, `on disk` and `at origin` the last that the local disk
    /// and the origin have. `to go`: the number of unsent changes; `oldest`: the age of the oldest, in
    /// seconds; `conflicts`: versions of others at the origin, kept next to ours; `torn`: blocks that were
    /// being overwritten at an unclean end; `refused`: files and directories with changes that the origin
    /// refuses.
    Show {
        #[command(flatten)]
        of: Of,
        /// Print one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Send all changes to the origin, and wait for completion.
    ///
    /// Waits as long as the origin does not answer (with `soft` in its URL until that gives up), and fails if
    /// it refuses changes.
    Flush(Of),
    /// Send all changes to the origin, then revalidate everything cached.
    Invalidate(Of),
    /// Wait until all earlier changes are on the local disk or at the origin.
    Wait {
        #[command(flatten)]
        of: Of,
        /// Wait for the local disk.
        #[arg(long, conflicts_with = "remote")]
        local: bool,
        /// Wait for the origin (the default).
        #[arg(long)]
        remote: bool,
        /// Fail after this time (by default wait for ever).
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u32>,
    },
}

/// Selection of sessions.
#[derive(Args)]
struct Of {
    /// Session (by default all).
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

/// Polling interval while waiting.
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
            Action::Show { of, json } => find(Wanted::WriteBack)?.show(of.name.as_deref(), *json),
            Action::Flush(of) => find(Wanted::WriteBack)?.flush("flush", of.name.as_deref()),
            Action::Invalidate(of) => find(Wanted::WriteBack)?.flush("invalidate", of.name.as_deref()),
            Action::Wait { of, local, timeout, .. } => {
                let timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
                find(Wanted::WriteBack)?.wait(of.name.as_deref(), *local, timeout)
            }
        }
    }
}

/// Requirement for a server to be selected.
#[derive(Clone, Copy)]
enum Wanted {
    /// Sessions: the server is a proxy.
    Sessions,
    /// Write-back: the server has a session in that mode.
    WriteBack,
}

/// Returns the words of the command line after the command `create`, and not after a control socket named so.
fn behind_create(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = true;
    words
        .skip_while(move |word| {
            // The first word is the program's name, which may be `create` too.
            let is_create = !is_value && word == "create";
            is_value = !is_value && word == "--control";
            !is_create
        })
        .skip(1)
}

/// Connection to the control socket of a running proxy.
struct Proxy {
    socket: PathBuf,
    client: Client,
}

impl Proxy {
    fn find(socket: Option<PathBuf>, wanted: Wanted) -> Result<Self, Failure> {
        let (finding, lacks) = match wanted {
            Wanted::Sessions => ("find a proxy", "the server is not a proxy"),
            Wanted::WriteBack => ("find a proxy with --mode write-back", "it has no write-back session"),
        };
        let remedy = "name its control socket with --control";
        let is_named = socket.is_some();
        let sockets = match socket {
            Some(socket) => vec![socket],
            None => control::sockets(&control::default_directory())
                .or_cannot(finding)
                .map_err(|failure| failure.remedy(remedy))?,
        };
        let mut candidates = Vec::new();
        for socket in sockets {
            let client = match Client::connect(&socket) {
                Ok(client) => client,
                Err(_) if !is_named => continue,
                failed => failed.or_cannot(format_args!("query the server at {}", socket.display()))?,
            };
            let mut proxy = Self { socket, client };
            if proxy.has(wanted)? {
                candidates.push(proxy);
            }
        }
        match (candidates.pop(), candidates.is_empty()) {
            (Some(proxy), true) => Ok(proxy),
            (Some(_), false) => Err(Failure::cannot(finding, "several are running").remedy(remedy)),
            (None, _) if is_named => Err(Failure::cannot(finding, lacks)),
            (None, _) => {
                let finding = format!("{finding} in {}", control::default_directory().display());
                Err(Failure::cannot(finding, "none is running").remedy(remedy))
            }
        }
    }

    fn has(&mut self, wanted: Wanted) -> Result<bool, Failure> {
        match wanted {
            Wanted::Sessions => Ok(self.client.ask("sessions").is_ok()),
            Wanted::WriteBack => Ok(!self.states(None)?.is_empty()),
        }
    }

    fn sessions(&mut self) -> Result<Vec<SessionStatus>, Failure> {
        ask(&mut self.client, &self.socket, "sessions")
    }

    fn session(&mut self, name: &str) -> Result<Option<SessionStatus>, Failure> {
        Ok(self.sessions()?.into_iter().find(|session| session.name == name))
    }

    /// Waits until the session is started or has ended; `None` if it is gone.
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
        // The proxy parses the words itself, because it needs them at its next start too.
        let words = behind_create(env::args_os());
        let command = words
            .map(OsString::into_string)
            .collect::<Result<_, _>>()
            .map_err(|word| Failure::usage(format!("{}: arguments must be UTF-8", word.display())))?;
        let directory = env::current_dir().or_cannot("determine the current directory")?;
        let asked = self.client.start_session(name, Start { command, directory });
        asked.map_err(|error| self.refused(error))?;
        let Some(session) = self.outcome(name)? else {
            return Err(Failure::told(format!("the session {name} has ended")));
        };
        if session.state != SessionState::Running {
            // A failed session is removed, except for changes kept from an earlier one.
            let _ = self.client.ask_session("session-detach", name);
            let failure = Failure::told(session.failure.unwrap_or_default());
            return Err(failure.remedy("the session was not created; fix the problem and try again"));
        }
        say(&endpoint_lines(&session, "ready ").join("\n"))
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
            std::iter::once(first).chain(endpoint_lines(session, "  ")).chain(failure).collect::<Vec<_>>()
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

    /// Returns the reason of a refusal as the proxy gave it, or the failure of the request.
    fn refused(&self, error: AskError) -> Failure {
        match error {
            AskError::Refused { reason } => Failure::told(reason),
            error => Failure::cannot(format_args!("query the proxy at {}", self.socket.display()), &error),
        }
    }

    /// Returns the write-back state of one session, or of all, by export.
    fn states(&mut self, session: Option<&str>) -> Result<States, Failure> {
        let mut states = ask::<Counters>(&mut self.client, &self.socket, "stats")?.write_backs;
        if let Some(name) = session {
            let Some(session) = self.session(name)? else {
                let problem = "no session has that name";
                return Err(Failure::cannot(format_args!("find the session {name}"), problem)
                    .remedy("see tombolo session list"));
            };
            states.retain(|export, _| *export == session.export);
            if states.is_empty() {
                let problem = format!("it is {}, in mode {}", session.state, session.mode);
                return Err(Failure::cannot(format_args!("show unsent changes of session {name}"), problem));
            }
        }
        Ok(states)
    }

    fn show(&mut self, session: Option<&str>, is_json: bool) -> Outcome {
        let states = self.states(session)?;
        say(&match is_json {
            true => json!(states).to_string(),
            false => {
                states.iter().map(|(name, state)| progress_text(name, state)).collect::<Vec<_>>().join("\n")
            }
        })
    }

    /// Flushes and polls until each flush has completed; the proxy has no blocking request for it.
    fn flush(&mut self, request: &str, session: Option<&str>) -> Outcome {
        let asked = match session {
            Some(session) => self.client.ask_session(request, session),
            None => self.client.ask(request),
        };
        let before = asked.map_err(|error| self.refused(error))?;
        let before: States =
            serde_json::from_value(before).or_cannot(format_args!("read the reply to {request}"))?;
        for (name, before) in &before {
            let flushing = format!("send all changes of {name} to the origin");
            let now = loop {
                match self.states(None)?.remove(name) {
                    None => return Err(Failure::cannot(flushing, "its session has ended")),
                    Some(now) if before.is_settled(&now) => break now,
                    Some(_) => thread::sleep(PAUSE),
                }
            };
            if let Some(failure) = before.refusal(&now) {
                let left = "unsent changes are kept and will be retried; see tombolo session show";
                return Err(Failure::cannot(flushing, failure.to_owned()).remedy(left));
            }
        }
        Ok(())
    }

    fn wait(&mut self, session: Option<&str>, is_local: bool, timeout: Option<Duration>) -> Outcome {
        let (begun, wanted) = (Instant::now(), self.states(session)?);
        let reached = |now: &WriteBackState| if is_local { now.on_disk } else { now.at_origin };
        let is_reached = |now: &States| {
            wanted.iter().all(|(name, then)| now.get(name).is_some_and(|now| reached(now) >= then.change))
        };
        loop {
            let now = self.states(session)?;
            let refusals = wanted.iter().filter_map(|(name, then)| then.lasting_refusal(now.get(name)?));
            if let Some(refusal) = refusals.filter(|_| !is_local).map(str::to_owned).next() {
                return Err(Failure::cannot("wait for the origin to have all changes", refusal).remedy(
                    "see tombolo session show; once the origin permits them, retry with tombolo session flush",
                ));
            }
            if is_reached(&now) {
                return Ok(());
            }
            if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                let place = if is_local { "the local disk" } else { "the origin" };
                return Err(Failure::cannot(
                    format_args!("wait for {place} to have all changes"),
                    "timed out",
                ));
            }
            thread::sleep(PAUSE);
        }
    }
}

fn say(text: &str) -> Outcome {
    writeln!(io::stdout(), "{text}").or_cannot("write")
}

/// Returns the endpoints of a session, one line each.
fn endpoint_lines(session: &SessionStatus, begin: &str) -> Vec<String> {
    let line = |way: &EndpointStatus| format!("{begin}{} {} export={}", way.kind, way.at, way.export);
    session.endpoints.iter().map(line).collect()
}

fn progress_text(name: &str, state: &WriteBackState) -> String {
    let WriteBackState { change, on_disk, at_origin, dirty_nodes, conflicts, torn, refused, .. } = state;
    let (to_go, oldest_s) = (short_size(state.dirty_bytes), state.oldest_ns as f64 / 1e9);
    let failure = state.failure.as_ref().map(|failure| format!("\nfailure    {failure}"));
    format!(
        "export     {name}\nchange     {change}\non disk    {on_disk}\nat origin  {at_origin}\n\
         to go      {to_go} in {dirty_nodes} files and names\noldest     {oldest_s:.0} s\n\
         conflicts  {conflicts}\ntorn       {torn}\nrefused    {refused}{}",
        failure.unwrap_or_default(),
    )
}

//! `tombolo keys`: signing keys of NFS file handles, and TLS certificates.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use tombolo_host_runtime::signing_keys::{KeyId, Keys};
use tombolo_host_service::handle_keys::{self, HandleKeysError};
use tombolo_host_service::state_dir::{SOURCE, ServerFiles, StateDir, StateError};

use crate::assembly::servers::state::state_path;
use crate::commands::files::shown;
use crate::commands::keys_of_tls::TlsAction;
use crate::failure::{Failure, OrCannot, Outcome};

/// Manage keys of NFS file handles, and certificates of NFS and NBD over TLS.
///
/// Keys (list, rotate, retire) sign the handles: the newest one signs; older ones stay valid until they are
/// retired. A running server keeps the keys that it started with. The certificates (ca, issue, revoke,
/// issued) are those of your own authority; any other authority works as well.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KeysArgs {
    #[command(subcommand)]
    action: Action,
    /// For list, rotate and retire: state directory (by default $XDG_STATE_HOME/tombolo, for root
    /// /var/lib/tombolo).
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
    /// For list, rotate and retire: server, the name of its first export without the first slash (with - for
    /// the other slashes; root for `/`; with -2 and so on if servers of other trees share the name). Required
    /// only if there are several.
    #[arg(long, value_name = "NAME", global = true)]
    server: Option<String>,
}

#[derive(Subcommand)]
enum Action {
    #[command(flatten)]
    Tls(TlsAction),
    /// List the keys, the signing one first.
    List,
    /// Create a new key, which signs from the server's next start on.
    Rotate,
    /// Retire a key: handles signed with it are stale from the server's next start on.
    Retire {
        /// Key to retire.
        #[arg(value_name = "ID")]
        id: u8,
    },
}

const EXAMPLES: &str = "\
Examples:
  tombolo keys list
  tombolo keys rotate --server src
  tombolo keys retire 1 --server src
  tombolo keys ca
  tombolo keys issue server --host files.example --out /etc/tombolo/tls
  tombolo keys issue alice --days 30
  tombolo keys revoke alice";

impl KeysArgs {
    pub fn run(self) -> Outcome {
        if let Action::Tls(action) = self.action {
            return action.run();
        }
        let path = state_path(self.state.as_deref())?;
        let using = format!("use {}", path.display());
        if !path.is_dir() {
            return Err(
                Failure::cannot(using, "no such directory").remedy("use --state DIR to name the server's")
            );
        }
        let state = StateDir::open(&path).or_cannot(&using)?;
        let name = match self.server {
            Some(name) => name,
            None => only_server(&state, &path, &using)?,
        };
        if !path.join(&name).is_dir() {
            return Err(Failure::cannot(
                format_args!("find the server {name}"),
                "it has no state in this directory",
            ));
        }
        let files = state.files_of(&name).or_cannot(&using)?;
        let changed = !matches!(self.action, Action::List);
        let keys = match self.action {
            Action::List | Action::Tls(_) => handle_keys::read(&files),
            Action::Rotate => handle_keys::rotate(&files),
            Action::Retire { id } => handle_keys::retire(&files, KeyId(id)),
        };
        let keys = keys.or_cannot(format_args!("use the keys of {name}"))?;
        print(&keys).or_cannot("print")?;
        if changed && matches!(state.server(&name), Err(StateError::InUse { .. })) {
            tracing::warn!("{name} is running and keeps the keys that it started with");
        }
        Ok(())
    }
}

/// Returns the only server with keys; fails if there is none, or several.
fn only_server(state: &StateDir, path: &Path, using: &str) -> Result<String, Failure> {
    let mut with_keys = Vec::new();
    for name in state.servers().or_cannot(using)? {
        let files: ServerFiles = state.files_of(&name).or_cannot(using)?;
        if !matches!(handle_keys::read(&files), Err(HandleKeysError::None)) {
            with_keys.push(name);
        }
    }
    match with_keys.as_slice() {
        [name] => Ok(name.clone()),
        [] => Err(Failure::cannot(format_args!("find keys in {}", path.display()), &HandleKeysError::None)),
        names => {
            let described: Result<Vec<_>, _> = names.iter().map(|name| described(state, name)).collect();
            Err(Failure::usage("several servers have keys")
                .remedy(format_args!("select one with --server: {}", described.or_cannot(using)?.join(", "))))
        }
    }
}

/// Returns a server as `NAME (SOURCE)`, or as its name if the source is unknown.
fn described(state: &StateDir, name: &str) -> Result<String, StateError> {
    let source = state.files_of(name)?.read(SOURCE)?.unwrap_or_default();
    Ok(match source.trim_ascii_end() {
        b"" => name.to_owned(),
        source => format!("{name} ({})", shown::name(source)),
    })
}

fn print(keys: &Keys) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (index, KeyId(id)) in keys.ids().enumerate() {
        writeln!(out, "{id}  {}", if index == 0 { "signs" } else { "good" })?;
    }
    for KeyId(id) in keys.retired() {
        writeln!(out, "{id}  retired")?;
    }
    out.flush()
}

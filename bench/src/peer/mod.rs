//! Measured programs: Tombolo and its peers. Each is a process, which ends when its [`Server`] is dropped.

mod mount;
mod nfs;
mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;

pub use mount::{Mount, Requests};
pub use nfs::{Nfs, free_port};
pub use server::{AtSocket, Server, completed};

use crate::error::{Doing, Error, Result};

/// The program under test: the one that the environment variable of this name in capitals names, or else the
/// one in the directory of this executable.
pub const TOMBOLO: &str = "tombolo";
/// Peers, by their names in `bench/peers/peers.toml`.
pub const VIRTIOFSD: &str = "virtiofsd";
pub const PASSTHROUGH_LL: &str = "passthrough_ll";
pub const GANESHA: &str = "nfs-ganesha";
pub const RPCBIND: &str = "rpcbind";
pub const LIBNFS: &str = "libnfs";
pub const RSYNC: &str = "rsync";
pub const SSHFS: &str = "sshfs";
pub const RCLONE: &str = "rclone";
pub const STORAGE_DAEMON: &str = "qemu-storage-daemon";
pub const NBDKIT: &str = "nbdkit";

/// List of programs and servers, `bench/peers/peers.toml`.
#[derive(Debug, Deserialize)]
struct Peers {
    programs: BTreeMap<String, Known>,
    /// Command lines of servers by protocol and program.
    #[serde(flatten)]
    servers: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

/// A listed program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// Name of the file, if another.
    file: Option<String>,
    /// Way to install it.
    hint: String,
}

/// Returns the list of programs and servers.
fn peers() -> &'static Peers {
    static PEERS: LazyLock<Peers> = LazyLock::new(|| {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/peers.toml"));
        toml::from_str(text).unwrap_or_else(|error| unreachable!("bench/peers/peers.toml: {error}"))
    });
    &PEERS
}

impl Peers {
    /// Returns the command line of a server, whose words are still to be filled in.
    fn command(&self, protocol: &str, program: &str) -> Result<&[String]> {
        let command = self.servers.get(protocol).and_then(|servers| servers.get(program));
        command.map(Vec::as_slice).ok_or_else(|| Error::Absent(format!("{program} serves no {protocol}")))
    }
}

/// Finds a program: for Tombolo the one in its variable or next to this program; for a peer the one built by
/// `bench/peers/setup` in this directory or a parent, or in the PATH.
pub fn find(program: &str) -> Result<PathBuf> {
    let known = peers().programs.get(program);
    let file = known.and_then(|known| known.file.as_deref()).unwrap_or(program);
    let found = match program {
        TOMBOLO => std::env::var_os("TOMBOLO").map(PathBuf::from).or_else(beside_this_program),
        _ => built(file).or_else(|| on_path(file)),
    };
    let hint = known.map_or("", |known| &known.hint);
    found.ok_or_else(|| Error::Absent(format!("{program} is not installed: {hint}")))
}

/// Returns this program, which reruns itself as servers and clients.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().doing(|| "find this program".to_owned())
}

fn beside_this_program() -> Option<PathBuf> {
    let this = this_program().ok()?;
    Some(this.with_file_name(TOMBOLO)).filter(|path| path.is_file())
}

fn built(name: &str) -> Option<PathBuf> {
    in_checkout(Path::new(".cache/peers/bin").join(name)).ok()
}

/// Returns a file of the source tree that contains this directory.
pub fn in_checkout(file: impl AsRef<Path>) -> Result<PathBuf> {
    let (file, here) = (file.as_ref(), std::env::current_dir().unwrap_or_default());
    let found = here.ancestors().map(|folder| folder.join(file)).find(|path| path.exists());
    found.ok_or_else(|| {
        let (file, here) = (file.display(), here.display());
        Error::Absent(format!(
            "{file} is neither in {here} nor in a parent directory: run in the source tree"
        ))
    })
}

/// Returns a program of the PATH, or a daemon, which may be outside of it.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_installation() {
        let hint = |program: &str| peers().programs.get(program).map(|known| known.hint.as_str());
        assert!(hint(VIRTIOFSD).is_some_and(|hint| hint.contains("virtiofsd --version 1.14.0")));
        assert!(peers().command("nbd", NBDKIT).is_ok());
        assert!(matches!(peers().command("nbd", RSYNC), Err(Error::Absent(_))));
        assert_eq!(on_path("no program has this name"), None);
    }
}

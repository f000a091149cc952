//! Location of programs, and hints for missing ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;

use super::at_socket::Protocol;
use crate::error::{Doing, Error, Result};

/// A measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The program under test: the one in [`TOMBOLO`], or else in the directory of this executable.
    Tombolo,
    /// virtio-fs server of the virtio-fs project.
    Virtiofsd,
    /// Fastest example of libfuse.
    PassthroughLl,
    /// nfs-ganesha, with its back end for local directories.
    Ganesha,
    /// Registry that nfs-ganesha requires.
    Rpcbind,
    /// Driver of libnfs's raw calls, see `bench/peers/libnfs-driver.c`.
    LibnfsDriver,
    /// libnfs's program that copies a file.
    NfsCp,
    /// Common program for copying trees over networks.
    Rsync,
    /// Common program for mounting remote trees, over SSH's file transfer protocol.
    Sshfs,
    /// Mount program with many protocols and a cache of whole files.
    Rclone,
    /// QEMU's server of disks in its own process.
    StorageDaemon,
    /// Common NBD server.
    Nbdkit,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Tombolo => "tombolo",
            Program::Virtiofsd => "virtiofsd",
            Program::PassthroughLl => "passthrough_ll",
            Program::Ganesha => "nfs-ganesha",
            Program::Rpcbind => "rpcbind",
            Program::LibnfsDriver => "libnfs",
            Program::NfsCp => "nfs-cp",
            Program::Rsync => "rsync",
            Program::Sshfs => "sshfs",
            Program::Rclone => "rclone",
            Program::StorageDaemon => "qemu-storage-daemon",
            Program::Nbdkit => "nbdkit",
        }
    }
}

/// List of programs and servers, `bench/peers/peers.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Peers {
    programs: BTreeMap<String, Known>,
    virtio_fs: BTreeMap<String, Vec<String>>,
    virtio_blk: BTreeMap<String, Vec<String>>,
    nbd: BTreeMap<String, Vec<String>>,
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

/// Returns the list.
pub(super) fn peers() -> &'static Peers {
    static PEERS: LazyLock<Peers> = LazyLock::new(|| {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/peers.toml"));
        toml::from_str(text).unwrap_or_else(|error| unreachable!("bench/peers/peers.toml: {error}"))
    });
    &PEERS
}

impl Peers {
    /// Returns the command line of a server, whose words are still to be filled in.
    pub fn command(&self, protocol: Protocol, program: Program) -> Result<&[String]> {
        let servers = match protocol {
            Protocol::VirtioFs => &self.virtio_fs,
            Protocol::VirtioBlk => &self.virtio_blk,
            Protocol::Nbd => &self.nbd,
        };
        let absent = || Error::Absent(format!("{} serves no {protocol:?}", program.name()));
        servers.get(program.name()).map(Vec::as_slice).ok_or_else(absent)
    }
}

/// Environment variable that names another build of Tombolo to measure.
pub const TOMBOLO: &str = "TOMBOLO";

/// Finds a program: for Tombolo the one in [`TOMBOLO`] or next to this program; for a peer the one built by
/// `bench/peers/setup` in this directory or a parent, or in the PATH.
pub fn find(program: Program) -> Result<PathBuf> {
    let name = program.name();
    let known = peers().programs.get(name);
    let file = known.and_then(|known| known.file.as_deref()).unwrap_or(name);
    let found = match program {
        Program::Tombolo => std::env::var_os(TOMBOLO).map(PathBuf::from).or_else(beside_this_program),
        _ => built(file).or_else(|| on_path(file)).or_else(|| for_root(file)),
    };
    let hint = known.map_or("", |known| &known.hint);
    found.ok_or_else(|| Error::Absent(format!("{name} is not installed: {hint}")))
}

/// Returns this program, which reruns itself as servers and clients.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().doing(|| "find this program".to_owned())
}

fn beside_this_program() -> Option<PathBuf> {
    let this = this_program().ok()?;
    Some(this.with_file_name(Program::Tombolo.name())).filter(|path| path.is_file())
}

fn built(name: &str) -> Option<PathBuf> {
    in_checkout(&Path::new(".cache/peers/bin").join(name)).ok()
}

/// Returns a file of the source tree that contains this directory.
pub fn in_checkout(file: &Path) -> Result<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let found = here.ancestors().map(|folder| folder.join(file)).find(|path| path.exists());
    found.ok_or_else(|| {
        let here = here.display();
        Error::Absent(format!(
            "{} is neither in {here} nor in a parent directory: run in the source tree",
            file.display()
        ))
    })
}

fn on_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns a daemon outside the PATH.
fn for_root(name: &str) -> Option<PathBuf> {
    Some(Path::new("/usr/sbin").join(name)).filter(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_installation() {
        let hint = |program: Program| peers().programs.get(program.name()).map(|known| known.hint.as_str());
        assert!(hint(Program::Virtiofsd).is_some_and(|hint| hint.contains("virtiofsd --version 1.14.0")));
        assert!(peers().command(Protocol::Nbd, Program::Nbdkit).is_ok());
        assert!(matches!(peers().command(Protocol::Nbd, Program::Rsync), Err(Error::Absent(_))));
        assert_eq!(on_path("no program has this name"), None);
    }
}

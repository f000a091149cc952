//! Location of programs, and hints for missing ones.

use std::path::{Path, PathBuf};

use crate::error::{Doing, Error, Result};

/// A measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The program under test, in the same directory as this one.
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

    fn file(self) -> &'static str {
        match self {
            Program::Ganesha => "ganesha.nfsd",
            Program::LibnfsDriver => "libnfs-driver",
            other => other.name(),
        }
    }

    fn how_to_install(self) -> &'static str {
        match self {
            Program::Tombolo => "run `make bench`, which builds it, or name it in TOMBOLO",
            Program::Virtiofsd => {
                "run `bench/peers/setup`, or `apt-get install libcap-ng-dev libseccomp-dev && \
                 cargo install --locked virtiofsd --version 1.14.0`"
            }
            Program::PassthroughLl => {
                "run `bench/peers/setup`, or `apt-get install libfuse3-dev fuse3` and \
                 `cc -O2 -o passthrough_ll /usr/share/doc/libfuse3-dev/examples/passthrough_ll.c \
                 $(pkg-config --cflags --libs fuse3)`, and put it on the PATH"
            }
            Program::Ganesha | Program::Rpcbind => {
                "run `bench/peers/setup`, or `apt-get install nfs-ganesha nfs-ganesha-vfs rpcbind`"
            }
            Program::NfsCp => "run `bench/peers/setup`, or `apt-get install libnfs-utils`",
            Program::Rsync => "run `bench/peers/setup`, or `apt-get install rsync`",
            Program::Sshfs => "run `bench/peers/setup`, or `apt-get install sshfs openssh-sftp-server`",
            Program::Rclone => "run `bench/peers/setup`, or `apt-get install rclone`",
            Program::StorageDaemon => "run `bench/peers/setup`, or `apt-get install qemu-system-common`",
            Program::Nbdkit => "run `bench/peers/setup`, or `apt-get install nbdkit`",
            Program::LibnfsDriver => {
                "run `bench/peers/setup`, or `apt-get install libnfs-dev` and \
                 `cc -O2 -o libnfs-driver bench/peers/libnfs-driver.c -lnfs`, and put it on the PATH"
            }
        }
    }
}

/// Environment variable that names another build of Tombolo to measure.
pub const TOMBOLO: &str = "TOMBOLO";

/// Finds a program: for Tombolo the one in [`TOMBOLO`] or next to this program; for a peer the one built by
/// `bench/peers/setup` in this directory or a parent, or in the PATH.
pub fn find(program: Program) -> Result<PathBuf> {
    let found = match program {
        Program::Tombolo => std::env::var_os(TOMBOLO).map(PathBuf::from).or_else(beside_this_program),
        other => built(other.file()).or_else(|| on_path(other.file())).or_else(|| for_root(other.file())),
    };
    let absent =
        || Error::Absent(format!("{} is not installed: {}", program.name(), program.how_to_install()));
    found.ok_or_else(absent)
}

/// Returns this program, which reruns itself as servers and clients.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().doing(|| "find this program".to_owned())
}

fn beside_this_program() -> Option<PathBuf> {
    let this = this_program().ok()?;
    Some(this.with_file_name(Program::Tombolo.file())).filter(|path| path.is_file())
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
        let error = Error::Absent(format!("x is not installed: {}", Program::Virtiofsd.how_to_install()));
        assert!(error.to_string().contains("virtiofsd --version 1.14.0"));
        assert_eq!(on_path("no program has this name"), None);
    }
}

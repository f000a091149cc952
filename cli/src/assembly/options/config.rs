//! The configuration file: the same names and the same spelling as on the command line.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tombolo_host::links::memory::MemoryPlace;

use crate::assembly::options::address::ListenAddress;
use crate::assembly::options::coherence::Coherence;
use crate::assembly::options::doorbell::Doorbell;
use crate::assembly::options::export::ExportArg;
use crate::assembly::options::fuse::FuseArg;
use crate::assembly::options::nfs::{AllowArg, NfsArg, SquashArg};
use crate::assembly::options::shm::{ShmArg, ShmFileArg};
use crate::assembly::options::submounts::Submounts;
use crate::assembly::options::virtiofs::{SocketMode, VirtioFsArg, VirtioFsSocket};
use crate::assembly::plan::nfs::NfsOptions;
use crate::assembly::plan::shm::ShmOptions;
use crate::assembly::plan::tree::Tree;
use crate::failure::Failure;

/// What a configuration file says. Paths in it count from where the file lies.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// `dir = ["/srv/src=/src"]`
    pub dir: Vec<ExportArg>,
    /// `virtiofs = ["/run/vm1.sock,tag=src,export=/src"]`
    pub virtiofs: Vec<VirtioFsArg>,
    /// `socket-group = "kvm"`
    pub socket_group: Option<String>,
    /// `socket-mode = "0660"`
    pub socket_mode: Option<SocketMode>,
    /// `fuse = ["/mnt/src,export=/src"]`
    pub fuse: Vec<FuseArg>,
    /// `shm = ["/run/share.sock,export=/src"]`
    pub shm: Vec<ShmArg>,
    /// `shm-file = ["/dev/shm/vm1,size=64M,export=/src"]`
    pub shm_file: Vec<ShmFileArg>,
    /// `doorbell = "adaptive"`
    pub doorbell: Option<Doorbell>,
    /// `shm-policy = "/etc/tombolo/links.toml"`
    pub shm_policy: Option<PathBuf>,
    /// `readonly = true`
    pub readonly: Option<bool>,
    /// `coherence = "strict"`
    pub coherence: Option<Coherence>,
    /// `submounts = "hide"`
    pub submounts: Option<Submounts>,
    /// `control = "/run/tombolo/src.sock"`
    pub control: Option<PathBuf>,
    /// `metrics = "127.0.0.1:9464"`
    pub metrics: Option<ListenAddress>,
    /// `nfs = ["0.0.0.0:2049,export=/src"]`
    pub nfs: Vec<NfsArg>,
    /// `squash = "root"`
    pub squash: Option<SquashArg>,
    /// `anonuid = 65534`
    pub anonuid: Option<u32>,
    /// `anongid = 65534`
    pub anongid: Option<u32>,
    /// `allow = ["10.0.0.0/8"]`
    pub allow: Vec<AllowArg>,
    /// `manage-gids = true`
    pub manage_gids: Option<bool>,
    /// `async-names = true`
    pub async_names: Option<bool>,
    /// `state = "/var/lib/tombolo"`
    pub state: Option<PathBuf>,
    /// `nfs-threads = 2`
    pub nfs_threads: Option<u16>,
    /// `nfs-no-udp = true`
    pub nfs_no_udp: Option<bool>,
}

impl Config {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let reading = format!("read the configuration {}", path.display());
        let text = fs::read_to_string(path).map_err(|error| Failure::cannot(&reading, &error))?;
        let mut config =
            Self::parse(&text).map_err(|reason| Failure::usage(format!("cannot {reading}: {reason}")))?;
        let from = path.parent().unwrap_or(Path::new(""));
        // Where a server is met is not a path alone.
        let dirs = config.dir.iter_mut().map(|arg| &mut arg.dir);
        let relative = dirs.filter(|dir| !Tree::is_elsewhere(dir));
        let sockets = config.virtiofs.iter_mut().filter_map(|arg| match &mut arg.socket {
            VirtioFsSocket::Path(path) => Some(path),
            VirtioFsSocket::Inherited(_) => None,
        });
        let relative = relative.chain(sockets);
        let relative = relative.chain(config.shm.iter_mut().map(|arg| &mut arg.socket));
        let files = config.shm_file.iter_mut().filter_map(|arg| match &mut arg.place {
            MemoryPlace::File(path) => Some(path),
            MemoryPlace::Pci(_) | MemoryPlace::Mmapper(_) => None,
        });
        let relative = relative.chain(files);
        let relative = relative.chain(config.fuse.iter_mut().map(|arg| &mut arg.mountpoint));
        for path in relative.chain(&mut config.control).chain(&mut config.state).chain(&mut config.shm_policy)
        {
            *path = from.join(&path);
        }
        Ok(config)
    }

    /// What it says about NFS.
    pub fn nfs_options(&mut self) -> NfsOptions {
        let Self { squash, anonuid, anongid, manage_gids, async_names, nfs_threads, nfs_no_udp, .. } = *self;
        let (nfs, allow) = (std::mem::take(&mut self.nfs), std::mem::take(&mut self.allow));
        NfsOptions { nfs, squash, anonuid, anongid, allow, manage_gids, async_names, nfs_threads, nfs_no_udp }
    }

    /// What it says about memory in common.
    pub fn shm_options(&mut self) -> ShmOptions {
        ShmOptions {
            shm: std::mem::take(&mut self.shm),
            shm_file: std::mem::take(&mut self.shm_file),
            doorbell: self.doorbell,
            shm_policy: self.shm_policy.take(),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            format!("line {line}: {}", error.message())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_speaks_like_the_command_line() {
        let config = Config::parse(
            "dir = ['/srv/src=/src', 'docs']\nvirtiofs = ['vm.sock,tag=t,export=/src']\nreadonly = true\n\
             coherence = 'strict'\nmetrics = ':9464'\nshm = ['a.sock,export=/src']\ndoorbell = 'event'\n",
        )
        .expect("good");
        assert_eq!(config.dir[1].dir, Path::new("docs"));
        assert_eq!(config.virtiofs[0].tag, "t");
        assert_eq!((config.readonly, config.coherence), (Some(true), Some(Coherence::Strict)));
        assert_eq!((config.shm.len(), config.doorbell), (1, Some(Doorbell::Event)));
        assert_eq!(config.metrics.expect("an address").to_string(), "0.0.0.0:9464");
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let mistake = |text| Config::parse(text).expect_err("a mistake");
        assert!(mistake("readonly = true\nsocket = 'x'").starts_with("line 2: unknown field `socket`"));
        assert!(mistake("virtiofs = ['s,tug=x']").contains("none of tag=TAG"));
        assert!(mistake("\n\ncoherence = 'sometimes'").starts_with("line 3"));
    }
}

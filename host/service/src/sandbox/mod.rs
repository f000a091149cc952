//! What a process may still do once it has opened what it needs: whatever parses a stranger's bytes is worth
//! little to the one that breaks it.
//!
//! Four parts, each of which holds by itself: mounts of its own (where it may), landlock (files, ports,
//! signals), a list of system calls (seccomp), and no capabilities. All are inherited by threads that are
//! started later and cannot be taken back, so [`enter`] comes before the first thread.
//!
//! Reading order: here; `mounts`, `files`, `calls`; `helper`, `broker`.

pub mod broker;
mod calls;
mod files;
pub mod helper;
mod mounts;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use thiserror::Error as ThisError;

pub use mounts::Namespace;

/// How much a sandbox has to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// There is none.
    Off,
    /// What the kernel and the user allow.
    #[default]
    Auto,
    /// All of it, or the process does not start.
    Strict,
}

impl FromStr for Strictness {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "strict" => Ok(Self::Strict),
            _ => Err("off, auto or strict".into()),
        }
    }
}

/// What a process goes on to need. Files that are open stay as they are.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files that are opened for reading, and directories with all below them.
    pub reads: Vec<PathBuf>,
    /// Directories that it opens, as for making names in them durable, and lists. All below them, but no
    /// files.
    pub lists: Vec<PathBuf>,
    /// Directories in which it does all that its user may, and files that it writes.
    pub changes: Vec<PathBuf>,
    /// Directories whose files it may remove: the sockets that it has made.
    pub removes: Vec<PathBuf>,
    /// Directories in which it makes sockets, and removes them.
    pub listens_in: Vec<PathBuf>,
    /// Sockets of this host that it connects to.
    pub reaches: Vec<PathBuf>,
    /// It begins to listen at sockets that it has bound.
    pub listens: bool,
    /// It connects to servers: any port, and sockets of this host.
    pub connects: bool,
    /// It looks up names of hosts, or groups of users: another process does so, as a list of calls and rules
    /// for files leave no program to ask.
    pub looks_up: bool,
    /// It has a ring of io_uring, which is restricted to what it is for: no list of calls holds for what goes
    /// through it.
    pub has_ring: bool,
    /// It serves directories of this host: as far as it may, it acts as other users there, finds files by
    /// handle, makes devices, and is told what other processes change.
    pub serves_users: bool,
    /// It serves what is mounted on this host.
    pub serves_mounts: bool,
    /// Why there is no sandbox, if it may need anything at all.
    pub unconfinable: Option<Unconfinable>,
}

/// Why a process cannot be confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unconfinable {
    /// It starts other programs, of which nothing is known.
    StartsPrograms,
    /// The groups of its callers are to be seen only by what may look into other processes.
    ProcIsHidden,
    /// It is given more to serve later, from any place and at any place.
    TakesSessions,
    /// What it is to reach is not there, and may come at any place.
    IsAway,
    /// A helper process, which does for it what it may not, could not be started.
    NoHelper,
}

impl fmt::Display for Unconfinable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StartsPrograms => "it starts another program, which cannot be confined with it",
            Self::ProcIsHidden => {
                "/proc hides the processes of other users (hidepid), and says of which groups callers are"
            }
            Self::TakesSessions => "it is given sessions later, which may need anything",
            Self::IsAway => "what it is to reach is not there yet, and may come at any place",
            Self::NoHelper => "a process that does for it what it may not could not be started",
        })
    }
}

/// What holds of a sandbox that was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    files: files::Confined,
    calls: bool,
    capabilities: Capabilities,
    own_mounts: bool,
}

/// Which capabilities are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capabilities {
    None,
    /// Those that are needed.
    Few,
    /// All that there were.
    Kept,
}

/// Why there is no sandbox, or less of one than was asked for.
#[derive(Debug, ThisError)]
pub enum SandboxError {
    /// The process cannot be confined.
    #[error("{0}")]
    Unconfinable(Unconfinable),
    /// It has the host's mounts.
    #[error("it cannot have mounts of its own")]
    Mounts(#[source] io::Error),
    /// It has them by half, and stays there.
    #[error("it cannot go back to the host's mounts, which takes CAP_SYS_CHROOT")]
    Stuck(#[source] io::Error),
    /// Files and ports are not confined.
    #[error("landlock does not hold: {0}")]
    Files(String),
    /// System calls are not.
    #[error("system calls cannot be confined (seccomp)")]
    Calls(#[from] calls::CallsError),
    /// The broker has no socket, no directory or no proc any more.
    #[error("the broker")]
    Broker(#[from] io::Error),
    /// Capabilities stay.
    #[error("capabilities cannot be dropped: {0}")]
    Capabilities(String),
}

impl Held {
    /// Nothing does, but perhaps mounts.
    fn little(own_mounts: bool) -> Self {
        Self { files: files::Confined::Not, calls: false, capabilities: Capabilities::Kept, own_mounts }
    }
}

impl fmt::Display for Held {
    /// Of the ready line: each part, and what of it is lacking.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |holds| if holds { "on" } else { "off" };
        write!(
            f,
            "landlock={} seccomp={} capabilities={} namespace={}",
            self.files,
            word(self.calls),
            match self.capabilities {
                Capabilities::None => "none",
                Capabilities::Few => "few",
                Capabilities::Kept => "kept",
            },
            word(self.own_mounts),
        )
    }
}

/// Confines this thread and all that are started later to what is needed, in the `namespace` that was entered
/// before. For good; what was confined before it fails stays so.
pub fn enter(strictness: Strictness, needs: &Needs, namespace: Namespace) -> Result<Held, SandboxError> {
    let own_mounts = namespace.stay();
    if strictness == Strictness::Off {
        return Ok(Held::little(own_mounts));
    }
    let is_strict = strictness == Strictness::Strict;
    if let Some(why) = needs.unconfinable {
        tracing::debug!(%why, "no sandbox");
        return if is_strict { Err(SandboxError::Unconfinable(why)) } else { Ok(Held::little(own_mounts)) };
    }
    let files = match files::confine(needs, is_strict) {
        Ok(confined) => confined,
        Err(error) if is_strict => return Err(SandboxError::Files(error.to_string())),
        Err(error) => {
            tracing::warn!(%error, "landlock does not hold");
            files::Confined::Not
        }
    };
    let (calls, capabilities) = give_up_rights(strictness, needs)?;
    Ok(Held { files, calls, capabilities, own_mounts })
}

/// Drops capabilities and calls. Whether calls are confined, and which capabilities are left.
fn give_up_rights(strictness: Strictness, needs: &Needs) -> Result<(bool, Capabilities), SandboxError> {
    let is_strict = strictness == Strictness::Strict;
    let capabilities = match drop_capabilities(needs) {
        Ok(left) => left,
        Err(error) if is_strict => return Err(SandboxError::Capabilities(error.to_string())),
        Err(error) => {
            tracing::warn!(%error, "capabilities stay");
            Capabilities::Kept
        }
    };
    // Last: what is done above is not on the list.
    let calls = match calls::confine(needs) {
        Ok(()) => true,
        Err(error) if is_strict => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "system calls are not confined");
            false
        }
    };
    Ok((calls, capabilities))
}

/// What serving directories to users takes: to act as them, to reach what only root may, to make all kinds of
/// files, and, of CAP_SYS_ADMIN, to watch a file system and to change attributes of the kind `trusted`.
/// Mounting, of which it is the right too, is no call on the list.
const OF_FILES: [Capability; 11] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_FSETID,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
    Capability::CAP_MKNOD,
    Capability::CAP_SETFCAP,
    Capability::CAP_SYS_RESOURCE,
    Capability::CAP_SYS_ADMIN,
];

/// Drops all capabilities of this thread and of those that it starts later, and of the programs that they
/// start.
pub fn give_up_capabilities() -> Result<(), SandboxError> {
    let dropped = drop_capabilities(&Needs::default());
    dropped.map(drop).map_err(|error| SandboxError::Capabilities(error.to_string()))
}

/// All that are not needed, from each set of this thread; from the bounding set too, where it may:
/// that one only matters for programs that are started.
fn drop_capabilities(needs: &Needs) -> Result<Capabilities, CapsError> {
    let mut wanted: CapsHashSet = if needs.serves_users { OF_FILES.into() } else { CapsHashSet::default() };
    if needs.connects {
        // Many NFS servers want to be called from a port below 1024.
        wanted.insert(Capability::CAP_NET_BIND_SERVICE);
    }
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for unneeded in caps::all().difference(&wanted) {
            // One that this kernel does not know.
            let _ = caps::drop(None, CapSet::Bounding, *unneeded);
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    let mut is_any = false;
    for set in [CapSet::Effective, CapSet::Permitted] {
        let left: CapsHashSet = caps::read(None, set)?.intersection(&wanted).copied().collect();
        is_any |= !left.is_empty();
        caps::set(None, set, &left)?;
    }
    Ok(if is_any { Capabilities::Few } else { Capabilities::None })
}

//! Sandbox: restriction of a process to its remaining needs, so that an attacker who takes over a parser
//! gains little.
//!
//! Four independent mechanisms: own mounts (if permitted), landlock (files, ports, signals), a system-call
//! filter (seccomp), and removal of unneeded capabilities. After [`enter`] none can be revoked. Threads
//! started later inherit all of them; earlier threads would keep rights, so `enter` is called before the
//! first one is started.
//!
//! Reading order: this file; `mounts`, `files`, `calls`; `helper`, `broker`.

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

/// Required strength of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Run without a sandbox.
    Off,
    /// Confine the process as much as the kernel and the user's rights allow.
    #[default]
    Auto,
    /// The complete sandbox, or the process does not start.
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

/// Remaining needs of a process. Open files are not affected.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files, and directories with their contents, that are opened for reading.
    pub reads: Vec<PathBuf>,
    /// Directories that are listed, or opened to sync their entries, with all directories below them. Their
    /// files are not opened.
    pub lists: Vec<PathBuf>,
    /// Directories with unrestricted changes within the user's rights, and files that are written.
    pub changes: Vec<PathBuf>,
    /// Directories from which the process removes files: the sockets that it has created.
    pub removes: Vec<PathBuf>,
    /// Directories in which sockets are created and removed.
    pub listens_in: Vec<PathBuf>,
    /// Sockets of this host to connect to.
    pub reaches: Vec<PathBuf>,
    /// `true` if the process starts to listen on sockets that are already bound.
    pub listens: bool,
    /// `true` if the process connects to servers: any port, and sockets of this host.
    pub connects: bool,
    /// `true` if the process looks up host names or users' groups. A helper process then does that, because
    /// the system-call filter and the file rules do not let the resolver run.
    pub looks_up: bool,
    /// `true` if the process has an io_uring, which is restricted to its purpose, since seccomp does not
    /// filter its operations.
    pub has_ring: bool,
    /// `true` if the process serves directories of this host: within its rights it acts as other users, opens
    /// files by handle, makes devices, and watches for changes by other processes.
    pub serves_users: bool,
    /// `true` if the process serves mounts on this host.
    pub serves_mounts: bool,
    /// Reason for running without a sandbox, if the process's needs are unbounded.
    pub unconfinable: Option<Unconfinable>,
}

/// Reason for not confining a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unconfinable {
    /// The process starts other programs with unknown needs.
    StartsPrograms,
    /// /proc hides the processes of other users, from which the groups of callers are read.
    ProcIsHidden,
    /// The process gets sessions to serve later, with arbitrary paths.
    TakesSessions,
    /// The endpoint to connect to does not exist yet, so the path that it will need is unknown.
    IsAway,
    /// A helper process could not be started.
    NoHelper,
}

impl fmt::Display for Unconfinable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StartsPrograms => "it starts another program, which the sandbox cannot cover",
            Self::ProcIsHidden => {
                "/proc hides the processes of other users (hidepid), and says of which groups callers are"
            }
            Self::TakesSessions => "sessions added later may need anything",
            Self::IsAway => "something that it connects to is missing, and may appear anywhere",
            Self::NoHelper => "a helper process could not be started",
        })
    }
}

/// Mechanisms in force of an entered sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxStatus {
    files: files::Confined,
    calls: bool,
    capabilities: Capabilities,
    own_mounts: bool,
}

/// Remaining capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capabilities {
    None,
    /// The needed ones.
    Few,
    /// All that the process had.
    Kept,
}

/// Error of entering a sandbox.
#[derive(Debug, ThisError)]
pub enum SandboxError {
    /// The process cannot be confined.
    #[error("{0}")]
    Unconfinable(Unconfinable),
    /// Own mounts are not possible.
    #[error("cannot set up a mount namespace")]
    Mounts(#[source] io::Error),
    /// Own mounts are set up partly, and the process cannot leave them.
    #[error("cannot return to the host's mounts, which needs CAP_SYS_CHROOT")]
    Stuck(#[source] io::Error),
    /// Files and ports are not confined.
    #[error("cannot confine files and ports (landlock): {0}")]
    Files(String),
    /// System calls are not filtered.
    #[error("cannot filter system calls (seccomp)")]
    Calls(#[from] calls::CallsError),
    /// The broker lacks its socket, a directory or /proc.
    #[error("cannot set up the broker")]
    Broker(#[from] io::Error),
    /// Capabilities cannot be dropped.
    #[error("cannot drop capabilities: {0}")]
    Capabilities(String),
}

impl SandboxStatus {
    /// Returns the status of a process that is not confined, except possibly by its mounts.
    fn little(own_mounts: bool) -> Self {
        Self { files: files::Confined::Off, calls: false, capabilities: Capabilities::Kept, own_mounts }
    }
}

impl fmt::Display for SandboxStatus {
    /// Formats each mechanism with its extent, for the ready line.
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

/// Confines this thread and all started later to `needs`, in the `namespace` entered before. With
/// [`Strictness::Off`], or [`Strictness::Auto`] and unbounded needs, the process only stays in the namespace.
/// Irrevocable; after a failure some mechanisms may be in force.
pub fn enter(
    strictness: Strictness,
    needs: &Needs,
    namespace: Namespace,
) -> Result<SandboxStatus, SandboxError> {
    let own_mounts = namespace.stay();
    if strictness == Strictness::Off {
        return Ok(SandboxStatus::little(own_mounts));
    }
    let is_strict = strictness == Strictness::Strict;
    if let Some(why) = needs.unconfinable {
        tracing::debug!(%why, "no sandbox");
        return if is_strict {
            Err(SandboxError::Unconfinable(why))
        } else {
            Ok(SandboxStatus::little(own_mounts))
        };
    }
    let files = match files::confine(needs, is_strict) {
        Ok(confined) => confined,
        Err(error) if is_strict => return Err(SandboxError::Files(error.to_string())),
        Err(error) => {
            tracing::warn!(%error, "cannot confine files and ports (landlock)");
            files::Confined::Off
        }
    };
    let (calls, capabilities) = drop_rights(strictness, needs)?;
    Ok(SandboxStatus { files, calls, capabilities, own_mounts })
}

/// Drops capabilities and installs the system-call filter. Returns `true` if system calls are filtered, and
/// the remaining capabilities.
fn drop_rights(strictness: Strictness, needs: &Needs) -> Result<(bool, Capabilities), SandboxError> {
    let is_strict = strictness == Strictness::Strict;
    let capabilities = match drop_capabilities(needs) {
        Ok(left) => left,
        Err(error) if is_strict => return Err(SandboxError::Capabilities(error.to_string())),
        Err(error) => {
            tracing::warn!(%error, "cannot drop capabilities");
            Capabilities::Kept
        }
    };
    // The filter is installed last, because it refuses system calls that the mechanisms above need.
    let calls = match calls::confine(needs) {
        Ok(()) => true,
        Err(error) if is_strict => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "cannot filter system calls");
            false
        }
    };
    Ok((calls, capabilities))
}

/// Capabilities for serving directories to users: acting as them, reaching files of root, making all types of
/// files, and, by CAP_SYS_ADMIN, watching file systems and changing `trusted` attributes. CAP_SYS_ADMIN also
/// permits mounting, but the system-call filter does not.
const FILE_CAPABILITIES: [Capability; 11] = [
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

/// Drops all capabilities of this thread and of threads that it starts later, also, if CAP_SETPCAP permits,
/// for programs that they start.
pub fn give_up_capabilities() -> Result<(), SandboxError> {
    let dropped = drop_capabilities(&Needs::default());
    dropped.map(drop).map_err(|error| SandboxError::Capabilities(error.to_string()))
}

/// Drops all unneeded capabilities from each set of this thread, and from the bounding set if permitted. The
/// bounding set matters only for programs that are started later.
fn drop_capabilities(needs: &Needs) -> Result<Capabilities, CapsError> {
    let mut wanted: CapsHashSet =
        if needs.serves_users { FILE_CAPABILITIES.into() } else { CapsHashSet::default() };
    if needs.connects {
        // Many NFS servers require client ports below 1024.
        wanted.insert(Capability::CAP_NET_BIND_SERVICE);
    }
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for unneeded in caps::all().difference(&wanted) {
            // Fails for a capability unknown to this kernel.
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

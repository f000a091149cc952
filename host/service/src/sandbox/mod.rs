//! What a process may still do once it has opened what it needs: whatever parses a stranger's bytes is worth little to the one that breaks it.
//!
//! Three parts, each of which holds by itself: landlock (files, ports, signals), a list of system calls (seccomp), and no capabilities. All
//! are inherited by threads that are started later and cannot be taken back, so [`enter`] comes before the first thread.
//!
//! Reading order: here; `files`, `calls`.

mod calls;
mod files;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use caps::CapSet;
use thiserror::Error as ThisError;

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
    /// Directories in which it does all that its user may.
    pub changes: Vec<PathBuf>,
    /// Directories whose files it may remove: the sockets that it has made.
    pub removes: Vec<PathBuf>,
    /// It connects to servers: any port, and sockets of this host.
    pub connects: bool,
    /// It starts other programs, of which nothing is known: then there is no sandbox.
    pub executes: bool,
}

/// What holds of a sandbox that was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    files: files::Confined,
    calls: bool,
    capabilities: bool,
}

/// Why there is no sandbox, or less of one than was asked for.
#[derive(Debug, ThisError)]
pub enum SandboxError {
    /// What is started may need anything.
    #[error("it starts another program, which cannot be confined with it")]
    Executes,
    /// Files and ports are not confined.
    #[error("landlock does not hold: {0}")]
    Files(String),
    /// System calls are not.
    #[error("system calls cannot be confined (seccomp)")]
    Calls(#[from] calls::CallsError),
    /// Capabilities stay.
    #[error("capabilities cannot be dropped: {0}")]
    Capabilities(String),
}

impl Held {
    /// Nothing does.
    pub const NOTHING: Self = Self { files: files::Confined::Not, calls: false, capabilities: false };
}

impl fmt::Display for Held {
    /// Of the ready line: each part, and what of it is lacking.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |holds| if holds { "on" } else { "off" };
        write!(
            f,
            "landlock={} seccomp={} capabilities={}",
            self.files,
            word(self.calls),
            if self.capabilities { "none" } else { "kept" }
        )
    }
}

/// Confines this thread and all that are started later to what is needed. For good; what was confined before it fails stays so.
pub fn enter(strictness: Strictness, needs: &Needs) -> Result<Held, SandboxError> {
    if strictness == Strictness::Off {
        return Ok(Held::NOTHING);
    }
    let is_strict = strictness == Strictness::Strict;
    if needs.executes {
        return if is_strict { Err(SandboxError::Executes) } else { Ok(Held::NOTHING) };
    }
    let files = match files::confine(needs, is_strict) {
        Ok(confined) => confined,
        Err(error) if is_strict => return Err(SandboxError::Files(error.to_string())),
        Err(error) => {
            tracing::warn!(%error, "landlock does not hold");
            files::Confined::Not
        }
    };
    let capabilities = match drop_capabilities() {
        Ok(()) => true,
        Err(error) if is_strict => return Err(SandboxError::Capabilities(error.to_string())),
        Err(error) => {
            tracing::warn!(%error, "capabilities stay");
            false
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
    Ok(Held { files, calls, capabilities })
}

/// All of them, from each set of this thread. The bounding set, which only matters for programs that are started, needs the right to.
fn drop_capabilities() -> Result<(), caps::errors::CapsError> {
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set)?;
    }
    Ok(())
}

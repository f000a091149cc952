//! How fresh a client's view is: the one knob, by name.

use clap::ValueEnum;
use serde::Deserialize;

/// What a client may cache without asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Coherence {
    /// Nothing: each change is seen at once; time-outs 0, nothing in the page cache across opens
    Strict,
    /// Close-to-open: an open sees what was closed before it; names and attributes for 1 second
    #[default]
    Auto,
    /// Everything for a day: for trees without other writers
    Always,
    /// Everything until it changes, by whomever of the host: for FUSE mounts of directories
    Push,
}

impl Coherence {
    /// What the line that begins with `ready` says of a mount that is told of changes; nothing for one that
    /// is not.
    pub fn suffix(self) -> &'static str {
        if self == Self::Push { " coherence=push" } else { "" }
    }
}

impl From<Coherence> for tombolo_front_fuse::session::Coherence {
    fn from(coherence: Coherence) -> Self {
        match coherence {
            Coherence::Strict => Self::Strict,
            Coherence::Auto => Self::Auto,
            Coherence::Always => Self::Always,
            Coherence::Push => Self::Push,
        }
    }
}

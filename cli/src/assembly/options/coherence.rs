//! Cache policies of clients.

use clap::ValueEnum;
use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Coherence {
    /// No caching: changes are visible at once; time-outs 0, page cache dropped at open
    Strict,
    /// Close-to-open: an open sees all previously closed changes; names and attributes are cached for 1
    /// second
    #[default]
    Auto,
    /// Cache everything for a day: for trees without other writers
    Always,
    /// Cache everything until it changes, by any process of the host: for FUSE mounts of directories
    Push,
}

impl Coherence {
    /// Returns the suffix of the `ready` line of a mount that receives change notifications; otherwise empty.
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

//! Whether guests see extended attributes, by name.

use clap::ValueEnum;
use serde::Deserialize;

/// Whether extended attributes are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Xattrs {
    /// They are those of the host's files
    #[default]
    On,
    /// There are none: fewer requests, but access lists and file capabilities are hidden from the guest
    Off,
}

impl Xattrs {
    /// Whether they are shown.
    pub fn are_shown(self) -> bool {
        self == Self::On
    }

    /// What the line that begins with `ready` says of them; nothing for the default.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::On => "",
            Self::Off => " xattrs=off hides=acls,capabilities",
        }
    }
}

//! Visibility of extended attributes.

use clap::ValueEnum;
use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Xattrs {
    /// Visible, as on the host
    #[default]
    On,
    /// None: fewer requests, but access lists and file capabilities are hidden
    Off,
}

impl Xattrs {
    /// Returns `true` if attributes are visible.
    pub fn are_shown(self) -> bool {
        self == Self::On
    }

    /// Returns the suffix of the `ready` line; empty for the default.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::On => "",
            Self::Off => " xattrs=off hides=acls,capabilities",
        }
    }
}

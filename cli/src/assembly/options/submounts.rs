//! Policies for mounts inside a shared directory.

use clap::ValueEnum;
use serde::Deserialize;

/// Policy for nested mounts: other file systems mounted below the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Submounts {
    /// Part of the tree, with their own device numbers
    #[default]
    Show,
    /// Hidden: their mount points do not exist
    Hide,
}

impl From<Submounts> for tombolo_back_local_dir::Submounts {
    fn from(submounts: Submounts) -> Self {
        match submounts {
            Submounts::Show => Self::Show,
            Submounts::Hide => Self::Hide,
        }
    }
}

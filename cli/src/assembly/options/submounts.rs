//! How mounts inside a shared directory are treated, by name.

use clap::ValueEnum;
use serde::Deserialize;

/// How to treat nested mounts: other file systems that are mounted below the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Submounts {
    /// They are part of the tree, with device numbers of their own
    #[default]
    Show,
    /// Their mount points do not exist
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

//! `tombolo image`: what the directory of a VM's files says of them to those that read them from far away.

pub mod catalogue;
mod contents;
mod info;
mod list;
mod rehearse;
pub mod scan;
pub mod sidecar;
mod trace;

use clap::{Args, Subcommand};

use crate::failure::Outcome;

use info::ImageInfoArgs;
use list::ImageListArgs;
use rehearse::ImageRehearseArgs;
use scan::ImageScanArgs;

/// Say of a VM's files (configuration, disk, memory) what saves their readers from fetching all of them.
///
/// The files lie in a directory of their own. What is known of them goes into one file beside them,
/// .tombolo-image, by which `tombolo proxy` goes as long as they do not change.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ImageArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Scan(ImageScanArgs),
    Rehearse(ImageRehearseArgs),
    Info(ImageInfoArgs),
    List(ImageListArgs),
}

const EXAMPLES: &str = "\
Examples:
  tombolo image scan /srv/images/debian
  tombolo image rehearse /srv/images/debian --for 20
  tombolo image info /srv/images/debian
  tombolo image list nfs://ship/images";

impl ImageArgs {
    pub fn run(self) -> Outcome {
        match self.action {
            Action::Scan(asked) => asked.run(),
            Action::Rehearse(asked) => asked.run(),
            Action::Info(asked) => asked.run(),
            Action::List(asked) => asked.run(),
        }
    }
}

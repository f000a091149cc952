//! `tombolo image`: sidecars of VM images, which spare remote readers most of the data.

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

/// Describe images of VMs, so that remote clones fetch less.
///
/// An image is the directory that `tombolo vm suspend NAME --to DIR` makes, with the memory and disk of a VM
/// (not the image file of a disk, as for `tombolo disk`). Its description is the file
/// .tombolo-image in it, which `tombolo proxy` uses as long as the other files do not change.
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

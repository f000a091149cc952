//! `tombolo image rehearse`: what a clone reads first, written down in the sidecar of its image.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::info::fits;
use super::scan::ImageScanArgs;
use super::sidecar::Whole;
use super::trace::{gathered, of_any, steps};
use crate::commands::files::{print, shown};
use crate::commands::vm::PlaceArgs;
use crate::commands::vm::rehearsal::Rehearsal;
use crate::failure::{Failure, Outcome};

/// Make clones of an image for a while, and write down what they read: clones elsewhere have that brought
/// first.
///
/// What they read of memory and disk goes, in their order, into .tombolo-image beside them, in place of the
/// trace that was there. A sidecar that does not fit is made anew before, as by tombolo image scan. The
/// clones are removed in the end; the image stays as it is.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ImageRehearseArgs {
    /// The image: a directory of this host, also one that is mounted.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// How many clones are made, one after the other: no two touch quite the same memory.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    times: u8,
    /// How long each runs, in seconds; with --until, at most.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// End when this command of the shell succeeds, which is given again and again, and anew for each clone.
    #[arg(long, value_name = "COMMAND")]
    until: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

const EXAMPLES: &str = "\
Examples:
  tombolo image rehearse /srv/images/debian --for 20
  tombolo image rehearse /srv/golden --net user,hostfwd=tcp:127.0.0.1:8080-:80 --until 'curl -sf http://127.0.0.1:8080/'";

impl ImageRehearseArgs {
    pub fn run(self) -> Outcome {
        let mut whole = match Whole::read(&self.dir) {
            Ok(whole) if whole.sidecar.files.iter().all(|file| fits(&self.dir, file)) => whole,
            _ => ImageScanArgs::of(&self.dir).scan()?.0,
        };
        let rehearsing = format!("rehearse {}", self.dir.display());
        let rehearsal = Rehearsal {
            image: &self.dir,
            place: &self.place,
            at_most: Duration::from_secs(self.seconds),
            until: self.until.as_deref(),
        };
        let read = (0..self.times).map(|_| rehearsal.run()).collect::<Result<Vec<_>, _>>()?;
        let files = &whole.sidecar.files;
        let each: Vec<_> = read.iter().map(|read| steps(read, b"", files)).collect();
        whole.sidecar.trace = gathered(&of_any(&each), files);
        let bytes = whole.sidecar.trace_bytes();
        let steps = whole.sidecar.trace.len();
        whole.write_again(&self.dir).map_err(|error| Failure::cannot(&rehearsing, &error))?;
        print(&format!("clones read {} first, in {steps} steps", shown::short_size(bytes)))
    }
}

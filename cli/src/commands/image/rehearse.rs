//! `tombolo image rehearse`: records the first reads of a clone in the image's sidecar.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::info::fits;
use super::scan::ImageScanArgs;
use super::sidecar::FullSidecar;
use super::trace::{gathered, of_any, steps};
use crate::commands::files::{print, shown};
use crate::commands::vm::PlaceArgs;
use crate::commands::vm::rehearsal::Rehearsal;
use crate::failure::{OrCannot, Outcome};

/// Record what clones of an image read first, so that remote clones prefetch it.
///
/// Runs clones for a while and writes their first reads of memory and disk, in order, to .tombolo-image,
/// replacing any earlier trace. If that file is missing or outdated, it is first made as by tombolo image
/// scan. The clones are removed afterwards; no other file of the image is changed.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ImageRehearseArgs {
    /// Image: a directory of this host, possibly a mount.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Number of clones, from 1 to 16, run one after the other: no two access exactly the same memory.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    times: u8,
    /// Run time of each clone in seconds, from 1 to 3600; the maximum with --until.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// End each clone when this shell command succeeds, which is run repeatedly.
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
        let mut whole = match FullSidecar::read(&self.dir) {
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
        whole.write_again(&self.dir).or_cannot(&rehearsing)?;
        print(&format!("recorded {} read by clones, in {steps} steps", shown::short_size(bytes)))
    }
}

//! `tombolo cat`: prints files.

use std::io;

use clap::Args;
use libtombolo::{Last, StreamError, block_on};
use tombolo_core::Error;
use tombolo_core::fs::OpenFlags;

use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};

use super::open_path::{OpenPath, Opener, WaitArgs};
use super::problem::Failures;

/// Print files of NFS servers and of this host.
///
/// Issues several reads concurrently, to fill a network of high latency.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CatArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Files: nfs://HOST[:PORT]/NAME/PATH, nfs+ssh://HOST/PATH, shm:SOCKET/NAME/PATH, dir:PATH, or a
    /// path.
    #[arg(required = true, value_name = "LOCATION", value_parser = Location::word_parser())]
    files: Vec<Location>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo cat nfs://server/export/etc/motd
  tombolo cat nfs://server:20049/logs/today | grep error";

impl CatArgs {
    /// Prints all files in order; files that cannot be read are reported and skipped.
    pub fn run(&self) -> Outcome {
        let mut opener = Opener::new().limited(self.wait);
        let mut failures = Failures::default();
        for file in &self.files {
            let printed = opener.open(file, End::Target).and_then(|place| print(&place));
            // The reader of the output has closed its end.
            if let Some(Reader::Left) = failures.told(printed) {
                return Err(Failure::silent());
            }
        }
        failures.outcome()
    }
}

enum Reader {
    Listens,
    Left,
}

fn print(place: &OpenPath) -> Result<Reader, Failure> {
    let cannot = |error: &Error| place.cannot("read", error);
    let node = place.find_or_fail(Last::Follow)?;
    let file = block_on(node.open(OpenFlags::READ)).map_err(|error| cannot(&error))?;
    match block_on(file.read_to(0, &mut io::stdout().lock(), Default::default())) {
        Ok(_) => Ok(Reader::Listens),
        Err(StreamError::File(error)) => Err(cannot(&error)),
        Err(StreamError::Stream(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Left),
        Err(StreamError::Stream(error)) => Err(Failure::cannot("write to standard output", &error)),
    }
}

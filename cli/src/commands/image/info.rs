//! `tombolo image info`: shows a directory's sidecar, and whether it is up to date.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tombolo_core::fs::Timestamp;
use tombolo_wire_image::{Advice, Digest, ImageFile, NAME};

use super::sidecar::FullSidecar;
use crate::commands::files::{print, print_json, shown};
use crate::failure::{Failure, Outcome};
use crate::table::table;

/// Show the contents of a directory's .tombolo-image: the share of zeroes, and of blocks equal to earlier
/// ones.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ImageInfoArgs {
    /// Directory of the files.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tombolo image info /srv/images/debian
  tombolo image info --json /srv/images/debian | jq '.files[].zero_bytes'";

/// Description of a directory, printed as JSON.
#[derive(Serialize)]
struct Info {
    files: Vec<FileInfo>,
    trace_steps: usize,
    trace_bytes: u64,
}

#[derive(Serialize)]
struct FileInfo {
    name: String,
    size_bytes: u64,
    block_bytes: u32,
    zero_bytes: u64,
    /// Bytes in blocks that occurred before, in this file or earlier ones; `None` without digests.
    equal_bytes: Option<u64>,
    advice: &'static str,
    state: &'static str,
}

impl ImageInfoArgs {
    pub fn run(&self) -> Outcome {
        let reading = format!("read {}", self.dir.join(NAME).display());
        let whole = FullSidecar::read(&self.dir).map_err(|error| {
            let remedy = format!("create it with tombolo image scan {}", self.dir.display());
            Failure::cannot(&reading, &error).remedy_if(error.kind() == io::ErrorKind::NotFound, remedy)
        })?;
        let info = Info::of(&self.dir, &whole);
        if self.json { print_json(&info) } else { print(&info.text()) }
    }
}

impl Info {
    fn of(dir: &Path, whole: &FullSidecar) -> Self {
        let mut seen = HashSet::new();
        let files = whole.sidecar.files.iter().zip(&whole.digests).map(|(file, digests)| FileInfo {
            name: shown::name(&file.name),
            size_bytes: file.size,
            block_bytes: file.block_bytes,
            zero_bytes: file.zero_bytes(),
            equal_bytes: file.table.map(|_| equal_bytes(file, digests, &mut seen)),
            advice: match file.advice {
                Advice::OnDemand => "on-demand",
                Advice::Whole => "whole",
            },
            state: state(dir, file),
        });
        let trace_bytes = whole.sidecar.trace_bytes();
        Self { files: files.collect(), trace_steps: whole.sidecar.trace.len(), trace_bytes }
    }

    fn text(&self) -> String {
        let rows = self.files.iter().map(|file| {
            let share = |bytes: u64| {
                let percent = bytes as f64 * 100.0 / (file.size_bytes.max(1) as f64);
                format!("{} ({percent:.1} %)", shown::short_size(bytes))
            };
            vec![
                file.name.clone(),
                file.advice.into(),
                file.state.into(),
                shown::short_size(file.size_bytes),
                share(file.zero_bytes),
                file.equal_bytes.map_or_else(|| "-".into(), share),
            ]
        });
        let text = table(&["FILE", "ADVICE", "STATE", "SIZE", "ZEROES", "EQUAL"], rows, 3);
        match self.trace_steps {
            0 => text,
            steps => format!("{text}\ntrace of {} in {steps} steps", shown::short_size(self.trace_bytes)),
        }
    }
}

/// Returns the number of bytes in blocks that occurred before, in this file or earlier ones.
fn equal_bytes<'a>(file: &ImageFile, digests: &'a [Digest], seen: &mut HashSet<&'a Digest>) -> u64 {
    let again = digests.iter().filter(|digest| !seen.insert(*digest)).count() as u64;
    (again * u64::from(file.block_bytes)).min(file.size)
}

const FITS: &str = "fits";

/// Returns `true` if the sidecar's entry for the file is valid.
pub fn fits(dir: &Path, file: &ImageFile) -> bool {
    state(dir, file) == FITS
}

fn state(dir: &Path, file: &ImageFile) -> &'static str {
    let nanos = |nanos: i64| nanos.try_into().unwrap_or(0);
    match dir.join(OsStr::from_bytes(&file.name)).symlink_metadata() {
        Ok(now)
            if file.is_of(now.size(), Timestamp { secs: now.mtime(), nanos: nanos(now.mtime_nsec()) }) =>
        {
            FITS
        }
        Ok(_) => "changed",
        Err(_) => "missing",
    }
}

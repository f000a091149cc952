//! `tombolo disk convert`: copies a disk into another of any kind.

mod identity;
mod record;
mod target;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use libtombolo::block_on;
use libtombolo::disk::{Copy, Ended, Fault, Step, Tally, Watched, compare};
use serde::Serialize;
use tombolo_core::Error;
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

use crate::assembly::options::disk::{HostCache, ImageFormat, ImageOptions};
use crate::assembly::plan::access::Access;
use crate::assembly::plan::disk::DiskSource;
use crate::cli::LogArgs;
use crate::commands::files::open_path::WaitArgs;
use crate::commands::files::shown::size;
use crate::commands::files::user::Myself;
use crate::commands::files::{print, print_json, stop};
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::Location;
use crate::progress::{Progress, Screen, Style};

use super::{shower, stopping};
use identity::Version;
use record::{Record, Records};
use target::{Prepared, Target};

/// Copy a disk to another format or place.
///
/// FROM and TO are raw and qcow2 images, block devices, disks of NBD servers, or files on NFS servers. FROM
/// may also be an overlay. A local FROM that others write to is refused.
///
/// Holes are preserved, blocks of zeroes become holes, and many pieces are copied concurrently. A local file
/// is written as .NAME.tombolo-part in the same directory and renamed when it is complete and durable; an
/// existing file is replaced only then. Other targets are written in place; on those of fixed length, such as
/// block devices, anything beyond the source's length is left as is.
///
/// After any interruption, the same command with --resume continues from what is durable. It starts over if
/// the source has changed meanwhile. Changes of block devices and NBD servers cannot be detected: use
/// --verify to compare.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DiskConvertArgs {
    /// Replace TO if it is a file, or overwrite its contents.
    #[arg(short, long)]
    force: bool,
    /// Continue an interrupted conversion of FROM to TO.
    #[arg(long)]
    resume: bool,
    /// Compare both after copying.
    #[arg(long)]
    verify: bool,
    /// Report progress every 10 seconds if there is no terminal for a bar.
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Format of TO, raw or qcow2 (by default qcow2 if the name ends in .qcow2, otherwise raw).
    #[arg(long, value_name = "FORMAT", value_parser = whole_image())]
    format: Option<ImageFormat>,
    /// Format of FROM (by default from the file name).
    #[arg(long, value_name = "FORMAT")]
    from_format: Option<ImageFormat>,
    /// Additional directory that may contain the backing files of FROM.
    #[arg(long, value_name = "DIR")]
    backing_dir: Option<PathBuf>,
    /// Base of FROM, if it is an overlay, instead of the one recorded in it. Repeat for the base of a base
    /// that is an overlay itself.
    #[arg(long, value_name = "DISK")]
    base: Vec<PathBuf>,
    /// Refuse a --base behind a symbolic link.
    #[arg(long, hide = true)]
    base_no_links: bool,
    #[command(flatten)]
    wait: WaitArgs,
    /// Disk to copy: a file or URL, as for `tombolo disk`.
    from: PathBuf,
    /// Disk to write: a file, which is created, a block device or a URL.
    to: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tombolo disk convert vm.img vm.qcow2
  tombolo disk convert clone.qcow2 --backing-dir /srv/golden /dev/vg0/vm --force
  tombolo disk convert nbd://ship/vm vm.img
  tombolo disk convert vm.qcow2 nfs://server/images/vm.img --verify
  tombolo disk convert nbd://ship/vm vm.img --resume";

/// Parses the formats that a conversion writes, which exclude overlays.
fn whole_image() -> impl TypedValueParser<Value = ImageFormat> {
    PossibleValuesParser::new(["raw", "qcow2"]).try_map(|name| ImageFormat::from_str(&name, false))
}

/// Amount, in bytes, after which copied data are made durable and recorded; after five seconds in any case.
/// Only data copied since the last record are copied again after a kill.
const DURABLE_EVERY_BYTES: u64 = 256 << 20;

const RECORDING: &str = "record the progress of the conversion";

/// Result of a conversion, printed as a line of text, or as JSON with `--json`.
#[derive(Serialize)]
struct Done {
    from: String,
    to: String,
    size_bytes: u64,
    /// Bytes copied by an earlier, interrupted conversion.
    resumed_bytes: u64,
    data_bytes: u64,
    zero_bytes: u64,
    seconds: f64,
    verified: bool,
}

/// A conversion with both sides open.
struct Conversion {
    from: DiskSource,
    to: DiskSource,
    source: Arc<dyn BlockDevice>,
    version: Version,
    target: Target,
    copy: Arc<dyn BlockDevice>,
    /// `true` if the copy reads as zeroes from `start` on.
    is_blank: bool,
    /// Offset in bytes up to which an earlier conversion has copied the data.
    start: u64,
    records: Records,
}

impl DiskConvertArgs {
    fn source_options(&self) -> ImageOptions {
        let Self { from_format: format, base_no_links, .. } = *self;
        let (backing_dir, base) = (self.backing_dir.clone(), self.base.clone());
        ImageOptions { format, backing_dir, base, base_no_links }
    }

    pub fn run(&self, log: LogArgs) -> Outcome {
        self.wait.limit_all();
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        let screen = Arc::new(Screen::new(Style::for_user(log.quiet > 0, self.progress)));
        let stop = stopping(&screen)?;
        let mut conversion = self.begin(&pool, &screen)?;
        let begun = Instant::now();
        let interrupted = |failure| match stop::came() {
            Some(signal) => {
                screen.say("interrupted: continue with the same command and --resume");
                Failure::stopped(signal)
            }
            None => failure,
        };
        let tally = conversion.copy(&stop, &screen).map_err(interrupted)?;
        if self.verify {
            conversion.verify(&stop, &screen).map_err(interrupted)?;
        }
        conversion.finish()?;
        let done = Done {
            from: conversion.from.to_string(),
            to: conversion.to.to_string(),
            size_bytes: conversion.source.geometry().size_bytes,
            resumed_bytes: conversion.start,
            data_bytes: tally.data_bytes,
            zero_bytes: tally.zero_bytes,
            seconds: begun.elapsed().as_secs_f64(),
            verified: self.verify,
        };
        match (self.json, log.quiet) {
            (true, _) => print_json(&done),
            (false, 0) => print(&done.text()),
            (false, _) => Ok(()),
        }
    }

    /// Opens source and target, and determines the offset at which a recorded conversion is continued.
    fn begin(&self, pool: &ThreadPool, screen: &Screen) -> Result<Conversion, Failure> {
        let myself = Myself::ask();
        let from = DiskSource::of_word(&self.from, &self.source_options())?;
        let to =
            DiskSource::of_word(&self.to, &ImageOptions { format: self.format, ..ImageOptions::default() })?;
        if is_same(&from, &to) {
            return Err(Failure::usage(format!("{from} cannot be converted into itself")));
        }
        if depends_on(&from, &to)? {
            return Err(Failure::usage(format!(
                "{from} cannot be converted into {to}, which is part of its backing chain"
            )));
        }
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let source = from.open(&options, pool)?.disk;
        let version = Version::of(&from, &*source)?;
        let size_bytes = source.geometry().size_bytes;
        let mut records = Records::of(&to)?;
        let record = records.read().filter(|_| self.resume);
        let access = Access::of(&from, myself.umask)?;
        let target = Target::of(&to, size_bytes, self.force, record.as_ref(), (access, &myself))?;
        let left = record.as_ref().and_then(|record| resume_offset(record, &from, &version, &target, screen));
        if left.is_none() {
            if self.resume && record.is_none() {
                screen.say("no earlier conversion found: starting over");
            }
            target.must_be_ours(self.force)?;
            // The record of a new file is replaced below: without one, a kill in between would leave a file
            // unknown to later conversions.
            if !target.is_new() {
                records.forget();
            }
        }
        let start = left.unwrap_or(0).min(size_bytes);
        if target.is_new() {
            // The record is written before the file is created, so that a later conversion recognises the
            // file.
            let begun = Record { from: from.to_string(), version: version.text.clone(), ..Record::default() };
            records.write(&begun).or_cannot(RECORDING)?;
        }
        let Prepared { disk: copy, is_blank } = target.open(size_bytes, start, pool)?;
        Ok(Conversion { from, to, source, version, target, copy, is_blank, start, records })
    }
}

/// Returns the offset up to which an interrupted conversion has copied data that are still valid; `None` if
/// the conversion must start over.
fn resume_offset(
    record: &Record,
    from: &DiskSource,
    version: &Version,
    target: &Target,
    screen: &Screen,
) -> Option<u64> {
    let what = if record.from != from.to_string() || record.version != version.text {
        "the source was replaced or changed"
    } else if record.has_just_begun() {
        return None;
    } else if identity::of_copy(&target.disk).ok() != record.copy {
        "the copy was removed, or has another format"
    } else {
        if !version.tells {
            screen.say("changes of the source since then cannot be detected: use --verify to compare");
        }
        return Some(record.durable_bytes);
    };
    screen.say(&format!("{what} since the earlier conversion: starting over"));
    None
}

/// Returns `true` if `other` is a layer below `one`, or the data file of any layer.
fn depends_on(one: &DiskSource, other: &DiskSource) -> Result<bool, Failure> {
    let raw = |path: &Path| DiskSource::Raw { path: path.to_owned(), cache: HostCache::Host };
    let layers = one.layers()?;
    let below = layers.iter().skip(1).map(|layer| layer.source.clone());
    let data = layers.iter().filter_map(|layer| layer.data_file.as_deref()).map(raw);
    Ok(below.chain(data).any(|layer| is_same(&layer, other)))
}

/// Returns `true` if both are the same file.
fn is_same(one: &DiskSource, other: &DiskSource) -> bool {
    let path = |source: &DiskSource| match source {
        DiskSource::File(Location::Dir(path)) => Some(path.clone()),
        _ => source.file().map(PathBuf::from),
    };
    let file = |source: &DiskSource| {
        let it = fs::metadata(path(source)?).ok()?;
        Some(if it.rdev() == 0 { (it.dev(), it.ino()) } else { (0, it.rdev()) })
    };
    match (file(one), file(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one.to_string() == other.to_string() || identity::is_one_file(one, other),
    }
}

impl Conversion {
    /// Copies the data from offset `start` on, and records how much of the copy is durable.
    fn copy(&mut self, stop: &Arc<AtomicBool>, screen: &Arc<Screen>) -> Result<Tally, Failure> {
        let watched = Watched::default();
        let mut record = Record {
            from: self.from.to_string(),
            version: self.version.text.clone(),
            copy: Some(identity::of_copy(&self.target.disk)?),
            durable_bytes: self.start,
        };
        self.records.write(&record).or_cannot(RECORDING)?;
        let copy = Copy {
            from: self.source.clone(),
            to: self.copy.clone(),
            start: self.start,
            is_blank: self.is_blank,
            durable_every_bytes: DURABLE_EVERY_BYTES,
            stop: stop.clone(),
            watched: watched.clone(),
        };
        let records = &mut self.records;
        let progress = Progress::start(screen, shower("copied", &*self.source, &watched));
        let ended = block_on(copy.run(|durable_bytes| {
            record.durable_bytes = durable_bytes;
            records.write(&record).map_err(Error::io)
        }));
        drop(progress);
        if record.durable_bytes == 0 && !matches!(ended, Ok(Ended::Complete)) && self.target.abandon() {
            self.records.forget();
        }
        match ended {
            Ok(Ended::Complete) => Ok(watched.tally()),
            Ok(Ended::Stopped) => Err(Failure::silent()),
            Err(fault) => Err(self
                .explained(&fault)
                .remedy("fix the problem and continue with the same command and --resume")),
        }
    }

    fn verify(&mut self, stop: &AtomicBool, screen: &Arc<Screen>) -> Outcome {
        let watched = Watched::default();
        let progress = Progress::start(screen, shower("compared", &*self.source, &watched));
        let compared = block_on(compare(self.source.clone(), self.copy.clone(), stop, watched));
        drop(progress);
        match compared.map_err(|fault| self.explained(&fault))? {
            _ if stop.load(Ordering::Relaxed) => Err(Failure::silent()),
            None => Ok(()),
            Some(offset) => {
                self.discard();
                let reason = format!("the copy differs from {} at offset {offset}", self.from);
                Err(Failure::cannot(format_args!("convert to {}", self.to), reason)
                    .remedy("run the conversion again"))
            }
        }
    }

    /// Gives a temporary copy its name. Fails, and removes such a copy, if the source has changed.
    fn finish(&mut self) -> Outcome {
        if Version::of(&self.from, &*self.source)? != self.version {
            self.discard();
            let reason = "it changed during the conversion";
            return Err(Failure::cannot(format_args!("convert {}", self.from), reason)
                .remedy("run it again while nothing writes to the source"));
        }
        self.target.finish()?;
        self.records.forget();
        Ok(())
    }

    /// Removes a copy under a temporary name, and the record, without which no conversion is resumed.
    fn discard(&mut self) {
        self.target.abandon();
        self.records.forget();
    }

    fn explained(&self, fault: &Fault) -> Failure {
        let Fault { step, offset, error } = fault;
        let place = match step {
            Step::Map | Step::Read => &self.from,
            _ => &self.to,
        };
        let full = "no space left";
        let doing = format!("{step} at offset {offset} of {place}");
        match error {
            Error::NoSpace => Failure::cannot(doing, full),
            error => Failure::cannot(doing, error),
        }
    }
}

impl Done {
    fn text(&self) -> String {
        let copied_bytes = self.data_bytes + self.zero_bytes;
        let rate = (copied_bytes as f64 / self.seconds.max(0.001)) as u64;
        let mut text = format!(
            "copied {} in {:.1} s ({}/s): {} of data, {} of zeroes",
            size(copied_bytes),
            self.seconds,
            size(rate),
            size(self.data_bytes),
            size(self.zero_bytes)
        );
        if self.resumed_bytes > 0 {
            text += &format!("; {} copied earlier", size(self.resumed_bytes));
        }
        if self.verified {
            text += "; verified";
        }
        text
    }
}

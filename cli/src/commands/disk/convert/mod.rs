//! `tombolo disk convert`: copies a disk into another, whatever both lie in.

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
use crate::commands::files::{print, stop};
use crate::failure::{Failure, Outcome};
use crate::location::Location;
use crate::progress::{Progress, Screen, Style};

use super::{Shower, stopping};
use identity::Version;
use record::{Record, Records};
use target::{Prepared, Target};

/// Copy a disk into another: from and to raw and qcow2 images, block devices, disks of NBD servers, and files
/// of NFS servers.
///
/// Holes stay holes, blocks of zeroes become some, and many pieces are under way at once. A file of this host
/// is written as .NAME.tombolo-part beside its place and gets its name when it is complete and durable; what
/// it replaces is there until then. What is there otherwise, such as a block device, is written over, and
/// what lies behind the source's length is left.
///
/// After an interruption, whatever it was, the same command with --resume goes on with what is durable. It
/// begins anew if the source was changed meanwhile. Of block devices and NBD servers as a source that cannot
/// be told: --verify compares.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DiskConvertArgs {
    /// Replace TO if it is a file, or write over what it holds.
    #[arg(short, long)]
    force: bool,
    /// Go on with what an earlier conversion of FROM into TO left.
    #[arg(long)]
    resume: bool,
    /// Compare both when all is copied.
    #[arg(long)]
    verify: bool,
    /// Tell how far it is every 10 seconds, where there is no terminal for a bar.
    #[arg(long)]
    progress: bool,
    /// Say as JSON what was done.
    #[arg(long)]
    json: bool,
    /// What kind of image TO is to be, raw or qcow2 (by default qcow2 where the name ends in .qcow2, else
    /// raw).
    #[arg(long, value_name = "FORMAT", value_parser = whole_image())]
    format: Option<ImageFormat>,
    /// What kind of image FROM is (by default as its name says).
    #[arg(long, value_name = "FORMAT")]
    from_format: Option<ImageFormat>,
    /// Where images may lie that FROM stands on, besides its own directory.
    #[arg(long, value_name = "DIR")]
    backing_dir: Option<PathBuf>,
    /// What FROM stands on, if it is an overlay. Without, it says so itself. Once more: what that stands on,
    /// if it is an overlay too.
    #[arg(long, value_name = "DISK")]
    base: Vec<PathBuf>,
    /// Refuse a --base that lies behind a symbolic link.
    #[arg(long, hide = true)]
    base_no_links: bool,
    #[command(flatten)]
    wait: WaitArgs,
    /// The disk to copy, as for a server of it.
    from: PathBuf,
    /// What it is copied into.
    to: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tombolo disk convert vm.img vm.qcow2
  tombolo disk convert clone.qcow2 --backing-dir /srv/golden /dev/vg0/vm --force
  tombolo disk convert nbd://ship/vm vm.img
  tombolo disk convert vm.qcow2 nfs://server/images/vm.img --verify
  tombolo disk convert nbd://ship/vm vm.img --resume";

/// An overlay is not written as a whole.
fn whole_image() -> impl TypedValueParser<Value = ImageFormat> {
    PossibleValuesParser::new(["raw", "qcow2"]).try_map(|name| ImageFormat::from_str(&name, false))
}

/// So much is copied again at most after a kill, in bytes, or five seconds' worth.
const DURABLE_EVERY_BYTES: u64 = 256 << 20;

const RECORDING: &str = "keep a record of the conversion";

/// What was done, as it goes out as JSON.
#[derive(Serialize)]
struct Done {
    from: String,
    to: String,
    size_bytes: u64,
    /// What an earlier conversion has copied.
    resumed_bytes: u64,
    data_bytes: u64,
    zero_bytes: u64,
    seconds: f64,
    verified: bool,
}

/// A conversion whose two sides are open.
struct Conversion {
    from: DiskSource,
    to: DiskSource,
    source: Arc<dyn BlockDevice>,
    version: Version,
    target: Target,
    copy: Arc<dyn BlockDevice>,
    is_blank: bool,
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
                screen.say("interrupted: the same command with --resume goes on");
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
            (true, _) => {
                let text = serde_json::to_string_pretty(&done);
                print(&text.map_err(|error| Failure::cannot("write JSON", &error))?)
            }
            (false, 0) => print(&done.text()),
            (false, _) => Ok(()),
        }
    }

    /// Opens both sides.
    fn begin(&self, pool: &ThreadPool, screen: &Screen) -> Result<Conversion, Failure> {
        let myself = Myself::ask();
        let from = DiskSource::of_word(&self.from, &self.source_options())?;
        let to =
            DiskSource::of_word(&self.to, &ImageOptions { format: self.format, ..ImageOptions::default() })?;
        if is_same(&from, &to) {
            return Err(Failure::usage(format!("{from} cannot be converted into itself")));
        }
        if stands_on(&from, &to)? {
            return Err(Failure::usage(format!("{from} cannot be converted into {to}, which it stands on")));
        }
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let source = from.open(&options, pool)?.disk;
        let version = Version::of(&from, &*source)?;
        let size_bytes = source.geometry().size_bytes;
        let mut records = Records::of(&to)?;
        let record = records.read().filter(|_| self.resume);
        let access = Access::of(&from, myself.umask)?;
        let target = Target::of(&to, size_bytes, self.force, record.as_ref(), (access, &myself))?;
        let left = record.as_ref().and_then(|record| left_by(record, &from, &version, &target, screen));
        if left.is_none() {
            if self.resume && record.is_none() {
                screen.say("nothing is known of an earlier conversion: beginning anew");
            }
            target.must_be_ours(self.force)?;
            // The record of a file that is made is replaced below: without one a kill in between would leave
            // a file that no later conversion knows.
            if !target.is_new() {
                records.forget();
            }
        }
        let start = left.unwrap_or(0).min(size_bytes);
        if target.is_new() {
            // Whatever happens before there is more to say of it.
            let begun = Record { from: from.to_string(), version: version.text.clone(), ..Record::default() };
            records.write(&begun).map_err(|error| Failure::cannot(RECORDING, &error))?;
        }
        let Prepared { disk: copy, is_blank } = target.open(size_bytes, start, pool)?;
        Ok(Conversion { from, to, source, version, target, copy, is_blank, start, records })
    }
}

/// Up to where a conversion that was broken off has left what this one needs.
fn left_by(
    record: &Record,
    from: &DiskSource,
    version: &Version,
    target: &Target,
    screen: &Screen,
) -> Option<u64> {
    let what = if record.from != from.to_string() || record.version != version.text {
        "the source is another, or was changed,"
    } else if record.has_just_begun() {
        return None;
    } else if identity::of_copy(&target.disk).ok() != record.copy {
        "what was copied is gone, or in another format,"
    } else {
        if !version.tells {
            screen.say("that the source was not changed meanwhile cannot be told: --verify compares");
        }
        return Some(record.durable_bytes);
    };
    screen.say(&format!("{what} since the earlier conversion: beginning anew"));
    None
}

/// Whether some of what is in one lies in the other, which it stands on.
fn stands_on(one: &DiskSource, other: &DiskSource) -> Result<bool, Failure> {
    let raw = |path: &Path| DiskSource::Raw { path: path.to_owned(), cache: HostCache::Host };
    let layers = one.layers()?;
    let below = layers.iter().skip(1).map(|layer| layer.source.clone());
    let data = layers.iter().filter_map(|layer| layer.data_file.as_deref()).map(raw);
    Ok(below.chain(data).any(|layer| is_same(&layer, other)))
}

/// Whether both are one file.
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
    /// Copies what is not there yet.
    fn copy(&mut self, stop: &Arc<AtomicBool>, screen: &Arc<Screen>) -> Result<Tally, Failure> {
        let watched = Watched::default();
        let mut record = Record {
            from: self.from.to_string(),
            version: self.version.text.clone(),
            copy: Some(identity::of_copy(&self.target.disk)?),
            durable_bytes: self.start,
        };
        self.records.write(&record).map_err(|error| Failure::cannot(RECORDING, &error))?;
        let copy = Copy {
            from: self.source.clone(),
            to: self.copy.clone(),
            start: self.start,
            is_blank: self.is_blank,
            durable_every_bytes: DURABLE_EVERY_BYTES,
            stop: stop.clone(),
            watched: watched.clone(),
        };
        let shower = Shower::new("copied", &*self.source, &watched);
        let records = &mut self.records;
        let progress = Progress::start(screen, Arc::new(shower));
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
                .remedy("when that is mended the same command with --resume goes on")),
        }
    }

    fn verify(&mut self, stop: &AtomicBool, screen: &Arc<Screen>) -> Outcome {
        let watched = Watched::default();
        let shower = Shower::new("compared", &*self.source, &watched);
        let progress = Progress::start(screen, Arc::new(shower));
        let compared = block_on(compare(self.source.clone(), self.copy.clone(), stop, watched));
        drop(progress);
        match compared.map_err(|fault| self.explained(&fault))? {
            _ if stop.load(Ordering::Relaxed) => Err(Failure::silent()),
            None => Ok(()),
            Some(offset) => {
                self.void();
                let reason = format!("the copy differs from {} at offset {offset}", self.from);
                Err(Failure::cannot(format_args!("convert to {}", self.to), reason)
                    .remedy("copy it once more"))
            }
        }
    }

    /// Gives the copy its name, if it is one of what the source still is.
    fn finish(&mut self) -> Outcome {
        if Version::of(&self.from, &*self.source)? != self.version {
            self.void();
            let reason = "it was changed while it was copied";
            return Err(Failure::cannot(format_args!("convert {}", self.from), reason)
                .remedy("copy it once more when nothing writes to it"));
        }
        self.target.finish()?;
        self.records.forget();
        Ok(())
    }

    /// What was copied is good for nothing.
    fn void(&mut self) {
        self.target.abandon();
        self.records.forget();
    }

    fn explained(&self, fault: &Fault) -> Failure {
        let Fault { step, offset, error } = fault;
        let place = match step {
            Step::Map | Step::Read => &self.from,
            _ => &self.to,
        };
        let full = "there is no room left for it";
        let doing = format!("{step} at offset {offset} of {place}");
        match error {
            Error::NoSpace => Failure::cannot(doing, full),
            error => Failure::cannot(doing, error),
        }
    }
}

impl Done {
    /// In a line.
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
            text += &format!("; {} were there", size(self.resumed_bytes));
        }
        if self.verified {
            text += "; compared, and the same";
        }
        text
    }
}

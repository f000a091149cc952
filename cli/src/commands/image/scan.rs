//! `tombolo image scan`: scans the files of a directory and writes their sidecar.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, SystemTime};

use clap::Args;
use tombolo_core::fs::Timestamp;
use tombolo_sys::open::{OpenFlags, open_entry, open_root};
use tombolo_wire_image::{Advice, DIGEST_BYTES, FILES_MAX, ImageFile, Malformed, NAME, Sidecar, digest};

use super::contents::{Contents, Scan, Scanned};
use super::sidecar::FullSidecar;
use super::trace::steps;
use crate::assembly::options::cache::Size;
use crate::assembly::options::policy::block_bytes;
use crate::commands::files::{print, shown};
use crate::commands::vm::{CONFIG, Config, TEXT_BYTES_MAX, digest_of_open, has_changed};
use crate::failure::{Failure, OrCannot, Outcome};
use crate::progress::bar;

/// Scan the files of an image and write their description, which proxies use to fetch less.
///
/// All files of the directory itself are read, except holes and hidden files. The result,
/// .tombolo-image, lists the blocks of zeroes and digests (BLAKE3) of the others. It is replaced as a whole,
/// and readable only by those who may read all of the files. The entry of a file is valid until the file's
/// size or modification time changes: then scan again.
#[derive(Args, Default)]
#[command(after_help = EXAMPLES)]
pub struct ImageScanArgs {
    /// Directory of the files.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Block size, a power of two from 4K to 1M (by default 4K, a page of memory).
    #[arg(long, value_name = "SIZE")]
    block: Option<Size>,
    /// Advice to proxies for a file: on-demand (the default) fetches what is read; whole fetches all of the
    /// file as soon as any of it is read. Repeatable.
    #[arg(long, value_name = "FILE=ADVICE")]
    advice: Vec<AdviceArg>,
    /// Trace of a VM's start, recorded by `tombolo proxy --record`: proxies prefetch it, in order, once a
    /// large file of the directory is read. Entries for files of other directories are ignored.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write no digests: a smaller .tombolo-image, but no detection of equal blocks.
    #[arg(long)]
    no_digests: bool,
    /// Number of threads, from 1 to 64 (by default one per processor, at most 8).
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo image scan /srv/images/debian
  tombolo image scan /srv/images/debian --trace start.trace
  tombolo image scan /srv/images/debian --advice memory=whole --block 64K";

/// Maximum number of digests in a sidecar: 256 MiB of them.
const DIGESTS_MAX: usize = (256 << 20) / DIGEST_BYTES;

/// Minimum age of a file when it is read, so that any later change has another time; exceeds the granularity
/// of the kernel's coarsest clock.
const AGE_MIN: Duration = Duration::from_millis(50);

/// Value FILE=ADVICE of `--advice`.
#[derive(Clone, Debug)]
struct AdviceArg {
    name: String,
    advice: Advice,
}

impl FromStr for AdviceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = match text.rsplit_once('=') {
            Some((name, "whole")) => Some((name, Advice::Whole)),
            Some((name, "on-demand")) => Some((name, Advice::OnDemand)),
            _ => None,
        };
        let (name, advice) = advice.ok_or("write FILE=whole or FILE=on-demand")?;
        Ok(Self { name: name.into(), advice })
    }
}

/// A file to be scanned, and its attributes before the scan.
struct ScanFile {
    name: Vec<u8>,
    path: PathBuf,
    before: Metadata,
}

impl ImageScanArgs {
    pub fn run(self) -> Outcome {
        let (whole, len) = self.scan()?;
        print(&summary(&whole, len))
    }

    /// Returns the arguments of `tombolo image scan DIR`.
    pub fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), ..Self::default() }
    }

    /// Scans all files and replaces the sidecar. Returns it and its length in bytes.
    pub fn scan(self) -> Result<(FullSidecar, u64), Failure> {
        let scanning = format!("scan {}", self.dir.display());
        let size = self.block.unwrap_or(Size(4 << 10));
        let block = block_bytes(size).ok_or_else(|| {
            let problem = "--block must be a power of two from 4K to 1M";
            Failure::usage(problem).remedy("for example --block 64K")
        })?;
        let (found, scanned) = found_in(&self.dir, &scanning)?;
        check_boot_files(&found, &scanned, &scanning)?;
        for AdviceArg { name, .. } in &self.advice {
            if !found.iter().any(|file| file.name == name.as_bytes()) {
                return Err(Failure::cannot(
                    &scanning,
                    format!("--advice names {name}, which is not in the directory"),
                ));
            }
        }
        let bar = bar();
        bar.set_length(scanned.iter().map(|file| file.size_bytes).sum());
        let jobs = self.jobs.map_or_else(threads, usize::from);
        let makes_digests = !self.no_digests;
        let scan =
            Scan { block_bytes: block.into(), makes_digests, digests_max: DIGESTS_MAX, jobs, bar: &bar };
        let contents = scan.of(&scanned);
        bar.finish_and_clear();
        let contents = contents.map_err(|(index, error)| {
            let path = found.get(index).map(|file| file.path.display().to_string()).unwrap_or_default();
            Failure::cannot(&scanning, format!("{path}: {error}"))
        })?;
        for (file, scanned) in found.iter().zip(&scanned) {
            let after = scanned.file.metadata().or_cannot(&scanning)?;
            if version(&file.before) != version(&after) {
                let problem = format!("{} changed during the scan", file.path.display());
                return Err(
                    Failure::cannot(&scanning, problem).remedy("scan again while nothing writes to it")
                );
            }
        }
        let mode = found.iter().fold(0o644, |mode, file| mode & (file.before.mode() | 0o600));
        let mut whole = self.said(block, &found, contents);
        if let Some(path) = &self.trace {
            let text = fs::read(path);
            let text =
                text.map_err(|error| Failure::cannot(&scanning, format!("{}: {error}", path.display())))?;
            whole.sidecar.trace = steps(&text, &dir_name(&self.dir), &whole.sidecar.files);
            if whole.sidecar.trace.is_empty() {
                let problem = format!("{} has no entries for its files", path.display());
                return Err(Failure::cannot(&scanning, problem));
            }
        }
        let len = whole.write(&self.dir, mode).map_err(|error| {
            let is_large = matches!(whole.sidecar.encode(), Err(Malformed::TooLarge));
            let remedy = "use a larger block size, such as --block 64K";
            Failure::cannot(&scanning, &error).remedy_if(is_large, remedy)
        })?;
        Ok((whole, len))
    }

    /// Returns the sidecar for these files and contents, without a trace.
    fn said(&self, block_bytes: u32, found: &[ScanFile], contents: Vec<Contents>) -> FullSidecar {
        let mut whole = FullSidecar::default();
        for (file, contents) in found.iter().zip(contents) {
            let advice = self.advice.iter().rev().find(|said| said.name.as_bytes() == file.name);
            let table = (!self.no_digests).then(|| digest(contents.digests.as_flattened()));
            let (size, mtime, _) = version(&file.before);
            whole.sidecar.files.push(ImageFile {
                name: file.name.clone(),
                size,
                mtime,
                block_bytes,
                advice: advice.map(|said| said.advice).unwrap_or_default(),
                zeros: contents.zeros,
                table,
            });
            whole.digests.push(contents.digests);
        }
        whole
    }
}

/// Returns the result of a scan in one line. `len` is the length of the sidecar in bytes.
fn summary(whole: &FullSidecar, len: u64) -> String {
    let Sidecar { files, .. } = &whole.sidecar;
    let [size, zeros] = [|file: &ImageFile| file.size, ImageFile::zero_bytes]
        .map(|bytes| shown::short_size(files.iter().map(bytes).sum()));
    format!(
        "{} files with {size}, of which {zeros} zeroes; wrote {NAME} ({})",
        files.len(),
        shown::short_size(len)
    )
}

/// Opens the files of a directory, in the order of their names, and waits until each is old enough to be
/// scanned.
fn found_in(dir: &Path, scanning: &str) -> Result<(Vec<ScanFile>, Vec<Scanned>), Failure> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).or_cannot(scanning)? {
        let entry = entry.or_cannot(scanning)?;
        let is_hidden = entry.file_name().as_bytes().starts_with(b".");
        if entry.file_type().or_cannot(scanning)?.is_file() && !is_hidden {
            names.push(entry.file_name());
        }
    }
    if names.is_empty() {
        return Err(Failure::cannot(scanning, "it contains no files"));
    }
    if names.len() > FILES_MAX {
        return Err(Failure::cannot(scanning, format!("it contains more than {FILES_MAX} files")));
    }
    names.sort_unstable_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
    let (mut found, mut scanned) = (Vec::new(), Vec::new());
    let place = open_root(dir).map_err(std::io::Error::from).or_cannot(scanning)?;
    for name in names {
        let path = dir.join(&name);
        // The directory may belong to another user, who may have placed a link or a pipe there meanwhile.
        let opened = open_entry(place.as_fd(), name.as_bytes(), OpenFlags::RDONLY | OpenFlags::NONBLOCK, 0);
        let opened = opened.map_err(std::io::Error::from).map(File::from).and_then(|file| {
            let before = aged(&file)?;
            Ok((file, before))
        });
        let (file, before) =
            opened.map_err(|error| Failure::cannot(scanning, format!("{}: {error}", path.display())))?;
        scanned.push(Scanned { file, size_bytes: before.size() });
        found.push(ScanFile { name: name.as_bytes().to_vec(), path, before });
    }
    Ok((found, scanned))
}

/// Refuses an image whose kernel or initial RAM disk differs from the digest in its `vm.toml`: clones that
/// trust the sidecar do not check these files.
fn check_boot_files(found: &[ScanFile], scanned: &[Scanned], scanning: &str) -> Outcome {
    let file = |name: &str| {
        let place = found.iter().position(|file| file.name == name.as_bytes())?;
        Some((&scanned.get(place)?.file, found.get(place)?.path.as_path()))
    };
    let Some((text, path)) = file(CONFIG) else { return Ok(()) };
    let text = io::read_to_string(text.take(TEXT_BYTES_MAX));
    // A directory without a valid `vm.toml` is not an image, and passes.
    let Some(config) = text.ok().and_then(|text| Config::read(&text, path).ok()) else { return Ok(()) };
    for name in config.boot_files() {
        let Some((file, path)) = file(name) else { continue };
        let digest = digest_of_open(file)
            .map_err(|error| Failure::cannot(scanning, format!("{}: {error}", path.display())))?;
        if config.digest_of(name) != Some(&digest) {
            return Err(has_changed(scanning, name));
        }
    }
    Ok(())
}

/// Returns the file's metadata once any later change would alter its times. Writes through a mapping update
/// the time only when a clean page is dirtied, so dirty pages are flushed first.
fn aged(file: &File) -> std::io::Result<Metadata> {
    file.sync_all()?;
    let age = SystemTime::now().duration_since(file.metadata()?.modified()?).unwrap_or_default();
    thread::sleep(AGE_MIN.saturating_sub(age));
    file.metadata()
}

/// Returns the version of a file: size, modification and change time.
fn version(of: &Metadata) -> (u64, Timestamp, Timestamp) {
    let time = |secs, nanos: i64| Timestamp { secs, nanos: nanos.try_into().unwrap_or(0) };
    (of.size(), time(of.mtime(), of.mtime_nsec()), time(of.ctime(), of.ctime_nsec()))
}

/// Returns the last component of the directory's path, as in a trace.
fn dir_name(dir: &Path) -> Vec<u8> {
    let full = dir.canonicalize().unwrap_or_default();
    full.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default()
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get().min(8))
}

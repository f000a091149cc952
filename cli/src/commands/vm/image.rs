//! Images: directories with the `vm.toml`, `disk`, `memory` and device state of a machine, from which VMs are
//! created.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
use std::thread;

use clap::Args;
use tombolo_sys::process::{Death, ends_with_this_thread};

use super::ahead;
use super::chain::{self, Bases, Ground};
use super::changes::{self, ImageCaches, file_of, files};
use super::config::{CONFIG, Config, DISK, HERE, HostConfig, INITRD, KERNEL, MEMORY, STATE, digest_of, uuid};
use super::fetch::{Files, has_changed};
use super::home::{Home, Phase};
use super::image_cache::CacheArgs;
use super::ledger::Ledger;
use super::shares::Share;
use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::access::Access;
use crate::assembly::plan::disk::DiskSource;
use crate::assembly::plan::overlay::{OverlaySource, sync_name};
use crate::commands::files::print;
use crate::commands::image::scan::ImageScanArgs;
use crate::failure::{Failure, OrCannot, Outcome};

/// Runs another command of this program as a subprocess, without its standard output.
fn this_program(words: impl FnOnce(&mut Command)) -> Outcome {
    let mut command = Command::new("/proc/self/exe");
    words(&mut command);
    ends_with_this_thread(&mut command, Death::Killed);
    match command.stdout(std::process::Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        // The subprocess has printed the reason.
        Ok(_) => Err(Failure::silent()),
        Err(error) => Err(Failure::cannot("start a subprocess", &error)),
    }
}

/// Returns the file name of the overlay with a VM's changes to its disk or memory (`what`).
pub fn overlay(what: &str) -> String {
    format!("{what}.overlay")
}

/// Options of a new image.
#[derive(Args)]
pub struct ImageArgs {
    /// Create an incremental image: only the changes since the image that the VM was cloned from, which is
    /// its base and must not change.
    #[arg(long, requires = "to")]
    pub changes: bool,
    /// Do not create .tombolo-image, with which remote clones read less of the image (see tombolo image
    /// scan).
    #[arg(long, requires = "to")]
    no_scan: bool,
}

/// Creates an image of a suspended VM, atomically.
pub fn make(home: &Home, dir: &Path, how: &ImageArgs) -> Outcome {
    let _lock = home.locked()?;
    let making = format!("create image {}", dir.display());
    if home.phase()? != Phase::Suspended {
        return Err(Failure::cannot(&making, format!("VM {} is not suspended", home.name)));
    }
    if dir.exists() {
        return Err(Failure::cannot(&making, "it already exists").remedy("choose another"));
    }
    remove_unfinished(home);
    let draft = dir.with_added_extension(format!("{}.part", uuid()?));
    // The VM is locked, so any writer of a draft found later has ended.
    record_unfinished(home, &draft, 0).or_cannot(&making)?;
    // The guest's memory may hold secrets.
    fs::DirBuilder::new().mode(0o700).create(&draft).or_cannot(&making)?;
    let inode = fs::symlink_metadata(&draft).or_cannot(&making)?.ino();
    record_unfinished(home, &draft, inode).or_cannot(&making)?;
    fill(home, dir, &draft, how.changes, &making)
        .map(|()| {
            if !how.no_scan {
                scan(&draft)
            }
        })
        .and_then(|()| make_private(&draft).or_cannot(&making))
        .and_then(|()| fs::rename(&draft, dir).and_then(|()| sync_name(dir)).or_cannot(&making))
        .inspect_err(|_| remove_unfinished(home))?;
    let _ = fs::remove_file(home.file(UNFINISHED));
    if how.changes { print(&changes::summary(dir)?) } else { Ok(()) }
}

/// File in a VM's directory with the unfinished image of that VM: its inode, 0 until it exists, and its path.
const UNFINISHED: &str = "image.part";

fn record_unfinished(home: &Home, draft: &Path, inode: u64) -> io::Result<()> {
    let record = [format!("{inode} ").as_bytes(), draft.as_os_str().as_bytes()].concat();
    fs::write(home.file(UNFINISHED), record)
}

/// Removes the unfinished image that a killed `vm suspend --to` of this VM has left. The caller must have
/// locked the VM.
pub fn remove_unfinished(home: &Home) {
    let record = home.file(UNFINISHED);
    let Ok(text) = fs::read(&record) else { return };
    let removed = remove_draft(home, &text);
    // The record of an image in an unreachable directory is retained for a later attempt.
    if removed.map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |()| true) {
        let _ = fs::remove_file(record);
    }
}

/// Removes the directory of a record, unless another directory has its path by now.
fn remove_draft(home: &Home, record: &[u8]) -> io::Result<()> {
    let place = record.iter().position(|&byte| byte == b' ').ok_or(io::ErrorKind::NotFound)?;
    let (inode, path) = (&record[..place], Path::new(OsStr::from_bytes(&record[place + 1..])));
    let found = fs::symlink_metadata(path)?;
    let is_own = found.is_dir() && found.uid() == fs::metadata(home.file("."))?.uid();
    if is_own && found.ino().to_string().as_bytes() == inode {
        return fs::remove_dir_all(path);
    }
    // The process was killed before it recorded the inode.
    if is_own && inode == b"0" { fs::remove_dir(path) } else { Ok(()) }
}

/// Revokes all rights of other users to the files of an image, where its file system has such rights. Fails
/// if one is not a regular file, such as a link.
fn make_private(draft: &Path) -> io::Result<()> {
    for entry in fs::read_dir(draft)? {
        let path = entry?.path();
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(io::Error::other(format!("{}: not a regular file", path.display())));
        }
        let file = File::options().read(true).open(&path)?;
        match file.set_permissions(fs::Permissions::from_mode(0o600)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            made => made.and_then(|()| file.sync_all())?,
        }
    }
    Ok(())
}

/// Writes the files of an image, except the sidecar.
fn fill(home: &Home, dir: &Path, draft: &Path, changes: bool, making: &str) -> Outcome {
    let config = home.config()?;
    let _steady = chain::steady(home)?;
    let (bases, boot_files) = match changes {
        true => (changes::write(home, dir, draft)?, Vec::new()),
        false => {
            flatten(home, draft)?;
            fetch_boot_files(home)?;
            (Vec::new(), config.boot_files().collect())
        }
    };
    for name in [STATE].into_iter().chain(boot_files) {
        copy(&home.file(name), &draft.join(name)).or_cannot(making)?;
    }
    let text = toml::to_string(&Config { bases, ..config }).or_cannot("write the VM's configuration")?;
    let file = draft.join(CONFIG);
    fs::write(&file, text).and_then(|()| sync(&file)).or_cannot(making)?;
    sync(draft).or_cannot(making)
}

/// Writes disk and memory as standalone files.
fn flatten(home: &Home, draft: &Path) -> Outcome {
    let ground = Ground::of(home)?;
    for what in [DISK, MEMORY] {
        let bases = chain::bases(home, &ground, what)?;
        this_program(|command| {
            command.args(["disk", "convert"]);
            match bases {
                Some(bases) => command.args(bases.words()).arg(home.file(&overlay(what))),
                None => command.arg(home.file(what)),
            };
            command.arg(draft.join(what));
        })?;
    }
    Ok(())
}

/// Copies a file durably, except for its directory entry.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to).and_then(|_| sync(to))
}

fn sync(file: &Path) -> io::Result<()> {
    File::open(file)?.sync_all()
}

/// Writes the sidecar of a new image. A failure is only printed, because the sidecar is optional.
fn scan(draft: &Path) {
    if let Err(failure) = ImageScanArgs::of(draft).scan() {
        failure.remedy("the image was created without a sidecar").print();
    }
}

/// An image at a local directory or a URL.
pub struct Image {
    place: PathBuf,
    cache: CacheArgs,
    /// Locations of base images as the user gave them, from the top down; further ones are next to the image.
    bases: Vec<PathBuf>,
    /// Caches through which the image and its bases are read.
    caches: ImageCaches,
}

impl Image {
    pub fn of_word(word: &Path, bases: &[PathBuf], cache: CacheArgs) -> Result<Self, Failure> {
        Self::at(changes::place_of(word, &format!("find image {}", word.display()))?, bases, cache)
    }

    /// Returns the image at `place`, a URL or a path without links. Starts its cache if it is on an NFS
    /// server.
    pub fn at(place: PathBuf, bases: &[PathBuf], cache: CacheArgs) -> Result<Self, Failure> {
        let caches = ImageCaches::of(slice::from_ref(&place), &cache)?;
        Ok(Self { place, cache, bases: bases.to_vec(), caches })
    }

    fn file(&self, name: &str) -> PathBuf {
        file_of(&self.place, name)
    }

    /// Opens the directory of the image, through the cache.
    fn open(&self) -> Result<Files, Failure> {
        Files::of(&self.caches.near(&self.place))
    }

    /// Creates a VM from the image, suspended at the image's state.
    pub fn clone_to(
        &mut self,
        home: &Home,
        qemu: &Path,
        net: Option<String>,
        shares: Vec<Share>,
        ledger: &mut Ledger,
    ) -> Outcome {
        check_files(&self.place)?;
        if let Some(cache) = self.caches.first() {
            ledger.reads_through(cache.control());
            cache.look_ahead(&self.file(MEMORY));
        }
        // `fetch` and `begin` run concurrently, as both mostly wait for the network.
        let (config, begun) = thread::scope(|scope| {
            // The image is assumed to be standalone, the common case.
            let begun = scope.spawn(|| self.begin(home, slice::from_ref(&self.place)));
            (self.fetch(home), begun.join().unwrap_or_else(|_| Err(Failure::silent())))
        });
        let config = config?;
        let bases = changes::bases(&self.place, &config, &self.bases)?;
        match bases.last() {
            None if begun.is_ok() => {}
            // This repeats the failure of `begin`, unless the image has become available meanwhile.
            None => self.begin_anew(home, slice::from_ref(&self.place))?,
            Some(whole) => {
                self.begin_over(home, &bases)?;
                Files::of(&self.caches.near(whole))?.check_boot_files(&config)?;
            }
        }
        let fetched_bytes = fs::metadata(home.file(STATE)).map_or(0, |file| file.len());
        ledger.enter("device state, overlays", Some(fetched_bytes));
        self.check_length(home, &config)?;
        let (disk, memory) = (self.file(DISK), self.file(MEMORY));
        let here = HostConfig::new(disk, Some(memory), qemu.into(), net, self.cache.clone())?;
        home.write(HERE, &HostConfig { image: Some(self.place.clone()), bases, shares, ..here })?;
        home.set_phase(&Phase::Suspended)
    }

    /// Creates the overlays of a VM over these images.
    fn begin(&self, home: &Home, images: &[PathBuf]) -> Outcome {
        let begin = |what| {
            let files = files(images, what).iter().map(|file| self.caches.near(file)).collect();
            begin_at(&home.file(&overlay(what)), Bases { files, no_links: true })
        };
        thread::scope(|scope| {
            let disk = scope.spawn(|| begin(DISK));
            let memory = begin(MEMORY);
            disk.join().unwrap_or_else(|_| Err(Failure::silent())).and(memory)
        })
    }

    fn begin_over(&mut self, home: &Home, bases: &[PathBuf]) -> Outcome {
        for base in bases {
            check_files(base)?;
            self.caches.add(base, &self.cache)?;
        }
        let images: Vec<_> = [&self.place].into_iter().chain(bases).cloned().collect();
        // Remote overlays are validated when they are opened.
        let incremental = images.iter().rev().skip(1).filter(|image| !DiskSource::is_elsewhere(image));
        for image in incremental {
            for what in [DISK, MEMORY] {
                OverlaySource::new(file_of(image, &overlay(what)), &ImageOptions::default())
                    .without_links()
                    .check_finished()?;
            }
        }
        for file in [files(&images, MEMORY).first(), files(&images, MEMORY).last()].into_iter().flatten() {
            self.caches.look_ahead(file);
        }
        self.begin_anew(home, &images)
    }

    /// Recreates the overlays, which were begun for a standalone image.
    fn begin_anew(&self, home: &Home, images: &[PathBuf]) -> Outcome {
        for what in [DISK, MEMORY] {
            let _ = fs::remove_file(home.file(&overlay(what)));
        }
        self.begin(home, images)
    }

    /// Copies the files that are read as a whole, and writes the list of pages to read ahead.
    fn fetch(&self, home: &Home) -> Result<Config, Failure> {
        let files = self.open()?;
        let config = thread::scope(|scope| {
            let ahead = scope.spawn(|| self.look_ahead(&files, home));
            let state = scope.spawn(|| files.copy(&[STATE], &home.path));
            let copied = files.copy(&[CONFIG], &home.path);
            let config = copied.and_then(|()| home.config_of(&self.file(CONFIG)));
            // Incremental images have no boot files.
            let boot = match &config {
                Ok(config) if config.bases.is_empty() => files.check_boot_files(config),
                _ => Ok(()),
            };
            for part in [state, ahead] {
                part.join().unwrap_or_else(|_| Err(Failure::silent()))?;
            }
            boot.and(config)
        })?;
        for file in [CONFIG, STATE].map(|name| home.file(name)) {
            sync(&file).or_cannot(format_args!("write {}", file.display()))?;
        }
        Ok(config)
    }

    /// Writes the read-ahead trace. Remote images without a cache use read-around instead.
    fn look_ahead(&self, files: &Files, home: &Home) -> Outcome {
        let is_far = DiskSource::is_elsewhere(&self.place);
        if is_far && self.caches.first().is_none() {
            return Ok(());
        }
        files.sidecar_of(MEMORY).map_or(Ok(()), |sidecar| ahead::write_down(home, &sidecar, is_far))
    }

    /// Refuses an image whose memory has another size than its configuration states: the machine would fail
    /// at its start, or later.
    fn check_length(&self, home: &Home, config: &Config) -> Outcome {
        let found =
            OverlaySource::new(home.file(&overlay(MEMORY)), &ImageOptions::default()).header()?.size_bytes;
        if found == config.memory_bytes {
            return Ok(());
        }
        let reason = format!("its memory has {found} bytes, but {} are expected", config.memory_bytes);
        Err(Failure::cannot(format_args!("use image {}", self.place.display()), reason))
    }
}

/// Refuses a local image if one of its files is not a regular file: a link in a foreign image may lead to
/// files that its creator cannot read.
fn check_files(image: &Path) -> Outcome {
    if DiskSource::is_elsewhere(image) {
        return Ok(());
    }
    let changes = [DISK, MEMORY].map(overlay);
    let names = [CONFIG, DISK, MEMORY, STATE, KERNEL, INITRD].into_iter();
    for file in names.chain(changes.iter().map(String::as_str)).map(|name| image.join(name)) {
        // Missing files are reported when needed.
        if fs::symlink_metadata(&file).is_ok_and(|found| !found.is_file()) {
            let reason = format!("{} is not a file", file.display());
            return Err(Failure::cannot(format_args!("use image {}", image.display()), reason));
        }
    }
    Ok(())
}

/// Refuses a VM whose image now has another kernel, which the VM would boot after a reset. A VM with its own
/// copy of the kernel is not affected.
pub fn check_boot_files(home: &Home) -> Outcome {
    let (config, here) = (home.config()?, home.here()?);
    let has_own = config.boot_files().all(|name| home.file(name).exists());
    let Some(image) = here.images().pop().filter(|_| !has_own) else { return Ok(()) };
    Image::at(image, &[], here.cache)?.open()?.check_boot_files(&config)
}

/// Copies the boot files of a VM from its image. A clone needs them only to boot, not to resume.
pub fn fetch_boot_files(home: &Home) -> Outcome {
    let missing = |name: &&str| !home.file(name).exists();
    let config = home.config()?;
    let names: Vec<_> = config.boot_files().filter(missing).collect();
    let here = home.here()?;
    // The standalone image has the boot files.
    let Some(image) = here.images().pop().filter(|_| !names.is_empty()) else { return Ok(()) };
    let fetching = format!("copy the kernel of VM {} from its image", home.name);
    // The files are copied to a draft directory: those in the VM's directory must be complete.
    let draft = home.file(BOOT_DRAFT);
    let _ = fs::remove_dir_all(&draft);
    fs::create_dir(&draft).or_cannot(&fetching)?;
    check_files(&image)?;
    let image = Image::at(image, &[], here.cache)?;
    image.open()?.copy(&names, &draft)?;
    for name in names {
        let file = draft.join(name);
        if config.digest_of(name) != Some(&digest_of(&file).or_cannot(&fetching)?) {
            let _ = fs::remove_dir_all(&draft);
            return Err(has_changed(&fetching, name));
        }
        sync(&file).and_then(|()| fs::rename(&file, home.file(name))).or_cannot(&fetching)?;
    }
    fs::remove_dir(&draft).or_cannot(&fetching)
}

/// Directory in that of a VM, for incomplete copies of boot files.
const BOOT_DRAFT: &str = "boot.new";

pub fn begin_at(path: &Path, bases: Bases) -> Outcome {
    OverlaySource::new(path.to_owned(), &bases.options()).create(None, Access::PRIVATE)
}

//! Images: directories with a machine's `vm.toml`, its `disk`, its `memory` and its device state, from which VMs are made.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use tombolo_sys::process::{Death, ends_with_this_thread};

use super::chain::{self, Ground};
use super::config::{CONFIG, Config, DISK, HERE, Here, INITRD, KERNEL, MEMORY, STATE, digest_of, uuid};
use super::home::{Home, Phase};
use super::ledger::Ledger;
use super::origin::{CacheArgs, Origin};
use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::disk::DiskSource;
use crate::assembly::plan::overlay::{OverlaySource, sync_name};
use crate::commands::image::scan::ImageScanArgs;
use crate::failure::{Failure, Outcome};

/// This program once more, without what it says when all is well.
fn this_program(words: impl FnOnce(&mut Command)) -> Outcome {
    let mut command = Command::new("/proc/self/exe");
    words(&mut command);
    ends_with_this_thread(&mut command, Death::Killed);
    match command.stdout(std::process::Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        // It has said why.
        Ok(_) => Err(Failure::silent()),
        Err(error) => Err(Failure::cannot("start this program once more", &error)),
    }
}

/// The name of an overlay.
pub fn overlay(what: &str) -> String {
    format!("{what}.overlay")
}

/// Makes an image of a VM that is suspended, with a sidecar if it `scans`. It is there whole or not at all.
pub fn make(home: &Home, dir: &Path, scans: bool) -> Outcome {
    let _lock = home.locked()?;
    let making = format!("make the image {}", dir.display());
    if home.phase()? != Phase::Suspended {
        return Err(Failure::cannot(&making, format!("the VM {} is not suspended", home.name)));
    }
    if dir.exists() {
        return Err(Failure::cannot(&making, "there is something of that name").remedy("choose another"));
    }
    let cannot = |error: std::io::Error| Failure::cannot(&making, &error);
    let draft = dir.with_added_extension(format!("{}.part", uuid()?));
    // What a guest has in its memory is for its user alone.
    fs::DirBuilder::new().mode(0o700).create(&draft).map_err(cannot)?;
    fill(home, &draft, &cannot)
        .map(|()| {
            if scans {
                scan(&draft)
            }
        })
        .and_then(|()| fs::rename(&draft, dir).and_then(|()| sync_name(dir)).map_err(cannot))
        .inspect_err(|_| drop(fs::remove_dir_all(&draft)))
}

/// Writes all files of an image.
fn fill(home: &Home, draft: &Path, cannot: &impl Fn(std::io::Error) -> Failure) -> Outcome {
    let ground = Ground::of(home)?;
    for what in [DISK, MEMORY] {
        let bases = chain::bases(home, &ground, what)?;
        this_program(|command| {
            command.args(["disk", "convert"]);
            match bases {
                Some(bases) => command.args(chain::as_words(&bases)).arg(home.file(&overlay(what))),
                None => command.arg(home.file(what)),
            };
            command.arg(draft.join(what));
        })?;
    }
    let config = home.config()?;
    fetch_boot_files(home)?;
    for name in [CONFIG, STATE].into_iter().chain(config.boot_files()) {
        let copy = draft.join(name);
        fs::copy(home.file(name), &copy).and_then(|_| File::open(&copy)?.sync_all()).map_err(cannot)?;
    }
    File::open(draft).and_then(|draft| draft.sync_all()).map_err(cannot)
}

/// Writes the sidecar. Without one it is an image too.
fn scan(draft: &Path) {
    if let Err(failure) = ImageScanArgs::of(draft).scan() {
        failure.remedy("the image is made without a sidecar").print();
    }
}

/// Where an image lies: a directory of this host, or a URL of one elsewhere.
pub struct Image {
    place: PathBuf,
    cache: CacheArgs,
    /// What it is read through, if that is not the place itself.
    origin: Option<Origin>,
}

impl Image {
    pub fn of_word(word: &Path, cache: CacheArgs) -> Result<Self, Failure> {
        let place = if DiskSource::is_elsewhere(word) {
            word.to_owned()
        } else {
            let looking = |error| Failure::cannot(format_args!("find the image {}", word.display()), &error);
            word.canonicalize().map_err(looking)?
        };
        let origin = Origin::of_image(&place, &cache)?;
        Ok(Self { place, cache, origin })
    }

    /// A file of it. What a URL says behind `?` stays there.
    fn file(&self, name: &str) -> PathBuf {
        match self.place.to_str().and_then(|url| url.split_once('?')) {
            Some((path, query)) if DiskSource::is_elsewhere(&self.place) => {
                format!("{}/{name}?{query}", path.trim_end_matches('/')).into()
            }
            _ => self.place.join(name),
        }
    }

    /// The same as this host has it.
    fn near(&self, name: &str) -> PathBuf {
        near(self.origin.as_ref(), &self.file(name))
    }

    fn copy(&self, names: &[&str], to: &Path) -> Outcome {
        this_program(|command| {
            command.arg("cp").args(names.iter().map(|name| self.near(name))).arg(to);
        })
    }

    /// Makes a VM of it that is suspended where the image was.
    pub fn clone_to(&self, home: &Home, qemu: &Path, net: Option<String>, ledger: &mut Ledger) -> Outcome {
        self.check_files()?;
        if let Some(origin) = &self.origin {
            ledger.reads_through(origin.control());
            origin.look_ahead(&self.file(MEMORY));
        }
        // Each waits for the line most of its time.
        let (config, disk, memory) = thread::scope(|scope| {
            let begin = |what| begin_at(&home.file(&overlay(what)), vec![self.near(what)]);
            let disk = scope.spawn(move || begin(DISK));
            let memory = scope.spawn(move || begin(MEMORY));
            let config = self.copy_files(home);
            let ended = |thread: ScopedJoinHandle<'_, Outcome>| {
                thread.join().unwrap_or_else(|_| Err(Failure::silent()))
            };
            (config, ended(disk), ended(memory))
        });
        let config = config?;
        disk.and(memory)?;
        let fetched_bytes = fs::metadata(home.file(STATE)).map_or(0, |file| file.len());
        ledger.enter("device state, overlays", Some(fetched_bytes));
        self.check_length(home, &config)?;
        let (disk, memory) = (self.file(DISK), self.file(MEMORY));
        let here = Here::new(disk, Some(memory), qemu.into(), net, self.cache.clone())?;
        home.write(HERE, &Here { image: Some(self.place.clone()), ..here })?;
        home.set_phase(&Phase::Suspended)
    }

    /// One that comes from elsewhere may have links that lead out of it, to what its maker may not read.
    fn check_files(&self) -> Outcome {
        if DiskSource::is_elsewhere(&self.place) {
            return Ok(());
        }
        for file in [CONFIG, DISK, MEMORY, STATE, KERNEL, INITRD].map(|name| self.file(name)) {
            // What is missing is told when it is needed.
            if fs::symlink_metadata(&file).is_ok_and(|found| !found.is_file()) {
                let reason = format!("{} is not a file", file.display());
                return Err(Failure::cannot(format_args!("use the image {}", self.place.display()), reason));
            }
        }
        Ok(())
    }

    /// All that is read whole.
    fn copy_files(&self, home: &Home) -> Result<Config, Failure> {
        self.copy(&[CONFIG, STATE], &home.path)?;
        home.config()
    }

    /// A machine whose memory is not as long as it says would not start, or stop in its middle.
    fn check_length(&self, home: &Home, config: &Config) -> Outcome {
        let found =
            OverlaySource::new(home.file(&overlay(MEMORY)), &ImageOptions::default()).header()?.size_bytes;
        if found == config.memory_bytes {
            return Ok(());
        }
        let reason = format!("its memory has {found} bytes, and is to have {}", config.memory_bytes);
        Err(Failure::cannot(format_args!("use the image {}", self.place.display()), reason))
    }
}

/// Where something far away is read on this host.
pub fn near(origin: Option<&Origin>, place: &Path) -> PathBuf {
    origin.map_or_else(|| place.to_owned(), |origin| origin.near(place))
}

/// Has what a VM boots from here. A clone does not need it before it boots: it went on from its device state.
pub fn fetch_boot_files(home: &Home) -> Outcome {
    let missing = |name: &&str| !home.file(name).exists();
    let config = home.config()?;
    let names: Vec<_> = config.boot_files().filter(missing).collect();
    let here = home.here()?;
    let Some(image) = here.image.filter(|_| !names.is_empty()) else { return Ok(()) };
    let fetching = format!("have the kernel of the VM {} from its image", home.name);
    let cannot = |error: std::io::Error| Failure::cannot(&fetching, &error);
    // One that is there is whole.
    let draft = home.file(BOOT_DRAFT);
    let _ = fs::remove_dir_all(&draft);
    fs::create_dir(&draft).map_err(cannot)?;
    let image = Image::of_word(&image, here.cache)?;
    image.check_files()?;
    image.copy(&names, &draft)?;
    for name in names {
        let file = draft.join(name);
        if config.digest_of(name) != Some(&digest_of(&file).map_err(cannot)?) {
            let _ = fs::remove_dir_all(&draft);
            return Err(Failure::cannot(
                &fetching,
                format!("its {name} has changed since the image was made"),
            )
            .remedy("what was to boot fits no other: bring it back as it was"));
        }
        File::open(&file)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&file, home.file(name)))
            .map_err(cannot)?;
    }
    fs::remove_dir(&draft).map_err(cannot)
}

/// Where what comes is until all of it is there.
const BOOT_DRAFT: &str = "boot.new";

/// Makes an overlay over these, from the top down.
pub fn begin_at(path: &Path, bases: Vec<PathBuf>) -> Outcome {
    let options = ImageOptions { base: bases, ..ImageOptions::default() };
    OverlaySource::new(path.to_owned(), &options).create(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_an_image_elsewhere_is_named_before_what_is_said_of_its_server() {
        let file =
            |word: &str| Image { place: word.into(), cache: CacheArgs::default(), origin: None }.file("disk");
        assert_eq!(file("nfs://h/golden/").to_str(), Some("nfs://h/golden/disk"));
        assert_eq!(file("nfs://h/golden?soft").to_str(), Some("nfs://h/golden/disk?soft"));
        assert_eq!(file("/a?b").to_str(), Some("/a?b/disk"));
    }
}

//! Overlay chains of a VM's disk and memory: the VM's own overlays, left by checkpoints and numbered upwards,
//! over the original base.
//!
//! A checkpoint exists once its device state (`state.N`) does; `disk.N.overlay` and `memory.N.overlay` then
//! hold the changes between the previous checkpoint and this one. Later writes go to `disk.overlay` and
//! `memory.overlay`. Each step of making a checkpoint preserves the contents of both, so a process killed
//! between two steps leaves only files that [`tidy`] or [`remove_drafts`] cleans up.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::changes::{ImageCaches, files};
use super::config::{DISK, HERE, HostConfig, MEMORY, STATE};
use super::home::Home;
use super::image::{begin_at, overlay};
use super::running::{DRAFT, forget};
use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::overlay::{OverlaySource, mark_base, sync_name};
use crate::failure::{Failure, OrCannot, Outcome};

/// The two kinds of overlays of a VM, as in their file names.
pub const KINDS: [&str; 2] = [DISK, MEMORY];

/// Returns the file name of a checkpoint's overlay.
fn layer(what: &str, number: u32) -> String {
    format!("{what}.{number}.overlay")
}

fn state(number: u32) -> String {
    format!("{STATE}.{number}")
}

/// Returns N of a file name that consists of `before`, `.N` and `after`; `None` for other names.
fn number_in(name: &OsStr, before: &str, after: &str) -> Option<u32> {
    name.to_str()?.strip_prefix(before)?.strip_prefix('.')?.strip_suffix(after)?.parse().ok()
}

/// Layers below an overlay.
#[derive(Clone, Default)]
pub struct Bases {
    /// Paths from the top down.
    pub files: Vec<PathBuf>,
    /// `true` if the bases belong to an image, perhaps of another user, who may put links there at any time:
    /// no link is followed.
    pub no_links: bool,
}

impl Bases {
    pub fn options(self) -> ImageOptions {
        ImageOptions { base: self.files, base_no_links: self.no_links, ..ImageOptions::default() }
    }

    /// Returns the options of `tombolo disk` for these layers.
    pub fn words(&self) -> impl Iterator<Item = &Path> {
        let no_links = self.no_links.then_some(Path::new("--base-no-links"));
        no_links.into_iter().chain(self.files.iter().flat_map(|base| [Path::new("--base"), base]))
    }

    fn under(mut self, top: PathBuf) -> Self {
        self.files.insert(0, top);
        self
    }
}

fn source(home: &Home, name: &str, bases: Bases) -> OverlaySource {
    OverlaySource::new(home.file(name), &bases.options())
}

/// Returns the numbers of the VM's own overlays below the top, from the top down.
pub fn layers(home: &Home, what: &str) -> Result<Vec<u32>, Failure> {
    let (mut found, mut name): (Vec<u32>, _) = (Vec::new(), overlay(what));
    loop {
        let header = source(home, &name, Bases::default()).header()?;
        let below = number_in(OsStr::from_bytes(&header.base_name), what, ".overlay");
        // A layer is older than the one above it, so a base without a lower number is no layer of the VM.
        match below.filter(|below| found.last().is_none_or(|above| below < above)) {
            Some(below) => found.push(below),
            None => return Ok(found),
        }
        name = found.last().map(|below| layer(what, *below)).unwrap_or_default();
    }
}

/// Source of the original bases of a VM's overlays, and the caches through which they are read.
pub struct Ground {
    pub here: HostConfig,
    /// Caches through which the VM's images are read.
    pub caches: ImageCaches,
}

impl Ground {
    pub fn of(home: &Home) -> Result<Self, Failure> {
        let here = home.here()?;
        let caches = match &here.image {
            Some(_) => ImageCaches::of(&here.images(), &here.cache)?,
            None => ImageCaches::of_file(&here.disk, &here.cache)?,
        };
        Ok(Self { caches, here })
    }

    /// Returns the original base of disk or memory. `None` for a memory that is a plain file.
    fn began_as(&self, what: &str) -> Option<Bases> {
        let HostConfig { disk, memory, image, .. } = &self.here;
        let files = match image {
            Some(_) => files(&self.here.images(), what),
            None => vec![if what == DISK { disk.clone() } else { memory.clone()? }],
        };
        let files = files.iter().map(|file| self.caches.near(file)).collect();
        Some(Bases { files, no_links: image.is_some() })
    }
}

/// Returns the layers below the top overlay. `None` for a memory that is a plain file.
pub fn bases(home: &Home, ground: &Ground, what: &str) -> Result<Option<Bases>, Failure> {
    let Some(Bases { files, no_links }) = ground.began_as(what) else { return Ok(None) };
    let own = layers(home, what)?.into_iter().map(|number| home.file(&layer(what, number)));
    Ok(Some(Bases { files: own.chain(files).collect(), no_links }))
}

fn steady_lock(
    home: &Home,
    lock: impl FnOnce(&File) -> Result<(), TryLockError>,
) -> Result<Option<File>, Failure> {
    let file = home.file("chain.lock");
    let taken = File::create(&file).map_err(TryLockError::Error).and_then(|file| lock(&file).map(|()| file));
    match taken {
        Ok(file) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => {
            Err(Failure::cannot(format_args!("lock {}", file.display()), &error))
        }
    }
}

/// Locks the chains until the result is dropped, so that no layer is replaced or removed while they are
/// opened. Waits for another process that replaces layers; [`tidy`] does not wait, and leaves locked chains
/// as they are.
pub fn steady(home: &Home) -> Result<Option<File>, Failure> {
    steady_lock(home, |file| file.lock_shared().map_err(TryLockError::Error))
}

/// Returns the layers below one of the VM's own overlays.
fn below(home: &Home, ground: &Ground, what: &str, number: u32) -> Result<Bases, Failure> {
    let Bases { files, no_links } = bases(home, ground, what)?.unwrap_or_default();
    let own = home.file(&layer(what, number));
    let files = files.into_iter().skip_while(|path| *path != own).skip(1).collect();
    Ok(Bases { files, no_links })
}

/// Returns N of the files in the VM's directory named `before`, `.N` and `after`, in ascending order.
fn numbers(home: &Home, before: &str, after: &str) -> Result<Vec<u32>, Failure> {
    let found = || -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&home.path)? {
            found.extend(number_in(&entry?.file_name(), before, after));
        }
        found.sort_unstable();
        Ok(found)
    };
    found().or_cannot(format_args!("read {}", home.path.display()))
}

/// A state to which a VM can return.
pub struct Checkpoint {
    pub number: u32,
    /// Time at which the guest was paused for it.
    pub time: SystemTime,
    /// Allocated size of its overlays and its device state, in bytes.
    pub bytes: u64,
}

/// Returns all checkpoints of a VM, the oldest first.
pub fn checkpoints(home: &Home) -> Result<Vec<Checkpoint>, Failure> {
    let checkpoint = |number| {
        let names = KINDS.iter().map(|what| layer(what, number)).chain([state(number)]);
        let taken = |name: String| fs::metadata(home.file(&name)).map_or(0, |file| file.blocks() * 512);
        let time = fs::metadata(home.file(&state(number))).and_then(|file| file.modified());
        Checkpoint { number, time: time.unwrap_or(SystemTime::UNIX_EPOCH), bytes: names.map(taken).sum() }
    };
    Ok(numbers(home, STATE, "")?.into_iter().map(checkpoint).collect())
}

/// Returns the number of the next checkpoint, higher than that of any file left by an earlier one.
pub fn next_number(home: &Home) -> Result<u32, Failure> {
    let mut taken = numbers(home, STATE, "")?;
    for what in KINDS {
        taken.extend(numbers(home, what, ".overlay")?);
    }
    Ok(taken.into_iter().max().unwrap_or(0) + 1)
}

/// An empty overlay that will be the new top, above the present top, which becomes a checkpoint's layer.
pub struct Draft<'a> {
    home: &'a Home,
    pub what: &'static str,
    number: u32,
    pub file: File,
}

impl<'a> Draft<'a> {
    /// Creates the draft, and links the present top overlay to its later name as a layer. The top keeps its
    /// name too, so that starts of the VM still use it.
    pub fn make(home: &'a Home, what: &'static str, number: u32) -> Result<Self, Failure> {
        let top = source(home, &overlay(what), Bases::default());
        let file = top.draft(&home.file(&new(what)), &layer(what, number))?;
        let draft = Self { home, what, number, file };
        let frozen = draft.frozen();
        match fs::hard_link(home.file(&overlay(what)), &frozen).and_then(|()| sync_name(&frozen)) {
            Ok(()) => Ok(draft),
            Err(error) => {
                draft.discard();
                Err(Failure::cannot(format_args!("make {}", frozen.display()), &error))
            }
        }
    }

    fn frozen(&self) -> PathBuf {
        self.home.file(&layer(self.what, self.number))
    }

    /// Makes the draft the top from the next start on. The layers below it must be durable. Idempotent.
    pub fn take_its_name(&self) -> io::Result<()> {
        let top = self.home.file(&overlay(self.what));
        mark_base(&self.file, &self.frozen())?;
        match fs::rename(self.home.file(&new(self.what)), &top) {
            // The draft was renamed already by an attempt that could not make the rename durable.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_at(&top)? => {}
            renamed => renamed?,
        }
        sync_name(&top)
    }

    /// Returns `true` if this path names the draft's file.
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        let (named, own) = (fs::metadata(path)?, self.file.metadata()?);
        Ok((named.dev(), named.ino()) == (own.dev(), own.ino()))
    }

    /// Removes the draft, which must be empty, and the new name of the overlay below it.
    pub fn discard(self) {
        let _ = fs::remove_file(self.home.file(&new(self.what)));
        let _ = fs::remove_file(self.frozen());
    }
}

fn new(what: &str) -> String {
    format!("{what}.new.overlay")
}

/// Opens the VM's own overlays below the top, from the bottom up.
pub fn open_layers(home: &Home, what: &str) -> Result<Vec<(PathBuf, File)>, Failure> {
    let open = |number: u32| {
        let path = home.file(&layer(what, number));
        let file = File::open(&path).or_cannot(format_args!("open {}", path.display()))?;
        Ok((path, file))
    };
    layers(home, what)?.into_iter().rev().map(open).collect()
}

/// Adds the device state in this file of the VM's directory to a checkpoint, which exists from then on.
pub fn complete(home: &Home, draft: &str, number: u32) -> io::Result<()> {
    let state = home.file(&state(number));
    fs::rename(home.file(draft), &state)?;
    sync_name(&state)
}

/// Makes the state of a suspended VM a checkpoint. Returns its number.
pub fn freeze(home: &Home) -> Result<u32, Failure> {
    let freezing = format!("create a checkpoint of VM {}", home.name);
    adopt_memory(home)?;
    let number = next_number(home)?;
    let link = |from: &str, to: &str| fs::hard_link(home.file(from), home.file(to)).or_cannot(&freezing);
    for what in KINDS {
        link(&overlay(what), &layer(what, number))?;
    }
    sync_name(&home.file(STATE)).or_cannot(&freezing)?;
    let ground = Ground::of(home)?;
    for what in KINDS {
        let over = bases(home, &ground, what)?.unwrap_or_default();
        put_on_top(home, what, over.under(home.file(&layer(what, number))))?;
    }
    link(STATE, &state(number))?;
    sync_name(&home.file(STATE)).or_cannot(&freezing)?;
    Ok(number)
}

/// Makes the memory file of a suspended VM the base of an overlay, unless the memory is an overlay already.
fn adopt_memory(home: &Home) -> Outcome {
    if home.here()?.memory.is_some() {
        return Ok(());
    }
    cover_memory(home)?;
    write_down_memory(home)
}

/// Creates an empty overlay over a memory that is a plain file and may be in use. Returns the overlay's base.
/// Starts of the VM use the overlay only after [`write_down_memory`].
pub fn cover_memory(home: &Home) -> Result<Bases, Failure> {
    let (top, base) = (home.file(&overlay(MEMORY)), Bases::default().under(home.file(MEMORY)));
    // A killed process may have left this file.
    let _ = fs::remove_file(&top);
    begin_at(&top, base.clone())?;
    Ok(base)
}

/// Records that the VM's memory is an overlay over a file that is not written any more.
pub fn write_down_memory(home: &Home) -> Outcome {
    let (top, memory) = (home.file(&overlay(MEMORY)), home.file(MEMORY));
    File::options()
        .read(true)
        .write(true)
        .open(&top)
        .and_then(|top| mark_base(&top, &memory))
        .or_cannot(format_args!("write {}", top.display()))?;
    home.write(HERE, &HostConfig { memory: Some(memory), ..home.here()? })
}

/// Replaces the top overlay by an empty one over these layers.
fn put_on_top(home: &Home, what: &str, over: Bases) -> Outcome {
    let (new, top) = (home.file(&new(what)), home.file(&overlay(what)));
    // A killed process may have left this file.
    let _ = fs::remove_file(&new);
    begin_at(&new, over)?;
    fs::rename(&new, &top).and_then(|()| sync_name(&top)).or_cannot(format_args!("replace {}", top.display()))
}

/// Resets a VM that is not running to a checkpoint, and removes the later checkpoints.
pub fn thaw(home: &Home, number: u32) -> Outcome {
    let restoring = format!("restore VM {}", home.name);
    let ground = Ground::of(home)?;
    // Later checkpoints are removed before any layer below them.
    for later in numbers(home, STATE, "")?.into_iter().filter(|later| *later > number) {
        fs::remove_file(home.file(&state(later))).or_cannot(&restoring)?;
    }
    for what in KINDS {
        let over = below(home, &ground, what, number)?;
        put_on_top(home, what, over.under(home.file(&layer(what, number))))?;
    }
    let copy = home.file("state.copy");
    let _ = fs::remove_file(&copy);
    fs::hard_link(home.file(&state(number)), &copy)
        .and_then(|()| {
            // The old state is removed first: a rename between two links of one file has no effect.
            let _ = fs::remove_file(home.file(STATE));
            fs::rename(&copy, home.file(STATE))?;
            sync_name(&copy)
        })
        .or_cannot(&restoring)
}

/// Writes all changes that a VM made to its disk or memory as one sealed redo log, with `base` recorded as
/// its base.
pub fn finish(home: &Home, ground: &Ground, what: &str, to: &Path, base: &Path) -> Outcome {
    let over = bases(home, ground, what)?.unwrap_or_default();
    let own = layers(home, what)?.len() + 1;
    source(home, &overlay(what), over).finished(own, to, base.as_os_str().as_bytes())
}

/// Forgets all checkpoints but the latest `keep`.
pub fn forget_oldest(home: &Home, keep: usize) -> Outcome {
    let all = numbers(home, STATE, "")?;
    for number in all.iter().take(all.len().saturating_sub(keep)) {
        let file = home.file(&state(*number));
        fs::remove_file(&file).or_cannot(format_args!("remove {}", file.display()))?;
    }
    tidy(home)
}

/// Merges each numbered overlay without a checkpoint into the numbered one above it, if there is one, and
/// removes unused layers. Files opened by a running VM are unaffected. Locked chains ([`steady`]) are left
/// for the next time.
pub fn tidy(home: &Home) -> Outcome {
    let ground = Ground::of(home)?;
    let kept = numbers(home, STATE, "")?;
    for what in KINDS.into_iter().filter(|what| ground.began_as(what).is_some()) {
        while let Some(above) = layers(home, what)?.windows(2).find_map(|pair| match pair {
            [above, under] if !kept.contains(under) => Some(*above),
            _ => None,
        }) {
            let above = source(home, &layer(what, above), below(home, &ground, what, above)?);
            let merged = above.merged(2, |_| ())?;
            let Some(_turn) = steady_lock(home, File::try_lock)? else { return Ok(()) };
            merged.replace(&above)?;
        }
        let Some(_turn) = steady_lock(home, File::try_lock)? else { return Ok(()) };
        remove_unused(home, what, &layers(home, what)?)?;
    }
    Ok(())
}

/// Removes the VM's own overlays that no other overlay is based on. The caller must have locked the chain.
fn remove_unused(home: &Home, what: &str, used: &[u32]) -> Outcome {
    for number in numbers(home, what, ".overlay")? {
        if !used.contains(&number) {
            source(home, &layer(what, number), Bases::default()).remove()?;
        }
    }
    Ok(())
}

/// Removes the files of an incomplete checkpoint of a VM without processes. They exist if the process that
/// made the checkpoint was killed, or could not access the directory.
pub fn remove_drafts(home: &Home) -> Outcome {
    for name in KINDS.map(new).iter().map(String::as_str).chain([DRAFT]) {
        forget(home, name)?;
    }
    let Some(_turn) = steady_lock(home, File::try_lock)? else { return Ok(()) };
    remove_unused(home, DISK, &layers(home, DISK)?)?;
    if home.here()?.memory.is_some() {
        return remove_unused(home, MEMORY, &layers(home, MEMORY)?);
    }
    // The VM's memory is still a plain file without overlays.
    remove_unused(home, MEMORY, &[])?;
    forget(home, &overlay(MEMORY))
}

//! What a VM's disk and memory stand on: overlays of its own that checkpoints have left, each with a number
//! larger than those below it, over what they began as.
//!
//! A checkpoint is there when its device state is (`state.N`), and then `disk.N.overlay` and
//! `memory.N.overlay` are what was below that moment. What is written to is `disk.overlay` and
//! `memory.overlay`. Each step leaves both reading as before it, so a process that is killed between two
//! leaves nothing but files that [`tidy`] brings in order.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::changes::{Origins, files};
use super::config::{DISK, HERE, Here, MEMORY, STATE};
use super::home::Home;
use super::image::{begin_at, overlay};
use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::overlay::{OverlaySource, mark_base, sync_name};
use crate::failure::{Failure, Outcome};

/// What a VM writes to.
pub const KINDS: [&str; 2] = [DISK, MEMORY];

/// The overlay of a checkpoint.
fn layer(what: &str, number: u32) -> String {
    format!("{what}.{number}.overlay")
}

fn state(number: u32) -> String {
    format!("{STATE}.{number}")
}

/// The number in a name between these.
fn number_in(name: &OsStr, before: &str, after: &str) -> Option<u32> {
    name.to_str()?.strip_prefix(before)?.strip_prefix('.')?.strip_suffix(after)?.parse().ok()
}

/// What an overlay stands on.
#[derive(Clone, Default)]
pub struct Bases {
    /// From the top down.
    pub files: Vec<PathBuf>,
    /// They are of an image. That is another user's perhaps, who may put links there at any time: none is
    /// followed.
    pub no_links: bool,
}

impl Bases {
    pub fn options(self) -> ImageOptions {
        ImageOptions { base: self.files, base_no_links: self.no_links, ..ImageOptions::default() }
    }

    /// The words that tell `tombolo disk` of it.
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

/// The overlays of its own that lie below the one that is written to, from the top down.
fn layers(home: &Home, what: &str) -> Result<Vec<u32>, Failure> {
    let (mut found, mut name): (Vec<u32>, _) = (Vec::new(), overlay(what));
    loop {
        let header = source(home, &name, Bases::default()).header()?;
        let below = number_in(OsStr::from_bytes(&header.base_name), what, ".overlay");
        // What a layer stands on was there before it.
        match below.filter(|below| found.last().is_none_or(|above| below < above)) {
            Some(below) => found.push(below),
            None => return Ok(found),
        }
        name = found.last().map(|below| layer(what, *below)).unwrap_or_default();
    }
}

/// What a VM was made of.
pub struct Ground {
    pub here: Here,
    /// What that is read through.
    pub origins: Origins,
}

impl Ground {
    pub fn of(home: &Home) -> Result<Self, Failure> {
        let here = home.here()?;
        let origins = match &here.image {
            Some(_) => Origins::of(&here.images(), &here.cache)?,
            None => Origins::of_file(&here.disk, &here.cache)?,
        };
        Ok(Self { origins, here })
    }

    /// What disk or memory began as. Nothing of a memory that is a file of its own.
    fn began_as(&self, what: &str) -> Option<Bases> {
        let Here { disk, memory, image, .. } = &self.here;
        let files = match image {
            Some(_) => files(&self.here.images(), what),
            None => vec![if what == DISK { disk.clone() } else { memory.clone()? }],
        };
        let files = files.iter().map(|file| self.origins.near(file)).collect();
        Some(Bases { files, no_links: image.is_some() })
    }
}

/// What the overlay that is written to stands on. `None` of a memory that is a file of its own.
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

/// Keeps what disk and memory stand on as it is, until the result is dropped, so that it can be opened:
/// [`tidy`] gives way.
pub fn steady(home: &Home) -> Result<Option<File>, Failure> {
    steady_lock(home, |file| file.lock_shared().map_err(TryLockError::Error))
}

/// What a layer of its own stands on.
fn below(home: &Home, ground: &Ground, what: &str, number: u32) -> Result<Bases, Failure> {
    let Bases { files, no_links } = bases(home, ground, what)?.unwrap_or_default();
    let own = home.file(&layer(what, number));
    let files = files.into_iter().skip_while(|path| *path != own).skip(1).collect();
    Ok(Bases { files, no_links })
}

/// The numbers of the files that are called so.
fn numbers(home: &Home, before: &str, after: &str) -> Result<Vec<u32>, Failure> {
    let found = || -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&home.path)? {
            found.extend(number_in(&entry?.file_name(), before, after));
        }
        found.sort_unstable();
        Ok(found)
    };
    found().map_err(|error| Failure::cannot(format_args!("read {}", home.path.display()), &error))
}

/// A moment to which a VM can go back.
pub struct Checkpoint {
    pub number: u32,
    /// When the guest stood still for it.
    pub time: SystemTime,
    /// What it has that those before it have not, in bytes.
    pub bytes: u64,
}

/// All of a VM, the oldest first.
pub fn checkpoints(home: &Home) -> Result<Vec<Checkpoint>, Failure> {
    let checkpoint = |number| {
        let names = KINDS.iter().map(|what| layer(what, number)).chain([state(number)]);
        let taken = |name: String| fs::metadata(home.file(&name)).map_or(0, |file| file.blocks() * 512);
        let time = fs::metadata(home.file(&state(number))).and_then(|file| file.modified());
        Checkpoint { number, time: time.unwrap_or(SystemTime::UNIX_EPOCH), bytes: names.map(taken).sum() }
    };
    Ok(numbers(home, STATE, "")?.into_iter().map(checkpoint).collect())
}

/// The number of the next checkpoint.
pub fn next_number(home: &Home) -> Result<u32, Failure> {
    let mut taken = numbers(home, STATE, "")?;
    for what in KINDS {
        taken.extend(numbers(home, what, ".overlay")?);
    }
    Ok(taken.into_iter().max().unwrap_or(0) + 1)
}

/// How many overlays of its own lie below the one that is written to.
pub fn own_below(home: &Home, what: &str) -> Result<usize, Failure> {
    Ok(layers(home, what)?.len())
}

/// What is to be put on top of an overlay that a server writes to, and is a checkpoint's then.
pub struct Draft<'a> {
    home: &'a Home,
    pub what: &'static str,
    number: u32,
    pub file: File,
}

impl<'a> Draft<'a> {
    /// Makes it, and gives what is frozen below it its name. Nothing stands on it yet.
    pub fn make(home: &'a Home, what: &'static str, number: u32) -> Result<Self, Failure> {
        let top = source(home, &overlay(what), Bases::default());
        let file = top.draft(&home.file(&new(what)), &layer(what, number))?;
        let draft = Self { home, what, number, file };
        let frozen = draft.frozen();
        fs::hard_link(home.file(&overlay(what)), &frozen)
            .and_then(|()| sync_name(&frozen))
            .map_err(|error| Failure::cannot(format_args!("make {}", frozen.display()), &error))?;
        Ok(draft)
    }

    fn frozen(&self) -> PathBuf {
        self.home.file(&layer(self.what, self.number))
    }

    /// Makes it what is written to from the next start on, too, once what it stands on is durable. May be
    /// called again.
    pub fn take_its_name(&self) -> io::Result<()> {
        let top = self.home.file(&overlay(self.what));
        mark_base(&self.file, &self.frozen())?;
        match fs::rename(self.home.file(&new(self.what)), &top) {
            // It has its name from an attempt which could not make that durable.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_at(&top)? => {}
            renamed => renamed?,
        }
        sync_name(&top)
    }

    /// Whether this path names the draft's file.
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        let (named, own) = (fs::metadata(path)?, self.file.metadata()?);
        Ok((named.dev(), named.ino()) == (own.dev(), own.ino()))
    }

    /// Takes it back, before anything was written to it.
    pub fn discard(self) {
        let _ = fs::remove_file(self.home.file(&new(self.what)));
        let _ = fs::remove_file(self.frozen());
    }
}

fn new(what: &str) -> String {
    format!("{what}.new.overlay")
}

/// The overlays of its own below the one that is written to, open, from the bottom up.
pub fn open_layers(home: &Home, what: &str) -> Result<Vec<(PathBuf, File)>, Failure> {
    let open = |number: u32| {
        let path = home.file(&layer(what, number));
        let file = File::open(&path);
        let file = file.map_err(|error| Failure::cannot(format_args!("open {}", path.display()), &error))?;
        Ok((path, file))
    };
    layers(home, what)?.into_iter().rev().map(open).collect()
}

/// Makes the device state in this file of the VM's directory the last part of a checkpoint: it is there from
/// then on.
pub fn complete(home: &Home, draft: &str, number: u32) -> io::Result<()> {
    let state = home.file(&state(number));
    fs::rename(home.file(draft), &state)?;
    sync_name(&state)
}

/// Makes what a VM is, which is suspended, a checkpoint, whose number is returned.
pub fn freeze(home: &Home) -> Result<u32, Failure> {
    let cannot =
        |error: io::Error| Failure::cannot(format_args!("create a checkpoint of VM {}", home.name), &error);
    adopt_memory(home)?;
    let number = next_number(home)?;
    let link = |from: &str, to: &str| fs::hard_link(home.file(from), home.file(to)).map_err(cannot);
    for what in KINDS {
        link(&overlay(what), &layer(what, number))?;
    }
    sync_name(&home.file(STATE)).map_err(cannot)?;
    let ground = Ground::of(home)?;
    for what in KINDS {
        let over = bases(home, &ground, what)?.unwrap_or_default();
        put_on_top(home, what, over.under(home.file(&layer(what, number))))?;
    }
    link(STATE, &state(number))?;
    sync_name(&home.file(STATE)).map_err(cannot)?;
    Ok(number)
}

/// Makes the memory file of a suspended VM the base of an overlay.
fn adopt_memory(home: &Home) -> Outcome {
    if home.here()?.memory.is_some() {
        return Ok(());
    }
    cover_memory(home)?;
    write_down_memory(home)
}

/// Creates an empty overlay over a memory that is a plain file and may be in use, and returns its base.
/// Nothing uses the overlay before [`write_down_memory`].
pub fn cover_memory(home: &Home) -> Result<Bases, Failure> {
    let (top, base) = (home.file(&overlay(MEMORY)), Bases::default().under(home.file(MEMORY)));
    // Of one that was killed.
    let _ = fs::remove_file(&top);
    begin_at(&top, base.clone())?;
    Ok(base)
}

/// Records that the VM's memory is an overlay over a file to which nothing is written any more.
pub fn write_down_memory(home: &Home) -> Outcome {
    let (top, memory) = (home.file(&overlay(MEMORY)), home.file(MEMORY));
    File::options()
        .read(true)
        .write(true)
        .open(&top)
        .and_then(|top| mark_base(&top, &memory))
        .map_err(|error| Failure::cannot(format_args!("write {}", top.display()), &error))?;
    home.write(HERE, &Here { memory: Some(memory), ..home.here()? })
}

/// Has an empty overlay over these be what is written to.
fn put_on_top(home: &Home, what: &str, over: Bases) -> Outcome {
    let (new, top) = (home.file(&new(what)), home.file(&overlay(what)));
    // Of one that was killed.
    let _ = fs::remove_file(&new);
    begin_at(&new, over)?;
    fs::rename(&new, &top)
        .and_then(|()| sync_name(&top))
        .map_err(|error| Failure::cannot(format_args!("replace {}", top.display()), &error))
}

/// Has a VM that does not run be as it was at a checkpoint. Later ones are gone.
pub fn thaw(home: &Home, number: u32) -> Outcome {
    let failed = |error| Failure::cannot(format_args!("restore VM {}", home.name), &error);
    let ground = Ground::of(home)?;
    // Before anything they stand on is out of the chain.
    for later in numbers(home, STATE, "")?.into_iter().filter(|later| *later > number) {
        fs::remove_file(home.file(&state(later))).map_err(failed)?;
    }
    for what in KINDS {
        let over = below(home, &ground, what, number)?;
        put_on_top(home, what, over.under(home.file(&layer(what, number))))?;
    }
    let copy = home.file("state.copy");
    let _ = fs::remove_file(&copy);
    fs::hard_link(home.file(&state(number)), &copy)
        .and_then(|()| {
            // Of two names of one file a rename removes none.
            let _ = fs::remove_file(home.file(STATE));
            fs::rename(&copy, home.file(STATE))?;
            sync_name(&copy)
        })
        .map_err(failed)
}

/// Makes a finished redo log of all that is a VM's own of its disk or memory, which names as its base what is
/// said.
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
        fs::remove_file(&file)
            .map_err(|error| Failure::cannot(format_args!("remove {}", file.display()), &error))?;
    }
    tidy(home)
}

/// Merges each overlay that is no checkpoint's into the one above it, and removes what nothing stands on. The
/// VM may run: what it has open stays as it is. What is just being opened is left for the next time.
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
        let used = layers(home, what)?;
        for number in numbers(home, what, ".overlay")? {
            if !used.contains(&number) {
                source(home, &layer(what, number), Bases::default()).remove()?;
            }
        }
    }
    Ok(())
}

//! A helper process of one in a sandbox, which opens files that were found by handle.
//!
//! Landlock goes by the directories above a file. Of a file that was found by handle the kernel may know
//! none, until it is looked up by a name: then landlock refuses it, in the export or not. The broker is in no
//! such sandbox, and parses nothing but numbers. It opens regular files only, on the mounts of the exports,
//! and none that is known to lie elsewhere; and it opens as the user that it is asked for, as its client
//! could.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use caps::{CapSet, Capability};
use tombolo_sys::creds::{self, Assumed, Checks, Identity};
use tombolo_sys::open::{OpenFlags, OwnDescriptors, PATH_UNKNOWN, Reopen, open_root};
use tombolo_sys::stat::stat;
use tombolo_sys::{Errno, Result, mountinfo};

use super::helper::{self, Helper, answer_all};
use super::{Needs, SandboxError, Strictness, give_up_rights};

/// So many files are opened at once: one on a disk or server that does not answer is not to keep the others
/// waiting.
const OPENS_MAX: usize = 8;

/// Whether this process finds files by handle, so that its sandbox takes a broker.
pub fn is_needed() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_DAC_READ_SEARCH).unwrap_or(false)
}

/// How a process in a sandbox asks its broker.
#[derive(Debug)]
pub struct Broker(Helper);

impl Broker {
    /// Starts `command`, which is to call [`serve`] with its standard input, and waits until it does. It ends
    /// with this process.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Helper::start(command, OPENS_MAX).map(Self)
    }

    /// Asks for what is to be done with these descriptors.
    fn ask(&self, descriptors: &[BorrowedFd<'_>], flags: OpenFlags, name: &[u8]) -> Result<Option<OwnedFd>> {
        let (user, group, groups) = creds::acting_as()?;
        let count = u32::try_from(groups.len()).map_err(|_| Errno::ACCESS)?;
        let words = [flags.bits(), user, group, count].into_iter().chain(groups);
        let request: Vec<u8> = words.flat_map(u32::to_ne_bytes).chain(name.iter().copied()).collect();
        let (answer, opened) = self.0.ask(&request, descriptors)?;
        let answer: [u8; size_of::<i32>()] = answer.try_into().map_err(|_| Errno::PROTO)?;
        match i32::from_ne_bytes(answer) {
            DONE => Ok(opened),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

impl Reopen for Broker {
    fn reopen(&self, place: BorrowedFd<'_>, flags: OpenFlags) -> Result<OwnedFd> {
        self.ask(&[place], flags, b"")?.ok_or(Errno::ACCESS)
    }

    fn link(&self, place: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        self.ask(&[place, dir], OpenFlags::empty(), name).map(drop)
    }
}

/// The answer that it is done; others are error numbers.
const DONE: i32 = 0;

/// Serves a [`Broker`] at the other end of `socket`, until that ends. It gives up all that it does not need
/// but files, and calls `confined` then, which may start threads: those that are there before keep all
/// rights.
pub fn serve(
    socket: OwnedFd,
    exports: &[PathBuf],
    strictness: Strictness,
    confined: impl FnOnce() -> io::Result<()>,
) -> std::result::Result<(), SandboxError> {
    let exports = exports.iter().map(|path| Export::find(path)).collect::<Result<Vec<_>>>();
    let exports = exports.map_err(io::Error::from)?;
    let own = OwnDescriptors::open().map_err(io::Error::from)?;
    let sockets = helper::sockets(socket)?;
    let needs = Needs { serves_users: true, ..Needs::default() };
    give_up_rights(strictness, &needs)?;
    confined()?;
    let answer = |request: &[u8], descriptors: &[OwnedFd]| {
        let done = match (Request::parse(request), descriptors) {
            (Some(request), [place]) => request.reopen(&own, &exports, place).map(Some),
            (Some(request), [place, dir]) => request.link(&own, &exports, place, dir).map(|()| None),
            _ => Err(Errno::INVAL),
        };
        let errno = done.as_ref().err().map_or(DONE, |errno| errno.raw_os_error());
        (errno.to_ne_bytes().into(), done.ok().flatten())
    };
    thread::scope(|scope| {
        let start = |socket| {
            let thread = thread::Builder::new().name("broker".into());
            thread.spawn_scoped(scope, move || answer_all(&socket, answer))
        };
        let threads = sockets.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
        Ok(ended.collect::<io::Result<()>>()?)
    })
}

/// What a file that is there may be opened with.
const FLAGS: OpenFlags = OpenFlags::RDWR
    .union(OpenFlags::WRONLY)
    .union(OpenFlags::TRUNC)
    .union(OpenFlags::DIRECT)
    .union(OpenFlags::SYNC)
    .union(OpenFlags::DSYNC)
    .union(OpenFlags::NOATIME)
    .union(OpenFlags::CLOEXEC);

/// What is asked for, by which user.
struct Request<'a> {
    flags: OpenFlags,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    name: &'a [u8],
}

impl<'a> Request<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(4 * WORD_BYTES)?;
        let mut head = words(head);
        let (flags, uid, gid, count) = (head.next()?, head.next()?, head.next()?, head.next()?);
        let (groups, name) = rest.split_at_checked((count as usize).checked_mul(WORD_BYTES)?)?;
        let flags = OpenFlags::from_bits_retain(flags);
        Some(Self { flags, uid, gid, groups: words(groups).collect(), name })
    }

    fn reopen(&self, own: &OwnDescriptors, exports: &[Export], place: &OwnedFd) -> Result<OwnedFd> {
        if !FLAGS.contains(self.flags) || !is_lost(own, exports, place)? {
            return Err(Errno::ACCESS);
        }
        let _acting = self.acting()?;
        own.reopen(place.as_fd(), self.flags)
    }

    fn link(&self, own: &OwnDescriptors, exports: &[Export], place: &OwnedFd, dir: &OwnedFd) -> Result<()> {
        let path = own.path(dir.as_fd())?;
        let is_within = exports.iter().any(|export| export.has(&path));
        if !is_within || !is_lost(own, exports, place)? {
            return Err(Errno::ACCESS);
        }
        let _acting = self.acting()?;
        own.link(place.as_fd(), dir.as_fd(), self.name)
    }

    fn acting(&self) -> Result<Option<Assumed>> {
        let identity = Identity { uid: self.uid, gid: self.gid, groups: &self.groups };
        creds::may_assume().then(|| creds::assume(identity, Checks::Kernel)).transpose()
    }
}

const WORD_BYTES: usize = size_of::<u32>();

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word))
}

/// Whether it is a regular file that may lie in an export, as far as is known.
fn is_lost(own: &OwnDescriptors, exports: &[Export], place: &OwnedFd) -> Result<bool> {
    let (found, path) = (stat(place.as_fd())?, own.path(place.as_fd())?);
    let may_have = |export: &Export| export.spans(found.mount) && (path == PATH_UNKNOWN || export.has(&path));
    Ok(found.is_regular() && exports.iter().any(may_have))
}

/// A directory that is served.
struct Export {
    path: PathBuf,
    mount: u64,
}

impl Export {
    fn find(path: &Path) -> Result<Self> {
        let root = open_root(path)?;
        Ok(Self { path: path.to_owned(), mount: stat(root.as_fd())?.mount })
    }

    fn has(&self, path: &[u8]) -> bool {
        Path::new(OsStr::from_bytes(path)).starts_with(&self.path)
    }

    /// Whether a mount is that of the directory, or one in it.
    fn spans(&self, mount: u64) -> bool {
        if mount == self.mount {
            return true;
        }
        let lines = mountinfo::lines().unwrap_or_default();
        let line = lines.iter().find(|line| mountinfo::number(line) == Some(mount));
        line.and_then(|line| mountinfo::point(line)).is_some_and(|point| self.has(&point))
    }
}

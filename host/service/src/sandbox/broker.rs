//! Helper process outside of a sandbox that opens files found by handle.
//!
//! Landlock checks the directories above a file. The kernel may not know those of a file found by handle
//! until the file is looked up by name; landlock then refuses it, even if it is in an export. The broker has
//! no landlock rules, and parses nothing but numbers. It opens and links only regular files on the exports'
//! mounts whose paths are unknown or in an export, with the identity that the client requests.

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
use super::{Needs, SandboxError, Strictness, drop_rights};

/// Maximum number of concurrent opens: a disk or server that does not answer must not block others.
const OPENS_MAX: usize = 8;

/// Returns `true` if this process has the capability to open files by handle, so that its sandbox needs a
/// broker.
pub fn is_needed() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_DAC_READ_SEARCH).unwrap_or(false)
}

/// Client of a broker.
#[derive(Debug)]
pub struct Broker(Helper);

impl Broker {
    /// Starts `command`, which must call [`serve`] with its standard input, and waits until it does. The
    /// broker ends with this process.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Helper::start(command, OPENS_MAX).map(Self)
    }

    /// Sends a request with these descriptors and with the identity under which this thread acts. Returns
    /// the opened file, if the request opens one.
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

/// Reply of a completed request; others are error numbers.
const DONE: i32 = 0;

/// Serves a [`Broker`] at the other end of `socket`, until that end is closed. Drops all rights but those to
/// files, then calls `confined`, which may start threads: threads started before would keep all rights.
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
    drop_rights(strictness, &needs)?;
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

/// Flags that an existing file may be opened with.
const FLAGS: OpenFlags = OpenFlags::RDWR
    .union(OpenFlags::WRONLY)
    .union(OpenFlags::TRUNC)
    .union(OpenFlags::DIRECT)
    .union(OpenFlags::SYNC)
    .union(OpenFlags::DSYNC)
    .union(OpenFlags::NOATIME)
    .union(OpenFlags::CLOEXEC);

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
        if !FLAGS.contains(self.flags) || !may_be_exported(own, exports, place)? {
            return Err(Errno::ACCESS);
        }
        let _acting = self.acting()?;
        own.reopen(place.as_fd(), self.flags)
    }

    fn link(&self, own: &OwnDescriptors, exports: &[Export], place: &OwnedFd, dir: &OwnedFd) -> Result<()> {
        let path = own.path(dir.as_fd())?;
        let is_within = exports.iter().any(|export| export.has(&path));
        if !is_within || !may_be_exported(own, exports, place)? {
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

/// Returns `true` if `place` is a regular file on a mount of an export, and its path is unknown or in that
/// export.
fn may_be_exported(own: &OwnDescriptors, exports: &[Export], place: &OwnedFd) -> Result<bool> {
    let (found, path) = (stat(place.as_fd())?, own.path(place.as_fd())?);
    let may_have = |export: &Export| export.spans(found.mount) && (path == PATH_UNKNOWN || export.has(&path));
    Ok(found.is_regular() && exports.iter().any(may_have))
}

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

    /// Returns `true` if a mount is that of the directory, or one in it.
    fn spans(&self, mount: u64) -> bool {
        if mount == self.mount {
            return true;
        }
        let lines = mountinfo::lines().unwrap_or_default();
        let line = lines.iter().find(|line| mountinfo::number(line) == Some(mount));
        line.and_then(|line| mountinfo::point(line)).is_some_and(|point| self.has(&point))
    }
}

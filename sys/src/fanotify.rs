//! File-system events of all processes (fanotify(7), with file handles and names: Linux 5.17).

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use bitflags::bitflags;

use crate::errno::{Errno, Result, check, retry};
use crate::handle::FileHandle;

bitflags! {
    /// Kinds of events. The kernel may combine several about one file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EventMask: u64 {
        /// Data of a file changed: a write or truncation.
        const MODIFY = libc::FAN_MODIFY;
        /// Attributes changed, including extended ones and the link count.
        const ATTRIB = libc::FAN_ATTRIB;
        /// A name was moved away, to another directory or another name.
        const MOVED_FROM = libc::FAN_MOVED_FROM;
        /// A name was created by a rename.
        const MOVED_TO = libc::FAN_MOVED_TO;
        /// A name was created: a new object, or a hard link.
        const CREATE = libc::FAN_CREATE;
        /// A name was removed, of a file or directory.
        const DELETE = libc::FAN_DELETE;
        /// The file or directory no longer exists: it has no name, and is not open any more.
        const DELETE_SELF = libc::FAN_DELETE_SELF;
        /// The event concerns a directory; combined with another kind.
        const TO_DIRECTORY = libc::FAN_ONDIR;
        /// The queue overflowed: events were lost.
        const OVERFLOW = libc::FAN_Q_OVERFLOW;
    }
}

impl EventMask {
    /// Returns `true` if a name appeared or disappeared.
    pub fn concerns_name(self) -> bool {
        self.intersects(Self::MOVED_FROM | Self::MOVED_TO | Self::CREATE | Self::DELETE)
    }
}

/// One or several events of a file or name, combined by the kernel.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// Kinds of the combined events.
    pub deeds: EventMask,
    /// Process that caused the event; 0 if not visible to this one.
    pub process: u32,
    /// Affected file; `None` if the kernel reports none, as for [`EventMask::OVERFLOW`].
    pub file: Option<FileHandle>,
    /// Directory and name: of the changed name, or of the affected file if the kernel reports them.
    pub name: Option<(FileHandle, &'a [u8])>,
}

/// A receiver of the events of the added file systems.
#[derive(Debug)]
pub struct Fanotify(OwnedFd);

/// Length of one read, in bytes: space for hundreds of events of some 100 bytes.
const BATCH_BYTES: usize = 64 << 10;

impl Fanotify {
    /// Creates a receiver without file systems. EPERM without CAP_SYS_ADMIN, EINVAL before Linux 5.17.
    pub fn new() -> Result<Self> {
        let flags = libc::FAN_CLASS_NOTIF
            | libc::FAN_REPORT_DFID_NAME_TARGET
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK;
        // SAFETY: the call takes two numbers.
        let outcome = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint) };
        let number = i32::try_from(check(outcome.into())?).map_err(|_| Errno::BADF)?;
        // SAFETY: the kernel has just created this descriptor for this call, and no other owner has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(number) }))
    }

    /// Adds the file system that contains `root`. ENODEV, EOPNOTSUPP or EXDEV for a file system whose files
    /// are not distinguishable by handle (overlayfs, a subvolume of btrfs).
    pub fn add_file_system(&self, root: BorrowedFd<'_>) -> Result<()> {
        let wanted = EventMask::all().difference(EventMask::OVERFLOW | EventMask::DELETE_SELF);
        self.mark(libc::FAN_MARK_FILESYSTEM, wanted, root, c".")
    }

    /// Adds the object `name` in `dir`, for events of these kinds only. If it is a symbolic link, adds the
    /// link's target.
    pub fn add_file(&self, dir: BorrowedFd<'_>, name: &CStr, deeds: EventMask) -> Result<()> {
        self.mark(libc::FAN_MARK_INODE, deeds, dir, name)
    }

    fn mark(&self, what: u32, deeds: EventMask, dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        retry(|| {
            // SAFETY: numbers, and a path that ends in NUL.
            let outcome = unsafe {
                libc::fanotify_mark(
                    self.0.as_raw_fd(),
                    libc::FAN_MARK_ADD | what,
                    deeds.bits(),
                    dir.as_raw_fd(),
                    name.as_ptr(),
                )
            };
            check(outcome.into())
        })
        .map(drop)
    }

    /// Passes pending events to `take`, as many as one read returns. `buffer` is reusable space for the
    /// read, whose contents are replaced. Returns `false` if no events were pending.
    pub fn read(&self, buffer: &mut Vec<u8>, mut take: impl FnMut(&Event<'_>)) -> Result<bool> {
        buffer.clear();
        buffer.reserve(BATCH_BYTES);
        let space: &mut [MaybeUninit<u8>] = buffer.spare_capacity_mut();
        let bytes = match retry(|| rustix::io::read(&self.0, &mut *space).map(|(bytes, _)| bytes.len())) {
            Ok(len) => len,
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error),
        };
        // SAFETY: the kernel has filled this number of bytes from the start of the spare capacity.
        unsafe { buffer.set_len(bytes) };
        let mut rest = buffer.as_slice();
        while let Some((event, after)) = event(rest) {
            take(&event);
            rest = after;
        }
        Ok(true)
    }
}

impl AsFd for Fanotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Length of `struct fanotify_event_metadata`: length of the event, version, a reserved byte, length of this
/// structure, mask, descriptor, process.
const METADATA_BYTES: usize = 24;
/// Length of `struct fanotify_event_info_header` and the file system's id.
const INFO_BYTES: usize = 12;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Parses the first event, and returns it with the bytes behind it.
fn event(bytes: &[u8]) -> Option<(Event<'_>, &[u8])> {
    let len = u32::from_ne_bytes(number(bytes, 0)?) as usize;
    let (whole, after) = bytes.split_at_checked(len)?;
    let deeds = EventMask::from_bits_truncate(u64::from_ne_bytes(number(whole, 8)?));
    let process = u32::try_from(i32::from_ne_bytes(number(whole, 20)?)).unwrap_or(0);
    let mut event = Event { deeds, process, file: None, name: None };
    let mut records = whole.get(METADATA_BYTES..)?;
    while let Some(len) = number(records, 2).map(|len| usize::from(u16::from_ne_bytes(len))) {
        let Some((record, next)) = records.split_at_checked(len).filter(|_| len > 0) else { break };
        records = next;
        let (Some(&kind), Some((handle, name))) = (record.first(), handle(record)) else { continue };
        match kind {
            libc::FAN_EVENT_INFO_TYPE_FID => event.file = Some(handle),
            // An event of the directory itself, such as a change of its attributes.
            libc::FAN_EVENT_INFO_TYPE_DFID_NAME if name == b"." => event.file = event.file.or(Some(handle)),
            libc::FAN_EVENT_INFO_TYPE_DFID_NAME => event.name = Some((handle, name)),
            libc::FAN_EVENT_INFO_TYPE_DFID => event.file = event.file.or(Some(handle)),
            _ => {}
        }
    }
    Some((event, after))
}

/// Parses the `struct file_handle` of a record, and the name behind it.
fn handle(record: &[u8]) -> Option<(FileHandle, &[u8])> {
    let len = u32::from_ne_bytes(number(record, INFO_BYTES)?) as usize;
    let kind = i32::from_ne_bytes(number(record, INFO_BYTES + 4)?);
    let (bytes, rest) = record.get(INFO_BYTES + 8..)?.split_at_checked(len)?;
    let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    Some((FileHandle::from_parts(kind, bytes).ok()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_events_carry_handles_and_names() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let root = std::fs::File::open(dir.path()).expect("open");
        let Ok(watch) = Fanotify::new() else {
            tombolo_skip::skip!("no CAP_SYS_ADMIN, or Linux before 5.17");
        };
        watch.add_file_system(root.as_fd()).expect("a mark on tmpfs");
        let (dir_handle, _) = FileHandle::of(root.as_fd()).expect("a handle");
        std::fs::write(dir.path().join("file"), b"data").expect("written");
        let (file_handle, _) = FileHandle::of_entry(root.as_fd(), b"file").expect("a handle");
        std::fs::remove_file(dir.path().join("file")).expect("removed");
        let (mut deeds, mut buffer) = (EventMask::empty(), Vec::new());
        while watch
            .read(&mut buffer, |event| {
                // Other tests of the machine use this file system too.
                if event.name.as_ref().is_some_and(|(dir, name)| *dir == dir_handle && *name == b"file") {
                    assert_eq!(event.file.as_ref(), Some(&file_handle));
                    assert_eq!(event.process, std::process::id());
                    deeds |= event.deeds;
                }
            })
            .expect("read")
        {}
        assert!(deeds.contains(EventMask::CREATE | EventMask::MODIFY | EventMask::DELETE), "{deeds:?}");
    }

    #[test]
    fn truncated_events_are_not_read_past_their_end() {
        for len in 0..METADATA_BYTES {
            assert!(event(&vec![0xFF; len]).is_none());
            let mut short = vec![0; len];
            short.extend([0xFF; 4]);
            let _ = event(&short);
        }
        let mut zero = vec![0; 64];
        zero[..4].copy_from_slice(&64_u32.to_ne_bytes());
        let (found, rest) = event(&zero).expect("an event");
        assert!(found.file.is_none() && found.name.is_none() && rest.is_empty());
    }
}

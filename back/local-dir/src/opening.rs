//! Creating and opening files.

use std::os::fd::{AsFd, OwnedFd};

use tombolo_core::fs::{
    Change, Create, Created, Entry, Exclusive, FileType, Name, NodeId, OpenFlags, OpenId, Opened,
    PermissionCheck,
};
use tombolo_core::{Ctx, Error, Permit, Result, Want};
use tombolo_sys::Errno;
use tombolo_sys::access::{self, check_access};
use tombolo_sys::change::{self, SetTime};
use tombolo_sys::open::{OpenFlags as SysFlags, open_entry, open_nameless};
use tombolo_sys::stat::{self, Moment, S_IFDIR, S_IFLNK, S_IFREG, Stat};

use crate::acting::dropping_set_id;
use crate::files::{OpenFile, OpenPermit};
use crate::state::{Location, Session};
use crate::window::ChangedFile;

/// Number of times that a name may vanish and reappear between two steps before the create fails.
const RACES_MAX: u32 = 16;

impl Session {
    pub(crate) fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Result<Created> {
        self.writable()?;
        let dir = self.location(parent)?;
        let around = self.around(cx, [&dir]);
        for _ in 0..RACES_MAX {
            let (entry, open) = match self.create_new(cx, &dir, parent, name, how) {
                Err(Error::Exists) => match self.open_existing(cx, parent, name, how) {
                    Err(Error::NotFound) => continue,
                    outcome => outcome?,
                },
                outcome => outcome?,
            };
            let [change] = around.changes();
            return Ok(Created { entry, open, dir: change });
        }
        Err(Error::WouldBlock)
    }

    pub(crate) fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Result<Created> {
        self.writable()?;
        let dir = self.location(parent)?;
        let permits = self.permits_for_new()?;
        let mut flags = sys_flags(how.flags);
        // For an unnamed file, exclusive means that it may never get a name (open(2), O_TMPFILE).
        flags.set(SysFlags::EXCL, how.exclusive == Exclusive::Yes);
        let file = {
            let making = self.making(cx, how.mode)?;
            open_nameless(dir.fd(), flags, making.mode())?
        };
        let (entry, open) = self.enter_new(file, permits, parent, None, how.flags)?;
        Ok(Created { entry, open, dir: Change::default() })
    }

    pub(crate) fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE | OpenFlags::APPEND) {
            self.writable()?;
        }
        // The permit is taken before the open, which may truncate the file.
        let permit = self.allowance.permit()?;
        let location = self.location(node)?;
        let (file, flags) = match location.kind() {
            S_IFDIR if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) => {
                return Err(Error::IsDirectory);
            }
            S_IFDIR => (self.open_directory(cx, &location)?, flags | OpenFlags::DIRECTORY),
            _ if flags.contains(OpenFlags::DIRECTORY) => return Err(Error::NotDirectory),
            S_IFREG => {
                let changing = flags
                    .contains(OpenFlags::TRUNCATE)
                    .then(|| self.changing([ChangedFile::Key(location.identity.key)]));
                let file = self.open_regular(cx, &location, flags)?;
                if flags.contains(OpenFlags::TRUNCATE) {
                    self.notify(|notifier| notifier.data(node, 0, u64::MAX));
                }
                drop(changing);
                (file, flags)
            }
            S_IFLNK => return Err(Error::SymlinkLoop),
            // FIFOs, sockets and devices belong to the client's kernel; opening a device file of the host
            // would reach the host's drivers.
            _ => return Err(Error::NoDevice),
        };
        let is_volatile = location.kind() == S_IFREG && self.is_volatile(node);
        let attr = match is_volatile || cx.want.contains(Want::OPEN_ATTRS) {
            true => Some(self.attr(node, &stat::stat(file.as_fd())?)),
            false => None,
        };
        let mount = location.identity.key.mount;
        Ok(Opened { open: self.enter(file, permit, node, flags, mount)?, attr })
    }

    /// Takes the permits for a new file before the file exists, so that no file is created without permits.
    fn permits_for_new(&self) -> Result<(Permit, OpenPermit)> {
        Ok((self.node_permit()?, self.allowance.permit()?))
    }

    fn create_new(
        &self,
        cx: &Ctx,
        dir: &Location,
        parent: NodeId,
        name: Name<'_>,
        how: &Create,
    ) -> Result<(Entry, OpenId)> {
        let permits = self.permits_for_new()?;
        let flags = sys_flags(how.flags) | SysFlags::CREATE | SysFlags::EXCL;
        let _changing = self.changing([ChangedFile::Key(dir.identity.key)]);
        let file = {
            let making = self.making(cx, how.mode)?;
            open_entry(dir.fd(), name.as_bytes(), flags, making.mode())?
        };
        self.notify(|notifier| notifier.name(dir, name));
        if let Exclusive::Verifier(verifier) = how.exclusive {
            let (accessed, modified) = verifier_times(verifier);
            change::times(file.as_fd(), SetTime::To(accessed), SetTime::To(modified))?;
        }
        let (entry, open) = self.enter_new(file, permits, parent, Some(name), how.flags)?;
        Ok((self.with_volatility(entry, dir, name), open))
    }

    /// Opens the existing file of that name, if the create allows it.
    fn open_existing(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        how: &Create,
    ) -> Result<(Entry, OpenId)> {
        if how.exclusive == Exclusive::Yes {
            return Err(Error::Exists);
        }
        let mut entry = self.lookup(cx, parent, name)?;
        let opened = self.verified(&entry, how).and_then(|()| self.open(cx, entry.node, how.flags));
        let opened = opened.inspect_err(|_| drop(self.forget_node(entry.node, 1)))?;
        if how.flags.contains(OpenFlags::TRUNCATE) {
            let location = self.location(entry.node)?;
            entry.attr = self.attr(entry.node, &stat::stat(location.fd())?);
        }
        Ok((entry, opened.open))
    }

    /// Checks that a create may open an existing file: not a directory (open(2), EISDIR), and for an
    /// exclusive create only the file that an earlier transmission of it has made (RFC 1813 §3.3.8).
    fn verified(&self, entry: &Entry, how: &Create) -> Result<()> {
        let Exclusive::Verifier(verifier) = how.exclusive else {
            let is_directory = entry.attr.file_type == FileType::Directory;
            return if is_directory { Err(Error::IsDirectory) } else { Ok(()) };
        };
        let (accessed, modified) = verifier_times(verifier);
        let times = (entry.attr.atime.secs, entry.attr.mtime.secs);
        let same = times == (accessed.seconds, modified.seconds) && entry.attr.size == 0;
        if same { Ok(()) } else { Err(Error::Exists) }
    }

    /// Registers a newly created, open file as a node and an opening.
    fn enter_new(
        &self,
        file: OwnedFd,
        (node, permit): (Permit, OpenPermit),
        parent: NodeId,
        name: Option<Name<'_>>,
        flags: OpenFlags,
    ) -> Result<(Entry, OpenId)> {
        let stat: Stat = stat::stat(file.as_fd())?;
        let (entry, file) = self.adopt(file, false, &stat, node, parent, name)?;
        let mount = self.export.mounts.index_of(&stat).ok_or(Error::Stale)?;
        let entered =
            file.ok_or(Error::Stale).and_then(|file| self.enter(file, permit, entry.node, flags, mount));
        let open = entered.inspect_err(|_| drop(self.forget_node(entry.node, 1)))?;
        Ok((entry, open))
    }

    pub(crate) fn enter(
        &self,
        file: OwnedFd,
        permit: OpenPermit,
        node: NodeId,
        flags: OpenFlags,
        mount: u32,
    ) -> Result<OpenId> {
        let mount = self.export.mounts.mount(mount)?;
        self.table.opens(node);
        Ok(self.files.insert(OpenFile::new(file, permit, node, flags, mount.medium)))
    }

    fn open_directory(&self, cx: &Ctx, location: &Location) -> Result<OwnedFd> {
        let _acting = self.checked(cx)?;
        if self.checks == PermissionCheck::Caller {
            return Ok(self.export.own.reopen_directory(location.fd())?);
        }
        // Listing a directory requires read permission only; the quicker call above would require search
        // permission too.
        Ok(self.export.own.reopen(location.fd(), SysFlags::RDONLY | SysFlags::DIRECTORY)?)
    }

    fn open_regular(&self, cx: &Ctx, location: &Location, flags: OpenFlags) -> Result<OwnedFd> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        if flags.contains(OpenFlags::EXECUTE) && !writes {
            // Users with execute permission read the file through their own kernel, which requests the data
            // from the server (RFC 1813 §4.4).
            let _acting = self.checked(cx)?;
            check_access(location.fd(), access::EXECUTE)?;
            drop(_acting);
            return Ok(self.export.own.reopen(location.fd(), sys_flags(flags))?);
        }
        let _acting = self.checked(cx)?;
        let kills = flags.contains(OpenFlags::TRUNCATE | OpenFlags::KILL_PRIVILEGES);
        let _dropping = dropping_set_id(kills)?;
        let truncates = flags.contains(OpenFlags::TRUNCATE);
        let sys_flags = sys_flags(flags) | if truncates { SysFlags::TRUNC } else { SysFlags::empty() };
        match self.export.own.reopen(location.fd(), sys_flags) {
            Err(Errno::NOENT) => Err(Error::Stale),
            outcome => Ok(outcome?),
        }
    }
}

/// Translates flags for open(2), except creation, truncation and append.
fn sys_flags(flags: OpenFlags) -> SysFlags {
    let mut wanted = match (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (true, true) => SysFlags::RDWR,
        (false, true) => SysFlags::WRONLY,
        (_, false) => SysFlags::RDONLY,
    };
    let table = [
        (OpenFlags::DIRECT, SysFlags::DIRECT),
        (OpenFlags::SYNC, SysFlags::SYNC),
        (OpenFlags::DATA_SYNC, SysFlags::DSYNC),
        (OpenFlags::NO_ACCESS_TIME, SysFlags::NOATIME),
    ];
    table.iter().for_each(|&(flag, means)| wanted.set(means, wanted.contains(means) || flags.contains(flag)));
    wanted
}

/// Returns the times in which an exclusive create stores its verifier until the client sets them (RFC 1813
/// §3.3.8): the low 31 bits of each half as seconds, which every file system can represent. Clients count in
/// the low bits.
fn verifier_times(verifier: [u8; 8]) -> (Moment, Moment) {
    let half = |bytes: [u8; 4]| Moment {
        seconds: i64::from(u32::from_be_bytes(bytes) & 0x7FFF_FFFF),
        nanoseconds: 0,
    };
    let [a, b, c, d, e, f, g, h] = verifier;
    (half([a, b, c, d]), half([e, f, g, h]))
}

//! Decoding of requests from private bytes.

use crate::error::DecodeError;
use crate::extension::Extensions;
use crate::ids::{FileHandle, LockOwner, NodeId, Unique};
use crate::init::{Capabilities, Offer};
use crate::layout::{attr, dir, header::InHeader, init, lock, misc, open, rw, xattr};
use crate::opcode::Opcode;
use crate::request::{
    CopyFileRange, Create, Forgets, Header, Lock, LockKind, Open, Read, Release, Request, Setattr, Write,
};
use tombolo_core::fs::{Name, XattrName};
use zerocopy::FromBytes;

/// Maximum length of a symbolic link's target: `PATH_MAX` without its NUL.
const TARGET_BYTES_MAX: usize = 4095;

type Result<T> = std::result::Result<T, DecodeError>;

/// A request with its header and extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The caller, the node, and the request's identifier.
    pub header: Header,
    /// The operation with its arguments.
    pub request: Request<'a>,
    /// Extensions at the end of the request; never decoded for WRITE and NOTIFY_REPLY, whose end is not in
    /// private memory.
    pub extensions: Extensions<'a>,
}

impl<'a> Request<'a> {
    /// Decodes a request from its private bytes: as many as [`crate::Extent::of`] returns, copied out of the
    /// peer's memory once. `negotiated`: the capabilities negotiated by INIT; before it, empty.
    ///
    /// # Errors
    /// See [`DecodeError`]. Bytes after the arguments are an error too, except for INIT, TMPFILE and
    /// [`Request::Unsupported`].
    pub fn decode(bytes: &'a [u8], negotiated: Capabilities) -> Result<Decoded<'a>> {
        let Ok((raw, args)) = InHeader::read_from_prefix(bytes) else {
            return Err(DecodeError::NoHeader { found_bytes: bytes.len() });
        };
        let opcode = Opcode::from_wire(raw.opcode).ok_or(DecodeError::UnknownOpcode(raw.opcode))?;
        let header = Header::new(opcode, &raw);
        let mut args = Args { opcode, bytes: args, total_bytes: raw.len as usize };
        let payload_elsewhere = matches!(opcode, Opcode::Write | Opcode::NotifyReply);
        if !payload_elsewhere && raw.len as usize != bytes.len() {
            return Err(args.length("length differs from the header's"));
        }
        let extension_bytes = usize::from(raw.total_extlen) * 8;
        let extensions = if payload_elsewhere { &[] } else { args.split_end(extension_bytes)? };
        let extensions = Extensions::new(extensions).map_err(|what| args.length(what))?;
        let request = args.request(&raw, negotiated)?;
        if !matches!(opcode, Opcode::Init) && !args.bytes.is_empty() {
            return Err(args.length("bytes after the arguments"));
        }
        Ok(Decoded { header, request, extensions })
    }
}

/// The remaining bytes of a request's arguments.
struct Args<'a> {
    opcode: Opcode,
    bytes: &'a [u8],
    /// Length of the whole request according to its header, for errors.
    total_bytes: usize,
}

impl<'a> Args<'a> {
    fn request(&mut self, raw: &InHeader, negotiated: Capabilities) -> Result<Request<'a>> {
        Ok(match self.opcode {
            Opcode::Lookup => self.lookup(negotiated)?,
            Opcode::Forget => Request::Forget { count: self.take::<dir::ForgetIn>()?.nlookup },
            Opcode::BatchForget => self.batch_forget()?,
            Opcode::Getattr => self.getattr()?,
            Opcode::Statx => self.statx()?,
            Opcode::Setattr => self.setattr()?,
            Opcode::Readlink => Request::Readlink,
            Opcode::Symlink => Request::Symlink { name: self.name()?, target: self.target()? },
            Opcode::Mknod => self.mknod()?,
            Opcode::Mkdir => self.mkdir()?,
            Opcode::Unlink => Request::Unlink { name: self.name()? },
            Opcode::Rmdir => Request::Rmdir { name: self.name()? },
            Opcode::Rename => self.rename()?,
            Opcode::Rename2 => self.rename2()?,
            Opcode::Link => self.link()?,
            Opcode::Open => Request::Open(self.open()?),
            Opcode::Opendir => Request::Opendir(self.open()?),
            Opcode::Create => {
                let how = self.create()?;
                Request::Create { name: self.name()?, how }
            }
            Opcode::Tmpfile => self.tmpfile()?,
            Opcode::Read => Request::Read(self.read()?),
            Opcode::Readdir => Request::Readdir(self.read()?),
            Opcode::Readdirplus => Request::Readdirplus(self.read()?),
            Opcode::Write => self.write(raw)?,
            Opcode::Release => Request::Release(self.release()?),
            Opcode::Releasedir => Request::Releasedir(self.release()?),
            Opcode::Flush => self.flush()?,
            Opcode::Fsync | Opcode::Fsyncdir => self.fsync()?,
            Opcode::Statfs => Request::Statfs,
            Opcode::Syncfs => self.take::<misc::SyncfsIn>().map(|_| Request::Syncfs)?,
            Opcode::Access => Request::Access { mask: self.take::<misc::AccessIn>()?.mask },
            Opcode::Setxattr => self.setxattr(negotiated)?,
            Opcode::Getxattr => self.getxattr()?,
            Opcode::Listxattr => Request::Listxattr { size_bytes: self.take::<xattr::GetxattrIn>()?.size },
            Opcode::Removexattr => Request::Removexattr { name: self.xattr_name()? },
            Opcode::Getlk => Request::Getlk(self.lock()?),
            Opcode::Setlk => Request::Setlk(self.lock()?),
            Opcode::Setlkw => Request::Setlkw(self.lock()?),
            Opcode::Fallocate => self.fallocate()?,
            Opcode::Lseek => self.lseek()?,
            Opcode::CopyFileRange => Request::CopyFileRange(self.copy_file_range()?),
            Opcode::CopyFileRange64 => Request::CopyFileRange64(self.copy_file_range()?),
            Opcode::Ioctl => self.ioctl()?,
            Opcode::Init => self.init()?,
            Opcode::Interrupt => {
                Request::Interrupt { unique: Unique(self.take::<misc::InterruptIn>()?.unique) }
            }
            Opcode::Poll
            | Opcode::Bmap
            | Opcode::Setupmapping
            | Opcode::Removemapping
            | Opcode::NotifyReply => self.unsupported()?,
            Opcode::Destroy => Request::Destroy,
        })
    }

    fn batch_forget(&mut self) -> Result<Request<'a>> {
        let count = self.take::<dir::BatchForgetIn>()?.count as usize;
        let wanted = count.checked_mul(size_of::<dir::ForgetOne>());
        if wanted != Some(self.bytes.len()) {
            return Err(self.length("count of forgets does not match"));
        }
        Ok(Request::BatchForget(Forgets(self.rest())))
    }

    fn getattr(&mut self) -> Result<Request<'a>> {
        let raw: attr::GetattrIn = self.take()?;
        Ok(Request::Getattr { handle: handle_if(raw.getattr_flags & attr::GETATTR_FH != 0, raw.fh) })
    }

    fn statx(&mut self) -> Result<Request<'a>> {
        let raw: attr::StatxIn = self.take()?;
        let handle = handle_if(raw.getattr_flags & attr::GETATTR_FH != 0, raw.fh);
        Ok(Request::Statx { handle, mask: raw.sx_mask })
    }

    fn setattr(&mut self) -> Result<Request<'a>> {
        let fields: attr::SetattrIn = self.take()?;
        let valid = attr::SetattrValid::from_bits_truncate(fields.valid);
        let handle = handle_if(valid.contains(attr::SetattrValid::FH), fields.fh);
        for nanos in [fields.atimensec, fields.mtimensec, fields.ctimensec] {
            if nanos >= 1_000_000_000 {
                return Err(self.field("nanoseconds beyond a second"));
            }
        }
        Ok(Request::Setattr(Setattr { valid, handle, fields }))
    }

    fn mknod(&mut self) -> Result<Request<'a>> {
        let raw: dir::MknodIn = self.take()?;
        Ok(Request::Mknod { name: self.name()?, mode: raw.mode, rdev: raw.rdev, umask: raw.umask })
    }

    fn mkdir(&mut self) -> Result<Request<'a>> {
        let raw: dir::MkdirIn = self.take()?;
        Ok(Request::Mkdir { name: self.name()?, mode: raw.mode, umask: raw.umask })
    }

    fn rename(&mut self) -> Result<Request<'a>> {
        let new_parent = NodeId(self.take::<dir::RenameIn>()?.newdir);
        Ok(Request::Rename { name: self.name()?, new_parent, new_name: self.name()?, flags: 0 })
    }

    fn rename2(&mut self) -> Result<Request<'a>> {
        let raw: dir::Rename2In = self.take()?;
        let new_parent = NodeId(raw.newdir);
        Ok(Request::Rename { name: self.name()?, new_parent, new_name: self.name()?, flags: raw.flags })
    }

    fn link(&mut self) -> Result<Request<'a>> {
        let node = NodeId(self.take::<dir::LinkIn>()?.oldnodeid);
        Ok(Request::Link { node, new_name: self.name()? })
    }

    fn open(&mut self) -> Result<Open> {
        let raw: open::OpenIn = self.take()?;
        Ok(Open { flags: raw.flags, open_flags: open::OpenInFlags::from_bits_truncate(raw.open_flags) })
    }

    fn create(&mut self) -> Result<Create> {
        let raw: open::CreateIn = self.take()?;
        Ok(Create {
            flags: raw.flags,
            mode: raw.mode,
            umask: raw.umask,
            open_flags: open::OpenInFlags::from_bits_truncate(raw.open_flags),
        })
    }

    /// Decodes a TMPFILE, ignoring the name of its anonymous dentry: "/" on some kernels, "#" and a number on
    /// others.
    fn tmpfile(&mut self) -> Result<Request<'a>> {
        let how = self.create()?;
        self.rest();
        Ok(Request::Tmpfile { how })
    }

    fn read(&mut self) -> Result<Read> {
        let raw: rw::ReadIn = self.take()?;
        Ok(Read { handle: FileHandle(raw.fh), offset: raw.offset, size_bytes: raw.size, flags: raw.flags })
    }

    fn write(&mut self, header: &InHeader) -> Result<Request<'a>> {
        let raw: rw::WriteIn = self.take()?;
        let head = size_of::<InHeader>() + size_of::<rw::WriteIn>();
        if (header.len as usize).checked_sub(head) != Some(raw.size as usize) {
            return Err(self.length("size of the data does not match"));
        }
        Ok(Request::Write(Write {
            handle: FileHandle(raw.fh),
            offset: raw.offset,
            size_bytes: raw.size,
            write_flags: rw::WriteFlags::from_bits_truncate(raw.write_flags),
            flags: raw.flags,
        }))
    }

    fn release(&mut self) -> Result<Release> {
        let raw: open::ReleaseIn = self.take()?;
        Ok(Release {
            handle: FileHandle(raw.fh),
            flags: raw.flags,
            release_flags: open::ReleaseFlags::from_bits_truncate(raw.release_flags),
            lock_owner: LockOwner(raw.lock_owner),
        })
    }

    fn flush(&mut self) -> Result<Request<'a>> {
        let raw: open::FlushIn = self.take()?;
        Ok(Request::Flush { handle: FileHandle(raw.fh), lock_owner: LockOwner(raw.lock_owner) })
    }

    fn fsync(&mut self) -> Result<Request<'a>> {
        let raw: open::FsyncIn = self.take()?;
        let handle = FileHandle(raw.fh);
        let data_only = raw.fsync_flags & open::FSYNC_FDATASYNC != 0;
        Ok(match self.opcode {
            Opcode::Fsyncdir => Request::Fsyncdir { handle, data_only },
            _ => Request::Fsync { handle, data_only },
        })
    }

    fn setxattr(&mut self, negotiated: Capabilities) -> Result<Request<'a>> {
        let raw = if negotiated.contains(Capabilities::SETXATTR_EXT) {
            self.take::<xattr::SetxattrIn>()?
        } else {
            let [size, flags] = self.take::<[u32; 2]>()?;
            xattr::SetxattrIn { size, flags, ..Default::default() }
        };
        let name = self.xattr_name()?;
        if self.bytes.len() != raw.size as usize {
            return Err(self.length("size of the value does not match"));
        }
        let kill_set_gid = raw.setxattr_flags & xattr::SETXATTR_ACL_KILL_SGID != 0;
        Ok(Request::Setxattr { name, value: self.rest(), flags: raw.flags, kill_set_gid })
    }

    fn getxattr(&mut self) -> Result<Request<'a>> {
        let size_bytes = self.take::<xattr::GetxattrIn>()?.size;
        Ok(Request::Getxattr { name: self.xattr_name()?, size_bytes })
    }

    fn lock(&mut self) -> Result<Lock> {
        let raw: lock::LkIn = self.take()?;
        let kind = match raw.lk.kind {
            lock::F_RDLCK => LockKind::Read,
            lock::F_WRLCK => LockKind::Write,
            lock::F_UNLCK => LockKind::Unlock,
            _ => return Err(self.field("unknown kind of lock")),
        };
        if raw.lk.start > raw.lk.end || raw.lk.end > lock::OFFSET_MAX {
            return Err(self.field("invalid range of the lock"));
        }
        Ok(Lock {
            handle: FileHandle(raw.fh),
            owner: LockOwner(raw.owner),
            kind,
            start: raw.lk.start,
            last: raw.lk.end,
            pid: raw.lk.pid,
            is_flock: raw.lk_flags & lock::LK_FLOCK != 0,
        })
    }

    fn fallocate(&mut self) -> Result<Request<'a>> {
        let raw: rw::FallocateIn = self.take()?;
        let handle = FileHandle(raw.fh);
        Ok(Request::Fallocate { handle, offset: raw.offset, len_bytes: raw.length, mode: raw.mode })
    }

    fn lseek(&mut self) -> Result<Request<'a>> {
        let raw: rw::LseekIn = self.take()?;
        Ok(Request::Lseek { handle: FileHandle(raw.fh), offset: raw.offset, whence: raw.whence })
    }

    fn copy_file_range(&mut self) -> Result<CopyFileRange> {
        let raw: rw::CopyFileRangeIn = self.take()?;
        Ok(CopyFileRange {
            from: FileHandle(raw.fh_in),
            from_offset: raw.off_in,
            to_node: NodeId(raw.nodeid_out),
            to: FileHandle(raw.fh_out),
            to_offset: raw.off_out,
            len_bytes: raw.len,
            flags: raw.flags,
        })
    }

    fn ioctl(&mut self) -> Result<Request<'a>> {
        let raw: misc::IoctlIn = self.take()?;
        if self.bytes.len() != raw.in_size as usize {
            return Err(self.length("size of the input does not match"));
        }
        self.rest();
        Ok(Request::Ioctl { command: raw.cmd })
    }

    fn unsupported(&mut self) -> Result<Request<'a>> {
        match self.rest().len() < self.opcode.fixed_bytes() {
            true => Err(self.length("shorter than its arguments")),
            false => Ok(Request::Unsupported),
        }
    }

    fn init(&mut self) -> Result<Request<'a>> {
        let mut raw = init::InitIn::default();
        [raw.major, raw.minor, raw.max_readahead, raw.flags] = self.take::<[u32; 4]>()?;
        if let Ok((flags2, _)) = u32::read_from_prefix(self.bytes) {
            raw.flags2 = flags2;
        }
        Ok(Request::Init(Offer::from(&raw)))
    }

    fn take<T: FromBytes>(&mut self) -> Result<T> {
        let (value, rest) =
            T::read_from_prefix(self.bytes).map_err(|_| self.length("shorter than its arguments"))?;
        self.bytes = rest;
        Ok(value)
    }

    /// Returns the bytes up to the next NUL, and advances behind the NUL.
    fn text(&mut self) -> Result<&'a [u8]> {
        let end = self.bytes.iter().position(|&byte| byte == 0);
        let split = end.and_then(|end| Some((self.bytes.get(..end)?, self.bytes.get(end + 1..)?)));
        let (text, rest) = split.ok_or_else(|| self.length("unterminated name"))?;
        self.bytes = rest;
        Ok(text)
    }

    /// Decodes a LOOKUP. With EXPORT_SUPPORT the kernel looks up `.` to find a node that it has forgotten,
    /// and `..` to find the parent of a node.
    fn lookup(&mut self, negotiated: Capabilities) -> Result<Request<'a>> {
        let text = self.text()?;
        match text {
            b"." if negotiated.contains(Capabilities::EXPORT_SUPPORT) => Ok(Request::LookupSelf),
            b".." if negotiated.contains(Capabilities::EXPORT_SUPPORT) => Ok(Request::LookupParent),
            _ => self.named(text).map(|name| Request::Lookup { name }),
        }
    }

    fn name(&mut self) -> Result<Name<'a>> {
        let text = self.text()?;
        self.named(text)
    }

    fn named(&self, text: &'a [u8]) -> Result<Name<'a>> {
        Name::new(text).map_err(|source| DecodeError::Name { opcode: self.opcode, source })
    }

    fn xattr_name(&mut self) -> Result<XattrName<'a>> {
        let text = self.text()?;
        XattrName::new(text).map_err(|source| DecodeError::Name { opcode: self.opcode, source })
    }

    fn target(&mut self) -> Result<&'a [u8]> {
        let text = self.text()?;
        if text.is_empty() || text.len() > TARGET_BYTES_MAX {
            return Err(self.field("invalid length of the link's target"));
        }
        Ok(text)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// Removes this number of bytes from the end of the arguments, and returns them.
    fn split_end(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let at = self.bytes.len().checked_sub(bytes);
        let split = at.and_then(|at| self.bytes.split_at_checked(at));
        let (head, end) = split.ok_or_else(|| self.length("extensions longer than the request"))?;
        self.bytes = head;
        Ok(end)
    }

    fn length(&self, what: &'static str) -> DecodeError {
        DecodeError::Length { opcode: self.opcode, what, found_bytes: self.total_bytes }
    }

    fn field(&self, what: &'static str) -> DecodeError {
        DecodeError::Field { opcode: self.opcode, what }
    }
}

fn handle_if(valid: bool, fh: u64) -> Option<FileHandle> {
    valid.then_some(FileHandle(fh))
}

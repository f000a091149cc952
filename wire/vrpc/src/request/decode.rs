//! Bytes to requests.

use tombolo_core::fs::{
    AccessMask, AllocateMode, Cookie, Create, Device, DirBudget, Exclusive, File, Lock, LockFamily, LockKind,
    LockOwner, LockRange, Name, NewMode, NodeId, OpenFlags, OpenId, RenameFlags, SyncWhat, Whence, Write,
    XattrName, XattrSet,
};
use tombolo_core::{Stability, Want};
use zerocopy::little_endian::U16;
use zerocopy::{transmute, transmute_ref};

use super::{CallerId, Header, Request, WANT_HANDLES, exclusive_number, flag, lock_number};
use crate::attr::{file_type, mode};
use crate::data::{FORM, Span};
use crate::frame::Reader;
use crate::layout::{
    BudgetItem, BytesArgs, CallerArgs, CopyItem, CreateArgs, Envelope, FileArgs, ForgetArgs, InterruptArgs,
    LockItem, MakeArgs, NameArgs, NoArgs, OpenArgs, OwnerArgs, RangeArgs, ResolveArgs, SetAttrItem,
    TransferArgs, TwoNodesArgs,
};
use crate::{Body, Data, DecodeError, Forgets, GROUPS_MAX, Groups, HandleBytes, Kind, Place};

impl<'a> Request<'a> {
    /// Understands a request of kind `kind`. `body` and `frame` must be private copies; names, small data and lists are borrowed
    /// from them. An error means that the peer breaks the protocol.
    #[inline]
    pub fn decode(kind: u32, body: &'a Body, frame: &'a [u8]) -> Result<(Header, Self), DecodeError> {
        let kind = Kind::decode(kind)?;
        let envelope: &Envelope = transmute_ref!(body);
        let want = envelope.tail.want;
        let header = Header {
            sequence: envelope.sequence.get(),
            caller: CallerId(envelope.tail.caller.get()),
            want: Want::from_bits(want & !WANT_HANDLES).ok_or(DecodeError::UnknownFlags(want.into()))?,
            handles: want & WANT_HANDLES != 0,
        };
        let mut from = Decoder { body, flags: envelope.tail.flags, frame: Reader::new(frame)? };
        // A request is made where it is wanted, and not moved once it is known to be good.
        let decoded = from.request(kind, header);
        if decoded.is_ok() {
            from.frame.finish()?;
        }
        decoded
    }
}

struct Decoder<'a> {
    body: &'a Body,
    flags: u8,
    frame: Reader<'a>,
}

impl<'a> Decoder<'a> {
    fn request(&mut self, kind: Kind, header: Header) -> Result<(Header, Request<'a>), DecodeError> {
        let request = match kind {
            Kind::Null => self.no_args().map(|()| Request::Null)?,
            Kind::Profile => self.no_args().map(|()| Request::Profile)?,
            Kind::Syncfs => self.no_args().map(|()| Request::Syncfs)?,
            Kind::Caller => self.caller()?,
            Kind::Interrupt => self.interrupt()?,
            Kind::Forget => Request::Forget(self.forgets()?),
            Kind::Lookup => self.name().map(|(parent, name)| Request::Lookup { parent, name })?,
            Kind::Unlink => self.name().map(|(parent, name)| Request::Unlink { parent, name })?,
            Kind::Rmdir => self.name().map(|(parent, name)| Request::Rmdir { parent, name })?,
            Kind::Getattr => self.node_or_open().map(|(node, open)| Request::Getattr { node, open })?,
            Kind::Setattr => {
                let (node, open) = self.node_or_open()?;
                Request::Setattr { node, open, set: self.frame.item::<SetAttrItem>()?.decode()? }
            }
            Kind::Access => {
                let node = self.node(AccessMask::all().bits())?;
                Request::Access { node, mask: AccessMask::from_bits_retain(self.flags) }
            }
            Kind::Readlink => self.bytes_wanted().map(|(node, place)| Request::Readlink { node, place })?,
            Kind::XattrList => self.bytes_wanted().map(|(node, place)| Request::XattrList { node, place })?,
            Kind::Create => {
                let (parent, name, how) = self.create()?;
                Request::Create { parent, name: Name::new(name)?, how }
            }
            Kind::CreateUnnamed => self.create_unnamed()?,
            Kind::Mkdir => self.mkdir()?,
            Kind::Mknod => self.mknod()?,
            Kind::Symlink => self.symlink()?,
            Kind::Link => self.link()?,
            Kind::Rename => self.rename()?,
            Kind::Open => self.open()?,
            Kind::Release => self.file(0).map(|file| Request::Release { file })?,
            Kind::Flush => self.flush()?,
            Kind::Fsync => {
                let file = self.file(flag::DATA_ONLY)?;
                let what = if self.flags == 0 { SyncWhat::All } else { SyncWhat::Data };
                Request::Fsync { file, what }
            }
            Kind::Read => {
                let (file, offset, span) = self.transfer(FORM)?;
                Request::Read { file, offset, place: span.place(&mut self.frame)? }
            }
            Kind::Write => self.write()?,
            Kind::Readdir => self.readdir()?,
            Kind::Statfs => self.node(0).map(|node| Request::Statfs { node })?,
            Kind::XattrGet => self.xattr_get()?,
            Kind::XattrSet => self.xattr_set()?,
            Kind::XattrRemove => self.xattr_remove()?,
            Kind::LockTest => Request::LockTest { file: self.file(0)?, lock: self.lock()? },
            Kind::Lock => {
                let file = self.file(flag::WAIT)?;
                Request::Lock { file, lock: self.lock()?, wait: self.flags != 0 }
            }
            Kind::Unlock => self.unlock()?,
            Kind::HandleOf => self.node(0).map(|node| Request::HandleOf { node })?,
            Kind::Resolve => self.resolve()?,
            Kind::Parent => self.node(0).map(|node| Request::Parent { node })?,
            Kind::Allocate => {
                let (file, offset, len_bytes) = self.range(AllocateMode::all().bits())?;
                Request::Allocate {
                    file,
                    offset,
                    len_bytes,
                    mode: AllocateMode::from_bits_retain(self.flags),
                }
            }
            Kind::Seek => self.seek()?,
            Kind::Copy => self.copy()?,
        };
        Ok((header, request))
    }

    fn only(&self, flags: u8) -> Result<(), DecodeError> {
        match self.flags & !flags {
            0 => Ok(()),
            unknown => Err(DecodeError::UnknownFlags(unknown.into())),
        }
    }

    fn no_args(&self) -> Result<(), DecodeError> {
        let args: NoArgs = transmute!(*self.body);
        self.only(0)?;
        zero(&args.reserved)
    }

    fn caller(&mut self) -> Result<Request<'a>, DecodeError> {
        let args: CallerArgs = transmute!(*self.body);
        self.only(0)?;
        zero(&args.reserved)?;
        let len = args.groups.get() as usize;
        if len > GROUPS_MAX {
            return Err(DecodeError::ListLength(len as u64));
        }
        let groups = Groups::decode(&mut self.frame, len)?;
        Ok(Request::Caller { uid: args.uid.get(), gid: args.gid.get(), groups })
    }

    fn interrupt(&self) -> Result<Request<'a>, DecodeError> {
        let args: InterruptArgs = transmute!(*self.body);
        self.only(0)?;
        zero(&args.reserved)?;
        Ok(Request::Interrupt { id: args.id.get() })
    }

    fn forgets(&mut self) -> Result<Forgets<'a>, DecodeError> {
        let args: ForgetArgs = transmute!(*self.body);
        self.only(flag::LIST)?;
        zero(&args.reserved)?;
        let (node, look_ups) = (args.node.get(), args.look_ups.get());
        if self.flags == 0 {
            return Ok(Forgets::one(NodeId(node), look_ups));
        }
        if (node, look_ups) != (0, 0) {
            return Err(DecodeError::Reserved);
        }
        Forgets::decode(&mut self.frame)
    }

    fn name(&mut self) -> Result<(NodeId, Name<'a>), DecodeError> {
        let args: &'a NameArgs = transmute_ref!(self.body);
        self.only(0)?;
        let len = usize::from(args.name_len);
        let name = match args.name.split_at_checked(len) {
            Some((name, rest)) => {
                zero(rest)?;
                name
            }
            None => {
                zero(&args.name)?;
                self.frame.bytes(len)?
            }
        };
        Ok((NodeId(args.parent.get()), Name::new(name)?))
    }

    fn file(&self, flags: u8) -> Result<File, DecodeError> {
        let args: FileArgs = transmute!(*self.body);
        self.only(flags)?;
        zero(&args.reserved)?;
        Ok(file(args.node.get(), args.open.get()))
    }

    fn node(&self, flags: u8) -> Result<NodeId, DecodeError> {
        match self.file(flags)? {
            File { node, open: OpenId(0) } => Ok(node),
            _ => Err(DecodeError::Reserved),
        }
    }

    fn node_or_open(&self) -> Result<(NodeId, Option<OpenId>), DecodeError> {
        if self.flags == 0 {
            return self.node(0).map(|node| (node, None));
        }
        self.file(flag::OPEN).map(|file| (file.node, Some(file.open)))
    }

    fn open(&self) -> Result<Request<'a>, DecodeError> {
        let args: OpenArgs = transmute!(*self.body);
        self.only(0)?;
        zero(&args.reserved)?;
        Ok(Request::Open { node: NodeId(args.node.get()), flags: open_flags(args.open_flags)? })
    }

    fn flush(&self) -> Result<Request<'a>, DecodeError> {
        let args: OwnerArgs = transmute!(*self.body);
        self.only(0)?;
        zero(&args.reserved)?;
        let owner = LockOwner(args.owner.get());
        Ok(Request::Flush { file: file(args.node.get(), args.open.get()), owner })
    }

    fn transfer(&self, flags: u8) -> Result<(File, u64, Span), DecodeError> {
        let args: TransferArgs = transmute!(*self.body);
        self.only(flags)?;
        let span = Span { form: self.flags & FORM, address: args.address, len_bytes: args.len_bytes };
        Ok((file(args.node.get(), args.open.get()), args.offset.get(), span))
    }

    fn write(&mut self) -> Result<Request<'a>, DecodeError> {
        let known = FORM | flag::STABILITY | flag::KILL_PRIVILEGES | flag::IN_PLACE;
        let (file, offset, span) = self.transfer(known)?;
        let how = Write {
            offset,
            stability: stability((self.flags & flag::STABILITY) >> flag::STABILITY_SHIFT)?,
            kill_privileges: self.flags & flag::KILL_PRIVILEGES != 0,
            in_place: self.flags & flag::IN_PLACE != 0,
            keepable: false,
        };
        Ok(Request::Write { file, how, data: span.data(&mut self.frame)? })
    }

    fn readdir(&mut self) -> Result<Request<'a>, DecodeError> {
        let (file, cookie, span) = self.transfer(FORM | flag::PLUS)?;
        let item: &BudgetItem = self.frame.item()?;
        zero(&item.reserved)?;
        let align = item.align.get();
        if !align.is_power_of_two() {
            return Err(DecodeError::Value { field: "alignment", value: align.into() });
        }
        let budget = DirBudget {
            size_bytes: item.size_bytes.get() as usize,
            entry_bytes: item.entry_bytes.get() as usize,
            align: align as usize,
            plus: self.flags & flag::PLUS != 0,
        };
        let place = span.place(&mut self.frame)?;
        Ok(Request::Readdir { file, cookie: Cookie(cookie), budget, place })
    }

    /// Node, name and where the bytes lie; what of flags and name must be empty is for the caller to check.
    fn bytes(&mut self, flags: u8) -> Result<(NodeId, &'a [u8], Span), DecodeError> {
        let args: BytesArgs = transmute!(*self.body);
        self.only(flags)?;
        zero(&args.reserved)?;
        let span = Span { form: self.flags & FORM, address: args.address, len_bytes: args.len_bytes };
        Ok((NodeId(args.node.get()), self.frame.bytes(args.name_len.into())?, span))
    }

    fn bytes_wanted(&mut self) -> Result<(NodeId, Place<'a>), DecodeError> {
        match self.bytes(FORM)? {
            (node, b"", span) => Ok((node, span.place(&mut self.frame)?)),
            _ => Err(DecodeError::Reserved),
        }
    }

    fn symlink(&mut self) -> Result<Request<'a>, DecodeError> {
        let (parent, name, span) = self.bytes(FORM)?;
        let name = Name::new(name)?;
        Ok(Request::Symlink { parent, name, target: span.data(&mut self.frame)? })
    }

    fn xattr_get(&mut self) -> Result<Request<'a>, DecodeError> {
        let (node, name, span) = self.bytes(FORM)?;
        let name = XattrName::new(name)?;
        Ok(Request::XattrGet { node, name, place: span.place(&mut self.frame)? })
    }

    fn xattr_set(&mut self) -> Result<Request<'a>, DecodeError> {
        let known = FORM | flag::XATTR_CREATE | flag::XATTR_REPLACE | flag::KILL_SET_GID;
        let (node, name, span) = self.bytes(known)?;
        let how = match self.flags & (flag::XATTR_CREATE | flag::XATTR_REPLACE) {
            0 => XattrSet::Any,
            flag::XATTR_CREATE => XattrSet::Create,
            flag::XATTR_REPLACE => XattrSet::Replace,
            both => return Err(DecodeError::UnknownFlags(both.into())),
        };
        let kill_set_gid = self.flags & flag::KILL_SET_GID != 0;
        let name = XattrName::new(name)?;
        let value = span.data(&mut self.frame)?;
        Ok(Request::XattrSet { node, name, value, how, kill_set_gid })
    }

    fn xattr_remove(&mut self) -> Result<Request<'a>, DecodeError> {
        let (node, name, span) = self.bytes(0)?;
        match span.data(&mut self.frame)? {
            Data::Inline([]) => Ok(Request::XattrRemove { node, name: XattrName::new(name)? }),
            _ => Err(DecodeError::Reserved),
        }
    }

    fn create(&mut self) -> Result<(NodeId, &'a [u8], Create), DecodeError> {
        let args: CreateArgs = transmute!(*self.body);
        self.only(0)?;
        zero(&args.reserved)?;
        if args.exclusive != exclusive_number::VERIFIER {
            zero(&args.verifier)?;
        }
        let how = Create {
            mode: new_mode(args.mode, args.umask)?,
            flags: open_flags(args.open_flags)?,
            exclusive: match args.exclusive {
                exclusive_number::NO => Exclusive::No,
                exclusive_number::YES => Exclusive::Yes,
                exclusive_number::VERIFIER => Exclusive::Verifier(args.verifier),
                other => return Err(DecodeError::Value { field: "exclusiveness", value: other.into() }),
            },
        };
        Ok((NodeId(args.parent.get()), self.frame.bytes(args.name_len.into())?, how))
    }

    fn create_unnamed(&mut self) -> Result<Request<'a>, DecodeError> {
        match self.create()? {
            (parent, b"", how) => Ok(Request::CreateUnnamed { parent, how }),
            _ => Err(DecodeError::Reserved),
        }
    }

    fn make(&mut self) -> Result<(MakeArgs, NodeId, Name<'a>, NewMode), DecodeError> {
        let args: MakeArgs = transmute!(*self.body);
        self.only(0)?;
        zero(&args.reserved)?;
        zero(&args.reserved_too)?;
        let name = Name::new(self.frame.bytes(args.name_len.into())?)?;
        Ok((args, NodeId(args.parent.get()), name, new_mode(args.mode, args.umask)?))
    }

    fn mkdir(&mut self) -> Result<Request<'a>, DecodeError> {
        let (args, parent, name, mode) = self.make()?;
        if (args.file_type, args.major.get(), args.minor.get()) != (0, 0, 0) {
            return Err(DecodeError::Reserved);
        }
        Ok(Request::Mkdir { parent, name, mode })
    }

    fn mknod(&mut self) -> Result<Request<'a>, DecodeError> {
        let (args, parent, name, mode) = self.make()?;
        let rdev = Device { major: args.major.get(), minor: args.minor.get() };
        Ok(Request::Mknod { parent, name, file_type: file_type(args.file_type)?, mode, rdev })
    }

    #[expect(clippy::type_complexity, reason = "two of the same")]
    fn two_nodes(&mut self, flags: u8) -> Result<((NodeId, &'a [u8]), (NodeId, &'a [u8])), DecodeError> {
        let args: TwoNodesArgs = transmute!(*self.body);
        self.only(flags)?;
        zero(&args.reserved)?;
        let from = self.frame.bytes(args.from_name_len.into())?;
        let to = self.frame.bytes(args.to_name_len.into())?;
        Ok(((NodeId(args.from.get()), from), (NodeId(args.to.get()), to)))
    }

    fn link(&mut self) -> Result<Request<'a>, DecodeError> {
        match self.two_nodes(0)? {
            ((node, b""), (parent, name)) => Ok(Request::Link { node, parent, name: Name::new(name)? }),
            _ => Err(DecodeError::Reserved),
        }
    }

    fn rename(&mut self) -> Result<Request<'a>, DecodeError> {
        let ((from_parent, from), (to_parent, to)) = self.two_nodes(RenameFlags::all().bits())?;
        Ok(Request::Rename {
            from_parent,
            from: Name::new(from)?,
            to_parent,
            to: Name::new(to)?,
            flags: RenameFlags::from_bits_retain(self.flags),
        })
    }

    fn lock(&mut self) -> Result<Lock, DecodeError> {
        decode_lock(self.frame.item()?)
    }

    fn unlock(&mut self) -> Result<Request<'a>, DecodeError> {
        let file = self.file(0)?;
        let item: &LockItem = self.frame.item()?;
        if item.kind != lock_number::NO_KIND || item.pid.get() != 0 {
            return Err(DecodeError::Reserved);
        }
        let lock = decode_lock(&LockItem { kind: lock_number::READ, ..*item })?;
        Ok(Request::Unlock { file, family: lock.family, range: lock.range, owner: lock.owner })
    }

    fn resolve(&mut self) -> Result<Request<'a>, DecodeError> {
        let args: ResolveArgs = transmute!(*self.body);
        self.only(0)?;
        zero(&args.reserved)?;
        let handle = HandleBytes::decode(args.kind.get(), args.len_bytes.get(), &mut self.frame)?;
        Ok(Request::Resolve { handle })
    }

    fn range(&self, flags: u8) -> Result<(File, u64, u64), DecodeError> {
        let args: RangeArgs = transmute!(*self.body);
        self.only(flags)?;
        zero(&args.reserved)?;
        Ok((file(args.node.get(), args.open.get()), args.offset.get(), args.len_bytes.get()))
    }

    fn seek(&self) -> Result<Request<'a>, DecodeError> {
        let whence = if self.flags == 0 { Whence::Data } else { Whence::Hole };
        match self.range(flag::HOLE)? {
            (file, offset, 0) => Ok(Request::Seek { file, offset, whence }),
            _ => Err(DecodeError::Reserved),
        }
    }

    fn copy(&mut self) -> Result<Request<'a>, DecodeError> {
        let (from, from_offset, len_bytes) = self.range(0)?;
        let target: &CopyItem = self.frame.item()?;
        let to = file(target.node.get(), target.open.get());
        Ok(Request::Copy { from, from_offset, to, to_offset: target.offset.get(), len_bytes })
    }
}

pub(crate) fn decode_lock(item: &LockItem) -> Result<Lock, DecodeError> {
    zero(&item.reserved)?;
    let range = LockRange { start: item.start.get(), last: item.last.get() };
    if range.start > range.last {
        return Err(DecodeError::Value { field: "range of a lock", value: range.start });
    }
    Ok(Lock {
        family: match item.family {
            lock_number::POSIX => LockFamily::Posix,
            lock_number::FLOCK => LockFamily::Flock,
            other => return Err(DecodeError::Value { field: "family of locks", value: other.into() }),
        },
        kind: match item.kind {
            lock_number::READ => LockKind::Read,
            lock_number::WRITE => LockKind::Write,
            other => return Err(DecodeError::Value { field: "kind of lock", value: other.into() }),
        },
        range,
        owner: LockOwner(item.owner.get()),
        pid: item.pid.get(),
    })
}

pub(crate) fn stability(number: u8) -> Result<Stability, DecodeError> {
    match number {
        0 => Ok(Stability::Unstable),
        1 => Ok(Stability::DataSync),
        2 => Ok(Stability::FileSync),
        _ => Err(DecodeError::Value { field: "stability", value: number.into() }),
    }
}

/// Refuses what has no meaning in this version. It looks at all bytes, which is quicker than stopping at the first.
#[inline]
pub(crate) fn zero(reserved: &[u8]) -> Result<(), DecodeError> {
    let (words, bytes) = reserved.as_chunks();
    let words = words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word));
    match bytes.iter().fold(words, |all, byte| all | u64::from(*byte)) {
        0 => Ok(()),
        _ => Err(DecodeError::Reserved),
    }
}

fn file(node: u64, open: u64) -> File {
    File { node: NodeId(node), open: OpenId(open) }
}

fn new_mode(bits: U16, umask: U16) -> Result<NewMode, DecodeError> {
    Ok(NewMode { mode: mode(bits)?, umask: mode(umask)? })
}

fn open_flags(bits: U16) -> Result<OpenFlags, DecodeError> {
    OpenFlags::from_bits(bits.get()).ok_or(DecodeError::UnknownFlags(bits.get().into()))
}

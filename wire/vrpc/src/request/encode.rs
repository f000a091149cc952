//! Requests to bytes.

use tombolo_core::Stability;
use tombolo_core::fs::{
    Create, DirBudget, Exclusive, File, Lock, LockFamily, LockKind, Name, NewMode, NodeId, OpenId, SyncWhat,
    Whence, Write, XattrSet,
};
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::transmute;

use super::{Header, Request, WANT_HANDLES, exclusive_number, flag, lock_number};
use crate::attr::{mode_bits, type_number};
use crate::data::Span;
use crate::frame::Items;
use crate::layout::{
    BudgetItem, BytesArgs, CallerArgs, CopyItem, CreateArgs, FileArgs, ForgetArgs, InterruptArgs, LockItem,
    MakeArgs, NameArgs, NoArgs, OpenArgs, OwnerArgs, RangeArgs, ResolveArgs, SetAttrItem, Tail, TransferArgs,
    TwoNodesArgs,
};
use crate::{Body, Data, EncodeError, Forgets, FrameSink, GROUPS_MAX, Groups, HandleBytes, Kind, Place};

impl Request<'_> {
    /// Writes the request to `body`, and to `frame` what does not fit there. On failure neither may be sent.
    #[inline]
    pub fn encode<W: FrameSink + ?Sized>(
        &self,
        header: &Header,
        body: &mut Body,
        frame: &mut W,
    ) -> Result<Kind, EncodeError> {
        let mut to = Encoder { header, frame: Items::new(frame) };
        *body = match *self {
            Self::Null | Self::Profile | Self::Syncfs => to.no_args(),
            Self::Caller { uid, gid, groups } => to.caller(uid, gid, groups)?,
            Self::Interrupt { id } => to.interrupt(id),
            Self::Forget(forgets) => to.forget(forgets)?,
            Self::Lookup { parent, name } | Self::Unlink { parent, name } | Self::Rmdir { parent, name } => {
                to.name(parent, name)?
            }
            Self::Getattr { node, open } => to.node(node, open),
            Self::Setattr { node, open, set } => {
                to.frame.item(&SetAttrItem::from(&set))?;
                to.node(node, open)
            }
            Self::Access { node, mask } => to.file(node, OpenId(0), mask.bits()),
            Self::Readlink { node, place } | Self::XattrList { node, place } => {
                to.bytes_wanted(node, b"", place)?
            }
            Self::Create { parent, name, how } => to.create(parent, name.as_bytes(), &how)?,
            Self::CreateUnnamed { parent, how } => to.create(parent, b"", &how)?,
            Self::Mkdir { parent, name, mode } => to.make(parent, name, mode, 0, Default::default())?,
            Self::Symlink { parent, name, target } => to.bytes_given(parent, name.as_bytes(), target, 0)?,
            Self::Mknod { parent, name, file_type, mode, rdev } => {
                to.make(parent, name, mode, type_number(file_type), rdev)?
            }
            Self::Link { node, parent, name } => to.two_nodes((node, b""), (parent, name.as_bytes()), 0)?,
            Self::Rename { from_parent, from, to_parent, to: to_name, flags } => {
                let from = (from_parent, from.as_bytes());
                to.two_nodes(from, (to_parent, to_name.as_bytes()), flags.bits())?
            }
            Self::Open { node, flags } => to.open(node, flags.bits()),
            Self::Release { file } => to.file(file.node, file.open, 0),
            Self::Flush { file, owner } => to.flush(file, owner.0),
            Self::Fsync { file, what } => to.file(file.node, file.open, sync_flag(what)),
            Self::Read { file, offset, place } => to.transfer_in(file, offset, place, 0)?,
            Self::Write { file, how, data } => to.write(file, &how, data)?,
            Self::Readdir { file, cookie, budget, place } => {
                to.frame.item(&budget_item(&budget)?)?;
                to.transfer_in(file, cookie.0, place, if budget.plus { flag::PLUS } else { 0 })?
            }
            Self::Statfs { node } | Self::HandleOf { node } | Self::Parent { node } => to.node(node, None),
            Self::XattrGet { node, name, place } => to.bytes_wanted(node, name.as_bytes(), place)?,
            Self::XattrSet { node, name, value, how, kill_set_gid } => {
                to.bytes_given(node, name.as_bytes(), value, xattr_flags(how, kill_set_gid))?
            }
            Self::XattrRemove { node, name } => {
                to.bytes_given(node, name.as_bytes(), Data::Inline(&[]), 0)?
            }
            Self::LockTest { file, lock } => to.lock(file, &lock_item(&lock)?, 0)?,
            Self::Lock { file, lock, wait } => {
                to.lock(file, &lock_item(&lock)?, if wait { flag::WAIT } else { 0 })?
            }
            Self::Unlock { file, family, range, owner } => {
                let lock = Lock { family, kind: LockKind::Read, range, owner, pid: 0 };
                to.lock(file, &LockItem { kind: lock_number::NO_KIND, ..lock_item(&lock)? }, 0)?
            }
            Self::Resolve { handle } => to.resolve(handle)?,
            Self::Allocate { file, offset, len_bytes, mode } => {
                to.range(file, offset, len_bytes, mode.bits())
            }
            Self::Seek { file, offset, whence } => to.range(file, offset, 0, whence_flag(whence)),
            Self::Copy { from, from_offset, to: target, to_offset, len_bytes } => {
                to.frame.item(&CopyItem {
                    node: U64::new(target.node.0),
                    open: U64::new(target.open.0),
                    offset: U64::new(to_offset),
                })?;
                to.range(from, from_offset, len_bytes, 0)
            }
        };
        Ok(self.kind())
    }
}

struct Encoder<'h, 'f, W: ?Sized> {
    header: &'h Header,
    frame: Items<'f, W>,
}

/// Each gives the body, and appends to the frame what goes there.
impl<W: FrameSink + ?Sized> Encoder<'_, '_, W> {
    fn sequence(&self) -> U64 {
        U64::new(self.header.sequence)
    }

    fn tail(&self, flags: u8) -> Tail {
        let handles = if self.header.handles { WANT_HANDLES } else { 0 };
        Tail { caller: U16::new(self.header.caller.0), want: self.header.want.bits() | handles, flags }
    }

    fn no_args(&self) -> Body {
        transmute!(NoArgs { sequence: self.sequence(), reserved: [0; 36], tail: self.tail(0) })
    }

    fn caller(&mut self, uid: u32, gid: u32, groups: Groups<'_>) -> Result<Body, EncodeError> {
        let len = u32::try_from(groups.len()).ok().filter(|&len| len as usize <= GROUPS_MAX);
        let len = len.ok_or(EncodeError::Value { field: "number of groups", value: groups.len() as u64 })?;
        groups.encode(&mut self.frame)?;
        Ok(transmute!(CallerArgs {
            sequence: self.sequence(),
            uid: U32::new(uid),
            gid: U32::new(gid),
            groups: U32::new(len),
            reserved: [0; 24],
            tail: self.tail(0),
        }))
    }

    fn interrupt(&self, id: u32) -> Body {
        transmute!(InterruptArgs {
            sequence: self.sequence(),
            id: U32::new(id),
            reserved: [0; 32],
            tail: self.tail(0),
        })
    }

    fn forget(&mut self, forgets: Forgets<'_>) -> Result<Body, EncodeError> {
        let single = forgets.single();
        if single.is_none() {
            forgets.encode(&mut self.frame)?;
        }
        let flags = if single.is_none() { flag::LIST } else { 0 };
        let (node, look_ups) = single.unwrap_or((NodeId(0), 0));
        Ok(transmute!(ForgetArgs {
            sequence: self.sequence(),
            node: U64::new(node.0),
            look_ups: U64::new(look_ups),
            reserved: [0; 20],
            tail: self.tail(flags),
        }))
    }

    fn name(&mut self, parent: NodeId, name: Name<'_>) -> Result<Body, EncodeError> {
        let bytes = name.as_bytes();
        let mut args = NameArgs {
            sequence: self.sequence(),
            parent: U64::new(parent.0),
            name: [0; 27],
            name_len: len_byte(bytes),
            tail: self.tail(0),
        };
        match args.name.get_mut(..bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.frame.bytes(bytes)?,
        }
        Ok(transmute!(args))
    }

    fn node(&self, node: NodeId, open: Option<OpenId>) -> Body {
        let flags = if open.is_some() { flag::OPEN } else { 0 };
        self.file(node, open.unwrap_or(OpenId(0)), flags)
    }

    fn file(&self, node: NodeId, open: OpenId, flags: u8) -> Body {
        transmute!(FileArgs {
            sequence: self.sequence(),
            node: U64::new(node.0),
            open: U64::new(open.0),
            reserved: [0; 20],
            tail: self.tail(flags),
        })
    }

    fn open(&self, node: NodeId, open_flags: u16) -> Body {
        transmute!(OpenArgs {
            sequence: self.sequence(),
            node: U64::new(node.0),
            open_flags: U16::new(open_flags),
            reserved: [0; 26],
            tail: self.tail(0),
        })
    }

    fn flush(&self, file: File, owner: u64) -> Body {
        transmute!(OwnerArgs {
            sequence: self.sequence(),
            node: U64::new(file.node.0),
            open: U64::new(file.open.0),
            owner: U64::new(owner),
            reserved: [0; 12],
            tail: self.tail(0),
        })
    }

    fn transfer(&self, file: File, offset: u64, span: Span, flags: u8) -> Body {
        transmute!(TransferArgs {
            sequence: self.sequence(),
            node: U64::new(file.node.0),
            open: U64::new(file.open.0),
            offset: U64::new(offset),
            address: span.address,
            len_bytes: span.len_bytes,
            tail: self.tail(flags | span.form),
        })
    }

    fn transfer_in(
        &mut self,
        file: File,
        offset: u64,
        place: Place<'_>,
        flags: u8,
    ) -> Result<Body, EncodeError> {
        let span = Span::of_place(&place, &mut self.frame)?;
        Ok(self.transfer(file, offset, span, flags))
    }

    fn write(&mut self, file: File, how: &Write, data: Data<'_>) -> Result<Body, EncodeError> {
        let stability: u8 = match how.stability {
            Stability::Unstable => 0,
            Stability::DataSync => 1,
            Stability::FileSync => 2,
        };
        let mut flags = stability << flag::STABILITY_SHIFT;
        flags |= if how.kill_privileges { flag::KILL_PRIVILEGES } else { 0 };
        flags |= if how.in_place { flag::IN_PLACE } else { 0 };
        let span = Span::of_data(&data, &mut self.frame)?;
        Ok(self.transfer(file, how.offset, span, flags))
    }

    fn bytes_wanted(&mut self, node: NodeId, name: &[u8], place: Place<'_>) -> Result<Body, EncodeError> {
        self.frame.bytes(name)?;
        let span = Span::of_place(&place, &mut self.frame)?;
        Ok(self.bytes(node, name, span, 0))
    }

    fn bytes_given(
        &mut self,
        node: NodeId,
        name: &[u8],
        data: Data<'_>,
        flags: u8,
    ) -> Result<Body, EncodeError> {
        self.frame.bytes(name)?;
        let span = Span::of_data(&data, &mut self.frame)?;
        Ok(self.bytes(node, name, span, flags))
    }

    fn bytes(&self, node: NodeId, name: &[u8], span: Span, flags: u8) -> Body {
        transmute!(BytesArgs {
            sequence: self.sequence(),
            node: U64::new(node.0),
            address: span.address,
            len_bytes: span.len_bytes,
            name_len: len_byte(name),
            reserved: [0; 15],
            tail: self.tail(flags | span.form),
        })
    }

    fn create(&mut self, parent: NodeId, name: &[u8], how: &Create) -> Result<Body, EncodeError> {
        self.frame.bytes(name)?;
        let (exclusive, verifier) = match how.exclusive {
            Exclusive::No => (exclusive_number::NO, [0; 8]),
            Exclusive::Yes => (exclusive_number::YES, [0; 8]),
            Exclusive::Verifier(verifier) => (exclusive_number::VERIFIER, verifier),
        };
        Ok(transmute!(CreateArgs {
            sequence: self.sequence(),
            parent: U64::new(parent.0),
            verifier,
            mode: mode_bits(how.mode.mode),
            umask: mode_bits(how.mode.umask),
            open_flags: U16::new(how.flags.bits()),
            exclusive,
            name_len: len_byte(name),
            reserved: [0; 12],
            tail: self.tail(0),
        }))
    }

    fn make(
        &mut self,
        parent: NodeId,
        name: Name<'_>,
        mode: NewMode,
        file_type: u8,
        rdev: tombolo_core::fs::Device,
    ) -> Result<Body, EncodeError> {
        self.frame.bytes(name.as_bytes())?;
        Ok(transmute!(MakeArgs {
            sequence: self.sequence(),
            parent: U64::new(parent.0),
            mode: mode_bits(mode.mode),
            umask: mode_bits(mode.umask),
            file_type,
            name_len: len_byte(name.as_bytes()),
            reserved: [0; 2],
            major: U32::new(rdev.major),
            minor: U32::new(rdev.minor),
            reserved_too: [0; 12],
            tail: self.tail(0),
        }))
    }

    fn two_nodes(
        &mut self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u8,
    ) -> Result<Body, EncodeError> {
        self.frame.bytes(from.1)?;
        self.frame.bytes(to.1)?;
        Ok(transmute!(TwoNodesArgs {
            sequence: self.sequence(),
            from: U64::new(from.0.0),
            to: U64::new(to.0.0),
            from_name_len: len_byte(from.1),
            to_name_len: len_byte(to.1),
            reserved: [0; 18],
            tail: self.tail(flags),
        }))
    }

    fn lock(&mut self, file: File, item: &LockItem, flags: u8) -> Result<Body, EncodeError> {
        self.frame.item(item)?;
        Ok(self.file(file.node, file.open, flags))
    }

    fn resolve(&mut self, handle: HandleBytes<'_>) -> Result<Body, EncodeError> {
        let len_bytes = handle.checked_len()?;
        self.frame.bytes(handle.bytes)?;
        Ok(transmute!(ResolveArgs {
            sequence: self.sequence(),
            kind: I32::new(handle.kind),
            len_bytes: U16::new(len_bytes),
            reserved: [0; 30],
            tail: self.tail(0),
        }))
    }

    fn range(&self, file: File, offset: u64, len_bytes: u64, flags: u8) -> Body {
        transmute!(RangeArgs {
            sequence: self.sequence(),
            node: U64::new(file.node.0),
            open: U64::new(file.open.0),
            offset: U64::new(offset),
            len_bytes: U64::new(len_bytes),
            reserved: [0; 4],
            tail: self.tail(flags),
        })
    }
}

pub(crate) fn lock_item(lock: &Lock) -> Result<LockItem, EncodeError> {
    if lock.range.start > lock.range.last {
        return Err(EncodeError::Value { field: "range of a lock", value: lock.range.start });
    }
    Ok(LockItem {
        start: U64::new(lock.range.start),
        last: U64::new(lock.range.last),
        owner: U64::new(lock.owner.0),
        pid: U32::new(lock.pid),
        family: match lock.family {
            LockFamily::Posix => lock_number::POSIX,
            LockFamily::Flock => lock_number::FLOCK,
        },
        kind: match lock.kind {
            LockKind::Read => lock_number::READ,
            LockKind::Write => lock_number::WRITE,
        },
        reserved: [0; 2],
    })
}

/// What is larger than the wire can say is as good as the largest that it can; a page is never that large.
fn budget_item(budget: &DirBudget) -> Result<BudgetItem, EncodeError> {
    let wire = |value: usize| U32::new(u32::try_from(value).unwrap_or(u32::MAX));
    if !budget.align.is_power_of_two() || u32::try_from(budget.align).is_err() {
        return Err(EncodeError::Value { field: "alignment", value: budget.align as u64 });
    }
    Ok(BudgetItem {
        size_bytes: wire(budget.size_bytes),
        entry_bytes: wire(budget.entry_bytes),
        align: wire(budget.align),
        reserved: [0; 4],
    })
}

fn sync_flag(what: SyncWhat) -> u8 {
    match what {
        SyncWhat::Data => flag::DATA_ONLY,
        SyncWhat::All => 0,
    }
}

fn whence_flag(whence: Whence) -> u8 {
    match whence {
        Whence::Data => 0,
        Whence::Hole => flag::HOLE,
    }
}

fn xattr_flags(how: XattrSet, kill_set_gid: bool) -> u8 {
    let flags = match how {
        XattrSet::Any => 0,
        XattrSet::Create => flag::XATTR_CREATE,
        XattrSet::Replace => flag::XATTR_REPLACE,
    };
    flags | if kill_set_gid { flag::KILL_SET_GID } else { 0 }
}

/// The length of a name, which has at most 255 bytes.
fn len_byte(name: &[u8]) -> u8 {
    u8::try_from(name.len()).unwrap_or(u8::MAX)
}

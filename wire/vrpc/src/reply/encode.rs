//! Answers to bytes.

use tombolo_core::fs::{Attr, Change, Lock, PermissionCheck};
use tombolo_core::{Error, Stability};
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromZeros, transmute};

use super::{HandleBytes, Reply, Session, Shape, flag};
use crate::frame::Items;
use crate::layout::{
    Answer, AttrItem, CountResult, HandleResult, LockItem, LockResult, NodeResult, ProfileResult, StatFsItem,
    WeakAttrItem,
};
use crate::request::lock_item;
use crate::{Body, EncodeError, FrameSink, Kind, Returned, Status};

/// Writes to `body` that a request failed, and gives the kind of the answer. Its frame is empty.
pub fn encode_failure(kind: Kind, error: &Error, body: &mut Body) -> u32 {
    let status = Status::from(error).number();
    *body = transmute!(Answer { status: U32::new(status), flags: U32::ZERO, results: [0; 40] });
    kind.reply_number()
}

impl Reply<'_> {
    /// Writes the answer to a request of kind `kind` to `body`, and to `frame` what does not fit there; gives the kind of the answer.
    /// On failure neither may be sent.
    #[inline]
    pub fn encode<W: FrameSink + ?Sized>(
        &self,
        kind: Kind,
        body: &mut Body,
        frame: &mut W,
    ) -> Result<u32, EncodeError> {
        if Shape::of_kind(kind) != Shape::of_reply(self) {
            return Err(EncodeError::WrongReply(kind));
        }
        let mut to = Encoder { flags: 0, frame: Items::new(frame) };
        *body = match self {
            Self::Done => [0; 48],
            Self::Session(session) => session_body(session),
            Self::Entry(entry, handle) => {
                to.attr(&entry.attr)?;
                to.node(entry.node.0, 0, handle.as_ref())?
            }
            Self::Attr(attr) => {
                to.attr(attr)?;
                to.nothing()
            }
            Self::Setattr(attr, change) => {
                to.attr(attr)?;
                to.change(change, flag::BEFORE, flag::AFTER)?;
                to.nothing()
            }
            Self::Made(made, handle) => {
                to.attr(&made.entry.attr)?;
                to.change(&made.dir, flag::BEFORE, flag::AFTER)?;
                to.node(made.entry.node.0, 0, handle.as_ref())?
            }
            Self::Created(created, handle) => {
                to.attr(&created.entry.attr)?;
                to.change(&created.dir, flag::BEFORE, flag::AFTER)?;
                to.node(created.entry.node.0, created.open.0, handle.as_ref())?
            }
            Self::Change(change) => {
                to.change(change, flag::BEFORE, flag::AFTER)?;
                to.nothing()
            }
            Self::Renamed(renamed) => {
                to.change(&renamed.from_dir, flag::BEFORE, flag::AFTER)?;
                to.change(&renamed.to_dir, flag::TO_BEFORE, flag::TO_AFTER)?;
                to.nothing()
            }
            Self::Opened(opened) => {
                if let Some(attr) = &opened.attr {
                    to.flags |= flag::ATTR;
                    to.attr(attr)?;
                }
                to.node(0, opened.open.0, None)?
            }
            Self::Read { data, eof } => to.returned(data, *eof)?,
            Self::Readdir { listing, end } => to.returned(listing, *end)?,
            Self::Bytes(bytes) => to.returned(bytes, false)?,
            Self::Written(written) => {
                to.change(&written.file, flag::BEFORE, flag::AFTER)?;
                to.count(written.count as u64, written.stability)
            }
            Self::StatFs(stat) => {
                to.frame.item(&StatFsItem::from(stat))?;
                to.nothing()
            }
            Self::Conflict(lock) => to.conflict(lock.as_ref())?,
            Self::Handle(handle) => to.handle(handle)?,
            Self::Offset(offset) => to.count(*offset, Stability::Unstable),
        };
        Ok(kind.reply_number())
    }
}

struct Encoder<'f, W: ?Sized> {
    flags: u32,
    frame: Items<'f, W>,
}

/// What appends to the frame comes first, what gives the body comes last: the flags tell of the frame.
impl<W: FrameSink + ?Sized> Encoder<'_, W> {
    fn attr(&mut self, attr: &Attr) -> Result<(), EncodeError> {
        self.frame.item(&AttrItem::from(attr))
    }

    fn change(&mut self, change: &Change, before: u32, after: u32) -> Result<(), EncodeError> {
        if let Some(weak) = &change.before {
            self.flags |= before;
            self.frame.item(&WeakAttrItem::from(weak))?;
        }
        if let Some(attr) = &change.after {
            self.flags |= after;
            self.attr(attr)?;
        }
        Ok(())
    }

    fn nothing(&self) -> Body {
        transmute!(Answer { status: U32::ZERO, flags: U32::new(self.flags), results: [0; 40] })
    }

    fn node(&mut self, node: u64, open: u64, handle: Option<&HandleBytes<'_>>) -> Result<Body, EncodeError> {
        let (kind, len_bytes) = match handle {
            Some(handle) => {
                self.flags |= flag::HANDLE;
                let len_bytes = handle.checked_len()?;
                self.frame.bytes(handle.bytes)?;
                (handle.kind, len_bytes)
            }
            None => (0, 0),
        };
        Ok(transmute!(NodeResult {
            status: U32::ZERO,
            flags: U32::new(self.flags),
            node: U64::new(node),
            open: U64::new(open),
            handle_kind: I32::new(kind),
            handle_len: U16::new(len_bytes),
            reserved: [0; 18],
        }))
    }

    fn returned(&mut self, bytes: &Returned<'_>, end: bool) -> Result<Body, EncodeError> {
        self.flags |= if end { flag::END } else { 0 };
        match bytes {
            Returned::Inline(bytes) => {
                self.flags |= flag::INLINE;
                self.frame.bytes(bytes)?;
            }
            Returned::Follows { len_bytes } => {
                self.flags |= flag::INLINE;
                self.frame.follows(*len_bytes)?;
            }
            Returned::Placed { .. } => {}
        }
        Ok(self.count(bytes.len_bytes().into(), Stability::Unstable))
    }

    fn count(&self, count: u64, stability: Stability) -> Body {
        transmute!(CountResult {
            status: U32::ZERO,
            flags: U32::new(self.flags),
            count: U64::new(count),
            stability: match stability {
                Stability::Unstable => 0,
                Stability::DataSync => 1,
                Stability::FileSync => 2,
            },
            reserved: [0; 31],
        })
    }

    fn conflict(&mut self, lock: Option<&Lock>) -> Result<Body, EncodeError> {
        let item = lock.map(lock_item).transpose()?;
        self.flags |= if item.is_some() { flag::PRESENT } else { 0 };
        Ok(transmute!(LockResult {
            status: U32::ZERO,
            flags: U32::new(self.flags),
            lock: item.unwrap_or_else(LockItem::new_zeroed),
            reserved: [0; 8],
        }))
    }

    fn handle(&mut self, handle: &HandleBytes<'_>) -> Result<Body, EncodeError> {
        let len_bytes = handle.checked_len()?;
        self.frame.bytes(handle.bytes)?;
        Ok(transmute!(HandleResult {
            status: U32::ZERO,
            flags: U32::ZERO,
            kind: I32::new(handle.kind),
            len_bytes: U16::new(len_bytes),
            reserved: [0; 34],
        }))
    }
}

fn session_body(session: &Session) -> Body {
    let profile = &session.profile;
    let mut flags = session.offers.bits();
    flags |= match profile.permission_check {
        PermissionCheck::Caller => 0,
        PermissionCheck::BackEnd => flag::BACK_END_CHECKS,
    };
    flags |= if profile.read_only { flag::READ_ONLY } else { 0 };
    transmute!(ProfileResult {
        status: U32::ZERO,
        flags: U32::new(flags),
        file_size_max: U64::new(profile.file_size_max),
        name_max: U32::new(profile.name_max),
        time_granularity_ns: U32::new(profile.time_granularity_ns),
        volume: session.volume.0,
        transfer_bytes_max: U32::new(session.transfer_bytes_max),
        callers_max: U16::new(session.callers_max),
        reserved: [0; 2],
    })
}

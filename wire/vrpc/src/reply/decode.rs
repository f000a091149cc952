//! Bytes to answers.

use tombolo_core::fs::{
    Attr, Change, Created, Entry, Made, NodeId, OpenId, Opened, PermissionCheck, Profile, Renamed, Volume,
    Written,
};
use zerocopy::{IntoBytes, transmute, transmute_ref};

use super::{HandleBytes, Offers, Outcome, Reply, Session, Shape, TRANSFER_BYTES_MIN, flag};
use crate::frame::Reader;
use crate::layout::{
    Answer, AttrItem, CountResult, HandleResult, LockResult, NodeResult, ProfileResult, StatFsItem,
    WeakAttrItem,
};
use crate::request::{decode_lock, stability, zero};
use crate::{Body, DecodeError, FRAME_BYTES, Kind, Returned, Status};

impl<'a> Reply<'a> {
    /// Understands the answer to a request of kind `expected`. `body` and `frame` must be private copies; small data and handles are
    /// borrowed from them. An error means that the peer breaks the protocol.
    #[inline]
    pub fn decode(
        expected: Kind,
        kind: u32,
        body: &'a Body,
        frame: &'a [u8],
    ) -> Result<Outcome<'a>, DecodeError> {
        if kind != expected.reply_number() {
            return Err(DecodeError::WrongKind { expected: expected.reply_number(), found: kind });
        }
        let answer: &Answer = transmute_ref!(body);
        let mut from = Decoder { body, flags: answer.flags.get(), frame: Reader::new(frame)? };
        // An answer is a few hundred bytes: it is made where it is wanted, and not moved once it is known to be good.
        let outcome = match answer.status.get() {
            0 => from.reply(Shape::of_kind(expected)),
            number => from.failure(number),
        };
        if outcome.is_ok() {
            from.frame.finish()?;
        }
        outcome
    }
}

struct Decoder<'a> {
    body: &'a Body,
    flags: u32,
    frame: Reader<'a>,
}

const CHANGE: u32 = flag::BEFORE | flag::AFTER;

impl<'a> Decoder<'a> {
    fn failure(&self, number: u32) -> Result<Outcome<'a>, DecodeError> {
        self.nothing(0)?;
        Status::from_number(number).map(Err).ok_or(DecodeError::UnknownStatus(number))
    }

    fn reply(&mut self, shape: Shape) -> Result<Outcome<'a>, DecodeError> {
        Ok(Ok(match shape {
            Shape::Done => {
                self.nothing(0)?;
                Reply::Done
            }
            Shape::Session => Reply::Session(self.session()?),
            Shape::Entry => {
                let entry = self.entry(flag::HANDLE)?;
                Reply::Entry(entry, self.node_handle()?)
            }
            Shape::Attr => {
                self.nothing(0)?;
                Reply::Attr(self.attr()?)
            }
            Shape::Setattr => {
                self.nothing(CHANGE)?;
                Reply::Setattr(self.attr()?, self.change(flag::BEFORE, flag::AFTER)?)
            }
            Shape::Made => {
                let entry = self.entry(CHANGE | flag::HANDLE)?;
                let made = Made { entry, dir: self.change(flag::BEFORE, flag::AFTER)? };
                Reply::Made(made, self.node_handle()?)
            }
            Shape::Created => {
                let (node, open) = self.node(CHANGE | flag::HANDLE)?;
                let entry = Entry { node, attr: self.attr()? };
                let created = Created { entry, open, dir: self.change(flag::BEFORE, flag::AFTER)? };
                Reply::Created(created, self.node_handle()?)
            }
            Shape::Change => {
                self.nothing(CHANGE)?;
                Reply::Change(self.change(flag::BEFORE, flag::AFTER)?)
            }
            Shape::Renamed => {
                self.nothing(CHANGE | flag::TO_BEFORE | flag::TO_AFTER)?;
                let from_dir = self.change(flag::BEFORE, flag::AFTER)?;
                Reply::Renamed(Renamed { from_dir, to_dir: self.change(flag::TO_BEFORE, flag::TO_AFTER)? })
            }
            Shape::Opened => Reply::Opened(self.opened()?),
            Shape::Read => {
                let data = self.returned(flag::END)?;
                Reply::Read { data, eof: self.has(flag::END) }
            }
            Shape::Readdir => {
                let listing = self.returned(flag::END)?;
                Reply::Readdir { listing, end: self.has(flag::END) }
            }
            Shape::Bytes => Reply::Bytes(self.returned(0)?),
            Shape::Written => Reply::Written(self.written()?),
            Shape::StatFs => {
                self.nothing(0)?;
                Reply::StatFs(self.frame.item::<StatFsItem>()?.decode())
            }
            Shape::Conflict => self.conflict()?,
            Shape::Handle => Reply::Handle(self.handle()?),
            Shape::Offset => Reply::Offset(self.count(0)?.count.get()),
        }))
    }

    fn has(&self, bit: u32) -> bool {
        self.flags & bit != 0
    }

    fn only(&self, flags: u32) -> Result<(), DecodeError> {
        match self.flags & !flags {
            0 => Ok(()),
            unknown => Err(DecodeError::UnknownFlags(unknown)),
        }
    }

    /// The body says nothing but flags.
    fn nothing(&self, flags: u32) -> Result<(), DecodeError> {
        let answer: &Answer = transmute_ref!(self.body);
        self.only(flags)?;
        zero(&answer.results)
    }

    fn attr(&mut self) -> Result<Attr, DecodeError> {
        self.frame.item::<AttrItem>()?.decode()
    }

    fn change(&mut self, before: u32, after: u32) -> Result<Change, DecodeError> {
        let before = match self.has(before) {
            true => Some(self.frame.item::<WeakAttrItem>()?.decode()?),
            false => None,
        };
        let after = if self.has(after) { Some(self.attr()?) } else { None };
        Ok(Change { before, after })
    }

    fn node(&self, flags: u32) -> Result<(NodeId, OpenId), DecodeError> {
        let result: NodeResult = transmute!(*self.body);
        self.only(flags)?;
        zero(&result.reserved)?;
        if !self.has(flag::HANDLE) && (result.handle_kind.get(), result.handle_len.get()) != (0, 0) {
            return Err(DecodeError::Reserved);
        }
        Ok((NodeId(result.node.get()), OpenId(result.open.get())))
    }

    /// The last item of the frame.
    fn node_handle(&mut self) -> Result<Option<HandleBytes<'a>>, DecodeError> {
        if !self.has(flag::HANDLE) {
            return Ok(None);
        }
        let result: NodeResult = transmute!(*self.body);
        let (kind, len_bytes) = (result.handle_kind.get(), result.handle_len.get());
        HandleBytes::decode(kind, len_bytes, &mut self.frame).map(Some)
    }

    fn entry(&mut self, flags: u32) -> Result<Entry, DecodeError> {
        match self.node(flags)? {
            (node, OpenId(0)) => Ok(Entry { node, attr: self.attr()? }),
            _ => Err(DecodeError::Reserved),
        }
    }

    fn opened(&mut self) -> Result<Opened, DecodeError> {
        match self.node(flag::ATTR)? {
            (NodeId(0), open) => {
                let attr = if self.has(flag::ATTR) { Some(self.attr()?) } else { None };
                Ok(Opened { open, attr })
            }
            _ => Err(DecodeError::Reserved),
        }
    }

    fn count(&self, flags: u32) -> Result<CountResult, DecodeError> {
        let result: CountResult = transmute!(*self.body);
        self.only(flags)?;
        zero(&result.reserved)?;
        if flags & CHANGE == 0 {
            zero(result.stability.as_bytes())?;
        }
        Ok(result)
    }

    fn returned(&mut self, flags: u32) -> Result<Returned<'a>, DecodeError> {
        let count = self.count(flags | flag::INLINE)?.count.get();
        let wrong = DecodeError::Value { field: "number of bytes", value: count };
        let len_bytes = u32::try_from(count).map_err(|_| wrong)?;
        if !self.has(flag::INLINE) {
            return Ok(Returned::Placed { len_bytes });
        }
        match usize::try_from(len_bytes) {
            Ok(len) if len <= FRAME_BYTES => Ok(Returned::Inline(self.frame.bytes(len)?)),
            _ => Err(wrong),
        }
    }

    fn written(&mut self) -> Result<Written, DecodeError> {
        let result = self.count(CHANGE)?;
        let wrong = DecodeError::Value { field: "number of bytes", value: result.count.get() };
        let count = u32::try_from(result.count.get()).map_err(|_| wrong)?;
        let stability = stability(result.stability)?;
        // Mostly nobody wants to know, and a change is large.
        let file = match self.flags {
            0 => Change::default(),
            _ => self.change(flag::BEFORE, flag::AFTER)?,
        };
        Ok(Written { count: count as usize, stability, file })
    }

    fn conflict(&self) -> Result<Reply<'a>, DecodeError> {
        let result: LockResult = transmute!(*self.body);
        self.only(flag::PRESENT)?;
        zero(&result.reserved)?;
        if self.flags == 0 {
            zero(result.lock.as_bytes())?;
            return Ok(Reply::Conflict(None));
        }
        Ok(Reply::Conflict(Some(decode_lock(&result.lock)?)))
    }

    fn handle(&mut self) -> Result<HandleBytes<'a>, DecodeError> {
        let result: HandleResult = transmute!(*self.body);
        self.only(0)?;
        zero(&result.reserved)?;
        HandleBytes::decode(result.kind.get(), result.len_bytes.get(), &mut self.frame)
    }

    fn session(&self) -> Result<Session, DecodeError> {
        let result: ProfileResult = transmute!(*self.body);
        self.only(Offers::all().bits() | flag::BACK_END_CHECKS | flag::READ_ONLY)?;
        zero(&result.reserved)?;
        let (transfer_bytes_max, callers_max) = (result.transfer_bytes_max.get(), result.callers_max.get());
        // With less a client would ask for ever, or could not ask at all.
        if transfer_bytes_max < TRANSFER_BYTES_MIN {
            let value = transfer_bytes_max.into();
            return Err(DecodeError::Value { field: "limit of transfers", value });
        }
        if callers_max == 0 {
            return Err(DecodeError::Value { field: "limit of callers", value: 0 });
        }
        let checks = self.has(flag::BACK_END_CHECKS);
        Ok(Session {
            profile: Profile {
                permission_check: if checks { PermissionCheck::BackEnd } else { PermissionCheck::Caller },
                read_only: self.has(flag::READ_ONLY),
                name_max: result.name_max.get(),
                file_size_max: result.file_size_max.get(),
                time_granularity_ns: result.time_granularity_ns.get(),
            },
            offers: Offers::from_bits_truncate(self.flags),
            volume: Volume(result.volume),
            transfer_bytes_max,
            callers_max,
        })
    }
}

//! Answers: the table of them, and how one is written and read.

mod fields;

use bitflags::bitflags;
use tombolo_core::Error;
use tombolo_core::fs::{
    Attr, Change, Created, Entry, Lock, Made, Opened, PersistentHandle, Profile, Renamed, StatFs, Version,
    Volume, Written,
};
use zerocopy::little_endian::U32;
use zerocopy::{transmute, transmute_ref};

use crate::field::{Bit, Decoder, Encoder, Field, Shape, form, offset};
use crate::frame::Reader;
use crate::layout::Head;
use crate::{Body, DecodeError, EncodeError, FrameSink, Kind, NoticeList, Returned, Status};

/// How a request ended.
pub type Outcome<'a> = Result<Reply<'a>, Status>;

bitflags! {
    /// Which groups of operations the server's file system has. Requests of the others are answered with
    /// [`Status::NotSupported`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Offers: u32 {
        /// XATTR_GET to XATTR_REMOVE.
        const XATTRS = 1 << 2;
        /// LOCK_TEST to UNLOCK.
        const LOCKS = 1 << 3;
        /// HANDLE_OF to PARENT.
        const HANDLES = 1 << 4;
        /// ALLOCATE to COPY.
        const RANGES = 1 << 5;
        /// CHANGES.
        const CHANGES = 1 << 6;
        /// LOOK.
        const VERSIONS = 1 << 7;
    }
}

/// What a session is. It does not change while the session lasts.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// What the file system says of itself.
    pub profile: Profile,
    /// Which optional groups it has.
    pub offers: Offers,
    /// Which file system persistent handles are of; zeros where it has none.
    pub volume: Volume,
    /// Most bytes that one READ or WRITE may move; [`TRANSFER_BYTES_MIN`] or more.
    pub transfer_bytes_max: u32,
    /// Callers have numbers below this; not zero.
    pub callers_max: u16,
}

/// What a READ or WRITE may move at least, in bytes: a server that allows less is no server.
pub const TRANSFER_BYTES_MIN: u32 = 4096;

/// Longest persistent handle, in bytes (name_to_handle_at(2), `MAX_HANDLE_SZ`).
pub const HANDLE_BYTES_MAX: usize = 128;

/// A [`PersistentHandle`] in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleBytes<'a> {
    /// The file system's own type number.
    pub kind: i32,
    /// The file system's own bytes, at most [`HANDLE_BYTES_MAX`].
    pub bytes: &'a [u8],
}

impl<'a> HandleBytes<'a> {
    pub(crate) fn checked_len(&self) -> Result<u16, EncodeError> {
        let len = self.bytes.len();
        u16::try_from(len)
            .ok()
            .filter(|_| len <= HANDLE_BYTES_MAX)
            .ok_or(EncodeError::Value { field: "length of a handle", value: len as u64 })
    }

    pub(crate) fn read(kind: i32, len_bytes: u16, frame: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if usize::from(len_bytes) > HANDLE_BYTES_MAX {
            return Err(DecodeError::Value { field: "length of a handle", value: len_bytes.into() });
        }
        Ok(Self { kind, bytes: frame.bytes(len_bytes.into())? })
    }
}

impl<'a> From<&'a PersistentHandle> for HandleBytes<'a> {
    fn from(handle: &'a PersistentHandle) -> Self {
        Self { kind: handle.kind, bytes: &handle.bytes }
    }
}

impl From<HandleBytes<'_>> for PersistentHandle {
    fn from(handle: HandleBytes<'_>) -> Self {
        Self { kind: handle.kind, bytes: handle.bytes.into() }
    }
}

/// Makes of the table below [`Reply`] and how answers are written and read. A row is `Name(place field: Type
/// [as form], …);` as in `request.rs`.
macro_rules! replies {
    ($(
        $(#[$doc:meta])*
        $name:ident $(( $($at:tt $field:ident: $ty:ty $(as $form:ty)?),+ ))?;
    )+) => {
        /// What a request that succeeded is answered with.
        #[derive(Clone, Copy, Debug)]
        pub enum Reply<'a> { $($(#[$doc])* $name $(( $($ty),+ ))?),+ }

        /// Which answer it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Answer { $($name),+ }

        impl<'a> Reply<'a> {
            fn answer(&self) -> Answer {
                match self {
                    $(Self::$name { .. } => Answer::$name,)+
                }
            }

            fn put<W: FrameSink + ?Sized>(&self, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
                match self {
                    $(Self::$name $(( $($field),+ ))? => {
                        $($(<$ty as Field<'a, form!($($form)?)>>::encode($field, offset!($at), to)?;)+)?
                    })+
                }
                Ok(())
            }

            // An answer is a few hundred bytes: it is made where it is wanted, and not moved once it is known
            // to be good.
            fn get(answer: Answer, from: &mut Decoder<'a>) -> Result<Outcome<'a>, DecodeError> {
                Ok(Ok(match answer {
                    $(Answer::$name => {
                        from.check(const { &Shape::new(
                            &[(0, 8, 8)],
                            &[$($((
                                offset!($at),
                                <$ty as Field<'a, form!($($form)?)>>::BYTES,
                                <$ty as Field<'a, form!($($form)?)>>::ALIGN,
                            )),+)?],
                            0 $($(| <$ty as Field<'a, form!($($form)?)>>::FLAGS)+)?,
                        ) })?;
                        Self::$name $(( $(<$ty as Field<'a, form!($($form)?)>>::decode(offset!($at), from)?),+ ))?
                    })+
                }))
            }
        }

        #[cfg(test)]
        impl<'a> Reply<'a> {
            /// Name and fields of each row.
            pub(crate) const TABLE: &'static [(&'static str, crate::field::Fields)] = &[$((
                stringify!($name),
                &[$($((
                    offset!($at),
                    stringify!($field),
                    <$ty as Field<'a, form!($($form)?)>>::BYTES,
                )),+)?],
            )),+];
        }
    };
}

replies! {
    /// Nothing but that it is done.
    Done;
    /// What the session is.
    Session(8 session: Session);
    /// A node. This and the next two with the node's handle, where it was wanted and there is one.
    Entry(8 entry: Entry, 24 handle: Option<HandleBytes<'a>>);
    /// Attributes.
    Attr(frame attr: Attr);
    /// Attributes, and what they were before.
    Setattr(frame attr: Attr, frame change: Change);
    /// A node that was made, and the change of its directory.
    Made(8 made: Made, 24 handle: Option<HandleBytes<'a>>);
    /// As `Made`, and open.
    Created(8 created: Created, 24 handle: Option<HandleBytes<'a>>);
    /// The change of a directory.
    Change(frame change: Change);
    /// The changes of both directories.
    Renamed(frame renamed: Renamed);
    /// An opening.
    Opened(16 opened: Opened);
    /// Data of a file, and whether it ends with them.
    Read(8 data: Returned<'a>, flags eof: bool as Bit<{ fields::END }>);
    /// How much was written.
    Written(8 written: Written);
    /// A [`Listing`](crate::listing::Listing), and whether the directory ends with it.
    Readdir(8 listing: Returned<'a>, flags end: bool as Bit<{ fields::END }>);
    /// The target of a link, the value of an extended attribute or the list of their names.
    Bytes(8 bytes: Returned<'a>);
    /// The state of a file system.
    StatFs(frame stat: StatFs);
    /// A lock that is in the way.
    Conflict(8 lock: Option<Lock>);
    /// A node's handle.
    Handle(8 handle: HandleBytes<'a>);
    /// Where data or a hole begin, or how much was copied.
    Offset(8 offset: u64);
    /// The number of the last notice, the notices, and whether all changes are told.
    Changes(8 last: u64, frame list: NoticeList<'a>, flags is_complete: bool as Bit<{ fields::COMPLETE }>);
    /// Attributes, and the node's version from before they were looked at.
    Looked(8 version: Option<Version>, frame attr: Attr);
}

/// Writes to `body` that a request failed, and gives the kind of the answer. Its frame is empty.
pub fn encode_failure(kind: Kind, error: &Error, body: &mut Body) -> u32 {
    let status = U32::new(Status::from(error).number());
    *body = transmute!(Head { status, flags: U32::ZERO, results: [0; 40] });
    kind.reply_number()
}

impl<'a> Reply<'a> {
    /// Writes the answer to a request of kind `kind` to `body`, and to `frame` what does not fit there; gives
    /// the kind of the answer. On failure neither may be sent.
    #[inline]
    pub fn encode<W: FrameSink + ?Sized>(
        &self,
        kind: Kind,
        body: &mut Body,
        frame: &mut W,
    ) -> Result<u32, EncodeError> {
        if kind.answer() != self.answer() {
            return Err(EncodeError::WrongReply(kind));
        }
        let mut to = Encoder::new(body, frame);
        self.put(&mut to)?;
        to.put(4, &U32::new(to.flags));
        Ok(kind.reply_number())
    }

    /// Understands the answer to a request of kind `expected`. `body` and `frame` must be private copies;
    /// small data and handles are borrowed from them. An error means that the peer breaks the protocol.
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
        let head: &Head = transmute_ref!(body);
        let mut from = Decoder { body, flags: head.flags.get(), frame: Reader::new(frame)? };
        let outcome = match head.status.get() {
            0 => Self::get(expected.answer(), &mut from),
            number => failure(number, &from),
        };
        if outcome.is_ok() {
            from.frame.finish()?;
        }
        outcome
    }
}

fn failure<'a>(number: u32, from: &Decoder<'a>) -> Result<Outcome<'a>, DecodeError> {
    const SHAPE: Shape = Shape::new(&[(0, 8, 8)], &[], 0);
    from.check(&SHAPE)?;
    Status::from_number(number).map(Err).ok_or(DecodeError::UnknownStatus(number))
}

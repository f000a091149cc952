//! Answers: their table, encoding and decoding.

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

/// The result of a request: its answer, or the status of its failure.
pub type Outcome<'a> = Result<Reply<'a>, Status>;

bitflags! {
    /// Optional groups of operations of the server's file system. Requests of groups that are not offered
    /// fail with [`Status::NotSupported`].
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

/// The properties of a session. Constant during the session.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Fixed properties of the file system.
    pub profile: Profile,
    /// Optional groups of operations that the server supports.
    pub offers: Offers,
    /// Identity of the file system for persistent handles; zeroes if it has none.
    pub volume: Volume,
    /// Maximum length of one READ or WRITE, in bytes; [`TRANSFER_BYTES_MIN`] or more.
    pub transfer_bytes_max: u32,
    /// Upper bound (exclusive) of the caller ids that the client may assign; not zero.
    pub callers_max: u16,
}

/// Minimum value of [`Session::transfer_bytes_max`], in bytes.
pub const TRANSFER_BYTES_MIN: u32 = 4096;

/// Maximum length of a persistent handle, in bytes (name_to_handle_at(2), `MAX_HANDLE_SZ`).
pub const HANDLE_BYTES_MAX: usize = 128;

/// A [`PersistentHandle`] in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleBytes<'a> {
    /// Type number, assigned by the file system.
    pub kind: i32,
    /// Bytes assigned by the file system, at most [`HANDLE_BYTES_MAX`].
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

/// Generates [`Reply`], its encoding and decoding from the table below. A row is `Name(place field: Type [as
/// form], …);` as in `request.rs`.
macro_rules! replies {
    ($(
        $(#[$doc:meta])*
        $name:ident $(( $($at:tt $field:ident: $ty:ty $(as $form:ty)?),+ ))?;
    )+) => {
        /// The answer to a successful request.
        #[derive(Clone, Copy, Debug)]
        pub enum Reply<'a> { $($(#[$doc])* $name $(( $($ty),+ ))?),+ }

        /// The variant of [`Reply`] that answers a kind of request.
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

            // The answer is constructed in place, because it has a few hundred bytes, and moving it would be
            // costly.
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
    /// Success without results.
    Done;
    /// The properties of the session, in answer to PROFILE.
    Session(8 session: Session);
    /// A node. `Entry`, `Made` and `Created` include the node's handle, if requested and available.
    Entry(8 entry: Entry, 24 handle: Option<HandleBytes<'a>>);
    /// Attributes of a node.
    Attr(frame attr: Attr);
    /// The new attributes, and the change if requested.
    Setattr(frame attr: Attr, frame change: Change);
    /// A created node, and the change of its directory, if requested.
    Made(8 made: Made, 24 handle: Option<HandleBytes<'a>>);
    /// A created file, its opening, the change of its directory if requested, and a flag for a prompt
    /// opening, through which writes may be quiet (docs/protocols/vrpc.md). The flag is set only on links
    /// with the extension for quiet requests.
    Created(8 created: Created, 24 handle: Option<HandleBytes<'a>>, flags prompt: bool as Bit<{ fields::PROMPT }>);
    /// The change of a directory, if requested.
    Change(frame change: Change);
    /// The changes of a rename's two directories, if requested.
    Renamed(frame renamed: Renamed);
    /// An opening, with the attributes of the node if requested, and the flag for a prompt opening, as in
    /// `Created`.
    Opened(16 opened: Opened, flags prompt: bool as Bit<{ fields::PROMPT }>);
    /// Data of a file, and whether the file ends with them.
    Read(8 data: Returned<'a>, flags eof: bool as Bit<{ fields::END }>);
    /// Number of bytes written, achieved stability, and the change of the file if requested.
    Written(8 written: Written);
    /// A [`Listing`](crate::listing::Listing), and whether the directory ends with it.
    Readdir(8 listing: Returned<'a>, flags end: bool as Bit<{ fields::END }>);
    /// The target of a link, the value of an extended attribute, or the names of a node's extended
    /// attributes.
    Bytes(8 bytes: Returned<'a>);
    /// The state of a file system.
    StatFs(frame stat: StatFs);
    /// A conflicting lock, if there is one.
    Conflict(8 lock: Option<Lock>);
    /// A node's handle.
    Handle(8 handle: HandleBytes<'a>);
    /// Offset of data or a hole, or number of bytes copied.
    Offset(8 offset: u64);
    /// Number of the last notice, the notices, and whether all changes are notified.
    Changes(8 last: u64, frame list: NoticeList<'a>, flags is_complete: bool as Bit<{ fields::COMPLETE }>);
    /// Attributes, and the version that the node had before they were read, if it has versions.
    Looked(8 version: Option<Version>, frame attr: Attr);
}

/// Encodes the failure of a request of kind `kind` in `body`, and returns the kind of the answer. The frame
/// of the answer is empty.
pub fn encode_failure(kind: Kind, error: &Error, body: &mut Body) -> u32 {
    let status = U32::new(Status::from(error).number());
    *body = transmute!(Head { status, flags: U32::ZERO, results: [0; 40] });
    kind.reply_number()
}

impl<'a> Reply<'a> {
    /// Encodes the answer to a request of kind `kind` in `body`, and in `frame` what does not fit; returns
    /// the kind of the answer. If that fails, neither `body` nor `frame` may be sent.
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

    /// Decodes the answer to a request of kind `expected`. `body` and `frame` must be private copies; small
    /// data and handles are borrowed from them. An error means that the peer has violated the protocol.
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

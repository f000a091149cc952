//! Requests: their table, encoding and decoding.

use tombolo_core::Want;
use tombolo_core::fs::{
    AccessMask, AllocateMode, Cookie, Create, Device, DirBudget, File, FileType, Lock, LockFamily, LockOwner,
    LockRange, Name, NewMode, NodeId, OpenFlags, OpenId, RenameFlags, SetAttr, SyncScope, Whence, Write,
    XattrName, XattrSet,
};
use zerocopy::little_endian::{U16, U64};
use zerocopy::transmute_ref;

use crate::field::{Bit, Decoder, Encoder, Field, InFrame, Shape, ShortName, form, offset};
use crate::frame::Reader;
use crate::layout::{Envelope, Tail};
use crate::reply::Answer;
use crate::{Body, Data, DecodeError, Destination, EncodeError, Forgets, FrameSink, Groups, HandleBytes};

/// Bit in the kind of an answer; the other bits are the kind of its request.
pub const REPLY: u32 = 1 << 31;

/// The id of a user's identity on a link, assigned by the client with [`Request::Caller`]; less than
/// [`Session::callers_max`](crate::Session::callers_max).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallerId(pub u16);

/// The part that all requests have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Number of the request, unique among the client's requests to the export. Retransmissions, also over a
    /// later link, have the same number.
    pub sequence: u64,
    /// Identity of the caller: an id that an earlier [`Request::Caller`] on the link has assigned. Without
    /// meaning for requests that need no identity.
    pub caller: CallerId,
    /// Optional results requested; the server omits others.
    pub want: Want,
    /// `true` to request the persistent handles of returned nodes.
    pub handles: bool,
    /// `true` if no thread of the client waits for the answer, so that the server does not ring the client's
    /// doorbell for it. Only on links with the extension for quiet requests (docs/protocols/vrpc.md).
    pub quiet: bool,
}

/// Bit of `want` on the wire: [`Header::handles`]. The lower bits are those of the waist's `Want`.
const WANT_HANDLES: u8 = 1 << 2;
/// Bit of `want` on the wire: [`Header::quiet`].
const QUIET: u8 = 1 << 3;

/// A mapping from the ids of nodes and openings that a client has returned to its own users to the ids that
/// the server knows. They differ after a reconnection.
pub trait Translate {
    /// The reason why an id has no counterpart.
    type Error;

    /// Returns the server's id of a node.
    fn node(&mut self, node: NodeId) -> Result<NodeId, Self::Error>;

    /// Returns the server's id of an opening.
    fn open(&mut self, open: OpenId) -> Result<OpenId, Self::Error>;

    /// Returns the server's ids of a file.
    #[inline]
    fn file(&mut self, file: File) -> Result<File, Self::Error> {
        Ok(File { node: self.node(file.node)?, open: self.open(file.open)? })
    }
}

/// Generates [`Kind`] and [`Request`], their encoding, decoding and translation from the table below. A row
/// is `Name = number { place field: Type [as form], … } => Answer;` where `place` is an offset in the body,
/// `frame` or `flags`.
macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        $name:ident = $number:literal
        $({ $($at:tt $field:ident: $ty:ty $(as $form:ty)?),+ $(,)? })? => $answer:ident;
    )+) => {
        /// The kind of a request. The numbers never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Kind { $($(#[$doc])* $name = $number),+ }

        impl Kind {
            /// All kinds, by number.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the kind with this number; `None` for unknown numbers and for those of answers.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// Returns the answer to requests of this kind.
            pub(crate) const fn answer(self) -> Answer {
                match self {
                    $(Self::$name => Answer::$answer,)+
                }
            }
        }

        /// A request with its arguments.
        #[derive(Clone, Copy, Debug)]
        #[expect(missing_docs, reason = "fields are the arguments of the waist's operation; see core/src/fs")]
        pub enum Request<'a> { $($(#[$doc])* $name $({ $($field: $ty),+ })?),+ }

        impl<'a> Request<'a> {
            /// Returns the kind of this request.
            #[must_use]
            #[inline]
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Self::$name { .. } => Kind::$name,)+
                }
            }

            fn put<W: FrameSink + ?Sized>(&self, to: &mut Encoder<'_, W>) -> Result<(), EncodeError> {
                match self {
                    $(Self::$name $({ $($field),+ })? => {
                        $($(<$ty as Field<'a, form!($($form)?)>>::encode($field, offset!($at), to)?;)+)?
                    })+
                }
                Ok(())
            }

            // The request is constructed in place, because moving it would be costly.
            fn get(kind: Kind, header: Header, from: &mut Decoder<'a>) -> Result<(Header, Self), DecodeError> {
                let request = match kind {
                    $(Kind::$name => {
                        from.check(const { &Shape::new(
                            &[(0, 8, 8), (44, 4, 4)],
                            &[$($((
                                offset!($at),
                                <$ty as Field<'a, form!($($form)?)>>::BYTES,
                                <$ty as Field<'a, form!($($form)?)>>::ALIGN,
                            )),+)?],
                            0 $($(| <$ty as Field<'a, form!($($form)?)>>::FLAGS)+)?,
                        ) })?;
                        Self::$name $({
                            $($field: <$ty as Field<'a, form!($($form)?)>>::decode(offset!($at), from)?),+
                        })?
                    })+
                };
                Ok((header, request))
            }

            /// Translates the ids in the request, except those of [`Request::Forget`], which the client sends
            /// with the server's own ids.
            #[inline]
            pub fn translated<T: Translate>(&self, to: &mut T) -> Result<Request<'a>, T::Error> {
                let mut request = *self;
                match &mut request {
                    $(Self::$name $({ $($field),+ })? => {
                        $($(<$ty as Field<'a, form!($($form)?)>>::translate($field, to)?;)+)?
                    })+
                }
                Ok(request)
            }
        }

        #[cfg(test)]
        impl<'a> Request<'a> {
            /// Number, name, fields and answer of each row.
            pub(crate) const TABLE: &'static [(u32, &'static str, crate::field::Fields, Answer)] = &[$((
                $number,
                stringify!($name),
                &[$($((
                    offset!($at),
                    stringify!($field),
                    <$ty as Field<'a, form!($($form)?)>>::BYTES,
                )),+)?],
                Answer::$answer,
            )),+];
        }
    };
}

requests! {
    /// No operation: tests whether the server answers.
    Null = 1 => Done;
    /// Gets the fixed properties of the session.
    Profile = 2 => Session;
    /// Sets the identity of [`Header::caller`], for the requests behind this one on the ring. An id may be
    /// reassigned.
    Caller = 3 { 8 uid: u32, 12 gid: u32, 16 groups: Groups<'a> } => Done;
    /// Interrupts the request with this id on the link, which is answered nevertheless.
    Interrupt = 4 { 8 id: u32 } => Done;
    /// `FileSystem::forget`.
    Forget = 5 { 8 forgets: Forgets<'a> } => Done;

    /// `FileSystem::lookup`.
    Lookup = 16 { 8 parent: NodeId, 16 name: Name<'a> as ShortName } => Entry;
    /// `FileSystem::getattr`, optionally through an opening of the node.
    Getattr = 17 { 8 node: NodeId, 16 open: Option<OpenId> } => Attr;
    /// `FileSystem::setattr`, optionally through an opening of the node.
    Setattr = 18 { 8 node: NodeId, 16 open: Option<OpenId>, frame set: SetAttr } => Setattr;
    /// `FileSystem::access`.
    Access = 19 { 8 node: NodeId, flags mask: AccessMask } => Done;
    /// `FileSystem::readlink`. A target that is longer than the destination fails with `OutOfRange`.
    Readlink = 20 { 8 node: NodeId, 16 destination: Destination<'a> } => Bytes;
    /// `FileSystem::create`.
    Create = 21 { 8 parent: NodeId, 31 name: Name<'a>, 16 how: Create } => Created;
    /// `FileSystem::create_unnamed`.
    CreateUnnamed = 22 { 8 parent: NodeId, 16 how: Create } => Created;
    /// `FileSystem::mkdir`.
    Mkdir = 23 { 8 parent: NodeId, 21 name: Name<'a>, 16 mode: NewMode } => Made;
    /// `FileSystem::symlink`.
    Symlink = 24 { 8 parent: NodeId, 28 name: Name<'a>, 16 target: Data<'a> } => Made;
    /// `FileSystem::mknod`.
    Mknod = 25 {
        8 parent: NodeId, 21 name: Name<'a>, 20 file_type: FileType, 16 mode: NewMode, 24 rdev: Device,
    } => Made;
    /// `FileSystem::link`.
    Link = 26 { 8 node: NodeId, 16 parent: NodeId, 25 name: Name<'a> } => Made;
    /// `FileSystem::unlink`.
    Unlink = 27 { 8 parent: NodeId, 16 name: Name<'a> as ShortName } => Change;
    /// `FileSystem::rmdir`.
    Rmdir = 28 { 8 parent: NodeId, 16 name: Name<'a> as ShortName } => Change;
    /// `FileSystem::rename`.
    Rename = 29 {
        8 from_parent: NodeId, 24 from: Name<'a>, 16 to_parent: NodeId, 25 to: Name<'a>, flags flags: RenameFlags,
    } => Renamed;
    /// `FileSystem::open`.
    Open = 30 { 8 node: NodeId, 16 flags: OpenFlags } => Opened;
    /// `FileSystem::release`.
    Release = 31 { 8 file: File } => Done;
    /// `FileSystem::flush`.
    Flush = 32 { 8 file: File, 24 owner: LockOwner } => Done;
    /// `FileSystem::fsync`.
    Fsync = 33 { 8 file: File, flags what: SyncScope } => Done;
    /// `FileSystem::read`.
    Read = 34 { 8 file: File, 24 offset: u64, 32 destination: Destination<'a> } => Read;
    /// `FileSystem::write`. The retainable property of the source is not encoded, and never decoded: the
    /// client reuses its memory once it has the answer, and cannot know of references to it.
    Write = 35 { 8 file: File, 24 how: Write, 32 data: Data<'a> } => Written;
    /// `FileSystem::readdir`. The page is limited by the caller's budget and by the size of its listing,
    /// which must fit the destination.
    Readdir = 36 { 8 file: File, 24 cookie: Cookie, frame budget: DirBudget, 32 destination: Destination<'a> } => Readdir;
    /// `FileSystem::statfs`.
    Statfs = 37 { 8 node: NodeId } => StatFs;
    /// `FileSystem::syncfs`.
    Syncfs = 38 => Done;

    /// `Xattrs::get`; the destination is the limit.
    XattrGet = 64 { 8 node: NodeId, 28 name: XattrName<'a>, 16 destination: Destination<'a> } => Bytes;
    /// `Xattrs::set`.
    XattrSet = 65 {
        8 node: NodeId, 28 name: XattrName<'a>, 16 value: Data<'a>, flags how: XattrSet,
        flags kill_set_gid: bool as Bit<{ 1 << 4 }>,
    } => Done;
    /// `Xattrs::list`; the destination is the limit.
    XattrList = 66 { 8 node: NodeId, 16 destination: Destination<'a> } => Bytes;
    /// `Xattrs::remove`.
    XattrRemove = 67 { 8 node: NodeId, 28 name: XattrName<'a> } => Done;

    /// `Locks::test`.
    LockTest = 80 { 8 file: File, frame lock: Lock } => Conflict;
    /// `Locks::lock`.
    Lock = 81 { 8 file: File, frame lock: Lock, flags wait: bool as Bit<1> } => Done;
    /// `Locks::unlock`.
    Unlock = 82 {
        8 file: File, frame range: LockRange, frame owner: LockOwner as InFrame, frame family: LockFamily,
    } => Done;

    /// `PersistentHandles::handle_of`.
    HandleOf = 96 { 8 node: NodeId } => Handle;
    /// `PersistentHandles::resolve`.
    Resolve = 97 { 8 handle: HandleBytes<'a> } => Entry;
    /// `PersistentHandles::parent`.
    Parent = 98 { 8 node: NodeId } => Entry;

    /// `Ranges::allocate`.
    Allocate = 112 { 8 file: File, 24 offset: u64, 32 len_bytes: u64, flags mode: AllocateMode } => Done;
    /// `Ranges::seek`.
    Seek = 113 { 8 file: File, 24 offset: u64, flags whence: Whence } => Offset;
    /// `Ranges::copy`.
    Copy = 114 {
        8 from: File, 24 from_offset: u64, frame to: File as InFrame, frame to_offset: u64 as InFrame,
        32 len_bytes: u64,
    } => Offset;

    /// `Changes::next`, limited to one frame.
    Changes = 128 { 8 since: u64 } => Changes;
    /// `Versions::look`.
    Look = 129 { 8 node: NodeId } => Looked;
}

impl Kind {
    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns the number of this kind's answer: the same with [`REPLY`] set.
    #[must_use]
    pub const fn reply_number(self) -> u32 {
        self as u32 | REPLY
    }
}

impl<'a> Request<'a> {
    /// Encodes the request in `body`, and in `frame` what does not fit. If that fails, neither `body` nor
    /// `frame` may be sent.
    #[inline]
    pub fn encode<W: FrameSink + ?Sized>(
        &self,
        header: &Header,
        body: &mut Body,
        frame: &mut W,
    ) -> Result<Kind, EncodeError> {
        let mut to = Encoder::new(body, frame);
        self.put(&mut to)?;
        let handles = if header.handles { WANT_HANDLES } else { 0 };
        let quiet = if header.quiet { QUIET } else { 0 };
        to.put(0, &U64::new(header.sequence));
        // All flags of requests are in the lowest eight bits.
        to.put(
            44,
            &Tail {
                caller: U16::new(header.caller.0),
                want: header.want.bits() | handles | quiet,
                flags: to.flags as u8,
            },
        );
        Ok(self.kind())
    }

    /// Decodes a request of kind `kind`. `body` and `frame` must be private copies; names, small data and
    /// lists are borrowed from them. An error means that the peer has violated the protocol.
    #[inline]
    pub fn decode(kind: u32, body: &'a Body, frame: &'a [u8]) -> Result<(Header, Self), DecodeError> {
        let kind = Kind::from_number(kind).ok_or(DecodeError::UnknownKind(kind))?;
        let envelope: &Envelope = transmute_ref!(body);
        let want = envelope.tail.want;
        let header = Header {
            sequence: envelope.sequence.get(),
            caller: CallerId(envelope.tail.caller.get()),
            want: Want::from_bits(want & !(WANT_HANDLES | QUIET))
                .ok_or(DecodeError::UnknownFlags(want.into()))?,
            handles: want & WANT_HANDLES != 0,
            quiet: want & QUIET != 0,
        };
        let mut from = Decoder { body, flags: envelope.tail.flags.into(), frame: Reader::new(frame)? };
        let decoded = Self::get(kind, header, &mut from);
        if decoded.is_ok() {
            from.frame.finish()?;
        }
        decoded
    }
}

//! Messages between borrowers and the owner of a cache (`docs/protocols/cache-sharing.md`), encoded like the
//! rows of the database.

use std::ops::Range;

use tombolo_core::Identity;
use tombolo_core::fs::{PersistentHandle, Volume, WeakAttr};
use tombolo_host_runtime::rows::{Reader, Writer};

/// Maximum length of a message, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4096;

/// Maximum number of extents in a reply.
const EXTENTS_MAX: usize = 64;

/// A borrower's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Handshake, with the cached file system's volume.
    Hello(Volume),
    Borrow(Ask),
    /// Return of one descriptor of the data of this generation.
    Release(u64),
}

/// A request for data of one version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Number repeated in the reply.
    pub id: u64,
    /// The origin's handle of the file.
    pub handle: PersistentHandle,
    pub version: WeakAttr,
    pub range: Range<u64>,
    /// User on whose behalf the data are read.
    pub user: Identity,
    /// Generation of which the borrower has a descriptor, or 0.
    pub has: u64,
}

/// The owner's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Hello(Welcome),
    Lent(Lent),
}

/// Result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    Yes,
    /// Refused: the cache is of another file system.
    OtherOrigin,
}

/// Lent data, with a descriptor of the data file unless the borrower has it or nothing is lent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lent {
    pub id: u64,
    /// Generation of the data file, never reused for another version or file.
    pub generation: u64,
    /// Cached, valid parts of the range, in order; empty if nothing is lent.
    pub extents: Vec<Range<u64>>,
}

const HELLO: u8 = 1;
const BORROW: u8 = 2;
const RELEASE: u8 = 3;

impl Request {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut row = Writer::default();
        match self {
            Self::Hello(volume) => {
                row.u8(HELLO);
                row.bytes(&volume.0);
            }
            Self::Borrow(ask) => {
                row.u8(BORROW);
                row.u64(ask.id);
                row.u32(ask.handle.kind.cast_unsigned());
                row.bytes(&ask.handle.bytes);
                row.u64(ask.version.size);
                row.time(ask.version.mtime);
                row.time(ask.version.ctime);
                row.u64(ask.range.start);
                row.u64(ask.range.end);
                row.identity(&ask.user);
                row.u64(ask.has);
            }
            Self::Release(generation) => {
                row.u8(RELEASE);
                row.u64(*generation);
            }
        }
        row.finished()
    }

    pub(crate) fn decoded(message: &[u8]) -> Option<Self> {
        let mut row = Reader::new(message)?;
        let request = match row.u8()? {
            HELLO => Self::Hello(Volume(row.bytes()?.try_into().ok()?)),
            BORROW => Self::Borrow(Ask {
                id: row.u64()?,
                handle: PersistentHandle { kind: row.u32()?.cast_signed(), bytes: row.bytes()?.into() },
                version: WeakAttr { size: row.u64()?, mtime: row.time()?, ctime: row.time()? },
                range: row.u64()?..row.u64()?,
                user: row.identity()?,
                has: row.u64()?,
            }),
            RELEASE => Self::Release(row.u64()?),
            _ => return None,
        };
        row.is_empty().then_some(request)
    }
}

impl Reply {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut row = Writer::default();
        match self {
            Self::Hello(welcome) => {
                row.u8(HELLO);
                row.u8((*welcome == Welcome::Yes).into());
            }
            Self::Lent(lent) => {
                row.u8(BORROW);
                row.u64(lent.id);
                row.u64(lent.generation);
                for extent in &lent.extents {
                    row.u64(extent.start);
                    row.u64(extent.end);
                }
            }
        }
        row.finished()
    }

    pub(crate) fn decoded(message: &[u8]) -> Option<Self> {
        let mut row = Reader::new(message)?;
        let reply = match row.u8()? {
            HELLO => Self::Hello(if row.u8()? == 1 { Welcome::Yes } else { Welcome::OtherOrigin }),
            BORROW => {
                let (id, generation) = (row.u64()?, row.u64()?);
                let mut extents = Vec::new();
                while !row.is_empty() && extents.len() < EXTENTS_MAX {
                    extents.push(row.u64()?..row.u64()?);
                }
                Self::Lent(Lent { id, generation, extents })
            }
            _ => return None,
        };
        row.is_empty().then_some(reply)
    }
}

#[cfg(test)]
mod tests {
    use tombolo_core::fs::Timestamp;

    use super::*;

    fn any_request(random: &mut fastrand::Rng) -> Request {
        let mut time = || Timestamp { secs: random.i64(..), nanos: random.u32(..) };
        let (mtime, ctime) = (time(), time());
        let bytes: Vec<u8> = (0..random.usize(..=64)).map(|_| random.u8(..)).collect();
        let groups: Vec<u32> = (0..random.usize(..40)).map(|_| random.u32(..)).collect();
        match random.u8(..3) {
            0 => Request::Hello(Volume(std::array::from_fn(|_| random.u8(..)))),
            1 => Request::Borrow(Ask {
                id: random.u64(..),
                handle: PersistentHandle { kind: random.i32(..), bytes: bytes.into() },
                version: WeakAttr { size: random.u64(..), mtime, ctime },
                range: random.u64(..)..random.u64(..),
                user: Identity { uid: random.u32(..), gid: 1, groups: random.bool().then(|| groups.into()) },
                has: random.u64(..),
            }),
            _ => Request::Release(random.u64(..)),
        }
    }

    fn any_reply(random: &mut fastrand::Rng) -> Reply {
        let extents = (0..random.usize(..=EXTENTS_MAX)).map(|_| random.u64(..)..random.u64(..)).collect();
        match random.u8(..3) {
            0 => Reply::Hello(Welcome::Yes),
            1 => Reply::Hello(Welcome::OtherOrigin),
            _ => Reply::Lent(Lent { id: random.u64(..), generation: random.u64(..), extents }),
        }
    }

    #[test]
    fn messages_come_back_as_they_were_and_fit() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let (request, reply) = (any_request(&mut random), any_reply(&mut random));
            let (sent, answered) = (request.encoded(), reply.encoded());
            assert!(sent.len().max(answered.len()) <= MESSAGE_BYTES_MAX);
            assert_eq!(Request::decoded(&sent), Some(request));
            assert_eq!(Reply::decoded(&answered), Some(reply));
        }
    }

    /// Decodes rows of random fields with valid checksums: most are no message, and none has more extents
    /// than allowed.
    #[test]
    fn whatever_a_peer_sends_is_a_message_or_none() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..20_000 {
            let mut row = Writer::default();
            row.u8(random.u8(..5));
            for _ in 0..random.usize(..150) {
                match random.u8(..3) {
                    0 => row.u64(random.u64(..) >> random.u8(..64)),
                    1 => row.u32(random.u32(..) >> random.u8(..32)),
                    _ => row.u8(random.u8(..3)),
                }
            }
            let message = row.finished();
            if let Some(request) = Request::decoded(&message) {
                assert_eq!(Request::decoded(&request.encoded()), Some(request));
            }
            if let Some(Reply::Lent(lent)) = Reply::decoded(&message) {
                assert!(lent.extents.len() <= EXTENTS_MAX);
            }
            let cut = random.usize(..message.len());
            assert_eq!((Request::decoded(&message[..cut]), Reply::decoded(&message[..cut])), (None, None));
        }
    }
}

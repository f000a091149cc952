//! Owned results of procedures, where the codec's own types borrow from the message.

use tombolo_wire_nfs3::listing::{ReaddirOk, ReaddirplusOk};
use tombolo_wire_nfs3::results::{CreateOk, LookupOk, ReadOk, ReadlinkOk};
use tombolo_wire_nfs3::{
    Cookie3, CookieVerifier, FileHandle, FileHandleBuf, PostOpAttr, Reply, Status, WccData,
};
use tombolo_wire_xdr::{Decoder, padded};

use super::message::Answer;

/// A node found by LOOKUP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The node.
    pub handle: FileHandleBuf,
    /// Its attributes.
    pub attributes: PostOpAttr,
    /// The directory's.
    pub dir_attributes: PostOpAttr,
}

impl From<LookupOk<'_>> for Found {
    fn from(ok: LookupOk<'_>) -> Self {
        let LookupOk { object, attributes, dir_attributes } = ok;
        Self { handle: object.to_owned(), attributes, dir_attributes }
    }
}

/// A node created by CREATE, MKDIR, SYMLINK or MKNOD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct New {
    /// The node.
    pub handle: Option<FileHandleBuf>,
    /// Its attributes.
    pub attributes: PostOpAttr,
    /// The directory.
    pub dir_wcc: WccData,
}

impl From<CreateOk<'_>> for New {
    fn from(ok: CreateOk<'_>) -> Self {
        let CreateOk { object, attributes, dir_wcc } = ok;
        Self { handle: object.map(FileHandle::to_owned), attributes, dir_wcc }
    }
}

impl New {
    /// Returns the new node's handle.
    ///
    /// # Panics
    /// If the reply has none; Tombolo's server always sends it.
    pub fn handle(&self) -> FileHandleBuf {
        self.handle.expect("the handle of what was made")
    }
}

/// Target of a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTarget {
    /// The link's attributes.
    pub attributes: PostOpAttr,
    /// The target.
    pub target: Vec<u8>,
}

impl From<ReadlinkOk<'_>> for LinkTarget {
    fn from(ok: ReadlinkOk<'_>) -> Self {
        Self { attributes: ok.attributes, target: ok.target.to_vec() }
    }
}

/// Data of a READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// The file's attributes.
    pub attributes: PostOpAttr,
    /// `true` if the data ends at the end of the file.
    pub eof: bool,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// One entry of READDIR or READDIRPLUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// The node's number.
    pub fileid: u64,
    /// The name.
    pub name: Vec<u8>,
    /// Cookie with which the listing continues.
    pub cookie: Cookie3,
    /// READDIRPLUS: the node's attributes.
    pub attributes: PostOpAttr,
    /// READDIRPLUS: the node's handle.
    pub handle: Option<FileHandleBuf>,
}

/// A page of READDIR or READDIRPLUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The directory's attributes.
    pub dir_attributes: PostOpAttr,
    /// Verifier of the cookies.
    pub verifier: CookieVerifier,
    /// The entries.
    pub entries: Vec<ListedEntry>,
    /// `true` if the directory ends with this page.
    pub eof: bool,
    /// Length of the results without the status, in bytes.
    pub result_bytes: usize,
}

impl Listing {
    /// Converts the results of READDIR.
    pub fn plain(ok: ReaddirOk<'_>, result_bytes: usize) -> Self {
        let entries = ok.entries.into_iter().map(|entry| ListedEntry {
            fileid: entry.fileid,
            name: entry.name.to_vec(),
            cookie: entry.cookie,
            attributes: None,
            handle: None,
        });
        let (dir_attributes, verifier, eof) = (ok.dir_attributes, ok.verifier, ok.eof);
        Self { dir_attributes, verifier, entries: entries.collect(), eof, result_bytes }
    }

    /// Converts the results of READDIRPLUS.
    pub fn plus(ok: ReaddirplusOk<'_>, result_bytes: usize) -> Self {
        let entries = ok.entries.into_iter().map(|plus| ListedEntry {
            fileid: plus.entry.fileid,
            name: plus.entry.name.to_vec(),
            cookie: plus.entry.cookie,
            attributes: plus.attributes,
            handle: plus.handle.map(FileHandle::to_owned),
        });
        let (dir_attributes, verifier, eof) = (ok.dir_attributes, ok.verifier, ok.eof);
        Self { dir_attributes, verifier, entries: entries.collect(), eof, result_bytes }
    }

    /// Returns the names except `.` and `..`.
    pub fn names(&self) -> Vec<String> {
        let names = self.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
        names.filter(|name| name != "." && name != "..").collect()
    }
}

/// Decodes the results of a READ, whose data is the end of the message.
pub(super) fn read_bytes(answer: &Answer) -> Reply<Bytes, PostOpAttr> {
    let results = answer.result_bytes();
    let mut xdr = Decoder::new(results);
    match xdr.value::<Reply<ReadOk, PostOpAttr>>().expect("the results of READ") {
        Reply::Ok(ok) => {
            let range = ok.data.range(results.len()).expect("the data lies in the message");
            assert_eq!(ok.count, ok.data.len_bytes(), "count and data agree");
            assert_eq!(range.start + padded(range.len()), results.len(), "nothing behind the data");
            Reply::Ok(Bytes { attributes: ok.attributes, eof: ok.eof, bytes: results[range].to_vec() })
        }
        Reply::Failed(status, attributes) => {
            xdr.finish().expect("nothing behind the results");
            Reply::Failed(status, attributes)
        }
    }
}

/// Converts the results of a success.
pub(super) fn map<T, U, F>(reply: Reply<T, F>, change: impl FnOnce(T) -> U) -> Reply<U, F> {
    match reply {
        Reply::Ok(ok) => Reply::Ok(change(ok)),
        Reply::Failed(status, rest) => Reply::Failed(status, rest),
    }
}

/// Expectation of success or of a failure with a given status.
pub trait Expect<T, F> {
    /// Returns the results of a success.
    ///
    /// # Panics
    /// If the procedure failed.
    fn done(self) -> T;
    /// Returns the results of a failure with status `expected`.
    ///
    /// # Panics
    /// If the procedure succeeded or failed with another status.
    fn failed(self, expected: Status) -> F;
}

impl<T: std::fmt::Debug, F: std::fmt::Debug> Expect<T, F> for Reply<T, F> {
    #[track_caller]
    fn done(self) -> T {
        match self {
            Self::Ok(results) => results,
            Self::Failed(status, _) => panic!("{status:?}, where success was expected"),
        }
    }

    #[track_caller]
    fn failed(self, expected: Status) -> F {
        match self {
            Self::Ok(results) => panic!("{results:?}, where {expected:?} was expected"),
            Self::Failed(status, rest) => {
                assert_eq!(status, expected);
                rest
            }
        }
    }
}

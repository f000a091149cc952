//! Owned results of procedures whose codec types borrow from the message.

use tombolo_wire_nfs3::listing::{ReaddirOk, ReaddirplusOk};
use tombolo_wire_nfs3::results::{CreateOk, LookupOk, ReadlinkOk};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, FileHandle, FileHandleBuf, PostOpAttr, Reply, WccData};

/// Result of LOOKUP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub handle: FileHandleBuf,
    pub attributes: PostOpAttr,
    pub dir_attributes: PostOpAttr,
}

impl From<LookupOk<'_>> for Found {
    fn from(ok: LookupOk<'_>) -> Self {
        let LookupOk { object, attributes, dir_attributes } = ok;
        Self { handle: object.to_owned(), attributes, dir_attributes }
    }
}

/// Reply to CREATE, MKDIR, SYMLINK and MKNOD.
pub(crate) type NewReply = Reply<New, WccData>;

/// Result of CREATE, MKDIR, SYMLINK and MKNOD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New {
    /// Handle of the node, which servers may omit.
    pub handle: Option<FileHandleBuf>,
    pub attributes: PostOpAttr,
    pub dir_wcc: WccData,
}

impl From<CreateOk<'_>> for New {
    fn from(ok: CreateOk<'_>) -> Self {
        let CreateOk { object, attributes, dir_wcc } = ok;
        Self { handle: object.and_then(good), attributes, dir_wcc }
    }
}

/// Result of READLINK.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub attributes: PostOpAttr,
    pub target: Vec<u8>,
}

impl From<ReadlinkOk<'_>> for Target {
    fn from(ok: ReadlinkOk<'_>) -> Self {
        Self { attributes: ok.attributes, target: ok.target.to_vec() }
    }
}

/// Reply to READDIR and READDIRPLUS.
pub(crate) type ListingReply = Reply<Listing, PostOpAttr>;

/// A page of a directory, from READDIR, READDIRPLUS or LIST.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub dir_attributes: PostOpAttr,
    pub verifier: CookieVerifier,
    pub entries: Vec<ListedEntry>,
    /// Names of all entries, concatenated; each entry has the range of its own.
    names: Vec<u8>,
    pub eof: bool,
}

/// An entry of a page; [`Listing::name`] returns its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedEntry {
    name_start: usize,
    name_end: usize,
    pub fileid: u64,
    pub cookie: Cookie3,
    pub attributes: PostOpAttr,
    pub handle: Option<FileHandleBuf>,
}

impl Listing {
    pub(crate) fn name(&self, entry: &ListedEntry) -> &[u8] {
        self.names.get(entry.name_start..entry.name_end).unwrap_or_default()
    }

    /// Returns the approximate memory use, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.names.len() + self.entries.len() * size_of::<ListedEntry>()
    }

    /// Returns a listing of names alone.
    #[cfg(test)]
    pub(crate) fn of_names(names: impl Iterator<Item = String>) -> Self {
        let mut listing = Self::new(None, CookieVerifier::default(), true);
        names.for_each(|name| listing.push(name.as_bytes(), (0, Cookie3(0)), None, None));
        listing
    }

    fn new(dir_attributes: PostOpAttr, verifier: CookieVerifier, eof: bool) -> Self {
        Self { dir_attributes, verifier, entries: Vec::new(), names: Vec::new(), eof }
    }

    fn push(
        &mut self,
        name: &[u8],
        (fileid, cookie): (u64, Cookie3),
        attributes: PostOpAttr,
        handle: Option<FileHandleBuf>,
    ) {
        let name_start = self.names.len();
        self.names.extend_from_slice(name);
        let name_end = self.names.len();
        self.entries.push(ListedEntry { name_start, name_end, fileid, cookie, attributes, handle });
    }
}

impl From<ReaddirOk<'_>> for Listing {
    fn from(ok: ReaddirOk<'_>) -> Self {
        let mut listing = Self::new(ok.dir_attributes, ok.verifier, ok.eof);
        for entry in ok.entries {
            listing.push(entry.name, (entry.fileid, entry.cookie), None, None);
        }
        listing
    }
}

impl From<ReaddirplusOk<'_>> for Listing {
    fn from(ok: ReaddirplusOk<'_>) -> Self {
        let mut listing = Self::new(ok.dir_attributes, ok.verifier, ok.eof);
        for plus in ok.entries {
            let handle = plus.handle.and_then(good);
            listing.push(plus.entry.name, (plus.entry.fileid, plus.entry.cookie), plus.attributes, handle);
        }
        listing
    }
}

/// Returns an owned handle; `None` if it is empty.
fn good(handle: FileHandle<'_>) -> Option<FileHandleBuf> {
    (!handle.as_bytes().is_empty()).then(|| handle.to_owned())
}

/// Converts the results of a successful reply to an owned type.
pub(super) fn owned<T, U: From<T>, F>(reply: Reply<T, F>) -> Reply<U, F> {
    with(reply, U::from)
}

/// Converts the results of a successful reply.
pub(super) fn with<T, U, F>(reply: Reply<T, F>, convert: impl FnOnce(T) -> U) -> Reply<U, F> {
    match reply {
        Reply::Ok(results) => Reply::Ok(convert(results)),
        Reply::Failed(status, rest) => Reply::Failed(status, rest),
    }
}

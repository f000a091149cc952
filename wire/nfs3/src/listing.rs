//! Directory listings (RFC 1813 §3.3.16, §3.3.17).
//!
//! Sizes are counted as the protocol's text has it. READDIR's `count` and READDIRPLUS's `maxcount` bound the
//! whole of `READDIR3resok` and `READDIRPLUS3resok`, "all XDR overhead" included: the directory's attributes,
//! the verifier, the entries with the word before each, and the two words that end a listing. The status
//! before it does not count. READDIRPLUS's `dircount` bounds the entries without attributes and handles: for
//! each as much as READDIR counts for it.

use tombolo_wire_xdr::{Encoder, List, padded, xdr_struct};

use crate::{Cookie3, CookieVerifier, FATTR_BYTES, Fattr3, FileHandle, PostOpAttr, Reply};

/// What READDIR answers. On failure: the directory.
pub type ReaddirReply<'a> = Reply<ReaddirOk<'a>, PostOpAttr>;
/// What READDIRPLUS answers. On failure: the directory.
pub type ReaddirplusReply<'a> = Reply<ReaddirplusOk<'a>, PostOpAttr>;

xdr_struct! {
    /// A page of a directory.
    pub struct ReaddirOk<'a> {
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
        /// Goes with the entries' cookies.
        pub verifier: CookieVerifier,
        /// The entries.
        pub entries: List<'a, DirEntry3<'a>>,
        /// Whether the directory ends with them.
        pub eof: bool,
    }
}

xdr_struct! {
    /// A page of a directory, with attributes and handles.
    pub struct ReaddirplusOk<'a> {
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
        /// Goes with the entries' cookies.
        pub verifier: CookieVerifier,
        /// The entries.
        pub entries: List<'a, DirEntryPlus3<'a>>,
        /// Whether the directory ends with them.
        pub eof: bool,
    }
}

xdr_struct! {
    /// An entry (`entry3`).
    pub struct DirEntry3<'a> {
        /// Its node's number.
        pub fileid: u64,
        /// Its name.
        pub name: &'a [u8],
        /// Where the listing goes on behind it.
        pub cookie: Cookie3,
    }
}

xdr_struct! {
    /// An entry with what LOOKUP would say (`entryplus3`).
    pub struct DirEntryPlus3<'a> {
        /// The entry.
        pub entry: DirEntry3<'a>,
        /// Its node's attributes.
        pub attributes: PostOpAttr,
        /// Its node (`post_op_fh3`).
        pub handle: Option<FileHandle<'a>>,
    }
}

/// What a listing takes up without entries, in bytes.
#[must_use]
pub const fn frame_bytes(with_dir_attributes: bool) -> usize {
    optional_bytes(with_dir_attributes, FATTR_BYTES) + VERIFIER_BYTES + END_BYTES
}

/// What an entry of READDIR takes up beside its name, in bytes. The name is padded to a multiple of
/// [`ENTRY_ALIGN`].
pub const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// What names are padded to.
pub const ENTRY_ALIGN: usize = 4;

/// What an entry of READDIR with this name takes up, in bytes.
#[must_use]
pub const fn entry_bytes(name_len: usize) -> usize {
    padded(name_len).saturating_add(ENTRY_BYTES)
}

/// What attributes and handle add to an entry in READDIRPLUS, in bytes: at most 160.
#[must_use]
pub const fn plus_bytes(with_attributes: bool, handle_len: Option<usize>) -> usize {
    let handle_bytes = match handle_len {
        Some(len) => padded(len).saturating_add(4),
        None => 0,
    };
    optional_bytes(with_attributes, FATTR_BYTES).saturating_add(4).saturating_add(handle_bytes)
}

const VERIFIER_BYTES: usize = 8;
/// "No entry follows" and the end-of-directory flag.
const END_BYTES: usize = 8;

const fn optional_bytes(present: bool, bytes: usize) -> usize {
    if present { 4 + bytes } else { 4 }
}

/// Writes the results of a successful READDIR or READDIRPLUS entry by entry, never more than the caller of
/// the procedure asked for.
///
/// When not even one entry fits and there are entries, the answer is TOOSMALL: [`Encoder::truncate`] takes
/// the beginning back.
#[derive(Debug)]
pub struct ListingWriter<'e, 'b> {
    xdr: &'e mut Encoder<'b>,
    left_bytes: usize,
    dir_left_bytes: usize,
    entries: usize,
}

impl<'e, 'b> ListingWriter<'e, 'b> {
    /// Begins a READDIR of at most `count_bytes`. `None`, and nothing is written, if not even an empty
    /// listing fits: TOOSMALL.
    pub fn readdir(
        xdr: &'e mut Encoder<'b>,
        dir_attributes: Option<&Fattr3>,
        verifier: CookieVerifier,
        count_bytes: usize,
    ) -> Option<Self> {
        Self::begin(xdr, dir_attributes, verifier, count_bytes, usize::MAX)
    }

    /// Begins a READDIRPLUS of at most `maxcount_bytes`, of which entries without attributes and handles take
    /// at most `dircount_bytes`. `None`, and nothing is written, if not even an empty listing fits: TOOSMALL.
    pub fn readdirplus(
        xdr: &'e mut Encoder<'b>,
        dir_attributes: Option<&Fattr3>,
        verifier: CookieVerifier,
        dircount_bytes: usize,
        maxcount_bytes: usize,
    ) -> Option<Self> {
        Self::begin(xdr, dir_attributes, verifier, maxcount_bytes, dircount_bytes)
    }

    fn begin(
        xdr: &'e mut Encoder<'b>,
        dir_attributes: Option<&Fattr3>,
        verifier: CookieVerifier,
        all_bytes: usize,
        dir_left_bytes: usize,
    ) -> Option<Self> {
        let left_bytes = all_bytes.checked_sub(frame_bytes(dir_attributes.is_some()))?;
        // NFS3_OK.
        xdr.u32(0).value(&dir_attributes.copied()).value(&verifier);
        Some(Self { xdr, left_bytes, dir_left_bytes, entries: 0 })
    }

    /// Adds an entry of READDIR. False, and nothing is written, if it does not fit.
    #[must_use]
    pub fn push(&mut self, entry: &DirEntry3<'_>) -> bool {
        if !self.take(entry.name.len(), 0) {
            return false;
        }
        self.xdr.bool(true).value(entry);
        true
    }

    /// Adds an entry of READDIRPLUS. False, and nothing is written, if it does not fit.
    #[must_use]
    pub fn push_plus(&mut self, plus: &DirEntryPlus3<'_>) -> bool {
        let handle_len = plus.handle.map(|handle| handle.as_bytes().len());
        if !self.take(plus.entry.name.len(), plus_bytes(plus.attributes.is_some(), handle_len)) {
            return false;
        }
        self.xdr.bool(true).value(plus);
        true
    }

    /// Number of entries so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// True while there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Ends the listing. `eof`: there are no more entries in the directory.
    pub fn finish(self, eof: bool) {
        self.xdr.bool(false).bool(eof);
    }

    fn take(&mut self, name_len: usize, plus_bytes: usize) -> bool {
        let dir_bytes = entry_bytes(name_len);
        let left = self.left_bytes.checked_sub(dir_bytes.saturating_add(plus_bytes));
        let (Some(left_bytes), Some(dir_left_bytes)) = (left, self.dir_left_bytes.checked_sub(dir_bytes))
        else {
            return false;
        };
        self.left_bytes = left_bytes;
        self.dir_left_bytes = dir_left_bytes;
        self.entries += 1;
        true
    }
}

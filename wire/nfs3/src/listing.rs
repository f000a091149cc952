//! Directory listings (RFC 1813 §3.3.16, §3.3.17).
//!
//! Sizes are counted as specified. READDIR's `count` and READDIRPLUS's `maxcount` bound the whole of
//! `READDIR3resok` and `READDIRPLUS3resok`, "all XDR overhead" included: the directory's attributes, the
//! verifier, the entries with the word before each, and the two words that end a listing. The preceding
//! status does not count. READDIRPLUS's `dircount` bounds the entries without attributes and handles, each
//! counted as in READDIR.

use tombolo_wire_xdr::{Encoder, List, padded, xdr_struct};

use crate::{Cookie3, CookieVerifier, FATTR_BYTES, Fattr3, FileHandle, PostOpAttr, Reply};

/// Results of READDIR. On failure: the directory's attributes.
pub type ReaddirReply<'a> = Reply<ReaddirOk<'a>, PostOpAttr>;
/// Results of READDIRPLUS. On failure: the directory's attributes.
pub type ReaddirplusReply<'a> = Reply<ReaddirplusOk<'a>, PostOpAttr>;

xdr_struct! {
    /// Results of a successful READDIR: a page of a directory.
    pub struct ReaddirOk<'a> {
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
        /// Verifier, which a later call that passes one of the cookies repeats.
        pub verifier: CookieVerifier,
        /// The entries, in the server's order.
        pub entries: List<'a, DirEntry3<'a>>,
        /// `true` if the directory ends with these entries.
        pub eof: bool,
    }

    /// Results of a successful READDIRPLUS: a page of a directory, with attributes and handles.
    pub struct ReaddirplusOk<'a> {
        /// The directory's attributes.
        pub dir_attributes: PostOpAttr,
        /// Verifier, which a later call that passes one of the cookies repeats.
        pub verifier: CookieVerifier,
        /// The entries, in the server's order.
        pub entries: List<'a, DirEntryPlus3<'a>>,
        /// `true` if the directory ends with these entries.
        pub eof: bool,
    }

    /// An entry (`entry3`).
    pub struct DirEntry3<'a> {
        /// Number of the node.
        pub fileid: u64,
        /// Name of the entry, which may be `.` or `..`.
        pub name: &'a [u8],
        /// Position behind the entry, from which a later call continues.
        pub cookie: Cookie3,
    }

    /// An entry with the results of LOOKUP (`entryplus3`).
    pub struct DirEntryPlus3<'a> {
        /// The entry.
        pub entry: DirEntry3<'a>,
        /// Attributes of the node, if available.
        pub attributes: PostOpAttr,
        /// Handle of the node (`post_op_fh3`), if available.
        pub handle: Option<FileHandle<'a>>,
    }
}

/// Returns the encoded length of a listing without entries, in bytes, as counted for `count` and `maxcount`.
#[must_use]
pub const fn frame_bytes(with_dir_attributes: bool) -> usize {
    optional_bytes(with_dir_attributes, FATTR_BYTES) + VERIFIER_BYTES + END_BYTES
}

/// Encoded length of a READDIR entry without its name, in bytes. The name is padded to a multiple of
/// [`ENTRY_ALIGN`].
pub const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// Alignment of names, in bytes: that of all XDR items.
pub const ENTRY_ALIGN: usize = 4;

/// Returns the encoded length of a READDIR entry with this name, in bytes.
#[must_use]
pub const fn entry_bytes(name_len: usize) -> usize {
    padded(name_len).saturating_add(ENTRY_BYTES)
}

/// Returns the encoded length of a READDIRPLUS entry's attributes and handle, in bytes: at most 160.
#[must_use]
pub const fn plus_bytes(with_attributes: bool, handle_len: Option<usize>) -> usize {
    let handle_bytes = match handle_len {
        Some(len) => padded(len).saturating_add(4),
        None => 0,
    };
    optional_bytes(with_attributes, FATTR_BYTES).saturating_add(4).saturating_add(handle_bytes)
}

const VERIFIER_BYTES: usize = 8;
/// Encoded length of "no entry follows" and the end-of-directory flag, in bytes.
const END_BYTES: usize = 8;

const fn optional_bytes(present: bool, bytes: usize) -> usize {
    if present { 4 + bytes } else { 4 }
}

/// An encoder of the results of a successful READDIR or READDIRPLUS, entry by entry, within the limits of the
/// call.
///
/// If not even one entry fits and there are entries, the procedure fails with TOOSMALL: [`Encoder::truncate`]
/// removes the encoded part.
#[derive(Debug)]
pub struct ListingWriter<'e, 'b> {
    xdr: &'e mut Encoder<'b>,
    remaining_bytes: usize,
    remaining_dir_bytes: usize,
    entries: usize,
}

impl<'e, 'b> ListingWriter<'e, 'b> {
    /// Begins a READDIR of at most `count_bytes`. Returns `None`, writing nothing, if not even an empty
    /// listing fits: TOOSMALL.
    pub fn readdir(
        xdr: &'e mut Encoder<'b>,
        dir_attributes: Option<&Fattr3>,
        verifier: CookieVerifier,
        count_bytes: usize,
    ) -> Option<Self> {
        Self::begin(xdr, dir_attributes, verifier, count_bytes, usize::MAX)
    }

    /// Begins a READDIRPLUS of at most `maxcount_bytes`, with at most `dircount_bytes` of entries without
    /// attributes and handles. Returns `None`, writing nothing, if not even an empty listing fits: TOOSMALL.
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
        remaining_dir_bytes: usize,
    ) -> Option<Self> {
        let remaining_bytes = all_bytes.checked_sub(frame_bytes(dir_attributes.is_some()))?;
        // NFS3_OK.
        xdr.u32(0).value(&dir_attributes.copied()).value(&verifier);
        Some(Self { xdr, remaining_bytes, remaining_dir_bytes, entries: 0 })
    }

    /// Appends an entry of READDIR. Returns `false`, writing nothing, if it does not fit.
    #[must_use]
    pub fn push(&mut self, entry: &DirEntry3<'_>) -> bool {
        if !self.take(entry.name.len(), 0) {
            return false;
        }
        self.xdr.bool(true).value(entry);
        true
    }

    /// Appends an entry of READDIRPLUS. Returns `false`, writing nothing, if it does not fit.
    #[must_use]
    pub fn push_plus(&mut self, plus: &DirEntryPlus3<'_>) -> bool {
        let handle_len = plus.handle.map(|handle| handle.as_bytes().len());
        if !self.take(plus.entry.name.len(), plus_bytes(plus.attributes.is_some(), handle_len)) {
            return false;
        }
        self.xdr.bool(true).value(plus);
        true
    }

    /// Returns the number of entries appended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Returns `true` if no entry has been appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Ends the listing. `eof`: the directory has no more entries.
    pub fn finish(self, eof: bool) {
        self.xdr.bool(false).bool(eof);
    }

    fn take(&mut self, name_len: usize, plus_bytes: usize) -> bool {
        let dir_bytes = entry_bytes(name_len);
        let left = self.remaining_bytes.checked_sub(dir_bytes.saturating_add(plus_bytes));
        let (Some(remaining_bytes), Some(remaining_dir_bytes)) =
            (left, self.remaining_dir_bytes.checked_sub(dir_bytes))
        else {
            return false;
        };
        self.remaining_bytes = remaining_bytes;
        self.remaining_dir_bytes = remaining_dir_bytes;
        self.entries += 1;
        true
    }
}

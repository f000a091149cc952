//! The entries of a directory, in a frame or in bulk memory.

use tombolo_core::fs::{Cookie, DirBudget, DirEntry, Entry, FileType, NAME_MAX, NodeId};
use zerocopy::little_endian::{I32, U16, U64};

use crate::fields::{file_type, type_number};
use crate::frame::{ALIGN, Items, Reader, zero};
use crate::layout::{EntryAttrItem, EntryHandleItem, EntryItem};
use crate::{DecodeError, EncodeError, FrameSink, HandleBytes};

/// Returns the length of an entry without its handle and name, in bytes. The next entry is aligned to eight
/// bytes.
#[must_use]
pub const fn entry_bytes(plus: bool) -> usize {
    size_of::<EntryItem>() + if plus { size_of::<EntryAttrItem>() } else { 0 }
}

/// Returns the encoded length of a handle of this many bytes in an entry, with padding.
const fn handle_bytes(len_bytes: usize) -> usize {
    size_of::<EntryHandleItem>() + len_bytes.next_multiple_of(ALIGN)
}

/// Returns the budget of a page that fits both the caller's `budget` and, if no entry has a handle, a
/// destination of `place_bytes`.
#[must_use]
pub fn budget_within(budget: &DirBudget, place_bytes: usize) -> DirBudget {
    DirBudget {
        size_bytes: budget.size_bytes.min(place_bytes),
        entry_bytes: budget.entry_bytes.max(entry_bytes(budget.plus)),
        align: budget.align.max(ALIGN),
        plus: budget.plus,
    }
}

/// An encoder of a listing: entries one after another, as many as fit.
pub struct ListingWriter<'f, W: ?Sized> {
    items: Items<'f, W>,
}

impl<'f, W: FrameSink + ?Sized> ListingWriter<'f, W> {
    /// Returns an encoder into `frame`, which must be empty and not larger than the requested destination.
    pub fn new(frame: &'f mut W) -> Self {
        Self { items: Items::new(frame) }
    }

    /// Appends an entry without a handle; see [`push_with`](Self::push_with).
    #[must_use]
    pub fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        self.push_with(entry, None)
    }

    /// Appends an entry, and the handle of its node if it has one. Returns `false` if it does not fit: then
    /// the listing ends before it, and its look-up must be released. Also returns `false` for a name or
    /// handle of invalid length.
    #[must_use]
    pub fn push_with(&mut self, entry: &DirEntry<'_>, handle: Option<HandleBytes<'_>>) -> bool {
        let Ok(name_len) = u8::try_from(entry.name.len()) else { return false };
        let handle = handle.filter(|_| entry.entry.is_some());
        let handle =
            match handle.map(|handle| Ok::<_, EncodeError>((handle.checked_len()?, handle))).transpose() {
                Ok(handle) => handle,
                Err(_) => return false,
            };
        let handle_bytes = handle.map_or(0, |(_, handle)| handle_bytes(handle.bytes.len()));
        let len = entry_bytes(entry.entry.is_some()) + handle_bytes + entry.name.len();
        if name_len == 0 || !self.items.fits(len) {
            return false;
        }
        let has_handle = if handle.is_some() { HAS_HANDLE } else { 0 };
        let head = EntryItem {
            cookie: U64::new(entry.cookie.0),
            fileid: U64::new(entry.fileid),
            name_len,
            file_type: entry.file_type.map_or(0, type_number),
            flags: has_handle | if entry.entry.is_some() { HAS_ENTRY } else { 0 },
            reserved: [0; 5],
        };
        let attr = entry
            .entry
            .map(|entry| EntryAttrItem { node: U64::new(entry.node.0), attr: (&entry.attr).into() });
        self.items.item(&head).is_ok()
            && attr.is_none_or(|attr| self.items.item(&attr).is_ok())
            && handle.is_none_or(|(len_bytes, handle)| self.handle(len_bytes, &handle).is_ok())
            && self.items.bytes(entry.name).is_ok()
    }

    fn handle(&mut self, len_bytes: u16, handle: &HandleBytes<'_>) -> Result<(), EncodeError> {
        self.items.item(&EntryHandleItem {
            kind: I32::new(handle.kind),
            len_bytes: U16::new(len_bytes),
            reserved: [0; 2],
        })?;
        self.items.bytes(handle.bytes)
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.items.len()
    }
}

/// An entry of a [`Listing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEntry<'a> {
    /// Name; `.` and `..` are listed too.
    pub name: &'a [u8],
    /// Inode number.
    pub fileid: u64,
    /// File type; `None` where the server would have to read the inode.
    pub file_type: Option<FileType>,
    /// Position behind the entry.
    pub cookie: Cookie,
    /// The node with its attributes, if requested and available. The node counts a look-up, which the
    /// receiver must release.
    pub entry: Option<Entry>,
    /// The node's handle, if requested and available.
    pub handle: Option<HandleBytes<'a>>,
}

impl ListedEntry<'_> {
    /// Converts to the waist's type.
    #[must_use]
    pub fn as_dir_entry(&self) -> DirEntry<'_> {
        DirEntry {
            name: self.name,
            fileid: self.fileid,
            file_type: self.file_type,
            cookie: self.cookie,
            entry: self.entry.as_ref(),
        }
    }
}

/// A received listing: consecutive entries in private memory.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    bytes: &'a [u8],
}

impl<'a> Listing<'a> {
    /// Returns a listing in `bytes`, which must be a private copy. Entries are checked when decoded.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns the entries, each checked when decoded. Ends after an error.
    pub fn entries(&self) -> impl Iterator<Item = Result<ListedEntry<'a>, DecodeError>> + use<'a> {
        let mut reader = Reader::of_listing(self.bytes);
        let mut failed = false;
        std::iter::from_fn(move || {
            if failed || reader.is_at_end() {
                return None;
            }
            let entry = decode_entry(&mut reader);
            failed = entry.is_err();
            Some(entry)
        })
    }
}

/// Flag: the entry has a node and attributes.
const HAS_ENTRY: u8 = 1;
/// Flag: the entry also has the node's handle.
const HAS_HANDLE: u8 = 1 << 1;

fn decode_entry<'a>(reader: &mut Reader<'a>) -> Result<ListedEntry<'a>, DecodeError> {
    let head: &EntryItem = reader.item()?;
    if head.flags & !(HAS_ENTRY | HAS_HANDLE) != 0 || head.flags == HAS_HANDLE {
        return Err(DecodeError::UnknownFlags(head.flags.into()));
    }
    zero(&head.reserved)?;
    let entry = if head.flags & HAS_ENTRY != 0 {
        let item: &EntryAttrItem = reader.item()?;
        Some(Entry { node: NodeId(item.node.get()), attr: item.attr.decode()? })
    } else {
        None
    };
    let handle = match head.flags & HAS_HANDLE {
        0 => None,
        _ => {
            let item: &EntryHandleItem = reader.item()?;
            zero(&item.reserved)?;
            Some(HandleBytes::read(item.kind.get(), item.len_bytes.get(), reader)?)
        }
    };
    Ok(ListedEntry {
        name: listed_name(reader.bytes(head.name_len.into())?)?,
        fileid: head.fileid.get(),
        file_type: if head.file_type == 0 { None } else { Some(file_type(head.file_type)?) },
        cookie: Cookie(head.cookie.get()),
        entry,
        handle,
    })
}

/// Checks a name. Listings may contain `.` and `..`, but no other name that escapes from the directory.
fn listed_name(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    use tombolo_core::fs::{Name, NameError};
    const _: () = assert!(NAME_MAX == u8::MAX as usize);
    match Name::new(bytes) {
        Ok(_) | Err(NameError::Dots) => Ok(bytes),
        Err(error) => Err(error.into()),
    }
}

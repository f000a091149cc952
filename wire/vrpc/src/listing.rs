//! The entries of a directory, in a frame or in bulk memory.

use tombolo_core::fs::{Cookie, DirBudget, DirEntry, Entry, FileType, NAME_MAX, NodeId};
use zerocopy::little_endian::U64;

use crate::attr::{file_type, type_number};
use crate::frame::{ALIGN, Items, Reader};
use crate::layout::{EntryAttrItem, EntryItem};
use crate::{DecodeError, FrameSink};

/// What an entry takes up beside its name, in bytes. The next one begins at a multiple of eight.
#[must_use]
pub const fn entry_bytes(plus: bool) -> usize {
    size_of::<EntryItem>() + if plus { size_of::<EntryAttrItem>() } else { 0 }
}

/// What a page may hold so that it fits both a caller who has asked for `budget` and a place of `place_bytes`.
#[must_use]
pub fn budget_within(budget: &DirBudget, place_bytes: usize) -> DirBudget {
    DirBudget {
        size_bytes: budget.size_bytes.min(place_bytes),
        entry_bytes: budget.entry_bytes.max(entry_bytes(budget.plus)),
        align: budget.align.max(ALIGN),
        plus: budget.plus,
    }
}

/// Writes a listing entry by entry.
pub struct ListingWriter<'f, W: ?Sized> {
    items: Items<'f, W>,
}

impl<'f, W: FrameSink + ?Sized> ListingWriter<'f, W> {
    /// Writes to `frame`, which is empty and no larger than the place that was asked for.
    pub fn new(frame: &'f mut W) -> Self {
        Self { items: Items::new(frame) }
    }

    /// Appends an entry. False when it does not fit: then the listing ends before it, and whatever was looked up for it must be
    /// forgotten. False, too, for a name that no entry can have.
    #[must_use]
    pub fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        let Ok(name_len) = u8::try_from(entry.name.len()) else { return false };
        if name_len == 0 || !self.items.fits(entry_bytes(entry.entry.is_some()) + entry.name.len()) {
            return false;
        }
        let head = EntryItem {
            cookie: U64::new(entry.cookie.0),
            fileid: U64::new(entry.fileid),
            name_len,
            file_type: entry.file_type.map_or(0, type_number),
            flags: if entry.entry.is_some() { HAS_ENTRY } else { 0 },
            reserved: [0; 5],
        };
        let attr = entry
            .entry
            .map(|entry| EntryAttrItem { node: U64::new(entry.node.0), attr: (&entry.attr).into() });
        self.items.item(&head).is_ok()
            && attr.is_none_or(|attr| self.items.item(&attr).is_ok())
            && self.items.bytes(entry.name).is_ok()
    }

    /// How much was written, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.items.len()
    }
}

/// One entry of a [`Listing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEntry<'a> {
    /// Its name; `.` and `..` are listed too.
    pub name: &'a [u8],
    /// Its inode number.
    pub fileid: u64,
    /// What it is, where that is known.
    pub file_type: Option<FileType>,
    /// Where the listing goes on behind it.
    pub cookie: Cookie,
    /// The node, when the listing was asked for with attributes. It carries a look-up.
    pub entry: Option<Entry>,
}

impl ListedEntry<'_> {
    /// The same as the waist has it.
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

/// Entries in private memory, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    bytes: &'a [u8],
}

impl<'a> Listing<'a> {
    /// A listing in `bytes`, which must be a private copy. Nothing is checked before it is read.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The entries, each checked when its turn comes. After an error there are no more.
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

/// The entry has a node and attributes.
const HAS_ENTRY: u8 = 1;

fn decode_entry<'a>(reader: &mut Reader<'a>) -> Result<ListedEntry<'a>, DecodeError> {
    let head: &EntryItem = reader.item()?;
    if head.flags & !HAS_ENTRY != 0 {
        return Err(DecodeError::UnknownFlags(head.flags.into()));
    }
    crate::request::zero(&head.reserved)?;
    let entry = if head.flags & HAS_ENTRY != 0 {
        let item: &EntryAttrItem = reader.item()?;
        Some(Entry { node: NodeId(item.node.get()), attr: item.attr.decode()? })
    } else {
        None
    };
    Ok(ListedEntry {
        name: listed_name(reader.bytes(head.name_len.into())?)?,
        fileid: head.fileid.get(),
        file_type: if head.file_type == 0 { None } else { Some(file_type(head.file_type)?) },
        cookie: Cookie(head.cookie.get()),
        entry,
    })
}

/// Names in listings may be `.` and `..`, but cannot climb in any other way.
fn listed_name(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    use tombolo_core::fs::{Name, NameError};
    const _: () = assert!(NAME_MAX == u8::MAX as usize);
    match Name::new(bytes) {
        Ok(_) | Err(NameError::Dots) => Ok(bytes),
        Err(error) => Err(error.into()),
    }
}

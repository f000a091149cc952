//! One page of a directory listing.

use std::time::Instant;

use super::{Attr, Cookie, Entry, FileType, NodeId};

/// The capacity of a page, in terms of the caller's protocol: the size of its reply, and of each entry in it.
#[derive(Clone, Copy, Debug)]
pub struct DirBudget {
    /// Total size of the entries that fit the caller's reply, in bytes.
    pub size_bytes: usize,
    /// Size of an entry without its name, in bytes.
    pub entry_bytes: usize,
    /// Alignment of entries; a power of two.
    pub align: usize,
    /// `true` if entries carry attributes. Each entry with attributes counts a look-up.
    pub plus: bool,
}

/// One entry of a page, which borrows from the page or its source.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Name, possibly `.` or `..`: those two are listed, although no operation of the waist accepts them.
    pub name: &'a [u8],
    /// Inode number ([`Attr::fileid`]).
    pub fileid: u64,
    /// File type; `None` where the file system would have to read the inode.
    pub file_type: Option<FileType>,
    /// Position after this entry.
    pub cookie: Cookie,
    /// The entry's node, if attributes were requested and are available (never for `.` and `..`).
    pub entry: Option<&'a Entry>,
}

/// A page that a back end fills with entries until the caller's budget is used up.
///
/// It owns its memory and is passed through the operation and back, so that one page serves many listings
/// without allocating.
#[derive(Debug)]
pub struct DirPage {
    budget: DirBudget,
    used_bytes: usize,
    names: Vec<u8>,
    heads: Vec<Head>,
    entries: Vec<Entry>,
    end: bool,
    asked: Option<Instant>,
}

/// An entry without its name and its [`Entry`], which are in the page's `names` and `entries`.
#[derive(Debug)]
struct Head {
    /// End of the name in `names`; the name begins where the previous entry's ends.
    name_end: usize,
    fileid: u64,
    file_type: Option<FileType>,
    cookie: Cookie,
    has_entry: bool,
}

impl DirPage {
    /// Returns an empty page with this budget.
    pub fn new(budget: DirBudget) -> Self {
        let (names, heads, entries) = (Vec::new(), Vec::new(), Vec::new());
        Self { budget, used_bytes: 0, names, heads, entries, end: false, asked: None }
    }

    /// Empties the page and sets another budget. The memory is retained.
    pub fn reset(&mut self, budget: DirBudget) {
        self.budget = budget;
        self.used_bytes = 0;
        self.names.clear();
        self.heads.clear();
        self.entries.clear();
        self.end = false;
        self.asked = None;
    }

    /// Returns the page's total budget, regardless of the entries that it has already.
    pub fn budget(&self) -> DirBudget {
        self.budget
    }

    /// Returns the maximum number of entries, whatever their names.
    pub fn entries_max(&self) -> usize {
        self.budget.size_bytes / self.budget.entry_bytes.max(1)
    }

    /// Returns `true` if the caller requested attributes, so that a back end looks the entries up.
    pub fn wants_entries(&self) -> bool {
        self.budget.plus
    }

    /// Returns `true` if an entry with a name of `name_len` bytes still fits. A back end calls this before it
    /// looks up a node for [`DirPage::push`].
    pub fn fits(&self, name_len: usize) -> bool {
        self.cost(name_len).is_some_and(|cost| self.budget.size_bytes - self.used_bytes >= cost)
    }

    /// Adds an entry. Returns `false`, adding nothing, if it does not fit: the page is full.
    #[must_use]
    pub fn push(&mut self, entry: DirEntry<'_>) -> bool {
        if !self.fits(entry.name.len()) {
            return false;
        }
        self.used_bytes += self.cost(entry.name.len()).unwrap_or(usize::MAX);
        self.names.extend_from_slice(entry.name);
        self.entries.extend(entry.entry);
        self.heads.push(Head {
            name_end: self.names.len(),
            fileid: entry.fileid,
            file_type: entry.file_type,
            cookie: entry.cookie,
            has_entry: entry.entry.is_some(),
        });
        true
    }

    /// Marks this page as the directory's last.
    pub fn set_end(&mut self) {
        self.end = true;
    }

    /// Returns `true` if the directory ends with this page.
    pub fn is_end(&self) -> bool {
        self.end
    }

    /// Records that the page's contents were requested at this time, before the call of `readdir`
    /// ([`Ctx::lists_subdirectories`](crate::Ctx::lists_subdirectories)).
    pub fn set_asked(&mut self, asked: Instant) {
        self.asked = Some(asked);
    }

    /// Returns the time at which the contents were requested, if that was before the call of `readdir`.
    pub fn asked(&self) -> Option<Instant> {
        self.asked
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns `true` if the page has no entries.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Returns the entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = DirEntry<'_>> {
        let mut name_start = 0;
        let mut entries = self.entries.iter();
        self.heads.iter().map(move |head| {
            let name = self.names.get(name_start..head.name_end).unwrap_or_default();
            name_start = head.name_end;
            DirEntry {
                name,
                fileid: head.fileid,
                file_type: head.file_type,
                cookie: head.cookie,
                entry: if head.has_entry { entries.next() } else { None },
            }
        })
    }

    /// Returns the nodes of the entries that carry one, in order.
    pub fn nodes_mut(&mut self) -> impl Iterator<Item = &mut NodeId> {
        self.entries.iter_mut().map(|entry| &mut entry.node)
    }

    /// Returns the attributes of the entries that carry them, in order.
    pub fn attrs_mut(&mut self) -> impl Iterator<Item = &mut Attr> {
        self.entries.iter_mut().map(|entry| &mut entry.attr)
    }

    fn cost(&self, name_len: usize) -> Option<usize> {
        self.budget.entry_bytes.checked_add(name_len)?.checked_next_multiple_of(self.budget.align.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], cookie: u64) -> DirEntry<'_> {
        DirEntry { name, fileid: cookie, file_type: None, cookie: Cookie(cookie), entry: None }
    }

    #[test]
    fn directory_page_stops_at_its_budget() {
        let mut page = DirPage::new(DirBudget { size_bytes: 64, entry_bytes: 24, align: 8, plus: false });
        assert!(page.push(entry(b"12345678", 1)));
        assert!(page.push(entry(b"1", 2)));
        assert!(!page.fits(1));
        assert!(!page.push(entry(b"1", 3)));
        let names: Vec<_> = page.iter().map(|entry| (entry.name.to_vec(), entry.cookie.0)).collect();
        assert_eq!(names, [(b"12345678".to_vec(), 1), (b"1".to_vec(), 2)]);
        page.reset(DirBudget { size_bytes: 0, entry_bytes: 24, align: 8, plus: false });
        assert!(page.is_empty() && !page.push(entry(b"1", 1)));
    }

    #[test]
    fn a_hostile_budget_does_not_overflow() {
        let page = DirPage::new(DirBudget { size_bytes: 1, entry_bytes: usize::MAX, align: 0, plus: false });
        assert!(!page.fits(1));
    }
}

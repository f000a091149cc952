//! Directory listings, page by page or entry by entry.

use std::vec::IntoIter;

use tombolo_core::fs::{Cookie, DirBudget, DirPage, FileType, NameBuf, OpenFlags};
use tombolo_core::{Error, Result};

use crate::file::File;
use crate::node::Node;

/// Size of a page of names alone, as suits a local directory.
const NAMES: DirBudget = DirBudget { size_bytes: 32 << 10, entry_bytes: 32, align: 8, plus: false };

/// Size of a page with attributes: that of a server's READDIRPLUS reply, about 300 entries.
const PLUS: DirBudget = DirBudget { size_bytes: 64 << 10, entry_bytes: 200, align: 8, plus: true };

/// A listing in progress. Only one page is in memory at a time.
#[derive(Debug)]
pub struct Listing {
    dir: Node,
    /// Opening of the directory; `None` after [`Listing::set_aside`].
    opening: Option<File>,
    page: Option<DirPage>,
    budget: DirBudget,
    /// Position after the last entry that was read.
    cookie: Cookie,
    end: bool,
    /// Entries read for [`Listing::next`], each with the position after it.
    ahead: IntoIter<(Item, Cookie)>,
    /// Position after the last entry that [`Listing::next`] returned.
    taken: Cookie,
}

/// An entry of a directory; never `.` or `..`.
#[derive(Debug)]
pub struct Item {
    /// Name of the entry.
    pub name: NameBuf,
    /// Type of the entry, if the directory reports it.
    pub file_type: Option<FileType>,
    /// File number of the entry.
    pub fileid: u64,
    /// The node, if it was requested and the directory reports it.
    pub node: Option<Node>,
}

impl Listing {
    pub(crate) fn new(opening: File, plus: bool) -> Self {
        let budget = if plus { PLUS } else { NAMES };
        Self {
            dir: opening.node().clone(),
            opening: Some(opening),
            page: Some(DirPage::new(budget)),
            budget,
            cookie: Cookie::START,
            end: false,
            ahead: IntoIter::default(),
            taken: Cookie::START,
        }
    }

    /// Returns the directory that is listed.
    pub fn dir(&self) -> &Node {
        &self.dir
    }

    /// Returns the next entries; `None` at the end. An impossible name (one that contains a `/`, say) ends
    /// the listing with [`Error::Io`]: a server that sends it is broken.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Item>>> {
        let page = self.read().await?;
        Ok(page.map(|items| items.into_iter().map(|(item, _)| item).collect()))
    }

    /// Returns the next entry; `None` at the end. Fails in the cases of [`Listing::next_page`].
    pub async fn next(&mut self) -> Result<Option<Item>> {
        loop {
            if let Some((item, cookie)) = self.ahead.next() {
                self.taken = cookie;
                return Ok(Some(item));
            }
            match self.read().await? {
                Some(items) => self.ahead = items.into_iter(),
                None => return Ok(None),
            }
        }
    }

    /// Releases the opening, and the entries that were read but not returned yet. [`Listing::next`] continues
    /// at the same position with a new opening.
    pub(crate) fn set_aside(&mut self) {
        self.opening = None;
        self.page = None;
        if self.ahead.len() > 0 {
            self.ahead = IntoIter::default();
            (self.cookie, self.end) = (self.taken, false);
        }
    }

    async fn read(&mut self) -> Result<Option<Vec<(Item, Cookie)>>> {
        if self.end {
            return Ok(None);
        }
        let opening = match &self.opening {
            Some(opening) => opening,
            None => self.opening.insert(self.dir.open(OpenFlags::READ | OpenFlags::DIRECTORY).await?),
        };
        let mut page = self.page.take().unwrap_or_else(|| DirPage::new(self.budget));
        page.reset(self.budget);
        let tree = self.dir.tree();
        let page = tree.fs().readdir(&tree.cx(), opening.opening(), self.cookie, page).resolve().await?;
        let items = self.take_in(&page);
        self.page = Some(page);
        items.map(Some)
    }

    fn take_in(&mut self, page: &DirPage) -> Result<Vec<(Item, Cookie)>> {
        let tree = self.dir.tree();
        let mut items = Vec::with_capacity(page.len());
        let mut next = self.cookie;
        let mut is_broken = false;
        for entry in page.iter() {
            next = entry.cookie;
            // The node is adopted first, so that the look-up is released in any case.
            let node = entry.entry.map(|&entry| Node::of(tree.clone(), entry));
            match tombolo_core::fs::Name::new(entry.name) {
                Ok(name) => {
                    let found = node.as_ref().and_then(Node::attr_found);
                    let file_type = found.map(|attr| attr.file_type).or(entry.file_type);
                    let item = Item { name: name.to_owned(), file_type, fileid: entry.fileid, node };
                    items.push((item, entry.cookie));
                }
                Err(_) if entry.name == b"." || entry.name == b".." => {}
                Err(_) => is_broken = true,
            }
        }
        self.end = page.is_end();
        if is_broken {
            return Err(Error::io("the directory lists a name that no file can have"));
        }
        if !self.end && next == self.cookie {
            return Err(Error::io("the listing of the directory makes no progress"));
        }
        self.cookie = next;
        Ok(items)
    }
}

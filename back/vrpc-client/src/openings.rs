//! The openings of a session, which outlive its links.

use tombolo_core::Identity;
use tombolo_core::fs::{Cookie, File, NodeId, OpenFlags, OpenId};

use crate::slab::{ServerId, Slab, SlabEntry};

#[derive(Debug, Default)]
pub(crate) struct Openings(Slab<Opening>);

/// An opening, with the parameters to reopen it on the next link.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) node: NodeId,
    pub(crate) flags: OpenFlags,
    pub(crate) identity: Identity,
    /// `true` if the server that has the opening promised that a flush only releases locks, and that quiet
    /// writes take effect in the order of the requests.
    pub(crate) is_prompt: bool,
    /// `true` if a lock held through the opening was lost to another client: the user must not continue.
    pub(crate) is_broken: bool,
    /// Number of pages requested so far.
    pages: u64,
    /// Position of the directory's end, if the page requested last contained it.
    end: Option<Cookie>,
}

impl Opening {
    /// Creates an entry. Reopening neither truncates the file again nor removes its privileges again.
    pub(crate) fn new(node: NodeId, flags: OpenFlags, identity: Identity, is_prompt: bool) -> Self {
        let flags = flags.difference(OpenFlags::TRUNCATE.union(OpenFlags::KILL_PRIVILEGES));
        Self { node, flags, identity, is_prompt, is_broken: false, pages: 0, end: None }
    }
}

impl Openings {
    /// Registers an opening of that link's server, and returns the session's id for it.
    pub(crate) fn add(&self, opening: Opening, link: u32, server_id: OpenId) -> OpenId {
        OpenId(self.0.insert(opening, link, server_id.0))
    }

    /// Returns the opening's id at the server of that link.
    #[inline]
    pub(crate) fn server_id(&self, open: OpenId, link: u32) -> ServerId {
        self.0.server_id(open.0, link)
    }

    pub(crate) fn get(&self, open: OpenId) -> Option<Opening> {
        self.0.with(open.0, |item| item.value.clone())
    }

    /// Returns the flags of a prompt opening of that node; `None` for others.
    pub(crate) fn prompt_flags(&self, file: File) -> Option<OpenFlags> {
        let is_prompt = |opening: &Opening| opening.is_prompt && opening.node == file.node;
        self.0.with(file.open.0, |item| is_prompt(item.value).then_some(item.value.flags))?
    }

    /// Begins a page of a listing. Returns its number for [`Openings::set_end`]; `None` if the page before it
    /// ended the directory at that position. The end is good for one page, so that no position hides names
    /// that are added later.
    pub(crate) fn begin_page(&self, file: File, cookie: Cookie) -> Option<u64> {
        let begin = |item: SlabEntry<'_, Opening>| {
            let opening = item.value;
            let is_end = opening.end.take() == Some(cookie) && opening.node == file.node;
            opening.pages += 1;
            (!is_end || opening.is_broken).then_some(opening.pages)
        };
        self.0.with(file.open.0, begin).unwrap_or(Some(0))
    }

    /// Records that a page ended the directory at that position, unless another page was begun meanwhile.
    pub(crate) fn set_end(&self, open: OpenId, page: u64, end: Cookie) {
        self.0.with(open.0, |item| item.value.end = Some(end).filter(|_| item.value.pages == page));
    }

    /// Records that the opening was reopened. Returns `false`, recording nothing, if it is bound on that link
    /// already or has ended.
    pub(crate) fn reopened(&self, open: OpenId, link: u32, (server_id, is_prompt): (OpenId, bool)) -> bool {
        let is_needed = self.0.with(open.0, |item| {
            let is_needed = item.server_id(link).is_none();
            if is_needed {
                item.bind(link, server_id.0);
                item.value.is_prompt = is_prompt;
            }
            is_needed
        });
        is_needed == Some(true)
    }

    /// Unbinds the opening, so that the next use reopens it. Returns the link whose server had it and its id
    /// there, if any.
    pub(crate) fn unbind(&self, open: OpenId) -> Option<(u32, OpenId)> {
        let (link, server_id) = self.0.with(open.0, |item| item.unbind())??;
        Some((link, OpenId(server_id)))
    }

    pub(crate) fn mark_broken(&self, open: OpenId) {
        self.0.with(open.0, |item| {
            item.value.is_broken = true;
            item.value.is_prompt = false;
            item.unbind();
        });
    }

    /// Removes an opening. Also returns the link whose server has it and its id there, if any.
    pub(crate) fn remove(&self, open: OpenId) -> Option<(Opening, Option<(u32, OpenId)>)> {
        let (opening, server_id) = self.0.remove(open.0)?;
        Some((opening, server_id.map(|(link, server_id)| (link, OpenId(server_id)))))
    }

    pub(crate) fn all(&self) -> Vec<OpenId> {
        self.0.numbers().into_iter().map(OpenId).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_of_the_page_begun_last() {
        let (openings, node, end) = (Openings::default(), NodeId(5), Cookie(9));
        let opening = Opening::new(node, OpenFlags::READ, Identity::default(), false);
        let file = File { node, open: openings.add(opening, 1, OpenId(7)) };
        let [first, second] =
            [0, 0].map(|_| openings.begin_page(file, Cookie::START).expect("none is known"));
        openings.set_end(file.open, first, end);
        let third = openings.begin_page(file, end).expect("another page was begun meanwhile");
        assert_ne!(second, third);
        openings.set_end(file.open, third, end);
        assert_eq!(openings.begin_page(file, end), None);
        assert!(openings.begin_page(file, end).is_some(), "the page after it");
    }
}

//! The openings of a session, which outlive its links.

use tombolo_core::Identity;
use tombolo_core::fs::{File, NodeId, OpenFlags, OpenId};

use crate::slab::{ServerId, Slab};

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
}

impl Opening {
    /// Creates an entry. Reopening neither truncates the file again nor removes its privileges again.
    pub(crate) fn new(node: NodeId, flags: OpenFlags, identity: Identity, is_prompt: bool) -> Self {
        let flags = flags.difference(OpenFlags::TRUNCATE.union(OpenFlags::KILL_PRIVILEGES));
        Self { node, flags, identity, is_prompt, is_broken: false }
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

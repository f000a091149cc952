//! The openings of a session, which outlive its links.

use tombolo_core::Identity;
use tombolo_core::fs::{NodeId, OpenFlags, OpenId};

use crate::slab::{Slab, Theirs};

/// The openings that a session has.
#[derive(Debug, Default)]
pub(crate) struct Openings(Slab<Opening>);

/// How to open it anew.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) node: NodeId,
    pub(crate) flags: OpenFlags,
    pub(crate) identity: Identity,
    /// A lock that was held through it is another client's now: a caller that relied on it must not go on.
    pub(crate) is_broken: bool,
}

impl Opening {
    /// It is opened as it was, but neither made nor cut to nothing again.
    pub(crate) fn new(node: NodeId, flags: OpenFlags, identity: Identity) -> Self {
        let flags = flags.difference(OpenFlags::TRUNCATE.union(OpenFlags::KILL_PRIVILEGES));
        Self { node, flags, identity, is_broken: false }
    }
}

impl Openings {
    /// An opening that the server of that link has given.
    pub(crate) fn add(&self, opening: Opening, link: u32, theirs: OpenId) -> OpenId {
        OpenId(self.0.insert(opening, link, theirs.0))
    }

    /// What the server of that link calls it.
    #[inline]
    pub(crate) fn theirs(&self, open: OpenId, link: u32) -> Theirs {
        self.0.theirs(open.0, link)
    }

    pub(crate) fn get(&self, open: OpenId) -> Option<Opening> {
        self.0.with(open.0, |held| held.thing.clone())
    }

    /// It was opened anew. False if that was not needed (any more).
    pub(crate) fn opened_again(&self, open: OpenId, link: u32, theirs: OpenId) -> bool {
        let is_needed = self.0.with(open.0, |held| {
            let is_needed = held.theirs(link).is_none();
            if is_needed {
                held.bind(link, theirs.0);
            }
            is_needed
        });
        is_needed == Some(true)
    }

    /// No server is known to have it: it is opened anew when it is used. With the link whose server has it,
    /// if one does, and what that calls it.
    pub(crate) fn unbind(&self, open: OpenId) -> Option<(u32, OpenId)> {
        let (link, theirs) = self.0.with(open.0, |held| held.unbind())??;
        Some((link, OpenId(theirs)))
    }

    /// A lock of it is lost.
    pub(crate) fn break_off(&self, open: OpenId) {
        self.0.with(open.0, |held| {
            held.thing.is_broken = true;
            held.unbind();
        });
    }

    /// Takes an opening out; with the link whose server has it, if one does, and what that calls it.
    pub(crate) fn remove(&self, open: OpenId) -> Option<(Opening, Option<(u32, OpenId)>)> {
        let (opening, theirs) = self.0.remove(open.0)?;
        Some((opening, theirs.map(|(link, theirs)| (link, OpenId(theirs)))))
    }

    pub(crate) fn all(&self) -> Vec<OpenId> {
        self.0.numbers().into_iter().map(OpenId).collect()
    }
}

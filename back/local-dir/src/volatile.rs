//! Files that clients ask for each time, by their names: stores through shared mappings raise no event, so no
//! client is told of them.
//!
//! A name is compared when a session meets a file under it. A file that has had such a name once stays
//! volatile for the session, since who has mapped it has it mapped still. So is one that the session has met
//! by its handle alone: its name is not known.

use std::ffi::CString;

use tombolo_core::fs::{Attr, Entry, FileType, Name, NodeId, Notice};
use tombolo_sys::pattern::Pattern;
use tombolo_sys::stat::{Stat, stat_entry};

use crate::attr::attr_of;
use crate::state::{Location, Session};
use crate::submounts::is_beneath;

impl Session {
    /// The attributes of a node.
    pub(crate) fn attr(&self, node: NodeId, stat: &Stat) -> Attr {
        Attr { volatile: stat.is_regular() && self.is_volatile(node), ..attr_of(stat) }
    }

    /// Whether a file is asked for each time.
    #[inline]
    pub(crate) fn is_volatile(&self, node: NodeId) -> bool {
        !self.export.options.ask.is_empty() && self.table.is_volatile(node)
    }

    /// What was found under a name, with what the name tells.
    #[inline]
    pub(crate) fn met(&self, entry: Entry, dir: &Location, name: Name<'_>) -> Entry {
        if self.export.options.ask.is_empty() || entry.attr.file_type != FileType::Regular {
            return entry;
        }
        let volatile = self.meets(entry.node, dir, name);
        Entry { attr: Attr { volatile, ..entry.attr }, ..entry }
    }

    /// Something has got a name.
    pub(crate) fn named(&self, dir: &Location, name: Name<'_>) {
        if self.export.options.ask.is_empty() {
            return;
        }
        let found = stat_entry(dir.fd(), name.as_bytes()).ok().filter(Stat::is_regular);
        if let Some(node) = found.and_then(|stat| self.known(&stat)) {
            self.meets(node, dir, name);
        }
    }

    fn meets(&self, node: NodeId, dir: &Location, name: Name<'_>) -> bool {
        let (volatile, news) = self.table.meets(node, self.matches(dir, name));
        if news {
            // What was learnt under another name was to be believed.
            self.key_of(node).iter().for_each(|key| self.export.changed_beside(key));
            self.notices.push(Notice::Data { node, start: 0, last: u64::MAX });
        }
        volatile
    }

    fn matches(&self, dir: &Location, name: Name<'_>) -> bool {
        let patterns = &self.export.options.ask;
        let matches = |text: Vec<u8>, of_paths| {
            let Ok(text) = CString::new(text) else { return false };
            patterns.iter().any(|it| it.is_of_paths() == of_paths && it.matches(&text))
        };
        matches(name.as_bytes().to_vec(), false)
            || (patterns.iter().any(Pattern::is_of_paths)
                // A directory that was moved out of the export, or was removed: better asked for than missed.
                && self.path_from_root(dir, name).is_none_or(|path| matches(path, true)))
    }

    fn path_from_root(&self, dir: &Location, name: Name<'_>) -> Option<Vec<u8>> {
        let own = &self.export.own;
        let (dir, root) = (own.path(dir.fd()).ok()?, own.path(self.export.root.fd()).ok()?);
        let below = dir.strip_prefix(root.as_slice()).filter(|_| is_beneath(&dir, &root))?;
        let path = [below, b"/", name.as_bytes()].concat();
        let begin = path.iter().take_while(|&&byte| byte == b'/').count();
        Some(path.get(begin..)?.to_vec())
    }
}

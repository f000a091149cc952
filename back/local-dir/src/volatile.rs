//! Volatile files, by name pattern: clients revalidate them at each use, because stores through shared
//! mappings raise no event.
//!
//! Names are matched when a session looks a file up. A file once looked up under a matching name stays
//! volatile for the session, because its mappings may persist. A file found only by handle, whose name
//! is unknown, is volatile too.

use std::ffi::CString;

use tombolo_core::fs::{Attr, Entry, FileType, Name, NodeId, Notice};
use tombolo_sys::pattern::Pattern;
use tombolo_sys::stat::{Stat, stat_entry};

use crate::attr::attr_of;
use crate::state::{Location, Session};
use crate::submounts::is_beneath;

impl Session {
    /// Converts the kernel's attributes of a node and adds its volatility.
    pub(crate) fn attr(&self, node: NodeId, stat: &Stat) -> Attr {
        Attr { volatile: stat.is_regular() && self.is_volatile(node), ..attr_of(stat) }
    }

    /// Returns `true` if clients must revalidate the file at each use.
    #[inline]
    pub(crate) fn is_volatile(&self, node: NodeId) -> bool {
        !self.export.options.ask.is_empty() && self.table.is_volatile(node)
    }

    /// Completes an entry with the volatility that its name implies.
    #[inline]
    pub(crate) fn with_volatility(&self, entry: Entry, dir: &Location, name: Name<'_>) -> Entry {
        if self.export.options.ask.is_empty() || entry.attr.file_type != FileType::Regular {
            return entry;
        }
        let volatile = self.note_name(entry.node, dir, name);
        Entry { attr: Attr { volatile, ..entry.attr }, ..entry }
    }

    /// Records that a file got this name, which may make it volatile.
    pub(crate) fn name_added(&self, dir: &Location, name: Name<'_>) {
        if self.export.options.ask.is_empty() {
            return;
        }
        let found = stat_entry(dir.fd(), name.as_bytes()).ok().filter(Stat::is_regular);
        if let Some(node) = found.and_then(|stat| self.node_of_stat(&stat)) {
            self.note_name(node, dir, name);
        }
    }

    fn note_name(&self, node: NodeId, dir: &Location, name: Name<'_>) -> bool {
        let (volatile, newly_volatile) = self.table.note_name(node, self.matches(dir, name));
        if newly_volatile {
            // Clients may have cached the file under another name, so its versions become invalid.
            self.key_of(node).iter().for_each(|key| self.export.changed_uncounted(key));
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
                // A directory that was moved out of the export or removed has no path, so a match is assumed.
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

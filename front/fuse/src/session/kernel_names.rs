//! Names that the kernel may have cached, for kernels that cannot invalidate all names at once.
//!
//! Linux before 6.16 has no INC_EPOCH, so that every name must be invalidated by itself. With
//! [`Coherence::Push`](super::Coherence::Push) the names in replies are recorded: those of files then stay
//! valid until a notice, and absent ones for [`ABSENCE`]. Names of directories are valid for a second, and
//! are not recorded, because INVAL_ENTRY of a directory detaches what is mounted in it.
//!
//! A fast path: without this file all names are valid for a second on such kernels, and absence is not
//! cached (docs/decisions/fuse-push.md).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use smallvec::SmallVec;
use tombolo_core::fs::{Entry, FileType, Name, NameBuf, NodeId};
use tombolo_core::lock;
use tombolo_sys::moment::Moment;
use tombolo_wire_fuse::flags::RENAME_EXCHANGE;
use tombolo_wire_fuse::{Decoded, Request};

use super::body::Body;

/// Lifetime of an absent name.
pub(super) const ABSENCE: Duration = Duration::from_secs(60);

/// Maximum number of absent names; further ones are not cached until earlier ones expire.
const ABSENT_MAX: usize = 1 << 16;
/// Minimum interval between removals of expired absent names, made while [`ABSENT_MAX`] are recorded.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of recorded names of one file; beyond it the kernel is made to drop the oldest.
const LINKS_MAX: usize = 64;

/// A directory and a name in it.
pub(crate) type DirName = (NodeId, NameBuf);

/// Names of files and absent names in the kernel's cache. May contain names that the kernel has dropped.
#[derive(Debug, Default)]
pub(crate) struct KernelNames(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<DirName, NodeId>,
    names: HashMap<NodeId, SmallVec<[DirName; 1]>>,
    absent: HashMap<DirName, Moment>,
    /// Time of the last removal of expired absent names.
    expired_at: Option<Moment>,
}

impl KernelNames {
    /// Returns the lifetime of a further absent name; `None` if too many are cached.
    pub(super) fn absence(&self) -> Option<Duration> {
        let mut table = lock(&self.0);
        table.remove_expired();
        (table.absent.len() < ABSENT_MAX).then_some(ABSENCE)
    }

    /// Records the names in a reply that is about to be written. Returns names that the kernel is to drop,
    /// since their files have too many.
    pub(super) fn record(&self, request: &Decoded<'_>, body: &Body) -> Vec<DirName> {
        let dir = NodeId(request.header.node.0);
        let mut table = lock(&self.0);
        let mut excess = Vec::new();
        let mut found = |name: Name<'_>, entry: &Entry| {
            let name = (dir, name.to_owned());
            match entry.attr.file_type {
                FileType::Directory => drop(table.remove(&name)),
                _ => excess.extend(table.insert(name, entry.node)),
            }
        };
        match (&request.request, body) {
            (
                Request::Lookup { name }
                | Request::Mknod { name, .. }
                | Request::Mkdir { name, .. }
                | Request::Symlink { name, .. }
                | Request::Create { name, .. }
                | Request::Link { new_name: name, .. },
                Body::Entry(entry) | Body::Created(entry, ..),
            ) => found(*name, entry),
            (_, Body::Page { page, .. }) => {
                for line in page.iter() {
                    if let (Some(entry), Ok(name)) = (line.entry, Name::new(line.name)) {
                        found(name, entry);
                    }
                }
            }
            (Request::Lookup { name }, Body::NoEntry) => table.insert_absent((dir, (*name).to_owned())),
            (Request::Unlink { name }, Body::Empty | Body::AttrChanged(_)) => {
                table.remove(&(dir, (*name).to_owned()));
            }
            (Request::Rename { name, new_parent, new_name, flags }, Body::Empty | Body::AttrChanged(_)) => {
                let new = (NodeId(new_parent.0), (*new_name).to_owned());
                table.rename((dir, (*name).to_owned()), new, flags & RENAME_EXCHANGE != 0);
            }
            _ => {}
        }
        excess
    }

    /// Removes the names of a node that the kernel has forgotten.
    pub(super) fn forget(&self, node: NodeId) {
        let mut table = lock(&self.0);
        for name in table.names.remove(&node).unwrap_or_default() {
            table.nodes.remove(&name);
        }
    }

    /// Returns `true` if the name is recorded.
    pub(super) fn contains(&self, name: &DirName) -> bool {
        let table = lock(&self.0);
        table.nodes.contains_key(name) || table.absent.contains_key(name)
    }

    /// Returns all names that may be valid.
    pub(crate) fn all(&self) -> Vec<DirName> {
        let mut table = lock(&self.0);
        table.absent.retain(|_, since| since.elapsed() < ABSENCE);
        table.nodes.keys().chain(table.absent.keys()).cloned().collect()
    }
}

impl Table {
    /// Inserts the name of a file. Returns a name that the file has to lose for it.
    fn insert(&mut self, name: DirName, node: NodeId) -> Option<DirName> {
        if self.nodes.get(&name) == Some(&node) {
            return None;
        }
        self.remove(&name);
        self.nodes.insert(name.clone(), node);
        let names = self.names.entry(node).or_default();
        names.push(name);
        let oldest = (names.len() > LINKS_MAX).then(|| names.remove(0))?;
        self.nodes.remove(&oldest);
        Some(oldest)
    }

    fn insert_absent(&mut self, name: DirName) {
        self.remove(&name);
        self.absent.insert(name, Moment::now());
    }

    /// Removes a name. Returns the file that had it.
    fn remove(&mut self, name: &DirName) -> Option<NodeId> {
        self.absent.remove(name);
        let node = self.nodes.remove(name)?;
        if let Some(names) = self.names.get_mut(&node) {
            names.retain(|other| other != name);
        }
        Some(node)
    }

    /// Follows a rename: the kernel moves its cached name, with its lifetime.
    fn rename(&mut self, old: DirName, new: DirName, is_exchange: bool) {
        let (moved, replaced) = (self.remove(&old), self.remove(&new));
        if let Some(node) = replaced.filter(|_| is_exchange) {
            self.insert(old, node);
        }
        if let Some(node) = moved {
            self.insert(new, node);
        }
    }

    fn remove_expired(&mut self) {
        let is_due = self.expired_at.is_none_or(|at| at.elapsed() >= EXPIRY_INTERVAL);
        if self.absent.len() >= ABSENT_MAX && is_due {
            self.absent.retain(|_, since| since.elapsed() < ABSENCE);
            self.expired_at = Some(Moment::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DirName {
        (NodeId::ROOT, Name::new(text.as_bytes()).expect("a name").to_owned())
    }

    fn table(names: &[(&str, u64)]) -> KernelNames {
        let all = KernelNames::default();
        for &(text, node) in names {
            lock(&all.0).insert(name(text), NodeId(node));
        }
        all
    }

    fn sorted(names: &KernelNames) -> Vec<DirName> {
        let mut all = names.all();
        all.sort();
        all
    }

    #[test]
    fn a_rename_moves_a_name_and_replaces_another() {
        let names = table(&[("a", 5), ("b", 6)]);
        lock(&names.0).rename(name("a"), name("b"), false);
        assert_eq!(sorted(&names), [name("b")]);
        names.forget(NodeId(6));
        assert_eq!(sorted(&names), [name("b")], "of node 5 now");
        names.forget(NodeId(5));
        assert!(sorted(&names).is_empty());
    }

    #[test]
    fn an_exchange_keeps_both_names() {
        let names = table(&[("a", 5), ("b", 6)]);
        lock(&names.0).rename(name("a"), name("b"), true);
        names.forget(NodeId(5));
        assert_eq!(sorted(&names), [name("a")]);
    }

    #[test]
    fn names_of_a_file_are_bounded() {
        let names = table(&[]);
        for number in 0..LINKS_MAX {
            assert_eq!(lock(&names.0).insert(name(&number.to_string()), NodeId(5)), None);
        }
        assert_eq!(lock(&names.0).insert(name("0"), NodeId(5)), None, "recorded already");
        assert_eq!(lock(&names.0).insert(name("more"), NodeId(5)), Some(name("0")));
        assert_eq!(names.all().len(), LINKS_MAX);
    }

    #[test]
    fn absent_names_are_bounded() {
        let names = table(&[]);
        for number in 0..ABSENT_MAX {
            assert_eq!(names.absence(), Some(ABSENCE));
            lock(&names.0).insert_absent(name(&number.to_string()));
        }
        assert_eq!(names.absence(), None);
        lock(&names.0).insert(name("7"), NodeId(5));
        assert_eq!(names.absence(), Some(ABSENCE), "that name is a file now");
        assert_eq!(names.all().len(), ABSENT_MAX);
    }
}

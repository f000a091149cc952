//! Directory entries, by name and by cookie.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tombolo_core::fs::NodeId;

/// An inode number. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ino(pub(crate) u64);

impl Ino {
    pub(crate) const ROOT: Self = Self(NodeId::ROOT.0);
}

/// The cookies of `.` and `..`; those of entries are larger.
pub(crate) const COOKIE_DOT: u64 = 1;
pub(crate) const COOKIE_DOT_DOT: u64 = 2;

/// A directory. Each entry has a cookie for as long as its name exists, and cookies are not reused, so a
/// listing continued at a cookie returns every entry that exists throughout exactly once.
#[derive(Debug)]
pub(crate) struct Directory {
    parent: Ino,
    by_name: HashMap<Arc<[u8]>, Slot>,
    by_cookie: BTreeMap<u64, Arc<[u8]>>,
    next_cookie: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    ino: Ino,
    cookie: u64,
}

impl Directory {
    pub(crate) fn new(parent: Ino) -> Self {
        Self { parent, by_name: HashMap::new(), by_cookie: BTreeMap::new(), next_cookie: COOKIE_DOT_DOT + 1 }
    }

    pub(crate) fn parent(&self) -> Ino {
        self.parent
    }

    pub(crate) fn set_parent(&mut self, parent: Ino) {
        self.parent = parent;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<Ino> {
        self.by_name.get(name).map(|slot| slot.ino)
    }

    /// Sets `name` to `ino`. An existing name keeps its position in listings.
    pub(crate) fn set(&mut self, name: &[u8], ino: Ino) {
        if let Some(slot) = self.by_name.get_mut(name) {
            slot.ino = ino;
            return;
        }
        let (name, cookie): (Arc<[u8]>, _) = (name.into(), self.next_cookie);
        self.next_cookie += 1;
        self.by_name.insert(name.clone(), Slot { ino, cookie });
        self.by_cookie.insert(cookie, name);
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        if let Some(slot) = self.by_name.remove(name) {
            self.by_cookie.remove(&slot.cookie);
        }
    }

    /// Returns the entries after `cookie`, in order.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Arc<[u8]>, Ino)> {
        let start = (std::ops::Bound::Excluded(cookie), std::ops::Bound::Unbounded);
        self.by_cookie
            .range(start)
            .filter_map(|(&cookie, name)| Some((cookie, name, self.by_name.get(name)?.ino)))
    }
}

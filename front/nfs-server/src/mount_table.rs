//! Mounts reported by clients, for DUMP (`showmount -a`); informational only.

use std::collections::VecDeque;
use std::sync::Mutex;
use tombolo_core::lock;

/// Maximum number of recorded mounts; clients that never unmount displace the oldest.
const MOUNTS_MAX: usize = 1024;

/// A reported mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub client: String,
    pub path: Vec<u8>,
}

/// The current mounts as reported.
#[derive(Debug, Default)]
pub(crate) struct MountTable(Mutex<VecDeque<Mounted>>);

impl MountTable {
    /// Records that a client has received the handle of `path`.
    pub fn add(&self, client: &str, path: &[u8]) {
        let mut mounts = lock(&self.0);
        mounts.retain(|mount| mount.client != client || mount.path != path);
        if mounts.len() >= MOUNTS_MAX {
            mounts.pop_front();
        }
        mounts.push_back(Mounted { client: client.to_owned(), path: path.to_owned() });
    }

    /// Removes a client's mount of `path`, as it has reported by UMNT.
    pub fn remove(&self, client: &str, path: &[u8]) {
        lock(&self.0).retain(|mount| mount.client != client || mount.path != path);
    }

    /// Removes all mounts of a client.
    pub fn remove_all(&self, client: &str) {
        lock(&self.0).retain(|mount| mount.client != client);
    }

    /// Returns all mounts, the oldest first.
    pub fn all(&self) -> Vec<Mounted> {
        lock(&self.0).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_keeps_each_mount_once_and_stays_bounded() {
        let table = MountTable::default();
        let client = |n: u32| format!("10.0.0.{n}");
        for _ in 0..2 {
            table.add(&client(1), b"/a");
            table.add(&client(1), b"/b");
            table.add(&client(2), b"/a");
        }
        assert_eq!(table.all().len(), 3);
        table.remove(&client(1), b"/a");
        table.remove_all(&client(2));
        assert_eq!(table.all(), [Mounted { client: client(1), path: b"/b".into() }]);
        (0..5_000).for_each(|n| table.add(&client(n), b"/c"));
        assert_eq!(table.all().len(), MOUNTS_MAX);
    }
}

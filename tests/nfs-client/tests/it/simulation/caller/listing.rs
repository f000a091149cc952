//! Listing directories.

use std::collections::BTreeMap;

use tombolo_core::fs::{Cookie, DirBudget, DirPage, File, OpenFlags};

use super::Caller;
use crate::simulation::model::Id;

/// Prefix of silly names.
pub const SILLY: &[u8] = b".nfs";

impl Caller {
    /// Lists some directory, a page at a time.
    pub(super) async fn list(&mut self) {
        let dir = self.some_directory();
        self.note(|| format!("list {dir}"));
        let node = self.directory(dir).await;
        let opened = self.fs.open(&self.cx, node, OpenFlags::READ | OpenFlags::DIRECTORY).resolve().await;
        let file = File { node, open: opened.expect("opened").open };
        let plus = self.rng.chance(500);
        let size_bytes = *self.rng.pick(&[200, 1_000, 30_000]);
        let found =
            self.entries_of(dir, file, DirBudget { size_bytes, entry_bytes: 24, align: 8, plus }).await;
        self.fs.release(&self.cx, file);
        let expected: BTreeMap<_, _> = self
            .model
            .entries(dir)
            .iter()
            .map(|(name, id)| (name.clone(), self.model.node(*id).fileid))
            .collect();
        assert_eq!(found, expected, "a listing of {dir}");
    }

    async fn entries_of(&mut self, dir: Id, file: File, budget: DirBudget) -> BTreeMap<Vec<u8>, u64> {
        let (mut found, mut cookie) = (BTreeMap::new(), Cookie::START);
        loop {
            let page = self.fs.readdir(&self.cx, file, cookie, DirPage::new(budget)).resolve().await;
            let page = page.expect("a page");
            for entry in page.iter() {
                cookie = entry.cookie;
                if let Some(entry) = entry.entry {
                    self.look_ups.push((entry.node, 1));
                }
                if entry.name == b"." || entry.name == b".." || entry.name.starts_with(SILLY) {
                    continue;
                }
                let before = found.insert(entry.name.to_vec(), entry.fileid);
                assert!(before.is_none(), "{} is listed twice", entry.name.escape_ascii());
                if let (Some(id), Some(entry)) = (self.model.find(dir, entry.name), entry.entry) {
                    self.check_attr("a listing", id, &entry.attr);
                }
            }
            if page.is_end() {
                return found;
            }
            assert!(!page.is_empty(), "a page that is empty and not the last");
        }
    }
}

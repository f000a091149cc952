//! Data of the local disk that a sync may yet fail to write.
//!
//! After a failed sync, the kernel treats unwritten pages as written: it may drop them, and the next sync
//! succeeds (fsync(2)). All data not proven stable are therefore rewritten before the next sync, with the
//! checksums from before the first: losses in between are reported at the next start.

use std::collections::HashMap;

use crate::journal::Batch;
use crate::sums::{Blocks, Key};

/// Written data that no sync has proved stable, with their checksums.
#[derive(Debug, Default)]
pub(crate) struct Unproven {
    /// `true` after a failed sync, until one succeeds.
    pub is_unwritten: bool,
    /// Checksums of blocks of the group being written, from before its first sync.
    pub sums: HashMap<Key, u32>,
    /// Size of the data that are also in the journal, in bytes.
    pub pieces_bytes: u64,
    /// Blocks of the data that are also in the journal, by the generation of their file.
    pieces: HashMap<u64, Blocks>,
}

impl Unproven {
    /// Merges a later group into a failed one that is retried.
    pub(crate) fn again(&mut self, batch: &mut Batch, later: Batch) {
        self.sums.retain(|key, _| !later.blocks.has(key));
        batch.absorb(later);
        if self.is_unwritten {
            self.pieces.values().for_each(|earlier| batch.blocks.absorb_earlier(earlier));
            batch.files.extend(batch.blocks.iter().map(|(key, file, _)| (key.0, file.clone())));
        }
    }

    /// Records a committed group. With `is_emptied`, the journal's data are in their files.
    pub(crate) fn committed(&mut self, batch: &Batch, added_bytes: u64, is_emptied: bool) {
        if is_emptied {
            (self.pieces_bytes, self.pieces) = (0, HashMap::new());
            return;
        }
        self.pieces_bytes += added_bytes;
        let is_there = |generation: &u64| batch.files.contains_key(generation);
        for (key, file, span) in batch.blocks.iter().filter(|(key, ..)| !is_there(&key.0)) {
            self.pieces.entry(key.0).or_default().insert(*key, file, span);
        }
        // `pieces` must not reference files that are gone: a doomed file is removed with its last reference.
        let gone = batch.gone.iter().map(|file| file.generation);
        for generation in gone.chain(batch.files.keys().copied()) {
            self.pieces.remove(&generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;
    use std::time::SystemTime;

    use tombolo_back_memory::Memory;
    use tombolo_core::block_on;
    use tombolo_core::fs::{Client, Export, PermissionCheck};

    use crate::extents::Extents;
    use crate::journal::{Batch, Journal};
    use crate::shared::SESSION;
    use crate::sums::Blocks;

    const LEN: u64 = 100_000;

    /// Returns a data file's modification time and the number of blocks reported lost, after a failed sync,
    /// `meanwhile` and a retry.
    fn after_a_failed_sync(meanwhile: impl FnOnce(&File)) -> (SystemTime, usize) {
        let dir = tempfile::tempdir().expect("a directory");
        let client = Client { session: SESSION, label: "test".into(), checks: PermissionCheck::BackEnd };
        let open = || {
            let below = Memory::default().attach(&client).expect("attach");
            Journal::open(below, dir.path()).expect("a journal")
        };
        let (journal, _, files) = open();
        let (file, mut extents) = (files.file(1), Extents::default());
        file.write(0, vec![7; LEN as usize].into()).expect("written");
        let data = File::options().write(true).open(dir.path().join("data/1")).expect("it is there");
        data.set_modified(SystemTime::UNIX_EPOCH).expect("set");
        file.is_failing.store(true, Ordering::Relaxed);
        let mut batch = Batch { change: 1, ..Batch::default() };
        batch.extents.push((1, extents.insert(0..LEN)));
        batch.blocks = Blocks::of(&file, &extents, &(0..LEN));
        batch.files.insert(1, file);
        let ticket = journal.add(batch);
        block_on(journal.stable(ticket)).expect_err("the disk is bad");
        meanwhile(&data);
        while journal.check().is_err() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(journal);
        let (_journal, kept, _) = open();
        let modified = data.metadata().and_then(|data| data.modified()).expect("a time");
        (modified, kept.torn.values().map(Vec::len).sum())
    }

    #[test]
    fn after_a_failed_sync_data_are_written_again() {
        let (modified, lost) = after_a_failed_sync(|_| {});
        assert!(modified > SystemTime::UNIX_EPOCH, "the next sync has nothing to write");
        assert_eq!(lost, 0);
    }

    #[test]
    fn data_lost_after_a_failed_sync_are_reported() {
        let drop_one = |data: &File| data.write_all_at(&[0; 4096], 70_000).expect("as it was before");
        assert_eq!(after_a_failed_sync(drop_one).1, 1);
    }
}

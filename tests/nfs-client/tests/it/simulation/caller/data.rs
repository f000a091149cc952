//! Opening, writing, reading, syncing and closing.

use tombolo_core::Error;
use tombolo_core::fs::{
    Create, Exclusive, File, LockOwner, Mode, Name, NodeId, OpenFlags, SetAttr, SyncScope, Write,
};
use tombolo_mem::{Buffer, Source};
use tombolo_nfs_client_tests::wire::noise;

use super::{Caller, Open, all, mode};
use crate::simulation::model::{Id, Kind};

/// Maximum number of open files.
const OPEN_MAX: usize = 4;
/// Maximum length of a file, a read or a write, in bytes.
const SIZE_MAX: u64 = 40_000;
const TRANSFER_MAX: usize = 12_000;

impl Caller {
    /// Creates or opens some file.
    pub(super) async fn open_some(&mut self) {
        if self.open.len() >= OPEN_MAX {
            return self.close().await;
        }
        let (dir, name) = self.some_name();
        match self.model.find(dir, name).map(|id| (id, self.model.node(id).kind.clone())) {
            None => self.create(dir, name).await,
            Some((id, Kind::File(_))) => self.open_existing(dir, name, id).await,
            Some(_) => self.look().await,
        }
    }

    fn some_flags(&mut self) -> OpenFlags {
        let append = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND;
        let both = OpenFlags::READ | OpenFlags::WRITE;
        *self.rng.pick(&[both, both, append, OpenFlags::READ, OpenFlags::WRITE])
    }

    async fn create(&mut self, dir: Id, name: &[u8]) {
        let flags = self.some_flags();
        let exclusive = if self.rng.chance(500) { Exclusive::Yes } else { Exclusive::No };
        self.note(|| format!("create {} in {dir}, {exclusive:?}, {flags:?}", name.escape_ascii()));
        let parent = self.directory(dir).await;
        let how = Create { mode: mode(0o640), flags, exclusive };
        let created =
            self.fs.create(&self.cx, parent, Name::new(name).expect("a name"), &how).resolve().await;
        // Includes exclusive creates whose reply was lost together with the server's reply cache.
        let created = created.unwrap_or_else(|error| panic!("create: {error}"));
        let id = self.model.make(dir, name, Kind::File(Vec::new()), created.entry.attr.fileid, 0o640);
        self.check_attr("create", id, &created.entry.attr);
        self.opened(id, File { node: created.entry.node, open: created.open }, flags);
    }

    async fn open_existing(&mut self, dir: Id, name: &[u8], id: Id) {
        let mut flags = self.some_flags();
        if flags.contains(OpenFlags::WRITE) && self.rng.chance(150) {
            flags |= OpenFlags::TRUNCATE;
        }
        self.note(|| format!("open {} in {dir}, {flags:?}", name.escape_ascii()));
        let parent = self.directory(dir).await;
        if self.rng.chance(200) {
            let how = Create { mode: mode(0o640), flags, exclusive: Exclusive::Yes };
            let name = Name::new(name).expect("a name");
            match self.fs.create(&self.cx, parent, name, &how).resolve().await {
                Err(Error::Exists) => return,
                other => panic!("create of what exists: {other:?}"),
            }
        }
        let entry = self.fs.lookup(&self.cx, parent, Name::new(name).expect("a name")).resolve().await;
        let node = entry.expect("it is there").node;
        let opened = self.fs.open(&self.cx, node, flags).resolve().await.expect("opened");
        if flags.contains(OpenFlags::TRUNCATE) {
            self.model.content_mut(id).clear();
        }
        if let Some(attr) = opened.attr {
            self.check_attr("open", id, &attr);
        }
        self.opened(id, File { node, open: opened.open }, flags);
    }

    fn opened(&mut self, id: Id, file: File, flags: OpenFlags) {
        self.model.opened(id);
        self.open.push(Open { id, file, flags });
    }

    fn some_open(&mut self, wanted: OpenFlags) -> Option<Open> {
        let suiting: Vec<_> = self.open.iter().filter(|open| open.flags.contains(wanted)).copied().collect();
        (!suiting.is_empty()).then(|| *self.rng.pick(&suiting))
    }

    fn some_bytes(&mut self) -> Vec<u8> {
        let most = *self.rng.pick(&[10, 600, 5_000, TRANSFER_MAX]);
        noise(self.rng.next_u64(), self.rng.clone().up_to(most))
    }

    pub(super) async fn write(&mut self) {
        let Some(open) = self.some_open(OpenFlags::WRITE) else { return self.open_some().await };
        let bytes = self.some_bytes();
        let size = self.model.content(open.id).len() as u64;
        let appends = open.flags.contains(OpenFlags::APPEND);
        let offset = match self.rng.below(3) {
            _ if appends && size > SIZE_MAX => return,
            0 => size.min(SIZE_MAX),
            _ => self.rng.below(size.min(SIZE_MAX) + 3_000),
        };
        let at = if appends { size } else { offset };
        self.note(|| format!("write of {} bytes at {at}, {open:?}", bytes.len()));
        self.put(open.id, at, &bytes);
        self.write_at(open.file, offset, bytes).await;
    }

    /// Writes several ranges concurrently.
    pub(super) async fn write_several(&mut self) {
        let Some(open) = self.some_open(OpenFlags::WRITE) else { return };
        if open.flags.contains(OpenFlags::APPEND) {
            return;
        }
        let mut offset = self.rng.below(3_000);
        let mut writes = Vec::new();
        for _ in 0..self.rng.up_to(4) {
            let bytes = noise(self.rng.next_u64(), self.rng.clone().up_to(3_000));
            self.rng.next_u64();
            let (at, len) = (offset, bytes.len() as u64);
            offset += len + self.rng.below(500);
            writes.push((at, bytes));
        }
        self.note(|| format!("{} writes from {} to {offset}, {open:?}", writes.len(), writes[0].0));
        for (at, bytes) in &writes {
            self.put(open.id, *at, bytes);
        }
        if self.rng.chance(500) {
            writes.reverse();
        }
        let how = |offset| Write { offset, retainable: true, ..Write::default() };
        let answers = writes.into_iter().map(|(at, bytes)| {
            let len = bytes.len();
            let answer = self.fs.write(&self.cx, open.file, &how(at), Source::from(bytes));
            let written: std::pin::Pin<Box<dyn Future<Output = bool> + Send>> =
                Box::pin(async move { answer.resolve().await.expect("written").count == len });
            written
        });
        let answers = answers.collect();
        assert!(all(answers).await.into_iter().all(|whole| whole), "a write that was cut");
    }

    async fn write_at(&mut self, file: File, offset: u64, bytes: Vec<u8>) {
        let len = bytes.len();
        let retainable = self.rng.chance(500);
        let mut buffer = Buffer::new(len);
        buffer.as_mut_slice().expect("ours").copy_from_slice(&bytes);
        let how = Write { offset, retainable, ..Write::default() };
        let written = self.fs.write(&self.cx, file, &how, buffer.source(0..len)).resolve().await;
        assert_eq!(written.expect("written").count, len, "a write that was cut");
        if !retainable {
            // The memory is the caller's again.
            buffer.sink(0..len).write_at(0, &vec![0xee; len]);
        }
        self.world.lent.lock().expect("one thread").push(buffer);
    }

    fn put(&mut self, id: Id, offset: u64, bytes: &[u8]) {
        let content = self.model.content_mut(id);
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        content.resize(content.len().max(end), 0);
        content[start..end].copy_from_slice(bytes);
    }

    pub(super) async fn read(&mut self) {
        let Some(open) = self.some_open(OpenFlags::READ) else { return self.open_some().await };
        let size = self.model.content(open.id).len() as u64;
        let (from_start, wanted) = (self.rng.chance(300), self.rng.up_to(TRANSFER_MAX));
        let mut offset = if from_start { 0 } else { self.rng.below(size + 100) };
        // Sometimes sequentially, as a program that reads a whole file.
        let pieces = if from_start { 6 } else { 1 };
        for _ in 0..pieces {
            self.note(|| format!("read of {wanted} bytes at {offset}, {open:?}"));
            let count = self.read_at(open, offset, wanted).await;
            offset += count as u64;
            if count < wanted {
                break;
            }
        }
    }

    async fn read_at(&mut self, open: Open, offset: u64, wanted: usize) -> usize {
        let buffer = Buffer::new(wanted);
        let into = buffer.sink(0..wanted);
        let done = self.fs.read(&self.cx, open.file, offset, into).resolve().await.expect("read");
        let content = self.model.content(open.id);
        let rest = content.get(offset as usize..).unwrap_or_default();
        let expected = &rest[..rest.len().min(wanted)];
        let found = buffer.source(0..done.count).to_vec(usize::MAX);
        assert_eq!(found.len(), expected.len(), "a read of {wanted} at {offset} of {} bytes", content.len());
        if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
            panic!(
                "a read of {wanted} at {offset}: wrong from byte {} on, of {}",
                offset + at as u64,
                content.len()
            );
        }
        assert!(done.eof || done.count == wanted, "a short read that is not the end");
        done.count
    }

    pub(super) async fn truncate(&mut self) {
        let Some(open) = self.some_open(OpenFlags::WRITE) else { return };
        let size = self.rng.below(SIZE_MAX / 2);
        let file = self.rng.chance(500).then_some(open.file);
        self.note(|| format!("truncate to {size}, {open:?}"));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let set = self.fs.setattr(&self.cx, open.file.node, file, &set).resolve().await;
        self.model.content_mut(open.id).resize(size as usize, 0);
        self.check_attr("truncate", open.id, &set.expect("truncated").0);
    }

    pub(super) async fn chmod(&mut self) {
        let Some(open) = self.some_open(OpenFlags::empty()) else { return };
        let mode = *self.rng.pick(&[0o600, 0o644, 0o640]);
        self.note(|| format!("chmod to {mode:o}, {open:?}"));
        let set = SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() };
        let set = self.fs.setattr(&self.cx, open.file.node, None, &set).resolve().await;
        self.model.node_mut(open.id).mode = mode;
        self.check_attr("chmod", open.id, &set.expect("changed").0);
    }

    pub(super) async fn fsync(&mut self) {
        let Some(open) = self.some_open(OpenFlags::WRITE) else { return };
        self.note(|| format!("fsync, {open:?}"));
        let what = *self.rng.pick(&[SyncScope::All, SyncScope::Data]);
        self.fs.fsync(&self.cx, open.file, what).resolve().await.expect("synced");
        self.check_stable("fsync", open.id);
    }

    /// Asserts that a file's content would survive any failure of the server.
    fn check_stable(&self, what: &str, id: Id) {
        let surely = self.world.disk.surely(NodeId(self.model.node(id).fileid));
        let surely = surely.unwrap_or_else(|| panic!("{what}: the file is gone"));
        let content = self.model.content(id);
        if &surely != content {
            let at = surely.iter().zip(content).position(|(found, expected)| found != expected);
            let (found, expected) = (surely.len(), content.len());
            panic!("{what}: of {expected} bytes {found} are stable, and right up to {at:?}");
        }
    }

    /// Closes some file; its data must then be stable if that was requested.
    pub(super) async fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let index = self.rng.below(self.open.len() as u64) as usize;
        let open = self.open.swap_remove(index);
        let flushes = self.rng.chance(800);
        self.note(|| format!("close, flushing: {flushes}, {open:?}"));
        if flushes {
            self.fs.flush(&self.cx, open.file, LockOwner(self.number)).resolve().await.expect("flushed");
            self.check_stable("close", open.id);
        }
        self.fs.release(&self.cx, open.file);
        self.fs.forget(&self.cx, &[(open.file.node, 1)]);
        self.model.closed(open.id);
    }
}

//! Two machines that alternate at one file: an open must show the other's closed writes (close-to-open).

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tombolo_core::Ctx;
use tombolo_core::fs::{File, FileSystem, LockOwner, NodeId, SetAttr, Write};
use tombolo_mem::{Buffer, Source};
use tombolo_nfs_client_tests::wire::{Network, Rng, noise};
use tombolo_test_support::{name, plain};

use crate::simulation::caller::SESSION;

/// Maximum length of the file, in bytes.
const SIZE_MAX: usize = 20_000;

/// Expected content of the shared file and the number of the current turn.
#[derive(Default)]
pub struct Baton(Mutex<BatonState>);

#[derive(Default)]
struct BatonState {
    number: u64,
    content: Vec<u8>,
}

impl Baton {
    fn turn(&self) -> MutexGuard<'_, BatonState> {
        self.0.lock().expect("one thread")
    }
}

/// One of two machines.
pub struct SecondMachine {
    pub network: Network,
    pub fs: Arc<dyn FileSystem>,
    pub rng: Rng,
    pub baton: Arc<Baton>,
    /// 0 or 1.
    pub machine: u64,
}

impl SecondMachine {
    /// Performs this machine's turns.
    pub async fn run(mut self, turns: u64) {
        for turn in 0..turns {
            let own = turn * 2 + self.machine;
            while self.baton.turn().number != own {
                self.network.sleep(Duration::from_millis(50)).await;
            }
            self.visit().await;
            self.baton.turn().number += 1;
        }
    }

    /// Opens the file, verifies the other machine's content, and replaces it.
    async fn visit(&mut self) {
        let cx = Ctx::root(SESSION);
        let created = self.fs.create(&cx, NodeId::ROOT, name("visited"), &plain()).resolve().await;
        let created = created.expect("the file");
        let file = File { node: created.entry.node, open: created.open };
        let mut content = self.baton.turn().content.clone();
        let machine = self.machine;
        self.network.note(200, || format!("machine {machine} opens a file of {} bytes", content.len()));
        assert_eq!(created.entry.attr.size, content.len() as u64, "machine {machine}: the size at an open");
        let buffer = Buffer::new(SIZE_MAX + 1);
        let read = self.fs.read(&cx, file, 0, buffer.sink(0..SIZE_MAX + 1)).resolve().await.expect("read");
        let found = buffer.source(0..read.count).to_vec(usize::MAX);
        let wrong = found.iter().zip(&content).position(|(found, expected)| found != expected);
        assert!(found == content, "machine {machine}: not what the other closed, from {wrong:?} on");
        self.change(&cx, file, &mut content).await;
        self.fs.flush(&cx, file, LockOwner(machine)).resolve().await.expect("flushed");
        self.fs.release(&cx, file);
        self.fs.forget(&cx, &[(file.node, 1)]);
        self.baton.turn().content = content;
    }

    async fn change(&mut self, cx: &Ctx, file: File, content: &mut Vec<u8>) {
        if self.rng.chance(300) {
            let size = self.rng.below(SIZE_MAX as u64 / 2);
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.fs.setattr(cx, file.node, Some(file), &set).resolve().await.expect("truncated");
            content.resize(size as usize, 0);
        }
        for _ in 0..self.rng.below(4) {
            let len = self.rng.up_to(6_000);
            let offset = self.rng.below((content.len().min(SIZE_MAX - len) + 1) as u64);
            let bytes = noise(self.rng.next_u64(), len);
            let end = offset as usize + len;
            content.resize(content.len().max(end), 0);
            content[offset as usize..end].copy_from_slice(&bytes);
            let how = Write { offset, retainable: true, ..Write::default() };
            let written =
                self.fs.write(cx, file, &how, Source::from(bytes)).resolve().await.expect("written");
            assert_eq!(written.count, len);
        }
    }
}

//! Random operations on files, over links that are cut now and then, against the bytes they should have.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::{LinkLossPolicy, VrpcFileSystem};
use tombolo_core::fs::{File, FileSystem, OpenFlags, SetAttr, SyncScope, Write};
use tombolo_layer_basic::delay;
use tombolo_mem::Source;
use tombolo_vrpc_tests::site::{Plan, Site};
use tombolo_vrpc_tests::test_host::{client, root};

use super::doubles::{create, name, read};

const FILES: usize = 4;
const STEPS: usize = 1500;
const SIZE_MAX: usize = 100 << 10;

/// A generator of numbers (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

struct Model<'a> {
    fs: &'a VrpcFileSystem,
    files: Vec<(File, Vec<u8>)>,
    numbers: Numbers,
}

impl Model<'_> {
    fn step(&mut self, step: usize) {
        let (which, action) = (self.numbers.below(FILES), self.numbers.below(16));
        let (file, content) = &mut self.files[which];
        match action {
            0..8 => {
                let len = [4096, 10, 600, 5000, 64 << 10, 70 << 10][self.numbers.below(6)];
                let at = self.numbers.below(SIZE_MAX - len);
                let bytes = vec![step as u8; len];
                let how = Write { offset: at as u64, ..Write::default() };
                let written = self.fs.write(&root(), *file, &how, Source::from(bytes.clone())).wait();
                assert_eq!(written.expect("written").count, len);
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&bytes);
            }
            8..11 => assert!(read(self.fs, *file) == *content, "step {step}, file {which}"),
            11 => {
                let attr = self.fs.getattr(&root(), file.node, None).wait().expect("attributes");
                assert_eq!(attr.size, content.len() as u64, "step {step}, file {which}");
            }
            12 => {
                let size = self.numbers.below(SIZE_MAX);
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                self.fs.setattr(&root(), file.node, Some(*file), &set).wait().expect("set");
                content.resize(size, 0);
            }
            13 => self.fs.fsync(&root(), *file, SyncScope::Data).wait().expect("synced"),
            14 => self.fs.flush(&root(), *file, super::OWNER).wait().expect("closed"),
            _ => {
                self.fs.release(&root(), *file);
                let flags = OpenFlags::READ | OpenFlags::WRITE;
                file.open = self.fs.open(&root(), file.node, flags).wait().expect("opened").open;
            }
        }
    }
}

fn run(export: Arc<dyn tombolo_core::fs::Export>, cut_every: u64, seed: u64) {
    let site = Site::serving(export, Plan { cut_every, ..Plan::default() });
    let export = site.export(LinkLossPolicy::Hard).with_writes_behind(true);
    let fs = export.attach_session(&client()).expect("a session");
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let files = (0..FILES).map(|number| (create(&fs, &format!("file{number}"), flags), Vec::new())).collect();
    let mut model = Model { fs: &fs, files, numbers: Numbers(seed) };
    (0..STEPS).for_each(|step| model.step(step));
    for (number, (file, content)) in model.files.iter().enumerate() {
        assert!(read(&fs, *file) == *content, "file {number} at the end");
        let entry = fs.lookup(&root(), tombolo_core::fs::NodeId::ROOT, name(&format!("file{number}")));
        assert_eq!(entry.wait().expect("an entry").attr.size, content.len() as u64);
    }
    assert!(cut_every == 0 || site.cuts() > 0);
}

#[test]
fn files_have_the_bytes_written() {
    run(Arc::new(Memory::default()), 0, 0x9e37_79b9);
}

#[test]
fn files_have_the_bytes_written_over_lost_links() {
    for (cut_every, seed) in [(61, 1), (64, 2), (103, 3)] {
        run(Arc::new(Memory::default()), cut_every, seed);
    }
}

#[test]
fn files_of_a_slow_server_have_the_bytes_written() {
    let delayed =
        delay::over(Arc::new(Memory::default()), std::time::Duration::from_micros(20)).expect("a timer");
    run(Arc::new(delayed), 97, 4);
}

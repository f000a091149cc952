//! Limits, and the release of all resources.

use std::sync::Arc;

use tombolo_back_memory::{Memory, Options};
use tombolo_core::fs::{
    Client, Create, Export, File, FileSystem, Name, NewMode, NodeId, OpenFlags, PermissionCheck, Write,
};
use tombolo_core::{Ctx, Error, Limits, SessionId};
use tombolo_mem::Source;

struct Fixture {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
}

fn fixture(memory: &Memory) -> Fixture {
    let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller };
    Fixture { fs: memory.attach(&client).unwrap(), cx: Ctx::root(client.session) }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

impl Fixture {
    fn create(&self, text: &str) -> Result<File, Error> {
        let how = Create { flags: OpenFlags::READ | OpenFlags::WRITE, ..Create::default() };
        let created = self.fs.create(&self.cx, NodeId::ROOT, name(text), &how).wait()?;
        Ok(File { node: created.entry.node, open: created.open })
    }

    fn write(&self, file: File, offset: u64, len: usize) -> Result<usize, Error> {
        let how = Write { offset, ..Write::default() };
        self.fs.write(&self.cx, file, &how, Source::from(vec![1; len])).wait().map(|written| written.count)
    }

    fn mkdir(&self, text: &str) -> Result<NodeId, Error> {
        let made = self.fs.mkdir(&self.cx, NodeId::ROOT, name(text), NewMode::default()).wait()?;
        Ok(made.entry.node)
    }

    fn blocks_free(&self) -> u64 {
        self.fs.statfs(&self.cx, NodeId::ROOT).wait().unwrap().blocks_free
    }
}

#[test]
fn full_tree_is_freed_with_last_holder() {
    let memory = Memory::new(Options { size_limit_bytes: 10 * 4096, ..Options::default() });
    let fixture = fixture(&memory);
    let file = fixture.create("file").unwrap();
    assert_eq!(fixture.write(file, 0, 100_000).unwrap(), 10 * 4096);
    assert!(matches!(fixture.write(file, 10 * 4096, 1), Err(Error::NoSpace)));
    assert_eq!(fixture.write(file, 0, 4096).unwrap(), 4096, "what is there already needs no space");
    assert_eq!(fixture.blocks_free(), 0);

    fixture.fs.unlink(&fixture.cx, NodeId::ROOT, name("file")).wait().unwrap();
    assert_eq!(fixture.blocks_free(), 0, "the file is open");
    fixture.fs.release(&fixture.cx, file);
    assert_eq!(fixture.blocks_free(), 0, "the node is known");
    fixture.fs.forget(&fixture.cx, &[(file.node, 1)]);
    assert_eq!(fixture.blocks_free(), 10);
}

#[test]
fn a_session_that_ends_lets_go_of_everything() {
    let memory = Memory::new(Options { size_limit_bytes: 10 * 4096, ..Options::default() });
    let (stays, ends) = (fixture(&memory), fixture(&memory));
    let file = ends.create("file").unwrap();
    ends.write(file, 0, 4096).unwrap();
    ends.fs.unlink(&ends.cx, NodeId::ROOT, name("file")).wait().unwrap();
    assert_eq!(stays.blocks_free(), 9);
    drop(ends);
    assert_eq!(stays.blocks_free(), 10);
}

#[test]
fn nodes_are_limited_and_come_back() {
    let memory = Memory::new(Options { node_limit: 3, ..Options::default() });
    let fixture = fixture(&memory);
    let first = fixture.mkdir("first").unwrap();
    fixture.mkdir("second").unwrap();
    assert!(matches!(fixture.mkdir("third"), Err(Error::NoSpace)));
    let stat = fixture.fs.statfs(&fixture.cx, NodeId::ROOT).wait().unwrap();
    assert_eq!((stat.files, stat.files_free), (3, 0));
    fixture.fs.rmdir(&fixture.cx, NodeId::ROOT, name("first")).wait().unwrap();
    fixture.fs.forget(&fixture.cx, &[(first, 1)]);
    fixture.mkdir("third").unwrap();
}

#[test]
fn names_of_a_file_are_limited() {
    let memory = Memory::new(Options { link_limit: 2, ..Options::default() });
    let fixture = fixture(&memory);
    let file = fixture.create("one").unwrap();
    fixture.fs.link(&fixture.cx, file.node, NodeId::ROOT, name("two")).wait().unwrap();
    let third = fixture.fs.link(&fixture.cx, file.node, NodeId::ROOT, name("three")).wait();
    assert!(matches!(third, Err(Error::TooManyLinks)));
}

#[test]
fn session_limit_does_not_affect_other_sessions() {
    let session_limits = Limits { nodes: 2, opens: 1, ..Limits::default() };
    let memory = Memory::new(Options { session_limits, ..Options::default() });
    let (greedy, other) = (fixture(&memory), fixture(&memory));
    let file = greedy.create("file").unwrap();
    let again = greedy.fs.open(&greedy.cx, file.node, OpenFlags::READ).wait();
    assert!(matches!(again, Err(Error::TooManyOpen)));
    assert!(matches!(greedy.create("more"), Err(Error::TooManyOpen)));
    greedy.mkdir("dir").unwrap();
    assert!(matches!(greedy.mkdir("too-many"), Err(Error::NoMemory)));
    let missing = other.fs.lookup(&other.cx, NodeId::ROOT, name("too-many")).wait();
    assert!(matches!(missing, Err(Error::NotFound)), "what was refused was not made");
    other.mkdir("others").unwrap();

    greedy.fs.release(&greedy.cx, file);
    greedy.fs.forget(&greedy.cx, &[(file.node, 1)]);
    greedy.create("more").unwrap();
}

#[test]
fn handles_of_another_tree_are_stale() {
    let (one, another) = (Memory::default(), Memory::default());
    let (one_fixture, other_fixture) = (fixture(&one), fixture(&another));
    other_fixture.mkdir("dir").unwrap();
    let dir = one_fixture.mkdir("dir").unwrap();
    let handles = one_fixture.fs.persistent_handles().unwrap();
    let handle = handles.handle_of(&one_fixture.cx, dir).wait().unwrap();
    let elsewhere = other_fixture.fs.persistent_handles().unwrap();
    assert!(matches!(elsewhere.resolve(&other_fixture.cx, &handle).wait(), Err(Error::Stale)));
}

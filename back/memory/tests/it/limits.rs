//! Limits, and the release of all resources.

use tombolo_back_memory::{Memory, Options};
use tombolo_core::fs::{NodeId, OpenFlags};
use tombolo_core::{Error, Limits};
use tombolo_test_support::{Session, plain};

fn blocks_free(session: &Session) -> u64 {
    session.fs.statfs(&session.cx, NodeId::ROOT).wait().unwrap().blocks_free
}

#[test]
fn full_tree_is_freed_with_last_holder() {
    let memory = Memory::new(Options { size_limit_bytes: 10 * 4096, ..Options::default() });
    let fixture = Session::attach(&memory);
    let file = fixture.file("file");
    assert_eq!(fixture.write(file, 0, &vec![1; 100_000]).unwrap(), 10 * 4096);
    assert!(matches!(fixture.write(file, 10 * 4096, &[1; 1]), Err(Error::NoSpace)));
    assert_eq!(fixture.write(file, 0, &[1; 4096]).unwrap(), 4096, "what is there already needs no space");
    assert_eq!(blocks_free(&fixture), 0);

    fixture.unlink("file").unwrap();
    assert_eq!(blocks_free(&fixture), 0, "the file is open");
    fixture.release(file);
    assert_eq!(blocks_free(&fixture), 0, "the node is known");
    fixture.forget(file.node);
    assert_eq!(blocks_free(&fixture), 10);
}

#[test]
fn a_session_that_ends_lets_go_of_everything() {
    let memory = Memory::new(Options { size_limit_bytes: 10 * 4096, ..Options::default() });
    let (stays, ends) = (Session::attach(&memory), Session::attach(&memory));
    let file = ends.file("file");
    ends.write(file, 0, &[1; 4096]).unwrap();
    ends.unlink("file").unwrap();
    assert_eq!(blocks_free(&stays), 9);
    drop(ends);
    assert_eq!(blocks_free(&stays), 10);
}

#[test]
fn nodes_are_limited_and_come_back() {
    let memory = Memory::new(Options { node_limit: 3, ..Options::default() });
    let fixture = Session::attach(&memory);
    let first = fixture.dir("first");
    fixture.dir("second");
    assert!(matches!(fixture.mkdir("third"), Err(Error::NoSpace)));
    let stat = fixture.fs.statfs(&fixture.cx, NodeId::ROOT).wait().unwrap();
    assert_eq!((stat.files, stat.files_free), (3, 0));
    fixture.rmdir("first").unwrap();
    fixture.forget(first);
    fixture.dir("third");
}

#[test]
fn names_of_a_file_are_limited() {
    let memory = Memory::new(Options { link_limit: 2, ..Options::default() });
    let fixture = Session::attach(&memory);
    let file = fixture.file("one");
    fixture.link(file.node, "two").unwrap();
    let third = fixture.link(file.node, "three");
    assert!(matches!(third, Err(Error::TooManyLinks)));
}

#[test]
fn session_limit_does_not_affect_other_sessions() {
    let session_limits = Limits { nodes: 2, opens: 1, ..Limits::default() };
    let memory = Memory::new(Options { session_limits, ..Options::default() });
    let (greedy, other) = (Session::attach(&memory), Session::attach(&memory));
    let file = greedy.file("file");
    assert!(matches!(greedy.open(file.node, OpenFlags::READ), Err(Error::TooManyOpen)));
    assert!(matches!(greedy.file_as("more", &plain()), Err(Error::TooManyOpen)));
    greedy.dir("dir");
    assert!(matches!(greedy.mkdir("too-many"), Err(Error::NoMemory)));
    assert!(matches!(other.lookup("too-many"), Err(Error::NotFound)), "what was refused was not made");
    other.dir("others");

    greedy.release(file);
    greedy.forget(file.node);
    greedy.file("more");
}

#[test]
fn handles_of_another_tree_are_stale() {
    let [one, other] = [(); 2].map(|()| Session::attach(&Memory::default()));
    other.dir("dir");
    let handle = one.handle_of(one.dir("dir")).unwrap();
    assert!(matches!(other.resolve(&handle), Err(Error::Stale)));
}

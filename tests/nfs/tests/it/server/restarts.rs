//! Server state across restarts.

use std::path::Path;

use tombolo_host_runtime::signing_keys::KeyId;
use tombolo_host_service::handle_keys;
use tombolo_host_service::state_dir::{ServerFiles, StateDir};
use tombolo_nfs_tests::client::{Expect, mode};
use tombolo_nfs_tests::fixture::{Fixture, local_dir, removed_and_open, scratch};
use tombolo_nfs_tests::test_server::{PATH, Plan};
use tombolo_test_support::until;
use tombolo_wire_nfs3::args::{CreateHow, StableHow};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, CreateVerifier, FileHandleBuf, Status};

/// A tree, and the state directory of its server.
struct Site {
    tree: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        Self { tree: scratch(), state: scratch() }
    }

    fn files(&self) -> ServerFiles {
        let state = StateDir::open(&self.state.path().join("state")).expect("the state directory");
        state.files_of("server").expect("the server's files")
    }

    /// Starts a server over the site's directories.
    fn start(&self) -> Fixture {
        Fixture::new(self.plan(self.tree.path()), None)
    }

    fn plan(&self, tree: &Path) -> Plan {
        let keys = handle_keys::open(&self.files()).expect("the keys");
        Plan { keys, ..Plan::over(local_dir(tree)) }
    }

    /// Creates files of some kinds; returns handles and contents.
    fn fill(&self, fixture: &Fixture) -> Vec<(FileHandleBuf, Vec<u8>)> {
        let dir = fixture.dir("dir");
        let inner = fixture.file_in(&dir, "inner", b"deep");
        vec![(fixture.file("file", b"contents"), b"contents".to_vec()), (inner, b"deep".to_vec())]
    }
}

#[test]
fn handles_are_good_after_a_restart() {
    let site = Site::new();
    let before = site.start();
    let files = site.fill(&before);
    let (root, dir) = (before.root, before.nfs.lookup(&before.root, b"dir").done().handle);
    before.nfs.rename(&before.root, b"file", &dir, b"moved").done();
    drop(before);
    let after = site.start();
    for (file, contents) in files {
        assert_eq!(after.contents(&file), contents);
    }
    assert_eq!(after.nfs.lookup(&root, b"dir").done().handle, dir, "the same bytes");
    assert_eq!(after.nfs.lookup(&dir, b"..").done().handle, root);
    assert_eq!(after.root, root);
}

#[test]
fn handles_are_valid_on_another_server_with_key() {
    let site = Site::new();
    let (one, other) = (site.start(), site.start());
    for (file, contents) in site.fill(&one) {
        assert_eq!(other.contents(&file), contents);
    }
}

#[test]
fn handles_are_refused_once_their_key_is_retired() {
    let site = Site::new();
    let before = site.start();
    let files = site.fill(&before);
    drop(before);
    handle_keys::rotate(&site.files()).expect("another key");
    let rotated = site.start();
    for (file, contents) in &files {
        assert_eq!(&rotated.contents(file), contents, "an older key is good until it is retired");
    }
    let new = rotated.file("new", b"signed with the new key");
    drop(rotated);
    handle_keys::retire(&site.files(), KeyId(1)).expect("the old key");
    let after = site.start();
    for (file, _) in files {
        after.nfs.getattr(&file).failed(Status::Stale);
    }
    assert_eq!(after.contents(&new), b"signed with the new key");
}

#[test]
fn removed_file_with_two_keys_frees_its_space() {
    let site = Site::new();
    let before = site.start();
    let names = [&b"removed"[..], b"replaced"];
    let old = names.map(|name| before.file(std::str::from_utf8(name).expect("text"), b"contents"));
    drop(before);
    handle_keys::rotate(&site.files()).expect("another key");
    let rotated = site.start();
    let root = rotated.root;
    let new = [0, 1].map(|which: usize| {
        assert_eq!(rotated.contents(&old[which]), b"contents");
        let new = rotated.nfs.lookup(&root, names[which]).done().handle;
        assert_ne!(new, old[which], "signed with the new key");
        assert_eq!(rotated.contents(&new), b"contents");
        new
    });
    rotated.file("other", b"");
    rotated.nfs.remove(&root, b"removed").done();
    rotated.nfs.rename(&root, b"other", &root, b"replaced").done();
    until("their space is freed", || removed_and_open(site.tree.path()).is_empty());
    for handle in [old, new].concat() {
        rotated.nfs.getattr(&handle).failed(Status::Stale);
    }
}

#[test]
fn handles_of_moved_out_nodes_are_stale_after_restart() {
    let site = Site::new();
    let shared = site.tree.path().join("shared");
    std::fs::create_dir(&shared).expect("the exported directory");
    let before = Fixture::new(site.plan(&shared), None);
    let dir = before.dir("dir");
    let inner = before.nfs.mkdir(&dir, b"inner", mode(0o755)).done().handle();
    let stays = before.dir("stays");
    drop(before);
    std::fs::rename(shared.join("dir"), site.tree.path().join("outside")).expect("moved out");
    let after = Fixture::new(site.plan(&shared), None);
    for gone in [dir, inner] {
        after.nfs.getattr(&gone).failed(Status::Stale);
        after.nfs.lookup(&gone, b"inner").failed(Status::Stale);
    }
    after.nfs.getattr(&stays).done();
}

#[test]
fn write_verifier_changes_at_each_start() {
    let site = Site::new();
    let mut verifiers = Vec::new();
    for round in 0..3 {
        let fixture = site.start();
        let file = fixture.file(&format!("file-{round}"), b"");
        let written = fixture.nfs.write(&file, 0, b"data", StableHow::Unstable).done().verifier;
        let committed = fixture.nfs.commit(&file, 0, 0).done().verifier;
        assert_eq!(written, committed);
        assert!(!verifiers.contains(&written), "a client would not send again what was lost");
        verifiers.push(written);
    }
}

#[test]
fn listing_continues_after_a_restart() {
    let site = Site::new();
    let before = site.start();
    let dir = before.dir("dir");
    for index in 0..50 {
        before.file_in(&dir, &format!("entry-{index:02}"), b"");
    }
    let first = before.nfs.readdir(&dir, Cookie3(0), CookieVerifier::default(), 900).done();
    let cookie = first.entries.last().expect("entries").cookie;
    drop(before);
    let after = site.start();
    let rest = after.nfs.readdir(&dir, cookie, first.verifier, 8192).done();
    assert!(rest.eof);
    let mut names = [first.names(), rest.names()].concat();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 50);
}

#[test]
fn an_exclusive_create_is_idempotent_over_a_restart() {
    let site = Site::new();
    let before = site.start();
    let mine = CreateHow::Exclusive(CreateVerifier(*b"verifier"));
    let file = before.nfs.create(&before.root, b"file", mine).done().handle();
    drop(before);
    let after = site.start();
    assert_eq!(after.nfs.create(&after.root, b"file", mine).done().handle(), file);
    let theirs = CreateHow::Exclusive(CreateVerifier(*b"another!"));
    after.nfs.create(&after.root, b"file", theirs).failed(Status::Exist);
    after.nfs.setattr(&file, mode(0o644), None).done();
}

/// Restarts a server on the same address; a client reconnects and continues.
#[test]
fn the_same_address_can_be_served_again_at_once() {
    let site = Site::new();
    let before = site.start();
    let (address, file) = (before.server.address(), before.file("file", b"kept"));
    drop(before);
    let plan = Plan { address: Some(address), ..site.plan(site.tree.path()) };
    let after = Fixture::new(plan, None);
    assert_eq!(after.server.address(), address);
    assert_eq!(after.contents(&file), b"kept");
    assert_eq!(after.nfs.root(PATH), after.root);
}

//! The side program of Tombolo's server: listings in large pages that include subdirectories.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::{AttributeTimes, Options};
use tombolo_conformance::waist::World;
use tombolo_core::Ctx;
use tombolo_core::fs::{Cookie, DirPage, FileType, NodeId};
use tombolo_layer_cache::{Contract, Options as CacheOptions, Prefetch};
use tombolo_nfs_client_tests::mount::{mounted, world};
use tombolo_nfs_client_tests::server::{Scripted, ScriptedReply};
use tombolo_nfs_tests::test_server::TestServer;
use tombolo_test_support::{Session, budget};
use tombolo_wire_nfs3::{PROGRAM as NFS, Procedure, side};

use crate::cached::cached;

const WIDTH: usize = 6;
/// Directories in all, and files in each.
const DIRS: usize = 1 + WIDTH + WIDTH * WIDTH;
const FILES: usize = 5;

fn make(world: &World, dir: NodeId, depth: usize) {
    for n in 0..FILES {
        world.release(world.file((dir, &format!("file-{n}"))));
    }
    for n in 0..if depth > 0 { WIDTH } else { 0 } {
        make(world, world.dir((dir, &format!("dir-{n}"))), depth - 1);
    }
}

/// Reads the first page of a directory.
fn page(session: &Session, dir: NodeId) -> DirPage {
    let file = session.open_dir(dir).expect("open");
    let page = session.readdir(file, Cookie::START, budget(1 << 16, true)).expect("list");
    session.release(file);
    page
}

/// Lists all paths below a directory, as find(1) does.
fn find(world: &World, dir: NodeId, path: &str, found: &mut BTreeSet<String>) {
    let page = page(world, dir);
    assert!(page.is_end());
    for entry in page.iter().filter(|entry| !matches!(entry.name, b"." | b"..")) {
        let text = std::str::from_utf8(entry.name).expect("a name");
        let path = format!("{path}/{text}");
        if entry.file_type == Some(FileType::Directory) {
            find(world, world.node((dir, text)).expect("there"), &path, found);
        }
        assert!(found.insert(path), "listed twice");
    }
}

fn is_listing(program: u32, procedure: u32) -> bool {
    (program, procedure) == (side::PROGRAM, side::Procedure::List.number())
        || (program, procedure) == (NFS, Procedure::Readdirplus.number())
}

#[test]
fn cached_walk_lists_many_directories_per_call() {
    let (honest, writer_dir) = (TestServer::over(Memory::default()), "tree");
    let direct = world(mounted(honest.address(), Options::default()));
    let top = direct.dir(writer_dir);
    make(&direct, top, 2);
    let mut told = Vec::new();
    for is_ours in [true, false] {
        let server = Scripted::start(honest.address(), move |asked| match is_ours {
            true => ScriptedReply::Forward,
            false => asked.without_side_program(),
        });
        let options = CacheOptions {
            contract: Contract::Exclusive,
            prefetch: Prefetch::Tree,
            ..CacheOptions::default()
        };
        let origin = mounted(server.address(), Options::default());
        let (_dir, cache) = cached(&*origin, options);
        let cached = direct.through(cache);
        let mut found = BTreeSet::new();
        find(&cached, cached.node(writer_dir).expect("there"), "", &mut found);
        assert_eq!(found.len(), DIRS * FILES + DIRS - 1);
        let seen = server.seen();
        let listings = seen.iter().filter(|seen| is_listing(seen.program, seen.procedure)).count();
        told.push((found, listings, seen.len()));
    }
    assert_eq!(told[0].0, told[1].0, "the same is found");
    assert!(told[1].1 >= DIRS, "{} listings", told[1].1);
    assert!(told[0].1 <= DIRS / 2, "{} listings of {DIRS} directories", told[0].1);
    assert!(told[0].2 < told[1].2, "{} calls, {} without", told[0].2, told[1].2);
}

/// Reads a page as a walk does; returns its names, and the time of their request if they were prefetched.
fn ahead(world: &World, dir: NodeId) -> (BTreeSet<String>, Option<Instant>) {
    let page = page(&world.with(Ctx { lists_subdirectories: true, ..world.cx.clone() }), dir);
    let names = page.iter().map(|entry| String::from_utf8_lossy(entry.name).into_owned());
    (names.filter(|name| !name.starts_with('.')).collect(), page.asked())
}

/// Creates a directory whose listing is prefetched with its parent's.
fn with_one_below(world: &World) -> NodeId {
    let below = world.dir("below");
    world.release(world.file((below, "old")));
    assert_eq!(ahead(world, world.dir).0, BTreeSet::from(["below".to_owned()]));
    below
}

fn believing() -> Options {
    Options { attributes: AttributeTimes::all(Duration::from_secs(60)), ..Options::default() }
}

#[test]
fn prefetched_listing_serves_only_walks_with_its_age() {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), |_| ScriptedReply::Forward);
    let one = world(mounted(server.address(), believing()));
    let below = with_one_below(&one);
    one.release(one.open_dir(below).expect("open"));
    let (before, calls) = (Instant::now(), server.seen().len());
    let (names, asked) = ahead(&one, below);
    assert_eq!(names, BTreeSet::from(["old".to_owned()]));
    assert!(asked.is_some_and(|asked| asked < before), "it is told how old it is");
    let opens = 1;
    assert_eq!(server.seen().len(), calls + opens, "the open asks, the listing does not");
    let two = one.through(mounted(server.address(), believing()));
    two.release(two.file("below/new"));
    assert!(one.names(below).contains(&"new".to_owned()), "another listing tells what is there now");
}

#[test]
fn own_change_is_in_every_later_listing() {
    let honest = TestServer::over(Memory::default());
    let one = world(mounted(honest.address(), believing()));
    let below = with_one_below(&one);
    one.release(one.file((below, "new")));
    assert_eq!(ahead(&one, below).0, BTreeSet::from(["old".to_owned(), "new".to_owned()]));
}

#[test]
fn foreign_replacement_server_is_listed_by_readdirplus() {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), |_| ScriptedReply::Forward);
    let one = world(mounted(server.address(), believing()));
    let below = with_one_below(&one);
    server.now(|asked| asked.without_side_program());
    one.release(one.file((below, "new")));
    assert_eq!(ahead(&one, below).0.len(), 2);
    assert!(server.count_of(Procedure::Readdirplus) > 0);
}

fn asked_for_the_program(server: &Scripted) -> usize {
    server.seen().iter().filter(|seen| seen.program == side::PROGRAM).count()
}

#[test]
fn server_without_side_program_is_probed_once() {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), |asked| asked.without_side_program());
    let one = world(mounted(server.address(), Options::default()));
    (0..3).for_each(|_| drop(ahead(&one, one.dir)));
    assert_eq!(asked_for_the_program(&server), 1);
}

#[test]
fn server_closing_on_probe_is_not_probed_again() {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), |asked| match asked.program {
        side::PROGRAM => ScriptedReply::Close,
        _ => ScriptedReply::Forward,
    });
    let one = world(mounted(server.address(), Options::default()));
    let by_the_mount = asked_for_the_program(&server);
    (0..3).for_each(|_| drop(ahead(&one, one.dir)));
    assert_eq!(asked_for_the_program(&server), by_the_mount);
}

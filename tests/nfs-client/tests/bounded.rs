//! Bounds on a client's memory that a server cannot exceed. A process of its own whose tests run one at a
//! time, since the process's memory is measured.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::Options;
use tombolo_conformance::waist::World;
use tombolo_core::fs::{Cookie, OpenFlags, Write};
use tombolo_core::{Error, Limits};
use tombolo_mem::Source;
use tombolo_nfs_client_tests::mount::{mounted, soft, world};
use tombolo_nfs_client_tests::server::{Page, ReceivedCall, Scripted, ScriptedReply, listing};
use tombolo_nfs_tests::client::fragment;
use tombolo_nfs_tests::test_server::TestServer;
use tombolo_test_support::{budget, plain};
use tombolo_wire_nfs3::args::StableHow;
use tombolo_wire_nfs3::attr::fattr3;
use tombolo_wire_nfs3::results::{WriteOk, WriteReply};
use tombolo_wire_nfs3::{Call, Procedure, WccData, WriteVerifier};

const MIB: u64 = 1 << 20;

/// Waits for the other tests of this process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stage(options: Options) -> (World, Scripted, TestServer) {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), |_| ScriptedReply::Forward);
    let world = world(mounted(server.address(), options));
    (world, server, honest)
}

/// Reads a field of /proc/self/status in bytes.
fn status(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")).expect("a number of kB");
    kib.parse::<u64>().expect("a number") * 1024
}

/// Asserts that the process's peak memory grows by at most `limit` bytes during `action`.
#[track_caller]
fn grows_by_at_most(limit: u64, action: impl FnOnce()) {
    // Forgets the peak so far (proc(5), clear_refs).
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak is forgotten");
    let before = status("VmRSS");
    action();
    let grown = status("VmHWM").saturating_sub(before);
    assert!(grown <= limit, "grown by {} MiB, where {} are allowed", grown / MIB, limit / MIB);
}

#[test]
fn announced_lengths_take_no_memory() {
    let _turn = turn();
    let (world, server, _honest) = stage(soft());
    let node = world.file_with("file", &[7; 1000]);
    grows_by_at_most(16 * MIB, || {
        for announced in [u32::MAX, 0x7fff_ffff, 0x4000_0000, 0x1000_0000] {
            server.now(move |asked: &ReceivedCall<'_>| {
                if asked.is(Procedure::Getattr) && asked.nth == 1 {
                    // Announces a record of this length and sends only its beginning.
                    return ScriptedReply::Bytes([announced.to_be_bytes().as_slice(), &[0; 64]].concat());
                }
                if asked.is(Procedure::Read) || asked.is(Procedure::Readlink) {
                    // Status, no attributes, and a length that is longer than all of it; for READ the count
                    // is as long.
                    let words = [0, 0, announced, 0, announced];
                    return ScriptedReply::Results(
                        words.iter().flat_map(|word| word.to_be_bytes()).collect(),
                    );
                }
                ScriptedReply::Forward
            });
            world.attr(node);
            if let Ok(file) = world.open(node, OpenFlags::READ) {
                world.read_eof(file, 0, 100).expect_err("a length beyond the record");
                world.release(file);
            }
            world.fs.readlink(&world.cx, node).wait().expect_err("a length beyond the record");
        }
    });
}

#[test]
fn overlong_record_is_not_buffered() {
    let _turn = turn();
    let (world, server, _honest) = stage(soft());
    // 128 MiB for a GETATTR, sent in full; and fragments without an end.
    let announced: fn(&ReceivedCall<'_>) -> ScriptedReply = |asked| {
        let mark = (1_u32 << 31 | 128 << 20).to_be_bytes();
        let head = ScriptedReply::Bytes([mark.as_slice(), &asked.reply(&[])].concat());
        ScriptedReply::All(vec![head, ScriptedReply::Repeated(vec![0; 64 << 10], 2048)])
    };
    let endless: fn(&ReceivedCall<'_>) -> ScriptedReply = |asked| {
        let head = ScriptedReply::Bytes(fragment(&asked.xid.0.to_be_bytes(), false));
        ScriptedReply::All(vec![head, ScriptedReply::Repeated(fragment(&[0x55; 64 << 10], false), 40)])
    };
    for reply in [announced, endless] {
        grows_by_at_most(24 * MIB, || {
            server.on(Procedure::Getattr, move |asked| match asked.nth {
                1 => reply(asked),
                _ => ScriptedReply::Forward,
            });
            world.fs.getattr(&world.cx, world.dir, None).wait().expect_err("no reply is so long");
            world.attr(world.dir);
        });
    }
}

#[test]
fn unsolicited_replies_are_dropped() {
    let _turn = turn();
    let (world, server, _honest) = stage(soft());
    grows_by_at_most(16 * MIB, || {
        for _ in 0..20 {
            server.now(|_: &ReceivedCall<'_>| {
                let flood = fragment(&[0x77; 60_000], true).repeat(20);
                ScriptedReply::All(vec![ScriptedReply::Bytes(flood), ScriptedReply::Forward])
            });
            world.attr(world.dir);
        }
    });
}

#[test]
fn create_beyond_node_budget_creates_nothing_on_server() {
    let _turn = turn();
    let limits = Limits { nodes: 4, opens: 1, ..Limits::default() };
    let (world, _server, _honest) = stage(Options { limits, ..soft() });
    let file = world.file("file");
    assert!(matches!(world.create("more", &plain()), Err(Error::TooManyOpen)));
    world.release(file);
    // Counted nodes: the root, the case's directory, the file, and this one.
    let dir = world.dir("dir");
    assert!(matches!(world.create("more", &plain()), Err(Error::NoMemory)));
    assert!(matches!(world.mkdir("more"), Err(Error::NoMemory)));
    assert!(matches!(world.symlink("more", b"x"), Err(Error::NoMemory)));
    assert_eq!(world.names(world.dir), ["dir", "file"]);
    world.forget(dir);
    world.create("more", &plain()).expect("there is room again");
}

fn endless_page(from: u64) -> Page {
    let entry = |cookie| (format!("a-rather-long-name-of-an-entry-{cookie}"), cookie);
    Page { entries: (from + 1..=from + 100).map(entry).collect(), eof: false }
}

#[test]
fn an_endless_directory_takes_no_memory_at_the_client() {
    let _turn = turn();
    let (world, server, _honest) = stage(soft());
    server.now(listing(None, endless_page));
    let file = world.open_dir(world.dir).expect("open");
    grows_by_at_most(16 * MIB, || {
        let (mut cookie, mut count) = (Cookie::START, 0);
        // Half a million entries are enough; refusing earlier is fine.
        while count < 500_000 {
            let Ok(page) = world.readdir(file, cookie, budget(8192, false)) else { break };
            assert!(!page.is_empty() && !page.is_end());
            count += page.len();
            cookie = page.iter().last().map_or(cookie, |entry| entry.cookie);
        }
    });
}

/// Bounds the nodes of one listing: the kernel retains each until its own memory runs short.
#[test]
fn an_endless_directory_creates_few_nodes() {
    let _turn = turn();
    let (world, server, _honest) = stage(soft());
    let fattr = fattr3(&world.attr(world.dir));
    server.now(listing(Some(fattr), endless_page));
    let file = world.open_dir(world.dir).expect("open");
    let (mut count, mut nodes) = (0, 0);
    grows_by_at_most(192 * MIB, || {
        let mut cookie = Cookie::START;
        while count < 160_000 {
            let page = world.readdir(file, cookie, budget(64 << 10, true)).expect("a page");
            count += page.len();
            nodes += page.iter().filter(|entry| entry.entry.is_some()).count();
            cookie = page.iter().last().map_or(cookie, |entry| entry.cookie);
        }
    });
    assert!((100_000..140_000).contains(&nodes), "{nodes} of {count}");
}

#[test]
fn a_stalled_server_blocks_writers_and_bounds_their_data() {
    let _turn = turn();
    let (world, server, _honest) = stage(Options { dirty_bytes_max: 8 << 20, ..soft() });
    let file = world.file("file");
    server.on(Procedure::Write, |_| ScriptedReply::Silence);
    grows_by_at_most(48 * MIB, || {
        let mut writes = Vec::new();
        // 256 MiB of writes. Writes beyond the limit may wait or fail, but must not be buffered.
        for index in 0..256_u64 {
            let bytes = vec![index as u8; 1 << 20];
            let how = Write { offset: index << 20, ..Write::default() };
            let (done, wait) = std::sync::mpsc::channel();
            let writer = world.clone();
            let thread = std::thread::spawn(move || {
                let written = writer.fs.write(&writer.cx, file, &how, Source::from(bytes)).wait();
                let _ = done.send(written.is_ok());
            });
            if wait.recv_timeout(Duration::from_secs(4)) != Ok(true) {
                // It waits or was refused, as later ones would be.
                writes.push(thread);
                break;
            }
        }
        assert!(!writes.is_empty(), "256 MiB were accepted and never sent");
    });
    server.be_honest();
}

#[test]
fn uncommitted_data_are_bounded() {
    let _turn = turn();
    let (world, server, _honest) = stage(Options { dirty_bytes_max: 8 << 20, ..soft() });
    let file = world.file("file");
    // Replies UNSTABLE and changes the verifier at each COMMIT.
    server.now(|asked: &ReceivedCall<'_>| match asked.call() {
        Some(Call::Write(args)) => asked.results(&WriteReply::Ok(WriteOk {
            file_wcc: WccData::NONE,
            count: args.count,
            committed: StableHow::Unstable,
            verifier: WriteVerifier((asked.nth as u64).to_be_bytes()),
        })),
        _ => asked.without_side_program(),
    });
    grows_by_at_most(64 * MIB, || {
        let writer = world.clone();
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for index in 0..128_u64 {
                let how = Write { offset: index << 20, ..Write::default() };
                let bytes = Source::from(vec![index as u8; 1 << 20]);
                if writer.fs.write(&writer.cx, file, &how, bytes).wait().is_err() {
                    break;
                }
            }
            let _ = done.send(());
        });
        // The writes may fail, succeed without COMMIT, or wait, but not use more memory.
        let _ = wait.recv_timeout(Duration::from_secs(8));
    });
    server.be_honest();
}

/// Runs a short session that reads, lists and writes.
fn session(world: &World) {
    let other = world.other_session();
    let node = other.file_with("file", &[7; 100_000]);
    assert_eq!(other.contents(node).len(), 100_000);
    let file = other.writer(node);
    other.write_all(file, 50_000, &[8; 100_000]);
    other.unlink("file").expect("unlink");
    other.release(file);
    other.names(other.dir);
}

#[test]
fn ended_sessions_leak_no_memory() {
    let _turn = turn();
    let (world, _server, _honest) = stage(soft());
    (0..50).for_each(|_| session(&world));
    grows_by_at_most(12 * MIB, || (0..400).for_each(|_| session(&world)));
}

#[test]
fn ended_mounts_leak_no_memory() {
    let _turn = turn();
    let (world, server, _honest) = stage(soft());
    let mount = || session(&world.through(mounted(server.address(), Options::default())));
    (0..50).for_each(|_| mount());
    grows_by_at_most(12 * MIB, || (0..400).for_each(|_| mount()));
}

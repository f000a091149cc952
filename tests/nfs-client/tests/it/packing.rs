//! Compressed reads from a distant Tombolo server, several ranges per call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::Options;
use tombolo_conformance::waist::World;
use tombolo_core::fs::{OpenFlags, Volume};
use tombolo_layer_cache::store::{OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Contract, Options as CacheOptions, Prefetch, over};
use tombolo_nfs_client_tests::mount::{hard, mounted, world};
use tombolo_nfs_client_tests::server::{ReceivedCall, Scripted, ScriptedReply};
use tombolo_nfs_tests::test_server::TestServer;
use tombolo_test_support::until;
use tombolo_wire_nfs3::{Status, side};
use tombolo_wire_rpc::{Accepted, ReplyHeader};

const SIZE: usize = (1 << 20) + 100_000;

const BLOCK: usize = 4096;

/// Number of calls to measure the round trip: most are fast on a fast connection, even on a busy machine.
pub const LOOKS: usize = 6;

/// Delay that counts as distant even on a busy machine.
pub const DELAY: Duration = Duration::from_millis(20);

pub fn text(seed: usize) -> Vec<u8> {
    (0..SIZE).map(|at| (at / 1000 + seed) as u8).collect()
}

pub fn noise() -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..SIZE).map(next).collect()
}

fn is_pack(asked: &ReceivedCall<'_>) -> bool {
    (asked.program, asked.procedure) == (side::PROGRAM, side::Procedure::Pack.number())
}

/// A server, a connection with these replies to PACK, and a cache behind it.
struct Site {
    direct: World,
    line: Scripted,
    cache: Arc<CacheExport>,
    _origin: TestServer,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(delay: Duration, says: impl Fn(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) -> Self {
        let origin = TestServer::over(Memory::default());
        let direct = world(mounted(origin.address(), Options::default()));
        let line = Scripted::start(origin.address(), move |asked| {
            let reply = if is_pack(asked) { says(asked) } else { ScriptedReply::Forward };
            if delay.is_zero() { reply } else { ScriptedReply::After(delay, Box::new(reply)) }
        });
        let (dir, cache) = cached(line.address());
        let site = Self { direct, line, cache, _origin: origin, _dir: dir };
        // The client measures the round trip from these calls.
        for n in 0..LOOKS {
            site.direct.file_with(&format!("look-{n}"), b"near or far");
            site.read(&format!("look-{n}"));
        }
        site
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let there = self.direct.through(self.cache.clone());
        there.contents(there.lookup(name).expect("there").node)
    }

    fn packs(&self) -> usize {
        let is_pack =
            |program, procedure| (program, procedure) == (side::PROGRAM, side::Procedure::Pack.number());
        self.line.seen().iter().filter(|seen| is_pack(seen.program, seen.procedure)).count()
    }
}

fn cached(origin: SocketAddr) -> (tempfile::TempDir, Arc<CacheExport>) {
    let dir = tempfile::tempdir().expect("a directory");
    let identity = OriginIdentity { location: "nfs:".into(), volume: Volume::default() };
    let store = Store::open(dir.path(), &identity, StoreOptions::default()).expect("a store");
    let options = CacheOptions {
        contract: Contract::CloseToOpen,
        prefetch: Prefetch::Off,
        block_bytes: Some(BLOCK as u32),
        ahead_bytes_max: 0,
        ..CacheOptions::default()
    };
    let client = mounted(origin, Options { read_ahead_bytes: 0, ..hard() });
    (dir, Arc::new(over(&*client, store, options).expect("a cache")))
}

#[test]
fn distant_reads_are_compressed_and_correct() {
    let site = Site::new(DELAY, |_| ScriptedReply::Forward);
    for (seed, name) in ["first", "second"].into_iter().enumerate() {
        site.direct.file_with(name, &text(seed));
        assert!(site.read(name) == text(seed), "{name}");
    }
    let counts = site.cache.counts();
    assert!(counts.saved_bytes > 2 * SIZE as u64 * 9 / 10, "{counts:?}");
}

#[test]
fn separate_ranges_are_read_in_one_call() {
    let site = Site::new(DELAY, |_| ScriptedReply::Forward);
    site.direct.file_with("far", &text(1));
    site.read("far");
    site.direct.file_with("file", &text(0));
    let there = site.direct.through(site.cache.clone());
    let file = there.open(there.lookup("file").expect("there").node, OpenFlags::READ).expect("open");
    for block in (0..64).step_by(2) {
        let at = block * BLOCK;
        assert_eq!(there.read_all(file, at as u64, 100), text(0)[at..at + 100]);
    }
    let before = site.packs();
    assert!(there.read_all(file, 0, 64 * BLOCK) == text(0)[..64 * BLOCK]);
    assert_eq!(site.packs() - before, 1, "one call for 32 parts");
    there.release(file);
}

#[test]
fn near_reads_are_plain() {
    let site = Site::new(Duration::ZERO, |_| ScriptedReply::Forward);
    let mut number = 0;
    // While the machine is busy, a server may answer as late as a distant one.
    until("a file is read plainly", || {
        let before = (site.cache.counts().saved_bytes, site.packs());
        let name = format!("file-{number}");
        number += 1;
        site.direct.file_with(&name, &text(number));
        assert!(site.read(&name) == text(number));
        (site.cache.counts().saved_bytes, site.packs()) == before
    });
}

#[test]
fn incompressible_file_is_read_plainly_after_a_megabyte() {
    let site = Site::new(DELAY, |_| ScriptedReply::Forward);
    site.direct.file_with("file", &noise());
    let there = site.direct.through(site.cache.clone());
    let file = there.open(there.lookup("file").expect("there").node, OpenFlags::READ).expect("open");
    let before = site.packs();
    for at in (0..SIZE).step_by(64 * BLOCK) {
        let len = (64 * BLOCK).min(SIZE - at);
        assert!(there.read_all(file, at as u64, len) == noise()[at..at + len]);
    }
    // One compressible page of memory does not change the estimate for the others.
    assert_eq!(site.packs() - before, (1 << 20) / (64 * BLOCK), "for a megabyte");
    there.release(file);
}

/// Changes or refuses packed replies in several ways: the client must fall back to READ.
#[test]
fn bad_packed_replies_fall_back_to_plain_reads() {
    let says: [fn(&ReceivedCall<'_>) -> ScriptedReply; 5] = [
        |asked| asked.results(&side::PackReply::Failed(Status::Inval, None)),
        |asked| asked.results(&side::PackReply::Failed(Status::Jukebox, None)),
        // The frame ends the results.
        |_| ScriptedReply::edited(|results| results.truncate(results.len() - 8)),
        |_| {
            ScriptedReply::edited(|results| {
                let middle = results.len() / 2;
                results[middle..].fill(0xff);
            })
        },
        |asked| asked.header(|xid| ReplyHeader::accept(xid, Accepted::ProcUnavail)),
    ];
    for (n, says) in says.into_iter().enumerate() {
        let site = Site::new(DELAY, says);
        for (seed, name) in ["first", "second"].into_iter().enumerate() {
            site.direct.file_with(name, &text(seed));
            assert!(site.read(name) == text(seed), "{n}: {name}");
        }
        assert!(site.packs() > 0, "{n}");
        assert_eq!(site.cache.counts().saved_bytes, 0, "{n}");
    }
}

//! Compressed reads from a distant Tombolo server, several ranges per call.

use std::sync::Arc;
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::Options;
use tombolo_conformance::waist::World;
use tombolo_layer_cache::{CacheExport, Contract, Options as CacheOptions, Prefetch};
use tombolo_nfs_client_tests::mount::{hard, mounted, world};
use tombolo_nfs_client_tests::server::{ReceivedCall, Scripted, ScriptedReply};
use tombolo_nfs_client_tests::wire;
use tombolo_nfs_tests::test_server::TestServer;
use tombolo_test_support::until;
use tombolo_wire_nfs3::{Status, side};
use tombolo_wire_rpc::{Accepted, ReplyHeader};

use crate::cached::cached;

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
    wire::noise(1, SIZE)
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
            let is_pack = asked.is_side(side::Procedure::Pack);
            let reply = if is_pack { says(asked) } else { ScriptedReply::Forward };
            if delay.is_zero() { reply } else { ScriptedReply::After(delay, Box::new(reply)) }
        });
        let options = CacheOptions {
            contract: Contract::CloseToOpen,
            prefetch: Prefetch::Off,
            block_bytes: Some(BLOCK as u32),
            ahead_bytes_max: 0,
            ..CacheOptions::default()
        };
        let client = mounted(line.address(), Options { read_ahead_bytes: 0, ..hard() });
        let (dir, cache) = cached(&*client, options);
        let site = Self { direct, line, cache, _origin: origin, _dir: dir };
        // The client measures the round trip from these calls.
        for n in 0..LOOKS {
            site.direct.file_with(&format!("look-{n}"), b"near or far");
            site.read(&format!("look-{n}"));
        }
        site
    }

    fn read(&self, name: &str) -> Vec<u8> {
        self.direct.through(self.cache.clone()).contents(name)
    }

    fn packs(&self) -> usize {
        self.line.count_of_side(side::Procedure::Pack)
    }
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
    let file = there.reader("file");
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
    let file = there.reader("file");
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

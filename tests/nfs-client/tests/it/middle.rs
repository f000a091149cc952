//! An untrusted site cache: a second proxy of the same origin that serves NFS and is queried for data.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::{NfsExport, Options};
use tombolo_conformance::waist::World;
use tombolo_core::fs::{Client, Export, NodeId, PermissionCheck, WeakAttr};
use tombolo_core::{Ctx, Error, SessionId};
use tombolo_host_rpc::client::Transport;
use tombolo_layer_cache::{CacheExport, Connect, Contract, Counts, Options as CacheOptions, Prefetch};
use tombolo_mem::Buffer;
use tombolo_nfs_client_tests::mount::{hard, mounted, server, soft, world};
use tombolo_nfs_client_tests::server::{ReceivedCall, Scripted, ScriptedReply};
use tombolo_nfs_tests::test_server::{PATH, Plan, TestServer};
use tombolo_wire_nfs3::{Status, side};

use crate::cached::cached;

/// Longer than any wait on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const SIZE: usize = (3 << 20) + 100_000;

fn bytes(seed: usize) -> Vec<u8> {
    (0..SIZE).map(|at| (at / 251 + at * 7 + seed) as u8).collect()
}

/// A cache of an origin with its client.
struct Proxy {
    _dir: tempfile::TempDir,
    client: Arc<NfsExport>,
    cache: Arc<CacheExport>,
}

impl Proxy {
    fn over(origin: SocketAddr) -> Self {
        let options = CacheOptions {
            contract: Contract::CloseToOpen,
            prefetch: Prefetch::Off,
            ..CacheOptions::default()
        };
        let client = mounted(origin, Options { read_ahead_bytes: 0, ..hard() });
        let (dir, cache) = cached(&*client, options);
        Self { _dir: dir, client, cache }
    }

    fn take_data_from(&self, middle: Connect) -> Result<(), Error> {
        self.cache.take_data_from("the middle", middle, PATIENCE)
    }

    fn taking_data_from(self, middle: SocketAddr) -> Self {
        self.take_data_from(connecting(middle, PATIENCE)).expect("an origin with digests");
        self
    }

    fn counts(&self) -> Counts {
        self.cache.counts()
    }
}

fn connecting(middle: SocketAddr, patience: Duration) -> Connect {
    Box::new(move || {
        let mut options = soft();
        (options.rpc.timeout, options.rpc.retries) = (patience, 0);
        let export = NfsExport::mount(&server(middle, Transport::Tcp), PATH, options).map_err(Error::io)?;
        let session = SessionId(1);
        export.attach(&Client { session, label: "middle".into(), checks: PermissionCheck::BackEnd })
    })
}

/// An origin with a file, the site cache that serves NFS, and the scripted server in front of it.
struct Site {
    origin: TestServer,
    direct: World,
    file: NodeId,
    middle: Proxy,
    lan: Scripted,
    _serving: TestServer,
}

impl Site {
    fn new(script: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) -> Self {
        let origin = TestServer::over(Memory::default());
        let direct = world(mounted(origin.address(), Options::default()));
        let file = direct.file_with("file", &bytes(0));
        let middle = Proxy::over(origin.address());
        let serving = Plan::over(middle.cache.clone()).start();
        let lan = Scripted::start(serving.address(), script);
        Self { origin, direct, file, middle, lan, _serving: serving }
    }

    fn end(&self) -> Proxy {
        Proxy::over(self.origin.address()).taking_data_from(self.lan.address())
    }

    fn read(&self, proxy: &Proxy, name: &str) -> Vec<u8> {
        self.direct.through(proxy.cache.clone()).contents(name)
    }

    fn lends(&self) -> usize {
        self.lan.count_of_side(side::Procedure::Lend)
    }

    fn rewrite(&self, bytes: &[u8]) {
        let file = self.direct.writer(self.file);
        self.direct.write_all(file, 0, bytes);
        self.direct.release(file);
    }
}

/// Simulates a site cache's replies to LEND; other calls are forwarded.
fn lending(
    mut says: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static,
) -> impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static {
    move |asked| match asked.is_side(side::Procedure::Lend) {
        true => says(asked),
        false => ScriptedReply::Forward,
    }
}

#[test]
fn site_fetches_data_once_and_proxies_fetch_digests() {
    let site = Site::new(|_| ScriptedReply::Forward);
    for n in 0..2 {
        let end = site.end();
        let before = end.client.counts().received_bytes;
        assert!(site.read(&end, "file") == bytes(0), "proxy {n}");
        let line = end.client.counts().received_bytes - before;
        assert!(line < SIZE as u64 / 200, "proxy {n}: {line} bytes over the line for {SIZE}");
        let counts = end.counts();
        assert_eq!((counts.borrowed_bytes, counts.fetched_bytes), (SIZE as u64, 0));
        assert_eq!(site.middle.counts().fetched_bytes, SIZE as u64, "once");
    }
    assert_eq!(site.middle.counts().lent_bytes, 2 * SIZE as u64);
}

#[test]
fn corrupting_site_cache_is_detected_and_avoided() {
    let site = Site::new(lending(|_| {
        ScriptedReply::edited(|results| {
            let at = results.len() / 2;
            results[at] ^= 1;
        })
    }));
    let end = site.end();
    assert!(site.read(&end, "file") == bytes(0));
    let counts = end.counts();
    assert!(counts.refused_bytes > 0, "{counts:?}");
    assert_eq!((counts.borrowed_bytes, counts.fetched_bytes), (0, SIZE as u64));
    let lends = site.lends();
    site.direct.file_with("other", &bytes(1));
    assert!(site.read(&end, "other") == bytes(1));
    assert_eq!(site.lends(), lends, "it is not asked again");
}

#[test]
fn outdated_data_of_site_cache_are_detected() {
    let old = bytes(0);
    let site = Site::new(lending(move |asked| {
        let mut xdr = tombolo_wire_xdr::Decoder::new(asked.arguments());
        let args: side::LendArgs<'_> = xdr.value().expect("arguments");
        let range = args.offset as usize..args.offset as usize + args.count as usize;
        let old = old[range].to_vec();
        ScriptedReply::edited(move |results| {
            let from = results.len() - old.len().next_multiple_of(4);
            results[from..from + old.len()].copy_from_slice(&old);
        })
    }));
    site.rewrite(&bytes(5));
    let end = site.end();
    assert!(site.read(&end, "file") == bytes(5));
    let counts = end.counts();
    assert!(counts.refused_bytes > 0 && counts.fetched_bytes == SIZE as u64, "{counts:?}");
}

#[test]
fn outdated_site_cache_declines_to_lend() {
    let site = Site::new(|_| ScriptedReply::Forward);
    assert!(site.read(&site.middle, "file") == bytes(0));
    // Without a source of its own, it lends only what it has cached.
    let nowhere = connecting(SocketAddr::from(([127, 0, 0, 1], 1)), PATIENCE);
    site.middle.take_data_from(nowhere).expect("an origin with digests");
    site.rewrite(&bytes(5));
    let end = site.end();
    assert!(site.read(&end, "file") == bytes(5));
    let counts = end.counts();
    assert_eq!((counts.refused_bytes, counts.borrowed_bytes, counts.fetched_bytes), (0, 0, SIZE as u64));
    assert!(site.lends() > 0, "it was asked");
}

#[test]
fn stopped_site_cache_costs_time_only() {
    for says in [|| ScriptedReply::Close, || ScriptedReply::Silence] {
        let site = Site::new(lending(move |asked| match asked.nth {
            1 => ScriptedReply::Forward,
            _ => says(),
        }));
        let end = Proxy::over(site.origin.address());
        // Also the time for which an interrupted call is repeated.
        let patience = Duration::from_secs(3);
        end.take_data_from(connecting(site.lan.address(), patience)).expect("an origin with digests");
        assert!(site.read(&end, "file") == bytes(0));
        let counts = end.counts();
        assert!(counts.borrowed_bytes > 0 && counts.fetched_bytes > 0, "{counts:?}");
        assert_eq!((counts.refused_bytes, counts.borrowed_bytes + counts.fetched_bytes), (0, SIZE as u64));
    }
}

#[test]
fn missing_busy_or_cacheless_site_cache_is_bypassed() {
    for status in [Status::Jukebox, Status::Stale] {
        let site = Site::new(lending(move |asked| asked.results(&side::LendReply::Failed(status, None))));
        let end = site.end();
        assert!(site.read(&end, "file") == bytes(0));
        assert_eq!(end.counts().fetched_bytes, SIZE as u64);
    }
    let site = Site::new(|_| ScriptedReply::Forward);
    for place in [SocketAddr::from(([127, 0, 0, 1], 1)), site.origin.address()] {
        let end = Proxy::over(site.origin.address()).taking_data_from(place);
        assert!(site.read(&end, "file") == bytes(0));
        assert_eq!((end.counts().fetched_bytes, end.counts().borrowed_bytes), (SIZE as u64, 0));
    }
}

#[test]
fn two_mutual_site_caches_do_not_deadlock() {
    let site = Site::new(|_| ScriptedReply::Forward);
    let one = site.end();
    let serving = Plan::over(one.cache.clone()).start();
    site.middle.take_data_from(connecting(serving.address(), PATIENCE)).expect("an origin with digests");
    std::thread::scope(|scope| {
        for proxy in [&one, &site.middle] {
            scope.spawn(|| assert!(site.read(proxy, "file") == bytes(0)));
        }
    });
    // Data cached by one proxy are not fetched by the other.
    site.direct.file_with("other", &bytes(1));
    assert!(site.read(&one, "other") == bytes(1));
    let before = site.middle.counts();
    assert!(site.read(&site.middle, "other") == bytes(1));
    let after = site.middle.counts();
    assert_eq!(after.borrowed_bytes - before.borrowed_bytes, SIZE as u64);
}

#[test]
fn lending_requires_read_permission_and_matching_version() {
    let site = Site::new(|_| ScriptedReply::Forward);
    site.direct.chmod(site.file, 0o600).expect("chmod");
    let handle = site.direct.handle_of(site.file).expect("a handle");
    let version = WeakAttr::from(&site.direct.attr(site.file));
    let fs = connecting(site.lan.address(), PATIENCE)().expect("the middle");
    let lend = |user: u32, version: &WeakAttr, offset| {
        let mut cx = Ctx::root(SessionId(1));
        cx.identity.uid = user;
        let buffer = Buffer::new(1000);
        fs.lending().expect("a cache").lend(&cx, &handle, version, offset, buffer.sink(0..1000)).wait()
    };
    lend(0, &version, 5000).expect("the superuser may");
    assert!(matches!(lend(1000, &version, 5000), Err(Error::AccessDenied)));
    let other = WeakAttr { size: version.size + 1, ..version };
    assert!(matches!(lend(0, &other, 5000), Err(Error::NotFound)));
    assert!(matches!(lend(0, &version, SIZE as u64 - 500), Err(Error::NotFound)), "not all of it");
}

#[test]
fn origin_without_digests_is_refused_at_once() {
    let site = Site::new(|_| ScriptedReply::Forward);
    let stranger = Scripted::start(site.origin.address(), |asked| asked.without_side_program());
    let end = Proxy::over(stranger.address());
    let refused = end.take_data_from(connecting(site.lan.address(), PATIENCE));
    assert!(matches!(refused, Err(Error::NotSupported)));
}

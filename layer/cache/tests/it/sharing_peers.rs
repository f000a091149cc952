//! Malicious or silent owners and borrowers.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::Identity;
use tombolo_core::fs::{Mode, SetAttr, Volume, WeakAttr};
use tombolo_host_runtime::rows::{Reader, Writer};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{BorrowOptions, Contract};
use tombolo_sys::{Errno, packet};
use tombolo_test_support::{Session, until};

use crate::sharing::{PATIENT, old_origin, owner};
use crate::world::{Origin, options, pattern};

const HELLO: u8 = 1;
const BORROW: u8 = 2;
const RELEASE: u8 = 3;

/// One end of a connection, controlled by the test.
struct Peer(OwnedFd);

impl Peer {
    fn connected(dir: &Path) -> Self {
        Self(packet::connect(&dir.join("share")).expect("a listener"))
    }

    fn say(&self, message: &[u8]) {
        // The connection may be closed.
        let _ = packet::send(&self.0, message, &[]);
    }

    /// Receives the next message with its descriptors; `None` at the end.
    fn hear(&self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let (mut buffer, late) = ([0; 8192], Instant::now() + Duration::from_secs(20));
        loop {
            match packet::receive(&self.0, &mut buffer) {
                Err(Errno::AGAIN) => {
                    assert!(Instant::now() < late, "neither an answer nor the end");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(packet) if packet.len > 0 => {
                    return Some((buffer[..packet.len].to_vec(), packet.descriptors.into_iter().collect()));
                }
                _ => return None,
            }
        }
    }

    fn greet(self, volume: Volume) -> Self {
        self.say(&hello(volume));
        let (answer, _) = self.hear().expect("an answer");
        let mut row = Reader::new(&answer).expect("a row");
        assert_eq!((row.u8(), row.u8()), (Some(HELLO), Some(1)));
        self
    }

    /// Returns the bytes of a file lent to a user, and the number of descriptors.
    fn borrow(&self, origin: &Origin, name: &str, uid: u32) -> (u64, usize) {
        self.say(&ask(origin, name, uid, 0..u64::MAX));
        let (answer, descriptors) = self.hear().expect("an answer");
        let mut row = Reader::new(&answer).expect("a row");
        assert_eq!((row.u8(), row.u64()), (Some(BORROW), Some(77)));
        let (_generation, mut bytes) = (row.u64(), 0);
        while let (Some(start), Some(end)) = (row.u64(), row.u64()) {
            bytes += end - start;
        }
        (bytes, descriptors.len())
    }
}

fn message(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut row = Writer::default();
    write(&mut row);
    row.finished()
}

fn hello(volume: Volume) -> Vec<u8> {
    message(|row| {
        row.u8(HELLO);
        row.bytes(&volume.0);
    })
}

fn ask(origin: &Origin, name: &str, uid: u32, range: Range<u64>) -> Vec<u8> {
    let session = Session::attach(&*origin.export);
    let entry = session.lookup(name).expect("there");
    let handle = session.handle_of(entry.node).expect("a handle");
    let version = WeakAttr::from(&entry.attr);
    message(|row| {
        row.u8(BORROW);
        row.u64(77);
        row.u32(handle.kind.cast_unsigned());
        row.bytes(&handle.bytes);
        row.u64(version.size);
        row.time(version.mtime);
        row.time(version.ctime);
        row.u64(range.start);
        row.u64(range.end);
        row.identity(&Identity { uid, gid: uid, groups: None });
        row.u64(0);
    })
}

fn volume_of(origin: &Origin) -> Volume {
    origin.direct.handles().volume()
}

#[test]
fn owner_lends_only_with_read_permission_of_the_origin() {
    let (origin, dir) = (old_origin(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("secret", &pattern(100_000, 1));
    let set = SetAttr { mode: Some(Mode::new(0o600)), uid: Some(7), ..SetAttr::default() };
    origin.direct.setattr("secret", set).expect("setattr");
    let owner = owner(&origin, dir.path(), StoreOptions::default());
    owner.by(7).contents("secret");
    // A proxy that does not query the origin itself.
    let peer = Peer::connected(dir.path()).greet(volume_of(&origin));
    for _ in 0..2 {
        assert_eq!(peer.borrow(&origin, "secret", 8), (0, 0));
        assert_eq!(peer.borrow(&origin, "secret", 7), (100_000, 1));
    }
    // Read-only.
    peer.say(&ask(&origin, "secret", 7, 0..1));
    let (_, descriptors) = peer.hear().expect("an answer");
    let mut file = File::from(descriptors.into_iter().next().expect("a descriptor"));
    assert!(std::io::Write::write(&mut file, b"x").is_err());
}

#[test]
fn misbehaving_borrower_is_disconnected_without_effect_on_others() {
    let (origin, scratch) = (old_origin(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(100_000, 1));
    let (dir, volume) = (scratch.path().join("owner"), volume_of(&origin));
    let owner = owner(&origin, &dir, StoreOptions::default());
    owner.contents("file");
    let good = Peer::connected(&dir).greet(volume);
    let is_cut_off = |what: &str, say: &dyn Fn(&Peer)| {
        let peer = Peer::connected(&dir);
        say(&peer);
        while peer.hear().is_some() {}
        assert_eq!(good.borrow(&origin, "file", 0), (100_000, 1), "after {what}");
    };
    is_cut_off("noise", &|peer| peer.say(b"noise"));
    is_cut_off("a long message", &|peer| peer.say(&[0; 8000]));
    is_cut_off("no hello", &|peer| peer.say(&ask(&origin, "file", 0, 0..9)));
    is_cut_off("two hellos", &|peer| (0..2).for_each(|_| peer.say(&hello(volume))));
    is_cut_off("descriptors", &|peer| {
        let null = File::open("/dev/null").expect("open");
        let _ = packet::send(&peer.0, &hello(volume), &[null.as_fd()]);
    });
    is_cut_off("what was never lent", &|peer| {
        peer.say(&hello(volume));
        peer.say(&message(|row| {
            row.u8(RELEASE);
            row.u64(12345);
        }));
    });
    is_cut_off("another origin", &|peer| {
        peer.say(&hello(Volume([9; 16])));
        peer.hear().expect("it is told");
        peer.say(&ask(&origin, "file", 0, 0..9));
    });
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..50 {
        let mut bytes = ask(&origin, "file", 0, random.u64(..)..random.u64(..));
        let peer = Peer::connected(&dir).greet(volume);
        peer.say(&bytes);
        peer.hear().expect("any range may be asked for");
        let at = random.usize(..bytes.len());
        bytes[at] ^= 1 << random.u8(..8);
        peer.say(&bytes);
        assert!(peer.hear().is_none());
    }
    assert_eq!(good.borrow(&origin, "file", 0), (100_000, 1));
}

/// A malicious owner's answer to every request: extents, and a descriptor.
type Lie<'a> = (&'a str, Vec<(u64, u64)>, Option<BorrowedFd<'a>>);

#[test]
fn misbehaving_owner_is_ignored_and_origin_is_read() {
    let (origin, scratch) = (old_origin(), tempfile::tempdir().expect("a directory"));
    let bytes = pattern(100_000, 1);
    origin.direct.put("file", &bytes);
    let short = scratch.path().join("short");
    std::fs::write(&short, [7; 5000]).expect("write");
    let (short, null) = (File::open(short).expect("open"), File::open("/dev/null").expect("open"));
    let (pipe, _writer) = std::io::pipe().expect("a pipe");
    let whole = || vec![(0, 100_000)];
    let lies: [Lie<'_>; 7] = [
        ("a file that is too short", whole(), Some(short.as_fd())),
        ("a device", whole(), Some(null.as_fd())),
        ("a pipe", whole(), Some(pipe.as_fd())),
        ("no descriptor", whole(), None),
        ("more than there is", vec![(0, 5000), (5000, u64::MAX)], Some(short.as_fd())),
        ("no order", vec![(3000, 4000), (0, 2000)], Some(short.as_fd())),
        ("nothing at all", vec![(5, 5)], Some(short.as_fd())),
    ];
    for (round, (what, extents, descriptor)) in lies.iter().enumerate() {
        let (from, dir) =
            (scratch.path().join(format!("{round}-owner")), scratch.path().join(round.to_string()));
        std::fs::create_dir(&from).expect("mkdir");
        let answer = |id| {
            message(|row| {
                row.u8(BORROW);
                row.u64(id);
                row.u64(5);
                extents.iter().for_each(|(start, end)| {
                    row.u64(*start);
                    row.u64(*end);
                });
            })
        };
        let as_owner = |peer: &Peer, id| {
            let descriptors: Vec<_> = descriptor.iter().copied().collect();
            let _ = packet::send(&peer.0, &answer(id), &descriptors);
        };
        with_owner(&from, as_owner, || {
            let borrower = origin.cached_with(&dir, options(Contract::Exclusive));
            assert!(borrower.cache.borrow_from(&from, PATIENT).expect("a thread"));
            assert!(borrower.contents("file") == bytes, "{what}");
            assert_eq!(borrower.cache.counts().borrowed_bytes, 0, "{what}");
        });
    }
}

#[test]
fn unresponsive_owner_is_not_waited_for() {
    let (origin, scratch) = (old_origin(), tempfile::tempdir().expect("a directory"));
    origin.put_files(30, 1000);
    let (from, dir) = (scratch.path().join("owner"), scratch.path().join("borrower"));
    std::fs::create_dir(&from).expect("mkdir");
    let asked = AtomicU32::new(0);
    let says_nothing = |_: &Peer, _| {
        asked.fetch_add(1, Ordering::SeqCst);
    };
    with_owner(&from, says_nothing, || {
        let borrower = origin.cached_with(&dir, options(Contract::CloseToOpen));
        let hasty = BorrowOptions { patience: Duration::from_millis(200), ..PATIENT };
        until("it is welcomed", || borrower.cache.borrow_from(&from, hasty).expect("a thread"));
        for n in 0..30_u8 {
            assert_eq!(borrower.contents(&format!("file-{n}")), pattern(1000, n));
        }
    });
    assert!(asked.into_inner() > 0, "it was asked");
}

/// Runs `test` with a peer as owner, which accepts all handshakes and calls `answer` for each request.
fn with_owner(dir: &Path, answer: impl Fn(&Peer, u64) + Sync, test: impl FnOnce()) {
    let listener = packet::listen(&dir.join("share"), 0o600, 8).expect("listen");
    let ours = Arc::new(());
    let running = Arc::downgrade(&ours);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut peers: Vec<Peer> = Vec::new();
            let mut buffer = [0; 8192];
            // Messages sent before the end are received.
            let mut is_last = false;
            while !is_last {
                is_last = running.strong_count() == 0;
                peers.extend(packet::accept(&listener).map(Peer));
                for peer in &peers {
                    let Ok(packet) = packet::receive(&peer.0, &mut buffer) else { continue };
                    let Some(mut row) = Reader::new(&buffer[..packet.len]) else { continue };
                    match row.u8() {
                        Some(HELLO) => peer.say(&message(|row| {
                            row.u8(HELLO);
                            row.u8(1);
                        })),
                        Some(BORROW) => answer(peer, row.u64().expect("a number")),
                        _ => {}
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        test();
        drop(ours);
    });
}

//! Files written through the cache while they are read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo_core::fs::{File, FileSystem, OpenFlags, SetAttr, SetTime, Timestamp, Write, Written};
use tombolo_core::{Answer, Ctx, Error, forward};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_mem::Source;
use tombolo_test_support::{image, wrapped};

use crate::world::{Origin, grow_old, pattern};

const MIB: usize = 1 << 20;

#[test]
fn only_what_was_written_is_asked_for_again() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let mut bytes = pattern(4 * MIB, 1);
    origin.direct.put("disk", &bytes);
    grow_old();
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let reader = cached.reader("disk");
    assert!(cached.read_all(reader, 0, usize::MAX) == bytes);
    for round in 0..3 {
        let writer = cached.open("disk", OpenFlags::WRITE).expect("open");
        let at = MIB + round * 5000;
        bytes[at..at + 3000].fill(round as u8);
        cached.write_all(writer, at as u64, &bytes[at..at + 3000]);
        // As a layer above does with the times of its writes.
        let set = SetAttr { mode: Some(tombolo_core::fs::Mode::new(0o640)), ..SetAttr::default() };
        cached.fs.setattr(&cached.cx, writer.node, Some(writer), &set).wait().expect("set");
        let asked = (origin.asked("read"), origin.asked("getattr"));
        for offset in (2 * MIB..4 * MIB - (1 << 16)).step_by(1 << 16) {
            assert!(
                cached.read(reader, offset as u64, 1 << 16).expect("read")
                    == bytes[offset..offset + (1 << 16)]
            );
        }
        assert_eq!(
            (origin.asked("read"), origin.asked("getattr")),
            asked,
            "round {round}: all of it is here"
        );
        assert!(cached.read(reader, at as u64, 3000).expect("read") == bytes[at..at + 3000]);
        cached.release(writer);
    }
    let fetched = cached.cache.counts().fetched_bytes;
    for _ in 0..2 {
        assert!(cached.read_all(reader, 0, usize::MAX) == bytes);
    }
    let fetched = cached.cache.counts().fetched_bytes - fetched;
    assert!((1..=1 << 18).contains(&fetched), "{fetched} bytes: the blocks that were written, once");
}

#[test]
fn concurrent_changes_of_a_written_file_are_seen() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let names = ["shorter", "longer", "past the end", "appended", "emptied", "cut and grown"];
    names.iter().for_each(|name| origin.direct.put(name, &pattern(MIB + 1000, 1)));
    grow_old();
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    for (case, name) in names.iter().enumerate() {
        let reader = cached.reader(name);
        assert!(cached.read_all(reader, 0, usize::MAX) == pattern(MIB + 1000, 1));
        let writer = cached.open(name, OpenFlags::WRITE).expect("open");
        cached.write_all(writer, 5000, &[7; 100]);
        let resize = |size| {
            cached.truncate(writer.node, size).expect("set");
        };
        let before = MIB as u64 + 1000;
        match case {
            0 => resize(70_000),
            1 => cached.write_all(writer, before - 10, &[8; 100]),
            2 => cached.write_all(writer, before + 100_000, &[8; 100]),
            3 => {
                let append = cached.open(name, OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
                cached.write_all(append, 0, &[9; 100]);
                cached.release(append);
            }
            4 => {
                let emptied = cached.open(name, OpenFlags::WRITE | OpenFlags::TRUNCATE).expect("open");
                cached.release(emptied);
            }
            _ => {
                resize(1000);
                resize(before);
            }
        }
        for _ in 0..2 {
            let now = origin.direct.contents(name);
            assert!(cached.read_all(reader, 0, usize::MAX) == now, "{name}");
            cached.write_all(writer, 300, &[3; 50]);
        }
        cached.release(writer);
        assert!(cached.read_all(reader, 0, usize::MAX) == origin.direct.contents(name), "{name}, closed");
    }
}

/// Writes increasing numbers to adjacent places: a read returns none older than those written before it
/// began.
#[test]
fn nothing_is_read_that_was_written_over_before() {
    const PLACES: usize = 40;
    const STEP: usize = 30_000;
    let (origin, dir) = (Origin::far(Duration::from_micros(300)), tempfile::tempdir().expect("a directory"));
    origin.direct.put("disk", &vec![0; PLACES * STEP]);
    // A capacity too small for all causes evictions.
    origin.direct.put("other", &pattern(2 * MIB, 1));
    grow_old();
    let store = StoreOptions { capacity_bytes: 3 * MIB as u64, ..StoreOptions::default() };
    let options = Options { contract: Contract::Exclusive, ..Options::default() };
    let cached = origin.cached_in(dir.path(), options, store);
    let written: Vec<AtomicU64> = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
    let writer = Arc::new(());
    let running = Arc::downgrade(&writer);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let file = cached.reader("disk");
                while running.strong_count() > 0 {
                    let place = fastrand::usize(..PLACES);
                    let least = written[place].load(Ordering::SeqCst);
                    let bytes = cached.read(file, (place * STEP) as u64, 8).expect("read");
                    let found = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
                    assert!(found >= least, "place {place}: {found}, where {least} had been written");
                    if fastrand::u8(..) < 2 {
                        let _ = cached.get("other");
                    }
                }
            });
        }
        for number in 1..=600 {
            let writer = cached.open("disk", OpenFlags::WRITE).expect("open");
            for _ in 0..fastrand::usize(..4) {
                let place = fastrand::usize(..PLACES);
                cached.write_all(writer, (place * STEP) as u64, &u64::to_le_bytes(number));
                written[place].store(number, Ordering::SeqCst);
            }
            cached.release(writer);
        }
        drop(writer);
    });
    assert!(cached.contents("disk") == origin.direct.contents("disk"));
}

#[test]
fn a_sudden_end_leaves_no_part_of_before() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let mut bytes = pattern(MIB, 1);
    origin.direct.put("disk", &bytes);
    grow_old();
    let at = dir.path().join("cache");
    let cached = origin.cached(&at, Contract::Exclusive);
    let reader = cached.reader("disk");
    assert!(cached.read_all(reader, 0, usize::MAX) == bytes);
    // Wait for the commit.
    std::thread::sleep(Duration::from_millis(1500));
    for round in 0..4 {
        let writer = cached.open("disk", OpenFlags::WRITE).expect("open");
        let place = round * 200_000;
        bytes[place..place + 1000].fill(99);
        cached.write_all(writer, place as u64, &[99; 1000]);
        if round % 2 == 1 {
            cached.release(writer);
            assert!(cached.read_all(reader, 0, usize::MAX) == bytes);
        }
        let copy = dir.path().join(format!("copy-{round}"));
        image(&at, &copy);
        let again = origin.cached(&copy, Contract::Exclusive);
        assert!(again.contents("disk") == bytes, "round {round}");
    }
}

/// A session of an origin that performs writes when released, even if the caller has stopped waiting.
struct Late(Arc<dyn FileSystem>, Arc<Held>);

#[derive(Default)]
struct Held {
    holds: AtomicBool,
    times_out: AtomicBool,
    writes: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl FileSystem for Late {
    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        if !self.1.holds.load(Ordering::SeqCst) {
            return self.0.write(cx, file, how, from);
        }
        let (fs, cx, how, performed) = (self.0.clone(), cx.clone(), *how, Arc::<Promise<()>>::default());
        let (told, outcome) = (performed.clone(), Arc::new(Mutex::new(None)));
        let written = outcome.clone();
        self.1.writes.lock().expect("no panic").push(Box::new(move || {
            // An opening of its own, as the caller's may have ended.
            let opened = fs.open(&cx, file.node, OpenFlags::WRITE).wait();
            let write = |open| fs.write(&cx, File { open, ..file }, &how, from).wait();
            *outcome.lock().expect("no panic") = Some(opened.and_then(|opened| write(opened.open)));
            performed.keep(());
        }));
        if self.1.times_out.load(Ordering::SeqCst) {
            return Answer::err(Error::TimedOut);
        }
        Answer::later(async move {
            told.kept().await;
            written.lock().expect("no panic").take().expect("an outcome")
        })
    }

    forward!(to self.0; lookup getattr setattr access readlink create create_unnamed mkdir symlink mknod link unlink
        rmdir rename open flush fsync read readdir statfs syncfs forget release profile persistent_handles);
}

#[test]
fn late_write_of_an_interrupted_caller_is_seen() {
    for times_out in [false, true] {
        let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        let mut bytes = pattern(MIB, 1);
        origin.direct.put("disk", &bytes);
        grow_old();
        let held = Arc::<Held>::default();
        let late = held.clone();
        origin.export = wrapped(origin.export, move |inner| Late(inner, late.clone()));
        let cached = origin.cached(dir.path(), Contract::Exclusive);
        let reader = cached.reader("disk");
        assert!(cached.read_all(reader, 0, usize::MAX) == bytes);
        let writer = cached.open("disk", OpenFlags::WRITE).expect("open");
        held.holds.store(true, Ordering::SeqCst);
        held.times_out.store(times_out, Ordering::SeqCst);
        let how = Write { offset: 5000, ..Write::default() };
        let answer = cached.fs.write(&cached.cx, writer, &how, Source::from(vec![9; 1000]));
        match answer.is_done() {
            true => assert!(matches!(answer.wait(), Err(Error::TimedOut))),
            false => drop(answer),
        }
        cached.release(writer);
        assert!(cached.contents("disk") == bytes);
        let performed: Vec<_> = held.writes.lock().expect("no panic").drain(..).collect();
        performed.into_iter().for_each(|write| write());
        bytes[5000..6000].fill(9);
        assert!(cached.contents("disk") == bytes, "times out: {times_out}");
        cached.release(reader);
    }
}

#[test]
fn attributes_fetched_after_last_write_survive_close() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    cached.put("file", b"text");
    let size = || cached.attr("file").size;
    let file = cached.open("file", OpenFlags::WRITE).expect("open");
    cached.write_all(file, 4, b" and");
    let time = SetAttr { mtime: Some(SetTime::At(Timestamp { secs: 9, nanos: 0 })), ..SetAttr::default() };
    cached.fs.setattr(&cached.cx, file.node, Some(file), &time).wait().expect("set");
    let asked = ["getattr", "lookup"].map(|operation| origin.asked(operation));
    cached.release(file);
    assert_eq!((size(), size()), (8, 8));
    assert_eq!(
        ["getattr", "lookup"].map(|operation| origin.asked(operation)),
        asked,
        "a close changes nothing"
    );
    let file = cached.open("file", OpenFlags::WRITE).expect("open");
    cached.open_attr(file);
    cached.write_all(file, 8, b" more");
    cached.release(file);
    assert_eq!(size(), 13, "those from before the last write do not hold");
}

//! An origin that fails, and an unusable cache directory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::fs::{Op, Volume};
use tombolo_core::{Ctx, Error, Interrupt};
use tombolo_layer_basic::fault::{Plan, Rule, What, When};
use tombolo_layer_basic::{delay, fault};
use tombolo_layer_cache::Contract;
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_mem::{Region, Sink};

use crate::world::{Origin, pattern};

fn open(dir: &Path, volume: [u8; 16]) -> Result<Arc<Store>, OpenError> {
    let identity = OriginIdentity { location: "memory:".into(), volume: Volume(volume) };
    Store::open(dir, &identity, StoreOptions::default())
}

#[test]
fn another_server_at_the_same_place_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path(), [1; 16]).expect("a store"));
    assert!(matches!(open(dir.path(), [2; 16]), Err(OpenError::OtherVolume { .. })));
    open(dir.path(), [1; 16]).expect("the first again");
}

#[test]
fn a_directory_of_a_newer_version_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path(), [1; 16]).expect("a store"));
    let about = dir.path().join("cache");
    let text = std::fs::read_to_string(&about).expect("read").replace("version 1", "version 2");
    std::fs::write(&about, &text).expect("write");
    assert!(matches!(open(dir.path(), [1; 16]), Err(OpenError::Foreign { .. })));
    assert_eq!(std::fs::read_to_string(&about).expect("read"), text);
}

#[test]
fn unwritable_cache_directory_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("file"), "").expect("write");
    let error = open(&dir.path().join("file/cache"), [1; 16]).expect_err("there can be no such directory");
    assert!(error.to_string().contains("file/cache"), "{error}");
}

/// Simulates a full disk.
#[test]
fn uncacheable_data_are_read_from_the_origin() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(200_000, 1));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let objects = dir.path().join("objects");
    std::fs::remove_dir_all(&objects).expect("remove");
    std::fs::write(&objects, "").expect("write");
    for _ in 0..3 {
        assert_eq!(cached.contents("file"), pattern(200_000, 1));
    }
}

#[test]
fn failing_origin_gives_errors_and_no_wrong_byte() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.put_files(10, 100_000);
    let rule = |op, when, what| Rule { op: Some(op), when, what };
    let io = What::Fail(|| Error::Io { source: None });
    let rules = vec![
        rule(Op::Read, When::Chance(0.2), io),
        rule(Op::Open, When::Chance(0.1), io),
        rule(Op::Lookup, When::Chance(0.1), io),
        rule(Op::Read, When::Chance(0.5), What::Short(10_000)),
    ];
    origin.export = Arc::new(fault::over(origin.export, Plan { rules, seed: 3 }));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    let (mut read, mut failed) = (0, 0);
    for round in 0..200_u8 {
        let n = round % 10;
        match cached.get(&format!("file-{n}")) {
            Ok(bytes) => {
                assert!(bytes == pattern(100_000, n), "round {round}");
                read += 1;
            }
            Err(Error::Io { .. }) => failed += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    assert!(read > 100 && failed > 10, "{read} read, {failed} failed");
}

#[test]
fn interrupted_reader_leaves_its_fetch_to_others() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(50_000, 1));
    origin.export = Arc::new(delay::over(origin.export, Duration::from_millis(50)).expect("a timer"));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let file = cached.reader("file");
    let interrupt = Interrupt::default();
    let cx = Ctx { interrupt: interrupt.clone(), ..cached.cx.clone() };
    let region = Region::heap(50_000);
    std::thread::scope(|scope| {
        let stops = scope.spawn(|| cached.fs.read(&cx, file, 0, Sink::from(&region)).wait());
        let stays = scope.spawn(|| cached.read(file, 0, 50_000));
        interrupt.raise();
        let stopped = stops.join().expect("no panic");
        // It may have been too late to interrupt.
        assert!(matches!(stopped, Err(Error::Interrupted) | Ok(_)), "{stopped:?}");
        assert_eq!(stays.join().expect("no panic").expect("read"), pattern(50_000, 1));
    });
    assert_eq!(origin.asked("read"), 1);
}

#[test]
fn open_file_removed_at_origin_stays_readable() {
    for contract in [Contract::Exclusive, Contract::CloseToOpen] {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        origin.direct.put("file", &pattern(5000, 1));
        let cached = origin.cached(dir.path(), contract);
        let file = cached.reader("file");
        cached.read(file, 0, 5000).expect("read");
        let direct = &origin.direct;
        direct.unlink("file").expect("unlink");
        assert_eq!(cached.read(file, 0, 5000).expect("read"), pattern(5000, 1), "{contract:?}");
    }
}

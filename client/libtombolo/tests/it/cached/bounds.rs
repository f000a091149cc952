//! Limits of the cache, and release of its nodes.

use std::sync::Arc;

use libtombolo::CacheOptions;
use tombolo_back_memory::{Memory, Options as MemoryOptions};
use tombolo_core::fs::Export;
use tombolo_core::{Error, Limits};

use super::world::{ByPath, USER, cached};
use crate::common::{attach, memory};

const FILES: usize = 3000;

#[test]
fn memory_is_bounded_and_nodes_are_given_back() {
    let export = memory();
    let other = attach(&export, "other");
    other.mkdir("dir");
    for number in 0..FILES {
        other.write(&format!("dir/{number}"), &vec![b'x'; number % 1500]);
    }
    let options = CacheOptions { entries_max: 256, content_bytes_max: 64 << 10, file_bytes_max: 1024 };
    let (spy, cached) = cached(&export, USER, options, true);
    for round in 0..3 {
        for number in 0..FILES {
            let size = number % 1500;
            let path = format!("dir/{number}");
            let bytes = cached.read(path.as_bytes()).wait().expect("read");
            assert_eq!(bytes.map(|bytes| bytes.len()), (size <= 1024).then_some(size), "round {round}");
            assert!(!cached.exists(format!("dir/{number}/none").as_bytes()).wait().unwrap());
            assert!(!cached.exists(format!("none/{number}").as_bytes()).wait().unwrap());
            assert!(cached.len() <= 256 + 32, "{} paths", cached.len());
            assert!(cached.content_bytes() <= 64 << 10, "{} bytes", cached.content_bytes());
            assert!(spy.look_ups().0 <= 800, "{} nodes are retained", spy.look_ups().0);
        }
    }
    assert!(spy.look_ups().0 > 0);
    // Fewer long paths fit.
    cached.clear();
    for number in 0..600 {
        cached.stat(format!("{}dir/{number}", "./".repeat(300)).as_bytes()).wait().expect("a file");
    }
    assert!((10..150).contains(&cached.len()), "{} paths", cached.len());
    cached.clear();
    assert_eq!((spy.look_ups().0, cached.len(), cached.content_bytes()), (0, 0, 0));
    assert!(matches!(cached.list(b"dir").wait(), Err(Error::TooBig)));
    assert_eq!(cached.list(b"").wait().unwrap().len(), 1);
    drop(cached);
    assert_eq!(spy.look_ups().0, 0);
}

#[test]
fn cached_nodes_are_released_when_the_session_needs_them() {
    let session_limits = Limits { nodes: 50, ..Limits::default() };
    let export: Arc<dyn Export> =
        Arc::new(Memory::new(MemoryOptions { session_limits, ..MemoryOptions::default() }));
    let other = attach(&*export, "other");
    for number in 0..200 {
        other.write(&format!("{number}"), b"data");
    }
    let (spy, cached) = cached(&*export, USER, CacheOptions::default(), true);
    for _ in 0..2 {
        for number in 0..200 {
            cached.read(format!("{number}").as_bytes()).wait().expect("room");
        }
    }
    assert!(spy.look_ups().1 <= 51);
}

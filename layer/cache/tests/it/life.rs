//! State that survives a restart or a kill.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::Error;
use tombolo_layer_cache::Contract;
use tombolo_test_support::image;

use crate::world::{Origin, grow_old, pattern};

#[test]
fn handles_and_data_outlive_a_restart() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.put_files(5, 300_000);
    grow_old();
    let before: Vec<_> = {
        let cached = origin.cached(dir.path(), Contract::Exclusive);
        (0..5).for_each(|n| drop(cached.contents(&format!("file-{n}"))));
        (0..5).map(|n| cached.handle_of(&format!("file-{n}")).expect("a handle")).collect()
    };
    let reads = origin.asked("read");
    origin.direct.put("new", b"");
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    for (n, handle) in before.iter().enumerate() {
        let found = cached.resolve(handle).expect("it is still there");
        assert_eq!(found.node, cached.lookup(&format!("file-{n}")).expect("there").node);
        assert_eq!(cached.contents(&format!("file-{n}")), pattern(300_000, n as u8));
    }
    assert_eq!(origin.asked("read"), reads, "all data were here");
    assert!(!before.contains(&cached.handle_of("new").expect("a handle")));
}

#[test]
fn file_changed_while_cache_was_down_is_refetched() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(1000, 1));
    grow_old();
    drop(origin.cached(dir.path(), Contract::Exclusive).contents("file"));
    origin.direct.put("file", &pattern(1000, 2));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    assert_eq!(cached.contents("file"), pattern(1000, 2));
    origin.direct.unlink("file").expect("unlink");
    drop(cached);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    assert!(matches!(cached.lookup("file"), Err(Error::NotFound)));
}

/// Ensures that a kill causes no reuse of a number and no wrong byte.
#[test]
fn kill_at_any_moment_causes_no_reuse_or_corruption() {
    let (origin, scratch) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    for n in 0..30_u8 {
        origin.direct.put(&format!("old-{n}"), &pattern(100_000, n));
    }
    grow_old();
    let mut dir = scratch.path().join("0");
    let mut numbers: HashMap<u64, String> = HashMap::new();
    for life in 1..=8_u8 {
        let cached = origin.cached(&dir, Contract::Exclusive);
        let image_dir = scratch.path().join(life.to_string());
        let has_ended = AtomicBool::new(false);
        let (has_ended, dir_of_life) = (&has_ended, &dir);
        std::thread::scope(|scope| {
            let (read, reads) = std::sync::mpsc::channel();
            let image_dir = &image_dir;
            scope.spawn(move || {
                // After a number of files, not a time: on a busy machine no number would be assigned by then.
                reads.iter().take(3 * usize::from(life)).for_each(drop);
                has_ended.store(true, Ordering::SeqCst);
                image(dir_of_life, image_dir);
            });
            for n in 0..30_u8 {
                let text = if n % 2 == 0 { format!("old-{n}") } else { format!("new-{life}-{n}") };
                if n % 2 == 1 {
                    cached.put(&text, &pattern(5000, n));
                }
                let node = cached.lookup(&text).expect("there").node;
                // Numbers assigned after the end do not count.
                if !has_ended.load(Ordering::SeqCst) {
                    let other = numbers.insert(node.0, text.clone()).filter(|other| *other != text);
                    assert_eq!(other, None, "life {life}: number {} again, for {text}", node.0);
                }
                let expected = if n % 2 == 0 { pattern(100_000, n) } else { pattern(5000, n) };
                assert!(cached.contents(&text) == expected, "life {life}: {text}");
                let _ = read.send(());
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        });
        drop(cached);
        dir = image_dir;
    }
}

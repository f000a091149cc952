//! Many threads, few descriptors.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ALONE;
use super::common::{descriptors, serve};
use tombolo_back_local_dir::Options;
use tombolo_core::Error;

const THREADS: usize = 4;
const FILES: usize = 200;

/// Checks that each file has its contents while all threads look up, open, read and forget, and the host
/// renames.
#[test]
fn threads_that_share_few_descriptors_get_the_right_files() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        fs::create_dir(dir.path().join(format!("d{n}"))).unwrap();
        fs::write(dir.path().join(format!("d{n}/file")), format!("I am {n}")).unwrap();
    }
    let world = serve(dir.path(), Options { descriptors: 16, ..Options::default() });
    let before = descriptors();
    let most = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, most) = (&world, &most);
            scope.spawn(move || {
                for round in 0..2000 {
                    let n = (round * 7 + thread * 13) % FILES;
                    let parent = world.lookup(&format!("d{n}")).unwrap().node;
                    match world.lookup((parent, "file")) {
                        Ok(found) => {
                            let open = world.reader(found.node);
                            assert_eq!(world.read(open, 0, 64).unwrap(), format!("I am {n}").as_bytes());
                            world.release(open);
                            world.forget(found.node);
                        }
                        Err(Error::NotFound) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                    if round % 3 > 0 {
                        world.forget(parent);
                    }
                    if round % 100 == 0 {
                        most.fetch_max(descriptors(), Ordering::Relaxed);
                    }
                }
            });
        }
        scope.spawn(|| {
            for n in (0..FILES).cycle().take(2000) {
                let path = |text: &str| dir.path().join(format!("d{n}/{text}"));
                fs::rename(path("file"), path("away")).unwrap();
                fs::rename(path("away"), path("file")).unwrap();
            }
        });
    });
    // 16 for the nodes, and those in use by the threads; each also lists /proc to count.
    let most = most.load(Ordering::Relaxed) - before;
    assert!(most <= 16 + 8 * THREADS, "{most} descriptors");
}

//! A cache directory in which bytes have changed.

use std::path::{Path, PathBuf};

use tombolo_layer_cache::Contract;

use crate::life::image;
use crate::world::{Origin, grow_old, pattern};

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("list").flatten();
    entries
        .flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] })
        .collect()
}

#[test]
fn whatever_is_damaged_no_byte_is_wrong() {
    let mut random = fastrand::Rng::with_seed(11);
    let (origin, scratch) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    for n in 0..8_u8 {
        origin.direct.put(&format!("file-{n}"), &pattern(150_000, n));
    }
    grow_old();
    let good = scratch.path().join("good");
    {
        let cached = origin.cached(&good, Contract::Exclusive);
        (0..8).for_each(|n| drop(cached.session.get(&format!("file-{n}")).expect("read")));
    }
    for round in 0..60 {
        let dir = scratch.path().join(format!("round-{round}"));
        image(&good, &dir);
        let mut all = files(&dir);
        all.sort();
        all.retain(|path| !path.ends_with("lock") && !path.ends_with("cache"));
        let victim = &all[random.usize(..all.len())];
        let mut bytes = std::fs::read(victim).expect("read");
        match random.u8(..3) {
            0 => bytes.truncate(random.usize(..=bytes.len())),
            _ if bytes.is_empty() => {}
            1 => (0..20).for_each(|_| {
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u8(..8);
            }),
            _ => {
                let start = random.usize(..bytes.len());
                let end = (start + 8192).min(bytes.len());
                random.fill(&mut bytes[start..end]);
            }
        }
        std::fs::write(victim, bytes).expect("write");
        let cached = origin.cached(&dir, Contract::Exclusive);
        for n in 0..8_u8 {
            let read = cached.session.get(&format!("file-{n}"));
            let shown = victim.strip_prefix(&dir).expect("within").display();
            assert!(read.expect("read") == pattern(150_000, n), "round {round}, {shown}: file-{n}");
        }
    }
}

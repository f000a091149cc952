//! Data offered by a layer above, stored if they are the file's.

use tombolo_core::fs::{AccessMask, Attr, DataCache, NodeId, WeakAttr};
use tombolo_layer_cache::{Contract, Options};
use tombolo_mem::Source;
use tombolo_test_support::Session;

use crate::world::{Origin, grow_old, pattern};

const LEN: usize = 300_000;

fn offer(session: &Session, attr: &Attr, offset: usize, bytes: &[u8]) {
    let cache: &dyn DataCache = session.fs.data_cache().expect("a cache");
    let (node, version) = (NodeId(attr.fileid), WeakAttr::from(attr));
    cache
        .offer(&session.cx, node, &version, offset as u64, Source::from(bytes.to_vec()))
        .wait()
        .expect("heard");
}

/// Checks that the user may read and write the file.
fn may_change(session: &Session, node: u64) {
    let rights = AccessMask::READ | AccessMask::WRITE;
    session.access(NodeId(node), rights).expect("its maker may");
}

#[test]
fn offered_data_are_not_fetched() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let bytes = pattern(LEN, 1);
    origin.direct.put("file", &bytes);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let attr = cached.attr("file");
    // Partial blocks at the ends, except at the end of the file.
    offer(&cached, &attr, 10, &bytes[10..200_000]);
    offer(&cached, &attr, 150_000, &bytes[150_000..]);
    assert!(cached.contents("file") == bytes);
    let fetched_bytes = cached.cache.counts().fetched_bytes as usize;
    assert!((10..LEN / 2).contains(&fetched_bytes), "{fetched_bytes}: whole blocks are kept");
}

#[test]
fn data_of_recent_changes_ripen_and_survive_restart() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let bytes = pattern(LEN, 1);
    {
        let cached = origin.cached(dir.path(), Contract::Exclusive);
        cached.put("file", &bytes);
        let attr = cached.attr("file");
        offer(&cached, &attr, 0, &bytes);
        assert_eq!(cached.names(""), ["file"]);
        may_change(&cached, attr.fileid);
        grow_old();
    }
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    // Attributes are fetched again to detect changes by others.
    let asked = || ["read", "readdir", "access"].map(|operation| origin.asked(operation));
    let before = asked();
    may_change(&cached, cached.lookup("file").expect("there").node.0);
    assert_eq!(cached.names(""), ["file"]);
    assert!(cached.contents("file") == bytes);
    assert_eq!(asked(), before);
    let reads = before[0];
    // Another client may change it within the same tick after this life.
    cached.put("file", &pattern(LEN, 2));
    let attr = cached.attr("file");
    offer(&cached, &attr, 0, &pattern(LEN, 2));
    drop(cached);
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    assert!(cached.contents("file") == pattern(LEN, 2));
    assert!(origin.asked("read") > reads, "read anew");
}

#[test]
fn names_of_recent_changes_survive_own_changes() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    cached.put("one", b"1");
    assert_eq!(cached.names(""), ["one"]);
    let listings = origin.asked("readdir");
    cached.chmod("", 0o711).expect("chmod");
    cached.put("two", b"2");
    assert_eq!(cached.names(""), ["one", "two"]);
    assert_eq!(origin.asked("readdir"), listings);
    // From now on another client may have changed it within the same tick.
    cached.cache.invalidate();
    assert_eq!(cached.names(""), ["one", "two"]);
    assert!(origin.asked("readdir") > listings, "listed anew");
}

#[test]
fn offers_of_other_versions_or_beyond_end_are_ignored() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(LEN, 1));
    grow_old();
    let cached = origin.cached(dir.path(), Contract::Exclusive);
    let before = cached.attr("file");
    let bytes = pattern(LEN, 2);
    cached.put("file", &bytes);
    offer(&cached, &before, 0, &pattern(LEN, 1));
    let after = cached.attr("file");
    assert_eq!(before.size, after.size);
    offer(&cached, &before, 0, &pattern(LEN, 1));
    offer(&cached, &after, LEN, &bytes);
    offer(&cached, &Attr { fileid: 1 << 40, ..after }, 0, &bytes);
    assert!(cached.contents("file") == bytes);
}

#[test]
fn offers_are_ignored_if_others_may_change_the_file() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let bytes = pattern(LEN, 1);
    origin.direct.put("file", &bytes);
    let cached = origin.cached_with(dir.path(), Options::default());
    let attr = cached.attr("file");
    offer(&cached, &attr, 0, &pattern(LEN, 2));
    assert!(cached.contents("file") == bytes);
}

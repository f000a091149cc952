//! Validation of cached state by versions, without a request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use fastrand::Rng;
use tombolo_core::fs::{Attr, NodeId, SetAttr, SetTime, Timestamp, Version, Versions};

use super::cases;
use super::changes::{NAMES, change, data};
use crate::is_long_run;
use crate::waist::{Skip, Verdict, World};

cases! { "versions":
    whatever_is_remembered_with_a_version_that_holds_is_as_it_was needs VERSIONS,
    what_was_answered_is_not_remembered_otherwise needs VERSIONS,
    a_change_of_one_file_leaves_the_others_versions needs VERSIONS,
}

fn versions(w: &World) -> &dyn Versions {
    w.fs.versions().expect("versions")
}

fn look(w: &World, node: NodeId) -> Option<(Attr, Option<Version>)> {
    versions(w).look(&w.cx, node).wait().ok()
}

fn hold(w: &World, version: Version) -> bool {
    versions(w).hold(&[version])
}

/// Checks that versions are available; otherwise skips the case.
fn had(w: &World) -> Result<(), Skip> {
    match look(w, w.dir) {
        Some((_, Some(_))) => Ok(()),
        _ => Err(Skip("not all changes are seen here".into())),
    }
}

/// Cached state of a node, with its version before the state was fetched.
struct Remembered {
    version: Version,
    attr: Attr,
    data: Option<Vec<u8>>,
    /// Of a directory.
    names: Vec<Option<NodeId>>,
}

impl Remembered {
    fn of(w: &World, node: NodeId, is_dir: bool) -> Option<Self> {
        let (attr, version) = look(w, node)?;
        let names = if is_dir { names(w, node) } else { Vec::new() };
        Some(Self { version: version?, attr, data: data(w, node), names })
    }
}

fn names(w: &World, dir: NodeId) -> Vec<Option<NodeId>> {
    NAMES.map(|text| w.lookup((dir, text)).map(|entry| entry.node).ok()).into()
}

fn whatever_is_remembered_with_a_version_that_holds_is_as_it_was(w: &World) -> Verdict {
    let own = w.other_session();
    had(&own)?;
    let subs: Vec<_> = ["x", "y"].map(|text| w.dir(text)).into();
    let dirs = [w.dir, subs[0], subs[1]];
    let own_dirs = [own.dir, own.lookup("x").expect("x").node, own.lookup("y").expect("y").node];
    let mut random = Rng::with_seed(1);
    let mut remembered = BTreeMap::new();
    let (mut held, mut gone) = (0, 0);
    let steps = if is_long_run() { 400 } else { 100 };
    for step in 0..steps {
        let found = own_dirs.into_iter().flat_map(|dir| names(&own, dir).into_iter().flatten());
        for node in found.chain(own_dirs).collect::<Vec<_>>() {
            let is_known = remembered.contains_key(&node);
            if let Some(new) =
                (!is_known).then(|| Remembered::of(&own, node, own_dirs.contains(&node))).flatten()
            {
                remembered.insert(node, new);
            }
        }
        let done = match random.u8(..4) {
            0 => change(&own, &own_dirs, &mut random),
            _ => change(w, &dirs, &mut random),
        };
        remembered.retain(|node, was| {
            if !hold(&own, was.version) {
                gone += 1;
                return false;
            }
            held += 1;
            let attr = own.fs.getattr(&own.cx, *node, None).wait();
            assert_eq!(
                attr.ok(),
                Some(was.attr),
                "step {step}, {done}: {node:?} has changed, and its version holds"
            );
            assert!(data(&own, *node) == was.data, "step {step}, {done}: the data of {node:?} have changed");
            if own_dirs.contains(node) {
                assert_eq!(
                    names(&own, *node),
                    was.names,
                    "step {step}, {done}: names in {node:?} have changed"
                );
            }
            true
        });
    }
    assert!(held > 0 && gone > 0, "{held} held, {gone} did not");
    Ok(())
}

/// Reads on another thread: cached state that is valid must not be older than the last answered change.
fn what_was_answered_is_not_remembered_otherwise(w: &World) -> Verdict {
    let own = w.other_session();
    had(&own)?;
    let file = w.file_with("file", b"data");
    let known = own.lookup("file").expect("file").node;
    let answered = AtomicU32::new(0);
    let seconds = if is_long_run() { 2000 } else { 400 };
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            for second in 1..seconds {
                let mtime = Some(SetTime::At(Timestamp { secs: second.into(), nanos: 0 }));
                w.setattr(file, SetAttr { mtime, ..SetAttr::default() }).expect("setattr");
                answered.store(second, Ordering::SeqCst);
                if second % 8 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        while !changer.is_finished() {
            let Some((attr, Some(version))) = look(&own, known) else { continue };
            loop {
                let before = answered.load(Ordering::SeqCst);
                if !hold(&own, version) || changer.is_finished() {
                    break;
                }
                assert!(
                    attr.mtime.secs >= i64::from(before),
                    "{} is remembered, {before} was answered",
                    attr.mtime.secs
                );
            }
        }
    });
    Ok(())
}

fn a_change_of_one_file_leaves_the_others_versions(w: &World) -> Verdict {
    let own = w.other_session();
    had(&own)?;
    let files: Vec<_> = (0..64).map(|n| w.file_with(&format!("file-{n}"), b"data")).collect();
    let known = (0..64).map(|n| own.lookup(&format!("file-{n}")).expect("file").node);
    let versions: Vec<_> = known.filter_map(|node| look(&own, node)?.1).collect();
    w.chmod(files[7], 0o600).expect("chmod");
    let held = versions.iter().filter(|version| hold(&own, **version)).count();
    // Two files may share a slot, and a link may be lost.
    assert!(held < 64, "the change was not counted");
    if versions.len() == 64
        && versions.first().map(|version| version.epoch) == versions.last().map(|version| version.epoch)
    {
        assert!(held >= 60 || !hold(&own, versions[0]), "{held} of 64 hold");
    }
    Ok(())
}

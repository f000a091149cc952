//! Power failures during merges and discards: each overlay has its old or new contents, or is refused.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::mount::{MountFlags, mount};
use tombolo_crash_images::{each_image_at, mark, record, recorded};

use crate::common::{Mounted, Scratch};
use crate::disk::{OUT, ask, guest};

/// Contents of each overlay from a moment on; `-` if it may be missing.
const MOMENTS: [&[(&str, &str)]; 6] = [
    &[],
    &[("low", "1")],
    &[("low", "1"), ("top", "2")],
    // The base of the upper one is retained for others.
    &[("low", "1"), ("top", "2"), ("last", "3")],
    &[("low", "1"), ("top", "3"), ("last", "-")],
    &[("low", "1"), ("top", "0"), ("last", "-")],
];

fn live(scratch: &Scratch) {
    // The recorder needs absolute paths.
    let whole = |word: &str| word.replace("dir/", &scratch.text("dir/"));
    let tombolo = |line: &str| {
        scratch.run(whole(line)).succeeded();
    };
    let make = |name: &str, bases: &str, pattern: u8| {
        tombolo(&format!("disk create dir/{name}.overlay {bases}--base base.img"));
        let words =
            format!("disk {} --backing-dir . --vhost-user vm.sock", whole(&format!("dir/{name}.overlay")));
        let server = scratch.serve(&words);
        let (_driver, mut queue) = guest(scratch);
        assert_eq!(ask(&mut queue, OUT, 2048, &[pattern; 4096]).1, 0);
        // Orderly end, which makes everything durable.
        server.stop();
    };
    make("low", "", 1);
    mark("1");
    make("top", "--base dir/low.overlay ", 2);
    mark("2");
    tombolo("disk merge dir/top.overlay --backing-dir .");
    make("last", "--base dir/top.overlay ", 3);
    mark("3");
    tombolo("disk merge --into-base dir/last.overlay --backing-dir .");
    mark("4");
    tombolo("disk discard --force dir/top.overlay --backing-dir .");
    mark("5");
}

/// Returns the contents of an overlay, unless it is missing or refused.
fn reads(scratch: &Scratch, name: &str) -> Option<String> {
    let _ = fs::remove_file(scratch.path("out.img"));
    let overlay = format!("dir/{name}.overlay");
    let converted = scratch.run(format!("disk convert --backing-dir . {overlay} out.img"));
    let mut bytes = [0; 4096];
    (converted.code == Some(0)).then(|| {
        let file = File::open(scratch.path("out.img")).expect("open");
        file.read_exact_at(&mut bytes, 1 << 20).expect("read");
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{name} is a mixture");
        bytes[0].to_string()
    })
}

#[test]
fn merge_and_discard_are_atomic_across_power_loss() {
    if let Some(dir) = recorded() {
        return live(&Scratch::of(dir.parent().expect("a directory")));
    }
    // A tmpfs would make flushes pointless.
    let scratch = Scratch::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")));
    scratch.sparse("base.img", 4 << 20);
    let dir = scratch.path("dir");
    let log = record(&dir);
    mount("images", &dir, "tmpfs", MountFlags::empty(), c"size=256m").expect("mounted: the tests need root");
    let _small = Mounted(dir);
    each_image_at(&log, &scratch.path("dir"), (16, 2_000), |_, marks| {
        let (last, next) = (MOMENTS[marks.len()], MOMENTS.get(marks.len() + 1));
        for (name, word) in last {
            let then = next.and_then(|next| next.iter().find(|(other, _)| other == name));
            let allowed: Vec<_> = [Some(*word), then.map(|(_, word)| *word)].into_iter().flatten().collect();
            let found = reads(&scratch, name);
            // An overlay being replaced together with its base may have either contents, or be refused.
            let is_sound = match &found {
                Some(found) => allowed.contains(&&**found),
                None => allowed.contains(&"-"),
            };
            assert!(is_sound, "{name} is to be one of {allowed:?}, and is {found:?} after {marks:?}");
        }
    });
}

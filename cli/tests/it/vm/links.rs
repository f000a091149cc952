//! Foreign images, whose owner adds links after they were checked.

use std::fs::FileTimes;

use super::*;

/// Copies `from`, as `cp -a`, with other contents, to a directory that the image's owner cannot read.
fn private(bed: &Bed, from: &Path, name: &str) -> PathBuf {
    let to = bed.path(name);
    bed.sh(&format!("cp -a {} {name}", from.display()));
    for file in [&to, &to.join("disk"), &to.join("memory")].into_iter().filter(|file| file.is_file()) {
        let modified = fs::metadata(file).and_then(|file| file.modified()).expect("there");
        let open = File::options().write(true).open(file).expect("open");
        open.write_all_at(b"secret", MIB).expect("write");
        open.set_times(FileTimes::new().set_modified(modified)).expect("its time");
    }
    to
}

/// Replaces `place` by a link to `target` while `run` runs.
fn linked(place: &Path, target: &Path, run: impl FnOnce()) {
    let real = place.with_added_extension("real");
    fs::rename(place, &real).and_then(|()| symlink(target, place)).expect("link");
    run();
    fs::remove_file(place).and_then(|()| fs::rename(&real, place)).expect("as it was");
}

#[test]
fn links_in_image_are_refused_at_each_start() {
    let bed = Bed::new();
    bed.make_image();
    let image = bed.path("image");
    let _told = bed.clone_image("none", Flaw::None);
    bed.run("vm suspend one").succeeded();
    bed.run("vm checkpoint one").succeeded();
    let refused = |place: &Path, name: &str, beside: &str| {
        linked(place, &private(&bed, place, name), || {
            let _told = bed.vmm("one", Flaw::None);
            bed.run("vm resume one").failed(1, &[beside, "symbolic link"]);
            bed.run("vm suspend one --to copy").failed(1, &[beside, "symbolic link"]);
            assert!(!bed.path("copy").exists());
            bed.run("vm checkpoint one").failed(1, &[beside, "symbolic link"]);
        });
    };
    refused(&image.join("disk"), "private-disk", "image/disk");
    refused(&image.join("memory"), "private-memory", "image/memory");
    refused(&image, "private-image", "image/");
    bed.resume("one");
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
}

#[test]
fn dir_location_of_image_follows_no_links() {
    let bed = Bed::new();
    bed.make_image();
    let place = format!("dir:{}", bed.text("image"));
    let disk = bed.path("image/disk");
    linked(&disk, &private(&bed, &disk, "private-disk"), || {
        let clone = format!("clone {place} one --net none --qemu false");
        bed.run(&clone).failed(1, &["image/disk is not a file"]);
    });
    assert!(!bed.vm("one").exists());
}

//! Kernels that QEMU boots: fetched at a reset, and refused if they have changed.

use super::*;

#[test]
fn clone_fetches_kernel_only_at_reset() {
    let bed = Bed::new();
    for name in ["kernel", "initrd"] {
        fs::write(bed.path(name), name).expect("write");
    }
    bed.make_image_of("--kernel kernel --initrd initrd --append quiet");
    assert!(bed.words("golden").contains("-kernel\n"), "{}", bed.words("golden"));
    let _told = bed.clone_image("none", Flaw::None);
    let kernel = bed.vm("one").join("kernel");
    assert!(!kernel.exists() && !bed.words("one").contains("-kernel"), "{}", bed.words("one"));
    // The supervisor reboots it with the image's kernel.
    fs::remove_file(bed.monitor("one")).expect("there");
    let told = bed.vmm("one", Flaw::None);
    bed.end("one", "reset");
    until("it runs again", || told.try_iter().any(|(command, _)| command == "cont"));
    let words = bed.words("one");
    assert!(words.contains("-kernel\n") && words.contains("initrd\n-append\nquiet\n"), "{words}");
    assert!(!words.contains("-incoming"), "{words}");
    assert_eq!(at(&kernel, 0, 6), "kernel");
    assert!(bed.is("one", "running"), "{}", bed.list());
    // An image includes it, whether the VM has it or not.
    bed.clone_of("image", "two", "").succeeded();
    for name in ["one", "two"] {
        let image = format!("image-of-{name}");
        bed.run(format!("vm suspend {name} --to {image}")).succeeded();
        let found = ["kernel", "initrd"].map(|file| at(&bed.path(&image).join(file), 0, 6));
        assert_eq!(found, ["kernel", "initrd"]);
    }
    // Without the kernel the VM reports the reason.
    bed.clone_of("image", "three", "").succeeded();
    fs::rename(bed.path("image/kernel"), bed.path("image/away")).expect("move");
    bed.end("three", "reset");
    until("it says so", || bed.is("three", "failed: after a reset"));
    bed.run("vm boot three").failed(1, &["kernel"]);
    // A changed kernel is refused too.
    fs::write(bed.path("image/kernel"), "kerneL").expect("write");
    let _told = bed.vmm("three", Flaw::None);
    bed.run("vm boot three").failed(1, &["its kernel has changed", "restore the original"]);
    assert!(!bed.vm("three").join("kernel").exists());
    fs::rename(bed.path("image/away"), bed.path("image/kernel")).expect("move");
    bed.run("vm boot three").succeeded();
    assert!(bed.words("three").contains("-kernel\n"), "{}", bed.words("three"));
}

#[test]
fn a_kernel_changed_alone_is_refused_at_each_start() {
    let bed = Bed::new();
    fs::write(bed.path("kernel"), "kernel").expect("write");
    bed.make_image_of("--kernel kernel");
    let clone = |image: &str, name: &str| bed.clone_of(image, name, "");
    clone("image", "one").succeeded();
    bed.run("vm suspend one --to changes --changes").succeeded();
    let kernel = bed.path("image/kernel");
    // A replaced file is read again.
    fs::write(&kernel, "kernel").expect("write");
    clone("image", "two").succeeded();
    fs::write(&kernel, "kerneL").expect("write");
    for image in ["image", "changes"] {
        clone(image, "three").failed(1, &["its kernel has changed", "restore the original"]);
        assert!(!bed.vm("three").exists(), "{}", bed.list());
        // Scanning it does not make it another image.
        let scanned = bed.run("image scan image");
        scanned.failed(1, &["its kernel has changed", "restore the original"]);
    }
    bed.run("vm resume one").failed(1, &["its kernel has changed", "restore the original"]);
    fs::write(&kernel, "kernel").expect("write");
    bed.resume("one");
}

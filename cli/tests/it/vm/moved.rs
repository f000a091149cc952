//! Incremental images: a VM's changes to its image are moved to another host, where the VM is the same.

use super::*;
use crate::common::Server;
use crate::disk_overlay::qemu_io;

/// Stands for a separate host, which shares nothing with the other.
struct Host {
    bed: Bed,
    /// Location of the images.
    images: String,
}

impl Host {
    fn clone(&self, image: &str, name: &str) {
        self.bed.clone_of(&format!("{}/{image}", self.images), name, "").succeeded();
    }

    fn refused(&self, image: &str, words: &[&str]) {
        let image = format!("{}/{image}", self.images);
        // A clone that is not refused fails at once with another message.
        self.bed.run(format!("clone {image} refused --net none --qemu false")).failed(1, words);
        assert!(!self.bed.vm("refused").exists(), "{image}");
    }

    /// Modifies the memory like a guest, suspends the VM, and then modifies its disk with another program,
    /// since the VMM is a script.
    fn works(&self, name: &str, byte: u8, chain: &[&str]) {
        let memory = File::options().write(true).open(self.bed.memory_of_clone(name)).expect("open");
        for at in [0, 4096 * u64::from(byte), MIB + 4096] {
            memory.write_all_at(&[byte; 5000], at).expect("write");
        }
        drop(memory);
        self.bed.run(format!("vm suspend {name}")).succeeded();
        let disk = self.bed.vm(name).join("disk.overlay");
        let place = |file: &&str| match file.contains('/') {
            true => format!("{}/{file}", self.images),
            false => self.bed.vm(name).join(file).to_string_lossy().into_owned(),
        };
        let bases: Vec<String> = chain.iter().map(place).collect();
        let disk = format!("{} --base {}", disk.display(), bases.join(" --base "));
        let (own, zeroes) = (u64::from(byte) * 8192, MIB + u64::from(byte) * 512);
        qemu_io(
            &self.bed,
            &disk,
            &[
                &format!("write -P {byte} {own} 5k"),
                &format!("write -P {byte} 3M 1k"),
                &format!("write -z {zeroes} 512"),
                "flush",
            ],
        );
    }

    /// Creates an incremental image, and a standalone one to compare it with.
    fn suspended_to(&self, name: &str, dir: &Path) {
        let to = dir.to_str().expect("UTF-8");
        let told = self.bed.run(format!("vm suspend {name} --to {to} --changes")).succeeded();
        assert!(told.out.contains("of memory, based on ../") && !told.out.contains("--base"), "{}", told.out);
        let whole = format!("whole-{name}");
        self.bed.run(format!("vm suspend {name} --to {whole}")).succeeded();
    }
}

/// Creates the first host, which serves the images.
fn far() -> (Bed, Server, [Host; 2]) {
    let bed = Bed::new();
    bed.make_image();
    fs::rename(bed.path("image"), bed.path("tree/golden")).expect("move");
    let (server, url) = bed.serve_nfs();
    let hosts = [(); 2].map(|()| Host { bed: Bed::new(), images: url.clone() });
    (bed, server, hosts)
}

/// Asserts that a VM's memory and disk equal those of a standalone image.
fn is_same(host: &Host, name: &str, chain: &[&str], whole: &Path) {
    let bases: String = chain.iter().map(|file| format!("--base {}/{file} ", host.images)).collect();
    let (disk, out) = (host.bed.vm(name).join("disk.overlay"), format!("read-{name}.img"));
    let read = |path: &Path| fs::read(path).expect("read");
    assert!(read(&host.bed.memory_of_clone(name)) == read(&whole.join("memory")), "the memory of {name}");
    host.bed.run(format!("vm suspend {name}")).succeeded();
    host.bed.run(format!("disk convert {bases} {} {out}", disk.display())).succeeded();
    assert!(read(&host.bed.path(&out)) == read(&whole.join("disk")), "the disk of {name}");
    host.bed.resume(name);
}

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).expect("there").blocks() * 512
}

#[test]
fn moved_vm_is_identical_over_several_moves() {
    let (origin, server, [here, there]) = far();
    let tree = |name: &str| origin.0.path("tree").join(name);
    here.clone("golden", "one");
    // Including the leftovers of checkpoints.
    overwrite(here.bed.memory_of_clone("one"), 512 << 10, b"before");
    let told = here.bed.vmm_of_next("one", Flaw::None);
    assert_eq!(here.bed.run("vm checkpoint one").code, Some(0));
    drop(told);
    here.works("one", 1, &["disk.1.overlay", "golden/disk"]);
    here.suspended_to("one", &tree("one"));
    let config = fs::read_to_string(tree("one/vm.toml")).expect("read");
    assert!(config.contains(r#"bases = ["../golden"]"#), "{config}");
    assert!(!tree("one/disk").exists() && !tree("one/memory").exists());
    let taken = allocated(&tree("one/disk.overlay")) + allocated(&tree("one/memory.overlay"));
    assert!(taken < 200 << 10, "it has {taken} bytes, of what is not its own too");
    // The original host is gone.
    let whole = here.bed.path("whole-one");

    let chain = ["one/disk.overlay", "golden/disk"];
    there.clone("one", "two");
    is_same(&there, "two", &chain, &whole);
    assert_eq!(at(&there.bed.memory_of_clone("two"), 512 << 10, 6), "before");
    there.works("two", 2, &chain);
    there.suspended_to("two", &tree("two"));
    let config = fs::read_to_string(tree("two/vm.toml")).expect("read");
    assert!(config.contains(r#"bases = ["../one", "../golden"]"#), "{config}");
    // Another path to the images: a local directory.
    let local = Host { bed: Bed::new(), images: origin.0.text("tree") };
    local.clone("two", "three");
    let chain = ["two/disk.overlay", "one/disk.overlay", "golden/disk"];
    is_same(&local, "three", &chain, &there.bed.path("whole-two"));
    // A trace of an incremental image refers to its own files.
    let bases = ["one/disk.overlay", "golden/disk"].map(|file| tree(file).to_string_lossy().into_owned());
    let over = format!("--base {} --base {}", bases[0], bases[1]);
    local.bed.run(format!("disk create over.overlay {over}")).succeeded();
    fs::write(local.bed.path("read"), "").expect("write");
    let recorded = format!("over.overlay --record read {over}");
    qemu_io(&local.bed, &recorded, &["read -P 1 8k 4k", "read 1M 4k"]);
    let read = fs::read_to_string(local.bed.path("read")).expect("read");
    assert!(read.contains("16384 4096 disk.overlay\n"), "{read}");
    assert!(read.lines().all(|line| line.ends_with(" disk.overlay")), "{read}");
    // An overlay of a VM is merged with a finished one below, which is not changed.
    let merge = |words: &str| local.bed.run(format!("disk merge over.overlay {words} {over}"));
    merge("--into-base").failed(1, &["is finished", "tombolo disk convert"]);
    merge("").succeeded();
    assert!(!local.bed.path(".over.overlay.tombolo-part").exists());
    qemu_io(
        &local.bed,
        &format!("over.overlay --base {}", bases[1]),
        &["read -P 1 8k 5k", "read -P 1 3M 1k"],
    );
    local.bed.run(format!("disk merge {} --base {}", bases[0], bases[1])).failed(1, &["is not an overlay"]);
    // It continues like any other VM.
    local.works("three", 3, &chain);
    local.bed.resume("three");
    assert_eq!(at(&local.bed.memory_of_clone("three"), 0, 3), "\u{3}\u{3}\u{3}");
    server.stop();
}

impl Bed {
    /// Creates a suspended clone whose memory and disk have `after-` in two places.
    pub fn make_changed(&self, name: &str) {
        self.make_image();
        self.clone_of("image", name, "").succeeded();
        [0, MIB].iter().for_each(|at| overwrite(self.memory_of_clone(name), *at, b"after-"));
        self.run(format!("vm suspend {name}")).succeeded();
        let disk = self.vm(name).join("disk.overlay").to_string_lossy().into_owned();
        let base = self.text("image/disk");
        fs::write(self.path("word"), b"after-").expect("write");
        let write = |at: &str| format!("write -s {} {at} 512", self.text("word"));
        qemu_io(&self.0, &format!("{disk} --base {base}"), &[&write("0"), &write("3M"), "flush"]);
    }
}

/// Asserts that each incremental image of [`Bed::make_changed`] in this directory has all changes, and that a
/// draft has them too or is refused. Returns the number of non-drafts.
pub fn is_whole_or_refused(bed: &Bed, images: &Path, word: &str) -> usize {
    let mut found = 0;
    for entry in fs::read_dir(images).expect("list").flatten() {
        let dir = entry.path();
        let is_draft = dir.extension().is_some();
        found += usize::from(!is_draft);
        let image = dir.to_str().expect("UTF-8");
        // A clone that is not refused fails at once with another message.
        let base = bed.text("image");
        let refused = bed.run(format!("clone {image} left --base {base} --net none --qemu false"));
        assert!(refused.code == Some(1) && !bed.vm("left").exists(), "{}", refused.err);
        if !refused.err.contains("the VMM ended at startup") {
            assert!(is_draft && refused.err.contains(image), "{image}: {}", refused.err);
            continue;
        }
        assert_eq!(fs::read_to_string(dir.join("state")).expect("read"), STATE, "{image}");
        for (what, places) in [("disk", [0, 3 * MIB]), ("memory", [0, MIB])] {
            let (overlay, base) = (dir.join(format!("{what}.overlay")), bed.path("image").join(what));
            let out = bed.path("read.img");
            let _ = fs::remove_file(&out);
            let [over, under, to] = [&overlay, &base, &out].map(|path| path.display());
            bed.run(format!("disk convert --base {under} {over} {to}")).succeeded();
            assert!(places.iter().all(|place| at(&out, *place, word.len()) == word), "{what} of {image}");
        }
    }
    found
}

/// Copies an image with its times.
fn copied(bed: &Bed, from: &str, to: &str) -> PathBuf {
    bed.sh(&format!("cp -a tree/{from} tree/{to}"));
    bed.path("tree").join(to)
}

#[test]
fn clone_validates_bases_of_incremental_image() {
    let (origin, server, [here, there]) = far();
    here.clone("golden", "one");
    here.works("one", 1, &["golden/disk"]);
    let tree = |name: &str| origin.0.path("tree").join(name);
    here.suspended_to("one", &tree("one"));
    let said = |dir: &Path, bases: &str| {
        let config = fs::read_to_string(dir.join("vm.toml")).expect("read");
        let config = config.replace(r#"["../golden"]"#, bases);
        fs::write(dir.join("vm.toml"), config).expect("write");
    };
    // Lists that lead nowhere, to the image itself, or are too long.
    let many = format!("[{}]", r#""../golden","#.repeat(7));
    let lists = [
        ("itself", r#"["../itself"]"#, &["is its own base"][..]),
        ("circle", r#"["../golden", "../circle"]"#, &["is its own base"]),
        ("away", r#"["../../golden"]"#, &["../../golden", "is not next to it", "--base"]),
        ("root", r#"["/golden"]"#, &["is not next to it", "--base"]),
        ("none", r#"["../none-such"]"#, &["none-such"]),
        ("other", r#"["../one", "../golden"]"#, &["the base image has changed"]),
        ("many", &many, &["image chain is longer"]),
    ];
    for (name, bases, _) in lists {
        said(&copied(&origin, "one", name), bases);
    }
    // Damaged or incomplete copies.
    let page = |name: &str, at: u64, bytes: &[u8]| {
        let file = copied(&origin, "one", name).join("memory.overlay");
        overwrite(file, at, bytes);
    };
    page("torn", 4096, &[0; 512]);
    page("headless", 0, &[0; 4096]);
    let cut = copied(&origin, "one", "cut").join("disk.overlay");
    File::options().write(true).open(cut).and_then(|file| file.set_len(8192)).expect("cut off");
    let torn = [
        ("torn", "", &["memory.overlay", "an incomplete copy"][..]),
        ("headless", "", &["memory.overlay", "not an overlay"]),
        ("cut", "", &["disk.overlay", "it was truncated"]),
    ];
    // An overlay that may still be written to, or was copied too early.
    let unfinished = copied(&origin, "one", "unfinished").join("memory.overlay");
    fs::remove_file(&unfinished).expect("remove");
    let unfinished = unfinished.to_str().expect("UTF-8");
    let memory = origin.0.text("tree/golden/memory");
    origin.0.run(format!("disk create {unfinished} --base {memory}")).succeeded();
    said(&copied(&origin, "one", "over"), r#"["../unfinished", "../golden"]"#);
    let unfinished = [
        ("unfinished", "", &["memory.overlay", "it is not finished"][..]),
        ("over", "", &["unfinished/memory.overlay", "it is not finished"]),
    ];
    for (name, _, words) in lists.into_iter().chain(torn).chain([unfinished[0]]) {
        there.refused(name, words);
    }
    // Bases are never written to.
    let disk = tree("one/disk.overlay");
    let disk = disk.to_str().expect("UTF-8");
    let base = origin.0.text("tree/golden/disk");
    origin
        .0
        .run(format!("disk {disk} --base {base} --nbd ./it.nbd"))
        .failed(1, &["is sealed", "tombolo disk create NAME.overlay"]);
    // A foreign link may lead to files that its owner cannot read.
    std::os::unix::fs::symlink(tree("golden"), tree("link")).expect("link");
    said(&copied(&origin, "one", "linked"), r#"["../link"]"#);
    let local = Host { bed: Bed::new(), images: origin.0.text("tree") };
    local.refused("linked", &["../link", "is not next to it"]);
    for (name, _, words) in unfinished {
        local.refused(name, words);
    }
    // Files of a standalone image are ignored in an incremental one.
    for what in ["disk", "memory"] {
        let both = copied(&origin, "one", "both").join(what);
        fs::copy(tree("golden").join(what), both).expect("copy");
    }
    local.clone("both", "both");
    let whole = fs::read(here.bed.path("whole-one/memory")).expect("read");
    assert!(fs::read(local.bed.memory_of_clone("both")).expect("read") == whole);

    // Bases elsewhere are listed.
    let alone = there.bed.path("alone");
    fs::rename(copied(&origin, "one", "alone"), &alone).expect("move");
    let golden = format!("{}/golden", there.images);
    there.bed.run("clone alone two --net none --qemu ./vmm").failed(1, &["--base"]);
    there.bed.clone_of("alone", "two", &format!("--base {golden}")).succeeded();
    assert!(fs::read(there.bed.memory_of_clone("two")).expect("read") == whole);
    let told = there.bed.run("vm suspend two --to three --changes").succeeded();
    told.says(&[format!("NAME --base {} --base {golden}", alone.display())]);
    let config = fs::read_to_string(there.bed.path("three/vm.toml")).expect("read");
    assert!(config.contains(&format!(r#"bases = ["../alone", "{golden}"]"#)), "{config}");

    // A replaced base is detected, even if no clone of it is running.
    let memory = tree("golden/memory");
    fs::copy(&memory, tree("golden/new"))
        .and_then(|_| fs::rename(tree("golden/new"), &memory))
        .expect("replace");
    there.refused("one", &["golden/memory", "restore the original base"]);
    let _told = there.bed.vmm("two", Flaw::None);
    there.bed.run("vm resume two").failed(1, &["golden/memory", "restore the original base"]);
    here.bed.run("vm suspend one --to late --changes").failed(1, &["golden/memory"]);
    assert!(!here.bed.path("late").exists());
    server.stop();
}

#[test]
fn incremental_images_need_base_and_limit_depth() {
    let bed = Bed::new();
    bed.make_image();
    let host = Host { images: bed.path(".").to_string_lossy().into_owned(), bed };
    host.bed
        .0
        .run("vm suspend golden --to no --changes")
        .failed(1, &["was not cloned from an image", "without --changes"]);
    host.bed.run("vm suspend golden --changes").failed(2, &["--to"]);
    host.bed.resume("golden");
    host.bed.run("vm suspend golden --to no --changes").failed(1, &["was not cloned from an image"]);
    assert!(host.bed.is("golden", "running"), "its guest stands still for nothing");
    let mut last = "image".to_owned();
    for number in 1..=7 {
        let name = format!("vm{number}");
        host.clone(&last, &name);
        overwrite(host.bed.memory_of_clone(&name), u64::from(number) * 4096, &[number]);
        host.bed.run(format!("vm suspend {name}")).succeeded();
        let made = host.bed.run(format!("vm suspend {name} --to image{number} --no-scan --changes"));
        match number {
            1..=6 => drop(made.succeeded()),
            _ => made.failed(1, &["already has 7 images", "without --changes"]),
        }
        if number == 1 {
            // A link next to it, which would not be followed.
            fs::create_dir(host.bed.path("links")).expect("mkdir");
            std::os::unix::fs::symlink("../image", host.bed.path("links/image")).expect("link");
            let made =
                host.bed.run(format!("vm suspend {name} --to links/one --no-scan --changes")).succeeded();
            let base = host.bed.path("image").canonicalize().expect("there");
            made.says(&[format!("--base {}", base.display())]);
        }
        last = format!("image{number}");
    }
    // A standalone image starts a new chain, with space for checkpoints.
    for number in 1..=8 {
        let made = host.bed.run("vm checkpoint vm7 --keep 8").succeeded();
        made.says(&[format!("checkpoint {number} ")]);
    }
    // Even if older checkpoints were not merged in time.
    let lock = File::create(host.bed.vm("vm7").join("chain.lock")).expect("create");
    lock.lock_shared().expect("lock");
    host.bed.run("vm checkpoint vm7 --keep 8").succeeded();
    drop(lock);
    for _ in 0..2 {
        host.bed.run("vm checkpoint vm7 --keep 8").succeeded();
    }
    host.bed.run("vm suspend vm7 --to whole --no-scan").succeeded();
    let whole = fs::read(host.bed.path("whole/memory")).expect("read");
    assert!((1..=7).all(|number: u8| whole[usize::from(number) * 4096] == number));
    host.clone("whole", "again");
    assert!(fs::read(host.bed.memory_of_clone("again")).expect("read") == whole);
}

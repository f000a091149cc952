//! Scans of images, and traces of rehearsals.

use super::*;

#[test]
fn suspend_scans_image_and_rehearse_records_trace() {
    let bed = Bed::new();
    bed.make_image();
    let image = bed.path("image");
    let info = || bed.run("image info --json image").succeeded().json();
    let told = info();
    assert!(told["files"].as_array().expect("files").iter().all(|file| file["state"] == "fits"), "{told}");
    assert_eq!((told["files"].as_array().map(Vec::len), &told["trace_steps"]), (Some(4), &0.into()));

    // Adjacent to the data read; the entry of the changed file is now invalid.
    overwrite(image.join("memory"), MIB + 4096, &[7; 32 << 10]);
    let before = fs::read(image.join("memory")).expect("read");
    let rehearse = "image rehearse image --times 1 --net none --qemu ./vmm";
    let until_done = "echo >> asked; test -e done";
    let mut rehearsal = bed.tombolo(format!("{rehearse} --for 60 --until"));
    let rehearsal = rehearsal.arg(until_done).stdout(std::process::Stdio::piped()).spawn().expect("spawn");
    let name = format!("rehearsal-{}", rehearsal.id());
    let told = bed.vmm(&name, Flaw::None);
    told.iter().find(|(command, _)| command == "cont").expect("it runs");
    until("it is asked for", || bed.path("asked").exists());
    let memory = bed.memory_of_clone(&name);
    assert_eq!(at(&memory, MIB, 6), "memory");
    overwrite(&memory, MIB, b"change");
    fs::write(bed.path("done"), "").expect("write");
    let said = rehearsal.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stdout).contains("recorded "), "{said:?}");
    assert_eq!(bed.list().lines().count(), 2, "{}", bed.list());
    assert!(fs::read(image.join("memory")).expect("read") == before, "the image has changed");
    // The configuration, the device state, and one page of memory.
    let told = info();
    assert_eq!(told["trace_steps"], 3, "{told}");
    assert_eq!(told["trace_bytes"], {
        let len = |name: &str| fs::metadata(image.join(name)).expect("there").len();
        len("vm.toml") + len("state") + 4096
    });

    // A clone has that page before its guest accesses it.
    bed.clone_of("image", "ahead", "").succeeded();
    let read = || {
        let shown = bed.run("vm show ahead").out;
        shown.lines().find(|line| line.starts_with("memory read")).unwrap_or_default().to_owned()
    };
    until("its memory is read ahead", || read().contains("iB, "));
    assert!(read().contains(" 4.0 KiB, "), "{}", read());
    bed.run("vm rm --force ahead").succeeded();

    // A failed recording changes nothing and leaves no clone.
    let stopped = bed
        .tombolo(format!("{rehearse} --for 1 --until false"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("spawn");
    let _told = bed.vmm(&format!("rehearsal-{}", stopped.id()), Flaw::None);
    let said = stopped.wait_with_output().expect("it ends");
    assert!(String::from_utf8_lossy(&said.stderr).contains("did not succeed within 1 s"), "{said:?}");
    assert_eq!((said.status.code(), info()), (Some(1), told));
    assert_eq!(bed.list().lines().count(), 2, "{}", bed.list());
    // The pages of one clone do not affect the other.
    let again = bed.tombolo(format!("{rehearse} --for 1")).spawn().expect("spawn");
    let _told = bed.vmm(&format!("rehearsal-{}", again.id()), Flaw::None);
    assert!(again.wait_with_output().expect("it ends").status.success());
    assert_eq!(info()["trace_steps"], 2);
    // A signal at the end of one clone ends the command: no other clone is created.
    let once = "test -e told || { touch told; kill -INT $PPID; }";
    let mut both = bed.tombolo("image rehearse image --times 2 --net none --qemu ./vmm --until");
    let both = both.arg(once).stderr(std::process::Stdio::piped()).spawn().expect("spawn");
    let _told = bed.vmm(&format!("rehearsal-{}", both.id()), Flaw::None);
    let said = both.wait_with_output().expect("it ends");
    assert!(String::from_utf8_lossy(&said.stderr).contains("interrupted"), "{said:?}");
    assert_eq!((said.status.code(), bed.list().lines().count()), (Some(1), 2));
    bed.run("vm suspend golden --to unscanned --no-scan").succeeded();
    assert!(!bed.path("unscanned/.tombolo-image").exists());
}

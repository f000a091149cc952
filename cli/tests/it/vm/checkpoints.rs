//! Checkpoints: restoration, and leftovers of a killed supervisor or command.

use std::process::{Child, Command};
use std::time::Instant;

use rustix::mount::{MountFlags, mount};

use super::*;
use crate::common::Ran;

mod hung;

impl Bed {
    /// Creates a running clone, and begins a checkpoint of it, which waits until the guest releases devices.
    fn with_waiting_checkpoint() -> (Self, Child) {
        let (bed, told) = Self::with_clone("none", Flaw::Silent("device_del"));
        let checkpoint = bed.begun("vm checkpoint one");
        told.iter().find(|(command, _)| command == "device_del").expect("it is told");
        (bed, checkpoint)
    }

    /// Sets the contents of the guest's memory.
    fn remember(&self, word: &str) {
        overwrite(self.memory_of_clone("one"), 0, word.as_bytes());
    }

    fn checkpoint(&self, words: &str) -> String {
        let made = self.run(format!("vm checkpoint one {words}")).succeeded();
        made.says(&["guest paused for"]);
        made.out
    }

    fn supervisor(&self) -> String {
        fs::read_to_string(self.vm("one").join("pid")).expect("it runs")
    }

    /// Runs a command in a mount namespace without the VM's memory.
    fn run_elsewhere(&self, line: &str) -> Ran {
        let mount = self.memory_of_clone("one");
        let mount = mount.parent().and_then(Path::to_str).expect("a name");
        let mut command = self.tombolo(line);
        let mut elsewhere = Command::new("unshare");
        let script = format!("umount {mount} && exec \"$0\" \"$@\"");
        elsewhere.args(["--mount", "sh", "-c", &script]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            value.map(|value| elsewhere.env(name, value));
        }
        command.get_current_dir().map(|dir| elsewhere.current_dir(dir));
        command = elsewhere;
        Ran::new(command)
    }

    /// Resumes the VM briefly, and returns the contents of its memory.
    fn resumed(&self) -> String {
        self.resume("one");
        let found = at(&self.memory_of_clone("one"), 0, 6);
        assert_eq!(at(&self.memory_of_clone("one"), MIB, 6), "memory", "of the image");
        self.run("vm suspend one").succeeded();
        found
    }

    /// Lists the per-checkpoint files of a VM.
    fn numbered(&self) -> Vec<String> {
        let names =
            fs::read_dir(self.vm("one")).expect("there").map(|entry| entry.expect("read").file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        let mut names: Vec<_> = names.filter(|name| name.contains(|c: char| c.is_ascii_digit())).collect();
        names.sort();
        names
    }
}

#[test]
fn checkpoints_continue_vm_and_can_be_restored() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    for (word, number) in [("first ", 1), ("second", 2)] {
        bed.remember(word);
        assert!(bed.checkpoint("").contains(&format!("checkpoint {number} of one")));
        assert_eq!(at(&bed.memory_of_clone("one"), 0, 6), word, "it goes on");
    }
    bed.remember("third ");
    assert!(bed.list().contains("running") && bed.list().contains("2"), "{}", bed.list());
    bed.run("vm restore one").failed(1, &["it is running", "tombolo vm stop one"]);
    bed.run("vm stop one").succeeded();
    bed.run("vm checkpoint one").failed(1, &["it is neither running nor suspended"]);
    bed.run("vm restore one 3").failed(1, &["no checkpoint 3", "tombolo vm show one"]);
    bed.run("vm restore one").succeeded();
    assert_eq!(bed.resumed(), "second");
    bed.run("vm restore one 1").succeeded();
    assert_eq!(bed.numbered(), ["disk.1.overlay", "memory.1.overlay", "state.1"]);
    assert_eq!(bed.resumed(), "first ");
    // An image includes all lower layers, and later changes are the VM's own.
    bed.run("vm suspend one --to second").succeeded();
    assert_eq!(
        (at(&bed.path("second/memory"), 0, 6), at(&bed.path("second/disk"), MIB, 4)),
        ("first ".into(), "disk".into())
    );
    bed.run("vm rm one").succeeded();
    assert!(!bed.vm("one").exists());
}

#[test]
fn excess_checkpoints_are_merged() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    for word in ["first ", "second", "third ", "fourth"] {
        bed.remember(word);
        bed.checkpoint("--keep 2");
    }
    let kept =
        ["disk.3.overlay", "disk.4.overlay", "memory.3.overlay", "memory.4.overlay", "state.3", "state.4"];
    assert_eq!(bed.numbered(), kept);
    bed.remember("fifth ");
    bed.run("vm suspend one").succeeded();
    assert_eq!(bed.resumed(), "fifth ");
    for (number, word) in [("4", "fourth"), ("3", "third ")] {
        bed.run(format!("vm restore one {number}")).succeeded();
        assert_eq!(bed.resumed(), word);
    }
    // A VM booted on this host has its memory in a plain file until then.
    bed.run("vm checkpoint golden").succeeded();
    bed.run("vm restore golden").succeeded();
    bed.run("vm suspend golden --to again").succeeded();
    assert_eq!(at(&bed.path("again/memory"), MIB, 6), "memory");
}

#[test]
fn killed_checkpoint_leaves_no_trace() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    bed.remember("kept  ");
    bed.run("vm suspend one").succeeded();
    let file = |name: &str| bed.vm("one").join(name);
    // After each step of the restoration, the last one first.
    for undone in [&["state.N"][..], &["state.N", "memory"], &["state.N", "memory", "disk"]] {
        bed.run("vm checkpoint one").succeeded();
        let number = bed.numbered().last().and_then(|name| name.rsplit('.').next()?.parse::<u32>().ok());
        let number = number.expect("a checkpoint");
        for what in undone {
            match *what {
                "state.N" => fs::remove_file(file(&format!("state.{number}"))).expect("removed"),
                what => {
                    let (layer, top) =
                        (file(&format!("{what}.{number}.overlay")), file(&format!("{what}.overlay")));
                    fs::remove_file(&top).and_then(|()| fs::hard_link(&layer, &top)).expect("as before");
                }
            }
        }
        fs::write(file("disk.new.overlay"), "torn").expect("write");
        assert_eq!(bed.resumed(), "kept  ", "{undone:?}");
    }
    bed.run("vm checkpoint one").succeeded();
    bed.run("vm checkpoint one --keep 1").succeeded();
    let left = bed.numbered();
    assert_eq!(left.len(), 3, "{left:?}");
    // Killed at any time.
    for turn in 0..12 {
        let mut checkpoint = bed.tombolo("vm checkpoint one --keep 1");
        let mut killed = checkpoint.stdout(std::process::Stdio::null()).spawn().expect("spawn");
        thread::sleep(Duration::from_millis(turn * 2));
        killed.kill().and_then(|()| killed.wait()).expect("killed");
    }
    assert_eq!(bed.resumed(), "kept  ");
    bed.run("vm checkpoint one --keep 1").succeeded();
    assert_eq!(bed.numbered().len(), 3, "{:?}", bed.numbered());
    bed.run("vm restore one").succeeded();
    assert_eq!(bed.resumed(), "kept  ");
}

#[test]
fn merge_of_checkpoints_and_start_exclude_each_other() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    bed.remember("kept  ");
    bed.run("vm suspend one").succeeded();
    for _ in 0..2 {
        bed.run("vm checkpoint one").succeeded();
    }
    // A chain being opened is not replaced.
    let lock = File::create(bed.vm("one").join("chain.lock")).expect("open");
    lock.lock_shared().expect("locked");
    let layers = || bed.numbered().iter().filter(|name| name.starts_with("disk")).count();
    bed.run("vm checkpoint one --keep 1").succeeded();
    assert_eq!((layers(), bed.numbered().iter().filter(|name| name.starts_with("state")).count()), (3, 1));
    lock.unlock().expect("unlocked");
    bed.run("vm checkpoint one --keep 1").succeeded();
    assert_eq!(layers(), 1, "{:?}", bed.numbered());
    // A chain being replaced is not opened.
    lock.lock().expect("locked");
    let _told = bed.vmm("one", Flaw::None);
    let mut resume = bed.begun("vm resume one");
    let its_file = format!(":{} ", lock.metadata().expect("there").ino());
    let waits = || {
        let locks = fs::read_to_string("/proc/locks").expect("locks");
        locks.lines().any(|line| line.contains("->") && line.contains(&its_file))
    };
    until("it waits", || waits() || resume.try_wait().expect("its end").is_some());
    assert!(waits(), "it has not waited");
    lock.unlock().expect("unlocked");
    assert!(resume.wait().expect("its end").success());
    assert_eq!(at(&bed.memory_of_clone("one"), 0, 6), "kept  ");
}

#[test]
fn a_checkpoint_leaves_a_vm_running_in_its_vmm() {
    let (bed, told) = Bed::with_clone("user", Flaw::None);
    let supervisor = bed.supervisor();
    bed.remember("kept  ");
    let _ = told.try_iter().count();
    bed.checkpoint("");
    assert_eq!(bed.supervisor(), supervisor);
    let told: Vec<_> = told.try_iter().map(|(command, _)| command).collect();
    let place = |word: &str| told.iter().position(|command| command == word);
    assert_eq!((place("quit"), place("migrate-incoming")), (None, None), "{told:?}");
    // Steps that may fail precede the pause.
    assert!(place("device_del") < place("migrate"), "{told:?}");
    let pause = ["migrate", "cont"];
    assert!(told.windows(2).any(|commands| commands == pause), "nothing more in the pause: {told:?}");
    assert!(place("device_add") > place("cont"), "{told:?}");
    assert_eq!(bed.numbered(), ["disk.1.overlay", "memory.1.overlay", "state.1"]);
    // Many checkpoints do not grow the chain, and merged files are released.
    for number in 2..12 {
        bed.remember(&format!("is {number:3}"));
        bed.checkpoint("--keep 2");
    }
    assert_eq!(bed.numbered().len(), 6, "{:?}", bed.numbered());
    assert_eq!(at(&bed.memory_of_clone("one"), 0, 6), "is  11");
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory", "of the image");
    let in_use = |pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
        let gone = open.filter_map(|file| fs::read_link(file.path()).ok());
        gone.filter(|file| file.to_string_lossy().ends_with(".overlay (deleted)")).count()
    };
    for pid in bed.pids("one") {
        assert_eq!(in_use(pid), 0);
    }
    bed.run("vm suspend one").succeeded();
    assert_eq!(bed.resumed(), "is  11");
    bed.run("vm restore one 10").succeeded();
    assert_eq!(bed.resumed(), "is  10");
}

#[test]
fn a_checkpoint_that_fails_leaves_the_vm_running() {
    let (bed, _told) = Bed::with_clone("none", Flaw::SavesNot);
    bed.remember("kept  ");
    for command in ["checkpoint", "suspend"] {
        bed.run(format!("vm {command} one")).failed(1, &["device state"]);
        assert!(bed.is("one", "running"), "{}", bed.list());
    }
    assert_eq!(bed.numbered(), [""; 0]);
    bed.remember("later ");
    assert_eq!(at(&bed.memory_of_clone("one"), 0, 6), "later ");
    bed.run("vm stop one").succeeded();
}

/// The commands that a VMM was given since the last call.
fn commands(told: &Receiver<(String, String)>) -> Vec<String> {
    told.try_iter().map(|(command, _)| command).collect()
}

#[test]
fn first_checkpoint_moves_booted_vm_to_another_vmm() {
    let bed = Bed::new();
    let first = bed.boot("one", "user", Flaw::None);
    overwrite(bed.vm("one").join("memory"), 0, b"first ");
    assert!(bed.words("one").contains("\nq35,accel=tcg"), "{}", bed.words("one"));
    let (supervisor, next) = (bed.supervisor(), bed.successor("one", Flaw::None));
    let _ = commands(&first);
    bed.checkpoint("");
    // The machine is that of the guest, whatever QEMU `q35` is later.
    assert!(bed.words("one").contains("\npc-q35-7.2,accel=tcg"), "{}", bed.words("one"));
    let (first, next) = (commands(&first), commands(&next));
    assert!(first.ends_with(&["migrate".into()]), "{first:?}");
    let takeover = ["migrate-incoming".to_owned(), "cont".into()];
    assert!(next.windows(2).any(|pair| pair == takeover), "nothing more in the pause: {next:?}");
    // The first VMM never runs the guest again, and the second one is there before the guest stands still.
    assert!(first.contains(&"migrate".into()) && !first.contains(&"cont".into()), "{first:?}");
    let place = |word: &str| next.iter().position(|command| command == word);
    assert!(place("migrate-incoming") < place("cont") && place("cont") < place("device_add"), "{next:?}");
    assert!(bed.words("one").contains("-incoming"), "{}", bed.words("one"));
    assert!(bed.supervisor() == supervisor && bed.is("one", "running"), "{}", bed.list());
    let vmms = || bed.processes("one").iter().filter(|(_, words)| words.contains("guest=")).count();
    until("one VMM is left", || vmms() == 1);
    // What it changes from then on is in an overlay, and what is below stays.
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
    for word in ["second", "third "] {
        bed.remember(word);
        bed.checkpoint("");
    }
    assert_eq!(at(&bed.vm("one").join("memory"), 0, 6), "first ");
    bed.run("vm stop one").succeeded();
    assert_eq!(vmms(), 0);
    for (number, word) in [("2", "second"), ("1", "first ")] {
        bed.run(format!("vm restore one {number}")).succeeded();
        assert_eq!(bed.resumed(), word);
    }
}

#[test]
fn first_checkpoint_that_fails_leaves_booted_vm_running() {
    for (flaw, of_next, said) in [
        (Flaw::SavesNot, Flaw::None, "device state"),
        (Flaw::None, Flaw::LoadsNot, "device state"),
        (Flaw::None, Flaw::NeverLoads, "it has not responded in time"),
        (Flaw::None, Flaw::Silent("migrate-incoming"), "it has not responded in time"),
        (Flaw::None, Flaw::Silent("cont"), "it has not responded in time"),
        (Flaw::None, Flaw::RunsNot, "refused cont"),
    ] {
        let bed = Bed::new();
        let told = bed.boot("one", "user", flaw);
        // Nothing of an attempt is in the way of the next one.
        for of_next in [of_next, of_next] {
            let _ = commands(&told);
            let next = bed.successor("one", of_next);
            let began = Instant::now();
            bed.run("vm checkpoint one").failed(1, &[said]);
            assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
            assert!(bed.is("one", "running"), "{}", bed.list());
            let told = commands(&told);
            let last = |word: &str| told.iter().rposition(|command| command == word);
            assert!(last("migrate") < last("cont") && last("device_del") < last("device_add"), "{told:?}");
            let ran = commands(&next).contains(&"cont".into());
            let may_run = [Flaw::RunsNot, Flaw::Silent("cont")].contains(&of_next);
            assert!(!ran || may_run, "two VMMs have run the guest");
            // A process that a VMM starts has its words for a moment.
            let vmms = || bed.processes("one").iter().filter(|(_, words)| words.contains("guest=")).count();
            until("one VMM is left", || vmms() == 1);
            assert_eq!(bed.numbered(), [""; 0]);
            assert!(!bed.vm("one").join("memory.overlay").exists());
        }
        fs::write(bed.path("vmm.one.free"), "").expect("write");
        if flaw == Flaw::None {
            let _next = bed.successor("one", Flaw::None);
            bed.checkpoint("");
            assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
        }
    }
}

#[test]
fn first_checkpoint_needs_a_vmm_that_starts() {
    let bed = Bed::new();
    let told = bed.boot("one", "none", Flaw::None);
    let vmm = bed.path("vmm");
    fs::rename(&vmm, bed.path("away")).expect("move");
    let _ = commands(&told);
    bed.run("vm checkpoint one").failed(1, &["vmm"]);
    let unsupported = "q: unsupported machine type\nUse -machine help to list supported machines";
    for (message, said) in [
        ("no such device: x", "ended at startup: no such device: x"),
        (unsupported, "does not support machine type pc-q35-7.2"),
    ] {
        let ends = bed.script("ends", &format!("#!/bin/sh\necho '{message}' >&2\nexit 1\n"));
        fs::rename(ends, &vmm).expect("move");
        bed.run("vm checkpoint one").failed(1, &said.split(": ").collect::<Vec<_>>());
    }
    let told = commands(&told);
    assert!(!["device_del", "migrate"].iter().any(|word| told.contains(&(*word).into())), "{told:?}");
    fs::rename(bed.path("away"), &vmm).expect("move");
    let _next = bed.successor("one", Flaw::None);
    bed.checkpoint("");
}

#[test]
fn vm_killed_in_first_checkpoint_boots_with_or_without() {
    for word in ["device_del", "migrate", "migrate-incoming", "cont", "device_add"] {
        let bed = Bed::new();
        let first = bed.boot("one", "none", Flaw::None);
        let next = bed.successor("one", Flaw::None);
        let _ = commands(&first);
        let mut checkpoint = bed.begun("vm checkpoint one");
        let told = if ["device_del", "migrate"].contains(&word) { &first } else { &next };
        told.iter().find(|(command, _)| command == word).expect("it is told");
        signal(bed.supervisor().parse().expect("a number"), "KILL");
        let _ = checkpoint.wait();
        until("the rest ends by itself", || bed.pids("one").is_empty());
        bed.run("vm stop one").succeeded();
        bed.boot_again();
        bed.run("vm stop one").succeeded();
        if bed.vm("one").join("state.1").exists() {
            bed.run("vm restore one").succeeded();
            bed.resume("one");
            assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
        }
    }
}

impl Bed {
    /// Asserts that the VM's directory has files of complete checkpoints only.
    fn has_no_drafts(&self, about: &str) {
        let is_complete = self.vm("one").join("state.1").exists();
        let numbered = ["disk.1.overlay", "memory.1.overlay", "state.1"];
        assert_eq!(self.numbered(), if is_complete { &numbered[..] } else { &[] }, "{about}");
        for draft in ["disk.new.overlay", "memory.new.overlay", "state.new"] {
            assert!(!self.vm("one").join(draft).exists(), "{about}: {draft}");
        }
    }
}

#[test]
fn vm_stop_in_first_checkpoint_leaves_no_drafts() {
    for (flaw, of_next, word) in [
        (Flaw::None, Flaw::Silent("qmp_capabilities"), "qmp_capabilities"),
        (Flaw::Silent("device_del"), Flaw::None, "device_del"),
        (Flaw::None, Flaw::NeverLoads, "migrate-incoming"),
        (Flaw::None, Flaw::None, "cont"),
    ] {
        let bed = Bed::new();
        let first = bed.boot("one", "none", flaw);
        let next = bed.successor("one", of_next);
        let _ = commands(&first);
        let mut checkpoint = bed.begun("vm checkpoint one");
        let told = if word == "device_del" { &first } else { &next };
        told.iter().find(|(command, _)| command == word).expect("it is told");
        let began = Instant::now();
        bed.run("vm stop one").succeeded();
        assert!(began.elapsed() < Duration::from_secs(50), "{word}: {:?}", began.elapsed());
        let _ = checkpoint.wait();
        until("all have ended", || bed.processes("one").is_empty());
        bed.has_no_drafts(word);
        let is_complete = bed.vm("one").join("state.1").exists();
        assert_eq!(bed.vm("one").join("memory.overlay").exists(), is_complete, "{word}");
        assert!(!bed.path("run/tombolo/vm-one").exists(), "{word}");
        fs::write(bed.path("vmm.one.free"), "").expect("write");
        let _ = fs::remove_file(bed.path("vmm.one"));
        let _told = bed.vmm("one", Flaw::None);
        bed.run("vm boot one").succeeded();
    }
}

#[test]
fn drafts_are_removed_once_their_directory_is_back() {
    for command in ["stop", "checkpoint"] {
        let (bed, mut checkpoint) = Bed::with_waiting_checkpoint();
        assert!(bed.vm("one").join("disk.new.overlay").exists());
        mount("away", bed.vm("one"), "tmpfs", MountFlags::empty(), c"")
            .expect("mounted: the tests need root");
        let away = Mounted(bed.vm("one"));
        fs::write(bed.path("vmm.one.free"), "").expect("write");
        assert!(!checkpoint.wait().expect("its end").success());
        drop(away);
        assert!(bed.is("one", "running"), "{}", bed.list());
        bed.run(format!("vm {command} one")).succeeded();
        bed.has_no_drafts(command);
    }
}

#[test]
fn vm_stop_does_not_wait_for_devices_that_stay() {
    let (bed, mut checkpoint) = Bed::with_waiting_checkpoint();
    let began = Instant::now();
    bed.run("vm stop one").succeeded();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(bed.is("one", "off"), "{}", bed.list());
    assert!(!checkpoint.wait().expect("its end").success());
}

#[test]
fn a_vm_is_saved_from_another_mount_namespace() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    bed.remember("kept  ");
    bed.run_elsewhere("vm checkpoint one").succeeded();
    assert!(bed.is("one", "running"), "{}", bed.list());
    bed.remember("later ");
    bed.run_elsewhere("vm suspend one").succeeded();
    assert_eq!(bed.resumed(), "later ");
    bed.run("vm restore one").succeeded();
    assert_eq!(bed.resumed(), "kept  ");
}

#[test]
fn checkpoint_completes_after_kill_of_command() {
    let bed = Bed::new();
    bed.make_image();
    for word in ["device_del", "migrate", "cont"] {
        let _ = fs::remove_file(bed.path("vmm.one.free"));
        let told = bed.clone_image("none", Flaw::None);
        let _ = told.try_iter().count();
        bed.remember("kept  ");
        let mut checkpoint = bed.begun("vm checkpoint one");
        told.iter().find(|(command, _)| command == word).expect("it is told");
        checkpoint.kill().and_then(|()| checkpoint.wait()).expect("killed");
        until("it is there", || bed.vm("one").join("state.1").exists());
        assert!(bed.is("one", "running"), "{}", bed.list());
        bed.remember("later ");
        // Waits for the end of the checkpoint's work.
        bed.run("vm suspend one").succeeded();
        assert_eq!(bed.resumed(), "later ");
        bed.run("vm restore one").succeeded();
        assert_eq!(bed.resumed(), "kept  ");
        bed.run("vm rm one").succeeded();
    }
}

#[test]
fn vm_killed_in_checkpoint_keeps_disk_and_previous_checkpoint() {
    let bed = Bed::new();
    bed.make_image();
    for word in ["device_del", "migrate", "cont", "device_add"] {
        let _ = fs::remove_file(bed.path("vmm.one.free"));
        let _told = bed.clone_image("none", Flaw::None);
        bed.remember("first ");
        bed.checkpoint("");
        bed.run("vm suspend one").succeeded();
        let told = bed.vmm("one", Flaw::None);
        bed.run("vm resume one").succeeded();
        let _ = told.try_iter().count();
        bed.remember("second");
        let mut checkpoint = bed.begun("vm checkpoint one");
        told.iter().find(|(command, _)| command == word).expect("it is told");
        crate::common::signal(bed.supervisor().parse().expect("a number"), "KILL");
        let _ = checkpoint.wait();
        until("the rest ends by itself", || bed.pids("one").is_empty());
        bed.run("vm stop one").succeeded();
        bed.boot_again();
        bed.run("vm stop one").succeeded();
        bed.run("vm restore one 1").succeeded();
        assert_eq!(bed.resumed(), "first ", "{word}");
        bed.run("vm rm one").succeeded();
    }
}

#[test]
fn killed_restoration_is_repeated_or_not_begun() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    bed.remember("kept  ");
    bed.run("vm suspend one").succeeded();
    bed.run("vm checkpoint one").succeeded();
    for turn in 0..4 {
        bed.resume("one");
        bed.remember("other ");
        bed.run("vm suspend one").succeeded();
        let mut restore = bed.begun("vm restore one");
        thread::sleep(Duration::from_millis(10 + turn * 10));
        restore.kill().and_then(|()| restore.wait()).expect("killed");
        if bed.is("one", "suspended") {
            let found = bed.resumed();
            assert!(["kept  ", "other "].contains(&&*found), "{found}");
        } else {
            assert!(bed.is("one", "the restoration is incomplete; repeat tombolo vm restore one 1"));
            bed.run("vm resume one").failed(1, &["it was not suspended"]);
        }
        bed.run("vm restore one").succeeded();
        assert_eq!(bed.resumed(), "kept  ");
    }
}

#[test]
fn periodic_checkpoints_run_until_stopped() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    bed.remember("kept  ");
    let mut every = bed.begun("vm checkpoint one --every 1 --keep 2");
    until("there are three", || bed.vm("one").join("state.3").exists());
    crate::common::signal(every.id(), "TERM");
    assert!(!every.wait().expect("its end").success(), "it was ended");
    assert!(bed.is("one", "running"), "{}", bed.list());
    assert_eq!(at(&bed.memory_of_clone("one"), 0, 6), "kept  ");
    let kept = bed.numbered().iter().filter(|name| name.starts_with("state")).count();
    assert_eq!(kept, 2, "{:?}", bed.numbered());
}

#[test]
fn periodic_checkpoints_of_suspended_vm_end_at_once() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    bed.run("vm suspend one").succeeded();
    let began = Instant::now();
    bed.run("vm checkpoint one --every 60").succeeded();
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(bed.vm("one").join("state.1").exists());
}

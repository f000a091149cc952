//! Kills at every stage: the remaining VM can be stopped, and can be resumed or reports the reason; no
//! process or mount is left.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, kill_process};

use super::moved::is_whole_or_refused;
use super::{Bed, Flaw, MIB, at};
use crate::common::{Mounted, Ran, lives, overwrite, signal, until, words};

/// Process to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Command,
    Supervisor,
    Disk,
    Memory,
    Vmm,
}
use Victim::{Command as Asking, Disk, Memory, Supervisor, Vmm};

/// Time of the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// The clone's overlays have been begun.
    Overlays,
    /// The VMM received this command while the clone was created.
    Made(&'static str),
    /// The guest is running.
    Runs,
    /// The VMM received this command during the suspension.
    Sleeps(&'static str),
    /// Suspended, except for the end of the processes.
    Ending,
}
use Point::{Ending, Made, Overlays, Runs, Sleeps};

impl Bed {
    /// Returns the processes that serve or run this VM.
    pub fn processes(&self, name: &str) -> Vec<(Pid, String)> {
        let own = self.text("");
        let all = fs::read_dir("/proc").expect("processes").flatten();
        let of_number = |entry: fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()));
        let with_words = |(number, path): (i32, PathBuf)| {
            let words = fs::read_to_string(path.join("cmdline")).ok()?;
            Some((Pid::from_raw(number)?, words))
        };
        let is_its = |words: &str| words.contains(&own) && words.contains(&format!("vm-{name}/"));
        all.filter_map(of_number).filter_map(with_words).filter(|(_, words)| is_its(words)).collect()
    }

    pub fn pids(&self, name: &str) -> Vec<u32> {
        let all = self.processes(name).into_iter();
        all.map(|(pid, _)| pid.as_raw_nonzero().get().unsigned_abs()).collect()
    }

    fn kill(&self, name: &str, victim: Victim, command: &mut Child) {
        let its = |part: &str| {
            let all = self.processes(name);
            all.into_iter().find(|(_, words)| words.contains(part)).map(|(process, _)| process)
        };
        let run = self.vm(name).join("pid");
        let process = match victim {
            Asking => return command.kill().expect("killed"),
            Supervisor => fs::read_to_string(run).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?)),
            Disk => its("disk.overlay"),
            Memory => its("memory.overlay"),
            Vmm => its("guest="),
        };
        kill_process(process.expect("it runs"), Signal::KILL).expect("killed");
    }

    /// Creates, uses and suspends a clone, and kills a process on the way.
    fn killed(&self, name: &str, victim: Victim, point: Point) {
        let flaw = match point {
            Made(word) | Sleeps(word) => Flaw::Silent(word),
            Ending => Flaw::StaysTold,
            Overlays | Runs => Flaw::None,
        };
        let told = self.vmm(name, flaw);
        let wait_for =
            |word: &str| told.iter().find(|(command, _)| command == word).map(drop).expect("it is told");
        let mut command = self.begun(format!("clone image {name} --net none --qemu ./vmm"));
        match point {
            Overlays => until("it is begun", || self.vm(name).join("disk.overlay").exists()),
            Made(word) => wait_for(word),
            Runs | Sleeps(_) | Ending => {
                assert!(command.wait().expect("its end").success(), "{name}");
                overwrite(self.memory_of_clone(name), 0, b"change");
            }
        }
        if let Sleeps(word) = point {
            command = self.begun(format!("vm suspend {name}"));
            wait_for(word);
        } else if point == Ending {
            command = self.begun(format!("vm suspend {name}"));
            wait_for("quit");
        }
        self.kill(name, victim, &mut command);
        fs::write(self.path(&format!("vmm.{name}.free")), "").expect("write");
        if victim == Asking && point == Ending {
            self.end(name, "0");
        }
        let _ = command.wait();
    }

    pub fn begun(&self, line: impl AsRef<str>) -> Child {
        let mut command = self.tombolo(line);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("spawn")
    }

    /// Asserts that the VM's state is true, that it can be stopped, and then resumed or booted, or else
    /// removed.
    fn is_sound(&self, name: &str, victim: Victim, point: Point) {
        let about = format!("{victim:?} killed at {point:?}: {}", self.list());
        let is_used = matches!(point, Runs | Sleeps(_) | Ending);
        let has_run = is_used || point == Made("cont");
        if victim != Asking {
            until("the rest ends by itself", || self.processes(name).is_empty());
            // The creating command removes a VM that has never run.
            if point == Made("migrate-incoming") {
                assert!(!self.vm(name).exists() && !self.monitor(name).exists(), "{about}");
                return;
            }
        } else if has_run {
            // The interrupted command can be repeated, or has completed.
            if point != Ending {
                self.run(format!("vm suspend {name}")).succeeded();
            }
            until("it sleeps", || self.is(name, "suspended"));
        }
        self.run(format!("vm stop {name}")).succeeded();
        assert!(self.processes(name).is_empty(), "{about}");
        let sleeps = self.is(name, "suspended");
        // A guest that has run has its memory nowhere else.
        assert_eq!(sleeps || self.is(name, "incomplete"), victim == Asking || !has_run, "{about}");
        let again = if sleeps { "resume" } else { "boot" };
        // A dead VMM may have been told to end.
        let _ = fs::remove_file(self.path(&format!("vmm.{name}")));
        // An incomplete VM starts no VMM, and a fake one would create its socket again during the removal.
        let _told = (!self.is(name, "incomplete")).then(|| self.vmm(name, Flaw::None));
        let went_on = self.run(format!("vm {again} {name}"));
        if self.is(name, "incomplete") {
            went_on.failed(1, &["vm rm"]);
        } else {
            went_on.succeeded();
            let found = at(&self.memory_of_clone(name), 0, 6);
            assert!(!sleeps || found == if is_used { "change" } else { "\0\0\0\0\0\0" }, "{about}");
        }
        self.run(format!("vm rm --force {name}")).succeeded();
        assert!(self.processes(name).is_empty(), "{about}");
        let left = [self.vm(name), self.memory_of_clone(name), self.monitor(name)];
        assert!(left.iter().all(|path| !path.exists()), "{about}");
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!mounts.contains(&self.text(&format!("run/tombolo/vm-{name}/"))), "{about}");
    }
}

#[test]
fn vm_refuses_resume_without_its_memory() {
    let bed = Bed::new();
    let state = bed.path("state");
    mount("small", &state, "tmpfs", MountFlags::empty(), c"size=16m").expect("mounted: the tests need root");
    let _small = Mounted(state.clone());
    bed.make_image();
    let _told = bed.clone_image("none", Flaw::None);
    let memory = File::options().write(true).open(bed.memory_of_clone("one")).expect("open");
    let mut filler = File::create(state.join("filler")).expect("create");
    while filler.write_all(&[1; 4096]).is_ok() {}
    let written = memory.write_all_at(&[1; 64 << 10], MIB).and_then(|()| memory.sync_all());
    written.expect_err("there is no room");
    // Without space the reason cannot be recorded either.
    until("it has ended", || {
        bed.is("one", "died") || bed.is("one", "failed: the server of its memory ended")
    });
    until("nothing of it runs", || bed.processes("one").is_empty() && !bed.memory_of_clone("one").exists());
    drop(memory);
    fs::remove_file(state.join("filler")).expect("there");
    bed.run("vm resume one").failed(1, &["its memory is lost"]);
    bed.run("vm rm one").succeeded();
}

#[test]
fn vm_is_reachable_from_another_session() {
    let (bed, _told) = Bed::with_clone("none", Flaw::None);
    let other = bed.path("other-run");
    fs::create_dir(&other).expect("mkdir");
    let run = |line: &str| {
        let mut command = bed.tombolo(line);
        command.env("XDG_RUNTIME_DIR", &other);
        Ran::new(command)
    };
    run("vm show one").says(&["memory read, written"]);
    run("vm suspend one").succeeded();
    // It runs in the session that started it last.
    let moved = other.join("tombolo/vm-one/memory/memory");
    let there = bed.path("run/tombolo/vm-one");
    assert!(bed.is("one", "suspended") && !there.exists(), "{}", bed.list());
    let monitor = other.join("tombolo/vm-one/monitor");
    let _told = bed.vmm_at("one", monitor, Flaw::None);
    run("vm resume one").succeeded();
    assert_eq!(at(&moved, MIB, 6), "memory");
    bed.run("vm rm --force one").succeeded();
    assert!(!moved.exists() && bed.processes("one").is_empty());
}

#[test]
fn killed_vm_is_stoppable_and_resumes_or_explains() {
    let bed = Bed::new();
    bed.make_image();
    let some = [
        (Asking, Overlays),
        (Memory, Made("migrate-incoming")),
        (Supervisor, Made("cont")),
        (Supervisor, Runs),
        (Vmm, Runs),
        (Asking, Sleeps("migrate")),
        (Memory, Sleeps("quit")),
        (Disk, Ending),
    ];
    let places = [
        Made("migrate-incoming"),
        Made("cont"),
        Runs,
        Sleeps("stop"),
        Sleeps("migrate"),
        Sleeps("quit"),
        Ending,
    ];
    let victims = [Asking, Supervisor, Disk, Memory, Vmm];
    let all = places.iter().flat_map(|point| victims.map(|victim| (victim, *point)));
    // A running guest has no command to kill.
    let all = all.filter(|case| *case != (Asking, Runs));
    let cases: Vec<_> =
        if std::env::var_os("TOMBOLO_LONG").is_some() { all.chain(some).collect() } else { some.into() };
    for (number, (victim, point)) in cases.into_iter().enumerate() {
        let name = format!("vm{number}");
        bed.killed(&name, victim, point);
        bed.is_sound(&name, victim, point);
    }
}

/// Returns all descendants of a process.
fn started_by(process: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    let parent_of = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, after) = text.rsplit_once(')')?;
        let parent = after.split_whitespace().nth(1)?.parse::<u32>().ok()?;
        Some((entry.file_name().to_str()?.parse::<u32>().ok()?, parent))
    };
    let parents: Vec<(u32, u32)> = all.filter_map(parent_of).collect();
    let mut found = vec![process];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        next += 1;
    }
    found.remove(0);
    found
}

#[test]
fn all_servers_end_with_a_supervisor_that_is_killed() {
    let bed = Bed::new();
    bed.make_image();
    ["first", "second"].iter().for_each(|dir| fs::create_dir(bed.path(dir)).expect("mkdir"));
    // Immediate next commands, and a server that neither replies nor ends.
    let cases = [
        ("", None),
        ("vm stop", None),
        ("vm boot", None),
        ("vm rm --force", None),
        ("vm stop", Some("disk.overlay")),
        ("vm boot", Some("memory.overlay")),
        ("vm rm --force", Some("tag=b")),
    ];
    for (number, (next, silent)) in cases.into_iter().enumerate() {
        let name = format!("vm{number}");
        let _told = bed.vmm(&name, Flaw::None);
        let clone = format!("clone image {name} --net none --qemu ./vmm");
        bed.run(format!("{clone} --share a=first --share b=second")).succeeded();
        let pid = fs::read_to_string(bed.vm(&name).join("pid")).expect("it runs");
        let supervisor = pid.parse().expect("a number");
        let parts = started_by(supervisor);
        assert!(parts.len() > 5, "memory with its mounter, disk, two shares and a VMM: {parts:?}");
        let is_silent = |words: &str| silent.is_some_and(|part| words.contains(part));
        for (process, _) in bed.processes(&name).iter().filter(|(_, words)| is_silent(words)) {
            kill_process(*process, Signal::STOP).expect("stopped");
        }
        signal(supervisor, "KILL");
        let _told = next.contains("boot").then(|| bed.vmm_of_next(&name, Flaw::None));
        if !next.is_empty() {
            bed.run(format!("{next} {name}")).succeeded();
        }
        until(&format!("all have ended: {next:?}, {silent:?}"), || !parts.iter().any(|part| lives(*part)));
        if bed.vm(&name).exists() {
            bed.run(format!("vm rm --force {name}")).succeeded();
        }
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!mounts.contains(&bed.text(&format!("run/tombolo/vm-{name}/"))), "{mounts}");
        assert!(bed.processes(&name).is_empty(), "{next:?}, {silent:?}");
    }
}

#[test]
fn killed_clone_can_be_resumed_or_removed() {
    let bed = Bed::new();
    bed.make_image();
    let told = bed.vmm("one", Flaw::NeverLoads);
    let mut clone = bed.tombolo("clone image one --net none --qemu ./vmm").spawn().expect("spawn");
    told.iter().find(|(command, _)| command == "migrate-incoming").expect("it waits for the VMM");
    clone.kill().and_then(|()| clone.wait()).expect("killed");
    assert!(bed.is("one", "starting"), "{}", bed.list());
    // Two VMs never use the same redo log.
    bed.run("vm resume one").failed(1, &["it is running", "tombolo vm stop one"]);
    bed.run("vm rm one").failed(1, &["it is running"]);
    bed.run("vm stop one").succeeded();
    assert!(bed.is("one", "suspended"), "its guest never ran: {}", bed.list());
    bed.resume("one");
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
    bed.run("vm rm --force one").succeeded();
    assert!(!bed.vm("one").exists() && !bed.path("run/tombolo/vm-one").exists());
}

#[test]
fn a_removal_beside_other_commands_leaves_nothing() {
    let bed = Bed::new();
    bed.list();
    for _ in 0..20 {
        fs::create_dir(bed.vm("x")).and_then(|()| fs::write(bed.vm("x").join("phase"), "off")).expect("a VM");
        (0..200).for_each(|number| fs::write(bed.vm("x").join(number.to_string()), "").expect("write"));
        let mut others: Vec<_> = (0..3).map(|_| bed.begun("vm stop x")).collect();
        others.push(bed.begun("vm list"));
        // A status query may hold the lock for a moment.
        until("it is removed", || bed.begun("vm rm --force x").wait().is_ok() && !bed.vm("x").exists());
        others.iter_mut().for_each(|other| drop(other.wait()));
        assert!(!bed.vm("x").exists(), "{:?}", fs::read_dir(bed.vm("x")).map(|left| left.count()));
    }
    let left: Vec<_> = fs::read_dir(bed.path("state/tombolo"))
        .expect("list")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, ["version"]);
}

/// System calls of image creation, and the interval of those at which the command is killed in the short run.
const CALLS: [(&str, usize); 9] = [
    ("mkdir", 1),
    ("openat", 5),
    ("write", 2),
    ("pwritev2", 2),
    ("ftruncate", 1),
    ("copy_file_range", 1),
    ("fsync", 1),
    ("fdatasync", 1),
    ("rename", 1),
];

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("there");
    entries.map(|entry| entry.expect("read").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_kill_leaves_an_incremental_image_whole_or_refused() {
    let bed = Bed::new();
    bed.make_changed("one");
    let is_long = std::env::var_os("TOMBOLO_LONG").is_some();
    let program = env!("CARGO_BIN_EXE_tombolo");
    let (mut kills, mut removed) = (0, 0);
    for (call, step) in CALLS {
        for number in (1..).step_by(if is_long { 1 } else { step }) {
            let dir = bed.path("images");
            fs::create_dir(&dir).expect("mkdir");
            let inject = format!("inject={call}:signal=KILL:when={number}");
            let suspend = "vm suspend one --to images/one --changes";
            let strace = format!("-f -qq -o /dev/null -e {inject} {program} {suspend}");
            let mut traced = bed.program("strace", &words(&strace));
            let made = traced.output().expect("strace is needed: make packages");
            assert!(bed.is("one", "suspended"), "{}", bed.list());
            let found = is_whole_or_refused(&bed, &dir, "after-");
            let is_draft = |name: &str| name.ends_with(".part");
            if removed < 2 && names(&dir).iter().any(|name| is_draft(name)) {
                bed.run("vm suspend one --to images/two --changes --no-scan").succeeded();
                assert!(!names(&dir).iter().any(|name| is_draft(name)), "{:?}", names(&dir));
                removed += 1;
            }
            fs::remove_dir_all(&dir).expect("removed");
            if made.status.success() {
                assert_eq!(found, 1, "{made:?}");
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 20, "it was killed {kills} times only");
    assert!(removed > 0, "it was never killed in the middle");
}

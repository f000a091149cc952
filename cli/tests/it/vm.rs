//! VMs and clones with a scripted VMM: order of state changes, and recovery after failures. The guest tests
//! run them with QEMU.

use std::fs::{self, File};
use std::io::{IoSliceMut, Write};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::common::{Mounted, Ran, Scratch, overwrite, signal, until};

mod checkpoints;
mod kernels;
pub mod kills;
mod links;
mod moved;
mod power;
mod rehearsal;
mod shares;

pub const MIB: u64 = 1 << 20;
const STATE: &str = "the state of all devices";

/// Runs until it is told to end with a status, or as after a guest reset.
const VMM: &str = r#"#!/bin/sh
for word; do case $word in guest=*) name=${word#guest=} ;; esac; done
printf '%s\n' "$@" >"$0.$name.told"
trap 'exit 0' TERM
until [ -e "$0.$name" ]; do sleep 0.01; done
read -r status <"$0.$name"
rm "$0.$name"
if [ "$status" = reset ]; then
    printf '{"QMP": {}}\r\n{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}\r\n' >&0
    exit 0
fi
[ "$status" = 0 ] || echo "it ends with $status"
exit "$status"
"#;

/// A fault of a VMM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Does not reply to this command, and serves the next client when the test permits.
    Silent(&'static str),
    /// Replies to this command when the test permits.
    Slow(&'static str),
    /// Dies after saving its devices.
    DiesSaved,
    /// Cannot save its devices.
    SavesNot,
    /// Cannot load its devices.
    LoadsNot,
    /// Cannot run the guest.
    RunsNot,
    /// Is [`Slow`](Self::Slow) to run the guest after its device state was saved.
    ResumesSlowly,
    /// Never finishes loading its devices.
    NeverLoads,
    /// Has no slot for a network.
    NoNetwork,
    /// Has no slot for a network card.
    NoCard,
    /// Has no slot for a share, the first device.
    NoShare,
    /// Ignores the command to quit.
    StaysTold,
}

/// A scratch directory with a disk and a VMM.
pub struct Bed(pub Scratch);

impl Deref for Bed {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl Bed {
    pub fn new() -> Self {
        Self::at(Scratch::new())
    }

    fn at(scratch: Scratch) -> Self {
        scratch.script("vmm", VMM);
        scratch.sparse("disk.img", 4 * MIB).write_all_at(b"disk", MIB).expect("write");
        Self(scratch)
    }

    pub fn vm(&self, name: &str) -> PathBuf {
        self.path("state/tombolo").join(format!("vm-{name}"))
    }

    pub fn memory_of_clone(&self, name: &str) -> PathBuf {
        self.path("run/tombolo").join(format!("vm-{name}/memory/memory"))
    }

    fn monitor(&self, name: &str) -> PathBuf {
        self.path("run/tombolo").join(format!("vm-{name}/monitor"))
    }

    /// Ends the VMM of `name`.
    fn end(&self, name: &str, how: &str) {
        end(&self.path(&format!("vmm.{name}")), how);
    }

    /// Returns the VMM's command line.
    fn words(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("vmm.{name}.told"))).unwrap_or_default()
    }

    /// Serves the monitor of the VMM that is to take `name` over.
    fn successor(&self, name: &str, flaw: Flaw) -> Receiver<(String, String)> {
        self.vmm_at(name, self.monitor(name).with_extension("next"), flaw)
    }

    /// Serves the monitor of `name` until quit. Returns the commands received, with the VM's phase at that
    /// time.
    pub fn vmm(&self, name: &str, flaw: Flaw) -> Receiver<(String, String)> {
        self.vmm_at(name, self.monitor(name), flaw)
    }

    /// Serves the monitor once the VM has another supervisor.
    fn vmm_of_next(&self, name: &str, flaw: Flaw) -> Receiver<(String, String)> {
        let pid = self.vm(name).join("pid");
        let supervisor = move || fs::read_to_string(&pid).unwrap_or_default();
        let before = [supervisor(), String::new()];
        self.vmm_when(name, self.monitor(name), flaw, move || !before.contains(&supervisor()))
    }

    /// Serves a monitor at another path.
    fn vmm_at(&self, name: &str, monitor: PathBuf, flaw: Flaw) -> Receiver<(String, String)> {
        self.vmm_when(name, monitor, flaw, || true)
    }

    /// Serves the monitor once a condition holds.
    fn vmm_when(
        &self,
        name: &str,
        monitor: PathBuf,
        mut flaw: Flaw,
        has_come: impl Fn() -> bool + Send + 'static,
    ) -> Receiver<(String, String)> {
        let (told, tells) = channel();
        let phase = self.vm(name).join("phase");
        let [file, free] = ["", ".free"].map(|ending| self.path(&format!("vmm.{name}{ending}")));
        let moment = self.path("moment");
        let words = self.path(&format!("vmm.{name}.told"));
        let written = move || {
            let found = fs::metadata(&words).ok().filter(|words| words.len() > 0)?;
            Some((found.mtime(), found.mtime_nsec()))
        };
        let before = written();
        thread::spawn(move || {
            // Tests move the script and read its words, so it has begun before its monitor answers.
            while !has_come() || [None, before].contains(&written()) {
                thread::sleep(Duration::from_millis(1));
            }
            let listener = loop {
                match UnixListener::bind(&monitor) {
                    Ok(listener) => break listener,
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            };
            for stream in listener.incoming() {
                let mut session = Session::new(stream.expect("a client"));
                while let Some(command) = session.next() {
                    let phase = fs::read_to_string(&phase).unwrap_or_default();
                    // The test may have stopped listening.
                    let _ = told.send((command.clone(), phase));
                    if flaw == Flaw::ResumesSlowly && command == "migrate" {
                        flaw = Flaw::Slow("cont");
                    }
                    if matches!(flaw, Flaw::Silent(word) | Flaw::Slow(word) if word == command) {
                        until("the test goes on", || free.exists());
                        if matches!(std::mem::replace(&mut flaw, Flaw::None), Flaw::Silent(_)) {
                            break;
                        }
                    }
                    session.answer(&command, flaw, &fs::read_to_string(&moment).unwrap_or_default());
                    match (command.as_str(), flaw) {
                        ("quit", Flaw::StaysTold) => return,
                        ("quit", _) => return end(&file, "0"),
                        ("migrate", Flaw::DiesSaved) => return end(&file, "3"),
                        _ => {}
                    }
                }
            }
        });
        tells
    }

    /// Creates an image, and a running clone `one` of it.
    fn with_clone(net: &str, flaw: Flaw) -> (Self, Receiver<(String, String)>) {
        let bed = Self::new();
        bed.make_image();
        let told = bed.clone_image(net, flaw);
        (bed, told)
    }

    /// Creates a running clone `one` of the image.
    fn clone_image(&self, net: &str, flaw: Flaw) -> Receiver<(String, String)> {
        let told = self.vmm("one", flaw);
        self.run(format!("clone image one --net {net} --qemu ./vmm")).succeeded();
        told
    }

    /// Creates a running clone with no network, and these additional words.
    pub fn clone_of(&self, image: &str, name: &str, more: &str) -> Ran {
        drop(self.vmm(name, Flaw::None));
        self.run(format!("clone {image} {name} --net none --qemu ./vmm {more}"))
    }

    pub fn resume(&self, name: &str) {
        drop(self.vmm(name, Flaw::None));
        self.run(format!("vm resume {name}")).succeeded();
    }

    /// Boots `one` again. A dead VMM may have been told to end.
    fn boot_again(&self) {
        let _ = fs::remove_file(self.path("vmm.one"));
        drop(self.vmm("one", Flaw::None));
        self.run("vm boot one").succeeded();
    }

    pub fn make_image(&self) {
        self.make_image_of("");
    }

    /// Starts a VM `golden` with these additional words, and creates an image of it.
    fn make_image_of(&self, words: &str) {
        let told = self.boot("golden", &format!("none {words}"), Flaw::None);
        self.run("vm suspend golden --to image").succeeded();
        assert!(told.iter().any(|(command, _)| command == "device_del"), "it has no card in the image");
    }

    /// Boots a new VM with a network and these additional words.
    fn boot(&self, name: &str, net: &str, flaw: Flaw) -> Receiver<(String, String)> {
        let told = self.vmm(name, flaw);
        let line = format!("vm start {name} --disk disk.img --memory 2M --accel tcg --qemu ./vmm --net");
        self.run(format!("{line} {net}")).succeeded();
        overwrite(self.vm(name).join("memory"), MIB, b"memory");
        told
    }

    /// Returns the processes of image caches.
    pub fn caches(&self) -> Vec<u32> {
        let told = self.run("top --once --json");
        let told: serde_json::Value = serde_json::from_str(&told.out).unwrap_or_default();
        let servers = told["servers"].as_array().into_iter().flatten().map(|server| &server["status"]);
        let is_cache = |status: &&serde_json::Value| {
            status["exports"][0]["name"].as_str().is_some_and(|name| name.starts_with("/images-"))
        };
        servers.filter(is_cache).filter_map(|status| Some(status["pid"].as_u64()? as u32)).collect()
    }

    pub fn list(&self) -> String {
        self.run("vm list").succeeded().out
    }

    pub fn is(&self, name: &str, state: &str) -> bool {
        self.list().lines().any(|line| line.starts_with(name) && line.contains(state))
    }
}

impl Drop for Bed {
    /// Ends all VMs and caches, whose processes would outlive their directories.
    fn drop(&mut self) {
        self.caches().into_iter().for_each(|pid| signal(pid, "TERM"));
        for entry in fs::read_dir(self.path("state/tombolo")).into_iter().flatten().flatten() {
            if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_prefix("vm-")) {
                let _ = self.tombolo(format!("vm stop {name}")).output();
            }
        }
    }
}

/// A client of the monitor.
struct Session {
    stream: UnixStream,
    state: Option<OwnedFd>,
    has_devices: bool,
    looks: usize,
}

impl Session {
    fn new(stream: UnixStream) -> Self {
        let mut session = Self { stream, state: None, has_devices: false, looks: 0 };
        session.say(r#"{"QMP": {}}"#);
        session
    }

    /// Sends a line; the client may have disconnected.
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.stream, "{line}");
    }

    /// Receives the next command; the client sends none before the previous reply. A passed file descriptor
    /// is retained.
    fn next(&mut self) -> Option<String> {
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut room);
        let mut bytes = vec![0; 64 << 10];
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        // A killed client may leave an error.
        let got = recvmsg(&self.stream, slices, &mut beside, RecvFlags::empty()).ok()?;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.state = files.last();
            }
        }
        let command: serde_json::Value = serde_json::from_slice(&bytes[..got.bytes]).ok()?;
        command["execute"].as_str().map(str::to_owned)
    }

    fn answer(&mut self, command: &str, flaw: Flaw, moment: &str) {
        let refused = match flaw {
            Flaw::NoNetwork => command == "netdev_add",
            Flaw::RunsNot => command == "cont",
            // The first device is the guest's identity.
            Flaw::NoCard => command == "device_add" && std::mem::replace(&mut self.has_devices, true),
            Flaw::NoShare => command == "device_add" && !std::mem::replace(&mut self.has_devices, true),
            _ => false,
        };
        if refused {
            return self.say(r#"{"error": {"class": "GenericError", "desc": "it is taken"}}"#);
        }
        let answer = match command {
            "query-status" => r#"{"status": "running"}"#,
            "qom-get" => r#""pc-q35-7.2-machine""#,
            // The guest finds its identity after several queries.
            "query-blockstats" => {
                self.looks += 1;
                let found = usize::from(self.looks.is_multiple_of(4));
                return self.say(&format!(
                    r#"{{"return": [{{"node-name": "identity-file", "stats": {{"rd_operations": {found}}}}}]}}"#
                ));
            }
            _ => "{}",
        };
        self.say(&format!("{{\"return\": {answer}}}"));
        let [completed, failed] = [
            r#"{"event": "MIGRATION", "data": {"status": "completed"}}"#,
            r#"{"event": "MIGRATION", "data": {"status": "failed"}}"#,
        ];
        match command {
            "device_del" => ["card", "identity", "share-1"].iter().for_each(|device| {
                self.say(&format!(r#"{{"event": "DEVICE_DELETED", "data": {{"device": "{device}"}}}}"#));
            }),
            "migrate" if flaw == Flaw::SavesNot => self.say(failed),
            "migrate-incoming" if flaw == Flaw::LoadsNot => self.say(failed),
            "migrate" => {
                let mut state = File::from(self.state.take().expect("a file"));
                state.write_all(format!("{STATE}{moment}").as_bytes()).expect("write");
                self.say(completed);
            }
            "migrate-incoming" if flaw != Flaw::NeverLoads => {
                let state = File::from(self.state.take().expect("a file"));
                assert!(std::io::read_to_string(state).expect("read").starts_with(STATE));
                self.say(completed);
            }
            _ => {}
        }
    }
}

/// Writes the file atomically.
fn end(file: &Path, how: &str) {
    let draft = file.with_added_extension("draft");
    fs::write(&draft, format!("{how}\n")).and_then(|()| fs::rename(&draft, file)).expect("write");
}

pub fn at(path: &Path, offset: u64, len: usize) -> String {
    let mut bytes = vec![0; len];
    File::open(path).expect("open").read_exact_at(&mut bytes, offset).expect("read");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn clone_resumes_image_and_suspends_durably() {
    let bed = Bed::new();
    bed.make_image();
    let image = bed.path("image");
    assert_eq!(
        (at(&image.join("memory"), MIB, 6), at(&image.join("disk"), MIB, 4)),
        ("memory".into(), "disk".into())
    );
    assert_eq!(fs::read_to_string(image.join("state")).expect("read"), STATE);
    assert!(fs::read_to_string(image.join("vm.toml")).expect("read").contains("\"pc-q35-7.2\""));
    let told = bed.vmm("one", Flaw::None);
    let made = bed.run("clone image one --net user --qemu ./vmm").succeeded();
    made.says(&["start of the VMM", "device state", "memory read on demand", "all"]);
    // Once the guest runs, memory and disk no longer match the device state.
    let told: Vec<_> = told.try_iter().collect();
    let phase_at = |word| told.iter().find(|(command, _)| command == word).map(|(_, phase)| phase.trim_end());
    assert_eq!(
        (phase_at("migrate-incoming"), phase_at("cont")),
        (Some("suspended"), Some("running")),
        "{told:?}"
    );
    assert!(phase_at("device_add").is_some(), "{told:?}");
    let memory = bed.memory_of_clone("one");
    assert_eq!(at(&memory, MIB, 6), "memory");
    overwrite(&memory, 0, b"change");
    assert!(bed.is("one", "running") && bed.is("golden", "suspended"), "{}", bed.list());
    bed.run("vm suspend one").succeeded();
    assert!(bed.is("one", "suspended"), "{}", bed.list());
    assert!(!memory.exists(), "it stays mounted");
    // Its changes are its own.
    bed.run("vm suspend one --to second").succeeded();
    assert_eq!(
        (at(&bed.path("second/memory"), 0, 6), at(&image.join("memory"), 0, 6)),
        ("change".into(), "\0".repeat(6))
    );
    bed.resume("one");
    assert_eq!(at(&memory, 0, 6), "change");
    bed.run("vm suspend one").succeeded();
    bed.run("vm boot one").failed(1, &["tombolo vm resume one", "--force"]);
    let vmm = bed.path("vmm");
    fs::rename(&vmm, bed.path("away")).expect("move");
    fs::rename(bed.script("ends", "#!/bin/sh\nexit 1\n"), &vmm).expect("move");
    bed.run("vm boot one --force").failed(1, &["ended at startup"]);
    // The VMM may have written to the memory.
    assert!(bed.is("one", "off"), "{}", bed.list());
    bed.run("vm resume one").failed(1, &["was not suspended", "tombolo vm boot one"]);
    fs::rename(bed.path("away"), &vmm).expect("move");
    drop(bed.vmm("one", Flaw::None));
    bed.run("vm boot one").succeeded();
    bed.run("vm stop one").succeeded();
    for name in ["one", "golden"] {
        bed.run(format!("vm rm {name}")).succeeded();
    }
    assert_eq!(bed.list().lines().count(), 1, "{}", bed.list());
}

#[test]
fn a_guest_has_its_identity_before_its_network_card() {
    let (bed, told) = Bed::with_clone("user", Flaw::None);
    let told: Vec<_> = told.try_iter().map(|(command, _)| command).collect();
    let plugged: Vec<_> =
        told.iter().skip_while(|command| *command != "device_add").map(String::as_str).collect();
    let looks = ["query-blockstats"; 4];
    assert_eq!(plugged, [&["device_add"][..], &looks, &["device_add"]].concat(), "{told:?}");
    let log = fs::read_to_string(bed.vm("one").join("log")).expect("a log");
    for step in ["guest resumed", "identity plugged", "network card plugged"] {
        assert!(log.contains(step), "{log}");
    }
    bed.run("vm stop one").succeeded();
}

#[test]
fn vmm_death_during_suspend_is_reported() {
    let (bed, _told) = Bed::with_clone("none", Flaw::DiesSaved);
    bed.run("vm suspend one").failed(1, &["one"]);
    until("its end is known", || bed.is("one", "failed: the VMM ended with exit status: 3"));
    bed.run("vm resume one").failed(1, &["its memory is lost", "vm boot one"]);
    // The image is unchanged.
    bed.clone_of("image", "two", "").succeeded();
    assert_eq!(at(&bed.memory_of_clone("two"), MIB, 6), "memory");
    for name in ["two", "one"] {
        bed.run(format!("vm rm --force {name}")).succeeded();
    }
}

#[test]
fn missing_network_does_not_lose_memory() {
    let bed = Bed::new();
    bed.make_image();
    let told = bed.vmm("one", Flaw::NoNetwork);
    let clone = "clone image one --net user --qemu ./vmm";
    bed.run(clone).failed(1, &["network", "it is taken", "tombolo vm resume one"]);
    assert!(bed.is("one", "suspended"), "{}", bed.list());
    assert!(told.try_iter().all(|(command, _)| command != "cont"), "it has run");
    // A VMM that ends at its start is not awaited, and its own message is shown.
    bed.end("one", "5");
    bed.run("vm resume one").failed(1, &["the VMM ended at startup", "it ends with 5"]);
    // Once it runs it continues, whatever is missing.
    let _told = bed.vmm("one", Flaw::NoCard);
    let resumed = bed.run("vm resume one");
    assert_eq!(resumed.code, Some(0));
    assert!(resumed.err.contains("running without it"), "{}", resumed.err);
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
    bed.run("vm stop one").succeeded();
    bed.run("vm suspend one").failed(1, &["it is not running"]);
}

#[test]
fn suspend_completes_after_kill_of_command() {
    let (bed, told) = Bed::with_clone("none", Flaw::StaysTold);
    overwrite(bed.memory_of_clone("one"), 0, b"change");
    let mut suspend = bed.tombolo("vm suspend one").spawn().expect("spawn");
    told.iter().find(|(command, _)| command == "quit").expect("all is written but the memory");
    suspend.kill().and_then(|()| suspend.wait()).expect("killed");
    assert!(bed.is("one", "running"), "{}", bed.list());
    bed.end("one", "0");
    until("all is durable", || bed.is("one", "suspended"));
    bed.resume("one");
    assert_eq!(at(&bed.memory_of_clone("one"), 0, 6), "change");
}

#[test]
fn a_start_that_fails_leaves_no_vm() {
    let bed = Bed::new();
    bed.make_image();
    bed.run("vm rm golden").succeeded();
    // The message of QEMU 7.2, and one of a server that ends with it.
    let says = "#!/bin/sh\necho 'qemu: unsupported machine type\nUse -machine help to list supported machines\n\
                2026-01-01T00:00:00.5Z  WARN tombolo_front_fuse::dev: cannot unmount; detached' >&2\nexit 1\n";
    let fails = "#!/bin/sh\necho 'no such device: x' >&2\nexit 1\n";
    for (name, text) in [("old", says), ("broken", fails)] {
        bed.script(name, text);
    }
    let start = "vm start x --disk disk.img --memory 2M --accel tcg --net none --qemu";
    let clone = "clone image x --net none --qemu";
    let line = |words: &str, qemu: &str| {
        let ran = bed.run(format!("{words} {qemu}"));
        assert!(!ran.err.contains("vm-x/log") && !ran.err.contains("vm resume"), "{}", ran.err);
        assert_eq!(bed.list().lines().count(), 1, "{}", bed.list());
        ran
    };
    for words in [start, clone] {
        line(words, "./broken").failed(1, &["the VMM ended at startup", "no such device: x"]);
        line(words, "no-qemu").failed(1, &["--qemu", "install"]);
    }
    line(clone, "./old").failed(1, &["does not support machine type pc-q35-7.2", "a newer one"]);
}

#[test]
fn invalid_vm_is_refused_and_leaves_nothing() {
    let bed = Bed::new();
    fs::create_dir(bed.path("empty")).expect("mkdir");
    fs::write(bed.path("empty/state"), STATE).expect("write");
    bed.all_fail(&[
        ("vm show none", 1, &["no VM has that name", "tombolo vm list"]),
        ("vm start ../x --disk disk.img", 2, &["letters, digits"]),
        ("vm start x --disk missing.img", 1, &["missing.img"]),
        ("vm start x --disk disk.img --memory much", 2, &["512M"]),
        ("vm start x --disk disk.img --memory 1000", 1, &["invalid memory size"]),
        ("vm start x --disk disk.img --initrd i", 2, &["--kernel"]),
        ("vm start x --disk disk.img --net bridge", 2, &["tap=INTERFACE"]),
        ("clone missing x", 1, &["missing"]),
        ("clone empty x", 1, &["vm.toml"]),
    ]);
    assert_eq!(bed.list().lines().count(), 1, "{}", bed.list());
    // Other users could create sockets there.
    let sockets = bed.path("run/tombolo");
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o777)).expect("chmod");
    bed.run("vm list").failed(1, &["no other user can enter"]);
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o700)).expect("chmod");
    bed.run("vm start x --disk disk.img --memory 1M --qemu no-qemu").failed(1, &["--qemu", "install"]);
    assert_eq!(bed.list().lines().count(), 1, "{}", bed.list());
    // Images with invalid configurations.
    bed.make_image();
    let text = fs::read_to_string(bed.path("image/vm.toml")).expect("read");
    let longer = text.replace("2097152", "4194304");
    assert_ne!(text, longer);
    // Not started; if it were, it would end at once.
    bed.script("ends", "#!/bin/sh\nexit 1\n");
    for (wrong, said) in [(longer, "4194304 are expected"), (text.replace("\"tcg\"", "\"tcg -S\""), "tcg -S")]
    {
        fs::write(bed.path("image/vm.toml"), wrong).expect("write");
        bed.run("clone image y --qemu ./ends").failed(1, &[said]);
    }
    fs::write(bed.path("image/vm.toml"), text).expect("write");
    // Oversized files are not copied.
    for (name, len) in [("state", (1 << 30) + 1), ("vm.toml", 65537)] {
        let (file, real) = (bed.path("image").join(name), bed.path("real"));
        fs::rename(&file, &real).expect("move");
        File::create(&file).and_then(|file| file.set_len(len)).expect("create");
        bed.run("clone image y --qemu ./vmm").failed(1, &[name, "it exceeds"]);
        fs::rename(&real, &file).expect("restore the original");
    }
    // The memory is private to its user, and no link leads out of the image.
    for name in ["", "memory", "state", "disk", "vm.toml", ".tombolo-image"] {
        let rights = fs::metadata(bed.path("image").join(name)).expect("there").mode();
        assert_eq!(rights & 0o077, 0, "{name:?} has {rights:o}");
    }
    for name in ["state", "disk", "vm.toml"] {
        let (file, real) = (bed.path("image").join(name), bed.path("real"));
        fs::rename(&file, &real).and_then(|()| symlink(&real, &file)).expect("link");
        let said = format!("image/{name} is not a file");
        bed.run("clone image y --qemu ./vmm").failed(1, &[&said]);
        fs::rename(&real, &file).expect("restore the original");
    }
    assert!(!bed.vm("y").exists(), "{}", bed.list());
}

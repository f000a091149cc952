//! The monitor client with a scripted VMM, and the command line.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use tombolo_host_vmm::network::Network;
use tombolo_host_vmm::{Boot, End, LINE_BYTES_MAX, Launch, Machine, Monitor, MonitorError, process};
use tombolo_sys::socket;

const PATIENCE: Duration = Duration::from_secs(30);
const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;
const DONE: &str = r#"{"return": {}}"#;

/// A VMM that sends its greeting, and replies to each command with the next of these texts. Returns the
/// commands at the end.
struct Vmm {
    dir: TempDir,
    asked: JoinHandle<Vec<String>>,
}

/// Line of a reply that is not sent, but delays the next one.
const WAIT: &str = "wait";

/// Sends a line, in which `NOW` is replaced by the present time.
fn say(out: &mut UnixStream, line: &str) -> std::io::Result<()> {
    if line == WAIT {
        thread::sleep(Duration::from_millis(100));
        return Ok(());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
    let now = format!(r#"{{"seconds": {}, "microseconds": {}}}"#, now.as_secs(), now.subsec_micros());
    write!(out, "{}\r\n", line.replace("NOW", &now))
}

impl Vmm {
    fn new(answers: &[&str]) -> Self {
        let dir = TempDir::new().expect("a directory");
        let listener = UnixListener::bind(dir.path().join("qmp")).expect("bind");
        let answers: Vec<String> = [DONE].iter().chain(answers).map(|answer| (*answer).into()).collect();
        let asked = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            let mut out = stream.try_clone().expect("clone");
            let mut lines = BufReader::new(stream).lines();
            writeln!(out, "{GREETING}").expect("greet");
            let mut asked = Vec::new();
            for answer in answers {
                let Some(Ok(line)) = lines.next() else { break };
                asked.push(line);
                // The client may have closed the connection.
                if answer.split('\n').try_for_each(|line| say(&mut out, line)).is_err() {
                    break;
                }
            }
            asked
        });
        Self { dir, asked }
    }

    fn monitor(&self, patience: Duration) -> Monitor {
        Monitor::connect(&self.dir.path().join("qmp"), || false, patience).expect("connect")
    }

    fn asked(self) -> Vec<String> {
        self.asked.join().expect("no panic")
    }
}

#[test]
fn events_are_stored_and_refusals_have_reasons() {
    let vmm = Vmm::new(&[
        r#"{"event": "STOP", "data": {}}
{"event": "DEVICE_DELETED", "data": {"device": "other"}}
{"return": {"status": "running"}}"#,
        r#"{"error": {"class": "GenericError", "desc": "No such thing"}}"#,
        DONE,
        // The guest releases the devices in its own order.
        r#"{"return": {}}
{"event": "DEVICE_DELETED", "data": {"device": "identity"}}
{"event": "DEVICE_DELETED", "data": {"device": "card"}}"#,
        r#"{"error": {"class": "GenericError", "desc": "Device 'network' not found"}}"#,
        r#"{"error": {"class": "GenericError", "desc": "Failed to find node with node-name='identity-file'"}}"#,
    ]);
    let mut monitor = vmm.monitor(PATIENCE);
    assert_eq!(monitor.status().expect("a status"), "running");
    let refused = monitor.quit().expect_err("it is refused");
    assert_eq!(refused.to_string(), "the VMM refused quit: No such thing");
    // The other device's event, received earlier, is not attributed to the card.
    monitor.unplug(0, PATIENCE).expect("the card is gone");
    drop(monitor);
    let asked = vmm.asked();
    assert!(asked[4].contains("device_del") && asked[5].contains("netdev_del"), "{asked:?}");
}

#[test]
fn late_reply_is_not_taken_for_next_one() {
    let replies = r#"{"return": {"status": "late"}, "id": 2}
{"error": {"class": "GenericError", "desc": "its own"}, "id": 3}"#;
    let vmm = Vmm::new(&["", replies]);
    let mut monitor = vmm.monitor(Duration::from_millis(200));
    assert!(matches!(monitor.status(), Err(MonitorError::Late { .. })));
    monitor.set_timeout(PATIENCE);
    let refused = monitor.quit().expect_err("it is refused");
    assert_eq!(refused.to_string(), "the VMM refused quit: its own");
}

#[test]
fn unplug_without_network_card_succeeds() {
    let none = r#"{"error": {"class": "DeviceNotFound", "desc": "Device 'card' not found"}}"#;
    let vmm = Vmm::new(&[none; 4]);
    vmm.monitor(PATIENCE).unplug(0, PATIENCE).expect("there is none");
}

#[test]
fn shares_are_unplugged_with_or_without_identity() {
    let none = r#"{"error": {"class": "DeviceNotFound", "desc": "Device '…' not found"}}"#;
    let there = r#"{"return": "vhost-user-fs-pci"}
{"event": "DEVICE_DELETED", "data": {"device": "share-2"}}
{"event": "DEVICE_DELETED", "data": {"device": "identity"}}"#;
    // The first share was never plugged.
    let vmm = Vmm::new(&[none, DONE, none, there, DONE, DONE, none, DONE]);
    vmm.monitor(PATIENCE).unplug(2, PATIENCE).expect("all that was there is gone");
    let asked = vmm.asked();
    assert!(asked[3..5].iter().all(|asked| asked.contains("qom-get")), "the slot is asked once: {asked:?}");
    let gone = r#"{"return": {}}
{"event": "DEVICE_DELETED", "data": {"device": "share-1"}}"#;
    let vmm = Vmm::new(&[none, none, gone, DONE, none, none]);
    vmm.monitor(PATIENCE).unplug(1, PATIENCE).expect("it is gone");
    assert!(vmm.asked()[3].contains("device_del"));
}

#[test]
fn misbehaving_monitor_is_bounded() {
    let begin = Instant::now();
    let vmm = Vmm::new(&[]);
    let late = vmm.monitor(Duration::from_millis(200)).status().expect_err("no answer");
    assert!(matches!(late, MonitorError::Late { .. } | MonitorError::Gone(_)), "{late}");
    let silent = Vmm::new(&["", ""]);
    let late = silent.monitor(Duration::from_millis(200)).status().expect_err("no answer");
    assert!(late.to_string().starts_with("no reply to query-status from the VMM"), "{late}");
    let raving = Vmm::new(&[&"x".repeat(LINE_BYTES_MAX + (64 << 10))]);
    let endless = raving.monitor(PATIENCE).status().expect_err("no message");
    assert!(matches!(endless, MonitorError::Protocol("a line is too long")), "{endless}");
    let wild = Vmm::new(&["{]"]);
    assert!(matches!(wild.monitor(PATIENCE).status(), Err(MonitorError::Protocol("malformed JSON"))));
    let looks = Cell::new(0);
    let is_starting = || looks.replace(looks.get() + 1) < 3;
    let missing = Monitor::connect(Path::new("/nonexistent/qmp"), is_starting, PATIENCE);
    assert_eq!(looks.get(), 4, "it gives up when none is coming");
    assert!(matches!(missing, Err(MonitorError::Gone(_))));
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn connection_to_a_monitor_that_accepts_none_is_bounded() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("qmp");
    let listener = socket::listen_unix(&path, 0o600, 0).map(UnixListener::from).expect("listen");
    let first = UnixStream::connect(&path).expect("the backlog has a place");
    let connect = |timeout| Monitor::connect(&path, || true, timeout);
    let late = connect(Duration::from_millis(50)).expect_err("none is accepted");
    assert_eq!(late.to_string(), "no connection from the VMM within 0 s");
    let accepting = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(first);
        let _ = listener.accept().expect("the first client");
        let (mut second, _) = listener.accept().expect("the second client");
        writeln!(second, "{GREETING}").expect("greet");
        let _ = BufReader::new(&second).read_line(&mut String::new()).expect("a command");
        writeln!(second, "{DONE}").expect("reply");
    });
    connect(PATIENCE).expect("accepted in time");
    accepting.join().expect("no panic");
}

#[test]
fn device_state_goes_to_the_passed_file() {
    let completed = r#"{"event": "MIGRATION", "data": {"status": "setup"}}
{"event": "MIGRATION", "data": {"status": "completed"}}"#;
    let unfinished = r#"{"error": {"class": "GenericError", "desc": "Migration is not finalized yet"}}"#;
    let failed = r#"{"event": "MIGRATION", "data": {"status": "failed"}}"#;
    let status = r#"{"return": {"status": "running"}}"#;
    let vmm = Vmm::new(&[status, DONE, DONE, &format!("{DONE}\n{completed}"), unfinished, DONE]);
    let state = tempfile::tempfile().expect("a file");
    let mut monitor = vmm.monitor(PATIENCE);
    monitor.pass_state(&state).and_then(|()| monitor.save(PATIENCE)).expect("saved");
    monitor.proceed().expect("it runs once the migration has ended");
    drop(monitor);
    let asked = vmm.asked();
    let words = ["query-status", "x-ignore-shared", "getfd", "fd:state", "cont", "cont"];
    assert!(asked[1..].iter().zip(words).all(|(asked, word)| asked.contains(word)), "{asked:?}");
    // After an unused save the guest must run first.
    let again = r#"{"return": {"status": "postmigrate"}}"#;
    let why = r#"{"return": {"status": "failed", "error-desc": "No space left on device"}}"#;
    let vmm = Vmm::new(&[again, DONE, DONE, DONE, &format!("{DONE}\n{failed}"), why]);
    let mut monitor = vmm.monitor(PATIENCE);
    let saved = monitor.pass_state(&state).and_then(|()| monitor.save(PATIENCE));
    let error = saved.expect_err("it has failed");
    drop(monitor);
    assert_eq!(error.to_string(), "the VMM refused the device state: No space left on device");
    assert!(vmm.asked()[2].contains("cont"));
}

#[test]
fn save_returns_time_of_pause_or_is_cancelled() {
    let active = r#"{"event": "MIGRATION", "data": {"status": "active"}, "timestamp": NOW}"#;
    let completed = r#"{"event": "MIGRATION", "data": {"status": "completed"}}"#;
    let vmm = Vmm::new(&[&format!("{DONE}\n{WAIT}\n{active}\n{WAIT}\n{completed}")]);
    let mut monitor = vmm.monitor(PATIENCE);
    let begun = Instant::now();
    let paused = monitor.save(PATIENCE).expect("saved");
    let moment = Duration::from_millis(90);
    assert!(
        paused - begun > moment && paused.elapsed() > moment,
        "{:?}, {:?}",
        paused - begun,
        begun.elapsed()
    );
    let vmm = Vmm::new(&[DONE, DONE]);
    let mut monitor = vmm.monitor(Duration::from_millis(200));
    let late = monitor.save(Duration::from_millis(200)).expect_err("it does not end");
    assert!(matches!(late, MonitorError::Late { .. }), "{late}");
    drop(monitor);
    assert!(vmm.asked()[2].contains("migrate_cancel"));
}

fn machine() -> Machine {
    Machine {
        machine: "q35".into(),
        accelerator: "tcg".into(),
        cpu: "max,-cx16".into(),
        cpus: 1,
        memory_bytes: 64 << 20,
        boot: None,
    }
}

fn launch<'a>(machine: &'a Machine, memory: &'a Path, monitor: &'a Path, incoming: bool) -> Launch<'a> {
    Launch {
        machine,
        name: "a,b",
        memory,
        disk: Path::new("/nowhere/disk"),
        monitor,
        console: Path::new("/dev/null"),
        generation: "5cfbd1ee-7ed4-4c10-a7b4-d6d9ec2f6a3d",
        incoming,
    }
}

#[test]
fn command_line_inputs_add_no_options() {
    let boot =
        Boot { kernel: "/k,ro/vmlinuz".into(), initrd: None, append: "console=ttyS0 -monitor stdio".into() };
    let with = Machine { boot: Some(boot), ..machine() };
    let words =
        launch(&with, Path::new("/a,share=off/memory -S"), Path::new("/m,ode/qmp"), false).arguments();
    let has = |word: &str| words.iter().any(|known| known == word);
    assert!(has("memory-backend-file,id=memory,size=67108864,share=on,mem-path=/a,,share=off/memory -S"));
    assert!(has("unix:/m,,ode/qmp,server=on,wait=off") && has("guest=a,,b"));
    assert!(has("/k,ro/vmlinuz") && has("console=ttyS0 -monitor stdio") && !has("-monitor"));
    machine().check().expect("good");
    for bad in ["", "q35 -monitor stdio", "q35,dumpdtb=/etc/passwd", "q35\n"] {
        Machine { machine: bad.into(), ..machine() }.check().expect_err(bad);
        Machine { accelerator: bad.into(), ..machine() }.check().expect_err(bad);
    }
    Machine { cpu: "max -monitor stdio".into(), ..machine() }.check().expect_err("two words");
}

#[test]
fn networks_are_encoded_for_qemu() {
    let vmm = Vmm::new(&[DONE, DONE]);
    let network: Network = "user,hostfwd=tcp:127.0.0.1:8080-:80".parse().expect("a network");
    let mut monitor = vmm.monitor(PATIENCE);
    monitor.connect_network(&network).and_then(|()| monitor.plug("52:54:00:00:00:01")).expect("plugged");
    let asked = vmm.asked();
    assert!(asked[1].contains(r#""hostfwd":[{"str":"tcp:127.0.0.1:8080-:80"}]"#), "{asked:?}");
    assert!(asked[2].contains(r#""mac":"52:54:00:00:00:01""#), "{asked:?}");
}

#[test]
fn a_vmm_is_started_without_huge_pages() {
    // Raw system calls of Perl: SYS_madvise is 28 on x86-64, MADV_HUGEPAGE 14, EINVAL 22.
    let text = "my $len = 4 << 20; my $at = syscall(9, 0, $len, 3, 0x22, -1, 0); \
                my $normal = syscall(28, $at, $len, 0); my $huge = syscall(28, $at, $len, 14); print \"$normal $huge \", $! + 0";
    if std::env::consts::ARCH != "x86_64" {
        return;
    }
    let mut command = std::process::Command::new("perl");
    command.args(["-e", text]).stdout(std::process::Stdio::piped());
    let (child, events) = process::spawn(command).expect("perl");
    let said = child.wait_with_output().expect("its end");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "0 -1 22");
    assert_eq!(events.ended(), End::Unknown);
}

#[test]
fn vmm_end_reason_is_reported() {
    let event =
        |reason: &str| format!(r#"{{"event": "SHUTDOWN", "data": {{"guest": true, "reason": "{reason}"}}}}"#);
    for (says, end) in [
        (event("guest-reset"), End::Reset),
        (event("guest-shutdown"), End::Other("guest-shutdown".into())),
        (r#"{"event": "SHUTDOWN"}"#.into(), End::Unknown),
        (r#"{"event": "STOP"}"#.into(), End::Unknown),
        ("{]".into(), End::Unknown),
    ] {
        // Waits for a command, as QEMU does.
        let text =
            format!("printf '{GREETING}\\r\\n' >&0; read -r command; printf '{DONE}\\r\\n{says}\\r\\n' >&0");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &text]);
        let (mut child, events) = process::spawn(command).expect("sh");
        child.wait().expect("its end");
        assert_eq!(events.ended(), end, "{says}");
    }
}

#[test]
fn incoming_machine_gets_no_kernel() {
    let boot = Boot { kernel: "/kernel".into(), initrd: Some("/initrd".into()), append: "quiet".into() };
    let with = Machine { boot: Some(boot), ..machine() };
    let words = launch(&with, Path::new("/memory"), Path::new("/qmp"), true).arguments();
    let has = |word: &str| words.iter().any(|known| known == word);
    assert!(has("-incoming"));
    assert!(!["-kernel", "-initrd", "-append", "quiet"].into_iter().any(has), "{words:?}");
}

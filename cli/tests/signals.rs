//! Signals to programs that use a mount: handlers interrupt nothing but waits for locks, as on a local file
//! system, and killed programs end even while the server is unreachable. Needs /dev/fuse and the right to
//! mount.

#[path = "it/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::{MountPlace, Server, signal};
use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, copy_file_range,
    fadvise, fallocate, fcntl_lock, fdatasync, fsync, ftruncate, linkat, mkdirat, open, renameat_with,
    statat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use tombolo_sys::thread_timer::ThreadTimer;

/// Number of threads, so that the server's pool always has queued jobs.
const THREADS: usize = 24;
/// Interval of signals to each thread.
const SIGNAL_EVERY: Duration = Duration::from_millis(1);
/// Duration on each file system.
const TIME: Duration = Duration::from_millis(1500);
const PIECE_BYTES: usize = 64 << 10;

/// Number of calls, and of EINTR results, by name and SA_RESTART.
type Tally = BTreeMap<(&'static str, bool), (u64, u64)>;

/// One thread's calls in its own directory.
struct Caller {
    restarts: bool,
    tally: Tally,
}

impl Caller {
    /// Repeats a call until it does not return EINTR.
    fn call<T>(&mut self, name: &'static str, mut call: impl FnMut() -> Result<T, Errno>) -> Option<T> {
        let (calls, interrupted) = self.tally.entry((name, self.restarts)).or_default();
        loop {
            *calls += 1;
            match call() {
                Err(Errno::INTR) => *interrupted += 1,
                // Operations that a protocol lacks are skipped.
                Err(Errno::OPNOTSUPP) => return None,
                other => return Some(other.unwrap_or_else(|error| panic!("{name}: {error}"))),
            }
        }
    }

    /// Performs each call once.
    fn round(&mut self, dir: &Path) {
        let (file, moved, inner) = (dir.join("file"), dir.join("moved"), dir.join("inner"));
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let new = self.call("create", || open(&file, flags | OFlags::CREATE, Mode::from_raw_mode(0o644)));
        let new = new.expect("a file");
        let bytes = vec![7; PIECE_BYTES];
        let count = self.call("pwrite", || pwrite(&new, &bytes, 0));
        assert_eq!(count, Some(PIECE_BYTES));
        self.call("fallocate", || {
            fallocate(&new, FallocateFlags::empty(), PIECE_BYTES as u64, PIECE_BYTES as u64)
        });
        self.call("fdatasync", || fdatasync(&new));
        let old = self.call("open", || open(&file, flags, Mode::empty())).expect("a file");
        // Forces a read from the server.
        fadvise(&old, 0, None, Advice::DontNeed).expect("fadvise");
        let mut back = vec![0; PIECE_BYTES];
        let count = self.call("pread", || pread(&old, &mut back, 0));
        assert!(count == Some(PIECE_BYTES) && back == bytes);
        self.call("copy_file_range", || {
            let (mut from, mut to) = (0, 2 * PIECE_BYTES as u64);
            copy_file_range(&old, Some(&mut from), &new, Some(&mut to), PIECE_BYTES)
        });
        self.call("ftruncate", || ftruncate(&new, 100));
        self.call("fsync", || fsync(&new));
        self.call("mkdir", || match mkdirat(CWD, &inner, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        });
        self.call("rename", || renameat_with(CWD, &file, CWD, &moved, RenameFlags::empty()));
        self.call("link", || linkat(CWD, &moved, CWD, &file, AtFlags::empty()));
        self.call("stat", || statat(CWD, &file, AtFlags::empty()));
        self.call("unlink", || unlinkat(CWD, &file, AtFlags::empty()));
        self.call("rmdir", || unlinkat(CWD, &inner, AtFlags::REMOVEDIR));
        self.call("unlink", || unlinkat(CWD, &moved, AtFlags::empty()));
    }
}

/// Makes all calls in `dir` from several threads, under signals.
fn call_all(dir: &Path) -> Tally {
    let until = Instant::now() + TIME;
    let run = |number: usize| {
        let own = dir.join(number.to_string());
        fs::create_dir(&own).expect("mkdir");
        let mut caller = Caller { restarts: number.is_multiple_of(2), tally: Tally::new() };
        let timer = ThreadTimer::start(SIGNAL_EVERY, caller.restarts).expect("a timer");
        while Instant::now() < until {
            caller.round(&own);
        }
        drop(timer);
        caller.tally
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || run(number))).collect();
        let mut all = Tally::new();
        for (call, (calls, interrupted)) in threads.into_iter().flat_map(|t| t.join().expect("no panic")) {
            let sum = all.entry(call).or_default();
            *sum = (sum.0 + calls, sum.1 + interrupted);
        }
        all
    })
}

/// Asserts that every call returns the same as on the plain directory `plain`, and no EINTR where that has
/// none.
fn undisturbed(kind: &str, plain: &Path, mount: &Path) {
    fs::create_dir_all(plain).expect("mkdir");
    let local = call_all(plain);
    let mounted = call_all(mount);
    let worse: Vec<_> = mounted
        .iter()
        .filter(|(call, (_, interrupted))| *interrupted > 0 && local[call].1 == 0)
        // NFS version 3 has no copies: the kernel reads and writes, and with a signal pending in between it
        // ends the call by itself (Linux: splice_from_pipe_next).
        .filter(|((call, _), _)| kind != "nfs:" || *call != "copy_file_range")
        .map(|((call, restarts), (calls, interrupted))| {
            format!("{call} (SA_RESTART: {restarts}): {interrupted} of {calls}")
        })
        .collect();
    assert!(worse.is_empty(), "{kind}: EINTR from {worse:#?}");
    let fewest = mounted.iter().min_by_key(|(_, (calls, _))| *calls).expect("calls");
    eprintln!("{kind}: each call at least {fewest:?} times");
}

/// A tree served to a mount.
struct Served {
    scratch: MountPlace,
    server: Server,
    source: String,
}

impl Served {
    fn by_nfs() -> Option<Self> {
        let scratch = MountPlace::new()?;
        let (server, source) = scratch.serve_nfs();
        Some(Self { scratch, server, source })
    }

    fn by_shm() -> Option<Self> {
        let scratch = MountPlace::new()?;
        let server = scratch.serve_shm("");
        Some(Self { scratch, server, source: "shm:link.sock/tree".to_owned() })
    }

    fn mount(&self, options: &str) {
        self.scratch.run(format!("mount {} mnt -o {options}", self.source)).succeeded();
    }

    /// Starts a program that opens and reads the file when told, exits with 3 on failure, and has a handler
    /// for SIGUSR1. SIGINT kills it even if the shell that runs the tests in the background ignores it.
    fn reader(&self) -> Child {
        let script = "$SIG{USR1} = sub {}; $SIG{INT} = 'DEFAULT'; $| = 1; print qq(ready\n); <STDIN>;
            open(FILE, '<', $ARGV[0]) or exit 3; $_ = <FILE>; defined or exit 3; $_ eq qq(content\n) or exit 4";
        self.program("perl", &["-e", script, "mnt/file"])
    }

    /// Starts a program that has written to a file and keeps it open.
    fn writer(&self) -> Child {
        self.program(
            "sh",
            &["-c", "exec 3>mnt/written; echo text >&3; echo ready; read line; exec sleep 1000"],
        )
    }

    fn program(&self, name: &str, words: &[&str]) -> Child {
        let mut command = self.scratch.program(Path::new(name), words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program");
        let mut said = [0; 6];
        child.stdout.as_mut().expect("a pipe").read_exact(&mut said).expect("it begins");
        assert_eq!(&said, b"ready\n");
        child
    }
}

fn go_on(child: &mut Child) {
    drop(child.stdin.take());
}

/// Returns the exit status, if the program ends in time.
fn ended(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + within;
    loop {
        match child.try_wait().expect("wait") {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            status => return status,
        }
    }
}

/// Checks that with an unresponsive server handled signals change nothing, and fatal ones kill.
fn only_the_killed_leave(served: &mut Served, begin: fn(&mut Served), end: fn(&mut Served)) {
    let [mut patient, mut killed, mut interrupted] = [(); 3].map(|()| served.reader());
    let mut writer = served.writer();
    begin(served);
    for child in [&mut patient, &mut killed, &mut interrupted] {
        go_on(child);
    }
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(500));
        signal(patient.id(), "USR1");
        signal(killed.id(), "USR1");
    }
    assert!(patient.try_wait().expect("wait").is_none() && killed.try_wait().expect("wait").is_none());
    for (child, name, number) in
        [(&mut killed, "KILL", 9), (&mut interrupted, "INT", 2), (&mut writer, "KILL", 9)]
    {
        signal(child.id(), name);
        let status = ended(child, Duration::from_secs(8));
        assert_eq!(status.expect("it dies without its server").signal(), Some(number));
    }
    assert!(patient.try_wait().expect("wait").is_none(), "it waits for its server");
    end(served);
    let status = ended(&mut patient, Duration::from_secs(20)).expect("the server answers");
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn signals_with_handlers_disturb_no_call_on_a_directory() {
    let Some(scratch) = MountPlace::new() else { return };
    scratch.mount("allow_other");
    undisturbed("dir:", &scratch.path("local"), &scratch.mnt());
    scratch.umount();
}

#[test]
fn handled_signals_disturb_no_nfs_mount_call() {
    let Some(served) = Served::by_nfs() else { return };
    served.mount("allow_other");
    undisturbed("nfs:", &served.scratch.path("local"), &served.scratch.mnt());
    served.scratch.umount();
}

#[test]
fn handled_signals_disturb_no_shm_mount_call() {
    let Some(served) = Served::by_shm() else { return };
    served.mount("allow_other");
    undisturbed("shm:", &served.scratch.path("local"), &served.scratch.mnt());
    served.scratch.umount();
}

#[test]
fn killed_processes_die_though_the_nfs_server_is_silent() {
    let Some(mut served) = Served::by_nfs() else { return };
    served.mount("noac,allow_other");
    only_the_killed_leave(
        &mut served,
        |served| served.server.signal("STOP"),
        |served| served.server.signal("CONT"),
    );
    served.scratch.umount();
}

#[test]
fn killed_processes_end_while_shm_server_is_absent() {
    let Some(mut served) = Served::by_shm() else { return };
    served.mount("coherence=strict,allow_other");
    let go = |served: &mut Served| {
        served.server.signal("KILL");
        served.server.wait();
    };
    only_the_killed_leave(&mut served, go, |served| served.server = served.scratch.serve_shm(""));
    served.scratch.umount();
}

#[test]
fn a_signal_ends_a_wait_for_a_lock() {
    let Some(scratch) = MountPlace::new() else { return };
    scratch.mount("allow_other");
    let script = "use Fcntl qw(:DEFAULT :flock F_SETLKW F_WRLCK SEEK_SET); use Errno qw(EINTR);
        $SIG{ALRM} = sub {}; open(FILE, '+<', $ARGV[0]) or exit 3; alarm 1;
        my $lock = pack('s s l! l! i', F_WRLCK, SEEK_SET, 0, 0, 0);
        exit($! == EINTR ? 0 : 4) unless fcntl(FILE, F_SETLKW, $lock); exit 5";
    let held = File::options().write(true).open(scratch.mnt().join("file")).expect("open");
    fcntl_lock(&held, FlockOperation::LockExclusive).expect("a lock");
    let mut waiting = scratch.program("perl", &["-e", script, "mnt/file"]).spawn().expect("perl");
    let status = ended(&mut waiting, Duration::from_secs(5)).expect("it does not wait for ever");
    assert_eq!(status.code(), Some(0), "{status}");
    drop(held);
    scratch.umount();
}

//! Environment of the measurements of clones.
//!
//! [`Host`] makes clones, on a network and in directories of its own; [`make_image`] makes images of virtual
//! machines that have run a service; [`answered`] polls for the first answer of a guest's service. Clones are
//! compared with [`Scp`], a copy of the image over the WAN link, and with [`Floor`], QEMU without Tombolo:
//! the same command line on plain copies of an image's files, with a disk of QEMU's storage daemon.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_host_vmm::network::Network;
use tombolo_host_vmm::{Monitor, MonitorError};
use tombolo_wan::Side as End;

use crate::error::{Doing, Error, Result, wrong};
use crate::files::random_file;
use crate::peer::{AtSocket, STORAGE_DAEMON, Server, TOMBOLO, completed, find, in_checkout, this_program};

/// Time limit for making a clone until it answers.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time limit for the end of a host's proxies.
const END_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// Interval between uses of a service.
const USE_EVERY: Duration = Duration::from_secs(1);
const FIRST_PORT: u16 = 8080;

/// A host for clones: an end of the WAN link, with directories of its own. Dropping it ends its clones and
/// their processes.
pub struct Host<'a> {
    place: TempDir,
    network: &'a End,
    clones: Cell<u16>,
}

/// A clone in progress.
pub struct Starting {
    pub name: String,
    begun: Instant,
    clone: Child,
    answer: Child,
}

/// Times until a clone's command ended and until its service answered.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub ready: Duration,
    pub answered: Duration,
}

impl<'a> Host<'a> {
    pub fn new(network: &'a End, beside: &Path) -> Result<Self> {
        let place = crate::table::folder(beside)?;
        for name in ["run", "state", "cache"] {
            let path = place.path().join(name);
            fs::DirBuilder::new().mode(0o700).create(&path).doing_to("make", &path)?;
        }
        Ok(Self { place, network, clones: Cell::new(0) })
    }

    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Returns a command in the host's network and with its directories.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.network.command(program);
        for (variable, name) in
            [("XDG_RUNTIME_DIR", "run"), ("XDG_STATE_HOME", "state"), ("XDG_CACHE_HOME", "cache")]
        {
            command.env(variable, self.place.path().join(name));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Counts another guest, and returns its network option and the address of its service.
    pub fn port(&self) -> (String, SocketAddr) {
        let port = FIRST_PORT + self.clones.get();
        self.clones.set(self.clones.get() + 1);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        (format!("user,hostfwd=tcp:{address}-:80"), address)
    }

    /// Starts a process in the host's network that waits until the service of this name (`-`: any) answers.
    pub fn answer(&self, address: SocketAddr, name: &str) -> Result<Child> {
        let mut command = self.command(this_program()?);
        command.arg("answer").arg(address.to_string()).args([name, &PATIENCE.as_secs().to_string()]);
        command.spawn().doing(|| "start the poller of a guest".to_owned())
    }

    pub fn begin(&self, image: &str, options: &[&str]) -> Result<Starting> {
        let (net, address) = self.port();
        let name = format!("clone-{}", self.clones.get());
        let answer = self.answer(address, &name)?;
        let mut command = self.command(find(TOMBOLO)?);
        command.args(["clone", image, &name, "--net", &net]).args(options);
        let begun = Instant::now();
        let clone = command.spawn().doing(|| "start tombolo clone".to_owned())?;
        Ok(Starting { name, begun, clone, answer })
    }

    pub fn clone(&self, image: &str, options: &[&str]) -> Result<(String, Took)> {
        let starting = self.begin(image, options)?;
        Ok((starting.name.clone(), starting.done()?))
    }

    /// Uses the service of the last clone once a second during `time`.
    pub fn use_for(&self, time: Duration) -> Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST_PORT + self.clones.get() - 1));
        let end = Instant::now() + time;
        while Instant::now() < end {
            ended_well("the guest", self.answer(address, "-")?)?;
            thread::sleep(USE_EVERY);
        }
        Ok(())
    }

    /// Returns the counters of a clone and its cache, from `tombolo vm show`.
    pub fn shown(&self, name: &str) -> Result<String> {
        let mut command = self.command(find(TOMBOLO)?);
        let shown = completed("tombolo vm show", command.args(["vm", "show", name]).stdout(Stdio::piped()))?;
        let shown = shown.split("\n\n").next().unwrap_or_default().lines();
        let is_of_reads = |line: &&str| {
            [" read", "network:", "not fetched", "of that"].iter().any(|word| line.contains(word))
        };
        let lines =
            shown.filter(is_of_reads).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        Ok(lines.collect::<Vec<_>>().join("; "))
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        let mut command = self.command(find(TOMBOLO)?);
        completed("tombolo vm rm", command.args(["vm", "rm", "--force", name])).map(drop)
    }

    /// Finds the process of this host whose command line contains all words.
    pub fn process(&self, words: &[&str]) -> Option<u32> {
        self.processes().into_iter().find(|process| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            words.iter().all(|word| line.contains(word))
        })
    }

    pub fn memory(&self, name: &str) -> PathBuf {
        self.place.path().join(format!("run/tombolo/vm-{name}/memory/memory"))
    }

    /// Returns all processes of this host.
    fn processes(&self) -> Vec<u32> {
        let mark =
            [b"XDG_RUNTIME_DIR=", self.place.path().join("run").as_os_str().as_bytes(), b"\0"].concat();
        let is_ours = |process: &u32| {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|part| part == mark)
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        for clone in 1..=self.clones.get() {
            let _not_there = self.remove(&format!("clone-{clone}"));
        }
        let begun = Instant::now();
        while begun.elapsed() < END_PATIENCE {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for process in left {
                let _gone = tombolo_sys::process::terminate(process);
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Starting {
    /// Waits until the clone's service has answered.
    pub fn done(self) -> Result<Took> {
        let Self { begun, clone, answer, .. } = self;
        let answered = thread::spawn(move || {
            let done = ended_well("the guest", answer);
            (begun.elapsed(), done)
        });
        let made = ended_well("tombolo clone", clone);
        let ready = begun.elapsed();
        made?;
        let (answered, done) = answered.join().map_err(|_| Error::Interrupted)?;
        done.map(|()| Took { ready, answered })
    }
}

/// Waits for a process, and reports its output if it failed.
pub fn ended_well(program: &str, child: Child) -> Result<()> {
    let output = child.wait_with_output().doing(|| format!("wait for {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let what = format!("{}: {}", output.status, said.trim());
    Err(Error::Server { program: program.to_owned(), what })
}

/// Size of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub memory: &'static str,
    pub disk: &'static str,
    /// Incompressible part of the disk.
    pub filled: &'static str,
}

pub const QUICK: Size = Size { memory: "128M", disk: "16M", filled: "4M" };
pub const USUAL: Size = Size { memory: "192M", disk: "64M", filled: "16M" };
/// The size in the paper on GVFS.
pub const FULL: Size = Size { memory: "320M", disk: "1600M", filled: "400M" };

/// Creates an image, recorded for prefetching.
pub fn make_image(image: &Path, size: Size) -> Result<()> {
    let mut command = Command::new(in_checkout("tests/guests/golden")?);
    command.arg(image).args(["--memory", size.memory, "--disk", size.disk, "--filled", size.filled]);
    command.env("TOMBOLO", find(TOMBOLO)?).env("TOMBOLO_BENCH", this_program()?);
    completed("tests/guests/golden", &mut command).map(drop)
}

/// Returns the size of an image's files.
pub fn image_bytes(image: &Path) -> Result<u64> {
    let entries = fs::read_dir(image).doing_to("list", image)?;
    Ok(entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|file| file.size()).sum())
}

/// Interval between attempts to reach a service. A request to a guest that has no network card yet is lost,
/// and the VMM would repeat it much later.
const EVERY: Duration = Duration::from_millis(50);
/// Time limit of one answer: the guest may fetch data over a slow link for it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the service answers with `name`; `-` accepts any name.
pub fn answered(address: SocketAddr, name: &str, within: Duration) -> Result<()> {
    let (answer, answers) = channel();
    let end = Instant::now() + within;
    while Instant::now() < end {
        let answer = answer.clone();
        thread::spawn(move || ask(address, &answer));
        match answers.recv_timeout(EVERY) {
            Ok(found) if name == "-" || found == name => return Ok(()),
            Ok(found) => {
                return Err(Error::Wrong { what: format!("ask {name} for its name"), answer: found });
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
    Err(Error::Server { program: name.to_owned(), what: "its service does not answer".to_owned() })
}

fn ask(address: SocketAddr, answer: &Sender<String>) {
    let asked = || {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_PATIENCE).ok()?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE)).ok()?;
        stream.write_all(b"GET /cgi-bin/ask?name HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.take(4096).read_to_string(&mut text).ok()?;
        let body = text.rsplit("\r\n\r\n").next().filter(|_| text.starts_with("HTTP/1."))?;
        Some(body.trim().to_owned()).filter(|name| !name.is_empty())
    };
    if let Some(name) = asked() {
        // Another attempt may have been answered before.
        let _ = answer.send(name);
    }
}

const SSH_PORT: u16 = 2022;
const SSHD: &str = "/usr/sbin/sshd";

/// An SSH server at the far end of the WAN link, with its own key, for copies by scp(1) to the near end.
pub struct Scp<'a> {
    _server: Server,
    near: &'a End,
    from: String,
    place: TempDir,
}

impl<'a> Scp<'a> {
    pub fn new(far: &End, near: &'a End, beside: &Path) -> Result<Self> {
        if !Path::new(SSHD).exists() {
            return Err(Error::Absent("no sshd: apt-get install openssh-server".to_owned()));
        }
        let place = crate::table::folder(beside)?;
        let key = place.path().join("key");
        let mut keygen = Command::new("ssh-keygen");
        completed("ssh-keygen", keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
        fs::create_dir_all("/run/sshd").doing_to("make", Path::new("/run/sshd"))?;
        let mut sshd = far.command(SSHD);
        sshd.args(["-D", "-e", "-f", "/dev/null", "-p", &SSH_PORT.to_string()]);
        for option in [
            &format!("HostKey={}", key.display()),
            &format!("AuthorizedKeysFile={}.pub", key.display()),
            "StrictModes=no",
            "UsePAM=no",
            "PermitRootLogin=prohibit-password",
            "PidFile=none",
            "Subsystem=sftp internal-sftp",
        ] {
            sshd.args(["-o", option]);
        }
        let server = Server::listening("sshd", &mut sshd, &[SSH_PORT])?;
        Ok(Self { _server: server, near, from: format!("root@{}", far.address()), place })
    }

    /// Returns the time to copy `bytes` incompressible bytes: at most `measured` are copied, and the
    /// remainder is extrapolated.
    pub fn scaled(&self, bytes: u64, measured: u64) -> Result<Duration> {
        let begin = self.copy(1)?;
        let measured = measured.min(bytes);
        let all = self.copy(measured)?;
        let rest = all.saturating_sub(begin).as_secs_f64() * bytes as f64 / (measured.max(1) as f64);
        Ok(begin + Duration::from_secs_f64(rest))
    }

    fn copy(&self, bytes: u64) -> Result<Duration> {
        let [file, copy] = ["file", "copy"].map(|name| self.place.path().join(name));
        random_file(&file, bytes)?;
        let begun = Instant::now();
        let mut scp = self.near.command("scp");
        scp.args(["-q", "-B", "-F", "/dev/null", "-P", &SSH_PORT.to_string(), "-i"]);
        scp.arg(self.place.path().join("key"));
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"] {
            scp.args(["-o", option]);
        }
        completed("scp", scp.arg(format!("{}:{}", self.from, file.display())).arg(&copy))?;
        Ok(begun.elapsed())
    }
}

const START_PATIENCE: Duration = Duration::from_secs(60);
/// Address in QEMU's own range.
const MAC: &str = "52:54:00:12:34:56";

/// The lower bound of a clone's start-up time: copies of an image's files, and QEMU's command line for them.
pub struct Floor {
    image: PathBuf,
    dir: PathBuf,
    words: Vec<String>,
}

pub struct Running {
    qemu: Child,
    monitor: Monitor,
    _events: UnixStream,
    _disk: AtSocket,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.monitor.quit();
        let _reaped = self.qemu.wait();
    }
}

impl Floor {
    /// Takes the command line of a running clone.
    pub fn new(host: &Host<'_>, clone: &str, image: &Path, beside: &Path) -> Result<Self> {
        let dir = beside.join("plain");
        let sockets = dir.join("run");
        fs::create_dir_all(&sockets).doing_to("make", &sockets)?;
        let absent = || Error::Absent(format!("{clone} has no VMM"));
        let process = host.process(&["guest=", "mem-path=", &format!("/vm-{clone}/")]).ok_or_else(absent)?;
        let line = fs::read(format!("/proc/{process}/cmdline")).doing(|| "read a command line".to_owned())?;
        let (run, home) = (format!("run/tombolo/vm-{clone}"), format!("state/tombolo/vm-{clone}"));
        let [run, home] = [run, home].map(|path| host.path().join(path).display().to_string());
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(|word| {
            let word = String::from_utf8_lossy(word);
            let word = word.replace(&format!("{run}/memory/memory"), &dir.join("memory").to_string_lossy());
            word.replace(&run, &sockets.to_string_lossy()).replace(&home, &dir.to_string_lossy())
        });
        let words = words.collect();
        Ok(Self { image: image.to_owned(), dir, words })
    }

    pub fn memory(&self) -> PathBuf {
        self.dir.join("memory")
    }

    /// Copies all files again, because a guest has changed them in the previous turn.
    pub fn renew(&self) -> Result<()> {
        for entry in fs::read_dir(&self.image).doing_to("list", &self.image)?.flatten() {
            let copy = self.dir.join(entry.file_name());
            fs::copy(entry.path(), &copy)
                .and_then(|_| File::open(&copy)?.sync_all())
                .doing_to("copy", &entry.path())?;
        }
        Ok(())
    }

    /// Resumes a guest; returns when its service answers.
    pub fn turn(&self, host: &Host<'_>) -> Result<(Running, Took)> {
        let (net, address) = host.port();
        let answer = host.answer(address, "-")?;
        let begun = Instant::now();
        let running = self.start(host, &net)?;
        let ready = begun.elapsed();
        ended_well("the guest", answer)?;
        Ok((running, Took { ready, answered: begun.elapsed() }))
    }

    fn start(&self, host: &Host<'_>, net: &str) -> Result<Running> {
        let socket = self.words.iter().find_map(|word| word.strip_prefix("socket,id=disk,path="));
        let socket = socket.ok_or_else(|| Error::Absent("the VMM has no disk".to_owned()))?;
        let monitor = self.words.iter().find_map(|word| word.strip_prefix("unix:")?.split(',').next());
        let monitor = Path::new(monitor.ok_or_else(|| Error::Absent("the VMM has no monitor".to_owned()))?);
        for old in [monitor, Path::new(socket)] {
            let _none = fs::remove_file(old);
        }
        let disk = AtSocket::virtio_blk(STORAGE_DAEMON, &self.dir.join("disk"), Path::new(socket), false)?;
        let (program, words) = self.words.split_first().ok_or(Error::Interrupted)?;
        let log = self.dir.join("log");
        let mut command = host.command(program);
        // QEMU's second monitor is on standard input.
        let (events, theirs) = UnixStream::pair().doing(|| "make a pair of sockets".to_owned())?;
        command.args(words).stdin(OwnedFd::from(theirs)).stderr(File::create(&log).doing_to("make", &log)?);
        let mut qemu = command.spawn().doing(|| format!("start {program}"))?;
        let mut runs = || matches!(qemu.try_wait(), Ok(None));
        match resumed(monitor, &self.dir.join("state"), net, &mut runs) {
            Ok(monitor) => Ok(Running { qemu, monitor, _events: events, _disk: disk }),
            Err(error) => {
                let _gone = qemu.kill();
                let _reaped = qemu.wait();
                let said = fs::read_to_string(&log).unwrap_or_default();
                Err(Error::Server { program: program.clone(), what: format!("{error}: {}", said.trim()) })
            }
        }
    }
}

/// Loads a device state into a waiting QEMU, resumes it, and adds a network card. `runs`: QEMU still runs.
fn resumed(monitor: &Path, state: &Path, net: &str, runs: &mut dyn FnMut() -> bool) -> Result<Monitor> {
    let failed = |error: MonitorError| wrong("resume a guest", &error);
    let runs = RefCell::new(runs);
    let mut monitor = Monitor::connect(monitor, || (runs.borrow_mut())(), START_PATIENCE).map_err(failed)?;
    let state = File::open(state).doing_to("open", state)?;
    monitor.pass_state(&state).and_then(|()| monitor.load(START_PATIENCE)).map_err(failed)?;
    let network: Network = net.parse().map_err(Error::Absent)?;
    monitor.connect_network(&network).map_err(failed)?;
    monitor.proceed().map_err(failed)?;
    monitor.plug(MAC).map_err(failed)?;
    Ok(monitor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn other_service_is_rejected_and_silent_one_retried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let _asked = stream.read(&mut [0; 100]);
                if number > 0 {
                    let _gone = stream.write_all(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\none\n");
                }
            }
        });
        answered(address, "one", ANSWER_PATIENCE).unwrap();
        answered(address, "-", ANSWER_PATIENCE).unwrap();
        assert!(matches!(answered(address, "two", ANSWER_PATIENCE), Err(Error::Wrong { .. })));
    }
}

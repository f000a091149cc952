//! Host for clones: a network and empty directories.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_wan::Side as End;

use crate::error::{Doing, Error, Result};
use crate::peer::{Program, find, this_program};

/// Time limit for making a clone until it answers.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time limit for the end of a host's proxies.
const END_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// Interval between uses of a service.
const USE_EVERY: Duration = Duration::from_secs(1);
const FIRST_PORT: u16 = 8080;

/// A host; dropping it ends its clones and all their processes.
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

    /// Starts a process in the host's network that waits until the service with this name (`-`: with any)
    /// answers.
    pub fn answer(&self, address: SocketAddr, name: &str) -> Result<Child> {
        let mut command = self.command(this_program()?);
        command.arg("answer").arg(address.to_string()).args([name, &PATIENCE.as_secs().to_string()]);
        command.spawn().doing(|| "start the poller of a guest".to_owned())
    }

    /// Starts another clone.
    pub fn begin(&self, image: &str, options: &[&str]) -> Result<Starting> {
        let (net, address) = self.port();
        let name = format!("clone-{}", self.clones.get());
        let answer = self.answer(address, &name)?;
        let mut command = self.command(find(Program::Tombolo)?);
        command.args(["clone", image, &name, "--net", &net]).args(options);
        let begun = Instant::now();
        let clone = command.spawn().doing(|| "start tombolo clone".to_owned())?;
        Ok(Starting { name, begun, clone, answer })
    }

    /// Makes another clone.
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
        let mut command = self.command(find(Program::Tombolo)?);
        let output = command.args(["vm", "show", name]).stdout(Stdio::piped()).output();
        let shown = output.doing(|| "run tombolo vm show".to_owned())?.stdout;
        let shown = String::from_utf8_lossy(&shown);
        let shown = shown.split("\n\n").next().unwrap_or_default().lines();
        let is_of_reads = |line: &&str| {
            [" read", "network:", "not fetched", "of that"].iter().any(|word| line.contains(word))
        };
        let lines =
            shown.filter(is_of_reads).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        Ok(lines.collect::<Vec<_>>().join("; "))
    }

    /// Removes a running clone.
    pub fn remove(&self, name: &str) -> Result<()> {
        ended_well("tombolo vm rm", self.tombolo(&["vm", "rm", "--force", name])?)
    }

    /// Starts `tombolo` with these arguments.
    pub fn tombolo(&self, words: &[&str]) -> Result<Child> {
        let mut command = self.command(find(Program::Tombolo)?);
        command.args(words).spawn().doing(|| format!("start tombolo {}", words.join(" ")))
    }

    /// Finds the process of this host whose command line contains all words.
    pub fn process(&self, words: &[&str]) -> Option<u32> {
        self.processes().into_iter().find(|process| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            words.iter().all(|word| line.contains(word))
        })
    }

    /// Returns the memory file of a running clone.
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
    let what = format!("{}: {}", shown(output.status), said.trim());
    Err(Error::Server { program: program.to_owned(), what })
}

fn shown(status: ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| format!("status {code}"))
}

//! QEMU without Tombolo: the same command line on plain copies of an image's files, with a disk of QEMU's
//! storage daemon.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use tombolo_host_vmm::network::Network;
use tombolo_host_vmm::{Monitor, MonitorError};

use super::host::{Host, Took, ended_well};
use crate::error::{Doing, Error, Result, wrong};
use crate::peer::{AtSocket, Program};

const PATIENCE: Duration = Duration::from_secs(60);
/// Address in QEMU's own range.
const MAC: &str = "52:54:00:12:34:56";

/// A copy of an image, and QEMU's command line for it.
pub struct Floor {
    image: PathBuf,
    dir: PathBuf,
    words: Vec<String>,
}

/// A running guest.
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
        let disk =
            AtSocket::virtio_blk(Program::StorageDaemon, &self.dir.join("disk"), Path::new(socket), false)?;
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

/// Loads a device state into a waiting QEMU, resumes it, and adds a network card.
fn resumed(monitor: &Path, state: &Path, net: &str, runs: &mut dyn FnMut() -> bool) -> Result<Monitor> {
    let failed = |error: MonitorError| wrong("resume a guest", &error);
    let runs = RefCell::new(runs);
    let mut monitor = Monitor::connect(monitor, || (runs.borrow_mut())(), PATIENCE).map_err(failed)?;
    let state = File::open(state).doing_to("open", state)?;
    monitor.pass_state(&state).and_then(|()| monitor.load(PATIENCE)).map_err(failed)?;
    let network: Network = net.parse().map_err(Error::Absent)?;
    monitor.connect_network(&network).map_err(failed)?;
    monitor.proceed().map_err(failed)?;
    monitor.plug(MAC).map_err(failed)?;
    Ok(monitor)
}

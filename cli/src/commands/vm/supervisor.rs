//! `tombolo vm run`: the supervisor and parent of a VM's processes. It starts the servers of memory, disk and
//! shares, then the VMM. It ends all of them on a stop request, or when the VMM or the server of memory or
//! disk has ended, but not when a share's server or a replaced VMM has. After a reset of the guest it starts
//! another VMM.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tombolo_host_vmm::{End, Events, Launch};
use tombolo_sys::packet;
use tombolo_sys::process::{self, Death};

use super::ahead::{self, Ahead};
use super::chain::{self, Bases, Ground};
use super::config::{DISK, HostConfig, MEMORY, uuid};
use super::home::{Home, Phase, Run, UNSTARTED};
use super::image::{fetch_boot_files, overlay};
use super::live::{Checkpoints, Exclusive};
use super::rehearsal::RECORD;
use super::running::{SAVED, begin, forget, settled};
use super::shares::{self, Share};
use super::watch::{Event, Part, Watch};
use crate::commands::beside;
use crate::commands::ready::{await_ready, leave_terminal};
use crate::failure::{Failure, OrCannot, Outcome};

/// Run a VM, for the command that starts it.
#[derive(Args)]
pub struct RunArgs {
    name: String,
    /// Start from a device state.
    #[arg(long)]
    incoming: bool,
}

/// Starts a VM's supervisor, and returns once the VMM has been started. The guest does not run yet.
pub fn start(home: &Home, incoming: bool) -> Outcome {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tombolo").args(["vm", "run", &home.name]).args(incoming.then_some("--incoming"));
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    await_ready(spawned, "its supervisor", &format!("start VM {}", home.name))
}

pub fn log_of(home: &Home) -> PathBuf {
    home.file("log")
}

impl RunArgs {
    pub fn run(&self) -> Outcome {
        let home = Home::of(&self.name)?;
        let _lock = home.locked()?;
        home.run().clear();
        forget(&home, SAVED)?;
        // A supervisor that was killed may have left drafts.
        chain::remove_drafts(&home)?;
        let starting = format!("start VM {}", home.name);
        let log = File::options().create(true).append(true).open(log_of(&home)).or_cannot(&starting)?;
        let run = home.make_run()?;
        let watch = Watch::new().or_cannot(&starting)?;
        let vm = Vm { home: &home, run: &run, log: &log, watch: &watch };
        let started = Parts::start(&vm, self.incoming);
        let mut parts = started.inspect_err(|_| run.remove())?;
        leave_terminal(&log).or_cannot(&starting)?;
        let mut first = parts.first_end(&vm);
        let mut reset = Ok(());
        while reset.is_ok() && first == Event::Ended(Part::Vmm) && parts.was_reset() {
            reset = parts.boot(&vm).map_err(|failure| format!("after a reset: {failure}"));
            if reset.is_ok() {
                first = parts.first_end(&vm);
            }
        }
        let ended = parts.end(first, &vm);
        let end = reset.and(ended);
        if let Err(error) = chain::remove_drafts(&home) {
            tracing::warn!(%error, "files of an incomplete checkpoint remain until the next start");
        }
        run.remove();
        // A VM that never ran keeps its phase.
        if home.phase()? == Phase::Running {
            home.set_phase(&settled(&home, end))?;
        }
        Ok(())
    }
}

/// Timeout of a VMM that is requested to end, and again after it is killed. The servers of shares have the
/// same timeout, once those of disk and memory have ended.
const VMM_PATIENCE: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Configuration of a VM's processes.
pub struct Vm<'a> {
    pub home: &'a Home,
    pub run: &'a Run,
    pub log: &'a File,
    pub watch: &'a Watch,
}

/// Processes of a running VM. Dropping it kills the remaining ones.
struct Parts {
    vmm: Child,
    /// Number of VMMs that successors have replaced, and whose end has not been reported yet.
    replaced_vmms: u32,
    /// Events of the VMM, which state why it ended; `None` once that has been read.
    events: Option<Events>,
    disk: Server,
    /// Server of the memory; `None` if the memory is a plain file.
    memory: Option<Server>,
    shares: Vec<Server>,
    /// Read-ahead of the memory; `None` if there is no trace, and once the VM is ending.
    ahead: Option<Ahead>,
    checkpoints: Checkpoints,
    /// Keeps the caches of the underlying images running.
    _ground: Ground,
}

impl Parts {
    fn start(vm: &Vm<'_>, incoming: bool) -> Result<Self, Failure> {
        let Vm { home, run, log, watch } = *vm;
        let ground = Ground::of(home)?;
        let steady = chain::steady(home)?;
        let memory = chain::bases(home, &ground, MEMORY)?;
        let mut memory = memory.map(|bases| Server::of_memory(vm, &bases, false)).transpose()?;
        let words = [Path::new("--vhost-user"), &run.disk];
        let bases = chain::bases(home, &ground, DISK)?.unwrap_or_default();
        let mut disk = Server::spawn(home, DISK, &bases, &run.disk_control, &words, log)?;
        let mut shares = Server::shares(vm)?;
        // All servers connect to the underlying images at the same time.
        let mut ahead = None;
        if let Some(memory) = &mut memory {
            memory.is_ready(vm, Part::Memory)?;
            ahead = ahead::begin(home, run.memory.join(MEMORY));
        }
        disk.is_ready(vm, Part::Disk)?;
        for (number, share) in shares.iter_mut().enumerate() {
            share.is_ready(vm, Part::Share(number))?;
        }
        drop(steady);
        let channels = [Some(&mut disk), memory.as_mut()].into_iter().flatten();
        let channels = channels.filter_map(|server| server.layers.take()).collect();
        let checkpoints =
            Checkpoints::serve(home, channels, watch.sender()).or_cannot("listen for checkpoints")?;
        let (vmm, events) = start_vmm(vm, &home.here()?, incoming)?;
        watch.process(Part::Vmm, &vmm).or_cannot("watch the VMM")?;
        let events = Some(events);
        Ok(Self { vmm, replaced_vmms: 0, events, disk, memory, shares, ahead, checkpoints, _ground: ground })
    }

    /// Waits until a part other than a replaced VMM ends, or until a signal requests a stop. Replaces the
    /// VMM meanwhile, if its successor runs the guest.
    fn first_end(&mut self, vm: &Vm<'_>) -> Event {
        loop {
            match vm.watch.end() {
                Event::Switch => self.switch(vm),
                // The first VMM that ends is the replaced one. It is not identified by wait(2), which reports
                // a traced process later than its pidfd does.
                Event::Ended(Part::Vmm) if self.replaced_vmms > 0 => self.replaced_vmms -= 1,
                event => return event,
            }
        }
    }

    /// Replaces the VMM by its successor, if the successor runs the guest already.
    fn switch(&mut self, vm: &Vm<'_>) {
        self.checkpoints.taken_over(|mut successor| {
            mem::swap(&mut self.vmm, &mut successor.vmm);
            (self.events, self.memory) = (successor.events.take(), successor.memory.take());
            // Kills the first VMM, which is paused.
            drop(successor);
            self.replaced_vmms += 1;
            tracing::info!("another VMM runs the guest, over an overlay of its memory");
            if let Err(error) = fs::rename(&vm.run.next_monitor, &vm.run.monitor) {
                tracing::error!(%error, "the VMM's monitor cannot be reached");
            }
            let watched = vm.watch.process(Part::Vmm, &self.vmm).and_then(|()| {
                let memory = self.memory.as_ref().map(|memory| vm.watch.process(Part::Memory, &memory.child));
                memory.unwrap_or(Ok(()))
            });
            if let Err(error) = watched {
                tracing::error!(%error, "the VMM is not watched");
            }
        });
    }

    /// Returns `true` if the VMM has ended because its guest was reset.
    fn was_reset(&mut self) -> bool {
        let has_ended = self.vmm.wait().is_ok_and(|status| status.success());
        let why = self.events.take().map_or(End::Unknown, Events::ended);
        tracing::info!(%why, "the VMM has ended");
        has_ended && why == End::Reset
    }

    /// Boots the guest in another VMM, with the present memory and disk.
    fn boot(&mut self, vm: &Vm<'_>) -> Outcome {
        // A checkpoint that holds the lock may change the memory's file, so it is awaited.
        let _turn = self.turn(vm);
        fetch_boot_files(vm.home)?;
        for (number, (server, share)) in self.shares.iter_mut().zip(&vm.home.here()?.shares).enumerate() {
            // A guest runs on without the server of a share, but no VMM starts without it.
            if server.has_ended() {
                *server = Server::share(vm, number, share)?;
                server.is_ready(vm, Part::Share(number))?;
            }
        }
        let (vmm, events) = start_vmm(vm, &vm.home.here()?, false)?;
        (self.vmm, self.events) = (vmm, Some(events));
        let child = RefCell::new(&mut self.vmm);
        let runs = || matches!(child.borrow_mut().try_wait(), Ok(None));
        let watch = |vmm: &Child| {
            let watching = |error| Failure::cannot("watch the VMM", &error);
            vm.watch.process(Part::Vmm, vmm).map_err(watching)
        };
        begin(vm.home, runs).and_then(|()| watch(&self.vmm)).inspect_err(|_| drop(self.vmm.kill()))
    }

    /// Waits for a checkpoint that holds the lock, and takes the lock, so that no other checkpoint pauses the
    /// guest.
    fn turn(&mut self, vm: &Vm<'_>) -> Exclusive {
        loop {
            if let Some(turn) = self.checkpoints.end() {
                return turn;
            }
            self.switch(vm);
            thread::sleep(LOOK_EVERY);
        }
    }

    fn end_vmm(&mut self, first: Event, watch: &Watch) {
        if !matches!(self.vmm.try_wait(), Ok(None)) {
            return;
        }
        let is_asked = first == Event::Stop && process::terminate(self.vmm.id()).is_ok();
        if !is_asked || !watch.ends(&mut self.vmm, Some(VMM_PATIENCE)) {
            // A VMM that waits for an ended server may ignore any other signal than SIGKILL.
            let _ = self.vmm.kill();
        }
        if !watch.ends(&mut self.vmm, Some(VMM_PATIENCE))
            && let Some(memory) = &mut self.memory
        {
            // A killed VMM does not end before a page fault that the memory's server has begun to handle
            // (Linux, `request_wait_answer`). The end of the server ends the fault too.
            memory.kill();
        }
    }

    /// Ends all processes: the VMM first, so that the servers have all its writes. Returns the first
    /// failure of memory, disk and VMM.
    fn end(&mut self, first: Event, vm: &Vm<'_>) -> Result<(), String> {
        tracing::info!(?first, "ending");
        self.ahead = None;
        self.checkpoints.cancel();
        self.end_vmm(first, vm.watch);
        // Layers frozen for a checkpoint become durable under their final names.
        let _none = self.turn(vm);
        self.checkpoints.wait_until_undone();
        // The VMM may have been replaced meanwhile.
        self.end_vmm(first, vm.watch);
        let (vmm, watch) = (said("the VMM", self.vmm.wait()), vm.watch);
        [&mut self.disk].into_iter().chain(&mut self.memory).chain(&mut self.shares).for_each(Server::ask);
        let disk = self.disk.end(watch, None);
        let memory = self.memory.as_mut().map_or(Ok(()), |memory| memory.end(watch, None));
        // A server that does not end must not cost the guest data that the others have made durable.
        let until = Instant::now() + VMM_PATIENCE;
        for share in &mut self.shares {
            if let Err(why) = share.end(watch, Some(until.saturating_duration_since(Instant::now()))) {
                tracing::warn!(why);
            }
        }
        // A VMM without its memory fails too, so the VMM's failure is the last one considered.
        memory.and(disk).and(vmm)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // Killing has no effect on a VMM that has been waited for.
        let _ = self.vmm.kill();
        let _ = self.vmm.wait();
    }
}

fn said(which: &str, status: io::Result<ExitStatus>) -> Result<(), String> {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{which} ended with {status}")),
        Err(error) => Err(format!("{which}: {error}")),
    }
}

/// Number of log lines shown when the log is removed with its VM.
const LINES_TOLD: usize = 5;

/// Returns the last line of a log and a reference to the log; for a VM that has never started and is removed,
/// the log's last lines instead.
pub fn see(log: &Path) -> String {
    let last = fs::read_to_string(log).unwrap_or_default();
    if log.with_file_name(UNSTARTED).exists() {
        let lines: Vec<_> = last.lines().rev().take(LINES_TOLD).collect();
        return lines.into_iter().rev().collect::<Vec<_>>().join("; ");
    }
    let last =
        last.lines().rfind(|line| !line.is_empty()).map(|line| format!("{line}; ")).unwrap_or_default();
    format!("{last}see {}", log.display())
}

pub fn start_vmm(vm: &Vm<'_>, here: &HostConfig, incoming: bool) -> Result<(Child, Events), Failure> {
    let Vm { home, run, log, .. } = *vm;
    let config = home.config()?;
    let generation = uuid()?;
    let own_memory = home.file(MEMORY);
    let launch = Launch {
        machine: &config.machine(&home.path),
        name: &home.name,
        memory: &if here.memory.is_some() { run.memory.join(MEMORY) } else { own_memory },
        disk: &run.disk,
        monitor: &run.monitor,
        console: &home.file("console"),
        generation: &generation,
        incoming,
    };
    let starting = format!("start {}", here.qemu.display());
    let mut command = Command::new(&here.qemu);
    command.args(launch.arguments()).process_group(0);
    let (out, err) = log.try_clone().and_then(|out| Ok((out, log.try_clone()?))).or_cannot(&starting)?;
    command.stdout(out).stderr(err);
    tombolo_host_vmm::process::spawn(command).map_err(|error| {
        let remedy = "install QEMU (qemu-system-x86), or use --qemu PROGRAM";
        Failure::cannot(&starting, &error).remedy_if(error.kind() == io::ErrorKind::NotFound, remedy)
    })
}

/// A server process of a VM: `tombolo disk` for the disk or the memory, `tombolo serve` for a share. Separate
/// from the VMM, because a process that maps a guest's memory must not serve that memory. Dropping it kills
/// the process.
pub struct Server {
    what: &'static str,
    child: Child,
    output: Option<ChildStdout>,
    /// Channel for changes of the overlay's lower layers.
    pub layers: Option<OwnedFd>,
}

impl Server {
    /// Starts the server of a memory, over a base that is still written to if `base_in_use` is set.
    pub fn of_memory(vm: &Vm<'_>, bases: &Bases, base_in_use: bool) -> Result<Self, Failure> {
        let [mount, name, failing] = ["--mount", "--name", "--end-at-failed-write"].map(Path::new);
        let words = [mount, &vm.run.memory, name, Path::new(MEMORY), failing, Path::new("--base-in-use")];
        let words = &words[..words.len() - usize::from(!base_in_use)];
        Self::spawn(vm.home, MEMORY, bases, &vm.run.memory_control, words, vm.log)
    }

    fn spawn(
        home: &Home,
        what: &'static str,
        bases: &Bases,
        control: &Path,
        words: &[&Path],
        log: &File,
    ) -> Result<Self, Failure> {
        let cannot = |error: &io::Error| Failure::cannot(format_args!("serve the {what} of a VM"), error);
        let mut command = beside("disk", Some(log)).map_err(|error| cannot(&error))?;
        command.arg(home.file(&overlay(what))).args(bases.words()).args(words);
        command.arg("--control").arg(control).process_group(0);
        let record = home.file(RECORD);
        if record.exists() {
            command.arg("--record").arg(record);
        }
        let (ours, theirs) = packet::pair().map_err(|errno| cannot(&errno.into()))?;
        command.arg("--layers").arg(chain::layers(home, what)?.len().to_string()).stdin(theirs);
        let mut server = Self::start(what, command)?;
        server.layers = Some(ours);
        Ok(server)
    }

    fn shares(vm: &Vm<'_>) -> Result<Vec<Self>, Failure> {
        let shares = vm.home.here()?.shares;
        shares.iter().enumerate().map(|(number, share)| Self::share(vm, number, share)).collect()
    }

    fn share(vm: &Vm<'_>, number: usize, share: &Share) -> Result<Self, Failure> {
        let mut command = beside("serve", Some(vm.log)).or_cannot(format_args!("share {share}"))?;
        shares::add_words(&mut command, share, vm.run, number);
        command.process_group(0).stdin(Stdio::null());
        Self::start("share", command)
    }

    fn start(what: &'static str, mut command: Command) -> Result<Self, Failure> {
        process::ends_with_this_thread(&mut command, Death::Asked);
        let mut child =
            command.stdout(Stdio::piped()).spawn().or_cannot(format_args!("serve the {what} of a VM"))?;
        let output = child.stdout.take();
        Ok(Self { what, child, output, layers: None })
    }

    /// Waits until the server is ready; fails if it ends first, or on a stop request.
    pub fn is_ready(&mut self, vm: &Vm<'_>, part: Part) -> Outcome {
        let starting = format!("serve the {} of VM {}", self.what, vm.home.name);
        let watching = |error| Failure::cannot(&starting, &error);
        vm.watch.process(part, &self.child).map_err(watching)?;
        if let Some(output) = self.output.take() {
            vm.watch.output(part, output).map_err(watching)?;
        }
        vm.watch.ready(part).map_err(|event| match event {
            Event::Stop => Failure::cannot(&starting, "it was stopped"),
            // The server's messages are in its log by now.
            _ => Failure::cannot(&starting, see(&log_of(vm.home))),
        })
    }

    /// Sends SIGTERM, on which the server flushes and ends.
    fn ask(&mut self) {
        if !self.has_ended() {
            let _ = process::terminate(self.child.id());
        }
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end of the server ([`Watch::ends`]), and kills a server that does not end in time.
    fn end(&mut self, watch: &Watch, within: Option<Duration>) -> Result<(), String> {
        if !watch.ends(&mut self.child, within) {
            self.kill();
        }
        said(&format!("the server of its {}", self.what), self.child.wait())
    }

    fn kill(&mut self) {
        // The process has not been waited for, so its id cannot be another group's.
        let _ = process::kill_group(self.child.id());
    }
}

impl Drop for Server {
    /// Kills the server unless it has ended. No guest uses it any more.
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

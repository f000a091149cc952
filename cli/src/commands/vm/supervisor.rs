//! `tombolo vm run`: what a VM's processes are the children of. It starts the servers of memory and disk, then the VMM, and ends all when one of
//! them has ended. After a reset of the guest another VMM boots it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use clap::Args;
use tombolo_host_runtime::signals;
use tombolo_host_service::daemon;
use tombolo_host_vmm::{End, Events, Launch};
use tombolo_sys::{packet, process};

use super::config::{MEMORY, uuid};
use super::home::{Home, Phase, Run};
use super::image::{fetch_boot_files, overlay};
use super::origin::Origin;
use super::rehearsal::RECORD;
use super::running::{SAVED, begin, forget, settled};
use crate::commands::beside;
use crate::failure::{Failure, Outcome};

/// Run a VM, for the command that starts it.
#[derive(Args)]
pub struct RunArgs {
    name: String,
    /// It goes on with a device state.
    #[arg(long)]
    incoming: bool,
}

const READY: &str = "ready\n";

/// Starts a VM's supervisor, and returns when its VMM is there. The guest does not run yet.
pub fn start(home: &Home, incoming: bool) -> Outcome {
    let starting = format!("start the VM {}", home.name);
    let cannot = |error: &io::Error| Failure::cannot(&starting, error);
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tombolo").args(["vm", "run", &home.name]).args(incoming.then_some("--incoming"));
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut supervisor = spawned.map_err(|error| cannot(&error))?;
    let mut said = String::new();
    if let Some(output) = &mut supervisor.stdout {
        output.read_to_string(&mut said).map_err(|error| cannot(&error))?;
    }
    if said == READY {
        return Ok(());
    }
    match supervisor.wait().map_err(|error| cannot(&error))?.code() {
        // It has said why.
        Some(_) => Err(Failure::silent()),
        None => Err(Failure::cannot(&starting, "what was to run it was killed")),
    }
}

pub fn log_of(home: &Home) -> PathBuf {
    home.file("log")
}

impl RunArgs {
    pub fn run(&self) -> Outcome {
        let home = Home::of(&self.name)?;
        let _lock = home.locked()?;
        let run = home.run();
        run.clear()?;
        forget(&home, SAVED)?;
        let starting = format!("start the VM {}", home.name);
        let cannot = |error: &io::Error| Failure::cannot(&starting, error);
        let log =
            File::options().create(true).append(true).open(log_of(&home)).map_err(|error| cannot(&error))?;
        run.make().map_err(|error| cannot(&error))?;
        let (ended, ends) = channel();
        let stop = ended.clone();
        signals::on_stop(move |_| {
            let _ = stop.send(Part::Signal);
        })
        .map_err(|error| cannot(&error))?;
        let vm = Vm { home: &home, run: &run, log: &log };
        let mut parts = Parts::start(&vm, self.incoming)?;
        parts.watch(&ended).map_err(|error| cannot(&error))?;
        let mut out = io::stdout();
        out.write_all(READY.as_bytes()).and_then(|()| out.flush()).map_err(|error| cannot(&error))?;
        daemon::leave_terminal(&log).map_err(|error| cannot(&error))?;
        let mut first = ends.recv().unwrap_or(Part::Signal);
        let mut reset = Ok(());
        while reset.is_ok() && first == Part::Vmm && parts.was_reset() {
            reset = parts.boot(&vm, &ended).map_err(|failure| format!("after a reset: {failure}"));
            if reset.is_ok() {
                first = ends.recv().unwrap_or(Part::Signal);
            }
        }
        let ended = parts.end(first, &ends);
        let end = reset.and(ended);
        run.remove();
        // One that never ran is what it was.
        if home.phase()? == Phase::Running {
            home.set_phase(&settled(&home, end))?;
        }
        Ok(())
    }
}

/// What may end first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Memory,
    Disk,
    Vmm,
    Signal,
}

/// For a VMM that is told to end.
const VMM_PATIENCE: Duration = Duration::from_secs(5);

/// What a VM's processes are started of.
struct Vm<'a> {
    home: &'a Home,
    run: &'a Run,
    log: &'a File,
}

/// The processes of a VM that runs. Dropping it kills those that are left.
struct Parts {
    vmm: Child,
    /// Until they have been heard.
    events: Option<Events>,
    disk: Server,
    /// Where the memory is an overlay.
    memory: Option<Server>,
}

impl Parts {
    fn start(vm: &Vm<'_>, incoming: bool) -> Result<Self, Failure> {
        let Vm { home, run, log } = *vm;
        let here = home.here()?;
        let origin = Origin::of_file(&here.disk, &here.cache)?;
        let near = |base: &Path| origin.as_ref().map_or_else(|| base.to_owned(), |origin| origin.near(base));
        let memory = here.memory.as_deref().map(|base| {
            let words = [Path::new("--mount"), &run.memory, Path::new("--name"), Path::new(MEMORY)];
            Server::spawn(home, "memory", &near(base), &run.memory_control, &words, log)
        });
        let mut memory = memory.transpose()?;
        let words = [Path::new("--vhost-user"), &run.disk];
        let mut disk = Server::spawn(home, "disk", &near(&here.disk), &run.disk_control, &words, log)?;
        // Both reach for what they stand on at the same time.
        memory.as_mut().map_or(Ok(()), |memory| memory.is_ready(home))?;
        disk.is_ready(home)?;
        let (vmm, events) = start_vmm(vm, incoming)?;
        let parts = Self { vmm, events: Some(events), disk, memory };
        if let Some(origin) = origin {
            let kept = origin.keep(&here.disk, &here.cache);
            kept.map_err(|error| Failure::cannot(format_args!("start the VM {}", home.name), &error))?;
        }
        Ok(parts)
    }

    /// Whether the VMM has ended as its guest was reset.
    fn was_reset(&mut self) -> bool {
        let has_ended = self.vmm.wait().is_ok_and(|status| status.success());
        let why = self.events.take().map_or(End::Unsaid, Events::ended);
        tracing::info!(%why, "the VMM has ended");
        has_ended && why == End::Reset
    }

    /// Boots the guest in another VMM, with what its memory and its disk have now.
    fn boot(&mut self, vm: &Vm<'_>, ended: &Sender<Part>) -> Outcome {
        fetch_boot_files(vm.home)?;
        let (vmm, events) = start_vmm(vm, false)?;
        (self.vmm, self.events) = (vmm, Some(events));
        let child = RefCell::new(&mut self.vmm);
        let runs = || matches!(child.borrow_mut().try_wait(), Ok(None));
        begin(vm.home, runs)
            .and_then(|()| {
                watch(Part::Vmm, &self.vmm, ended).map_err(|error| Failure::cannot("watch the VMM", &error))
            })
            .inspect_err(|_| drop(self.vmm.kill()))
    }

    /// Tells of the end of each.
    fn watch(&self, ended: &Sender<Part>) -> io::Result<()> {
        let memory = self.memory.as_ref().map(|memory| (Part::Memory, &memory.child));
        let mut all = [(Part::Vmm, &self.vmm), (Part::Disk, &self.disk.child)].into_iter().chain(memory);
        all.try_for_each(|(part, child)| watch(part, child, ended))
    }

    /// Ends all of them: the VMM first, so that the others have all that it wrote. What went wrong.
    fn end(&mut self, first: Part, ends: &Receiver<Part>) -> Result<(), String> {
        tracing::info!(?first, "ending");
        match first {
            Part::Vmm => {}
            Part::Signal => {
                let _ = process::terminate(self.vmm.id());
                if ends.recv_timeout(VMM_PATIENCE) != Ok(Part::Vmm) {
                    let _ = self.vmm.kill();
                }
            }
            // It waits for what is not there any more, and may not heed any other signal.
            Part::Memory | Part::Disk => drop(self.vmm.kill()),
        }
        let vmm = said("the VMM", self.vmm.wait());
        let disk = self.disk.end();
        let memory = self.memory.as_mut().map_or(Ok(()), Server::end);
        // What ended first is the cause of the rest.
        match first {
            Part::Memory => memory.and(disk).and(vmm),
            _ => disk.and(vmm).and(memory),
        }
    }
}

/// Tells of the end of a process.
fn watch(part: Part, child: &Child, ended: &Sender<Part>) -> io::Result<()> {
    let (watched, ended) = (process::watched(child.id())?, ended.clone());
    let wait = move || {
        let _ = packet::wait(&watched);
        let _ = ended.send(part);
    };
    std::thread::Builder::new().name("watch".into()).spawn(wait).map(drop)
}

impl Drop for Parts {
    fn drop(&mut self) {
        // Of one that has been waited for nothing is done.
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

/// The last word of a log, and where there are more.
pub fn see(log: &Path) -> String {
    let last = std::fs::read_to_string(log).unwrap_or_default();
    let last = last.lines().last().map(|line| format!("{line}; ")).unwrap_or_default();
    format!("{last}see {}", log.display())
}

fn start_vmm(vm: &Vm<'_>, incoming: bool) -> Result<(Child, Events), Failure> {
    let Vm { home, run, log } = *vm;
    let (config, here) = (home.config()?, home.here()?);
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
    let outputs = log.try_clone().and_then(|out| Ok((out, log.try_clone()?)));
    let (out, err) = outputs.map_err(|error| Failure::cannot(&starting, &error))?;
    tombolo_host_vmm::process::spawn(command.stdout(out).stderr(err)).map_err(|error| {
        let failure = Failure::cannot(&starting, &error);
        match error.kind() {
            io::ErrorKind::NotFound => {
                failure.remedy("install QEMU (qemu-system-x86), or say --qemu PROGRAM")
            }
            _ => failure,
        }
    })
}

/// A `tombolo disk` of its own: a process that maps a guest's memory must not be the one that serves it. Dropping it ends it.
struct Server {
    what: &'static str,
    child: Child,
    /// It would be ended by its next line if there was no reader.
    output: BufReader<ChildStdout>,
    is_over: bool,
}

impl Server {
    fn spawn(
        home: &Home,
        what: &'static str,
        base: &Path,
        control: &Path,
        words: &[&Path],
        log: &File,
    ) -> Result<Self, Failure> {
        let cannot = |error: &io::Error| Failure::cannot(format_args!("serve the {what} of a VM"), error);
        let mut command = beside("disk", Some(log)).map_err(|error| cannot(&error))?;
        command.arg(home.file(&overlay(what))).arg("--base").arg(base).args(words);
        command.arg("--control").arg(control).process_group(0);
        let record = home.file(RECORD);
        if record.exists() {
            command.arg("--record").arg(record);
        }
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| cannot(&error))?;
        let output = child.stdout.take().ok_or_else(|| cannot(&io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { what, child, output: BufReader::new(output), is_over: false })
    }

    /// Waits until it can be used.
    fn is_ready(&mut self, home: &Home) -> Outcome {
        let mut line = String::new();
        while !line.starts_with("ready control") {
            line.clear();
            if !matches!(self.output.read_line(&mut line), Ok(1..)) {
                // What it has said is complete then.
                let _ = self.end();
                let starting = format!("serve the {} of the VM {}", self.what, home.name);
                return Err(Failure::cannot(&starting, see(&log_of(home))));
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        self.is_over = true;
        let _ = process::terminate(self.child.id());
        said(&format!("the server of its {}", self.what), self.child.wait())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.end();
        }
    }
}

//! Start, resumption and suspension of a guest.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_vmm::network::Network;
use tombolo_host_vmm::{Monitor, MonitorError};

use super::config::{CONFIG, DISK, IDENTITY, MEMORY, STATE, identity};
use super::home::{GLANCE, Home, Phase, UNSTARTED};
use super::image::{fetch_boot_files, overlay};
use super::image_cache::ImageCache;
use super::ledger::{LEDGER, Ledger, Meter};
use super::{shares, supervisor};
use crate::assembly::plan::overlay::sync_name;
use crate::failure::{Failure, OrCannot, Outcome};

/// Maximum wait for an answer of a VMM. A VMM that is starting loads its kernel first.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum wait for a supervisor to end its VM, before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(40);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Maximum wait for a guest to release its network card, identity and shares, and to read its identity.
const GUEST_PATIENCE: Duration = Duration::from_secs(20);

/// Device state while it is being written.
pub const DRAFT: &str = "state.new";

/// Device state of a guest being suspended. The supervisor declares the guest suspended once the VMM and the
/// servers of memory and disk have ended without an error.
pub const SAVED: &str = "state.saved";

fn failed<'a>(home: &'a Home, doing: &'a str) -> impl Fn(MonitorError) -> Failure + use<'a> {
    move |error| {
        let failure = Failure::cannot(format_args!("{doing} VM {}", home.name), &error);
        match error {
            MonitorError::Gone(_) => failure.remedy(supervisor::see(&supervisor::log_of(home))),
            _ => failure,
        }
    }
}

/// Boots a VM from its disk: starts its supervisor, and then the guest. The VM must not be running. A
/// suspended one is refused unless its memory may be lost.
pub fn boot(home: &Home, loses_memory: bool) -> Outcome {
    {
        // The lock excludes a concurrent start, and the end of a suspension.
        let _turn = home.locked()?;
        let phase = home.phase()?;
        match phase {
            Phase::Incomplete => return Err(incomplete(home, "boot")),
            Phase::Suspended if !loses_memory => {
                let (name, reason) = (&home.name, "it is suspended, and its memory would be lost");
                return Err(Failure::cannot(format_args!("boot VM {name}"), reason).remedy(format_args!(
                    "use tombolo vm resume {name}, and reboot the guest; if it cannot be resumed, add --force"
                )));
            }
            _ => fetch_boot_files(home)?,
        }
        // From its start on a VMM may write to the memory, even if the guest never runs.
        if phase == Phase::Suspended {
            home.set_phase(&Phase::Off)?;
        }
    }
    supervisor::start(home, false)?;
    let runs = || home.lock().is_ok_and(|lock| lock.is_none());
    begin(home, runs).inspect_err(|_| drop(stop(home)))
}

fn incomplete(home: &Home, doing: &str) -> Failure {
    Failure::cannot(format_args!("{doing} VM {}", home.name), "its creation was not completed")
        .remedy(format_args!("tombolo vm rm {}", home.name))
}

/// Starts the guest of a VMM that was started for a boot. Fails early once `runs` returns `false`. A device
/// that cannot be plugged is a failure, unlike at a resumption: the guest has not run and nothing is lost.
pub fn begin(home: &Home, runs: impl Fn() -> bool) -> Outcome {
    let mut monitor = reach(home, &home.run().monitor, "start", runs)?;
    prepare(home, &mut monitor)?;
    home.set_phase(&Phase::Running)?;
    plug(home, &mut monitor, false)?;
    monitor.proceed().map_err(failed(home, "start"))?;
    home.has_started();
    Ok(())
}

/// Connects to the monitor of a starting VMM.
pub fn reach(home: &Home, monitor: &Path, doing: &str, runs: impl Fn() -> bool) -> Result<Monitor, Failure> {
    let end = Instant::now() + PATIENCE;
    let is_starting = || Instant::now() < end && runs();
    Monitor::connect(monitor, is_starting, PATIENCE).map_err(|error| {
        if runs() {
            return failed(home, doing)(error);
        }
        let (doing, log) = (format!("{doing} VM {}", home.name), supervisor::log_of(home));
        if is_unknown_machine(&fs::read_to_string(&log).unwrap_or_default()) {
            let machine = home.config().map_or_else(|_| String::new(), |config| config.machine);
            let reason = format!("this QEMU does not support machine type {machine} of the VM");
            return Failure::cannot(doing, reason)
                .remedy("install that version or a newer one, or select it with --qemu PROGRAM");
        }
        Failure::cannot(doing, "the VMM ended at startup").remedy(supervisor::see(&log))
    })
}

/// Returns `true` if one of the VMM's last two lines in the log reports an unsupported machine type: QEMU
/// adds a line with a hint. Lines of the VM's servers, which begin with a time, may follow.
fn is_unknown_machine(log: &str) -> bool {
    let of_vmm = |line: &&str| !line.starts_with(|first: char| first.is_ascii_digit());
    log.lines().rev().filter(of_vmm).take(2).any(|line| line.contains("unsupported machine type"))
}

/// Resumes a guest from its device state.
pub fn resume(home: &Home, ledger: &mut Ledger) -> Outcome {
    {
        let _turn = home.locked()?;
        match home.phase()? {
            Phase::Suspended => {}
            Phase::Incomplete => return Err(incomplete(home, "resume")),
            _ => {
                let reason = "it was not suspended, so its memory is lost";
                return Err(Failure::cannot(format_args!("resume VM {}", home.name), reason)
                    .remedy(format_args!("boot it from its disk with tombolo vm boot {}", home.name)));
            }
        }
    }
    let here = home.here()?;
    let cache = ImageCache::of_file(&here.disk, &here.cache)?;
    if let Some(cache) = &cache {
        ledger.reads_through(cache.control());
    }
    supervisor::start(home, true)?;
    go_on(home, ledger).map_err(|failure| {
        let _ = stop(home);
        let remains = matches!(home.phase(), Ok(Phase::Suspended)) && !home.file(UNSTARTED).exists();
        let remedy = "it is still suspended; fix the problem and retry tombolo vm resume";
        failure.remedy_if(remains, format_args!("{remedy} {}", home.name))
    })?;
    ledger.end(&home.run());
    home.write(LEDGER, ledger)
}

fn go_on(home: &Home, ledger: &mut Ledger) -> Outcome {
    let failed = failed(home, "resume");
    let state = File::open(home.file(STATE)).or_cannot("read the device state")?;
    let state_bytes = state.metadata().or_cannot("read the device state")?.len();
    ledger.enter("servers of memory and disk", None);
    let runs = || home.lock().is_ok_and(|lock| lock.is_none());
    let mut monitor = reach(home, &home.run().monitor, "resume", runs)?;
    ledger.enter("start of the VMM", None);
    monitor.pass_state(&state).and_then(|()| monitor.load(PATIENCE)).map_err(&failed)?;
    // Later failures are those of resources of this host, which can be repaired, so the VM is not removed.
    home.has_started();
    ledger.enter("device state", Some(state_bytes));
    // This fails before the guest runs if this host lacks resources for it.
    prepare(home, &mut monitor)?;
    // From here on memory and disk diverge from the device state.
    home.set_phase(&Phase::Running)?;
    monitor.proceed().map_err(&failed)?;
    home.note("guest resumed from its device state");
    if let Err(failure) = plug(home, &mut monitor, true) {
        // A failure to plug a device does not stop the running guest, whose memory would be lost.
        failure.remedy("running without it").print();
    }
    ledger.enter("identity, network card", None);
    Ok(())
}

/// Prepares the guest's identity, shares and network connection, whose devices are plugged later.
fn prepare(home: &Home, monitor: &mut Monitor) -> Outcome {
    let here = home.here()?;
    let file = home.file(IDENTITY);
    let telling = format!("provide VM {} with its identity", home.name);
    fs::write(&file, identity(&home.name, &here)?).or_cannot(&telling)?;
    monitor.open_identity(&file).or_cannot(&telling)?;
    shares::connect(&here.shares, &home.run(), monitor)?;
    let Some(net) = &here.net else { return Ok(()) };
    let connecting = format!("connect VM {} to its network", home.name);
    let network: Network = net.parse().map_err(|error: String| Failure::cannot(&connecting, error))?;
    monitor.connect_network(&network).or_cannot(&connecting)
}

/// Plugs the guest's shares, its identity and then its network card. A running guest gets time
/// ([`GUEST_PATIENCE`]) to read the identity before the network card is plugged: it handles simultaneous
/// devices in any order, and would be reachable on its network under the identity of the VM it was cloned
/// from.
fn plug(home: &Home, monitor: &mut Monitor, runs: bool) -> Outcome {
    let here = home.here()?;
    let telling = format!("provide VM {} with its identity", home.name);
    // The failure of a share is returned only after the other devices are plugged.
    let shared = shares::plug(&here.shares, monitor);
    monitor.plug_identity(!here.shares.is_empty()).or_cannot(&telling)?;
    home.note("identity plugged");
    let end = Instant::now() + GUEST_PATIENCE;
    while runs && here.net.is_some() && Instant::now() < end {
        match monitor.has_read_identity().or_cannot(&telling)? {
            Some(false) => thread::sleep(LOOK_EVERY),
            _ => break,
        }
    }
    if here.net.is_some() {
        let giving = format!("provide VM {} with a network card", home.name);
        monitor.plug(&here.mac).or_cannot(&giving)?;
        home.note("network card plugged");
    }
    shared
}

/// A running guest prepared for saving. Steps that can fail and need no pause are done already.
pub struct Asleep<'a> {
    home: &'a Home,
    pub monitor: Monitor,
    /// The file mapped by the VMM.
    pub memory: Arc<File>,
    /// Target of the device state.
    pub state: Arc<File>,
    disk: Meter,
}

impl<'a> Asleep<'a> {
    /// Makes memory and disk durable while the guest runs, and unplugs the guest's host resources.
    pub fn prepare(home: &'a Home, doing: &str) -> Result<Self, Failure> {
        let saving = format!("{doing} VM {}", home.name);
        let mut monitor = connect(home, doing)?;
        if matches!(&*monitor.status().map_err(failed(home, doing))?, "inmigrate" | "prelaunch") {
            let reason = "it has not started running";
            return Err(Failure::cannot(&saving, reason)
                .remedy(format_args!("wait, or use tombolo vm stop {}", home.name)));
        }
        record_machine(home, &mut monitor, doing)?;
        let draft = home.file(DRAFT);
        let state = File::create(&draft).or_cannot(format_args!("write {}", draft.display()))?;
        make_durable(home)?;
        monitor.unplug(home.here()?.shares.len(), GUEST_PATIENCE).map_err(|error| {
            plug_again(home, &mut monitor);
            let remedy = "the guest must release its network card, identity and shares; has it booted?";
            failed(home, doing)(error).remedy(remedy)
        })?;
        // The memory is opened after devices are unplugged, because the VM's end waits until it is closed.
        let memory = open_memory(home).inspect_err(|_| plug_again(home, &mut monitor))?;
        let disk = Meter::of(&home.run().disk_control);
        let mut asleep = Self { home, monitor, memory: Arc::new(memory), state: Arc::new(state), disk };
        // The guest has written since the first sync.
        let synced = sync(home, &asleep.memory)
            .and_then(|()| asleep.monitor.pass_state(&asleep.state).map_err(failed(home, doing)));
        // The VMM would wait for an unresponsive server of the disk to stop the queues, with the guest
        // paused.
        let responds = |()| asleep.disk.under_way().map(drop).ok_or_else(|| unresponsive(home, doing, DISK));
        synced.and_then(responds).inspect_err(|_| asleep.plug())?;
        Ok(asleep)
    }

    /// Pauses the guest and writes its device state. Returns the time at which the guest was paused.
    pub fn stop(&mut self, doing: &str) -> Result<Instant, Failure> {
        let paused = self.monitor.save(PATIENCE).map_err(failed(self.home, doing))?;
        // A request taken by the disk and not yet answered is in no device state: the guest would wait for it
        // for ever.
        match self.disk.under_way() {
            Some(0) => Ok(paused),
            Some(_) => {
                let reason = "its disk has outstanding requests";
                Err(Failure::cannot(format_args!("{doing} VM {}", self.home.name), reason)
                    .remedy("try again when the host's disks are less busy"))
            }
            None => Err(unresponsive(self.home, doing, DISK)),
        }
    }

    /// Resumes the guest. A VMM that does not respond may be waiting for a server: its reply is awaited until
    /// `is_over` returns `true`.
    pub fn proceed(&mut self, is_over: impl Fn() -> bool) -> Result<(), MonitorError> {
        loop {
            let done = match self.monitor.proceed() {
                // Reconnects, as only the connection may have ended.
                Err(MonitorError::Gone(_)) => {
                    let connected = Monitor::connect(&self.home.run().monitor, || false, PATIENCE);
                    connected.and_then(|monitor| {
                        self.monitor = monitor;
                        self.monitor.proceed()
                    })
                }
                done => done,
            };
            match done {
                // The request is repeated on the same connection, because a VMM serves one connection at a
                // time.
                Err(MonitorError::Late { .. }) if !is_over() => {}
                done => return done,
            }
        }
    }

    /// Resumes the guest after a failed suspension. Returns the failure, extended if the resumption fails
    /// too.
    fn go_on_after(&mut self, failure: Failure) -> Failure {
        let end = Instant::now() + PATIENCE;
        match self.proceed(|| Instant::now() >= end) {
            Ok(()) => {
                self.plug();
                failure
            }
            Err(error) => failure.remedy(format_args!(
                "its guest is still paused: {error}; end it with tombolo vm stop {}",
                self.home.name
            )),
        }
    }

    /// Plugs the guest's host devices again.
    pub fn plug(&mut self) {
        let plugged =
            prepare(self.home, &mut self.monitor).and_then(|()| plug(self.home, &mut self.monitor, true));
        if let Err(failure) = plugged {
            self.home.note(&format!("the guest is running without its host resources: {failure}"));
        }
    }
}

/// Returns the failure for a server of disk or memory that does not respond.
pub fn unresponsive(home: &Home, doing: &str, what: &str) -> Failure {
    Failure::cannot(
        format_args!("{doing} VM {}", home.name),
        format!("the server of its {what} does not respond"),
    )
}

fn connect(home: &Home, doing: &str) -> Result<Monitor, Failure> {
    Monitor::connect(&home.run().monitor, || false, PATIENCE).map_err(failed(home, doing))
}

/// Records the machine type of a VM whose guest runs.
pub fn record_running_machine(home: &Home, doing: &str) -> Outcome {
    record_machine(home, &mut connect(home, doing)?, doing)
}

/// Records the versioned machine type of a running guest. Only that type can load its device state, whatever
/// version of QEMU is installed later.
fn record_machine(home: &Home, monitor: &mut Monitor, doing: &str) -> Outcome {
    let mut config = home.config()?;
    let machine = monitor.machine_type().map_err(failed(home, doing))?;
    if config.machine != machine {
        config.machine = machine;
        home.write(CONFIG, &config)?;
    }
    Ok(())
}

/// Plugs the devices again that the guest had released before a failure. Errors are ignored, because QEMU
/// refuses devices and back ends that it still has.
fn plug_again(home: &Home, monitor: &mut Monitor) {
    let Ok(here) = home.here() else { return };
    let _ = monitor.open_identity(&home.file(IDENTITY));
    let _ = shares::connect(&here.shares, &home.run(), monitor);
    if let Some(network) = here.net.as_ref().and_then(|net| net.parse::<Network>().ok()) {
        let _ = monitor.connect_network(&network);
    }
    let _ = shares::plug(&here.shares, monitor);
    let _ = monitor.plug_identity(!here.shares.is_empty());
    if here.net.is_some() {
        let _ = monitor.plug(&here.mac);
    }
}

/// Syncs memory and disk repeatedly while the guest runs, until a round is short, or not much shorter than
/// the one before, at most [`ROUNDS_MAX`] times.
fn make_durable(home: &Home) -> Outcome {
    let memory = open_memory(home)?;
    let mut last = Duration::MAX;
    for _ in 0..ROUNDS_MAX {
        let began = Instant::now();
        sync(home, &memory)?;
        let took = began.elapsed();
        if took < LITTLE || took > last.mul_f64(0.7) {
            break;
        }
        last = took;
    }
    Ok(())
}

fn sync(home: &Home, memory: &File) -> Outcome {
    // The memory is synced last, because the guest continues to write it.
    let disk = File::open(home.file(&overlay(DISK))).and_then(|disk| disk.sync_all());
    disk.and_then(|()| memory.sync_all()).or_cannot(format_args!("make VM {} durable", home.name))
}

/// Maximum number of rounds of [`make_durable`].
const ROUNDS_MAX: u32 = 6;

/// Duration of a round considered short.
const LITTLE: Duration = Duration::from_millis(200);

/// Opens the file mapped by the VMM, through the supervisor if it is mounted in another mount namespace.
fn open_memory(home: &Home) -> Result<File, Failure> {
    let memory = memory_of(home)?;
    let elsewhere = || home.run().in_its_namespace(&memory).and_then(File::open);
    File::open(&memory)
        .or_else(|error| elsewhere().map_err(|_| error))
        .or_cannot(format_args!("access the memory of VM {}", home.name))
}

/// Suspends a guest, and waits up to [`PATIENCE`] for the VM's end: device state, memory and disk are then
/// consistent and durable.
pub fn suspend(home: &Home) -> Outcome {
    let suspending = format!("suspend VM {}", home.name);
    if home.lock()?.is_some() {
        return Err(Failure::cannot(&suspending, "it is not running").remedy("see tombolo vm list"));
    }
    // An incomplete suspension may have left this file.
    forget(home, SAVED)?;
    let mut asleep = Asleep::prepare(home, "suspend")?;
    let synced =
        |state: &File| state.sync_all().or_cannot(format_args!("write {}", home.file(DRAFT).display()));
    if let Err(failure) = asleep.stop("suspend").and_then(|_| synced(&asleep.state)) {
        return Err(asleep.go_on_after(failure));
    }
    if let Err(failure) = sync_memory(home, &asleep.memory) {
        // The kernel may have dropped pages that it could not write.
        let _ = stop(home);
        return Err(failure.remedy(format_args!("its memory is lost; use tombolo vm boot {}", home.name)));
    }
    let saved = home.file(SAVED);
    if let Err(error) = fs::rename(home.file(DRAFT), &saved).and_then(|()| sync_name(&saved)) {
        let _ = fs::remove_file(&saved);
        let failure = Failure::cannot(format_args!("write {}", saved.display()), &error);
        return Err(asleep.go_on_after(failure));
    }
    asleep.monitor.quit().map_err(failed(home, "suspend"))?;
    // Open files would keep the memory mounted.
    drop(asleep);
    let Some(_lock) = home.lock_within(PATIENCE)? else {
        let reason = "its writes are not durable yet";
        return Err(Failure::cannot(&suspending, reason)
            .remedy("this continues in the background; tombolo vm list shows when it is suspended"));
    };
    let why = match home.phase()? {
        Phase::Suspended => return Ok(()),
        Phase::Failed(why) => why,
        _ => "it was stopped".into(),
    };
    Err(Failure::cannot(&suspending, why)
        .remedy(format_args!("its memory is lost; use tombolo vm boot {}", home.name)))
}

/// Flushes the memory, reporting errors of the kernel's writeback if they are detectable.
pub fn sync_memory(home: &Home, memory: &File) -> Outcome {
    memory.sync_all().or_cannot(format_args!("make the memory of VM {} durable", home.name))
}

/// Removes a file of a VM, if it exists.
pub fn forget(home: &Home, name: &str) -> Outcome {
    match fs::remove_file(home.file(name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::cannot(format_args!("remove {}", home.file(name).display()), &error))
        }
        _ => Ok(()),
    }
}

/// Returns the phase of a VM whose guest has run and whose processes have ended with `end`: suspended if a
/// suspension was in progress and nothing was lost.
pub fn settled(home: &Home, end: Result<(), String>) -> Phase {
    let saved = home.file(SAVED);
    match end {
        Err(why) => Phase::Failed(why),
        Ok(()) if !saved.exists() => Phase::Off,
        Ok(()) => {
            let state = home.file(STATE);
            let renamed = fs::rename(&saved, &state).and_then(|()| sync_name(&state));
            renamed
                .map_or_else(|error| Phase::Failed(format!("device state: {error}")), |()| Phase::Suspended)
        }
    }
}

fn memory_of(home: &Home) -> Result<PathBuf, Failure> {
    let is_overlay = home.here()?.memory.is_some();
    Ok(if is_overlay { home.run().memory.join(MEMORY) } else { home.file(MEMORY) })
}

/// Ends a VM as a loss of power would, and removes what a killed supervisor has left.
pub fn stop(home: &Home) -> Outcome {
    // A command that queries the phase holds the lock briefly.
    if let Some(_turn) = home.lock_within(GLANCE)? {
        home.run().clear();
        return Ok(());
    }
    let end = Instant::now() + STOP_PATIENCE;
    // A supervisor that is starting has not recorded its process id yet, and one that is ending has removed
    // it.
    while home.run().stop().is_err() && Instant::now() < end {
        if let Some(_turn) = home.lock_within(LOOK_EVERY)? {
            home.run().clear();
            return Ok(());
        }
    }
    if home.lock_within(end.saturating_duration_since(Instant::now()))?.is_none() {
        let run = home.run();
        run.kill().or_cannot(format_args!("stop VM {}", home.name))?;
        let _turn = home.locked()?;
        run.clear();
    }
    Ok(())
}

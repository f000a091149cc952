//! What brings a guest to life and puts it to sleep.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tombolo_host_vmm::network::Network;
use tombolo_host_vmm::{Monitor, MonitorError};

use super::config::{CONFIG, IDENTITY, MEMORY, STATE, identity};
use super::home::{GLANCE, Home, Phase, UNSTARTED};
use super::image::fetch_boot_files;
use super::ledger::{LEDGER, Ledger};
use super::origin::Origin;
use super::{shares, supervisor};
use crate::assembly::plan::overlay::sync_name;
use crate::failure::{Failure, Outcome};

/// For each answer of a VMM. One that starts reads its kernel before.
const PATIENCE: Duration = Duration::from_secs(60);

/// For what watches a VM and is to end it. It waits less for what may hold it up.
const STOP_PATIENCE: Duration = Duration::from_secs(40);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// For a guest that is to give up its network card.
const GUEST_PATIENCE: Duration = Duration::from_secs(20);

/// The device state as it is being written.
const DRAFT: &str = "state.new";

/// The device state of a guest that is put to sleep. What has run it says that it sleeps, when all has ended well.
pub const SAVED: &str = "state.saved";

fn failed<'a>(home: &'a Home, doing: &'a str) -> impl Fn(MonitorError) -> Failure + use<'a> {
    move |error| {
        let failure = Failure::cannot(format_args!("{doing} the VM {}", home.name), &error);
        match error {
            MonitorError::Gone(_) => failure.remedy(supervisor::see(&supervisor::log_of(home))),
            _ => failure,
        }
    }
}

/// Boots a VM.
pub fn boot(home: &Home) -> Outcome {
    {
        // None begins beside another.
        let _turn = home.locked()?;
        if home.phase()? == Phase::Incomplete {
            return Err(incomplete(home, "boot"));
        }
        fetch_boot_files(home)?;
    }
    supervisor::start(home, false)?;
    let runs = || home.lock().is_ok_and(|lock| lock.is_none());
    begin(home, runs).inspect_err(|_| drop(stop(home)))
}

fn incomplete(home: &Home, doing: &str) -> Failure {
    Failure::cannot(format_args!("{doing} the VM {}", home.name), "making it was not finished")
        .remedy(format_args!("tombolo vm rm {}", home.name))
}

/// Has a guest boot whose VMM was started for that, as long as that runs.
pub fn begin(home: &Home, runs: impl Fn() -> bool) -> Outcome {
    let mut monitor = reach(home, "start", runs)?;
    prepare(home, &mut monitor)?;
    home.set_phase(&Phase::Running)?;
    plug(home, &mut monitor)?;
    monitor.proceed().map_err(failed(home, "start"))?;
    home.has_started();
    Ok(())
}

/// The monitor of a VMM that starts.
fn reach(home: &Home, doing: &str, runs: impl Fn() -> bool) -> Result<Monitor, Failure> {
    let end = Instant::now() + PATIENCE;
    let is_starting = || Instant::now() < end && runs();
    Monitor::connect(&home.run().monitor, is_starting, PATIENCE).map_err(|error| {
        if runs() {
            return failed(home, doing)(error);
        }
        let (doing, log) = (format!("{doing} the VM {}", home.name), supervisor::log_of(home));
        if is_unknown_machine(&fs::read_to_string(&log).unwrap_or_default()) {
            let machine = home.config().map_or_else(|_| String::new(), |config| config.machine);
            let reason = format!(
                "this QEMU does not know its machine {machine}: it was made by a newer one, as a rule"
            );
            return Failure::cannot(doing, reason)
                .remedy("install that QEMU or a newer one, or name it: --qemu PROGRAM");
        }
        Failure::cannot(doing, "the VMM has ended at its start").remedy(supervisor::see(&log))
    })
}

/// Whether the last thing that a VMM has said is that it knows no machine of such a type, and how to list those that it knows.
fn is_unknown_machine(log: &str) -> bool {
    log.lines().rev().take(2).any(|line| line.contains("unsupported machine type"))
}

/// Has a guest go on from its device state, and says when it began to.
pub fn resume(home: &Home, ledger: &mut Ledger) -> Result<Instant, Failure> {
    {
        let _turn = home.locked()?;
        match home.phase()? {
            Phase::Suspended => {}
            Phase::Incomplete => return Err(incomplete(home, "resume")),
            _ => {
                let reason = "it was not suspended: what was in its memory is lost";
                return Err(Failure::cannot(format_args!("resume the VM {}", home.name), reason)
                    .remedy(format_args!("tombolo vm boot {} begins anew from its disk", home.name)));
            }
        }
    }
    let here = home.here()?;
    let origin = Origin::of_file(&here.disk, &here.cache)?;
    if let Some(origin) = &origin {
        ledger.reads_through(origin.control());
    }
    supervisor::start(home, true)?;
    let began = go_on(home, ledger).map_err(|failure| {
        let _ = stop(home);
        match home.phase() {
            Ok(Phase::Suspended) if !home.file(UNSTARTED).exists() => failure.remedy(format_args!(
                "it is suspended as before: once that is mended, tombolo vm resume {}",
                home.name
            )),
            _ => failure,
        }
    })?;
    ledger.end(&home.run());
    home.write(LEDGER, ledger)?;
    Ok(began)
}

fn go_on(home: &Home, ledger: &mut Ledger) -> Result<Instant, Failure> {
    let failed = failed(home, "resume");
    let reading = |error| Failure::cannot("read the device state", &error);
    let state = File::open(home.file(STATE)).map_err(reading)?;
    let state_bytes = state.metadata().map_err(reading)?.len();
    ledger.enter("servers of memory and disk", None);
    let runs = || home.lock().is_ok_and(|lock| lock.is_none());
    let mut monitor = reach(home, "resume", runs)?;
    home.has_started();
    ledger.enter("start of the VMM", None);
    monitor.load(&state, PATIENCE).map_err(&failed)?;
    ledger.enter("device state", Some(state_bytes));
    // What this host has no room for is known before the guest runs.
    prepare(home, &mut monitor)?;
    // From here on memory and disk are not those of the device state any more.
    home.set_phase(&Phase::Running)?;
    monitor.proceed().map_err(&failed)?;
    let began = Instant::now();
    if let Err(failure) = plug(home, &mut monitor) {
        // It runs, and is not lost for that.
        failure.remedy("it runs without").print();
    }
    ledger.enter("identity, network card", None);
    Ok(began)
}

/// Makes ready what a guest is told of itself, and what its network card is to be connected to.
fn prepare(home: &Home, monitor: &mut Monitor) -> Outcome {
    let here = home.here()?;
    let file = home.file(IDENTITY);
    let telling = format!("give the VM {} its identity", home.name);
    fs::write(&file, identity(&home.name, &here)?).map_err(|error| Failure::cannot(&telling, &error))?;
    monitor.open_identity(&file).map_err(|error| Failure::cannot(&telling, &error))?;
    shares::connect(&here.shares, &home.run(), monitor)?;
    let Some(net) = &here.net else { return Ok(()) };
    let connecting = format!("connect the VM {} to its network", home.name);
    let network: Network = net.parse().map_err(|error: String| Failure::cannot(&connecting, error))?;
    monitor.connect_network(&network).map_err(|error| Failure::cannot(&connecting, &error))
}

/// Gives the guest its identity, and then gives it its network card.
fn plug(home: &Home, monitor: &mut Monitor) -> Outcome {
    let here = home.here()?;
    let telling = format!("give the VM {} its identity", home.name);
    // One that it cannot have costs it nothing else.
    let shared = shares::plug(&here.shares, monitor);
    monitor.plug_identity(!here.shares.is_empty()).map_err(|error| Failure::cannot(&telling, &error))?;
    if here.net.is_some() {
        let giving = format!("give the VM {} a network card", home.name);
        monitor.plug(&here.mac).map_err(|error| Failure::cannot(&giving, &error))?;
    }
    shared
}

/// Puts a guest to sleep: device state, memory and disk are then of one moment, which is returned, and durable.
pub fn suspend(home: &Home) -> Result<Instant, Failure> {
    let failed = failed(home, "suspend");
    let suspending = format!("suspend the VM {}", home.name);
    if home.lock()?.is_some() {
        return Err(Failure::cannot(&suspending, "it does not run").remedy("see tombolo vm list"));
    }
    let mut monitor = Monitor::connect(&home.run().monitor, || false, PATIENCE).map_err(&failed)?;
    if matches!(&*monitor.status().map_err(&failed)?, "inmigrate" | "prelaunch") {
        let reason = "it has not begun to run";
        return Err(Failure::cannot(&suspending, reason)
            .remedy(format_args!("wait; if that does not help, tombolo vm stop {}", home.name)));
    }
    // Of a suspension that did not come to its end.
    forget(home, SAVED)?;
    let shares = home.here()?.shares.len();
    monitor.unplug(shares, GUEST_PATIENCE).map_err(|error| {
        let failure = failed(error);
        failure
            .remedy("the guest has to give up its network card, its identity and its shares: has it booted?")
    })?;
    let stopped = Instant::now();
    if let Err(failure) = save(home, &mut monitor) {
        // The guest goes on as before.
        let _ = monitor.proceed();
        let _ = prepare(home, &mut monitor).and_then(|()| plug(home, &mut monitor));
        return Err(failure);
    }
    if let Err(failure) = sync_memory(home) {
        // A kernel may have dropped already what it could not write.
        let _ = stop(home);
        return Err(
            failure.remedy(format_args!("what was in its memory is lost; tombolo vm boot {}", home.name))
        );
    }
    let saved = home.file(SAVED);
    fs::rename(home.file(DRAFT), &saved)
        .and_then(|()| sync_name(&saved))
        .map_err(|error| Failure::cannot(format_args!("write {}", saved.display()), &error))?;
    monitor.quit().map_err(&failed)?;
    let Some(_lock) = home.lock_within(PATIENCE)? else {
        let reason = "what it has written is not durable yet";
        return Err(Failure::cannot(&suspending, reason)
            .remedy("it goes on with that by itself: tombolo vm list says when it is suspended"));
    };
    let why = match home.phase()? {
        Phase::Suspended => return Ok(stopped),
        Phase::Failed(why) => why,
        _ => "it was stopped".into(),
    };
    Err(Failure::cannot(&suspending, why)
        .remedy(format_args!("its memory is lost; tombolo vm boot {}", home.name)))
}

/// Stops the guest and writes its device state down, with the machine that it is of.
fn save(home: &Home, monitor: &mut Monitor) -> Outcome {
    let failed = failed(home, "suspend");
    let mut config = home.config()?;
    config.machine = monitor.machine_type().map_err(&failed)?;
    home.write(CONFIG, &config)?;
    let draft = home.file(DRAFT);
    let saving = |error: &std::io::Error| Failure::cannot(format_args!("write {}", draft.display()), error);
    let state = File::create(&draft).map_err(|error| saving(&error))?;
    monitor.save(&state, PATIENCE).map_err(failed)?;
    state.sync_all().map_err(|error| saving(&error))
}

/// What the kernel has of the memory fails here, where that can be told.
fn sync_memory(home: &Home) -> Outcome {
    let memory = memory_of(home)?;
    File::open(&memory)
        .and_then(|memory| memory.sync_all())
        .map_err(|error| Failure::cannot(format_args!("make {} durable", memory.display()), &error))
}

/// Removes a file of a VM, if it is there.
pub fn forget(home: &Home, name: &str) -> Outcome {
    match fs::remove_file(home.file(name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::cannot(format_args!("remove {}", home.file(name).display()), &error))
        }
        _ => Ok(()),
    }
}

/// How a VM stands whose guest has run, and whose processes have ended like this: one that was to sleep sleeps, if nothing of it is lost.
pub fn settled(home: &Home, end: Result<(), String>) -> Phase {
    let saved = home.file(SAVED);
    match end {
        Err(why) => Phase::Failed(why),
        Ok(()) if !saved.exists() => Phase::Off,
        Ok(()) => {
            let state = home.file(STATE);
            let renamed = fs::rename(&saved, &state).and_then(|()| sync_name(&state));
            renamed.map_or_else(
                |error| Phase::Failed(format!("its device state: {error}")),
                |()| Phase::Suspended,
            )
        }
    }
}

/// The file that the VMM has mapped.
fn memory_of(home: &Home) -> Result<PathBuf, Failure> {
    let is_overlay = home.here()?.memory.is_some();
    Ok(if is_overlay { home.run().memory.join(MEMORY) } else { home.file(MEMORY) })
}

/// Ends a VM, as if its power went. Also what is left of one whose supervisor was killed.
pub fn stop(home: &Home) -> Outcome {
    // A command that looks how it stands has the lock for a moment.
    if let Some(_turn) = home.lock_within(GLANCE)? {
        home.run().clear();
        return Ok(());
    }
    let end = Instant::now() + STOP_PATIENCE;
    // One that starts cannot be found yet, and one that ends cannot be found any more.
    while home.run().stop().is_err() && Instant::now() < end {
        if let Some(_turn) = home.lock_within(LOOK_EVERY)? {
            home.run().clear();
            return Ok(());
        }
    }
    if home.lock_within(end.saturating_duration_since(Instant::now()))?.is_none() {
        let run = home.run();
        run.kill().map_err(|error| Failure::cannot(format_args!("stop the VM {}", home.name), &error))?;
        let _turn = home.locked()?;
        run.clear();
    }
    Ok(())
}

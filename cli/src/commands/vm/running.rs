//! What brings a guest to life and puts it to sleep.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use tombolo_host_vmm::network::Network;
use tombolo_host_vmm::{Monitor, MonitorError};

use super::config::{CONFIG, IDENTITY, MEMORY, STATE, identity};
use super::home::{Home, Phase};
use super::ledger::{LEDGER, Ledger};
use super::supervisor;
use crate::assembly::plan::overlay::sync_name;
use crate::failure::{Failure, Outcome};

/// For each answer of a VMM. One that starts reads its kernel before.
const PATIENCE: Duration = Duration::from_secs(60);

/// For a guest that is to give up its network card.
const GUEST_PATIENCE: Duration = Duration::from_secs(20);

/// The device state as it is being written.
const DRAFT: &str = "state.new";

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
    // None begins beside another.
    drop(home.locked()?);
    supervisor::start(home, false)?;
    let run = || {
        let failed = failed(home, "start");
        let mut monitor = Monitor::connect(&home.run().monitor, PATIENCE, PATIENCE).map_err(&failed)?;
        home.set_phase(&Phase::Running)?;
        plug(home, &mut monitor)?;
        monitor.proceed().map_err(&failed)
    };
    run().inspect_err(|_| drop(stop(home)))
}

/// Has a guest go on from its device state.
pub fn resume(home: &Home, ledger: &mut Ledger) -> Outcome {
    {
        let _turn = home.locked()?;
        match home.phase()? {
            Phase::Suspended => {}
            Phase::Incomplete => {
                return Err(Failure::cannot(
                    format_args!("resume the VM {}", home.name),
                    "making it was not finished",
                )
                .remedy(format_args!("tombolo vm rm {}", home.name)));
            }
            _ => {
                let reason = "it was not suspended: what was in its memory is lost";
                return Err(Failure::cannot(format_args!("resume the VM {}", home.name), reason)
                    .remedy(format_args!("tombolo vm boot {} begins anew from its disk", home.name)));
            }
        }
    }
    supervisor::start(home, true)?;
    go_on(home, ledger).inspect_err(|_| drop(stop(home)))?;
    ledger.end(&home.run());
    home.write(LEDGER, ledger)
}

fn go_on(home: &Home, ledger: &mut Ledger) -> Outcome {
    let failed = failed(home, "resume");
    let reading = |error| Failure::cannot("read the device state", &error);
    let state = File::open(home.file(STATE)).map_err(reading)?;
    let state_bytes = state.metadata().map_err(reading)?.len();
    ledger.enter("servers of memory and disk", None);
    let mut monitor = Monitor::connect(&home.run().monitor, PATIENCE, PATIENCE).map_err(&failed)?;
    ledger.enter("start of the VMM", None);
    monitor.load(&state, PATIENCE).map_err(&failed)?;
    ledger.enter("device state", Some(state_bytes));
    // From here on memory and disk are not those of the device state any more.
    home.set_phase(&Phase::Running)?;
    monitor.proceed().map_err(&failed)?;
    plug(home, &mut monitor)?;
    ledger.enter("identity, network card", None);
    Ok(())
}

/// Tells the guest who it is, and then gives it its network card.
fn plug(home: &Home, monitor: &mut Monitor) -> Outcome {
    let here = home.here()?;
    let file = home.file(IDENTITY);
    let telling = format!("tell the VM {} who it is", home.name);
    fs::write(&file, identity(&home.name, &here)?).map_err(|error| Failure::cannot(&telling, &error))?;
    monitor.plug_identity(&file).map_err(|error| Failure::cannot(&telling, &error))?;
    let Some(net) = &here.net else { return Ok(()) };
    let connecting = format!("give the VM {} a network card", home.name);
    let network: Network = net.parse().map_err(|error: String| Failure::cannot(&connecting, error))?;
    monitor.plug(&network, &here.mac).map_err(|error| Failure::cannot(&connecting, &error))
}

/// Puts a guest to sleep: device state, memory and disk are then of one moment, and durable.
pub fn suspend(home: &Home) -> Outcome {
    let failed = failed(home, "suspend");
    let mut monitor = Monitor::connect(&home.run().monitor, Duration::ZERO, PATIENCE).map_err(&failed)?;
    if monitor.status().map_err(&failed)? == "inmigrate" {
        let reason = "it has not begun to run";
        return Err(Failure::cannot(format_args!("suspend the VM {}", home.name), reason)
            .remedy(format_args!("tombolo vm stop {0}, then tombolo vm resume {0}", home.name)));
    }
    monitor.unplug(GUEST_PATIENCE).map_err(|error| {
        let failure = failed(error);
        failure.remedy("the guest has to give up its network card and its identity: has it booted?")
    })?;
    let mut config = home.config()?;
    config.machine = monitor.machine_type().map_err(&failed)?;
    let draft = home.file(DRAFT);
    let saving = |error: &std::io::Error| Failure::cannot(format_args!("write {}", draft.display()), error);
    let state = File::create(&draft).map_err(|error| saving(&error))?;
    if let Err(error) = monitor.save(&state, PATIENCE) {
        // The guest goes on as before.
        let _ = monitor.proceed();
        let _ = plug(home, &mut monitor);
        return Err(failed(error));
    }
    state.sync_all().map_err(|error| saving(&error))?;
    // What the kernel has of it fails here, where that can be told.
    let memory = memory_of(home)?;
    File::open(&memory)
        .and_then(|memory| memory.sync_all())
        .map_err(|error| Failure::cannot(format_args!("make {} durable", memory.display()), &error))?;
    monitor.quit().map_err(&failed)?;
    let _lock = home.lock_within(PATIENCE)?;
    if let Phase::Failed(why) = home.phase()? {
        return Err(Failure::cannot(format_args!("suspend the VM {}", home.name), why)
            .remedy(format_args!("its memory is lost; tombolo vm boot {}", home.name)));
    }
    home.write(CONFIG, &config)?;
    fs::rename(&draft, home.file(STATE)).and_then(|()| sync_name(&draft)).map_err(|error| saving(&error))?;
    home.set_phase(&Phase::Suspended)
}

/// The file that the VMM has mapped.
fn memory_of(home: &Home) -> Result<PathBuf, Failure> {
    let is_overlay = home.here()?.memory.is_some();
    Ok(if is_overlay { home.run().memory.join(MEMORY) } else { home.file(MEMORY) })
}

/// Ends a VM, as if its power went. Also what is left of one whose supervisor was killed.
pub fn stop(home: &Home) -> Outcome {
    if let Some(_turn) = home.lock()? {
        return home.run().clear();
    }
    home.run().stop().map_err(|error| Failure::cannot(format_args!("stop the VM {}", home.name), &error))?;
    home.lock_within(PATIENCE).map(drop)
}

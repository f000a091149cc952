//! A second VMM for a guest whose memory is a plain file, mapped directly by its first VMM. The successor
//! maps an overlay over that file, so that a checkpoint can freeze the file. Both are connected to the disk,
//! as in a live migration. Until the successor runs the guest, dropping it undoes everything.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tombolo_host_vmm::{Events, Monitor, MonitorError};

use super::chain;
use super::config::{Here, MEMORY};
use super::home::{Home, Run};
use super::image::overlay;
use super::ledger;
use super::running::{DRAFT, reach};
use super::supervisor::{Server, Vm, log_of, start_vmm};
use super::watch::{Part, Watch};
use crate::failure::{Failure, Outcome};

pub struct Successor {
    /// VMM of the successor; after the takeover, the first VMM, which is killed.
    pub vmm: Child,
    pub events: Option<Events>,
    pub memory: Option<Server>,
    monitor: Option<Monitor>,
    overlay: PathBuf,
    run: Run,
}

/// A successor that runs the guest, in transfer to the thread that owns the VM's processes.
pub type Handover = Arc<Mutex<Option<Successor>>>;

/// Timeout of loading the device state while the guest is paused.
const LOAD_PATIENCE: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(1);

impl Successor {
    /// Starts a successor that waits for the device state, if the VM's memory is a plain file.
    pub fn start(home: &Home) -> Result<Option<Self>, Failure> {
        let here = home.here()?;
        if here.memory.is_some() {
            return Ok(None);
        }
        let (mut run, log_path) = (home.run(), log_of(home));
        run.monitor.clone_from(&run.next_monitor);
        let log = File::options().append(true).open(&log_path);
        let log =
            log.map_err(|error| Failure::cannot(format_args!("open {}", log_path.display()), &error))?;
        let watch = Watch::without_signals();
        let bases = chain::cover_memory(home)?;
        let here = Here { memory: Some(home.file(MEMORY)), ..here };
        let vm = Vm { home, run: &run, log: &log, watch: &watch };
        let started = || -> Result<_, Failure> {
            let mut memory = Server::of_memory(&vm, &bases, true)?;
            memory.is_ready(&vm, Part::Memory)?;
            Ok((start_vmm(&vm, &here, true)?, memory))
        };
        let overlay = home.file(&overlay(MEMORY));
        let ((vmm, events), memory) = started().inspect_err(|_| {
            run.remove_next();
            let _ = fs::remove_file(&overlay);
        })?;
        let (events, memory) = (Some(events), Some(memory));
        let mut started = Self { vmm, events, memory, monitor: None, overlay, run };
        let child = RefCell::new(&mut started.vmm);
        let is_there = || matches!(child.borrow_mut().try_wait(), Ok(None));
        started.monitor = Some(reach(home, &started.run.monitor, "create a checkpoint of", is_there)?);
        Ok(Some(started))
    }

    /// Returns the channel by which the overlay of the memory is replaced.
    pub fn channel(&mut self) -> Option<OwnedFd> {
        self.memory.as_mut()?.layers.take()
    }

    /// Loads the device state of the paused guest.
    pub fn load(&mut self, home: &Home) -> Outcome {
        let loading = format!("have another VMM take over the VM {}", home.name);
        // A page read while the guest ran may be cached with outdated contents.
        if ledger::moved(&self.run.memory_control) != Some((0, 0)) {
            return Err(Failure::cannot(loading, "the VMM has accessed the memory too early"));
        }
        let state = File::open(home.file(DRAFT)).map_err(|error| Failure::cannot(&loading, &error))?;
        let loaded = self.monitor.as_mut().map_or(Ok(()), |monitor| monitor.load(&state, LOAD_PATIENCE));
        loaded.map_err(|error| Failure::cannot(loading, &error))
    }

    /// Runs the guest.
    pub fn proceed(&mut self) -> Result<(), MonitorError> {
        self.monitor.as_mut().map_or(Ok(()), Monitor::proceed)
    }

    /// Returns its monitor once it runs the guest, and waits until it has replaced the first VMM.
    pub fn replace(mut self, handover: &Handover, tell: impl FnOnce()) -> Option<Monitor> {
        let monitor = self.monitor.take();
        let slot = || handover.lock().unwrap_or_else(PoisonError::into_inner);
        *slot() = Some(self);
        tell();
        while slot().is_some() {
            thread::sleep(LOOK_EVERY);
        }
        monitor
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = self.vmm.kill();
        let memory = self.memory.take();
        let is_undone = memory.is_some();
        // A VMM that waits for a page ends with the server of that page only.
        drop(memory);
        let _ = self.vmm.wait();
        if is_undone {
            self.run.remove_next();
            let _ = fs::remove_file(&self.overlay);
        }
    }
}

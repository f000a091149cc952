//! A second VMM for a guest whose memory is a plain file, mapped directly by its first VMM. The successor
//! maps an overlay over that file, so that a checkpoint can freeze the file. Both VMMs are connected to the
//! disk, as in a live migration. Dropping a successor whose memory server was not taken over kills it and
//! removes its overlay.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use tombolo_host_vmm::{Events, Monitor, MonitorError};

use super::chain;
use super::channel::Channel;
use super::config::{HostConfig, MEMORY};
use super::home::{Home, Run};
use super::image::overlay;
use super::ledger::Meter;
use super::live::{DOING, PAUSE_PATIENCE};
use super::running::{DRAFT, PATIENCE, reach, record_running_machine};
use super::supervisor::{Server, Vm, log_of, start_vmm};
use super::watch::{Part, Watch};
use crate::failure::{Failure, OrCannot, Outcome, Reason};

pub struct Successor {
    /// VMM of the successor. After the takeover the first VMM, which is killed on drop.
    pub vmm: Child,
    pub events: Option<Events>,
    pub memory: Option<Server>,
    /// Channel to the memory's server, by which an overlay is put over the present one.
    pub channel: Option<Channel>,
    /// `true` once the successor was requested to run the guest, which may have changed the disk since.
    pub may_run: bool,
    monitor: Option<Monitor>,
    /// Counters of the memory's server.
    meter: Option<Meter>,
    overlay: PathBuf,
    run: Run,
}

impl Successor {
    /// Starts a successor that waits for the device state; `None` unless the VM's memory is a plain file. The
    /// successor emulates the same machine as the running VMM, also if another version of QEMU has been
    /// installed since. Fails early once `is_over` returns `true`.
    pub fn start(home: &Home, is_over: impl Fn() -> bool) -> Result<Option<Self>, Failure> {
        let here = home.here()?;
        if here.memory.is_some() {
            return Ok(None);
        }
        record_running_machine(home, DOING)?;
        let (mut run, log_path) = (home.run(), log_of(home));
        run.monitor.clone_from(&run.next_monitor);
        let log = File::options()
            .append(true)
            .open(&log_path)
            .or_cannot(format_args!("open {}", log_path.display()))?;
        let watch = Watch::without_signals();
        let bases = chain::cover_memory(home)?;
        let here = HostConfig { memory: Some(home.file(MEMORY)), ..here };
        let vm = Vm { home, run: &run, log: &log, watch: &watch };
        let started = || -> Result<_, Failure> {
            let mut memory = Server::of_memory(&vm, &bases, true)?;
            memory.is_ready(&vm, Part::Memory)?;
            Ok((start_vmm(&vm, &here, true)?, memory))
        };
        let overlay = home.file(&overlay(MEMORY));
        let ((vmm, events), mut memory) = started().inspect_err(|_| {
            run.remove_next();
            let _ = fs::remove_file(&overlay);
        })?;
        let channel = memory.layers.take().map(|socket| Channel::new(MEMORY, socket));
        let (events, memory) = (Some(events), Some(memory));
        let mut started =
            Self { vmm, events, memory, channel, may_run: false, monitor: None, meter: None, overlay, run };
        let child = RefCell::new(&mut started.vmm);
        let is_there = || !is_over() && matches!(child.borrow_mut().try_wait(), Ok(None));
        started.monitor = Some(reach(home, &started.run.monitor, DOING, is_there)?);
        Ok(Some(started))
    }

    /// Passes the file that will contain the device state.
    pub fn prepare(&mut self, home: &Home) -> Outcome {
        let state = File::open(home.file(DRAFT)).map_err(|error| cannot(home, Reason::from(&error)))?;
        self.meter = Some(Meter::of(&self.run.memory_control));
        self.command(home, PAUSE_PATIENCE, |monitor| monitor.pass_state(&state))
    }

    /// Loads the device state of the paused guest.
    pub fn load(&mut self, home: &Home, until: Instant) -> Outcome {
        // The successor must not have accessed the memory yet: a page read while the guest ran may be cached
        // with outdated contents.
        match self.meter.as_mut().and_then(Meter::moved) {
            Some((0, 0)) => {}
            Some(_) => return Err(cannot(home, "it has accessed the memory too early".into())),
            None => return Err(cannot(home, "the server of its memory does not respond".into())),
        }
        let left = until.saturating_duration_since(Instant::now());
        self.command(home, left, |monitor| monitor.load(left))
    }

    /// Makes the successor run the guest, which may change the disk even if no reply arrives.
    pub fn proceed(&mut self, home: &Home, until: Instant) -> Outcome {
        self.may_run = true;
        self.command(home, until.saturating_duration_since(Instant::now()), Monitor::proceed)
    }

    fn command(
        &mut self,
        home: &Home,
        within: Duration,
        command: impl FnOnce(&mut Monitor) -> Result<(), MonitorError>,
    ) -> Outcome {
        let Some(monitor) = &mut self.monitor else { return Ok(()) };
        monitor.set_timeout(within);
        command(monitor).map_err(|error| match error {
            MonitorError::Late { .. } => cannot(home, "it has not responded in time".into()),
            error => cannot(home, Reason::from(&error)),
        })
    }

    /// Takes the successor's monitor, once the successor runs the guest; later requests have the usual
    /// time-out. `None` if it was already taken.
    pub fn take_monitor(&mut self) -> Option<Monitor> {
        let mut monitor = self.monitor.take()?;
        monitor.set_timeout(PATIENCE);
        Some(monitor)
    }
}

fn cannot(home: &Home, reason: Reason) -> Failure {
    Failure::cannot(format_args!("have another VMM take over VM {}", home.name), reason)
}

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = self.vmm.kill();
        let memory = self.memory.take();
        let is_undone = memory.is_some();
        // A VMM that waits for a page ends only once the server of that page has ended.
        drop(memory);
        let _ = self.vmm.wait();
        if is_undone {
            self.run.remove_next();
            let _ = fs::remove_file(&self.overlay);
        }
    }
}

//! Saving and loading a machine's device state. Its memory remains in a shared file.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::monitor::{Monitor, MonitorError, PAUSE};

/// Name of the device-state file in QEMU.
const STATE: &str = "state";

impl Monitor {
    /// Passes the file of the device state, for [`save`](Self::save) or [`load`](Self::load). This is a step
    /// of its own, before the guest is paused, because QEMU reads its monitor byte by byte.
    pub fn pass_state(&mut self, state: &File) -> Result<(), MonitorError> {
        // After a save, QEMU refuses another one until the guest has run.
        if self.status()? == "postmigrate" {
            self.proceed()?;
        }
        self.set_capabilities()?;
        self.pass_file(STATE, state)
    }

    /// Pauses the guest and writes the device state to the [passed file](Self::pass_state). After success
    /// QEMU does not access the machine's memory unless the guest is resumed. The guest runs while the
    /// migration is set up, because the migration stops the CPUs only at its end. Returns the time at which
    /// the guest was about to be paused.
    pub fn save(&mut self, within: Duration) -> Result<Instant, MonitorError> {
        let requested = Instant::now();
        let asked = self.execute("migrate", &json!({ "uri": format!("fd:{STATE}") }));
        let saved = asked.and_then(|_| self.migrated(within));
        if let Err(MonitorError::Late { .. }) = saved {
            // Otherwise the migration would pause the guest later, when nothing resumes it.
            let _ = self.execute("migrate_cancel", &json!({}));
        }
        saved?;
        let active = self.time_of("MIGRATION", |data| data["status"] == "active");
        Ok(active.map_or(requested, |active| active.max(requested)))
    }

    /// Loads the device state from the [passed file](Self::pass_state), in a QEMU started with
    /// [`Launch::incoming`](crate::Launch::incoming). The guest is not resumed.
    pub fn load(&mut self, within: Duration) -> Result<(), MonitorError> {
        self.execute("migrate-incoming", &json!({ "uri": format!("fd:{STATE}") }))?;
        self.migrated(within)
    }

    /// Resumes the guest. Waits for a migration that is still ending, at most for the monitor's time limit.
    pub fn proceed(&mut self) -> Result<(), MonitorError> {
        let end = Instant::now() + self.timeout();
        loop {
            match self.execute("cont", &json!({})) {
                // QEMU reports the end of a migration before it has ended.
                Err(MonitorError::Refused { reason, .. })
                    if reason.contains("not finalized") && Instant::now() < end =>
                {
                    thread::sleep(PAUSE);
                }
                done => return done.map(drop),
            }
        }
    }

    /// Ends QEMU without notifying the guest.
    pub fn quit(&mut self) -> Result<(), MonitorError> {
        self.execute("quit", &json!({})).map(drop)
    }

    /// Returns the machine's status in QEMU's words: `running`, `paused`, `inmigrate`, `postmigrate`,
    /// `shutdown`…
    pub fn status(&mut self) -> Result<String, MonitorError> {
        let status = self.execute("query-status", &json!({}))?;
        Ok(status["status"].as_str().unwrap_or_default().to_owned())
    }

    /// Returns the machine type with its version, such as `pc-q35-7.2`: only that version can load the
    /// machine's device state.
    pub fn machine_type(&mut self) -> Result<String, MonitorError> {
        let found = self.execute("qom-get", &json!({ "path": "/machine", "property": "type" }))?;
        let found = found.as_str().and_then(|name| name.strip_suffix("-machine"));
        found.map(str::to_owned).ok_or(MonitorError::Protocol("no machine type"))
    }

    fn set_capabilities(&mut self) -> Result<(), MonitorError> {
        let on = |capability: &str| json!({ "capability": capability, "state": true });
        let capabilities = json!({ "capabilities": [on("x-ignore-shared"), on("events")] });
        self.execute("migrate-set-capabilities", &capabilities).map(drop)
    }

    fn migrated(&mut self, within: Duration) -> Result<(), MonitorError> {
        let is_over =
            |data: &Value| matches!(data["status"].as_str(), Some("completed" | "failed" | "cancelled"));
        let over = self.event("MIGRATION", within, is_over)?;
        if over["status"] == "completed" {
            return Ok(());
        }
        let why = self.execute("query-migrate", &json!({}))?;
        let reason = why["error-desc"].as_str().unwrap_or("see its log");
        Err(MonitorError::Refused { command: "the device state".into(), reason: reason.into() })
    }
}

//! Saving a machine's devices, and going on with them. Its memory is a shared file and stays there.

use std::fs::File;
use std::time::Duration;

use serde_json::{Value, json};

use crate::monitor::{Monitor, MonitorError};

/// The name that QEMU knows the file of the device state by.
const STATE: &str = "state";

impl Monitor {
    /// Stops the processors and writes the device state to `state`. From then on QEMU does not touch the
    /// machine's memory any more; what is left is to end it ([`quit`](Self::quit)), or to have the guest go
    /// on.
    pub fn save(&mut self, state: &File, within: Duration) -> Result<(), MonitorError> {
        // After a save that nothing came of QEMU refuses another one, until the guest has run.
        if self.status()? == "postmigrate" {
            self.proceed()?;
        }
        self.execute("stop", &json!({}))?;
        self.leave_memory()?;
        self.pass(STATE, state)?;
        self.execute("migrate", &json!({ "uri": format!("fd:{STATE}") }))?;
        self.migrated(within)
    }

    /// Takes the device state in from `state`, in a QEMU that was started to wait for one
    /// ([`Launch::incoming`](crate::Launch::incoming)). The guest does not run yet.
    pub fn load(&mut self, state: &File, within: Duration) -> Result<(), MonitorError> {
        self.leave_memory()?;
        self.pass(STATE, state)?;
        self.execute("migrate-incoming", &json!({ "uri": format!("fd:{STATE}") }))?;
        self.migrated(within)
    }

    /// Has the guest run.
    pub fn proceed(&mut self) -> Result<(), MonitorError> {
        self.execute("cont", &json!({})).map(drop)
    }

    /// Ends QEMU. The guest is not asked.
    pub fn quit(&mut self) -> Result<(), MonitorError> {
        self.execute("quit", &json!({})).map(drop)
    }

    /// What the machine does, in QEMU's words: `running`, `paused`, `inmigrate`, `postmigrate`, `shutdown`…
    pub fn status(&mut self) -> Result<String, MonitorError> {
        let status = self.execute("query-status", &json!({}))?;
        Ok(status["status"].as_str().unwrap_or_default().to_owned())
    }

    /// The machine's type with its version, which alone can take its device state in, such as `pc-q35-7.2`.
    pub fn machine_type(&mut self) -> Result<String, MonitorError> {
        let found = self.execute("qom-get", &json!({ "path": "/machine", "property": "type" }))?;
        let found = found.as_str().and_then(|name| name.strip_suffix("-machine"));
        found.map(str::to_owned).ok_or(MonitorError::Protocol("a machine without a type"))
    }

    fn leave_memory(&mut self) -> Result<(), MonitorError> {
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
        let reason = why["error-desc"].as_str().unwrap_or("its log says why");
        Err(MonitorError::Refused { command: "the device state".into(), reason: reason.into() })
    }
}

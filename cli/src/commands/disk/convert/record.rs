//! Record of a conversion's progress, for continuing after any kind of end.

use serde::{Deserialize, Serialize};
use tombolo_host_service::state_dir::{SOURCE, ServerState, StateDir, StateError};

use crate::assembly::plan::disk::DiskSource;
use crate::failure::Failure;

/// File name of the record, in the state directory of a conversion.
const RECORD: &str = "record";

/// Progress of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub from: String,
    /// Version of the source when the copy began.
    pub version: String,
    /// Identifier of the copy; `None` while it is being created.
    pub copy: Option<String>,
    /// Bytes from the start that are durable in the copy.
    pub durable_bytes: u64,
}

impl Record {
    /// Returns `true` if the copy was about to be created; nothing is in it yet.
    pub fn has_just_begun(&self) -> bool {
        self.copy.is_none()
    }
}

/// Storage of the record of a conversion into one disk; locks out this user's other conversions into it.
pub struct Records {
    state: Option<ServerState>,
    /// `true` if there is a record; otherwise the state directory is removed on drop.
    is_written: bool,
}

impl Records {
    pub fn of(to: &DiskSource) -> Result<Self, Failure> {
        let opened = StateDir::default_path()
            .and_then(|path| StateDir::open(&path))
            .and_then(|dir| dir.server_of(&format!("convert-{}", to.name()), &to.to_string()));
        let state = opened.map_err(|error| match error {
            StateError::InUse { .. } => {
                Failure::cannot(format_args!("convert into {to}"), "another conversion into it is running")
            }
            error => Failure::cannot("record the progress of the conversion", &error),
        })?;
        Ok(Self { state: Some(state), is_written: false })
    }

    /// Returns the record of an earlier conversion, if it is valid.
    pub fn read(&mut self) -> Option<Record> {
        let bytes = self.state.as_ref()?.files().read(RECORD).ok()??;
        self.is_written = true;
        serde_json::from_slice(&bytes).ok()
    }

    /// Writes the record durably.
    pub fn write(&mut self, record: &Record) -> Result<(), std::io::Error> {
        let Some(state) = &self.state else { return Ok(()) };
        self.is_written = true;
        let bytes = serde_json::to_vec(record)?;
        state.files().write(RECORD, &bytes).map_err(std::io::Error::other)
    }

    pub fn forget(&mut self) {
        if let Some(state) = &self.state {
            let _ = std::fs::remove_file(state.path().join(RECORD));
        }
        self.is_written = false;
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if let Some(state) = self.state.take().filter(|_| !self.is_written) {
            state.remove(&[SOURCE]);
        }
    }
}

//! What is kept of a conversion, so that it can go on after the process has ended, in whatever way.

use serde::{Deserialize, Serialize};
use tombolo_host_service::state_dir::{SOURCE, ServerState, StateDir, StateError};

use crate::assembly::plan::disk::DiskSource;
use crate::failure::Failure;

/// The file in the directory of a conversion.
const RECORD: &str = "record";

/// How far a copy has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub from: String,
    /// Of the source, as it was when the copy began.
    pub version: String,
    /// What tells the copy from another of its name. None while that is made.
    pub copy: Option<String>,
    /// All before is durable there.
    pub durable_bytes: u64,
}

impl Record {
    /// The copy was to be made, and had not been before. Nothing is in it.
    pub fn has_just_begun(&self) -> bool {
        self.copy.is_none()
    }
}

/// Where the record of a conversion into one disk is kept. No other process converts into it meanwhile.
pub struct Records {
    state: Option<ServerState>,
    is_written: bool,
}

impl Records {
    pub fn of(to: &DiskSource) -> Result<Self, Failure> {
        let opened = StateDir::default_path()
            .and_then(|path| StateDir::open(&path))
            .and_then(|dir| dir.server_of(&format!("convert-{}", to.name()), &to.to_string()));
        let state = opened.map_err(|error| match error {
            StateError::InUse { .. } => {
                Failure::cannot(format_args!("convert into {to}"), "another conversion into it is under way")
            }
            error => Failure::cannot("keep a record of the conversion", &error),
        })?;
        Ok(Self { state: Some(state), is_written: false })
    }

    /// What an earlier conversion has left, if that makes sense.
    pub fn read(&mut self) -> Option<Record> {
        let bytes = self.state.as_ref()?.files().read(RECORD).ok()??;
        self.is_written = true;
        serde_json::from_slice(&bytes).ok()
    }

    /// Durable when it returns.
    pub fn write(&mut self, record: &Record) -> Result<(), std::io::Error> {
        let Some(state) = &self.state else { return Ok(()) };
        self.is_written = true;
        let bytes = serde_json::to_vec(record)?;
        state.files().write(RECORD, &bytes).map_err(std::io::Error::other)
    }

    /// There is nothing to go on with.
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

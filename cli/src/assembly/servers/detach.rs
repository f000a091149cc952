//! Sending of unsent changes at the end of a server.

use std::path::PathBuf;
use std::sync::Arc;

use tombolo_layer_write_back::WriteBackExport;

use crate::assembly::plan::Plan;
use crate::failure::Failure;
use crate::service::Counted;

/// Exports with write-back, which may have unsent changes, and the cache directory that stores these.
#[derive(Default)]
pub struct UnsentChanges {
    exports: Vec<(String, Arc<WriteBackExport>)>,
    dir: PathBuf,
}

/// Result of an end that did not send everything cleanly.
pub enum Unfinished {
    /// The origin has all changes, some as conflicting versions.
    Conflicts(Failure),
    /// The origin lacks changes, which remain stored.
    Changes(Failure),
}

impl From<Unfinished> for Failure {
    fn from(unfinished: Unfinished) -> Self {
        match unfinished {
            Unfinished::Conflicts(failure) | Unfinished::Changes(failure) => failure,
        }
    }
}

impl UnsentChanges {
    pub fn new(plan: &Plan, counted: &Counted) -> Self {
        Self {
            exports: counted.write_backs.clone(),
            dir: plan.cache.as_ref().map(|cache| cache.dir.clone()).unwrap_or_default(),
        }
    }

    /// Sends all changes to the origin. Fails if some remain unsent, or conflict with others at the origin.
    pub fn detach(&self) -> Result<(), Unfinished> {
        let (mut conflicts, mut unsent) = (0, None);
        for (name, export) in &self.exports {
            let before = export.status();
            if before.dirty_nodes > 0 {
                tracing::warn!(
                    %name,
                    files = before.dirty_nodes,
                    bytes = before.dirty_bytes,
                    "sending changes to the origin: a second signal ends at once, and keeps the remaining changes"
                );
            }
            let flushed = export.flush();
            let status = export.status();
            conflicts += status.conflicts;
            if let Err(error) = flushed {
                let ending = format!("send all changes of {name} to the origin");
                let (bytes, dir) = (status.dirty_bytes, self.dir.display());
                let kept = format!(
                    "unsent changes, {bytes} bytes of data among them, are kept in {dir}; start the proxy again"
                );
                let failure = Failure::cannot(ending, &error).remedy(kept);
                unsent.get_or_insert(Unfinished::Changes(failure));
            }
        }
        if let Some(unsent) = unsent {
            return Err(unsent);
        }
        if conflicts == 0 {
            return Ok(());
        }
        let problem = format!("{conflicts} files were also changed at the origin");
        let remedy = "compare the versions NAME.conflict-… at the origin";
        Err(Unfinished::Conflicts(Failure::cannot("end without conflicts", problem).remedy(remedy)))
    }
}

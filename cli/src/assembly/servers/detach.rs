//! What is kept back from an origin: brought there when a signal asks for it, and at the end.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use tombolo_host_runtime::signals::{self, UserSignal};
use tombolo_layer_cache::CacheExport;
use tombolo_layer_write_back::WriteBackExport;

use crate::assembly::plan::Plan;
use crate::failure::{Failure, Outcome};
use crate::service::Counted;

/// The exports whose changes are kept back, and where.
#[derive(Default)]
pub struct KeptBack {
    exports: Vec<(String, Arc<WriteBackExport>)>,
    caches: Vec<Arc<CacheExport>>,
    dir: PathBuf,
}

impl KeptBack {
    pub fn new(plan: &Plan, counted: &Counted) -> Self {
        Self {
            exports: counted.write_backs.clone(),
            caches: counted.caches.iter().map(|(_, cache)| Arc::clone(cache)).collect(),
            dir: plan.cache.as_ref().map(|cache| cache.dir.clone()).unwrap_or_default(),
        }
    }

    /// From here on SIGUSR1 has everything brought to the origin, and SIGUSR2 has it asked anew for all that is cached.
    pub fn obey_signals(&self) -> Outcome {
        if self.exports.is_empty() {
            return Ok(());
        }
        let exports: Vec<Weak<_>> = self.exports.iter().map(|(_, export)| Arc::downgrade(export)).collect();
        let caches: Vec<Weak<_>> = self.caches.iter().map(Arc::downgrade).collect();
        let obeyed = signals::on_user_signals(move |signal| {
            for export in exports.iter().filter_map(Weak::upgrade) {
                match export.flush() {
                    Ok(report) => tracing::info!(change = report.change, "the origin has all changes"),
                    Err(error) => tracing::error!(%error, "the origin does not have all changes"),
                }
            }
            if signal == UserSignal::Two {
                caches.iter().filter_map(Weak::upgrade).for_each(|cache| cache.invalidate());
            }
        });
        obeyed.map_err(|error| Failure::cannot("wait for signals", &error))
    }

    /// Brings everything to the origin, or says what it does not have and what becomes of that.
    pub fn detach(&self) -> Outcome {
        let mut conflicts = 0;
        for (name, export) in &self.exports {
            let before = export.status();
            if before.dirty_nodes > 0 {
                tracing::warn!(
                    %name,
                    files = before.dirty_nodes,
                    bytes = before.dirty_bytes,
                    "bringing changes to the origin: another signal ends this at once, and what is left is kept"
                );
            }
            let flushed = export.flush();
            let status = export.status();
            conflicts += status.conflicts;
            if let Err(error) = flushed {
                let ending = format!("bring all changes of {name} to the origin");
                let (bytes, files) = (status.dirty_bytes, status.dirty_nodes);
                return Err(Failure::cannot(ending, &error).remedy(format_args!(
                    "{bytes} bytes in {files} files and names are kept in {}: start the proxy again",
                    self.dir.display()
                )));
            }
        }
        match conflicts {
            0 => Ok(()),
            _ => Err(Failure::cannot(
                "end without conflicts",
                format!("{conflicts} files were changed at the origin too"),
            )
            .remedy("compare the versions that are named NAME.conflict-… there")),
        }
    }
}

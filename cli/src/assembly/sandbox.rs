//! Entry of a server into its sandbox, and the helpers that remain outside.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tombolo_front_fuse::dev::{Mounter, Options as FuseOptions};
use tombolo_host_service::sandbox::broker;
use tombolo_host_service::sandbox::{
    Namespace, Needs, SandboxError, SandboxStatus, Strictness, Unconfinable, enter,
};
use tombolo_sys::open::Reopen;

use crate::commands;
use crate::failure::Failure;

/// A sandbox before this process enters it. Helpers, which stay outside, are started first.
pub struct Sandbox<'a> {
    strictness: Strictness,
    pub needs: Needs,
    /// Log file of the helpers, if not this process's present one.
    log: Option<&'a File>,
}

pub struct Closed {
    pub status: SandboxStatus,
    /// Helper outside the sandbox that opens files by handle; `None` if none is needed.
    pub broker: Option<Arc<dyn Reopen>>,
}

impl<'a> Sandbox<'a> {
    pub fn new(strictness: Strictness, needs: Needs, log: Option<&'a File>) -> Self {
        Self { strictness, needs, log }
    }

    fn is_wanted(&self) -> bool {
        self.strictness != Strictness::Off && self.needs.unconfinable.is_none()
    }

    /// Starts the helper that opens files of these directories by handle, if this process requires it because
    /// of landlock.
    fn broker(&mut self, dirs: &[PathBuf]) -> Result<Option<Arc<dyn Reopen>>, Failure> {
        if !(self.is_wanted() && self.needs.serves_users && broker::is_needed()) {
            return Ok(None);
        }
        let started = commands::broker::start(dirs, self.strictness, self.log);
        self.or_without(started.map(|broker| Arc::new(broker) as _))
    }

    /// Starts a helper that mounts at these places; returns one handle for each. `None` without places, and
    /// if this process enters no sandbox and so mounts itself.
    pub fn mounters(
        &mut self,
        places: &[(&Path, FuseOptions)],
    ) -> Result<Option<Vec<Arc<dyn Mounter>>>, Failure> {
        if places.is_empty() || !self.is_wanted() {
            return Ok(None);
        }
        let started = commands::mounter::start(places, self.log);
        self.or_without(started)
    }

    /// Starts the helper that looks up names, if the sandbox prevents look-ups.
    fn look_up_outside(&mut self) -> Result<(), Failure> {
        if self.is_wanted() && self.needs.looks_up {
            let started = commands::names::start(self.log);
            self.or_without(started)?;
        }
        Ok(())
    }

    /// Returns a started helper. If it failed to start, fails with `strict`, and otherwise disables the
    /// sandbox and returns `None`.
    fn or_without<T>(&mut self, started: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match started {
            Err(failure) if self.strictness != Strictness::Strict => {
                tracing::warn!("{failure}: running without a sandbox");
                self.needs.unconfinable = Some(Unconfinable::NoHelper);
                Ok(None)
            }
            started => started.map(Some),
        }
    }

    /// Enters the sandbox, unless it is off or impossible: drops all privileges that are no longer needed,
    /// for good. Returns the status, and the broker of these directories, if one is needed.
    pub fn close(mut self, dirs: &[PathBuf]) -> Result<Closed, Failure> {
        let cannot = |error: SandboxError| {
            let word = if matches!(error, SandboxError::Stuck(_)) { "off" } else { "auto" };
            Failure::cannot("confine the server", &error)
                .remedy(format!("use --sandbox {word} to run without it"))
        };
        self.look_up_outside()?;
        let mut namespace = Namespace::enter(self.strictness, &self.needs).map_err(cannot)?;
        // The broker is started in the namespace: it must have this process's view of mounts.
        let broker = self.broker(dirs)?;
        if !self.is_wanted() {
            // No sandbox is entered if the broker failed to start.
            namespace = namespace.leave().map_err(cannot)?;
        }
        let status = enter(self.strictness, &self.needs, namespace).map_err(cannot)?;
        Ok(Closed { status, broker })
    }
}

//! Hook for clients that connect or disconnect.

use std::sync::OnceLock;

/// A function to call when a client connects or disconnects, set at most once.
#[derive(Default)]
pub(super) struct ClientHook(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl ClientHook {
    /// Sets the hook, unless one is set.
    pub(super) fn set(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let _ = self.0.set(hook);
    }

    /// Calls the hook, if one is set. No lock may be held, because the hook may ask for the current clients.
    pub(super) fn notify(&self) {
        if let Some(hook) = self.0.get() {
            hook();
        }
    }
}

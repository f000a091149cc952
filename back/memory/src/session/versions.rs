//! Versions of nodes: change counters in shared memory. A change is counted once it is made, while the tree
//! is still locked.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tombolo_core::fs::{Attr, FileSystem, NodeId, Version, Versions, WindowMirror};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::Region;
use tombolo_shm::window::Window;

use super::Session;
use crate::change_log::Changed;
use crate::directory::Ino;
use crate::tree::ExportState;

impl Versions for Session {
    fn look(&self, cx: &Ctx, node: NodeId) -> Answer<(Attr, Option<Version>)> {
        self.begin_watch();
        let version =
            self.shared.window().and_then(|window| window.readable().version(slot_of(window, Ino(node.0))));
        self.getattr(cx, node, None).map(move |attr| (attr, version))
    }

    fn hold(&self, versions: &[Version]) -> bool {
        let Some(window) = self.shared.window() else { return false };
        versions.iter().all(|version| window.readable().holds(version))
    }

    fn window(&self) -> Option<Arc<OwnedFd>> {
        self.shared.window().map(Window::memory)
    }

    fn mirror(&self, memory: &Region, offset: usize) -> Option<Box<dyn WindowMirror>> {
        self.shared.window()?.mirror(memory, offset).ok().map(|mirror| Box::new(mirror) as _)
    }
}

impl Session {
    pub(super) fn count(&self, changes: &[Changed]) {
        let Some(Some(window)) = self.shared.window.get() else { return };
        let slots = changes.iter().map(|changed| slot_of(window, changed.ino()));
        window.count(|counts| slots.clone().for_each(|slot| counts.changed(slot)));
    }
}

impl ExportState {
    /// Returns the window, created on first use; `None` if there is no memory for it.
    fn window(&self) -> Option<&Window> {
        self.window.get_or_init(|| Window::create().ok()).as_ref()
    }
}

fn slot_of(window: &Window, ino: Ino) -> u32 {
    window.slot_of(0, ino.0)
}

//! Change counters in memory that clients with caches read (`tombolo_shm::window`): incremented before a
//! change begins, and after it has ended but before its reply.
//!
//! While no session is subscribed to changes, a change costs two loads more. Changes by other processes of
//! the host are counted when the kernel reports them (`host_watch`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tombolo_core::fs::{Attr, FileSystem, NodeId, Version, Versions, WindowMirror};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::{LinesMut, Region};
use tombolo_shm::window::{Counts, Window};

use crate::changes::Victim;
use crate::state::{ExportState, LocalSession, Session};
use crate::table::Key;

impl Versions for LocalSession {
    fn look(&self, cx: &Ctx, node: NodeId) -> Answer<(Attr, Option<Version>)> {
        self.begin_watch();
        let version = self.0.version(node);
        let export = Arc::clone(&self.0.export);
        // Completeness is checked after getattr: if some changes are no longer observed, no version is valid.
        self.getattr(cx, node, None).map(move |attr| {
            let sees_all = !attr.volatile && export.sees_all_changes();
            (attr, version.filter(|_| sees_all))
        })
    }

    fn hold(&self, versions: &[Version]) -> bool {
        let Some(window) = self.0.export.window() else { return false };
        versions.iter().all(|version| window.readable().holds(version))
    }

    fn window(&self) -> Option<Arc<OwnedFd>> {
        self.0.export.window().map(Window::memory)
    }

    fn mirror(&self, memory: &Region, offset: usize) -> Option<Box<dyn WindowMirror>> {
        // Otherwise no version is ever valid.
        let window = self.0.export.window().filter(|_| self.0.export.options.watch_host)?;
        let mirror = window.mirror(memory, offset);
        mirror
            .inspect_err(|error| tracing::warn!(%error, "no change counters for a guest: it revalidates"))
            .ok()
            .map(|mirror| Box::new(mirror) as _)
    }
}

/// A file that is about to change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChangedFile {
    /// A node of the session.
    Node(NodeId),
    /// A file that need not have a node.
    Key(Key),
    /// The file whose name is removed or replaced, if any.
    Victim(Victim),
}

/// A change in progress. While it lives, the files in whose slots its start was counted have no valid
/// version; when it is dropped, the earlier versions of all of its files become invalid.
pub(crate) struct Changing<'a, const N: usize> {
    session: &'a Session,
    files: [ChangedFile; N],
    /// Slots of the files, in which the start of the change was counted; `None` if no session was subscribed
    /// or no window existed then.
    begun: Option<(&'a Window, [WindowSlot; N])>,
}

#[derive(Clone, Copy)]
enum WindowSlot {
    /// The change concerns no file.
    None,
    One(u32),
    /// The change may concern any file.
    Any,
}

impl WindowSlot {
    /// Returns the slot, if it is known.
    fn one(&self) -> Option<u32> {
        if let Self::One(slot) = *self { Some(slot) } else { None }
    }

    /// Ends a change by `add`, or by a new epoch if it may concern any file.
    fn end(&self, counts: &Counts<LinesMut>, add: fn(&Counts<LinesMut>, u32)) {
        match *self {
            Self::None => {}
            Self::One(slot) => add(counts, slot),
            Self::Any => counts.everything(),
        }
    }
}

impl Session {
    /// Begins a change of these files, which ends when the result is dropped.
    #[inline]
    pub(crate) fn changing<const N: usize>(&self, files: [ChangedFile; N]) -> Changing<'_, N> {
        let begun = self.counting().map(|window| {
            let slots = files.map(|file| self.slot(window, file));
            window
                .count(|counts| slots.iter().filter_map(WindowSlot::one).for_each(|slot| counts.begun(slot)));
            (window, slots)
        });
        Changing { session: self, files, begun }
    }

    /// Returns the window, if it exists, while any session is subscribed.
    #[inline]
    fn counting(&self) -> Option<&Window> {
        if !self.export.watchers.any() {
            return None;
        }
        self.export.window.get()?.as_ref()
    }

    fn slot(&self, window: &Window, file: ChangedFile) -> WindowSlot {
        let key = match file {
            ChangedFile::Node(node) => self.key_of(node),
            ChangedFile::Key(key) | ChangedFile::Victim(Victim::File { key, .. }) => Some(key),
            ChangedFile::Victim(Victim::None) => return WindowSlot::None,
            ChangedFile::Victim(Victim::NotChecked) => None,
        };
        key.map_or(WindowSlot::Any, |key| WindowSlot::One(slot_of(window, &key)))
    }

    fn version(&self, node: NodeId) -> Option<Version> {
        let (window, key) = (self.export.window()?, self.key_of(node)?);
        window.readable().version(slot_of(window, &key))
    }
}

impl<const N: usize> Changing<'_, N> {
    /// Cancels the change, because nothing has changed: the versions become valid again.
    pub(crate) fn unchanged(mut self) {
        // Prevents counting on drop.
        self.files = [ChangedFile::Victim(Victim::None); N];
        let Some((window, slots)) = self.begun.take() else { return };
        window
            .count(|counts| slots.iter().filter_map(WindowSlot::one).for_each(|slot| counts.unchanged(slot)));
    }
}

impl<const N: usize> Drop for Changing<'_, N> {
    #[inline]
    fn drop(&mut self) {
        match self.begun {
            Some((window, slots)) => {
                window.count(|counts| slots.iter().for_each(|slot| slot.end(counts, Counts::ended)));
            }
            // A session may have subscribed since the check, and have read state from before the change.
            None => {
                if let Some(window) = self.session.counting() {
                    self.end_uncounted(window);
                }
            }
        }
    }
}

impl<const N: usize> Changing<'_, N> {
    #[cold]
    fn end_uncounted(&self, window: &Window) {
        let slots = self.files.map(|file| self.session.slot(window, file));
        window.count(|counts| slots.iter().for_each(|slot| slot.end(counts, Counts::changed)));
    }
}

impl ExportState {
    /// Returns the window, created on first use; `None` if there is no memory for it.
    fn window(&self) -> Option<&Window> {
        let made = self.window.get_or_init(|| {
            let window = Window::create();
            window
                .inspect_err(
                    |error| tracing::warn!(%error, "no memory for change counters: clients revalidate"),
                )
                .ok()
        });
        made.as_ref()
    }

    /// Counts a change to the file with this key whose start was not counted, such as one by another process.
    pub(crate) fn changed_uncounted(&self, key: &Key) {
        if let Some(Some(window)) = self.window.get() {
            let slot = slot_of(window, key);
            window.count(|counts| counts.changed(slot));
        }
    }

    /// Counts a change of unknown extent, which invalidates the versions of all files.
    pub(crate) fn changed_everything(&self) {
        if let Some(Some(window)) = self.window.get() {
            window.count(Counts::everything);
        }
    }
}

/// Returns the slot of a file, independent of the mount through which it was reached.
fn slot_of(window: &Window, key: &Key) -> u32 {
    window.slot_of(key.device.into(), key.inode)
}

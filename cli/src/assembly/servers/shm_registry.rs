//! Registration of a server for `tombolo links`.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tombolo_host_links::registry::{
    Announcement, Directory, GuestEntry, Registration, Registry, RegistryError,
};
use tombolo_host_service::control;

use super::shm::Endpoint;
use crate::commands::links;

/// Maintainer of the registry entry; dropping it removes the entry.
pub struct Listed {
    calls: Sender<Call>,
    thread: Option<JoinHandle<()>>,
}

enum Call {
    Changed,
    Stop,
}

/// Maximum age of the guests' counters. Without guests the thread waits for a change.
const REFRESH: Duration = Duration::from_secs(1);

impl Listed {
    /// Registers a server. A failure is only logged, and `None` is returned.
    pub fn start(announcement: Announcement, endpoints: Arc<[Endpoint]>) -> Option<Self> {
        let started = Self::try_start(announcement, endpoints);
        started.inspect_err(|error| tracing::warn!(%error, "cannot register for tombolo links")).ok()
    }

    fn try_start(announcement: Announcement, endpoints: Arc<[Endpoint]>) -> Result<Self, RegistryError> {
        // The parent directory is created first, in case no other process has created it yet.
        Directory::open(&control::default_directory())?;
        let directory = links::directory();
        let entry = Directory::open(&directory)?.announce(&announcement)?;
        let (calls, heard) = mpsc::channel();
        for place in endpoints.iter() {
            let calls = calls.clone();
            place.on_change(move || drop(calls.send(Call::Changed)));
        }
        let lister = Lister { entry, announcement, endpoints };
        let thread = thread::Builder::new().name("links-list".into()).spawn(move || lister.run(&heard));
        let thread = thread.map_err(|source: io::Error| RegistryError::Io { path: directory, source })?;
        Ok(Self { calls, thread: Some(thread) })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let _ = self.calls.send(Call::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Lister {
    entry: Box<dyn Registration>,
    announcement: Announcement,
    endpoints: Arc<[Endpoint]>,
}

impl Lister {
    fn run(mut self, heard: &Receiver<Call>) {
        loop {
            self.refresh();
            let heard = if self.announcement.guests.is_empty() {
                heard.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                heard.recv_timeout(REFRESH)
            };
            match heard {
                Ok(Call::Changed) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Call::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Updates the entry if the guests or their counters have changed.
    fn refresh(&mut self) {
        let guests = self.endpoints.iter().flat_map(Endpoint::guests);
        let mut guests: Vec<_> = guests.map(GuestEntry::from).collect();
        guests.sort_by(|one, other| (one.since_secs, &one.label).cmp(&(other.since_secs, &other.label)));
        if guests == self.announcement.guests {
            return;
        }
        self.announcement.guests = guests;
        if let Err(error) = self.entry.update(&self.announcement) {
            tracing::debug!(%error, "cannot update the registry of tombolo links");
        }
    }
}

//! Server of links, and handles of its links.

use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};

use thiserror::Error;
use tombolo_core::lock;
use tombolo_mem::OutOfBounds;
use tombolo_shm::doorbell::{Mode, PollBackoff, Sleeper};
use tombolo_shm::link::{Ends, FRAME_BYTES, Protocol, Role};
use tombolo_shm::ring::Consumer;

use super::common::Common;
use super::counters::Counts;
use super::link::Link;
use super::service::{Peer, Refusal, Service, Session};
use super::worker::Worker;
use crate::end::{EndReason, EndState};

/// A server of links, with one thread for each. Usable from any thread.
pub struct Server {
    service: Arc<dyn Service>,
    /// Services for protocols other than vrpc.
    others: Vec<(Protocol, Arc<dyn Service>)>,
    common: Arc<Common>,
    links: Mutex<Vec<Weak<Link>>>,
}

/// Reason why a link is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The ends are those of the client.
    #[error("a client's ends cannot be served")]
    Role,
    /// The layout does not fit the memory.
    #[error("the layout does not fit the memory")]
    Layout(#[from] OutOfBounds),
    /// A thread could not be created.
    #[error("no thread for the link")]
    Thread(#[from] io::Error),
}

impl Server {
    /// Returns a server without links, whose clients speak vrpc.
    pub fn new(service: Arc<dyn Service>) -> Self {
        Self { service, others: Vec::new(), common: Arc::default(), links: Mutex::default() }
    }

    /// Adds a service for clients that speak another protocol.
    #[must_use]
    pub fn speaking(mut self, protocol: Protocol, service: Arc<dyn Service>) -> Self {
        self.others.push((protocol, service));
        self
    }

    /// Returns the supported protocols.
    #[must_use]
    pub fn protocols(&self) -> Vec<Protocol> {
        std::iter::once(Protocol::Vrpc).chain(self.others.iter().map(|(protocol, _)| *protocol)).collect()
    }

    /// Opens a session for a client that speaks this protocol. Refuses a protocol without a service.
    pub fn open_for(&self, protocol: Protocol, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        if protocol == Protocol::Vrpc {
            return self.open(peer);
        }
        let found = self.others.iter().find(|(spoken, _)| *spoken == protocol);
        found.map_or(Err(Refusal::NoSuchExport), |(_, service)| service.open(peer))
    }

    /// Opens a vrpc session.
    pub fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        self.service.open(peer)
    }

    /// Starts to serve an unused link. `mode` selects how its thread waits for requests.
    pub fn serve(
        &self,
        ends: &Ends,
        peer: &Peer,
        session: Arc<dyn Session>,
        mode: Mode,
    ) -> Result<LinkHandle, ServeError> {
        if ends.role != Role::Server {
            return Err(ServeError::Role);
        }
        let layout = ends.layout;
        let consumer = Consumer::at(&ends.peer, layout.ring_offset(), layout.slots(), ends.epoch)?;
        let sleeper = Sleeper::of(ends, mode)?;
        let (label, common) = (peer.label.clone(), self.common.clone());
        let link = Arc::new(Link::new(ends, label, session, sleeper.nudger(), common)?);
        let frame = Box::new([0; FRAME_BYTES as usize]);
        link.session.begun(LinkCutter { link: Arc::downgrade(&link) });
        let worker = Worker { link: link.clone(), consumer, sleeper, backoff: PollBackoff::default(), frame };
        // The kernel truncates thread names to 15 bytes.
        let name = format!("link-{}", peer.label);
        let thread = thread::Builder::new().name(name).spawn(move || worker.run())?;
        let mut links = lock(&self.links);
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
        Ok(LinkHandle { outcome: link.outcome.clone(), link: Arc::downgrade(&link), thread: Some(thread) })
    }

    /// Returns the counters of all links, including closed ones.
    pub fn counts(&self) -> Counts {
        let live: Vec<_> = lock(&self.links).iter().filter_map(Weak::upgrade).collect();
        self.common.totals.sum(live.iter().map(|link| link.counts()))
    }
}

/// A handle of one link, for the code that set it up. Dropping it ends the link, and waits for the link's
/// thread as [`stop`](Self::stop) does.
pub struct LinkHandle {
    pub(super) link: Weak<Link>,
    outcome: Arc<EndState>,
    thread: Option<JoinHandle<()>>,
}

/// A reader of a link's counters that does not keep the link alive.
#[derive(Clone, Debug)]
pub struct LinkMeter {
    link: Weak<Link>,
}

impl LinkMeter {
    /// Returns the counters, or `None` if the link's memory is freed. If the last other owner drops the link
    /// during the call, the link is destroyed on this thread.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        self.link.upgrade().map(|link| link.counts())
    }
}

/// A handle that can end a link without keeping it alive.
#[derive(Clone, Debug)]
pub struct LinkCutter {
    link: Weak<Link>,
}

impl LinkCutter {
    /// Ends the link, as [`LinkHandle::cut`] does.
    pub fn cut(&self, why: EndReason) {
        if let Some(link) = self.link.upgrade() {
            link.end(why);
        }
    }
}

impl LinkHandle {
    /// Ends the link, unless it has ended before. Does not block: requests in progress are finished, and
    /// their answers dropped. The memory is freed and the session dropped after the last of them.
    pub fn cut(&self, why: EndReason) {
        if let Some(link) = self.link.upgrade() {
            link.end(why);
        }
    }

    /// Attaches an object to the link. It is dropped after the link's memory is freed and its session
    /// dropped.
    pub(crate) fn retain(&self, what: impl Any + Send + Sync) {
        if let Some(link) = self.link.upgrade() {
            let _ = link.retained.set(Box::new(what));
        }
    }

    /// Returns the reason for the end, or `None` if the link has not ended.
    #[must_use]
    pub fn end(&self) -> Option<EndReason> {
        self.outcome.why()
    }

    /// Calls `listener` when the link ends, or at once if it has ended.
    pub(crate) fn on_end(&self, listener: impl FnOnce() + Send + 'static) {
        self.outcome.on_end(Box::new(listener));
    }

    /// Returns the counters, or `None` if the link's memory is freed.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        self.meter().counts()
    }

    /// Returns a reader of the counters that is independent of this handle.
    #[must_use]
    pub fn meter(&self) -> LinkMeter {
        LinkMeter { link: Weak::clone(&self.link) }
    }

    /// Ends the link and waits for its thread, which finishes its current request. Requests answered later
    /// may still be in progress.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.cut(EndReason::Stopped);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("link thread panicked");
        }
    }
}

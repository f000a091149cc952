//! A server of links, and what its owner has of each.

use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};

use thiserror::Error;
use tombolo_mem::OutOfBounds;
use tombolo_shm::doorbell::{Mode, PollBackoff, Sleeper};
use tombolo_shm::link::{Ends, FRAME_BYTES, Protocol, Role};
use tombolo_shm::ring::Consumer;

use super::common::Common;
use super::counters::Counts;
use super::link::Link;
use super::service::{Peer, Refusal, Service, Session};
use super::worker::Worker;
use crate::end::{End, EndState};
use tombolo_host_runtime::lock;

/// Serves links, each with a thread of its own. Any thread may use it.
pub struct Server {
    service: Arc<dyn Service>,
    /// Those of further protocols.
    others: Vec<(Protocol, Arc<dyn Service>)>,
    common: Arc<Common>,
    links: Mutex<Vec<Weak<Link>>>,
}

/// Why a link is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// These are the client's ends.
    #[error("the ends of a client cannot be served")]
    Role,
    /// The layout does not fit the memory.
    #[error("the layout does not fit the memory")]
    Layout(#[from] OutOfBounds),
    /// There is no thread for it.
    #[error("no thread for the link")]
    Thread(#[from] io::Error),
}

impl Server {
    /// A server without links, whose clients speak vrpc.
    pub fn new(service: Arc<dyn Service>) -> Self {
        Self { service, others: Vec::new(), common: Arc::default(), links: Mutex::default() }
    }

    /// Has clients that speak another protocol answered by another service.
    #[must_use]
    pub fn speaking(mut self, protocol: Protocol, service: Arc<dyn Service>) -> Self {
        self.others.push((protocol, service));
        self
    }

    /// The protocols that are spoken.
    #[must_use]
    pub fn protocols(&self) -> Vec<Protocol> {
        std::iter::once(Protocol::Vrpc).chain(self.others.iter().map(|(protocol, _)| *protocol)).collect()
    }

    /// As [`open`](Self::open), for a client that speaks this protocol.
    pub fn open_for(&self, protocol: Protocol, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        if protocol == Protocol::Vrpc {
            return self.open(peer);
        }
        let found = self.others.iter().find(|(spoken, _)| *spoken == protocol);
        found.map_or(Err(Refusal::NoSuchExport), |(_, service)| service.open(peer))
    }

    /// Asks the service for a session. To be called before a peer is given memory.
    pub fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        self.service.open(peer)
    }

    /// Begins to serve a link, of which nothing was sent yet. `mode` says how its thread waits for requests.
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
        // Thread names are cut at 15 bytes.
        let name = format!("link-{}", peer.label);
        let thread = thread::Builder::new().name(name).spawn(move || worker.run())?;
        let mut links = lock(&self.links);
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
        Ok(LinkHandle { outcome: link.outcome.clone(), link: Arc::downgrade(&link), thread: Some(thread) })
    }

    /// What its links have done, those that are gone included.
    pub fn counts(&self) -> Counts {
        let live: Vec<_> = lock(&self.links).iter().filter_map(Weak::upgrade).collect();
        self.common.totals.sum(live.iter().map(|link| link.counts()))
    }
}

/// One link, for the owner of its control socket. Dropping it ends the link.
#[derive(Debug)]
pub struct LinkHandle {
    pub(super) link: Weak<Link>,
    outcome: Arc<EndState>,
    thread: Option<JoinHandle<()>>,
}

/// Reads what a link has done, and keeps nothing of it alive.
#[derive(Clone, Debug)]
pub struct LinkMeter {
    link: Weak<Link>,
}

impl LinkMeter {
    /// What it has done; none if its memory is gone. If its end was waiting for this only, it ends on this
    /// thread.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        self.link.upgrade().map(|link| link.counts())
    }
}

/// Ends a link, and keeps nothing of it alive.
#[derive(Clone, Debug)]
pub struct LinkCutter {
    link: Weak<Link>,
}

impl LinkCutter {
    /// As [`LinkHandle::cut`].
    pub fn cut(&self, why: End) {
        if let Some(link) = self.link.upgrade() {
            link.end(why);
        }
    }
}

impl LinkHandle {
    /// Ends the link, if it has not ended before. Does not wait: requests that are under way are finished,
    /// and their answers dropped. The memory is given back and the session dropped when the last of them is.
    pub fn cut(&self, why: End) {
        if let Some(link) = self.link.upgrade() {
            link.end(why);
        }
    }

    /// Has the link hold something as long as there is anything of it: until its memory is given back and its
    /// session dropped.
    pub(crate) fn holds(&self, what: impl Any + Send + Sync) {
        if let Some(link) = self.link.upgrade() {
            let _ = link.held.set(Box::new(what));
        }
    }

    /// Why the link has ended; none while it goes on.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.outcome.why()
    }

    /// Has `listener` called when the link ends; at once if it has.
    pub(crate) fn on_end(&self, listener: impl FnOnce() + Send + 'static) {
        self.outcome.on_end(Box::new(listener));
    }

    /// What it has done; none if its memory is gone.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        self.meter().counts()
    }

    /// To read that later, without the handle.
    #[must_use]
    pub fn meter(&self) -> LinkMeter {
        LinkMeter { link: Weak::clone(&self.link) }
    }

    /// Ends the link and waits for its thread, which finishes the request that it is at. Requests that are
    /// answered later may still be under way then.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.cut(End::Stopped);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a link had panicked");
        }
    }
}

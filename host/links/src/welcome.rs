//! Answering a hello: [`welcome`], which `listen` calls, checks the hello, then allocates memory, starts the
//! link's thread and has the link control socket watched. [`Links`] lists the links of one listener.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use smallvec::SmallVec;
use tombolo_core::lock;
use tombolo_mem::Region;
use tombolo_shm::link::{
    Agreement, Cause, Ends, Epoch, Extent, Features, Goodbye, Health, Hello, Incarnation, Message,
    RefusalCode, Refused, Role,
};
use tombolo_shm::region::sealed::{self, Sealed};
use tombolo_sys::socket::peer_groups;
use tombolo_sys::{packet, random};

use super::client_hook::ClientHook;
use super::control_socket::{ControlSocket, Descriptors, Handler, Watcher};
use super::end::{EndReason, ProtocolError};
use super::forwarding::ForwardableRegion;
use super::heartbeat::Heartbeat;
use super::listen::{ListenOptions, is_full};
use super::server::{
    AllowedIdentities, Counts, Credentials, LinkHandle, Peer, Refusal, RegionReceiver, Server, VerifiedPeer,
};
use tombolo_host_runtime::descriptors::{DescriptorBudget, Share};

/// Established links, and the resources to make them.
pub(super) struct Links {
    server: Arc<Server>,
    /// `None` once no more links may be made.
    watcher: Mutex<Option<Watcher>>,
    incarnation: Incarnation,
    /// Permits of all links. The lock is held only briefly: no link is ended or dropped under it, so that a
    /// link that ends slowly does not delay the others.
    permits: Arc<Mutex<Permits>>,
    ending_links: EndingLinks,
    pub(super) client_hook: ClientHook,
}

/// Number of threads that are ending links.
#[derive(Default)]
struct EndingLinks {
    count: Mutex<usize>,
    changed: Condvar,
}

/// A guard that counts one thread that ends a link.
struct EndingLink(Arc<Links>);

/// Permits of links being made, in use, and ending.
#[derive(Default)]
struct Permits {
    last_number: u64,
    issued: HashMap<u64, Issued>,
}

struct Issued {
    uid: u32,
    /// `None` while the link is being made, and once it ends.
    live: Option<Live>,
}

/// A permit for one more link, returned when dropped. A served link retains one until its memory is freed.
struct LinkPermit {
    permits: Arc<Mutex<Permits>>,
    number: u64,
    _descriptors: Share,
}

/// A client that has a link.
#[derive(Debug, Clone)]
pub struct Guest {
    /// The client.
    pub peer: Peer,
    /// Time at which the link was made.
    pub since: SystemTime,
    /// State of the client's heartbeat.
    pub health: Health,
    /// Time since the client's last heartbeat, as of the last check. Over a socket, a check runs about once a
    /// second.
    pub silence: Duration,
    /// Counters of the link; `None` once its memory is freed, and without a socket until the first check.
    pub counts: Option<Counts>,
}

struct Live {
    guest: Guest,
    handle: LinkHandle,
    /// `None` briefly, while the link is made. Dropping it sends a goodbye.
    control_socket: Option<ControlSocket>,
}

impl Guest {
    /// Returns a client whose link begins now.
    pub(super) fn new(peer: Peer) -> Self {
        let (since, health) = (SystemTime::now(), Health::Well);
        Self { peer, since, health, silence: Duration::ZERO, counts: None }
    }
}

impl Links {
    pub(super) fn new(server: Arc<Server>, watcher: Watcher, incarnation: Incarnation) -> Self {
        Self {
            server,
            watcher: Mutex::new(Some(watcher)),
            incarnation,
            permits: Arc::default(),
            ending_links: EndingLinks::default(),
            client_hook: ClientHook::default(),
        }
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(super) fn guests(&self) -> Vec<Guest> {
        let live: Vec<_> = {
            let permits = lock(&self.permits);
            let live = permits.issued.values().filter_map(|issued| issued.live.as_ref());
            live.map(|live| (live.guest.clone(), live.handle.meter())).collect()
        };
        live.into_iter().map(|(guest, meter)| Guest { counts: meter.counts(), ..guest }).collect()
    }

    /// Ends all links in order, and makes no more.
    pub(super) fn close(&self) {
        let watcher = lock(&self.watcher).take();
        // Dropping the watcher sends a goodbye to all clients, and drops the handlers, which end their
        // links.
        drop(watcher);
    }

    /// Waits for the threads that end links, at most for `at_most`. Returns the number left.
    pub(super) fn wait_for_ends(&self, at_most: Duration) -> usize {
        let EndingLinks { count, changed } = &self.ending_links;
        let waited = changed.wait_timeout_while(lock(count), at_most, |count| *count > 0);
        let (count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *count
    }
}

impl EndingLink {
    fn begin(links: &Arc<Links>) -> EndingLink {
        *lock(&links.ending_links.count) += 1;
        EndingLink(Arc::clone(links))
    }
}

impl Drop for EndingLink {
    fn drop(&mut self) {
        let EndingLinks { count, changed } = &self.0.ending_links;
        *lock(count) -= 1;
        changed.notify_all();
    }
}

impl LinkPermit {
    /// Returns a permit for one more link of this user, or `None` if the limit is reached or descriptors are
    /// short.
    fn take(links: &Arc<Links>, uid: u32, max: usize) -> Option<LinkPermit> {
        let mut permits = lock(&links.permits);
        if is_full(permits.issued.values().map(|issued| issued.uid), uid, max) {
            return None;
        }
        let descriptors = DescriptorBudget::of_process().share(DESCRIPTORS);
        let Some(_descriptors) = descriptors else {
            tracing::warn!("no descriptors left for one more link; raise RLIMIT_NOFILE");
            return None;
        };
        permits.last_number += 1;
        let number = permits.last_number;
        permits.issued.insert(number, Issued { uid, live: None });
        Some(LinkPermit { permits: Arc::clone(&links.permits), number, _descriptors })
    }

    /// Applies `change` to the permit's link, if the permit still exists.
    fn with<T>(&self, change: impl FnOnce(&mut Option<Live>) -> T) -> Option<T> {
        lock(&self.permits).issued.get_mut(&self.number).map(|issued| change(&mut issued.live))
    }
}

impl Drop for LinkPermit {
    fn drop(&mut self) {
        let issued = lock(&self.permits).issued.remove(&self.number);
        drop(issued);
    }
}

/// Makes the requested link, or returns the refusal.
pub(super) fn welcome(
    links: &Arc<Links>,
    options: &ListenOptions,
    socket: &OwnedFd,
    credentials: Credentials,
    hello: &Hello,
    memory: &OwnedFd,
) -> Result<(), Refused> {
    if !options.policy.allows(credentials, &hello.export) {
        return Err(Refused::new(RefusalCode::NotAllowed, "no rule allows this export to this user"));
    }
    // The permit is taken before any resource is allocated, so that the limit applies to concurrent hellos.
    let permit = LinkPermit::take(links, credentials.uid, options.links_max)
        .ok_or_else(|| Refused::new(RefusalCode::TooMany, ""))?;
    let agreement = options.limits.agree(hello, epoch()?, links.incarnation)?;
    let label = if hello.label.is_empty() { "client" } else { &hello.label };
    let peer = Peer {
        export: hello.export.clone(),
        credentials: Some(verified_peer(options, socket, credentials, &hello.export)?),
        client: hello.client,
        label: format!("{label}:{}", credentials.pid).into(),
    };
    let theirs = sealed::map_peer(memory, agreement.layout.bytes())
        .map_err(|error| Refused::new(RefusalCode::Memory, error))?;
    let session = links.server.open_for(agreement.protocol, &peer).map_err(|refusal| refused(&refusal))?;
    let window = agreement.features.contains(Features::WINDOW).then(|| session.window()).flatten();
    let agreement = match window {
        Some(_) => agreement,
        None => Agreement { features: agreement.features.difference(Features::WINDOW), ..agreement },
    };
    let own = Sealed::create("tombolo-server", agreement.layout.bytes()).map_err(failed)?;
    let region = agreement
        .features
        .contains(Features::REGION_FORWARDING)
        .then(|| forwardable(&theirs, memory, credentials, &agreement));
    let region = region.transpose().map_err(failed)?;
    let ends = agreement.ends(Role::Server, Extent::whole(own.region().clone()), Extent::whole(theirs));
    agreement.header(Role::Server, agreement.server).format(&ends.own).map_err(failed)?;
    let handle = links.server.serve(&ends, &peer, session, options.mode).map_err(failed)?;
    if let Some(region) = region {
        region.set_cut_fn(handle.cut_fn());
    }
    let region_receiver = agreement.features.contains(Features::FORWARDED_REGIONS);
    let region_receiver =
        region_receiver.then(|| handle.receive(options.limits.bytes.saturating_mul(FORWARDED_MAX)));
    let permit = keep(links, permit, peer, handle, region_receiver, &ends, socket).map_err(failed)?;
    let message = Message::Welcome(agreement.welcome()).encode();
    // The welcome is sent last, so that a server that is ending welcomes no client. If the peer has already
    // disconnected, the watcher ends the link.
    let memory: SmallVec<[_; 2]> =
        [Some(own.as_fd()), window.as_ref().map(|window| window.as_fd())].into_iter().flatten().collect();
    packet::send(socket, &message, &memory).map_err(|error| {
        drop(permit.with(Option::take));
        failed(error)
    })
}

/// Number of descriptors reserved for a link: its socket, the client's memory, its forwarded regions (at most
/// eight), and some to spare.
const DESCRIPTORS: usize = 16;

/// Maximum size of the regions forwarded by a client, as a multiple of the maximum memory of a link.
const FORWARDED_MAX: u64 = 2;

/// Marks a client's memory as forwardable.
fn forwardable(
    theirs: &Region,
    memory: &OwnedFd,
    credentials: Credentials,
    agreement: &Agreement,
) -> std::io::Result<Arc<ForwardableRegion>> {
    let bytes = agreement.layout.bytes();
    let bulk = agreement.layout.bulk_offset()..bytes;
    Ok(ForwardableRegion::mark(theirs, memory.try_clone()?, bytes, bulk, credentials.uid))
}

/// Returns the credentials of the process, and the identities that the policy allows it.
fn verified_peer(
    options: &ListenOptions,
    socket: &OwnedFd,
    process: Credentials,
    export: &str,
) -> Result<VerifiedPeer, Refused> {
    let identities = match options.policy.may_use_any_identity(process, export) {
        true => AllowedIdentities::Any,
        false => {
            let groups = peer_groups(socket.as_fd()).map_err(|error| failed(std::io::Error::from(error)))?;
            AllowedIdentities::Own { groups: groups.into() }
        }
    };
    Ok(VerifiedPeer { process, identities })
}

/// Stores a link under its permit, and has the watcher watch its socket.
fn keep(
    links: &Arc<Links>,
    permit: LinkPermit,
    peer: Peer,
    handle: LinkHandle,
    region_receiver: Option<RegionReceiver>,
    ends: &Ends,
    socket: &OwnedFd,
) -> std::io::Result<Arc<LinkPermit>> {
    let socket = socket.try_clone()?;
    tracing::info!(link = &*peer.label, export = peer.export, slots = ends.layout.slots(), "link made");
    let permit = Arc::new(permit);
    handle.retain(Arc::clone(&permit));
    let heartbeat = Heartbeat::new(ends, Instant::now());
    let (label, end) = (peer.label.clone(), EndReason::Stopped);
    let handler = ServerHandler {
        links: Arc::clone(links),
        permit: Arc::clone(&permit),
        label,
        region_receiver,
        heartbeat,
        end,
    };
    let mut control_socket = {
        let watcher = lock(&links.watcher);
        let Some(watcher) = watcher.as_ref() else { return Err(std::io::Error::other("the server ends")) };
        let ended = watcher.tick_fn();
        permit.with(|live| {
            let live = live.insert(Live { guest: Guest::new(peer), handle, control_socket: None });
            live.handle.on_end(ended);
        });
        Some(watcher.watch(socket, Box::new(handler))?)
    };
    // If the link has already ended, the handler was dropped before the control socket could be stored, and
    // the socket is dropped by this function.
    permit.with(|live| live.as_mut().map(|live| live.control_socket = control_socket.take()));
    links.client_hook.notify();
    Ok(permit)
}

/// The server's handler of a link control socket. Dropping it cuts the link on this side, whichever side
/// ended the link.
struct ServerHandler {
    links: Arc<Links>,
    permit: Arc<LinkPermit>,
    label: Arc<str>,
    /// Receiver of forwarded regions, if the client may forward any.
    region_receiver: Option<RegionReceiver>,
    heartbeat: Heartbeat,
    /// Reason with which the link is cut when this is dropped.
    end: EndReason,
}

impl Handler for ServerHandler {
    fn tick(&mut self, now: Instant) -> Option<Goodbye> {
        let health = self.heartbeat.tick(now);
        if let Some(fault) = self.heartbeat.fault() {
            self.end = fault.clone();
            return Some(goodbye(&fault));
        }
        let silence = self.heartbeat.silence();
        let end = self.permit.with(|live| {
            let live = live.as_mut()?;
            live.guest.health = health;
            live.guest.silence = silence;
            live.handle.end()
        });
        end.flatten().map(|end| goodbye(&end))
    }

    fn received(
        &mut self,
        message: &Message,
        descriptors: Descriptors,
    ) -> Result<Option<Message>, ProtocolError> {
        match &self.region_receiver {
            Some(region_receiver) => region_receiver.received(message, descriptors),
            None => Err(ProtocolError::Malformed("unexpected message on the link control socket".into())),
        }
    }

    fn ended(mut self: Box<Self>, end: EndReason) {
        tracing::info!(link = &*self.label, why = %end, "link ended");
        self.end = end;
    }
}

impl Drop for ServerHandler {
    fn drop(&mut self) {
        let Some(live) = self.permit.with(Option::take).flatten() else { return };
        self.links.client_hook.notify();
        // The watcher's thread must not wait for the session, which may be slow to end, nor for the link's
        // thread, which finishes its current request.
        let (turn, end) =
            (EndingLink::begin(&self.links), std::mem::replace(&mut self.end, EndReason::Stopped));
        let ending = move || {
            live.handle.cut(end);
            drop(live);
            drop(turn);
        };
        if let Err(error) = thread::Builder::new().name("link-end".into()).spawn(ending) {
            tracing::warn!(%error, "no thread to end a link on");
        }
    }
}

/// Returns the goodbye that reports this end to the peer.
pub(super) fn goodbye(end: &EndReason) -> Goodbye {
    match end {
        EndReason::ProtocolError(error) => Goodbye::new(Cause::Cut, error),
        EndReason::Failed(_) | EndReason::Silent => Goodbye::new(Cause::Failed, end),
        EndReason::Left | EndReason::Died | EndReason::Stopped => Goodbye::new(Cause::Leaving, ""),
    }
}

/// Returns an epoch that no earlier link over the same memory is likely to have had.
pub(super) fn epoch() -> Result<Epoch, Refused> {
    let mut bytes = [0; 4];
    random::fill(&mut bytes).map_err(|error| failed(std::io::Error::from(error)))?;
    // Zero is invalid, and occurs once in four thousand million links.
    Ok(Epoch::new(u32::from_le_bytes(bytes)).unwrap_or(Epoch::FIRST))
}

pub(super) fn failed(error: impl std::fmt::Display) -> Refused {
    Refused::new(RefusalCode::Failed, error)
}

pub(super) fn refused(refusal: &Refusal) -> Refused {
    let code = match refusal {
        Refusal::NoSuchExport => RefusalCode::NoExport,
        Refusal::NotAllowed => RefusalCode::NotAllowed,
        Refusal::TooMany => RefusalCode::TooMany,
        Refusal::Failed(_) => RefusalCode::Failed,
    };
    match refusal {
        Refusal::Failed(why) => Refused::new(code, why),
        _ => Refused::new(code, ""),
    }
}

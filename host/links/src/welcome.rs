//! Answering a hello: may they, can they, and then memory, threads and a tether.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tombolo_mem::Region;
use tombolo_shm::link::{
    Agreement, Cause, Ends, Epoch, Extent, Features, Goodbye, Health, Hello, Incarnation, Message,
    RefusalCode, Refused, Role,
};
use tombolo_shm::region::sealed::{self, Sealed};
use tombolo_sys::socket::peer_groups;
use tombolo_sys::{packet, random};

use super::changes::Changes;
use super::end::{End, Lie};
use super::heart::Heart;
use super::listen::{ListenOptions, is_full};
use super::passing::Passable;
use super::server::{Counts, Credentials, LinkHandle, Peer, Reception, Refusal, Server, SpeaksFor, Standing};
use super::tether::{Descriptors, Keeper, Tether, Watcher};
use tombolo_host_runtime::descriptors::{DescriptorBudget, Share};
use tombolo_host_runtime::lock;

/// The links that were made, and what they are made with.
pub(super) struct Links {
    server: Arc<Server>,
    /// None once nothing more is to be made.
    watcher: Mutex<Option<Watcher>>,
    incarnation: Incarnation,
    /// Nothing that belongs to a peer is called or dropped while it is locked: a slow end of one must not hold up the others.
    places: Arc<Mutex<Places>>,
    endings: Endings,
    pub(super) changes: Changes,
}

/// How many threads end links.
#[derive(Default)]
struct Endings {
    count: Mutex<usize>,
    changed: Condvar,
}

/// One of them.
struct Ending(Arc<Links>);

/// The places of links that are being made, that go on, and that end.
#[derive(Default)]
struct Places {
    last_number: u64,
    taken: HashMap<u64, Taken>,
}

struct Taken {
    uid: u32,
    /// None while the link is being made, and while it ends.
    live: Option<Live>,
}

/// One of the places that there are for links. Dropping it makes room for another. A link that is served holds one too, so that there
/// is no room before its memory is given back.
struct Place {
    places: Arc<Mutex<Places>>,
    number: u64,
    _descriptors: Share,
}

/// One who has a link.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Who it is.
    pub peer: Peer,
    /// Since when.
    pub since: SystemTime,
    /// How its heart is.
    pub health: Health,
    /// For how long its heart had been silent when last looked at, about ten times a second.
    pub silence: Duration,
    /// What the link has done; none if it is coming to an end.
    pub counts: Option<Counts>,
}

struct Live {
    guest: Guest,
    handle: LinkHandle,
    /// None for a moment, while it is made. Dropping it says goodbye.
    tether: Option<Tether>,
}

impl Guest {
    /// One whose link begins now.
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
            places: Arc::default(),
            endings: Endings::default(),
            changes: Changes::default(),
        }
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(super) fn guests(&self) -> Vec<Guest> {
        let live: Vec<_> = {
            let places = lock(&self.places);
            let live = places.taken.values().filter_map(|taken| taken.live.as_ref());
            live.map(|live| (live.guest.clone(), live.handle.meter())).collect()
        };
        live.into_iter().map(|(guest, meter)| Guest { counts: meter.counts(), ..guest }).collect()
    }

    /// Ends all links in order, and makes no more.
    pub(super) fn close(&self) {
        let watcher = lock(&self.watcher).take();
        // Says goodbye to all, and drops the keepers, which end their links.
        drop(watcher);
    }

    /// Waits for the threads that end links, so long at most. How many are left.
    pub(super) fn wait_for_ends(&self, at_most: Duration) -> usize {
        let Endings { count, changed } = &self.endings;
        let waited = changed.wait_timeout_while(lock(count), at_most, |count| *count > 0);
        let (count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *count
    }
}

impl Ending {
    fn begin(links: &Arc<Links>) -> Ending {
        *lock(&links.endings.count) += 1;
        Ending(Arc::clone(links))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Endings { count, changed } = &self.0.endings;
        *lock(count) -= 1;
        changed.notify_all();
    }
}

impl Place {
    /// A place for one more of this user; none if there is none.
    fn take(links: &Arc<Links>, uid: u32, max: usize) -> Option<Place> {
        let mut places = lock(&links.places);
        if is_full(places.taken.values().map(|taken| taken.uid), uid, max) {
            return None;
        }
        let descriptors = DescriptorBudget::of_process().share(DESCRIPTORS);
        let Some(_descriptors) = descriptors else {
            tracing::warn!("no descriptors left for one more link; raise RLIMIT_NOFILE");
            return None;
        };
        places.last_number += 1;
        let number = places.last_number;
        places.taken.insert(number, Taken { uid, live: None });
        Some(Place { places: Arc::clone(&links.places), number, _descriptors })
    }

    /// What is done with the place, if it still is one.
    fn with<T>(&self, change: impl FnOnce(&mut Option<Live>) -> T) -> Option<T> {
        lock(&self.places).taken.get_mut(&self.number).map(|taken| change(&mut taken.live))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let taken = lock(&self.places).taken.remove(&self.number);
        drop(taken);
    }
}

/// Makes the link that a hello asks for, or says why not.
pub(super) fn welcome(
    links: &Arc<Links>,
    options: &ListenOptions,
    socket: &OwnedFd,
    who: Credentials,
    hello: &Hello,
    memory: &OwnedFd,
) -> Result<(), Refused> {
    if !options.policy.allows(who, &hello.export) {
        return Err(Refused::new(RefusalCode::NotAllowed, "no rule allows this export to this user"));
    }
    // Before anything is made for it: of many who ask at once no more than that get through.
    let place = Place::take(links, who.uid, options.links_max)
        .ok_or_else(|| Refused::new(RefusalCode::TooMany, ""))?;
    let agreement = options.limits.agree(hello, epoch()?, links.incarnation)?;
    let label = if hello.label.is_empty() { "client" } else { &hello.label };
    let peer = Peer {
        export: hello.export.clone(),
        credentials: Some(standing(options, socket, who, &hello.export)?),
        client: hello.client,
        label: format!("{label}:{}", who.pid).into(),
    };
    let theirs = sealed::map_peer(memory, agreement.layout.bytes())
        .map_err(|error| Refused::new(RefusalCode::Memory, error))?;
    let session = links.server.open_for(agreement.protocol, &peer).map_err(|refusal| refused(&refusal))?;
    let own = Sealed::create("tombolo-server", agreement.layout.bytes()).map_err(failed)?;
    let passable = agreement
        .features
        .contains(Features::REGION_FORWARDING)
        .then(|| pass_on(&theirs, memory, who, &agreement));
    let passable = passable.transpose().map_err(failed)?;
    let ends = agreement.ends(Role::Server, Extent::whole(own.region().clone()), Extent::whole(theirs));
    agreement.header(Role::Server, agreement.server).format(&ends.own).map_err(failed)?;
    let handle = links.server.serve(&ends, &peer, session, options.mode).map_err(failed)?;
    if let Some(passable) = passable {
        passable.belongs_to(handle.sever());
    }
    let reception = agreement.features.contains(Features::FORWARDED_REGIONS);
    let reception = reception.then(|| handle.receive(options.limits.bytes.saturating_mul(INTRODUCED_MAX)));
    let place = keep(links, place, peer, handle, reception, &ends, socket).map_err(failed)?;
    let message = Message::Welcome(agreement.welcome()).encode();
    // Last, so that nobody is welcomed to a server that ends. If the peer is gone already, the watcher has heard of it.
    packet::send(socket, &message, &[own.as_fd()]).map_err(|error| {
        drop(place.with(Option::take));
        failed(error)
    })
}

/// How many descriptors a link has open: its socket, the memory of both sides, the doorbells, and eight regions that are
/// introduced on it.
const DESCRIPTORS: usize = 16;

/// The memory of all domains that a client introduces may be so many times as large as that of one link.
const INTRODUCED_MAX: u64 = 2;

/// Says of a client's memory that it may be passed on.
fn pass_on(
    theirs: &Region,
    memory: &OwnedFd,
    who: Credentials,
    agreement: &Agreement,
) -> std::io::Result<Arc<Passable>> {
    let bytes = agreement.layout.bytes();
    let bulk = agreement.layout.bulk_offset()..bytes;
    Ok(Passable::mark(theirs, memory.try_clone()?, bytes, bulk, who.uid))
}

/// In whose name they may ask.
fn standing(
    options: &ListenOptions,
    socket: &OwnedFd,
    process: Credentials,
    export: &str,
) -> Result<Standing, Refused> {
    let speaks_for = match options.policy.is_believed(process, export) {
        true => SpeaksFor::Anybody,
        false => {
            let groups = peer_groups(socket.as_fd()).map_err(|error| failed(std::io::Error::from(error)))?;
            SpeaksFor::Itself { groups: groups.into() }
        }
    };
    Ok(Standing { process, speaks_for })
}

/// Watches over a link from now on.
fn keep(
    links: &Arc<Links>,
    place: Place,
    peer: Peer,
    handle: LinkHandle,
    reception: Option<Reception>,
    ends: &Ends,
    socket: &OwnedFd,
) -> std::io::Result<Arc<Place>> {
    let socket = socket.try_clone()?;
    tracing::info!(link = &*peer.label, export = peer.export, slots = ends.layout.slots(), "link made");
    let place = Arc::new(place);
    handle.holds(Arc::clone(&place));
    let heart = Heart::new(ends, Instant::now());
    let (label, end) = (peer.label.clone(), End::Stopped);
    let moored = Moored { links: Arc::clone(links), place: Arc::clone(&place), label, reception, heart, end };
    let mut tether = {
        let watcher = lock(&links.watcher);
        let Some(watcher) = watcher.as_ref() else { return Err(std::io::Error::other("the server ends")) };
        place.with(|live| *live = Some(Live { guest: Guest::new(peer), handle, tether: None }));
        Some(watcher.watch(socket, Box::new(moored))?)
    };
    // If it was over at once the keeper has ended the link before the tether was there, which is dropped then.
    place.with(|live| live.as_mut().map(|live| live.tether = tether.take()));
    links.changes.tell();
    Ok(place)
}

/// Watches over a link on behalf of the server. When it is dropped the link is over, whoever ended it.
struct Moored {
    links: Arc<Links>,
    place: Arc<Place>,
    label: Arc<str>,
    /// Hears further domains, if the client may introduce any.
    reception: Option<Reception>,
    heart: Heart,
    /// Why the link ends when this is dropped.
    end: End,
}

impl Keeper for Moored {
    fn tick(&mut self, now: Instant) -> Option<Goodbye> {
        let health = self.heart.tick(now);
        if let Some(fault) = self.heart.fault() {
            self.end = fault.clone();
            return Some(goodbye(&fault));
        }
        let silence = self.heart.silence();
        let end = self.place.with(|live| {
            let live = live.as_mut()?;
            live.guest.health = health;
            live.guest.silence = silence;
            live.handle.end()
        });
        end.flatten().map(|end| goodbye(&end))
    }

    fn heard(&mut self, message: &Message, descriptors: Descriptors) -> Result<Option<Message>, Lie> {
        match &self.reception {
            Some(reception) => reception.heard(message, descriptors),
            None => Err(Lie::Senseless("a message that has no place after the first two".into())),
        }
    }

    fn ended(mut self: Box<Self>, end: End) {
        tracing::info!(link = &*self.label, why = %end, "link ended");
        self.end = end;
    }
}

impl Drop for Moored {
    fn drop(&mut self) {
        let Some(live) = self.place.with(Option::take).flatten() else { return };
        self.links.changes.tell();
        // The session may take its time, and the link's thread finishes the request that it is at: nobody else is to wait for that.
        let (turn, end) = (Ending::begin(&self.links), std::mem::replace(&mut self.end, End::Stopped));
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

/// What the other side is told of our reasons.
pub(super) fn goodbye(end: &End) -> Goodbye {
    match end {
        End::Lie(lie) => Goodbye::new(Cause::Cut, lie),
        End::Failed(_) => Goodbye::new(Cause::Failed, end),
        End::Left | End::Died | End::Stopped => Goodbye::new(Cause::Leaving, ""),
    }
}

/// A number that no earlier life of the same memory is likely to have had.
pub(super) fn epoch() -> Result<Epoch, Refused> {
    let mut bytes = [0; 4];
    random::fill(&mut bytes).map_err(|error| failed(std::io::Error::from(error)))?;
    // Zero is none, and once in four thousand million links it comes.
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

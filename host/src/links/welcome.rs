//! Answering a hello: may they, can they, and then memory, threads and a tether.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tombolo_shm::link::{
    Agreement, Cause, Ends, Epoch, Extent, Goodbye, Header, Health, Hello, Instance, Message, RefusalCode,
    Refused, Role,
};
use tombolo_shm::region::sealed::{self, Sealed};
use tombolo_sys::socket::peer_groups;
use tombolo_sys::{packet, random};

use super::changes::Changes;
use super::end::End;
use super::heart::Heart;
use super::listen::{ListenOptions, is_full};
use super::lock;
use super::server::{Counts, Credentials, LinkHandle, Peer, Refusal, Server, SpeaksFor, Standing};
use super::tether::{Keeper, Tether, Watcher};

/// The links that were made, and what they are made with.
pub(super) struct Links {
    server: Arc<Server>,
    /// None once nothing more is to be made.
    watcher: Mutex<Option<Watcher>>,
    instance: Instance,
    last_number: AtomicU64,
    live: Mutex<HashMap<u64, Live>>,
    pub(super) changes: Changes,
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
    pub(super) fn new(server: Arc<Server>, watcher: Watcher, instance: Instance) -> Self {
        let (watcher, live) = (Mutex::new(Some(watcher)), Mutex::default());
        let changes = Changes::default();
        Self { server, watcher, instance, last_number: AtomicU64::new(0), live, changes }
    }

    pub(super) fn instance(&self) -> Instance {
        self.instance
    }

    pub(super) fn guests(&self) -> Vec<Guest> {
        let live = lock(&self.live);
        live.values().map(|live| Guest { counts: live.handle.counts(), ..live.guest.clone() }).collect()
    }

    /// Ends all links in order, and makes no more.
    pub(super) fn close(&self) {
        let watcher = lock(&self.watcher).take();
        // Says goodbye to all, and drops the keepers, which take their links out.
        drop(watcher);
        let live = std::mem::take(&mut *lock(&self.live));
        drop(live);
    }

    fn is_full(&self, uid: u32, max: usize) -> bool {
        let live = lock(&self.live);
        let users = live.values().filter_map(|live| Some(live.guest.peer.credentials.as_ref()?.process.uid));
        is_full(users, uid, max)
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
    if links.is_full(who.uid, options.links_max) {
        return Err(Refused::new(RefusalCode::TooMany, ""));
    }
    let agreement = options.limits.agree(hello, epoch()?, links.instance)?;
    let label = if hello.label.is_empty() { "client" } else { &hello.label };
    let peer = Peer {
        export: hello.export.clone(),
        credentials: Some(standing(options, socket, who, &hello.export)?),
        client: hello.client,
        label: format!("{label}:{}", who.pid).into(),
    };
    let theirs = sealed::map_peer(memory, agreement.layout.bytes())
        .map_err(|error| Refused::new(RefusalCode::Memory, error))?;
    let session = links.server.open(&peer).map_err(|refusal| refused(&refusal))?;
    let own = Sealed::create("tombolo-server", agreement.layout.bytes()).map_err(failed)?;
    let ends = Ends {
        role: Role::Server,
        own: Extent::whole(own.region().clone()),
        peer: Extent::whole(theirs),
        layout: agreement.layout,
        epoch: agreement.epoch,
        bell: agreement.bell,
    };
    header(&agreement).format(&ends.own).map_err(failed)?;
    let handle = links.server.serve(&ends, &peer, session, options.mode).map_err(failed)?;
    let message = Message::Welcome(agreement.welcome()).encode();
    // If the peer is gone already, dropping the handle takes everything back.
    packet::send(socket, &message, &[own.as_fd()]).map_err(failed)?;
    keep(links, peer, handle, &ends, socket).map_err(failed)
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
    peer: Peer,
    handle: LinkHandle,
    ends: &Ends,
    socket: &OwnedFd,
) -> std::io::Result<()> {
    let socket = socket.try_clone()?;
    let number = links.last_number.fetch_add(1, Ordering::Relaxed);
    tracing::info!(link = &*peer.label, export = peer.export, slots = ends.layout.slots(), "link made");
    let keeper =
        Box::new(Moored { links: Arc::clone(links), number, heart: Heart::new(ends, Instant::now()) });
    let guest = Guest::new(peer);
    let watcher = lock(&links.watcher);
    let Some(watcher) = watcher.as_ref() else { return Err(std::io::Error::other("the server ends")) };
    lock(&links.live).insert(number, Live { guest, handle, tether: None });
    // If it is over at once, the keeper has taken the link out before the tether is there, which is dropped then.
    let tether = watcher.watch(socket, keeper)?;
    if let Some(live) = lock(&links.live).get_mut(&number) {
        live.tether = Some(tether);
    }
    links.changes.tell();
    Ok(())
}

/// Watches over a link on behalf of the server. When it is dropped the link is over, whoever ended it.
struct Moored {
    links: Arc<Links>,
    number: u64,
    heart: Heart,
}

impl Keeper for Moored {
    fn tick(&mut self, now: Instant) -> Option<Goodbye> {
        let health = self.heart.tick(now);
        let mut live = lock(&self.links.live);
        let live = live.get_mut(&self.number)?;
        live.guest.health = health;
        live.guest.silence = self.heart.silence();
        live.handle.end().map(|end| goodbye(&end))
    }

    fn ended(self: Box<Self>, end: End) {
        if let Some(live) = lock(&self.links.live).get(&self.number) {
            tracing::info!(link = &*live.guest.peer.label, why = %end, "link ended");
            live.handle.cut(end);
        }
    }
}

impl Drop for Moored {
    fn drop(&mut self) {
        let Some(live) = lock(&self.links.live).remove(&self.number) else { return };
        self.links.changes.tell();
        live.handle.cut(End::Stopped);
        // Its thread finishes the request that it is at; nobody else is to wait for that.
        if let Err(error) = thread::Builder::new().name("link-end".into()).spawn(move || drop(live)) {
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

fn header(agreement: &Agreement) -> Header {
    Header {
        role: Role::Server,
        features: agreement.features,
        layout: agreement.layout,
        epoch: agreement.epoch,
        bell: agreement.bell,
        instance: agreement.server,
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

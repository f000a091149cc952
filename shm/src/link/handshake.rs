//! The handshake through a file's rendezvous page, without a socket, and the subsequent monitoring of the
//! peer.
//!
//! Server and client each publish a phase in the page, for a numbered attempt. The server opens the page. A
//! client claims it by storing its token, and leaves a hello; the server leaves a welcome or a refusal; after
//! a welcome the client prepares its half of the file, and the link is in use. The side that ends it leaves a
//! goodbye. The server then begins the next attempt.
//!
//! No threads, no clock and no randomness: the owner of a handshake calls `step` about once per heartbeat,
//! and more often while an event is expected. The peer can write all of the page, so nonsense in it ends the
//! attempt or the link at worst.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_mem::Region;

use crate::link::ends::{DoorbellKind, Ends, Extent, Role};
use crate::link::heartbeat::{BEAT, Health, HeartbeatSender, HeartbeatTimeouts, SLOW_BEAT, Watch};
use crate::link::message::{Goodbye, Hello, Message, RefusalCode, Refused};
use crate::link::negotiate::WelcomeError;
use crate::link::rendezvous_page::{ATTEMPT_MASK, Page, PageError, Phase, Stage};
use crate::link::terms::{Agreement, Features, Incarnation};
use crate::window::WINDOW_BYTES;

/// Maximum time for a client from its claim of the page to its hello, from the server's welcome until the
/// client has prepared its half of the file, and for reading a refusal or goodbye.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The end of a link over a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEnd {
    /// The peer has left a goodbye with its reason.
    Said(Goodbye),
    /// The peer's heartbeat stopped, or another process has taken its role.
    Died,
    /// The peer's data in the page are malformed.
    Malformed,
}

/// The server's side of a handshake.
#[derive(Debug)]
pub struct ServerHandshake {
    page: Page,
    own: Extent,
    peer: Extent,
    token: u32,
    incarnation: Incarnation,
    attempt: u32,
    /// This side's stage as published in the page.
    published: Stage,
    pulse: HeartbeatSender,
    watch: Watch,
    state: ServerState,
}

#[derive(Debug)]
enum ServerState {
    /// Another server with the token `owner` owns the page, and its heartbeat is watched; or no server does,
    /// and `owner` is 0.
    Foreign { owner: u32 },
    /// The page is open: no client has claimed it.
    Open,
    /// A client has claimed the page, but sent no hello.
    Claimed { until: Instant },
    /// A hello has been received and awaits its reply.
    HelloReceived,
    /// A refusal or goodbye is left for the client to read.
    Closing { until: Instant },
    /// The client was welcomed and prepares its half of the file.
    Welcomed { agreement: Agreement, until: Instant },
    /// The link is in use.
    Running,
    /// The link has ended. The handshake's owner calls `reopen` once the memory is no longer in use.
    Ended,
}

/// The result of a server's step, which its owner must act upon.
#[derive(Debug)]
pub enum ServerStep {
    /// Nothing that concerns the caller.
    Nothing,
    /// Another server owns the page, and its heartbeat continues; or this server has just lost the page.
    Busy,
    /// A client requests a link: [`welcome`](ServerHandshake::welcome) or [`refuse`](ServerHandshake::refuse)
    /// it.
    Asked(Box<Hello>),
    /// The client has prepared its half: the link is ready for use.
    Ready(Box<Ends>),
    /// The link has ended; once its memory is no longer in use, call [`reopen`](ServerHandshake::reopen).
    Over(LinkEnd),
}

impl ServerHandshake {
    /// Returns a handshake on the file, all of which is mapped. `token`: a nonzero number, probably unique
    /// among servers. `alone`: the caller knows that no other server lives, because it holds a lock on the
    /// file, and need not wait for a dead one's heartbeat.
    pub fn new(
        region: Region,
        incarnation: Incarnation,
        token: u32,
        alone: bool,
        now: Instant,
    ) -> Result<ServerHandshake, PageError> {
        let total = region.len() as u64;
        let page = Page::new(region, total)?;
        let (own, peer) = (page.half(Role::Server)?, page.half(Role::Client)?);
        let watch = Watch::of(&own, now);
        if alone {
            page.owner.store(0, Ordering::SeqCst);
        }
        let owner = page.owner.load(Ordering::SeqCst);
        let pulse = HeartbeatSender::of(&own, now);
        let attempt = page.stage(Role::Server).map_or(0, |stage| stage.attempt);
        let state = ServerState::Foreign { owner };
        let published = Stage { attempt, phase: Phase::Closed };
        Ok(ServerHandshake {
            page,
            own,
            peer,
            token: token.max(1),
            incarnation,
            attempt,
            published,
            pulse,
            watch,
            state,
        })
    }

    /// Examines the page, sends a heartbeat if due (only as its owner), and advances the state machine.
    pub fn step(&mut self, now: Instant) -> Result<ServerStep, PageError> {
        self.page.check()?;
        if let ServerState::Foreign { owner } = self.state {
            return self.take(owner, now);
        }
        if self.page.owner.load(Ordering::SeqCst) != self.token {
            // Another server owns the page, probably because this process was stopped for longer than the
            // heartbeat's timeout.
            self.watch = Watch::of(&self.own, now);
            self.state = ServerState::Foreign { owner: self.page.owner.load(Ordering::SeqCst) };
            return Ok(ServerStep::Busy);
        }
        self.pulse.beat_in(&self.own, now);
        if self.page.stage(Role::Server) != Some(self.published) {
            // The client overwrote this side's stage in violation of the protocol, and another client may be
            // waiting for it.
            self.page.set_stage(Role::Server, self.published);
        }
        let client = self.page.stage(Role::Client);
        let client_is_in = |phase| client == Some(Stage { attempt: self.attempt, phase });
        match &self.state {
            ServerState::Open if self.page.claim.load(Ordering::SeqCst) != 0 => {
                self.state = ServerState::Claimed { until: now + HELLO_TIMEOUT };
            }
            ServerState::Claimed { .. } if client_is_in(Phase::Greeted) => {
                // The message is copied once, then checked: the client may change the page.
                match self.page.message(Role::Client) {
                    Ok(Message::Hello(hello)) => {
                        self.state = ServerState::HelloReceived;
                        return Ok(ServerStep::Asked(Box::new(hello)));
                    }
                    _ => self.refuse(&Refused::new(RefusalCode::Malformed, "not a hello"), now)?,
                }
            }
            ServerState::Claimed { until }
            | ServerState::Closing { until }
            | ServerState::Welcomed { until, .. }
                if *until <= now =>
            {
                self.open()?
            }
            ServerState::Welcomed { agreement, .. } if client_is_in(Phase::Ready) => {
                let ends = agreement.ends(Role::Server, self.own.clone(), self.peer.clone());
                self.watch = Watch::of(&self.peer, now);
                slow_down(agreement, &mut self.pulse, &mut self.watch);
                self.state = ServerState::Running;
                return Ok(ServerStep::Ready(Box::new(ends)));
            }
            // The client has read the refusal or goodbye, or has given up.
            ServerState::Claimed { .. } | ServerState::Welcomed { .. } | ServerState::Closing { .. }
                if client_is_in(Phase::Ended) =>
            {
                self.open()?;
            }
            ServerState::Running => {
                let lost = self.watch.look_at(&self.peer, now) == Health::Lost;
                let end = ended(&self.page, Role::Client, self.attempt, Phase::Ready, lost);
                if let Some(end) = end {
                    self.state = ServerState::Ended;
                    return Ok(ServerStep::Over(end));
                }
            }
            _ => {}
        }
        Ok(ServerStep::Nothing)
    }

    /// Grants the requesting client a link with these parameters, whose sizes must fit a half of the file.
    pub fn welcome(&mut self, agreement: &Agreement, now: Instant) -> Result<(), PageError> {
        agreement.header(Role::Server, agreement.server).format(&self.own)?;
        self.page.set_message(Role::Server, &Message::Welcome(agreement.welcome()))?;
        self.publish(Phase::Greeted);
        self.state = ServerState::Welcomed { agreement: *agreement, until: now + HELLO_TIMEOUT };
        Ok(())
    }

    /// Refuses the requesting client. The next client is served once this one has read the refusal, or after
    /// [`HELLO_TIMEOUT`].
    pub fn refuse(&mut self, refused: &Refused, now: Instant) -> Result<(), PageError> {
        self.page.set_message(Role::Server, &Message::Refused(refused.clone()))?;
        self.publish(Phase::Refused);
        self.state = ServerState::Closing { until: now + HELLO_TIMEOUT };
        Ok(())
    }

    /// Ends the link and leaves the reason in the page.
    pub fn goodbye(&mut self, goodbye: &Goodbye) -> Result<(), PageError> {
        self.page.set_message(Role::Server, &Message::Goodbye(goodbye.clone()))?;
        self.publish(Phase::Ended);
        self.state = ServerState::Ended;
        Ok(())
    }

    /// Accepts the next client; to be called once the memory of the former link is no longer in use. If this
    /// side ended the link, the client has [`HELLO_TIMEOUT`] to read the reason first.
    pub fn reopen(&mut self, now: Instant) -> Result<(), PageError> {
        match self.state {
            ServerState::Ended if self.published.phase == Phase::Ended => {
                self.state = ServerState::Closing { until: now + HELLO_TIMEOUT };
                Ok(())
            }
            ServerState::Ended => self.open(),
            _ => Ok(()),
        }
    }

    /// Releases the page for another server. If there is a link, the caller must call
    /// [`goodbye`](Self::goodbye) first.
    pub fn leave(mut self) {
        if !matches!(self.state, ServerState::Foreign { .. }) {
            if !matches!(self.state, ServerState::Ended) {
                self.publish(Phase::Closed);
            }
            self.page.owner.replace(self.token, 0);
        }
    }

    /// Returns the server's half of the file.
    pub fn own_end(&self) -> &Extent {
        &self.own
    }

    /// Returns the watch of the client's heartbeat, while a link exists.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Takes the page if it has no owner, or if its owner's heartbeat is lost.
    fn take(&mut self, owner: u32, now: Instant) -> Result<ServerStep, PageError> {
        let current = self.page.owner.load(Ordering::SeqCst);
        if current != owner {
            self.watch = Watch::of(&self.own, now);
            self.state = ServerState::Foreign { owner: current };
            return Ok(ServerStep::Nothing);
        }
        if owner != 0 && self.watch.look_at(&self.own, now) != Health::Lost {
            return Ok(ServerStep::Busy);
        }
        if self.page.owner.replace(owner, self.token) {
            self.pulse = HeartbeatSender::of(&self.own, now);
            self.page.format(self.incarnation)?;
            self.open()?;
        }
        Ok(ServerStep::Nothing)
    }

    fn open(&mut self) -> Result<(), PageError> {
        self.attempt = self.attempt.wrapping_add(1) & ATTEMPT_MASK;
        // The order matters: a claim of the former attempt must not be taken for one of this attempt.
        self.publish(Phase::Closed);
        self.page.claim.store(0, Ordering::SeqCst);
        self.publish(Phase::Open);
        self.pulse = self.pulse.every(BEAT);
        self.state = ServerState::Open;
        Ok(())
    }

    fn publish(&mut self, phase: Phase) {
        self.published = Stage { attempt: self.attempt, phase };
        self.page.set_stage(Role::Server, self.published);
    }
}

/// The client's side of a handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    page: Page,
    own: Extent,
    peer: Extent,
    token: u32,
    hello: Hello,
    pulse: HeartbeatSender,
    watch: Watch,
    attempt: u32,
    state: ClientState,
}

#[derive(Debug, PartialEq, Eq)]
enum ClientState {
    /// The server is not open, or has another client.
    Waiting,
    /// The page is claimed, and the server is about to open it.
    Claimed,
    /// The page is claimed and the hello was sent.
    HelloSent,
    /// The link is in use.
    Running,
    /// The link has ended.
    Ended,
}

/// The result of a client's step, which its owner must act upon.
#[derive(Debug)]
pub enum ClientStep {
    /// Nothing that concerns the caller.
    Nothing,
    /// The page currently has no server, or its server has another client or is not open yet.
    Busy,
    /// The server refused the link, with its reason; the handshake has ended.
    Refused(Refused),
    /// The server's reply is invalid; the handshake has ended.
    InvalidWelcome(WelcomeError),
    /// The link is ready for use, with these parameters.
    Made(Box<(Agreement, Ends)>),
    /// The attempt or the link has ended, for this reason; the handshake cannot be used again.
    Over(LinkEnd),
}

impl ClientHandshake {
    /// Returns a handshake on the file, all of which is mapped; `total` is the length that the server uses
    /// ([`length_of`](crate::link::length_of)). `token`: a nonzero number, probably unique among clients.
    pub fn new(
        region: Region,
        total: u64,
        mut hello: Hello,
        token: u32,
        now: Instant,
    ) -> Result<ClientHandshake, PageError> {
        let page = Page::new(region, total)?;
        page.server()?;
        let (own, peer) = (page.half(Role::Client)?, page.half(Role::Server)?);
        reduce(&mut hello, own.len());
        let pulse = HeartbeatSender::of(&own, now);
        let watch = Watch::of(&peer, now);
        let state = ClientState::Waiting;
        Ok(ClientHandshake { page, own, peer, token: token.max(1), hello, pulse, watch, attempt: 0, state })
    }

    /// Examines the page, sends a heartbeat if due (only after the hello), and advances the state machine.
    pub fn step(&mut self, now: Instant) -> Result<ClientStep, PageError> {
        self.page.check()?;
        let server = self.page.stage(Role::Server);
        let lost = self.watch.look_at(&self.peer, now) == Health::Lost;
        match self.state {
            ClientState::Waiting => return self.claim(server),
            ClientState::Claimed => return self.ask(),
            ClientState::HelloSent => {
                self.pulse.beat_in(&self.own, now);
                match server {
                    Some(Stage { attempt, phase: Phase::Open }) if attempt == self.attempt && !lost => {}
                    Some(Stage { attempt, phase: Phase::Greeted }) if attempt == self.attempt => {
                        return self.welcomed(now);
                    }
                    Some(Stage { attempt, phase: Phase::Refused }) if attempt == self.attempt => {
                        self.give_up();
                        return Ok(match self.page.message(Role::Server) {
                            Ok(Message::Refused(refused)) => ClientStep::Refused(refused),
                            _ => ClientStep::Over(LinkEnd::Malformed),
                        });
                    }
                    _ => {
                        self.give_up();
                        return Ok(ClientStep::Over(LinkEnd::Died));
                    }
                }
            }
            ClientState::Running => {
                self.pulse.beat_in(&self.own, now);
                if let Some(end) = ended(&self.page, Role::Server, self.attempt, Phase::Greeted, lost) {
                    self.give_up();
                    return Ok(ClientStep::Over(end));
                }
            }
            ClientState::Ended => {}
        }
        Ok(ClientStep::Nothing)
    }

    /// Ends the link and leaves the reason in the page. No effect unless the link is in use.
    pub fn goodbye(&mut self, goodbye: &Goodbye) -> Result<(), PageError> {
        if self.state == ClientState::Running {
            self.page.set_message(Role::Client, &Message::Goodbye(goodbye.clone()))?;
            self.give_up();
        }
        Ok(())
    }

    fn claim(&mut self, server: Option<Stage>) -> Result<ClientStep, PageError> {
        let Some(Stage { phase: Phase::Open, .. }) = server else { return Ok(ClientStep::Busy) };
        if !self.page.claim.replace(0, self.token) {
            return Ok(ClientStep::Busy);
        }
        self.state = ClientState::Claimed;
        self.ask()
    }

    /// Sends the hello in the attempt that the server has opened.
    fn ask(&mut self) -> Result<ClientStep, PageError> {
        if self.page.claim.load(Ordering::SeqCst) != self.token {
            // A restarted server has revoked the claim.
            self.state = ClientState::Waiting;
            return Ok(ClientStep::Busy);
        }
        // The attempt is read after the claim was made: another client may have connected and disconnected
        // before the claim, and the claim is then for a later attempt.
        let Some(Stage { attempt, phase: Phase::Open }) = self.page.stage(Role::Server) else {
            return Ok(ClientStep::Busy);
        };
        self.attempt = attempt;
        self.page.set_message(Role::Client, &Message::Hello(self.hello.clone()))?;
        self.page.set_stage(Role::Client, Stage { attempt, phase: Phase::Greeted });
        self.state = ClientState::HelloSent;
        Ok(ClientStep::Nothing)
    }

    fn welcomed(&mut self, now: Instant) -> Result<ClientStep, PageError> {
        let Ok(Message::Welcome(welcome)) = self.page.message(Role::Server) else {
            self.give_up();
            return Ok(ClientStep::Over(LinkEnd::Malformed));
        };
        let agreement = match self.hello.check(&welcome) {
            Ok(agreement) => agreement,
            Err(error) => {
                self.give_up();
                return Ok(ClientStep::InvalidWelcome(error));
            }
        };
        agreement.header(Role::Client, self.hello.client).format(&self.own)?;
        self.pulse = HeartbeatSender::new(0, now);
        slow_down(&agreement, &mut self.pulse, &mut self.watch);
        self.pulse.beat_in(&self.own, now);
        self.page.set_stage(Role::Client, Stage { attempt: self.attempt, phase: Phase::Ready });
        self.state = ClientState::Running;
        let ends = agreement.ends(Role::Client, self.own.clone(), self.peer.clone());
        Ok(ClientStep::Made(Box::new((agreement, ends))))
    }

    fn give_up(&mut self) {
        // If another client owns the page by now, the stage is that client's and stays.
        if self.page.claim.load(Ordering::SeqCst) == self.token {
            self.page.set_stage(Role::Client, Stage { attempt: self.attempt, phase: Phase::Ended });
        }
        self.state = ClientState::Ended;
    }
}

/// Reduces the size that a client requests to a half of the file, less the mirror of the window, which is
/// behind the layout. A client does not request a mirror that would take more than a quarter of the half.
fn reduce(hello: &mut Hello, half_bytes: u64) {
    let without_mirror = half_bytes.saturating_sub(WINDOW_BYTES);
    let fits = without_mirror >= 3 * WINDOW_BYTES;
    if !fits {
        hello.offered = hello.offered.difference(Features::WINDOW_MIRROR);
    }
    let is_offered = hello.offered.contains(Features::WINDOW_MIRROR);
    hello.bytes = hello.bytes.min(if is_offered { without_mirror } else { half_bytes });
}

impl Drop for ClientHandshake {
    /// Releases the claim of an unfinished handshake, so that another client can connect.
    fn drop(&mut self) {
        match self.state {
            ClientState::HelloSent => self.give_up(),
            // The claim is not bound to an attempt yet, so it is withdrawn.
            ClientState::Claimed => {
                self.page.claim.replace(self.token, 0);
            }
            ClientState::Waiting | ClientState::Running | ClientState::Ended => {}
        }
    }
}

/// Makes heartbeats rarer on a link with a bell, so that an idle guest is rarely woken.
fn slow_down(agreement: &Agreement, pulse: &mut HeartbeatSender, watch: &mut Watch) {
    if agreement.doorbell == DoorbellKind::Bell {
        *pulse = pulse.every(SLOW_BEAT);
        *watch = watch.with_patience(HeartbeatTimeouts::SLOW);
    }
}

/// Returns the reason if the link has ended: by the peer, or because the peer is `lost`. Until then the
/// peer's phase is `regular`.
fn ended(page: &Page, side: Role, attempt: u32, regular: Phase, lost: bool) -> Option<LinkEnd> {
    match page.stage(side) {
        Some(stage) if stage == (Stage { attempt, phase: regular }) => lost.then_some(LinkEnd::Died),
        Some(stage) if stage == (Stage { attempt, phase: Phase::Ended }) => Some(match page.message(side) {
            Ok(Message::Goodbye(goodbye)) => LinkEnd::Said(goodbye),
            _ => LinkEnd::Malformed,
        }),
        Some(stage) if stage.attempt != attempt || stage.phase == Phase::Closed => Some(LinkEnd::Died),
        _ => Some(LinkEnd::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::ends::Epoch;
    use crate::link::negotiate::Limits;
    use crate::link::terms::Doorbells;

    fn client(region: &Region, token: u32, now: Instant) -> ClientHandshake {
        let hello =
            Hello { doorbells: Doorbells::SILENT, ..Hello::new(Incarnation([1; 16]), 8, 8, u64::MAX) };
        ClientHandshake::new(region.clone(), region.len() as u64, hello, token, now).expect("a handshake")
    }

    fn asked(server: &mut ServerHandshake, now: Instant) -> bool {
        matches!(server.step(now), Ok(ServerStep::Asked(_)))
    }

    /// Checks a claim that is overtaken: between a look at the page and the claim other clients may come and
    /// go.
    #[test]
    fn claim_applies_to_the_attempt_open_at_claim() {
        let (region, now) = (Region::heap(1 << 20), Instant::now());
        let mut server =
            ServerHandshake::new(region.clone(), Incarnation([2; 16]), 5, true, now).expect("a handshake");
        server.step(now).expect("inside");
        let mut late = client(&region, 1, now);
        let seen = late.page.stage(Role::Server);
        let mut other = client(&region, 2, now);
        other.step(now).expect("inside");
        server.step(now).expect("inside");
        drop(other);
        server.step(now).expect("inside");
        assert_ne!(late.page.stage(Role::Server), seen, "another attempt");

        assert!(matches!(late.claim(seen), Ok(ClientStep::Nothing)));
        server.step(now).expect("inside");
        assert!(asked(&mut server, now), "its hello is not heard");
        let limits = Limits { doorbells: Doorbells::SILENT, ..Limits::default() };
        let agreement = limits.agree(&late.hello, Epoch::FIRST, Incarnation([2; 16])).expect("an agreement");
        server.welcome(&agreement, now).expect("inside");
        assert!(matches!(late.step(now), Ok(ClientStep::Made(_))));
    }

    /// Checks a claim between the server's two stores that begin an attempt: the claim, and the open phase.
    #[test]
    fn early_claim_is_served_once_page_opens() {
        let (region, now) = (Region::heap(1 << 20), Instant::now());
        let mut server =
            ServerHandshake::new(region.clone(), Incarnation([2; 16]), 5, true, now).expect("a handshake");
        server.step(now).expect("inside");
        let mut early = client(&region, 1, now);
        let seen = early.page.stage(Role::Server);
        server.attempt += 1;
        server.publish(Phase::Closed);
        assert!(matches!(early.claim(seen), Ok(ClientStep::Busy)));
        server.publish(Phase::Open);
        assert!(matches!(early.step(now), Ok(ClientStep::Nothing)));
        server.step(now).expect("inside");
        assert!(asked(&mut server, now));
        drop(early);
        // A client that leaves before its hello withdraws its claim.
        server.open().expect("inside");
        let mut gone = client(&region, 2, now);
        server.publish(Phase::Closed);
        assert!(matches!(gone.claim(seen), Ok(ClientStep::Busy)));
        drop(gone);
        assert_eq!(server.page.claim.load(Ordering::SeqCst), 0);
    }
}

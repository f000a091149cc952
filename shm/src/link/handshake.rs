//! A side's place at the page of a file: the handshake where there is no socket, and the watch over the other
//! side afterwards.
//!
//! No threads, no clock and no randomness: the owner of a handshake calls `step` about as often as a
//! heartbeat, and more often while something is expected. All of the page can be written by the other side,
//! so whatever makes no sense ends the attempt, never more.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_mem::Region;

use crate::link::ends::{Ends, Extent, Role};
use crate::link::heartbeat::{Health, Pulse, Watch};
use crate::link::message::{Goodbye, Hello, Message, RefusalCode, Refused};
use crate::link::negotiate::WelcomeError;
use crate::link::rendezvous_page::{ATTEMPT_MASK, Page, PageError, Phase, Stage};
use crate::link::terms::{Agreement, Incarnation};

/// How long a client may take from its claim to its hello, and to make its half ready.
pub const HELLO_PATIENCE: Duration = Duration::from_secs(5);

/// How a link over a file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageEnd {
    /// The other side said goodbye.
    Said(Goodbye),
    /// Its heartbeat stopped, or another process has taken its role.
    Died,
    /// What it left in the page is malformed.
    Malformed,
}

/// The server's place at a file.
#[derive(Debug)]
pub struct ServerHandshake {
    page: Page,
    own: Extent,
    peer: Extent,
    token: u32,
    incarnation: Incarnation,
    attempt: u32,
    /// What our word in the page is to be.
    said: Stage,
    pulse: Pulse,
    watch: Watch,
    state: ServerState,
}

#[derive(Debug)]
enum ServerState {
    /// Another server has the page; whether it lives is being watched.
    Other { owner: u32 },
    /// Waiting for a client.
    Open,
    /// A client has claimed the page and said nothing yet.
    Claimed { until: Instant },
    /// A hello is being answered.
    Asked,
    /// The client was turned away, or told that the link is over, and is to read why.
    Parting { until: Instant },
    /// The client was welcomed and prepares its half.
    Welcomed { agreement: Agreement, until: Instant },
    /// The link goes on.
    Running,
    /// The link is over, and the server is to say when its memory is free again.
    Over,
}

/// What became of a step of the server's.
#[derive(Debug)]
pub enum ServerStep {
    /// Nothing to act on.
    Nothing,
    /// Another server lives at this page.
    Busy,
    /// A client wishes a link: [`welcome`](ServerHandshake::welcome) or [`refuse`](ServerHandshake::refuse)
    /// it.
    Asked(Box<Hello>),
    /// The link can be used.
    Ready(Box<Ends>),
    /// The link has ended; once nothing of its memory is in use any more,
    /// [`reopen`](ServerHandshake::reopen).
    Over(PageEnd),
}

impl ServerHandshake {
    /// A handshake at the file, all of which is mapped. `token` is any number but zero that other servers are
    /// not likely to have. A caller that knows that no other server lives, as it holds a lock on the file, is
    /// `alone` and need not wait for a dead one's heartbeat.
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
        let pulse = Pulse::of(&own, now);
        let attempt = page.stage(Role::Server).map_or(0, |stage| stage.attempt);
        let state = ServerState::Other { owner };
        let said = Stage { attempt, phase: Phase::Closed };
        Ok(ServerHandshake {
            page,
            own,
            peer,
            token: token.max(1),
            incarnation,
            attempt,
            said,
            pulse,
            watch,
            state,
        })
    }

    /// Looks at the page.
    pub fn step(&mut self, now: Instant) -> Result<ServerStep, PageError> {
        self.page.check()?;
        if let ServerState::Other { owner } = self.state {
            return self.take(owner, now);
        }
        if self.page.owner.load(Ordering::SeqCst) != self.token {
            // Another took our place: we were stopped for longer than it was patient.
            self.watch = Watch::of(&self.own, now);
            self.state = ServerState::Other { owner: self.page.owner.load(Ordering::SeqCst) };
            return Ok(ServerStep::Busy);
        }
        self.pulse.beat_in(&self.own, now);
        if self.page.stage(Role::Server) != Some(self.said) {
            // The client overwrote it against the rules, and another client may be waiting for this word.
            self.page.set_stage(Role::Server, self.said);
        }
        let client = self.page.stage(Role::Client);
        let said = |phase| client == Some(Stage { attempt: self.attempt, phase });
        match &self.state {
            ServerState::Open if self.page.claim.load(Ordering::SeqCst) != 0 => {
                self.state = ServerState::Claimed { until: now + HELLO_PATIENCE };
            }
            ServerState::Claimed { .. } if said(Phase::Said) => {
                // Copied out here, once.
                match self.page.message(Role::Client) {
                    Ok(Message::Hello(hello)) => {
                        self.state = ServerState::Asked;
                        return Ok(ServerStep::Asked(Box::new(hello)));
                    }
                    _ => self.refuse(&Refused::new(RefusalCode::Malformed, "not a hello"), now)?,
                }
            }
            ServerState::Claimed { until }
            | ServerState::Parting { until }
            | ServerState::Welcomed { until, .. }
                if *until <= now =>
            {
                self.open()?
            }
            ServerState::Welcomed { agreement, .. } if said(Phase::Ready) => {
                let ends = agreement.ends(Role::Server, self.own.clone(), self.peer.clone());
                self.watch = Watch::of(&self.peer, now);
                self.state = ServerState::Running;
                return Ok(ServerStep::Ready(Box::new(ends)));
            }
            // It has read the refusal or the goodbye, or does not want to wait any longer.
            ServerState::Claimed { .. } | ServerState::Welcomed { .. } | ServerState::Parting { .. }
                if said(Phase::Over) =>
            {
                self.open()?;
            }
            ServerState::Running => {
                let lost = self.watch.look_at(&self.peer, now) == Health::Lost;
                let end = ended(&self.page, Role::Client, self.attempt, Phase::Ready, lost);
                if let Some(end) = end {
                    self.state = ServerState::Over;
                    return Ok(ServerStep::Over(end));
                }
            }
            _ => {}
        }
        Ok(ServerStep::Nothing)
    }

    /// Gives the client that asked a link like that. Its sizes must fit a half.
    pub fn welcome(&mut self, agreement: &Agreement, now: Instant) -> Result<(), PageError> {
        agreement.header(Role::Server, agreement.server).format(&self.own)?;
        self.page.set_message(Role::Server, &Message::Welcome(agreement.welcome()))?;
        self.say(Phase::Said);
        self.state = ServerState::Welcomed { agreement: *agreement, until: now + HELLO_PATIENCE };
        Ok(())
    }

    /// Turns the client away that asked. The next is heard once it has read that, or after a while.
    pub fn refuse(&mut self, refused: &Refused, now: Instant) -> Result<(), PageError> {
        self.page.set_message(Role::Server, &Message::Refused(refused.clone()))?;
        self.say(Phase::Refused);
        self.state = ServerState::Parting { until: now + HELLO_PATIENCE };
        Ok(())
    }

    /// Ends the link and leaves word why.
    pub fn goodbye(&mut self, goodbye: &Goodbye) -> Result<(), PageError> {
        self.page.set_message(Role::Server, &Message::Goodbye(goodbye.clone()))?;
        self.say(Phase::Over);
        self.state = ServerState::Over;
        Ok(())
    }

    /// Waits for the next client, once the memory of the last one's link is not used any more. If this side
    /// ended the link, the client is left some time to read why.
    pub fn reopen(&mut self, now: Instant) -> Result<(), PageError> {
        match self.state {
            ServerState::Over if self.said.phase == Phase::Over => {
                self.state = ServerState::Parting { until: now + HELLO_PATIENCE };
                Ok(())
            }
            ServerState::Over => self.open(),
            _ => Ok(()),
        }
    }

    /// Gives the page up. After [`goodbye`](Self::goodbye), if there was a link.
    pub fn leave(mut self) {
        if !matches!(self.state, ServerState::Other { .. }) {
            if !matches!(self.state, ServerState::Over) {
                self.say(Phase::Closed);
            }
            self.page.owner.replace(self.token, 0);
        }
    }

    /// How much each side has.
    pub fn half_bytes(&self) -> u64 {
        self.own.len()
    }

    /// The client's heartbeat, while a link goes on.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Takes the page if it has no owner, or a dead one.
    fn take(&mut self, owner: u32, now: Instant) -> Result<ServerStep, PageError> {
        let current = self.page.owner.load(Ordering::SeqCst);
        if current != owner {
            self.watch = Watch::of(&self.own, now);
            self.state = ServerState::Other { owner: current };
            return Ok(ServerStep::Nothing);
        }
        if owner != 0 && self.watch.look_at(&self.own, now) != Health::Lost {
            return Ok(ServerStep::Busy);
        }
        if self.page.owner.replace(owner, self.token) {
            self.pulse = Pulse::of(&self.own, now);
            self.page.format(self.incarnation)?;
            self.open()?;
        }
        Ok(ServerStep::Nothing)
    }

    fn open(&mut self) -> Result<(), PageError> {
        self.attempt = self.attempt.wrapping_add(1) & ATTEMPT_MASK;
        // In this order: a claim of the last attempt must not be taken for one of this.
        self.say(Phase::Closed);
        self.page.claim.store(0, Ordering::SeqCst);
        self.say(Phase::Open);
        self.state = ServerState::Open;
        Ok(())
    }

    fn say(&mut self, phase: Phase) {
        self.said = Stage { attempt: self.attempt, phase };
        self.page.set_stage(Role::Server, self.said);
    }
}

/// The client's place at a file.
#[derive(Debug)]
pub struct ClientHandshake {
    page: Page,
    own: Extent,
    peer: Extent,
    token: u32,
    hello: Hello,
    pulse: Pulse,
    watch: Watch,
    attempt: u32,
    state: ClientState,
}

#[derive(Debug, PartialEq, Eq)]
enum ClientState {
    /// The server is not open, or has another client.
    Outside,
    /// The page is ours, and the server is about to open it.
    Early,
    /// The page is ours and the hello was said.
    Asking,
    /// The link goes on.
    Running,
    /// It is over.
    Over,
}

/// What became of a step of the client's.
#[derive(Debug)]
pub enum ClientStep {
    /// Nothing to act on.
    Nothing,
    /// There is no server at the moment, or it has another client.
    Busy,
    /// The server said no.
    Refused(Refused),
    /// The server's answer is not to be believed; the claim was given up.
    Unbelievable(WelcomeError),
    /// The link can be used.
    Made(Box<(Agreement, Ends)>),
    /// It has ended.
    Over(PageEnd),
}

impl ClientHandshake {
    /// A handshake at the file, all of which is mapped; `total` is how much of it the server uses
    /// ([`length_of`](crate::link::length_of)). `token` is any number but zero that other clients are not
    /// likely to have.
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
        hello.bytes = hello.bytes.min(own.len());
        let pulse = Pulse::of(&own, now);
        let watch = Watch::of(&peer, now);
        let state = ClientState::Outside;
        Ok(ClientHandshake { page, own, peer, token: token.max(1), hello, pulse, watch, attempt: 0, state })
    }

    /// Looks at the page.
    pub fn step(&mut self, now: Instant) -> Result<ClientStep, PageError> {
        self.page.check()?;
        let server = self.page.stage(Role::Server);
        let lost = self.watch.look_at(&self.peer, now) == Health::Lost;
        match self.state {
            ClientState::Outside => return self.claim(server),
            ClientState::Early => return self.ask(),
            ClientState::Asking => {
                self.pulse.beat_in(&self.own, now);
                match server {
                    Some(Stage { attempt, phase: Phase::Open }) if attempt == self.attempt && !lost => {}
                    Some(Stage { attempt, phase: Phase::Said }) if attempt == self.attempt => {
                        return self.welcomed(now);
                    }
                    Some(Stage { attempt, phase: Phase::Refused }) if attempt == self.attempt => {
                        self.give_up(Phase::Over);
                        return Ok(match self.page.message(Role::Server) {
                            Ok(Message::Refused(refused)) => ClientStep::Refused(refused),
                            _ => ClientStep::Over(PageEnd::Malformed),
                        });
                    }
                    _ => {
                        self.give_up(Phase::Over);
                        return Ok(ClientStep::Over(PageEnd::Died));
                    }
                }
            }
            ClientState::Running => {
                self.pulse.beat_in(&self.own, now);
                if let Some(end) = ended(&self.page, Role::Server, self.attempt, Phase::Said, lost) {
                    self.give_up(Phase::Over);
                    return Ok(ClientStep::Over(end));
                }
            }
            ClientState::Over => {}
        }
        Ok(ClientStep::Nothing)
    }

    /// Ends the link and leaves word why.
    pub fn goodbye(&mut self, goodbye: &Goodbye) -> Result<(), PageError> {
        if self.state == ClientState::Running {
            self.page.set_message(Role::Client, &Message::Goodbye(goodbye.clone()))?;
            self.give_up(Phase::Over);
        }
        Ok(())
    }

    fn claim(&mut self, server: Option<Stage>) -> Result<ClientStep, PageError> {
        let Some(Stage { phase: Phase::Open, .. }) = server else { return Ok(ClientStep::Busy) };
        if !self.page.claim.replace(0, self.token) {
            return Ok(ClientStep::Busy);
        }
        self.state = ClientState::Early;
        self.ask()
    }

    /// Says hello in the attempt that the server has opened.
    fn ask(&mut self) -> Result<ClientStep, PageError> {
        if self.page.claim.load(Ordering::SeqCst) != self.token {
            // A server that began anew has taken the claim back.
            self.state = ClientState::Outside;
            return Ok(ClientStep::Busy);
        }
        // Not what it said before the claim: another may have come and gone meanwhile, and then the claim is
        // for a later attempt.
        let Some(Stage { attempt, phase: Phase::Open }) = self.page.stage(Role::Server) else {
            return Ok(ClientStep::Busy);
        };
        self.attempt = attempt;
        self.page.set_message(Role::Client, &Message::Hello(self.hello.clone()))?;
        self.page.set_stage(Role::Client, Stage { attempt, phase: Phase::Said });
        self.state = ClientState::Asking;
        Ok(ClientStep::Nothing)
    }

    fn welcomed(&mut self, now: Instant) -> Result<ClientStep, PageError> {
        let Ok(Message::Welcome(welcome)) = self.page.message(Role::Server) else {
            self.give_up(Phase::Over);
            return Ok(ClientStep::Over(PageEnd::Malformed));
        };
        let agreement = match self.hello.check(&welcome) {
            Ok(agreement) => agreement,
            Err(error) => {
                self.give_up(Phase::Over);
                return Ok(ClientStep::Unbelievable(error));
            }
        };
        agreement.header(Role::Client, self.hello.client).format(&self.own)?;
        self.pulse = Pulse::new(0, now);
        self.pulse.beat_in(&self.own, now);
        self.page.set_stage(Role::Client, Stage { attempt: self.attempt, phase: Phase::Ready });
        self.state = ClientState::Running;
        let ends = agreement.ends(Role::Client, self.own.clone(), self.peer.clone());
        Ok(ClientStep::Made(Box::new((agreement, ends))))
    }

    /// Releases the claim of an unfinished attempt, if there is one.
    fn forsake(&mut self) {
        match self.state {
            ClientState::Asking => self.give_up(Phase::Over),
            // Of no attempt yet, so it is taken back.
            ClientState::Early => {
                self.page.claim.replace(self.token, 0);
            }
            ClientState::Outside | ClientState::Running | ClientState::Over => {}
        }
    }

    fn give_up(&mut self, phase: Phase) {
        // Not if another client has the page by now: it says what the client is at.
        if self.page.claim.load(Ordering::SeqCst) == self.token {
            self.page.set_stage(Role::Client, Stage { attempt: self.attempt, phase });
        }
        self.state = ClientState::Over;
    }
}

impl Drop for ClientHandshake {
    /// Dropping an unfinished handshake releases its claim.
    fn drop(&mut self) {
        self.forsake();
    }
}

/// How the other side ended the link that it was `goes_on` in; none if it did not.
fn ended(page: &Page, side: Role, attempt: u32, goes_on: Phase, lost: bool) -> Option<PageEnd> {
    match page.stage(side) {
        Some(stage) if stage == (Stage { attempt, phase: goes_on }) => lost.then_some(PageEnd::Died),
        Some(stage) if stage == (Stage { attempt, phase: Phase::Over }) => Some(match page.message(side) {
            Ok(Message::Goodbye(goodbye)) => PageEnd::Said(goodbye),
            _ => PageEnd::Malformed,
        }),
        Some(stage) if stage.attempt != attempt || stage.phase == Phase::Closed => Some(PageEnd::Died),
        _ => Some(PageEnd::Malformed),
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

    /// Between a look at the page and the claim any number of others may come and go.
    #[test]
    fn a_claim_is_for_the_attempt_that_is_open_when_it_is_made() {
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

    /// A server begins an attempt with two words: the claim, and that it is open. A client may come between
    /// them.
    #[test]
    fn a_claim_before_the_page_is_open_is_heard_once_it_is() {
        let (region, now) = (Region::heap(1 << 20), Instant::now());
        let mut server =
            ServerHandshake::new(region.clone(), Incarnation([2; 16]), 5, true, now).expect("a handshake");
        server.step(now).expect("inside");
        let mut early = client(&region, 1, now);
        let seen = early.page.stage(Role::Server);
        server.attempt += 1;
        server.say(Phase::Closed);
        assert!(matches!(early.claim(seen), Ok(ClientStep::Busy)));
        server.say(Phase::Open);
        assert!(matches!(early.step(now), Ok(ClientStep::Nothing)));
        server.step(now).expect("inside");
        assert!(asked(&mut server, now));
        drop(early);
        // One that goes away before it could ask takes its claim along.
        server.open().expect("inside");
        let mut gone = client(&region, 2, now);
        server.say(Phase::Closed);
        assert!(matches!(gone.claim(seen), Ok(ClientStep::Busy)));
        drop(gone);
        assert_eq!(server.page.claim.load(Ordering::SeqCst), 0);
    }
}

//! Links over a file that both sides can write: set-up, end, and protocol violations.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tombolo_mem::Region;
use tombolo_shm::link::{
    Cause, ClientHandshake, ClientStep, DoorbellKind, Doorbells, Ends, Epoch, Features, Goodbye,
    HEARTBEAT_OFFSET, Hello, Incarnation, Limits, LinkEnd, PageError, RefusalCode, Refused, ServerHandshake,
    ServerStep, length_of,
};

const TOTAL: usize = 1 << 20;

fn hello() -> Hello {
    Hello { doorbells: Doorbells::SILENT, ..Hello::new(Incarnation([1; 16]), 8, 8, u64::MAX) }
}

fn limits() -> Limits {
    Limits { doorbells: Doorbells::SILENT, ..Limits::default() }
}

/// The file of a link, and a simulated clock.
struct Fixture {
    region: Region,
    now: Instant,
    epoch: u32,
    doorbells: Doorbells,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { region: Region::heap(TOTAL), now: Instant::now(), epoch: 0, doorbells: Doorbells::SILENT }
    }

    /// Returns a file with a server that waits for clients.
    fn served() -> (Fixture, ServerHandshake) {
        let mut fixture = Fixture::new();
        let mut server = fixture.server(5, false);
        fixture.serve(&mut server);
        (fixture, server)
    }

    /// Returns a file with a server and its client.
    fn linked() -> (Fixture, ServerHandshake, ClientHandshake) {
        let (mut fixture, mut server) = Fixture::served();
        let mut client = fixture.client(1);
        fixture.link(&mut server, &mut client).expect("a link");
        (fixture, server, client)
    }

    fn later(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    fn server(&self, token: u32, alone: bool) -> ServerHandshake {
        ServerHandshake::new(self.region.clone(), Incarnation([2; 16]), token, alone, self.now)
            .expect("a handshake")
    }

    fn client(&self, token: u32) -> ClientHandshake {
        let total = length_of(&self.region).expect("a page");
        let hello = Hello { doorbells: self.doorbells, ..hello() };
        ClientHandshake::new(self.region.clone(), total, hello, token, self.now).expect("a handshake")
    }

    fn serve(&mut self, server: &mut ServerHandshake) -> ServerStep {
        let step = server.step(self.now).expect("inside");
        if let ServerStep::Asked(hello) = &step {
            self.epoch += 1;
            let epoch = Epoch::new(self.epoch).expect("not zero");
            let limits = Limits { doorbells: self.doorbells, ..limits() };
            match limits.agree(hello, epoch, Incarnation([2; 16])) {
                Ok(agreement) if agreement.layout.bytes() <= server.own_end().len() => {
                    server.welcome(&agreement, self.now).expect("inside");
                }
                Ok(_) => {
                    server.refuse(&Refused::new(RefusalCode::Sizes, ""), self.now).expect("inside");
                }
                Err(refused) => server.refuse(&refused, self.now).expect("inside"),
            }
        }
        step
    }

    /// Makes a link, if that succeeds within some steps.
    fn link(&mut self, server: &mut ServerHandshake, client: &mut ClientHandshake) -> Option<(Ends, Ends)> {
        let (mut of_server, mut of_client) = (None, None);
        for _ in 0..100 {
            self.later(10);
            if let ServerStep::Ready(ends) = self.serve(server) {
                of_server = Some(*ends);
            }
            if let ClientStep::Made(made) = client.step(self.now).expect("inside") {
                of_client = Some(made.1);
            }
            if let (Some(server), Some(client)) = (&of_server, &of_client) {
                return Some((client.clone(), server.clone()));
            }
        }
        None
    }
}

fn is_common(client: &Ends, server: &Ends) -> bool {
    let at = client.layout.bulk_offset();
    client.own.write_at(at, b"ask").expect("inside");
    server.own.write_at(at, b"tell").expect("inside");
    let (mut ask, mut tell) = ([0; 3], [0; 4]);
    server.peer.read_at(at, &mut ask).expect("inside");
    client.peer.read_at(at, &mut tell).expect("inside");
    ask == *b"ask" && tell == *b"tell"
}

#[test]
fn a_link_is_made_and_left_and_made_again() {
    let mut fixture = Fixture::new();
    assert_eq!(length_of(&fixture.region), Err(PageError::Blank));
    let mut server = fixture.server(5, false);
    assert!(matches!(fixture.serve(&mut server), ServerStep::Nothing));
    let mut epochs = Vec::new();
    for token in 1..4 {
        let mut client = fixture.client(token);
        let (of_client, of_server) = fixture.link(&mut server, &mut client).expect("a link");
        assert!(is_common(&of_client, &of_server));
        assert_eq!((of_client.layout, of_client.epoch), (of_server.layout, of_server.epoch));
        assert_eq!(of_client.doorbell, DoorbellKind::Silent);
        epochs.push(of_client.epoch);
        client.goodbye(&Goodbye::new(Cause::Leaving, "done")).expect("inside");
        let over = fixture.serve(&mut server);
        assert!(
            matches!(&over, ServerStep::Over(LinkEnd::Said(goodbye)) if goodbye.reason == "done"),
            "{over:?}"
        );
        // Until the link is no longer in use no other client gets its memory.
        let mut early = fixture.client(9);
        for _ in 0..20 {
            fixture.later(100);
            assert!(matches!(fixture.serve(&mut server), ServerStep::Nothing));
            assert!(matches!(early.step(fixture.now), Ok(ClientStep::Busy)));
        }
        server.reopen(fixture.now).expect("inside");
    }
    epochs.dedup();
    assert_eq!(epochs.len(), 3);
}

#[test]
fn second_client_waits_for_the_page() {
    let (mut fixture, mut server, mut first) = Fixture::linked();
    let mut second = fixture.client(2);
    for _ in 0..30 {
        fixture.later(100);
        assert!(matches!(second.step(fixture.now), Ok(ClientStep::Busy)));
        assert!(matches!(first.step(fixture.now), Ok(ClientStep::Nothing)));
        assert!(matches!(fixture.serve(&mut server), ServerStep::Nothing));
    }
}

#[test]
fn client_death_is_detected_by_heartbeat() {
    let (mut fixture, mut server, mut client) = Fixture::linked();
    let silent_since = fixture.now;
    let end = loop {
        fixture.later(100);
        match fixture.serve(&mut server) {
            ServerStep::Over(end) => break end,
            _ => assert!(fixture.now < silent_since + Duration::from_secs(10)),
        }
    };
    assert_eq!(end, LinkEnd::Died);
    assert!(fixture.now > silent_since + Duration::from_secs(4));
    server.reopen(fixture.now).expect("inside");
    // It was only suspended, and finds another client.
    let mut next = fixture.client(2);
    fixture.link(&mut server, &mut next).expect("a link");
    assert!(matches!(client.step(fixture.now), Ok(ClientStep::Over(LinkEnd::Died))));
    for _ in 0..5 {
        fixture.later(100);
        assert!(matches!(fixture.serve(&mut server), ServerStep::Nothing));
        assert!(matches!(next.step(fixture.now), Ok(ClientStep::Nothing)));
    }
}

#[test]
fn claim_of_a_dead_client_expires() {
    let (mut fixture, mut server) = Fixture::served();
    let mut dead = fixture.client(1);
    // It says hello, and takes no further step. Dropping it would release its claim, which a dead process
    // cannot.
    assert!(matches!(dead.step(fixture.now), Ok(ClientStep::Nothing)));
    let mut next = fixture.client(2);
    let begun = fixture.now;
    while fixture.link(&mut server, &mut next).is_none() {
        assert!(fixture.now < begun + Duration::from_secs(20));
    }
    drop(dead);
}

#[test]
fn dropping_an_unfinished_handshake_releases_its_claim() {
    for steps in 0..4 {
        let (mut fixture, mut server) = Fixture::served();
        let mut hasty = fixture.client(1);
        assert!(matches!(hasty.step(fixture.now), Ok(ClientStep::Nothing)));
        // Before the server noticed the claim, before and after it read the hello, and after the welcome.
        for _ in 0..steps {
            fixture.serve(&mut server);
        }
        drop(hasty);
        let mut next = fixture.client(2);
        let begun = fixture.now;
        assert!(fixture.link(&mut server, &mut next).is_some(), "after {steps} steps");
        assert!(fixture.now < begun + Duration::from_secs(1));
    }
}

#[test]
fn server_death_and_goodbye_are_distinguished() {
    for (orderly, alone) in [(true, false), (false, false), (false, true)] {
        let (mut fixture, mut server, mut client) = Fixture::linked();
        if orderly {
            server.goodbye(&Goodbye::new(Cause::Leaving, "")).expect("inside");
            server.leave();
            let over = client.step(fixture.now).expect("inside");
            assert!(matches!(over, ClientStep::Over(LinkEnd::Said(_))), "{over:?}");
        } else {
            drop(server);
        }
        let mut heir = fixture.server(6, alone);
        let begun = fixture.now;
        let mut next = fixture.client(2);
        while fixture.link(&mut heir, &mut next).is_none() {
            assert!(fixture.now < begun + Duration::from_secs(20));
            next = fixture.client(2);
        }
        let took = fixture.now - begun;
        assert_eq!(took < Duration::from_secs(2), orderly || alone, "{took:?}");
        if !orderly {
            let over = client.step(fixture.now).expect("inside");
            assert!(matches!(over, ClientStep::Over(LinkEnd::Died)), "{over:?}");
        }
    }
}

#[test]
fn two_servers_do_not_share_a_file() {
    let (mut fixture, mut server) = Fixture::served();
    let mut second = fixture.server(6, false);
    for _ in 0..100 {
        fixture.later(100);
        assert!(matches!(fixture.serve(&mut server), ServerStep::Nothing));
        assert!(matches!(fixture.serve(&mut second), ServerStep::Busy));
    }
    // The first is stopped for so long that the second takes over: it must not continue.
    for _ in 0..60 {
        fixture.later(100);
        fixture.serve(&mut second);
    }
    assert!(matches!(fixture.serve(&mut server), ServerStep::Busy));
}

#[test]
fn a_refused_client_reads_why() {
    let (mut fixture, mut server) = Fixture::served();
    let unknown = Features::from_bits_retain(1 << 40);
    let needy = Hello { required: unknown, offered: unknown, ..hello() };
    let mut client = ClientHandshake::new(fixture.region.clone(), TOTAL as u64, needy, 1, fixture.now)
        .expect("a handshake");
    let refused = (0..10).find_map(|_| {
        fixture.later(10);
        fixture.serve(&mut server);
        match client.step(fixture.now).expect("inside") {
            ClientStep::Refused(refused) => Some(refused),
            _ => None,
        }
    });
    assert_eq!(refused.expect("a refusal").code, RefusalCode::Features);
    let mut next = fixture.client(2);
    assert!(fixture.link(&mut server, &mut next).is_some());
}

#[test]
fn files_that_are_too_small_are_refused() {
    for bytes in [4096, 8192] {
        let region = Region::heap(bytes);
        assert!(ServerHandshake::new(region, Incarnation([2; 16]), 1, true, Instant::now()).is_err());
    }
    let region = Region::heap(12_288 + 100);
    assert!(ServerHandshake::new(region, Incarnation([2; 16]), 1, true, Instant::now()).is_err());
    // A page that claims more than is mapped.
    let mut fixture = Fixture::new();
    let mut server = fixture.server(5, true);
    fixture.serve(&mut server);
    let mut page = vec![0; 4096];
    fixture.region.read_at(0, &mut page).expect("inside");
    let short = Region::from(page);
    assert_eq!(length_of(&short), Ok(TOTAL as u64));
    assert!(ClientHandshake::new(short, TOTAL as u64, hello(), 1, fixture.now).is_err());
    fixture.region.write_at(16, &u64::MAX.to_le_bytes()).expect("inside");
    assert!(matches!(length_of(&fixture.region), Err(PageError::Size { .. })));
}

proptest! {
    /// Overwrites page and headers continuously. Neither side panics, and afterwards a new client gets a
    /// link.
    #[test]
    fn random_page_writes_only_end_links(
        writes in proptest::collection::vec((0usize..5000, proptest::collection::vec(any::<u8>(), 1..9), any::<bool>()), 0..60),
    ) {
        let mut fixture = Fixture::new();
        let mut server = fixture.server(5, true);
        fixture.serve(&mut server);
        let mut client = fixture.client(1);
        for (at, bytes, likely) in writes {
            fixture.later(50);
            // The page has few words: write them half of the time, with meaningful values.
            let at = if likely { 128 + at % 5 * 128 } else { at };
            let bytes = if likely { vec![bytes[0] % 8, bytes[0] / 128, 0, 0] } else { bytes };
            if at != 128 {
                fixture.region.write_at(at, &bytes).expect("inside");
            }
            if let ServerStep::Over(_) = fixture.serve(&mut server) {
                server.reopen(fixture.now).expect("inside");
            }
            let _ = client.step(fixture.now);
        }
        let total = TOTAL as u64;
        let begun = fixture.now;
        loop {
            prop_assert!(fixture.now < begun + Duration::from_secs(60));
            // A client that knows the length needs only the first bytes, which may have been overwritten.
            fixture.region.write_at(0, b"TMBLPAGE\x01\0\0\0").expect("inside");
            let mut next = ClientHandshake::new(fixture.region.clone(), total, hello(), 77, fixture.now).expect("a handshake");
            if fixture.link(&mut server, &mut next).is_some() {
                break;
            }
            for _ in 0..60 {
                fixture.later(100);
                if let ServerStep::Over(_) = fixture.serve(&mut server) {
                    server.reopen(fixture.now).expect("inside");
                }
            }
        }
    }
}

#[test]
fn both_sides_detect_a_truncated_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("memory");
    let now = Instant::now();
    let region = tombolo_shm::region::file::serve(&path, Some(TOTAL as u64)).expect("a file").region;
    let mut fixture = Fixture { region, now, epoch: 0, doorbells: Doorbells::SILENT };
    let mut server = fixture.server(1, true);
    fixture.serve(&mut server);
    let mut client = fixture.client(2);
    client.step(now).expect("the file is there");
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(0)).expect("truncated");
    // The first side to access it notices; from then on both have private memory only.
    let _ = server.step(now);
    assert!(matches!(server.step(now), Err(PageError::Gone)), "no client could ever come");
    assert!(matches!(client.step(now), Err(PageError::Gone)));
}

#[test]
fn bell_makes_heartbeats_rarer_not_death_later() {
    let mut fixture = Fixture::new();
    fixture.doorbells = Doorbells::SILENT | Doorbells::BELL;
    let mut server = fixture.server(5, false);
    fixture.serve(&mut server);
    let mut client = fixture.client(1);
    let (of_client, of_server) = fixture.link(&mut server, &mut client).expect("a link");
    assert_eq!([of_client.doorbell, of_server.doorbell], [DoorbellKind::Bell; 2]);
    let beats = |ends: &Ends| {
        let mut count = [0; 8];
        ends.peer.read_at(HEARTBEAT_OFFSET, &mut count).expect("inside");
        u64::from_le_bytes(count)
    };
    let before = [beats(&of_client), beats(&of_server)];
    for _ in 0..240 {
        fixture.later(250);
        assert!(matches!(fixture.serve(&mut server), ServerStep::Nothing));
        assert!(matches!(client.step(fixture.now), Ok(ClientStep::Nothing)));
    }
    for (before, after) in before.into_iter().zip([beats(&of_client), beats(&of_server)]) {
        assert!((59..=61).contains(&(after - before)), "{before} {after}");
    }
    let steps = (0..100).take_while(|_| {
        fixture.later(250);
        matches!(client.step(fixture.now), Ok(ClientStep::Nothing))
    });
    // The last beat was up to a second ago.
    assert!((15..=20).contains(&steps.count()));
}

//! An authority, its certificates, and two ends that perform a handshake.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tombolo_host_tls::{Authority, ClientTls, HostName, Presents, Request, ServerTls, Session, TlsError};
use tombolo_sys::Errno;

pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub struct World {
    pub dir: TempDir,
}

impl World {
    /// Returns a world with a server, localhost, and a client, alice.
    pub fn new() -> Self {
        Self::of_authority("test-ca")
    }

    /// Returns such a world with an authority of this name.
    pub fn of_authority(name: &str) -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        Authority::create(&world.at("ca"), name).unwrap();
        world.issue("server", &["localhost", "127.0.0.1"], SystemTime::now() + DAY);
        world.issue("alice", &[], SystemTime::now() + DAY);
        world
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn authority(&self) -> Authority {
        Authority::open(&self.at("ca")).unwrap()
    }

    pub fn issue(&self, name: &str, hosts: &[&str], until: SystemTime) {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        self.authority().issue(&Request { name: name.into(), hosts, until }, &self.at(name)).unwrap();
    }

    pub fn server(&self, name: &str) -> ServerTls {
        ServerTls::open(&self.at(name)).unwrap()
    }

    pub fn client(&self, name: &str, host: &str, presents: Presents) -> ClientTls {
        ClientTls::open(&self.at(name), host.parse::<HostName>().unwrap(), presents).unwrap()
    }

    /// Returns the outcomes of a handshake at the client and the server.
    pub fn outcome(
        &self,
        server: &str,
        client: &str,
        host: &str,
    ) -> (Result<(), TlsError>, Result<(), TlsError>) {
        let ends = Ends::new(&self.server(server), &self.client(client, host, Presents::Certificate));
        ends.outcome()
    }
}

pub struct Ends {
    pub client: (Session, UnixStream),
    pub server: (Session, UnixStream),
}

impl Ends {
    pub fn new(server: &ServerTls, client: &ClientTls) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        Self { client: (client.session().unwrap(), ours), server: (server.session().unwrap(), theirs) }
    }

    /// Continues until each end waits only for the other.
    pub fn outcome(&self) -> (Result<(), TlsError>, Result<(), TlsError>) {
        let mut outcomes = (Err(Errno::AGAIN), Err(Errno::AGAIN));
        for _ in 0..20 {
            step(&self.client, &mut outcomes.0);
            step(&self.server, &mut outcomes.1);
        }
        let told = |(session, stream): &(Session, UnixStream), outcome: Result<(), Errno>| {
            // A client learns only after its handshake that it is refused (RFC 8446 §4.4.2.4, appendix
            // E.1.2).
            let outcome = outcome.and_then(|()| {
                let buffer = tombolo_mem::Buffer::new(1);
                match session.receive(stream.as_fd(), &[&buffer.sink(0..1)]) {
                    Err(Errno::AGAIN) => Ok(()),
                    other => other.map(drop),
                }
            });
            outcome.map_err(|_| session.fault().expect("a reason"))
        };
        (told(&self.client, outcomes.0), told(&self.server, outcomes.1))
    }
}

fn step((session, stream): &(Session, UnixStream), outcome: &mut Result<(), Errno>) {
    if *outcome == Err(Errno::AGAIN) {
        *outcome = session.handshake(stream.as_fd());
    }
}

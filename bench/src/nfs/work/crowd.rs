//! Many concurrent clients.

use std::time::{Duration, Instant};

use tombolo_sys::epoll::{Epoll, Interest};

use super::super::Wait;
use super::super::client::{Call, Connection, Mounted, Records, getattr};
use crate::error::{Doing, Error, Result};
use crate::peer::Nfs;

/// Number of outstanding calls per client.
const OUTSTANDING: u32 = 4;
const LOOK: Duration = Duration::from_millis(100);
/// Number of bytes stored of a reply, enough to check it.
const HEAD_BYTES: usize = 64;

/// Clients with a connection each, all driven by one thread in the order of replies.
pub struct Crowd {
    clients: Vec<(Connection, Records)>,
    call: Call,
    epoll: Epoll,
}

impl Crowd {
    pub fn connect(server: &Nfs, path: &str, clients: usize) -> Result<Self> {
        tombolo_sys::process::raise_open_file_limit().doing(|| "open many files".to_owned())?;
        let call = getattr(&Mounted::new(server, Wait::Sleep)?.walk(path)?);
        let epoll = Epoll::new().doing(|| "poll sockets".to_owned())?;
        let mut connections = Vec::with_capacity(clients);
        for token in 0..clients {
            // Never blocks; this thread sleeps for all of them.
            let connection = Connection::connect(server.nfs(), Wait::Spin)?;
            epoll.add(&connection, token as u64, Interest::Readable).doing(|| "poll sockets".to_owned())?;
            connections.push((connection, Records::new(HEAD_BYTES)));
        }
        Ok(Self { clients: connections, call, epoll })
    }

    /// Runs all clients for this time; returns the number of replies of each.
    pub fn run(&mut self, time: Duration) -> Result<Vec<u64>> {
        for (connection, _) in &mut self.clients {
            for place in 0..OUTSTANDING {
                connection.send(&mut self.call, place)?;
            }
        }
        let mut answers = vec![0; self.clients.len()];
        let mut events = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.epoll.wait(&mut events, Some(LOOK)).doing(|| "poll sockets".to_owned())?;
            for event in &events {
                let at = event.token as usize;
                let (Some((connection, records)), Some(answers)) =
                    (self.clients.get_mut(at), answers.get_mut(at))
                else {
                    return Err(Error::Wrong { what: "epoll".to_owned(), answer: format!("client {at}") });
                };
                let places = connection.receive(&self.call, records)?;
                *answers += places.len() as u64;
                for place in places {
                    connection.send(&mut self.call, place)?;
                }
            }
        }
        Ok(answers)
    }
}

//! Keeper: a relay of vhost-user messages between front ends and the server of their device. To the front end
//! it is a server that never ends, to the server a front end that reconnects. Thus a server can be killed or
//! replaced under guests whose virtual machine monitor cannot reconnect, or does not support in-flight
//! tracking. Guests are disconnected if the device has no in-flight tracking and queues have started.
//!
//! Requests and data bypass the keeper: they are exchanged between guest memory and the server, with eventfds
//! for wake-ups. The keeper is independent of the device and maps no memory; it records messages with their
//! descriptors.
//!
//! - [`Keeper`]: accepts front ends at a socket, according to [`Settings`].
//! - [`ServerSocket`]: the listening socket that the successive servers inherit.
//! - [`Servers`]: the number and state of the current server. Starting servers is left to the caller.
//!
//! Reading order: `message`, `state`, `servers`, `session`, this file. Rationale: `docs/decisions/keeper.md`.

mod message;
mod servers;
mod session;
mod state;

pub use servers::{ServerSocket, Servers};

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tombolo_host_runtime::lock;

use crate::fd_store::DescriptorStore;
use message::Channel;
use session::{Session, SessionEnd};
use tombolo_host_runtime::descriptors::DescriptorBudget;

/// Maximum number of descriptors per front end: its memory, three for each of 256 queues, and those of a
/// message in transit.
const DESCRIPTORS_MAX: usize = 64 + 3 * 256 + 48;

/// Settings of a keeper.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Maximum number of front ends at a time; others wait until one leaves.
    pub guests_max: usize,
    /// `true` to refuse in-flight areas of front ends, because the servers store state in the area that a
    /// front end must not change. Such servers also store descriptors
    /// ([`Settings::has_fd_store`](crate::Settings)).
    pub refuses_front_end_areas: bool,
}

/// Acceptor of front ends at a socket, with one thread for each.
#[derive(Debug)]
pub struct Keeper {
    servers: Arc<Servers>,
    server_socket: Arc<ServerSocket>,
    settings: Settings,
    count: Mutex<usize>,
    guest_left: Condvar,
}

impl Keeper {
    /// Starts to accept front ends on `listener`, until the process ends; their servers listen on
    /// `server_socket`. Once the servers have ended ([`Servers::end`]), front ends are disconnected.
    pub fn start(
        listener: UnixListener,
        server_socket: ServerSocket,
        servers: Arc<Servers>,
        settings: Settings,
    ) -> io::Result<()> {
        listener.set_nonblocking(false)?;
        let server_socket = Arc::new(server_socket);
        let keeper =
            Keeper { servers, server_socket, settings, count: Mutex::default(), guest_left: Condvar::new() };
        let keeper = Arc::new(keeper);
        thread::Builder::new().name("keeper".into()).spawn(move || keeper.accept_all(&listener)).map(drop)
    }

    fn accept_all(self: &Arc<Keeper>, listener: &UnixListener) {
        loop {
            self.wait_for_slot();
            let taken = listener.accept().and_then(|(stream, _)| self.serve(stream));
            if let Err(error) = taken {
                tracing::warn!(%error, "cannot accept a guest");
                self.leave();
                // The usual cause is a lack of descriptors, which the end of another guest resolves.
                thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn serve(self: &Arc<Keeper>, stream: UnixStream) -> io::Result<()> {
        let budget = DescriptorBudget::of_process().share(DESCRIPTORS_MAX);
        let budget = budget.ok_or_else(|| io::Error::other("no descriptors left; raise RLIMIT_NOFILE"))?;
        let front_end = Channel::new(stream)?;
        let keeper = Arc::clone(self);
        let serve = move || {
            let (servers, server_socket) = (Arc::clone(&keeper.servers), Arc::clone(&keeper.server_socket));
            let store =
                keeper.settings.refuses_front_end_areas.then(|| DescriptorBudget::of_process().share(0));
            let store = store.flatten().map(DescriptorStore::new);
            let end = match Session::new(front_end, servers, server_socket, store) {
                Ok(mut session) => session.run(),
                Err(end) => end,
            };
            drop(budget);
            keeper.leave();
            match end {
                SessionEnd::Left => tracing::info!("guest left"),
                end => tracing::warn!(reason = error_with_sources(&end), "guest disconnected"),
            }
        };
        thread::Builder::new().name("kept-guest".into()).spawn(serve).map(drop)
    }

    fn wait_for_slot(&self) {
        let mut count = lock(&self.count);
        while *count >= self.settings.guests_max {
            count = self.guest_left.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
        *count += 1;
    }

    fn leave(&self) {
        *lock(&self.count) -= 1;
        self.guest_left.notify_all();
    }
}

fn error_with_sources(end: &dyn std::error::Error) -> String {
    std::iter::successors(Some(end), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

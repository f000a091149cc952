//! [`SystemWire`], the wire of clients outside of simulations: the system's sockets, clock, random numbers.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tombolo_core::lock;

use super::options::{Options, Target, Transport};
use super::secure_socket::SecureSocket;
use super::tunnel::Tunnel;
use super::wire::{Socket, SocketToken, Wire};
use tombolo_host_tls::ClientTls;
use tombolo_mem::Sink;
use tombolo_sys::epoll::{Epoll, Event, EventFd, Interest};
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result, random, socket, tcp, udp};

/// Local ports that mark a privileged caller for servers. Lower ones mostly belong to well-known services.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

/// Number of attempts, and delay between them, to reuse the last connection's port before another is chosen.
const PORT_ATTEMPTS: u32 = 10;
const PORT_PAUSE: Duration = Duration::from_millis(1);

/// Idle time before TCP keep-alive probes.
const SILENCE: Duration = Duration::from_secs(60);

/// Token of the wake-up event; no socket has this number.
const WAKEUP: u64 = u64::MAX;

/// Sockets of the operating system, watched by an epoll instance.
pub(super) struct SystemWire {
    epoll: Epoll,
    /// Last local port of each connection. Servers may recognise retransmitted calls by their port.
    ports: Mutex<BTreeMap<usize, u16>>,
    tls: Option<Arc<ClientTls>>,
    tunnel: Option<Arc<Tunnel>>,
}

struct SystemSocket {
    fd: OwnedFd,
    transport: Transport,
}

impl SystemWire {
    /// Creates a wire; `wakeup` interrupts [`wait`](Self::wait).
    pub(super) fn new(wakeup: Option<&EventFd>, options: &Options) -> Result<Self> {
        let epoll = Epoll::new()?;
        if let Some(wakeup) = wakeup {
            epoll.add(wakeup, WAKEUP, Interest::Readable)?;
        }
        let (tls, tunnel) = (options.tls.clone(), options.tunnel.clone());
        Ok(Self { epoll, ports: Mutex::default(), tls, tunnel })
    }

    /// Waits for events or the time-out. The wake-up is not reported as an event.
    pub(super) fn wait(
        &self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
        wakeup: &EventFd,
    ) -> Result<()> {
        self.epoll.wait(events, timeout)?;
        let before = events.len();
        events.retain(|event| event.token != WAKEUP);
        if events.len() < before {
            wakeup.clear();
        }
        Ok(())
    }

    fn open(target: &Target, from_port: Option<u16>) -> Result<OwnedFd> {
        match target.transport {
            Transport::Tcp => tcp::connect(target.address, from_port),
            Transport::Udp => udp::connect(target.address, from_port),
        }
    }

    /// Opens a socket from the previous port if possible, otherwise as configured.
    fn open_again(&self, target: &Target, index: usize, reserved_port: Option<bool>) -> Result<OwnedFd> {
        let mut ports = lock(&self.ports);
        let again = ports.get(&index).and_then(|port| Self::open_from(target, *port));
        let fd = match (again, reserved_port) {
            (Some(fd), _) => fd,
            (None, Some(false)) => Self::open(target, None)?,
            (None, wish) => self.open_reserved(target, wish == Some(true))?,
        };
        if let Ok(address) = tcp::local_address(&fd) {
            ports.insert(index, address.port());
        }
        Ok(fd)
    }

    /// Opens a socket from this port if it becomes free within milliseconds: a thread that is still sending
    /// holds the former socket for that long.
    fn open_from(target: &Target, port: u16) -> Option<OwnedFd> {
        for _ in 0..PORT_ATTEMPTS {
            match Self::open(target, Some(port)) {
                Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => std::thread::sleep(PORT_PAUSE),
                outcome => return outcome.ok(),
            }
        }
        None
    }

    /// Opens a socket from a free reserved port. If that is not permitted, or none is free, fails with
    /// `insist`, and otherwise uses any port.
    fn open_reserved(&self, target: &Target, insist: bool) -> Result<OwnedFd> {
        let count = RESERVED_PORTS.len() as u64;
        let start = self.random() % count;
        for step in 0..count {
            let port = RESERVED_PORTS.start() + ((start + step) % count) as u16;
            match Self::open(target, Some(port)) {
                Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
                Err(Errno::ACCESS | Errno::PERM) if !insist => break,
                outcome => return outcome,
            }
        }
        if insist { Err(Errno::ADDRINUSE) } else { Self::open(target, None) }
    }
}

impl Wire for SystemWire {
    fn connect(
        &self,
        target: &Target,
        token: SocketToken,
        reserved_port: Option<bool>,
    ) -> Result<Box<dyn Socket>> {
        if let Some(tunnel) = &self.tunnel {
            let socket = tunnel.start()?;
            self.epoll.add(&socket, token.number(), Interest::Changes)?;
            return Ok(Box::new(socket));
        }
        let fd = self.open_again(target, token.index(), reserved_port)?;
        if target.transport == Transport::Tcp {
            tcp::tune(&fd, SILENCE)?;
        }
        self.epoll.add(&fd, token.number(), Interest::Changes)?;
        if let Some(tls) = &self.tls {
            // TLS exists for streams only; calls in datagrams would not be encrypted, so they are refused.
            let is_stream = target.transport == Transport::Tcp;
            let session = tls.session().ok().filter(|_| is_stream).ok_or(Errno::PROTONOSUPPORT)?;
            return Ok(Box::new(SecureSocket::new(fd, session, target, self.random())));
        }
        Ok(Box::new(SystemSocket { fd, transport: target.transport }))
    }

    fn probe(&self, target: &Target) -> Result<Box<dyn Socket>> {
        if self.tunnel.is_some() || target.transport != Transport::Tcp {
            return Err(Errno::OPNOTSUPP);
        }
        let fd = Self::open(target, None)?;
        Ok(Box::new(SystemSocket { fd, transport: target.transport }))
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        // Without a random source, the first transaction id is predictable, which is harmless.
        let _ = random::fill(&mut bytes);
        u64::from_ne_bytes(bytes)
    }
}

/// Resets the connection, so that its port is free at once. Errors are ignored, because the socket may not be
/// connected.
pub(super) fn shut_down(fd: &OwnedFd) {
    let _ = tcp::abort_on_close(fd);
    let _ = socket::shut_down(fd);
}

impl Socket for SystemSocket {
    fn finish_connecting(&self) -> Result<()> {
        match self.transport {
            Transport::Tcp => tcp::connected(&self.fd),
            Transport::Udp => Ok(()),
        }
    }

    fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        tcp::send(self.fd.as_fd(), gather)
    }

    fn receive(&self, into: &[&Sink]) -> Result<usize> {
        tcp::receive(self.fd.as_fd(), into)
    }

    fn is_emptied_by_less(&self) -> bool {
        // True for streams only: a datagram may be followed by another, however short it is.
        self.transport == Transport::Tcp
    }

    fn set_low_water(&self, bytes: usize) {
        // On failure, events are merely more frequent.
        let _ = tcp::set_low_watermark(&self.fd, bytes);
    }

    fn shut_down(&self) {
        shut_down(&self.fd);
    }
}

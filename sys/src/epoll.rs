//! Waiting for many descriptors at once, and an eventfd that ends it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self as sys, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io;

use crate::errno::{Errno, Result, retry};

/// A set of descriptors that are watched.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Told again and again while there is something to read.
    Readable,
    /// Told once each time that more can be read, or that more can be written after a write found no room.
    Changes,
    /// Told each time that something out of the ordinary has happened: of `/proc/self/mountinfo`, that a
    /// mount was made or taken away (proc(5)). The event says neither readable nor writable.
    Alarms,
}

/// Something that happened to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it was added with.
    pub token: u64,
    /// There is something to read, be it the end.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The peer sends no more: what it has sent is there to be read, and then the end. It may come with the
    /// last bytes.
    pub finished: bool,
    /// Neither direction works any more.
    pub ended: bool,
}

impl Epoll {
    /// An empty set.
    pub fn new() -> Result<Self> {
        sys::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Watches a descriptor; its events bear the token. It leaves the set when it is removed, or when the
    /// last duplicate of it is closed. EPERM for what cannot be waited for.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        let flags = match interest {
            Interest::Readable => EventFlags::IN,
            Interest::Changes => EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET,
            Interest::Alarms => EventFlags::PRI,
        };
        sys::add(&self.0, fd, EventData::new_u64(token), flags)
    }

    /// Watches a descriptor no longer.
    pub fn remove(&self, fd: impl AsFd) -> Result<()> {
        sys::delete(&self.0, fd)
    }

    /// Waits until something happens, or for so long; zero only looks, and none waits for ever. What happened
    /// replaces what is in `events`: up to 64 of them, and the others next time. An interruption by a signal
    /// counts as nothing having happened.
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> Result<()> {
        events.clear();
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
        match sys::wait(&self.0, &mut room, timeout.as_ref()) {
            Ok((happened, _)) => events.extend(happened.iter().map(event)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Events of one wait.
const EVENTS_MAX: usize = 64;

fn event(event: &sys::Event) -> Event {
    let (flags, data) = (event.flags, event.data);
    Event {
        token: data.u64(),
        readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP),
        writable: flags.contains(EventFlags::OUT),
        finished: flags.contains(EventFlags::RDHUP),
        ended: flags.intersects(EventFlags::ERR | EventFlags::HUP),
    }
}

/// Wakes a thread that waits: an eventfd.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// One that is not readable.
    pub fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Makes it readable until it is cleared.
    pub fn notify(&self) {
        // EAGAIN: the counter is full, so it is readable. Nothing else can fail.
        let _ = retry(|| io::write(&self.0, &1u64.to_ne_bytes()));
    }

    /// Clears it.
    pub fn clear(&self) {
        let mut count = [MaybeUninit::uninit(); 8];
        // EAGAIN: it was clear.
        let _ = retry(|| io::read(&self.0, &mut count).map(|_| ()));
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happened(epoll: &Epoll) -> Vec<Event> {
        let mut events = Vec::new();
        epoll.wait(&mut events, Some(Duration::ZERO)).expect("wait");
        events
    }

    #[test]
    fn an_eventfd_is_readable_until_it_is_cleared() {
        let (epoll, wakeup) = (Epoll::new().expect("epoll"), EventFd::new().expect("wakeup"));
        epoll.add(&wakeup, 7, Interest::Readable).expect("add");
        assert_eq!(happened(&epoll), []);
        wakeup.notify();
        wakeup.notify();
        for _ in 0..2 {
            assert_eq!(
                happened(&epoll),
                [Event { token: 7, readable: true, writable: false, finished: false, ended: false }]
            );
        }
        wakeup.clear();
        assert_eq!(happened(&epoll), []);
        wakeup.clear();
        wakeup.notify();
        epoll.remove(&wakeup).expect("remove");
        assert_eq!(happened(&epoll), []);
    }

    #[test]
    fn changes_are_told_once() {
        let epoll = Epoll::new().expect("epoll");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        epoll.add(&ours, 1, Interest::Changes).expect("add");
        assert!(happened(&epoll).iter().all(|event| event.writable && !event.readable));
        std::io::Write::write_all(&mut &theirs, b"x").expect("write");
        assert!(happened(&epoll).iter().any(|event| event.readable));
        assert_eq!(happened(&epoll), [], "it was told");
        drop(theirs);
        assert!(happened(&epoll).iter().any(|event| event.ended));
    }
}

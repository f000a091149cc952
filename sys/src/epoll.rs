//! Polling of many descriptors, and an eventfd that interrupts it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self as sys, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io;

use crate::errno::{Errno, Result, retry};

/// A set of descriptors that one thread waits for.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// The events that a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Level-triggered: reported repeatedly while there is something to read.
    Readable,
    /// Edge-triggered: reported once whenever more can be read, or more can be written after a full send
    /// buffer.
    Changes,
    /// Exceptional conditions: for `/proc/self/mountinfo`, a mount or unmount (proc(5)). The event reports
    /// neither readable nor writable.
    Alarms,
}

/// The events of a descriptor, as of one wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Token with which the descriptor was added.
    pub token: u64,
    /// `true` if data or the end of the stream can be read.
    pub readable: bool,
    /// `true` if there is space in the send buffer.
    pub writable: bool,
    /// `true` if the peer has finished sending: its data can be read, followed by the end. May be reported
    /// with the last bytes.
    pub finished: bool,
    /// `true` if both directions are closed, or the descriptor has failed.
    pub ended: bool,
}

impl Epoll {
    /// Returns an empty set.
    pub fn new() -> Result<Self> {
        sys::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Watches a descriptor, whose events have the token. The descriptor stays in the set until it is
    /// removed, or its last duplicate is closed. EPERM for a descriptor that cannot be polled.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        let flags = match interest {
            Interest::Readable => EventFlags::IN,
            Interest::Changes => EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET,
            Interest::Alarms => EventFlags::PRI,
        };
        sys::add(&self.0, fd, EventData::new_u64(token), flags)
    }

    /// Stops watching a descriptor.
    pub fn remove(&self, fd: impl AsFd) -> Result<()> {
        sys::delete(&self.0, fd)
    }

    /// Waits for events, at most for `timeout`; zero only polls, and `None` waits forever. Replaces the
    /// contents of `events` by up to 64 events; more are returned by the next call. An interruption by a
    /// signal returns none.
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> Result<()> {
        events.clear();
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut space = [MaybeUninit::uninit(); EVENTS_MAX];
        match sys::wait(&self.0, &mut space, timeout.as_ref()) {
            Ok((happened, _)) => events.extend(happened.iter().map(event)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Maximum number of events per wait.
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

/// An eventfd, to wake a waiting thread.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Returns an eventfd that is not readable.
    pub fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Makes the descriptor readable until [`clear`](Self::clear).
    pub fn notify(&self) {
        // EAGAIN means that the counter is full, so the descriptor is readable. No other failure is possible.
        let _ = retry(|| io::write(&self.0, &1u64.to_ne_bytes()));
    }

    /// Makes the descriptor not readable.
    pub fn clear(&self) {
        let mut count = [MaybeUninit::uninit(); 8];
        // EAGAIN means that the counter was zero.
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
    fn edge_triggered_changes_are_reported_once() {
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

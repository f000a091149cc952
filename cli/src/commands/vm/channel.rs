//! Channel to the server of a VM's disk or memory, for changes of the layers that it serves
//! ([`layers`](crate::assembly::layers)).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use tombolo_sys::{Errno, packet};

use crate::assembly::layers::{BYTES_MAX, DONE};
use crate::failure::{Failure, Outcome, Reason};

pub struct Channel {
    /// Disk or memory.
    pub what: &'static str,
    socket: OwnedFd,
    /// Number of requests whose replies have not been received.
    unanswered: usize,
}

impl Channel {
    pub fn new(what: &'static str, socket: OwnedFd) -> Self {
        Self { what, socket, unanswered: 0 }
    }

    /// Sends a request without waiting for the reply, which [`answer`](Self::answer), the next
    /// [`ask`](Self::ask) or [`is_quiet`](Self::is_quiet) receives.
    pub fn send(&mut self, request: &str, file: Option<&File>) -> Outcome {
        let files: Vec<_> = file.map(AsFd::as_fd).into_iter().collect();
        packet::send(&self.socket, request.as_bytes(), &files)
            .map_err(|errno| self.failed(&io::Error::from(errno)))?;
        self.unanswered += 1;
        Ok(())
    }

    /// Waits for the replies to earlier requests, sends this one, and waits for its reply; all up to a
    /// deadline, if there is one.
    pub fn ask(&mut self, request: &str, file: Option<&File>, until: Option<Instant>) -> Outcome {
        while self.unanswered > 0 {
            self.receive(until)?;
        }
        self.send(request, file)?;
        self.answer(until)
    }

    /// Receives the oldest outstanding reply.
    pub fn answer(&mut self, until: Option<Instant>) -> Outcome {
        match &*self.receive(until)? {
            DONE => Ok(()),
            reason => Err(self.failed(reason)),
        }
    }

    /// Receives the replies that have arrived. Returns `true` if none is outstanding.
    pub fn is_quiet(&mut self) -> bool {
        while self.unanswered > 0 && self.receive(Some(Instant::now())).is_ok() {}
        self.unanswered == 0
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<String, Failure> {
        let mut buffer = [0; BYTES_MAX];
        let packet = loop {
            let is_there = match until {
                Some(until) => {
                    packet::wait_for(&self.socket, until.saturating_duration_since(Instant::now()))
                }
                None => packet::wait(&self.socket).map(|()| true),
            };
            if !is_there.map_err(|errno| self.failed(&io::Error::from(errno)))? {
                return Err(self.failed("its server does not respond"));
            }
            match packet::receive(&self.socket, &mut buffer) {
                Ok(packet) => break packet,
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(self.failed(&io::Error::from(errno))),
            }
        };
        if packet.len == 0 {
            return Err(self.failed("its server has ended"));
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        Ok(String::from_utf8_lossy(buffer.get(..packet.len).unwrap_or_default()).into_owned())
    }

    fn failed(&self, reason: impl Into<Reason>) -> Failure {
        Failure::cannot(format_args!("change the layers of the VM's {}", self.what), reason)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn late_reply_is_not_taken_for_next_one() {
        let (ours, theirs) = packet::pair().expect("a pair");
        let mut channel = Channel::new("disk", ours);
        let soon = || Some(Instant::now() + Duration::from_millis(10));
        let late = channel.ask("one", None, soon()).expect_err("no reply");
        assert!(late.to_string().contains("the VM's disk: its server does not respond"), "{late}");
        channel.ask("two", None, soon()).expect_err("no reply");
        let mut buffer = [0; BYTES_MAX];
        assert_eq!(packet::receive(&theirs, &mut buffer).expect("the request").len, 3);
        assert_eq!(packet::receive(&theirs, &mut buffer).err(), Some(Errno::AGAIN), "no second request");
        packet::send(&theirs, DONE.as_bytes(), &[]).expect("send");
        channel.send("three", None).expect("send");
        packet::send(&theirs, b"its reason", &[]).expect("send");
        let refused = channel.ask("four", None, soon()).expect_err("no reply yet");
        assert!(refused.to_string().contains("does not respond"), "{refused}");
        packet::send(&theirs, b"full", &[]).expect("send");
        let refused = channel.answer(soon()).expect_err("refused");
        assert!(refused.to_string().contains("full"), "{refused}");
        channel.send("five", None).expect("send");
        assert!(!channel.is_quiet(), "no reply yet");
        packet::send(&theirs, b"full", &[]).expect("send");
        assert!(channel.is_quiet());
        drop(theirs);
        let ended = channel.ask("six", None, soon()).expect_err("ended");
        assert!(ended.to_string().contains("the VM's disk: "), "{ended}");
    }
}

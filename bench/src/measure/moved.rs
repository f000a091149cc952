//! Memory from which a process's system calls send or write, and into which they receive or read, observed by
//! the arguments of the calls.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tombolo_sys::trace::{DataCall, Moment, follow};

use crate::error::{Doing, Error, Result};

/// Numbers of bytes that a process has sent or written to files and sockets, and received or read from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Sent from the watched memory.
    pub sent_inside: u64,
    /// Sent from other memory.
    pub sent_outside: u64,
    /// Received into the watched memory.
    pub received_inside: u64,
    /// Received into other memory.
    pub received_outside: u64,
}

/// Tracer of a process until it ends. Tracing slows it down by an order of magnitude: never time and trace in
/// the same batch.
pub struct MovedMeter {
    state: Arc<Mutex<State>>,
    _follower: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    inside: Vec<Range<u64>>,
    moved: Moved,
}

impl MovedMeter {
    /// Starts tracing; fails if this is not permitted.
    pub fn follow(process: u32) -> Result<Self> {
        let memory = File::open(format!("/proc/{process}/mem"));
        let memory = memory.doing(|| format!("look into the memory of process {process}"))?;
        let state = Arc::new(Mutex::new(State::default()));
        let (ready, begun) = channel();
        let seen = Arc::clone(&state);
        let follower = std::thread::spawn(move || {
            let mut calls = HashMap::new();
            let tell = || {
                let _waited_for = ready.send(Ok(()));
            };
            let followed = follow(process, tell, |moment| see(&memory, &mut calls, moment, &seen));
            if let Err(error) = followed {
                // The receiver is gone once tracing has begun.
                let _begun = ready.send(Err(error));
            }
        });
        match begun.recv() {
            Ok(Ok(())) => Ok(Self { state, _follower: follower }),
            Ok(Err(error)) => Err(Error::Absent(format!("process {process} cannot be followed: {error}"))),
            Err(_) => Err(Error::Absent(format!("process {process} ended"))),
        }
    }

    /// Resets the counters, and watches these disjoint ranges.
    pub fn look_at(&self, memory: &[Range<u64>]) {
        *self.lock() = State { inside: memory.to_vec(), moved: Moved::default() };
    }

    /// Returns the numbers of bytes since the last [`MovedMeter::look_at`].
    pub fn moved(&self) -> Moved {
        self.lock().moved
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A system call that has not returned.
struct Begun {
    sends: bool,
    /// Addresses and lengths, in order.
    parts: Vec<(u64, u64)>,
}

fn see(memory: &File, calls: &mut HashMap<u32, Begun>, moment: Moment, state: &Mutex<State>) {
    match moment {
        Moment::Call { thread, data: Some(data), arguments } => {
            let sends = matches!(data, DataCall::SendBytes | DataCall::SendVector | DataCall::SendMessage);
            calls.insert(thread, Begun { sends, parts: parts(memory, data, arguments) });
        }
        Moment::Call { thread, data: None, .. } => drop(calls.remove(&thread)),
        Moment::Return { thread, value } => {
            let (Some(begun), Ok(bytes)) = (calls.remove(&thread), u64::try_from(value)) else { return };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let (inside, outside) = split(&begun.parts, bytes, &state.inside);
            let moved = &mut state.moved;
            if begun.sends {
                moved.sent_inside += inside;
                moved.sent_outside += outside;
            } else {
                moved.received_inside += inside;
                moved.received_outside += outside;
            }
        }
    }
}

/// Returns the memory ranges of a call.
fn parts(memory: &File, data: DataCall, arguments: [u64; 6]) -> Vec<(u64, u64)> {
    let [_, first, second, ..] = arguments;
    match data {
        DataCall::SendBytes | DataCall::ReceiveBytes => vec![(first, second)],
        DataCall::SendVector | DataCall::ReceiveVector => vector(memory, first, second),
        DataCall::SendMessage | DataCall::ReceiveMessage => {
            // Layout of struct msghdr of recv(2): name and length, then the vector and its number of parts.
            let (at, count) = (word(memory, first + 16), word(memory, first + 24));
            vector(memory, at, count)
        }
    }
}

/// Reads struct iovec of readv(2): addresses and lengths.
fn vector(memory: &File, at: u64, count: u64) -> Vec<(u64, u64)> {
    /// UIO_MAXIOV.
    const COUNT_MAX: u64 = 1024;
    let part = |number| (word(memory, at + 16 * number), word(memory, at + 16 * number + 8));
    (0..count.min(COUNT_MAX)).map(part).collect()
}

fn word(memory: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    // Unreadable memory would have failed the call too.
    let _unread = memory.read_exact_at(&mut bytes, at);
    u64::from_ne_bytes(bytes)
}

/// Counts which of the first `bytes` of the parts lie inside the ranges, and which outside.
fn split(parts: &[(u64, u64)], mut bytes: u64, inside: &[Range<u64>]) -> (u64, u64) {
    let mut sums = (0, 0);
    for &(at, len) in parts {
        let len = len.min(bytes);
        bytes -= len;
        let end = at.saturating_add(len);
        let within: u64 =
            inside.iter().map(|part| end.min(part.end).saturating_sub(at.max(part.start))).sum();
        sums.0 += within;
        sums.1 += len - within;
    }
    sums
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn parts_count_only_transferred_bytes() {
        let parts = [(100, 50), (1000, 100)];
        assert_eq!(split(&parts, 150, from_ref(&(1000..2000))), (100, 50));
        assert_eq!(split(&parts, 60, from_ref(&(1000..2000))), (10, 50));
        assert_eq!(split(&parts, 150, from_ref(&(120..1010))), (40, 110));
        assert_eq!(split(&parts, 150, &[120..1010, 1020..1030]), (50, 100));
    }

    #[test]
    fn bytes_that_a_process_forwards_are_counted() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let meter = MovedMeter::follow(child.id()).unwrap();
        meter.look_at(from_ref(&(0..u64::MAX)));
        child.stdin.as_mut().unwrap().write_all(&[7; 1000]).unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 1000]).unwrap();
        // The bytes may arrive before the return of the sending call was reported.
        let begun = std::time::Instant::now();
        while meter.moved().sent_inside < 1000 && begun.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let moved = meter.moved();
        drop(child.stdin.take());
        child.wait().unwrap();
        // The program's start-up reads are included.
        assert_eq!(moved.sent_inside, 1000, "{moved:?}");
        assert!(moved.received_inside >= 1000, "{moved:?}");
    }
}

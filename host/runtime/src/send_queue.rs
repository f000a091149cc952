//! Sending of messages over a stream from any thread, without blocking for the peer.
//!
//! One thread sends at a time, including messages that others add meanwhile, several in one system call. The
//! remainder that the socket does not accept stays queued; the thread that polls the stream continues once it
//! is writable ([`SendQueue::writable`]).

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tombolo_mem::Source;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result};

use crate::lock;

/// Maximum number of messages in one system call.
const BATCH_MAX: usize = 128;

/// A message: a head, and data.
pub struct Message<T> {
    /// Head of the message.
    pub head: Vec<u8>,
    /// Data sent after the head, without a copy.
    pub data: Source,
    /// Resources retained until the message is sent, such as the memory of the data.
    pub held: T,
}

/// A queue of messages; see the [module](self).
pub struct SendQueue<T>(Mutex<QueueState<T>>);

struct QueueState<T> {
    messages: VecDeque<Message<T>>,
    /// Number of bytes of the first message already sent.
    sent_bytes: usize,
    /// `true` while a thread sends.
    is_sending: bool,
    /// `true` if the stream became writable while a thread was sending: that thread then does not stop at
    /// EAGAIN, which may be older.
    again: bool,
    /// Time at which the stream last accepted a message or became full; `None` unless it is full.
    blocked: Option<Instant>,
}

impl<T> Default for SendQueue<T> {
    fn default() -> Self {
        let (messages, blocked) = (VecDeque::new(), None);
        Self(Mutex::new(QueueState { messages, sent_bytes: 0, is_sending: false, again: false, blocked }))
    }
}

/// A stream as seen by the queue.
pub trait Outgoing {
    /// Sends a prefix of the gathered bytes. Returns EAGAIN if the stream is full.
    fn send(&self, gather: &mut Gather<'_>) -> Result<usize>;
    /// Reports the number of messages completely sent.
    fn sent(&self, count: usize);
}

impl<T> SendQueue<T> {
    /// Appends a message, to be sent by the next [`flush`](Self::flush).
    pub fn push(&self, message: Message<T>) {
        lock(&self.0).messages.push_back(message);
    }

    /// Sends as much as the stream accepts, unless another thread is sending or the stream is full. Returns
    /// an error other than EAGAIN, after which the caller must close the stream.
    pub fn flush(&self, stream: &impl Outgoing) -> Result<()> {
        self.send_all(stream, false)
    }

    /// Continues to send, as [`flush`](Self::flush) does; to be called when the stream is writable again.
    pub fn writable(&self, stream: &impl Outgoing) -> Result<()> {
        self.send_all(stream, true)
    }

    /// Returns the time for which the stream has been full; zero if it is not.
    pub fn blocked_for(&self) -> Duration {
        lock(&self.0).blocked.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Drops unsent messages, except those that another thread is sending, and returns their number.
    pub fn clear(&self) -> usize {
        let dropped = std::mem::take(&mut lock(&self.0).messages);
        dropped.len()
    }

    fn send_all(&self, stream: &impl Outgoing, is_writable: bool) -> Result<()> {
        let mut state = lock(&self.0);
        if state.is_sending {
            state.again |= is_writable;
            return Ok(());
        }
        if state.blocked.is_some() && !is_writable {
            return Ok(());
        }
        state.is_sending = true;
        let mut outcome = Ok(());
        while !state.messages.is_empty() && outcome.is_ok() {
            let count = state.messages.len().min(BATCH_MAX);
            let mut batch: VecDeque<Message<T>> = state.messages.drain(..count).collect();
            let skip = std::mem::take(&mut state.sent_bytes);
            state.again = false;
            drop(state);
            let (sending, finished, rest_bytes) = send(stream, &mut batch, skip);
            if finished > 0 {
                stream.sent(finished);
            }
            state = lock(&self.0);
            state.sent_bytes = rest_bytes;
            while let Some(message) = batch.pop_back() {
                state.messages.push_front(message);
            }
            match sending {
                Ok(()) => state.blocked = None,
                Err(Errno::AGAIN) if state.again => {}
                Err(Errno::AGAIN) => {
                    if finished > 0 || state.blocked.is_none() {
                        state.blocked = Some(Instant::now());
                    }
                    break;
                }
                Err(error) => outcome = Err(error),
            }
        }
        state.is_sending = false;
        outcome
    }
}

/// Sends the batch once and removes what is sent. Returns the number of messages completely sent, and the
/// number of bytes sent of the next one.
fn send<T>(
    stream: &impl Outgoing,
    batch: &mut VecDeque<Message<T>>,
    skip: usize,
) -> (Result<()>, usize, usize) {
    let mut gather = Gather::new(skip);
    for message in &*batch {
        gather.bytes(&message.head);
        gather.source(&message.data);
    }
    let outcome = stream.send(&mut gather);
    drop(gather);
    let (mut sent, mut finished) = (skip + outcome.unwrap_or(0), 0);
    while let Some(len) =
        batch.front().map(|first| first.head.len() + first.data.len()).filter(|len| *len <= sent)
    {
        sent -= len;
        finished += 1;
        batch.pop_front();
    }
    (outcome.map(drop), finished, sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that accepts a fixed number of bytes at a time, and none every other time.
    struct Narrow(Mutex<(Vec<u8>, bool, usize)>, usize);

    impl Outgoing for Narrow {
        fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
            let mut state = lock(&self.0);
            state.1 = !state.1;
            if !state.1 {
                return Err(Errno::AGAIN);
            }
            let taken = gather.to_vec(self.1);
            state.0.extend(&taken);
            Ok(taken.len())
        }

        fn sent(&self, count: usize) {
            lock(&self.0).2 += count;
        }
    }

    #[test]
    fn send_queue_preserves_order_over_narrow_stream() {
        for width in [1, 3, 7, 1000] {
            let (queue, stream) = (SendQueue::default(), Narrow(Mutex::default(), width));
            let mut wanted = Vec::new();
            for number in 0..300_u16 {
                let (head, data) =
                    (number.to_be_bytes().to_vec(), vec![number as u8; usize::from(number % 5)]);
                wanted.extend(head.iter().chain(&data));
                queue.push(Message { head, data: data.into(), held: () });
                queue.flush(&stream).unwrap();
            }
            while lock(&stream.0).2 < 300 {
                queue.writable(&stream).unwrap();
            }
            assert!(lock(&stream.0).0 == wanted, "{width}");
        }
    }
}

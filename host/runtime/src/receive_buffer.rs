//! A buffer between a stream and those who want so many bytes of it: small messages come many in one system
//! call, long data go straight to where they are wanted.

use tombolo_mem::{Buffer, Sink};
use tombolo_sys::Errno;

/// So much is received at a time, but for long data.
pub const RECEIVE_BYTES: usize = 64 << 10;

/// What was received and not used yet.
pub struct ReceiveBuffer {
    buffer: Buffer,
    start: usize,
    end: usize,
}

impl Default for ReceiveBuffer {
    fn default() -> Self {
        Self { buffer: Buffer::new(RECEIVE_BYTES), start: 0, end: 0 }
    }
}

impl ReceiveBuffer {
    /// How many bytes are there.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Receives until at least `len` bytes are there, which are at most [`RECEIVE_BYTES`]. `receive` puts
    /// some bytes into the sink; it is told whether a part of what is wanted is there.
    pub fn fill<E: From<Errno>>(
        &mut self,
        len: usize,
        mut receive: impl FnMut(&Sink, bool) -> Result<usize, E>,
    ) -> Result<(), E> {
        if len > RECEIVE_BYTES {
            return Err(Errno::TOOBIG.into());
        }
        while self.len() < len {
            if self.start + len > RECEIVE_BYTES {
                let kept = self.start..self.end;
                self.buffer.as_mut_slice().ok_or(Errno::BUSY)?.copy_within(kept, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            let room = self.buffer.sink(self.end..RECEIVE_BYTES);
            self.end += receive(&room, !self.is_empty())?;
        }
        Ok(())
    }

    /// What is there.
    pub fn bytes(&mut self) -> &[u8] {
        let (start, end) = (self.start, self.end);
        self.buffer.as_slice().and_then(|bytes| bytes.get(start..end)).unwrap_or_default()
    }

    /// Uses so many bytes up; they can be looked at until the next call.
    pub fn take(&mut self, len: usize) -> &[u8] {
        let start = self.start;
        let end = (start + len).min(self.end);
        self.start = end;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        self.buffer.as_slice().and_then(|bytes| bytes.get(start..end)).unwrap_or_default()
    }

    /// Fills the sink, first with what is there.
    pub fn take_into<E>(
        &mut self,
        mut into: Sink,
        mut receive: impl FnMut(&Sink) -> Result<usize, E>,
    ) -> Result<(), E> {
        let here = self.len().min(into.len());
        self.buffer.source(self.start..self.start + here).copy_to_sink(&into);
        self.take(here);
        into.advance(here);
        while !into.is_empty() {
            let received = receive(&into)?;
            into.advance(received);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_however_they_arrive_and_are_taken() {
        let stream: Vec<u8> = (0..300_000_u32).map(|number| (number / 7) as u8).collect();
        let (mut at, mut buffer, mut taken) = (0, ReceiveBuffer::default(), Vec::<u8>::new());
        let mut receive = |into: &Sink| {
            let some = stream[at..].len().min(1 + at % 5000);
            at += into.write_at(0, &stream[at..at + some]);
            Ok::<_, Errno>(into.len().min(some))
        };
        while taken.len() < 250_000 {
            let len = 1 + taken.len() % 9000;
            buffer.fill(len, |into, _| receive(into)).unwrap();
            taken.extend(buffer.take(len));
            let mut direct = Buffer::new(10_000);
            buffer.take_into(direct.sink(0..10_000), &mut receive).unwrap();
            taken.extend(direct.as_slice().unwrap());
        }
        assert!(taken == stream[..taken.len()]);
        assert_eq!(buffer.fill(RECEIVE_BYTES + 1, |into, _| receive(into)), Err(Errno::TOOBIG));
    }
}

//! Input buffer of a stream: many small messages in one system call, long data straight to their destination.

use tombolo_mem::{Buffer, Sink};
use tombolo_sys::Errno;

/// Size of the buffer, in bytes. More are received at a time only by [`ReceiveBuffer::take_into`].
pub const RECEIVE_BYTES: usize = 64 << 10;

/// Bytes of a stream that were received and not consumed yet: `start..end` of the buffer.
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
    /// Returns the number of bytes available.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns `true` if no bytes are available.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Receives until at least `len` bytes are available; more than [`RECEIVE_BYTES`] is an error.
    /// `receive` writes bytes into the sink and returns their number, and must fail at the end of the
    /// stream; its second argument is `true` if some bytes are already available.
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

    /// Returns the available bytes.
    pub fn bytes(&mut self) -> &[u8] {
        let (start, end) = (self.start, self.end);
        self.buffer.as_slice().and_then(|bytes| bytes.get(start..end)).unwrap_or_default()
    }

    /// Consumes `len` bytes, or all if fewer are available, and returns them.
    pub fn take(&mut self, len: usize) -> &[u8] {
        let start = self.start;
        let end = (start + len).min(self.end);
        self.start = end;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        self.buffer.as_slice().and_then(|bytes| bytes.get(start..end)).unwrap_or_default()
    }

    /// Fills the sink, first with available bytes, then with bytes that `receive` writes straight into it.
    /// `receive` must fail at the end of the stream.
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
    fn receive_buffer_preserves_order() {
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

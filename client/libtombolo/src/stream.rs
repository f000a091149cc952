//! Files as streams, with many requests in flight.

use std::io::{self, Read};

use thiserror::Error;
use tombolo_core::fs::{ReadDone, Write};
use tombolo_core::{Error as FsError, Result as FsResult};

use crate::buffer_pool::{BufferPool, Lease};
use crate::file::File;
use crate::run::Window;

/// Request size and concurrency of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Bytes per request.
    pub piece_bytes: usize,
    /// Number of requests in flight.
    pub in_flight: usize,
}

impl Default for StreamOptions {
    /// Returns 16 requests of 256 KiB: the first data arrive soon, and a fast link is saturated.
    fn default() -> Self {
        Self { piece_bytes: 256 << 10, in_flight: 16 }
    }
}

/// The failed side of a stream.
#[derive(Debug, Error)]
pub enum StreamError {
    /// The file failed.
    #[error(transparent)]
    File(FsError),
    /// The other stream failed.
    #[error(transparent)]
    Stream(io::Error),
}

impl File {
    /// Copies the file from `offset` to its end to `out`, in order. Returns the number of bytes.
    ///
    /// Writing to `out` may block the thread; the reads in flight continue.
    pub async fn read_to(
        &self,
        mut offset: u64,
        out: &mut impl io::Write,
        options: StreamOptions,
    ) -> Result<u64, StreamError> {
        let size = match self.attr_found() {
            Some(attr) => attr.size,
            None => self.attr_now().resolve().await.map_err(StreamError::File)?.size,
        };
        let buffers = BufferPool::new(options.piece_bytes * options.in_flight);
        let mut reads = Window::new();
        let (start, mut ahead) = (offset, offset);
        loop {
            // One request at a time beyond the reported size: the file may have grown, and some files report
            // size 0 (proc(5)).
            while reads.len() < options.in_flight.max(1) && (ahead < size || reads.len() == 0) {
                reads.add(self.piece(&buffers, ahead, options.piece_bytes));
                ahead += options.piece_bytes as u64;
            }
            let Some((mut lease, done)) = reads.next().await else { break };
            let done = done.map_err(StreamError::File)?;
            // The file system should not refer to the memory after the read, but this is not guaranteed.
            match lease.as_slice().and_then(|bytes| bytes.get(..done.count)) {
                Some(bytes) => out.write_all(bytes),
                None => out.write_all(&lease.source(0..done.count).to_vec(done.count)),
            }
            .map_err(StreamError::Stream)?;
            offset += done.count as u64;
            if done.eof || done.count < options.piece_bytes {
                break;
            }
        }
        out.flush().map_err(StreamError::Stream)?;
        Ok(offset - start)
    }

    /// Writes all data of `from` to the file from `offset` on, and flushes it. Returns the number of bytes.
    ///
    /// Reading `from` may block the thread; the writes in flight continue.
    pub async fn write_from(
        &self,
        mut offset: u64,
        from: &mut impl Read,
        options: StreamOptions,
    ) -> Result<u64, StreamError> {
        let buffers = BufferPool::new(options.piece_bytes * options.in_flight);
        let start = offset;
        let mut writes = Window::new();
        let mut piece = vec![0; options.piece_bytes.max(1)];
        loop {
            let count = read_full(from, &mut piece).map_err(StreamError::Stream)?;
            if count == 0 {
                break;
            }
            let lease = buffers.lend(count);
            lease.sink(0..count).write_at(0, piece.get(..count).unwrap_or_default());
            let how = Write { offset, retainable: true, ..Write::default() };
            let answer = self.write_at(&how, lease.source(0..count));
            writes.add(async move {
                let written = answer.resolve().await;
                drop(lease);
                written.map(|written| (written.count, count, offset))
            });
            offset += count as u64;
            if writes.len() >= options.in_flight.max(1) {
                self.settle(&mut writes).await?;
            }
        }
        while writes.len() > 0 {
            self.settle(&mut writes).await?;
        }
        self.flush().resolve().await.map_err(StreamError::File)?;
        Ok(offset - start)
    }

    fn piece(
        &self,
        buffers: &BufferPool,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = (Lease, FsResult<ReadDone>)> + Send + use<> {
        let lease = buffers.lend(len);
        let answer = self.read_at(offset, lease.sink(0..len));
        async move {
            let done = answer.resolve().await;
            (lease, done)
        }
    }

    async fn settle(&self, writes: &mut Window<FsResult<(usize, usize, u64)>>) -> Result<(), StreamError> {
        match writes.next().await {
            Some(Ok((written, count, _))) if written == count => Ok(()),
            // After a short write, a write of the remainder would return the reason. The remainder is no
            // longer in memory, so the usual reason is returned.
            Some(Ok(_)) => Err(StreamError::File(FsError::NoSpace)),
            Some(Err(error)) => Err(StreamError::File(error)),
            None => Ok(()),
        }
    }
}

fn read_full(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

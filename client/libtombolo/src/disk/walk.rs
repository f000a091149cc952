//! A walk over a disk with many pieces in flight and results in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::block::{BlockDevice, Range};

use super::fault::Fault;
use super::pieces::{Piece, Pieces};
use super::transfer::ZERO_UNIT_BYTES;
use crate::run::Window;

/// Maximum number of pieces in flight: with 1 MiB each, enough for a distant disk.
const PIECES_MAX: usize = 16;

/// Returns the unit of a walk over these disks in bytes: the largest of their block sizes and of
/// [`ZERO_UNIT_BYTES`].
pub(super) fn unit_bytes<'a>(disks: impl IntoIterator<Item = &'a dyn BlockDevice>) -> u64 {
    let blocks = disks.into_iter().map(|disk| u64::from(disk.geometry().block_bytes));
    blocks.fold(ZERO_UNIT_BYTES as u64, u64::max)
}

/// A walk whose operations on pieces have results of type `T`.
pub(super) struct Walk<T> {
    pieces: Pieces,
    /// Operations in flight, whose results are returned in order: those on pieces, and flushes of a copy.
    pub window: Window<Result<T, Fault>>,
    is_at_end: bool,
    /// `true` if the walk ended early.
    pub is_stopped: bool,
}

impl<T> Walk<T> {
    /// Creates a walk over the disk from `start`, a multiple of `unit_bytes`, to its end.
    pub fn over(disk: Arc<dyn BlockDevice>, start: u64, unit_bytes: u64) -> Self {
        let size_bytes = disk.geometry().size_bytes;
        let rest = Range { offset: start, len_bytes: size_bytes.saturating_sub(start) };
        let pieces = Pieces::of(disk, rest, unit_bytes);
        Self { pieces, window: Window::new(), is_at_end: false, is_stopped: false }
    }

    /// Returns the next result; `None` at the end. Before it waits, it starts further pieces by calling
    /// `begin`, unless `stop` is set.
    pub async fn next<F>(&mut self, stop: &AtomicBool, begin: impl Fn(Piece) -> F) -> Result<Option<T>, Fault>
    where
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        while !self.is_at_end && self.window.len() < PIECES_MAX {
            self.is_stopped |= stop.load(Ordering::Relaxed);
            if self.is_stopped {
                break;
            }
            match self.pieces.next().await {
                Some(piece) => self.window.add(begin(piece?)),
                None => self.is_at_end = true,
            }
        }
        self.window.next().await.transpose()
    }
}

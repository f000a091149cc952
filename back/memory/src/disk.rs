//! A disk in memory: the reference model for other [`BlockDevice`]s.

use std::sync::{Arc, Mutex};

use tombolo_core::block::{
    Allocation, BlockDevice, Extents, Geometry, Profile, Range, Resize, SizeWatch, Sizes, Zeroing,
};
use tombolo_core::{Answer, Ctx, Error, Result, Stability, lock};
use tombolo_mem::{Sink, Source};

use crate::content::{Content, Space};

/// A sparse disk in memory. All operations complete immediately, in one order for all clients. The data is
/// lost when the disk is dropped.
pub struct MemoryDisk {
    state: Mutex<State>,
    read_only: bool,
    sizes: Sizes,
}

struct State {
    content: Content,
    space: Space,
}

impl MemoryDisk {
    /// Creates a disk of zeroes. The size is rounded up to whole blocks.
    pub fn new(size_bytes: u64) -> Result<Self> {
        Self::with(size_bytes, false)
    }

    /// Creates a read-only disk of zeroes.
    pub fn read_only(size_bytes: u64) -> Result<Self> {
        Self::with(size_bytes, true)
    }

    fn with(size_bytes: u64, read_only: bool) -> Result<Self> {
        let mut state = State { content: Content::default(), space: Space::new(u64::MAX) };
        state.content.set_size(Geometry::of_file(size_bytes).size_bytes, &mut state.space)?;
        Ok(Self { state: Mutex::new(state), read_only, sizes: Sizes::default() })
    }

    /// Runs `work` if the range lies inside the disk; otherwise fails with [`Error::InvalidArgument`].
    fn inside<T>(&self, range: Range, work: impl FnOnce(&mut State) -> Result<T>) -> Answer<T> {
        let mut state = lock(&self.state);
        let is_inside = range.checked_end().is_some_and(|end| end <= state.content.size());
        Answer::Done(if is_inside { work(&mut state) } else { Err(Error::InvalidArgument) })
    }

    fn change<T>(&self, range: Range, work: impl FnOnce(&mut State) -> Result<T>) -> Answer<T> {
        if self.read_only { Answer::err(Error::ReadOnly) } else { self.inside(range, work) }
    }
}

impl State {
    fn extents(&self, range: Range, count_max: usize) -> Extents {
        let mut extents = Extents::new(range, count_max);
        loop {
            let at = extents.next_offset();
            // No data up to the end: a hole.
            let data = self.content.seek_data(at).unwrap_or(u64::MAX);
            if !extents.push(data - at, Allocation::Hole) {
                return extents;
            }
            let hole = self.content.seek_hole(data).unwrap_or(u64::MAX);
            if !extents.push(hole - data, Allocation::Data) {
                return extents;
            }
        }
    }
}

impl BlockDevice for MemoryDisk {
    fn profile(&self) -> Profile {
        let changes = !self.read_only;
        Profile { read_only: self.read_only, has_cache: false, discards: changes, zeroes_fast: changes }
    }

    fn geometry(&self) -> Geometry {
        Geometry::of_file(lock(&self.state).content.size())
    }

    fn read(&self, _cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.inside(Range { offset, len_bytes: into.len() as u64 }, |state| {
            state.content.read(offset, &into);
            Ok(())
        })
    }

    fn write(&self, _cx: &Ctx, offset: u64, _stability: Stability, from: Source) -> Answer<()> {
        self.change(Range { offset, len_bytes: from.len() as u64 }, |state| {
            state.content.write(offset, &from, &mut state.space).map(|_| ())
        })
    }

    fn flush(&self, _cx: &Ctx) -> Answer<()> {
        Answer::ok(())
    }

    fn discard(&self, _cx: &Ctx, range: Range) -> Answer<()> {
        self.change(range, |state| state.content.punch(range.offset, range.len_bytes, &mut state.space))
    }

    fn write_zeroes(&self, _cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.change(range, |state| {
            if how.may_unmap {
                return state.content.punch(range.offset, range.len_bytes, &mut state.space);
            }
            // Holes stay holes: they read as zeroes, and this disk reserves space for no write.
            state.content.clear(range.offset, range.end());
            Ok(())
        })
    }

    fn extents(&self, _cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.inside(range, |state| Ok(state.extents(range, count_max)))
    }

    fn resize(&self) -> Option<&dyn Resize> {
        (!self.read_only).then_some(self)
    }
}

impl Resize for MemoryDisk {
    fn set_size(&self, _cx: &Ctx, size_bytes: u64) -> Answer<()> {
        if size_bytes == 0 || size_bytes != Geometry::of_file(size_bytes).size_bytes {
            return Answer::err(Error::InvalidArgument);
        }
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let done = state.content.set_size(size_bytes, &mut state.space);
        drop(guard);
        if done.is_ok() {
            self.sizes.changed(size_bytes);
        }
        Answer::Done(done)
    }

    fn follow_size(&self, _cx: &Ctx) -> Answer<u64> {
        Answer::ok(self.geometry().size_bytes)
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        self.sizes.watch(watch);
    }
}

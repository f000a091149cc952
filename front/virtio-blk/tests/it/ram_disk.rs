//! Memory disk that records its calls and can hold back answers.

use std::sync::{Arc, Mutex, MutexGuard};

use tombolo_core::block::{
    Allocation, BlockDevice, Extents, Geometry, Profile, Range, Resize, SizeWatch, Sizes, Zeroing,
};
use tombolo_core::{Answer, Ctx, Error, Stability};
use tombolo_host_runtime::promise::Promise;
use tombolo_mem::{Sink, Source};

pub const DISK_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Read(u64, usize),
    Write(u64, usize, Stability),
    Flush,
    Discard(Range),
    Zeroes(Range, Zeroing),
}

pub struct RamDisk {
    pub block_bytes: u32,
    pub profile: Profile,
    /// `true` to answer only at the end of a batch.
    pub gathers: bool,
    state: Arc<Mutex<State>>,
    sizes: Sizes,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    asked: Vec<Asked>,
    fails: bool,
    /// `true` if answers wait for [`RamDisk::release`].
    holds: bool,
    released: Arc<Promise<()>>,
}

impl RamDisk {
    pub fn new(change: impl FnOnce(&mut RamDisk)) -> Arc<RamDisk> {
        let bytes = vec![0xaa; DISK_BYTES];
        let mut disk = RamDisk {
            block_bytes: 512,
            profile: Profile { read_only: false, has_cache: true, discards: true, zeroes_fast: true },
            gathers: false,
            state: Arc::new(Mutex::new(State { bytes, ..State::default() })),
            sizes: Sizes::default(),
        };
        change(&mut disk);
        Arc::new(disk)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// Returns the calls since the last time.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state().asked)
    }

    pub fn fail(&self, fails: bool) {
        self.state().fails = fails;
    }

    pub fn hold(&self) {
        self.state().holds = true;
    }

    pub fn release(&self) {
        let released = {
            let mut state = self.state();
            state.holds = false;
            std::mem::take(&mut state.released)
        };
        released.keep(());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn answer(&self, asked: Asked, work: impl FnOnce(&mut Vec<u8>) + Send + 'static) -> Answer<()> {
        let mut state = self.state();
        state.asked.push(asked);
        if state.fails {
            return Answer::err(Error::NoSpace);
        }
        if !state.holds && !self.gathers {
            work(&mut state.bytes);
            return Answer::ok(());
        }
        let (released, shared) = (state.released.clone(), self.state.clone());
        Answer::later(async move {
            released.kept().await;
            work(&mut shared.lock().unwrap().bytes);
            Ok(())
        })
    }
}

fn span(range: Range) -> std::ops::Range<usize> {
    range.offset as usize..range.end() as usize
}

impl BlockDevice for RamDisk {
    fn profile(&self) -> Profile {
        self.profile
    }

    fn geometry(&self) -> Geometry {
        let size_bytes = self.state().bytes.len() as u64;
        Geometry { block_bytes: self.block_bytes, ..Geometry::of_file(size_bytes) }
    }

    fn read(&self, _cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        let range = Range { offset, len_bytes: into.len() as u64 };
        self.answer(Asked::Read(offset, into.len()), move |bytes| {
            into.write_at(0, &bytes[span(range)]);
        })
    }

    fn write(&self, _cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        let range = Range { offset, len_bytes: from.len() as u64 };
        self.answer(Asked::Write(offset, from.len(), stability), move |bytes| {
            from.read_at(0, &mut bytes[span(range)]);
        })
    }

    fn flush(&self, _cx: &Ctx) -> Answer<()> {
        self.answer(Asked::Flush, |_| ())
    }

    fn discard(&self, _cx: &Ctx, range: Range) -> Answer<()> {
        self.answer(Asked::Discard(range), move |bytes| bytes[span(range)].fill(0xdd))
    }

    fn write_zeroes(&self, _cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.answer(Asked::Zeroes(range, how), move |bytes| bytes[span(range)].fill(0))
    }

    fn extents(&self, _cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        let mut extents = Extents::new(range, count_max);
        extents.push(range.len_bytes, Allocation::Data);
        Answer::ok(extents)
    }

    fn submit(&self) {
        if self.gathers {
            self.release();
        }
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }
}

impl Resize for RamDisk {
    fn set_size(&self, _cx: &Ctx, size_bytes: u64) -> Answer<()> {
        self.state().bytes.resize(size_bytes as usize, 0);
        self.sizes.changed(size_bytes);
        Answer::ok(())
    }

    fn follow_size(&self, _cx: &Ctx) -> Answer<u64> {
        Answer::ok(self.geometry().size_bytes)
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        self.sizes.watch(watch);
    }
}

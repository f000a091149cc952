//! Private memory of a request, used again by the next.

use std::cell::Cell;

use tombolo_core::Interrupt;
use tombolo_core::fs::{DirBudget, DirPage};
use tombolo_host_runtime::free_list::FreeList;
use tombolo_mem::{Buffer, Sink, Source};
use tombolo_wire_vrpc::FRAME_BYTES;

/// So many are retained for one link: what is answered at once needs one, and few links have many requests
/// that pend.
const SPARE_MAX: usize = 16;

/// Private memory of one request.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Where the variable part of the answer is put together.
    pub(crate) frame: Box<[u8; FRAME_BYTES]>,
    /// Of the request before.
    interrupt: Interrupt,
    page: Option<DirPage>,
    /// Where a READ puts what goes into the answer itself, and where a WRITE finds what came in the request.
    data: Option<Buffer>,
}

impl Parts {
    fn new() -> Box<Self> {
        Box::new(Self {
            frame: Box::new([0; FRAME_BYTES]),
            interrupt: Interrupt::default(),
            page: None,
            data: None,
        })
    }

    /// A fresh interrupt, which is [given back](PartsPool::keep) apart from the parts: a hold less to be
    /// counted.
    pub(crate) fn take_interrupt(&mut self) -> Interrupt {
        let mut interrupt = std::mem::take(&mut self.interrupt);
        interrupt.renew();
        interrupt
    }

    /// An empty page with this budget.
    pub(crate) fn page(&mut self, budget: DirBudget) -> DirPage {
        match self.page.take() {
            Some(mut page) => {
                page.reset(budget);
                page
            }
            None => DirPage::new(budget),
        }
    }

    /// Keeps a page for the next listing.
    pub(crate) fn keep(&mut self, page: DirPage) {
        self.page = Some(page);
    }

    /// ReplyBuffer for `len_bytes` of data, at most a frame's.
    pub(crate) fn room(&mut self, len_bytes: usize) -> Sink {
        self.data.get_or_insert_with(|| Buffer::new(FRAME_BYTES)).sink(0..len_bytes)
    }

    /// A copy of `bytes`, at most a frame's, for a file system to read.
    pub(crate) fn given(&mut self, bytes: &[u8]) -> Source {
        let data = self.data.get_or_insert_with(|| Buffer::new(FRAME_BYTES));
        let len = data.sink(0..bytes.len()).write_at(0, bytes);
        data.source(0..len)
    }

    /// The first `len_bytes` of what was put there, at the start of the frame.
    pub(crate) fn data_to_frame(&mut self, len_bytes: usize) -> &[u8] {
        let frame = self.frame.get_mut(..len_bytes).unwrap_or_default();
        if let Some(data) = &self.data {
            data.source(0..len_bytes).read_at(0, frame);
        }
        frame
    }
}

/// Those of one link that no request has.
#[derive(Debug)]
pub(crate) struct PartsPool(FreeList<Box<Parts>>);

impl Default for PartsPool {
    fn default() -> Self {
        Self(FreeList::new(SPARE_MAX))
    }
}

thread_local! {
    /// What the last request on this link's thread had: most are answered before the next is begun, which
    /// needs no lock then.
    static LAST: Cell<Option<Box<Parts>>> = const { Cell::new(None) };
}

impl PartsPool {
    pub(crate) fn take(&self) -> Box<Parts> {
        LAST.take().or_else(|| self.0.take()).unwrap_or_else(Parts::new)
    }

    /// Of a request that was answered at once, on the link's thread.
    pub(crate) fn give_back(&self, parts: Box<Parts>) {
        LAST.set(Some(parts));
    }

    /// Of one that was answered later, on whatever thread.
    pub(crate) fn give_back_later(&self, parts: Box<Parts>) {
        self.0.give_back(parts);
    }

    /// The interrupt of the request whose parts were given back last, if they were.
    pub(crate) fn keep(interrupt: Interrupt) {
        if let Some(mut parts) = LAST.take() {
            parts.interrupt = interrupt;
            LAST.set(Some(parts));
        }
    }
}

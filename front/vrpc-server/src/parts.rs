//! Private memory of a request, reused by later requests.

use std::cell::Cell;

use tombolo_core::Interrupt;
use tombolo_core::fs::{DirBudget, DirPage};
use tombolo_host_runtime::free_list::FreeList;
use tombolo_mem::{Buffer, Sink, Source};
use tombolo_wire_vrpc::FRAME_BYTES;

/// Maximum number of spare [`Parts`] per link: requests answered at once need one, and few links have many
/// pending requests.
const SPARE_MAX: usize = 16;

/// Private memory of one request.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Buffer for the variable part of the reply.
    pub(crate) frame: Box<[u8; FRAME_BYTES]>,
    /// Interrupt of the previous request, reused for the next.
    interrupt: Interrupt,
    page: Option<DirPage>,
    /// Buffer for inline data of a READ's reply and of a WRITE.
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

    /// Takes the interrupt, renewed for the next request. [`PartsPool::return_interrupt`] returns it
    /// separately from the parts: the request's context owns it meanwhile, which saves a reference count.
    pub(crate) fn take_interrupt(&mut self) -> Interrupt {
        let mut interrupt = std::mem::take(&mut self.interrupt);
        interrupt.renew();
        interrupt
    }

    /// Returns an empty page with this budget.
    pub(crate) fn page(&mut self, budget: DirBudget) -> DirPage {
        match self.page.take() {
            Some(mut page) => {
                page.reset(budget);
                page
            }
            None => DirPage::new(budget),
        }
    }

    /// Stores a page for the next listing.
    pub(crate) fn store_page(&mut self, page: DirPage) {
        self.page = Some(page);
    }

    /// Returns memory for `len_bytes` of inline data, at most a frame.
    pub(crate) fn inline_sink(&mut self, len_bytes: usize) -> Sink {
        self.data.get_or_insert_with(|| Buffer::new(FRAME_BYTES)).sink(0..len_bytes)
    }

    /// Copies inline data, at most a frame, for a file system to read.
    pub(crate) fn copy_inline(&mut self, bytes: &[u8]) -> Source {
        let data = self.data.get_or_insert_with(|| Buffer::new(FRAME_BYTES));
        let len = data.sink(0..bytes.len()).write_at(0, bytes);
        data.source(0..len)
    }

    /// Copies the first `len_bytes` of inline data to the frame and returns them.
    pub(crate) fn data_to_frame(&mut self, len_bytes: usize) -> &[u8] {
        let frame = self.frame.get_mut(..len_bytes).unwrap_or_default();
        if let Some(data) = &self.data {
            data.source(0..len_bytes).read_at(0, frame);
        }
        frame
    }
}

/// Spare [`Parts`] of one link.
#[derive(Debug)]
pub(crate) struct PartsPool(FreeList<Box<Parts>>);

impl Default for PartsPool {
    fn default() -> Self {
        Self(FreeList::new(SPARE_MAX))
    }
}

thread_local! {
    /// The [`Parts`] of the last request that was answered at once on this link's thread, for the next one:
    /// most requests are, so that they need no lock.
    static LAST: Cell<Option<Box<Parts>>> = const { Cell::new(None) };
}

impl PartsPool {
    pub(crate) fn take(&self) -> Box<Parts> {
        LAST.take().or_else(|| self.0.take()).unwrap_or_else(Parts::new)
    }

    /// Returns the parts of a request that was answered at once, on the link's thread.
    pub(crate) fn give_back(&self, parts: Box<Parts>) {
        LAST.set(Some(parts));
    }

    /// Returns the parts of a request that was answered later, on any thread.
    pub(crate) fn give_back_later(&self, parts: Box<Parts>) {
        self.0.give_back(parts);
    }

    /// Stores the interrupt for the next request in the parts that were returned last on this thread, if any.
    pub(crate) fn return_interrupt(interrupt: Interrupt) {
        if let Some(mut parts) = LAST.take() {
            parts.interrupt = interrupt;
            LAST.set(Some(parts));
        }
    }
}

//! The private memory of one request, used again for the next.

use tombolo_core::Interrupt;
use tombolo_core::fs::{DirBudget, DirPage};
use tombolo_wire_fuse::reply::HEADER_BYTES;

/// The most that a listing, an attribute's value or a link's target may fill of a reply.
pub(super) const BODY_BYTES: usize = 64 << 10;

/// Private memory of one request. A transport keeps as many as it serves requests at a time.
#[derive(Debug)]
pub struct Slot {
    /// The request's private bytes.
    pub(super) head: Vec<u8>,
    /// Where its reply is put together.
    pub(super) reply: Box<[u8]>,
    pub(super) page: Option<DirPage>,
    pub(super) interrupt: Interrupt,
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            head: Vec::with_capacity(512),
            reply: vec![0; HEADER_BYTES + BODY_BYTES].into_boxed_slice(),
            page: None,
            interrupt: Interrupt::new(),
        }
    }
}

impl Slot {
    /// Gives `fill` exactly `len_bytes` to copy a request's private bytes to. Nothing of the request before
    /// is there.
    pub fn fill(&mut self, len_bytes: usize, fill: impl FnOnce(&mut [u8])) {
        self.head.clear();
        self.head.resize(len_bytes, 0);
        fill(&mut self.head);
    }

    /// The request's private bytes.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The page that a listing goes through, with this budget.
    pub(super) fn page(page: &mut Option<DirPage>, budget: DirBudget) -> DirPage {
        match page.take() {
            Some(mut page) => {
                page.reset(budget);
                page
            }
            None => DirPage::new(budget),
        }
    }
}

//! Private memory of a request, reused by later requests.

use tombolo_core::Interrupt;
use tombolo_core::fs::{DirBudget, DirPage};
use tombolo_wire_fuse::reply::HEADER_BYTES;

/// Maximum size of a listing, an attribute's value or a link's target in a reply.
pub(super) const BODY_BYTES: usize = 64 << 10;

/// Private memory of one request. Concurrent requests have a slot each.
#[derive(Debug)]
pub struct Slot {
    /// The request's private bytes: header and arguments, without a WRITE's data. They were copied out of the
    /// transport's memory once, so that no peer can change them after they are checked.
    pub(super) head: Vec<u8>,
    /// Buffer in which the reply is encoded.
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
    /// Passes a zeroed buffer of exactly `len_bytes` to `fill`, which stores a request's private bytes.
    pub fn fill(&mut self, len_bytes: usize, fill: impl FnOnce(&mut [u8])) {
        self.head.clear();
        self.head.resize(len_bytes, 0);
        fill(&mut self.head);
    }

    /// Returns the request's private bytes.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the cached listing page, reset to this budget, or a new one.
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

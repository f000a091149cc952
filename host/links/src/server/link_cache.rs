//! The hold on a link that the last request was answered with, for the next one.
//!
//! Every responder holds its link, and most are done with before the next request: what one drops the next
//! one takes, in the place of two locked instructions (docs/decisions/shm-rings.md). To do without, delete
//! this file and what the compiler misses then.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::link::Link;

thread_local! {
    /// The link whose thread this is, by its address.
    static OWN: Cell<usize> = const { Cell::new(0) };
    static CACHED: RefCell<Option<Arc<Link>>> = const { RefCell::new(None) };
}

/// From now on this thread is that link's, and keeps a hold on it for as long as it runs.
pub(super) fn belongs_to(link: &Arc<Link>) {
    OWN.set(Arc::as_ptr(link).addr());
}

/// The thread ends: it gives its hold up, and keeps no other.
pub(super) fn leave() {
    OWN.set(0);
    let held = CACHED.with_borrow_mut(Option::take);
    drop(held);
}

/// A hold on the link that this thread belongs to.
#[inline]
pub(super) fn take(link: &Arc<Link>) -> Arc<Link> {
    CACHED.with_borrow_mut(Option::take).unwrap_or_else(|| link.clone())
}

/// Keeps a hold that is not needed any more, if it is on the link that this thread belongs to; drops it
/// otherwise.
#[inline]
pub(super) fn keep(link: Arc<Link>) {
    if OWN.get() != Arc::as_ptr(&link).addr() {
        return;
    }
    // What was there is dropped after the borrow.
    let before = CACHED.with_borrow_mut(|cached| cached.replace(link));
    drop(before);
}

//! Per-thread cache of the reference to a link, for reuse by the next request.
//!
//! Every responder owns a reference to its link, and most are dropped before the next request: caching it
//! saves two locked instructions (docs/decisions/shm-rings.md). It is an optimization alone.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::link::Link;

thread_local! {
    /// Address of the link whose thread this is; 0 on all other threads.
    static OWN: Cell<usize> = const { Cell::new(0) };
    static CACHED: RefCell<Option<Arc<Link>>> = const { RefCell::new(None) };
}

/// Assigns this thread to the link: [`keep`] caches references to it from now on.
pub(super) fn belongs_to(link: &Arc<Link>) {
    OWN.set(Arc::as_ptr(link).addr());
}

/// Ends the assignment, and drops the cached reference.
pub(super) fn leave() {
    OWN.set(0);
    let retained = CACHED.with_borrow_mut(Option::take);
    drop(retained);
}

/// Returns a reference to this thread's link: the cached one, or else a new one.
#[inline]
pub(super) fn take(link: &Arc<Link>) -> Arc<Link> {
    CACHED.with_borrow_mut(Option::take).unwrap_or_else(|| link.clone())
}

/// Caches `link`, a reference that is no longer needed, or drops it if it is not this thread's link.
#[inline]
pub(super) fn keep(link: Arc<Link>) {
    if OWN.get() != Arc::as_ptr(&link).addr() {
        return;
    }
    // The previous value is dropped after the borrow.
    let before = CACHED.with_borrow_mut(|cached| cached.replace(link));
    drop(before);
}

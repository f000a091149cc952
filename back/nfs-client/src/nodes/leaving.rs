//! A node whose name is being taken away.
//!
//! Whether a file may go or must keep a name is decided before the server is asked. Who opens it after that decision must not
//! be told that it is there by an answer from before: so he waits for the end, and asks then. An opening is counted before its
//! opener looks here, and openings are counted after this is announced: one of the two sees the other.

use std::sync::{Arc, Mutex, PoisonError};

use tombolo_core::{Interrupt, Raised};

use super::Node;

/// How many take a node's name away now, and what those wait for who would open it.
#[derive(Debug, Default)]
pub(super) struct Departures(Mutex<(u32, Interrupt)>);

/// Held from before the decision until the server has answered.
#[derive(Debug)]
pub(crate) struct Leaving(Arc<Node>);

impl Leaving {
    pub(crate) fn begin(node: Arc<Node>) -> Self {
        {
            let mut departures = node.departures.0.lock().unwrap_or_else(PoisonError::into_inner);
            if departures.0 == 0 {
                departures.1 = Interrupt::new();
            }
            departures.0 += 1;
        }
        Self(node)
    }

    /// Which node.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.0
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut departures = self.0.departures.0.lock().unwrap_or_else(PoisonError::into_inner);
        departures.0 = departures.0.saturating_sub(1);
        if departures.0 > 0 {
            return;
        }
        let over = std::mem::take(&mut departures.1);
        drop(departures);
        over.raise();
    }
}

impl Departures {
    /// The end of what is under way, if anything is.
    pub(super) fn end(&self) -> Option<Raised> {
        let departures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (departures.0 > 0).then(|| departures.1.raised())
    }
}

//! Sequential background fetches, with as many in flight as keep the connection busy.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::data::{Fetch, Fetched};

/// Fetches in progress, in order.
#[derive(Default)]
pub(super) struct Coming(VecDeque<Arc<Fetch>>);

impl Coming {
    pub(super) fn add(&mut self, fetches: impl IntoIterator<Item = Arc<Fetch>>) {
        self.0.extend(fetches);
    }

    /// Waits for the first fetches until at most this many bytes are pending. Returns `false` as soon as a
    /// fetch has ended without its data being cached.
    pub(super) async fn until_at_most(&mut self, bytes: u64) -> bool {
        while self.0.iter().map(|fetch| fetch.bytes()).sum::<u64>() > bytes {
            let Some(first) = self.0.pop_front() else { break };
            if first.outcome().await != Fetched::Cached {
                return false;
            }
        }
        true
    }
}

//! Hard links: names of the same file.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tombolo_core::fs::Attr;
use tombolo_core::lock;

use crate::node::Node;

/// The files with several names that the copy has found so far. An entry is dropped once all names of its
/// file were found.
#[derive(Default)]
pub(super) struct Links(Mutex<HashMap<Key, LinkedFile>>);

/// Identifier of a source file: its tree's realm, `fsid` and `fileid`.
type Key = (String, u64, u64);

struct LinkedFile {
    first: Arc<First>,
    names_left: u32,
}

/// The copy under the first name found.
#[derive(Default)]
pub(super) struct First(Mutex<State>);

#[derive(Default)]
struct State {
    /// Result of the copy: its node, or `Some(None)` if it failed or was stopped; `None` while the file is
    /// being copied.
    outcome: Option<Option<Node>>,
    waiting: Vec<Waker>,
}

pub(super) enum Role {
    /// Copy the file, then report the outcome.
    First(FirstName),
    /// Wait for the copy and link to it; without a copy, copy the file.
    Further(Arc<First>),
}

/// Obligation to report the outcome of the copy under the first name. Dropping it unreported reports a
/// failure.
pub(super) struct FirstName(Arc<First>);

impl Links {
    /// Registers a name of a file and returns its role.
    pub fn meet(&self, realm: &str, attr: &Attr) -> Role {
        let key = (realm.to_owned(), attr.fsid, attr.fileid);
        let mut table = lock(&self.0);
        let Some(known) = table.get_mut(&key) else {
            let first = Arc::<First>::default();
            table.insert(key, LinkedFile { first: first.clone(), names_left: attr.nlink.saturating_sub(1) });
            return Role::First(FirstName(first));
        };
        known.names_left = known.names_left.saturating_sub(1);
        let first = known.first.clone();
        if known.names_left == 0 {
            table.remove(&key);
        }
        Role::Further(first)
    }
}

impl First {
    /// Waits for the copy to complete; `None` if it failed or was stopped.
    pub async fn copied(&self) -> Option<Node> {
        poll_fn(|context| {
            let mut state = lock(&self.0);
            match &state.outcome {
                Some(outcome) => Poll::Ready(outcome.clone()),
                None => {
                    state.waiting.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn settle(&self, outcome: Option<Node>) {
        let waiting = {
            let mut state = lock(&self.0);
            if state.outcome.is_some() {
                return;
            }
            state.outcome = Some(outcome);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl FirstName {
    /// Reports the complete copy.
    pub fn copied(self, node: Node) {
        self.0.settle(Some(node));
    }
}

impl Drop for FirstName {
    fn drop(&mut self) {
        self.0.settle(None);
    }
}

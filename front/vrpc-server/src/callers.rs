//! Identities that a peer has numbered.

use std::sync::Mutex;

use tombolo_core::{Identity, lock};
use tombolo_wire_vrpc::CallerId;

/// The identities of one link by number; each has at most as many groups as fit into a frame.
#[derive(Debug)]
pub(crate) struct Callers {
    identities: Mutex<Vec<Option<Identity>>>,
    max: u16,
}

impl Callers {
    pub(crate) fn new(max: u16) -> Self {
        Self { identities: Mutex::default(), max }
    }

    /// Assigns an identity to a number, or removes it. Returns `false` for a number beyond the limit.
    #[must_use]
    pub(crate) fn set(&self, caller: CallerId, identity: Option<Identity>) -> bool {
        if caller.0 >= self.max {
            return false;
        }
        let index = usize::from(caller.0);
        let mut identities = lock(&self.identities);
        if identities.len() <= index {
            identities.resize(index + 1, None);
        }
        if let Some(place) = identities.get_mut(index) {
            *place = identity;
        }
        true
    }

    /// Returns the identity with this number; `None` if the peer has assigned none, or one that was refused.
    pub(crate) fn identity(&self, caller: CallerId) -> Option<Identity> {
        lock(&self.identities).get(usize::from(caller.0)).cloned().flatten()
    }
}

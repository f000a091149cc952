//! Where a node is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::table::Identity;

/// Where a node is: a descriptor that stays open while this lives.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    descriptor: Arc<OwnedFd>,
    pub identity: Identity,
}

impl Location {
    pub fn new(identity: Identity, descriptor: Arc<OwnedFd>) -> Self {
        Self { descriptor, identity }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub fn kind(&self) -> u32 {
        self.identity.kind
    }
}

//! A lock request that waits for conflicting locks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::LockTable;
use super::file::{Claim, Grant};
use crate::fs::NodeId;
use crate::{Error, Raised, Result};

/// The future of a waiting claim. Dropping it withdraws the claim from the queue.
pub(super) struct Wait {
    pub table: LockTable,
    pub node: NodeId,
    pub claim: Claim,
    pub grant: Arc<Grant>,
    pub raised: Raised,
}

impl Future for Wait {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(outcome) = self.grant.poll(context.waker()) {
            return Poll::Ready(outcome);
        }
        if Pin::new(&mut self.raised).poll(context).is_ready() && self.withdraw() {
            return Poll::Ready(Err(Error::Interrupted));
        }
        // A lock granted between the two polls is found by the second one.
        self.grant.poll(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Wait {
    fn withdraw(&self) -> bool {
        self.table.table().withdraw(self.node, &self.claim, &self.grant)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.withdraw();
    }
}

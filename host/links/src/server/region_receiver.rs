//! Control messages by which a client forwards memory regions to this server, or withdraws them.

use std::sync::{Arc, Weak};

use tombolo_shm::link::Message;

use super::link::Link;
use super::serving::LinkHandle;
use crate::control_socket::Descriptors;
use crate::end::ProtocolError;
use crate::forwarding::{CutFn, ForwardedRegions};

/// A receiver of the regions that one client forwards. It keeps the regions alive, but nothing else of its
/// link.
#[derive(Debug)]
pub(crate) struct RegionReceiver {
    /// Table shared with the link. No reference to the link itself is taken, even briefly, because the thread
    /// that reads control messages must not be the one that destroys the link.
    forwarded_regions: Arc<ForwardedRegions>,
    link: Weak<Link>,
}

impl LinkHandle {
    /// Returns a receiver of the client's forwarded regions, at most `bytes_max` together.
    pub(crate) fn receive(&self, bytes_max: u64) -> RegionReceiver {
        let forwarded_regions = Arc::new(ForwardedRegions::new(bytes_max));
        if let Some(link) = self.link.upgrade() {
            let _ = link.forwarded_regions.set(Arc::clone(&forwarded_regions));
        }
        RegionReceiver { forwarded_regions, link: Weak::clone(&self.link) }
    }

    /// Returns a function that ends the link, without keeping it alive.
    pub(crate) fn cut_fn(&self) -> CutFn {
        cut_fn(&self.link)
    }
}

impl RegionReceiver {
    /// Handles a control message of the client. Returns the answer, if the message has one.
    pub(crate) fn received(
        &self,
        message: &Message,
        descriptors: Descriptors,
    ) -> Result<Option<Message>, ProtocolError> {
        // The messages of a link that has ended are ignored.
        if self.link.strong_count() == 0 {
            return Ok(None);
        }
        let mut descriptors = descriptors.into_iter();
        match (message, descriptors.next(), descriptors.next()) {
            (Message::ForwardRegion(forwarded), Some(memory), None) => {
                let answer = self.forwarded_regions.add(forwarded, memory, cut_fn(&self.link))?;
                Ok(Some(Message::RegionForwarded(answer)))
            }
            (Message::ForwardRegion(_), ..) => {
                Err(ProtocolError::Malformed("a forwarded region needs exactly one descriptor".into()))
            }
            (Message::Withdraw(withdraw), None, None) => {
                self.forwarded_regions.withdraw(withdraw.domain).map(|()| None)
            }
            _ => Err(unexpected_message()),
        }
    }
}

fn cut_fn(link: &Weak<Link>) -> CutFn {
    let link = Weak::clone(link);
    Box::new(move |why| {
        if let Some(link) = link.upgrade() {
            link.end(why);
        }
    })
}

fn unexpected_message() -> ProtocolError {
    ProtocolError::Malformed("unexpected message on the link control socket".into())
}

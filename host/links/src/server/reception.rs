//! Where the introductions of a client are heard.

use std::sync::{Arc, Weak};

use tombolo_shm::link::Message;

use super::link::Link;
use super::serving::LinkHandle;
use crate::end::Lie;
use crate::passing::{Introductions, Sever};
use crate::tether::Descriptors;

/// Hears the introductions of one client. Keeps nothing of its link alive but them.
#[derive(Debug)]
pub(crate) struct Reception {
    /// Shared with the link, which is not held even for a moment: whoever hears messages must not be the one who ends it.
    introductions: Arc<Introductions>,
    link: Weak<Link>,
}

impl LinkHandle {
    /// The client may introduce further domains, of so many bytes together.
    pub(crate) fn receive(&self, bytes_max: u64) -> Reception {
        let introductions = Arc::new(Introductions::new(bytes_max));
        if let Some(link) = self.link.upgrade() {
            let _ = link.introductions.set(Arc::clone(&introductions));
        }
        Reception { introductions, link: Weak::clone(&self.link) }
    }

    /// Ends the link; keeps nothing of it alive.
    pub(crate) fn sever(&self) -> Sever {
        sever(&self.link)
    }
}

impl Reception {
    /// A message of the client; what it is answered.
    pub(crate) fn heard(&self, message: &Message, descriptors: Descriptors) -> Result<Option<Message>, Lie> {
        // Of a link that ends nobody asks any more.
        if self.link.strong_count() == 0 {
            return Ok(None);
        }
        let mut descriptors = descriptors.into_iter();
        match (message, descriptors.next(), descriptors.next()) {
            (Message::ForwardRegion(introduce), Some(memory), None) => {
                let answer = self.introductions.introduce(introduce, memory, sever(&self.link))?;
                Ok(Some(Message::RegionForwarded(answer)))
            }
            (Message::ForwardRegion(_), ..) => {
                Err(Lie::Senseless("an introduction with another number of descriptors than one".into()))
            }
            (Message::Withdraw(withdraw), None, None) => {
                self.introductions.withdraw(withdraw.domain).map(|()| None)
            }
            _ => Err(no_place()),
        }
    }
}

fn sever(link: &Weak<Link>) -> Sever {
    let link = Weak::clone(link);
    Box::new(move |why| {
        if let Some(link) = link.upgrade() {
            link.end(why);
        }
    })
}

fn no_place() -> Lie {
    Lie::Senseless("a message that has no place after the first two".into())
}

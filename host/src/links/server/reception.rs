//! Where the introductions of a client are heard.

use std::sync::Weak;

use tombolo_shm::link::Message;

use super::link::Link;
use super::serving::LinkHandle;
use crate::links::end::Lie;
use crate::links::passing::{Introductions, Sever};
use crate::links::tether::Descriptors;

/// Hears the introductions of one client. Keeps nothing of its link alive.
#[derive(Debug)]
pub(in crate::links) struct Reception(Weak<Link>);

impl LinkHandle {
    /// The client may introduce further domains, of so many bytes together.
    pub(in crate::links) fn receive(&self, bytes_max: u64) -> Reception {
        if let Some(link) = self.link.upgrade() {
            let _ = link.introductions.set(Introductions::new(bytes_max));
        }
        Reception(Weak::clone(&self.link))
    }

    /// Ends the link; keeps nothing of it alive.
    pub(in crate::links) fn sever(&self) -> Sever {
        sever(&self.link)
    }
}

impl Reception {
    /// A message of the client; what it is answered.
    pub(in crate::links) fn heard(
        &self,
        message: &Message,
        descriptors: Descriptors,
    ) -> Result<Option<Message>, Lie> {
        // Of a link that ends nobody asks any more.
        let Some(link) = self.0.upgrade() else { return Ok(None) };
        let introductions = link.introductions.get().ok_or_else(no_place)?;
        let mut descriptors = descriptors.into_iter();
        match (message, descriptors.next(), descriptors.next()) {
            (Message::Introduce(introduce), Some(memory), None) => {
                let answer = introductions.introduce(introduce, memory, sever(&self.0))?;
                Ok(Some(Message::Introduced(answer)))
            }
            (Message::Introduce(_), ..) => {
                Err(Lie::Senseless("an introduction with another number of descriptors than one".into()))
            }
            (Message::Withdraw(withdraw), None, None) => {
                introductions.withdraw(withdraw.domain).map(|()| None)
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

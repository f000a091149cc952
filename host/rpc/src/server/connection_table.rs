//! The connections of one event thread, and the tokens by which events name them.

use super::connection::Connection;

/// The connections of an event thread. The token of a closed one finds none, even if its slot is used again.
#[derive(Default)]
pub(super) struct ConnectionTable {
    connections: Vec<Slot>,
    free: Vec<u32>,
    taken: usize,
}

#[derive(Default)]
struct Slot {
    use_count: u32,
    connection: Option<Box<Connection>>,
}

impl ConnectionTable {
    /// The token of the connection that is put in next.
    pub(super) fn next_token(&self) -> Token {
        let slot = self.free.last().copied().unwrap_or(self.connections.len() as u32);
        let use_count = self.connections.get(slot as usize).map_or(0, |slot| slot.use_count);
        Token::connection(slot, use_count)
    }

    pub(super) fn insert(&mut self, connection: Connection) {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None => {
                self.connections.push(Slot::default());
                self.connections.len() - 1
            }
        };
        self.connections[slot].connection = Some(Box::new(connection));
        self.taken += 1;
    }

    pub(super) fn find(&mut self, token: Token) -> Option<&mut Connection> {
        let Watched::Connection { slot, use_count } = token.watched() else { return None };
        let slot = self.connections.get_mut(slot as usize)?;
        if slot.use_count == use_count { slot.connection.as_deref_mut() } else { None }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Box<Connection>> {
        let Watched::Connection { slot: number, use_count } = token.watched() else { return None };
        let slot = self.connections.get_mut(number as usize).filter(|slot| slot.use_count == use_count)?;
        let connection = slot.connection.take()?;
        slot.use_count = (slot.use_count + 1) % USES;
        self.free.push(number);
        self.taken -= 1;
        Some(connection)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.connections.iter_mut().filter_map(|slot| slot.connection.as_deref_mut())
    }
}

/// One thing that is watched, as a number that the kernel gives back with each event.
///
/// The number of a connection has its slot and how often that slot was used, so that an event for an earlier
/// connection is not taken for one of a later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(u64);

/// A token taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    Bell,
    Listener(usize),
    Socket(usize),
    Connection { slot: u32, use_count: u32 },
}

const KIND_SHIFT: u32 = 62;
const USE_SHIFT: u32 = 32;
/// Uses of a slot that are told apart.
pub(super) const USES: u32 = 1 << (KIND_SHIFT - USE_SHIFT);

impl Token {
    pub(super) const BELL: Token = Token(0);

    pub(super) fn listener(index: usize) -> Self {
        Self(1 << KIND_SHIFT | index as u64)
    }

    pub(super) fn socket(index: usize) -> Self {
        Self(2 << KIND_SHIFT | index as u64)
    }

    pub(super) fn connection(slot: u32, use_count: u32) -> Self {
        Self(3 << KIND_SHIFT | u64::from(use_count % USES) << USE_SHIFT | u64::from(slot))
    }

    pub(super) fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }

    pub(super) fn watched(self) -> Watched {
        let low = self.0 as u32;
        match self.0 >> KIND_SHIFT {
            0 => Watched::Bell,
            1 => Watched::Listener(low as usize),
            2 => Watched::Socket(low as usize),
            _ => Watched::Connection { slot: low, use_count: (self.0 >> USE_SHIFT) as u32 % USES },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_it_was_made_for() {
        assert_eq!(Token::BELL.watched(), Watched::Bell);
        assert_eq!(Token::listener(3).watched(), Watched::Listener(3));
        assert_eq!(Token::socket(4).watched(), Watched::Socket(4));
        let (slot, use_count) = (u32::MAX, USES - 1);
        let token = Token::from_number(Token::connection(slot, use_count).number());
        assert_eq!(token.watched(), Watched::Connection { slot, use_count });
        assert_eq!(Token::connection(1, USES), Token::connection(1, 0));
    }
}

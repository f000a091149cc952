//! The connections of one event thread, by token.

use super::connection::Connection;
use super::token::{Token, USES, Watched};

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
        let context = self.free.last().copied().unwrap_or(self.connections.len() as u32);
        let use_count = self.connections.get(context as usize).map_or(0, |context| context.use_count);
        Token::connection(context, use_count)
    }

    pub(super) fn insert(&mut self, connection: Connection) {
        let context = match self.free.pop() {
            Some(context) => context as usize,
            None => {
                self.connections.push(Slot::default());
                self.connections.len() - 1
            }
        };
        self.connections[context].connection = Some(Box::new(connection));
        self.taken += 1;
    }

    pub(super) fn find(&mut self, token: Token) -> Option<&mut Connection> {
        let Watched::Connection { context, use_count } = token.watched() else { return None };
        let context = self.connections.get_mut(context as usize)?;
        if context.use_count == use_count { context.connection.as_deref_mut() } else { None }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Box<Connection>> {
        let Watched::Connection { context: number, use_count } = token.watched() else { return None };
        let context =
            self.connections.get_mut(number as usize).filter(|context| context.use_count == use_count)?;
        let connection = context.connection.take()?;
        context.use_count = (context.use_count + 1) % USES;
        self.free.push(number);
        self.taken -= 1;
        Some(connection)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.connections.iter_mut().filter_map(|context| context.connection.as_deref_mut())
    }
}

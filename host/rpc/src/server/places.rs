//! The connections of one event thread, by token.

use super::connection::Connection;
use super::token::{Token, USES, Watched};

/// Places for connections. A token of one that is gone finds nobody, whoever has its place now.
#[derive(Default)]
pub(super) struct Places {
    places: Vec<Place>,
    free: Vec<u32>,
    taken: usize,
}

#[derive(Default)]
struct Place {
    use_count: u32,
    connection: Option<Box<Connection>>,
}

impl Places {
    /// The token of the connection that is put in next.
    pub(super) fn next_token(&self) -> Token {
        let place = self.free.last().copied().unwrap_or(self.places.len() as u32);
        let use_count = self.places.get(place as usize).map_or(0, |place| place.use_count);
        Token::connection(place, use_count)
    }

    pub(super) fn insert(&mut self, connection: Connection) {
        let place = match self.free.pop() {
            Some(place) => place as usize,
            None => {
                self.places.push(Place::default());
                self.places.len() - 1
            }
        };
        self.places[place].connection = Some(Box::new(connection));
        self.taken += 1;
    }

    pub(super) fn find(&mut self, token: Token) -> Option<&mut Connection> {
        let Watched::Connection { place, use_count } = token.watched() else { return None };
        let place = self.places.get_mut(place as usize)?;
        if place.use_count == use_count { place.connection.as_deref_mut() } else { None }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Box<Connection>> {
        let Watched::Connection { place: number, use_count } = token.watched() else { return None };
        let place = self.places.get_mut(number as usize).filter(|place| place.use_count == use_count)?;
        let connection = place.connection.take()?;
        place.use_count = (place.use_count + 1) % USES;
        self.free.push(number);
        self.taken -= 1;
        Some(connection)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.places.iter_mut().filter_map(|place| place.connection.as_deref_mut())
    }
}

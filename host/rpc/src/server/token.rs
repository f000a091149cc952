//! What an event thread calls the things that it watches.

/// One thing that is watched, as a number that the kernel gives back with each event.
///
/// The number of a connection has the place of it and how often that place was used, so that an event for an earlier
/// connection is not taken for one of a later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(u64);

/// A token taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    Bell,
    Listener(usize),
    Socket(usize),
    Connection { context: u32, use_count: u32 },
}

const KIND_SHIFT: u32 = 62;
const USE_SHIFT: u32 = 32;
/// Uses of a place that are told apart.
pub(super) const USES: u32 = 1 << (KIND_SHIFT - USE_SHIFT);

impl Token {
    pub(super) const BELL: Token = Token(0);

    pub(super) fn listener(index: usize) -> Self {
        Self(1 << KIND_SHIFT | index as u64)
    }

    pub(super) fn socket(index: usize) -> Self {
        Self(2 << KIND_SHIFT | index as u64)
    }

    pub(super) fn connection(context: u32, use_count: u32) -> Self {
        Self(3 << KIND_SHIFT | u64::from(use_count % USES) << USE_SHIFT | u64::from(context))
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
            _ => Watched::Connection { context: low, use_count: (self.0 >> USE_SHIFT) as u32 % USES },
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
        let (context, use_count) = (u32::MAX, USES - 1);
        let token = Token::from_number(Token::connection(context, use_count).number());
        assert_eq!(token.watched(), Watched::Connection { context, use_count });
        assert_eq!(Token::connection(1, USES), Token::connection(1, 0));
    }
}

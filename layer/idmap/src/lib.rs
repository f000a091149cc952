//! Users and groups of clients are others here: ids are mapped both ways, by ranges.
//!
//! What a client says of itself and of owners is mapped inward, and what it is told of owners outward, access
//! lists (acl(5)) included. An id that no range has is the anonymous one, either way; it cannot be made an
//! owner. User and group 0 stay what they are unless a range has them: whether a client's root is root is
//! settled before the waist (`Squash`), and what comes as root is the server itself.
//!
//! Reading order: [`IdMap`], `session`, `translate`.
#![forbid(unsafe_code)]

mod session;
mod translate;

use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;
use tombolo_core::fs::{Client, Export, FileSystem};
use tombolo_core::{Identity, NO_ID, Result};

use session::Session;

/// `inner`, whose clients' ids are mapped so.
pub fn over(inner: Arc<dyn Export>, map: IdMap) -> impl Export {
    Mapped { inner, map: Arc::new(map) }
}

struct Mapped {
    inner: Arc<dyn Export>,
    map: Arc<IdMap>,
}

impl Export for Mapped {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Session::new(self.inner.attach(client)?, self.map.clone())))
    }
}

/// Which users and groups of clients are which here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMap {
    /// Users.
    pub users: Ids,
    /// Groups.
    pub groups: Ids,
}

/// Ids of one kind: ranges, and what stands for all that they leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    /// Apart from each other on either side. None at all: every id is itself.
    ranges: Vec<IdRange>,
    anonymous: u32,
}

/// `count` ids of clients from `client` on, and as many here from `here` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    client: u32,
    here: u32,
    count: u32,
}

/// Why ids cannot be mapped so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// A range is none.
    #[error("{0:?}: a range is CLIENT:HERE or CLIENT:HERE:COUNT, of ids below {NO_ID}")]
    Malformed(String),
    /// An id would be two.
    #[error("{0} and {1} overlap")]
    Overlap(IdRange, IdRange),
}

impl FromStr for IdRange {
    type Err = MapError;

    fn from_str(text: &str) -> std::result::Result<Self, MapError> {
        let malformed = || MapError::Malformed(text.into());
        let numbers: Option<Vec<u32>> = text.split(':').map(|number| number.parse().ok()).collect();
        let (client, here, count) = match numbers.as_deref() {
            Some([client, here]) => (*client, *here, 1),
            Some([client, here, count @ (1..)]) => (*client, *here, *count),
            _ => return Err(malformed()),
        };
        // The last of them is below the id that is none.
        let fits = |first: u32| first.checked_add(count).is_some();
        if fits(client) && fits(here) { Ok(Self { client, here, count }) } else { Err(malformed()) }
    }
}

impl std::fmt::Display for IdRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.client, self.here, self.count)
    }
}

impl Ids {
    /// Maps by these ranges; `anonymous` stands for what they leave out.
    ///
    /// # Errors
    /// Two of them overlap, at the clients or here.
    pub fn new(mut ranges: Vec<IdRange>, anonymous: u32) -> std::result::Result<Self, MapError> {
        let meet = |a: u32, a_count: u32, b: u32, b_count: u32| {
            u64::from(a) < u64::from(b) + u64::from(b_count)
                && u64::from(b) < u64::from(a) + u64::from(a_count)
        };
        for (index, one) in ranges.iter().enumerate() {
            let met = |other: &&IdRange| {
                meet(one.client, one.count, other.client, other.count)
                    || meet(one.here, one.count, other.here, other.count)
            };
            if let Some(other) = ranges.iter().take(index).find(met) {
                return Err(MapError::Overlap(*other, *one));
            }
        }
        let has_root = |range: &IdRange| range.client == 0 || range.here == 0;
        if !ranges.is_empty() && !ranges.iter().any(has_root) {
            ranges.push(IdRange { client: 0, here: 0, count: 1 });
        }
        Ok(Self { ranges, anonymous })
    }

    /// What a client's id is here.
    #[must_use]
    pub fn inward(&self, id: u32) -> Option<u32> {
        self.find(id, |range| (range.client, range.here))
    }

    /// What an id here is for clients.
    #[must_use]
    pub fn outward(&self, id: u32) -> Option<u32> {
        self.find(id, |range| (range.here, range.client))
    }

    fn find(&self, id: u32, way: impl Fn(&IdRange) -> (u32, u32)) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(id);
        }
        self.ranges.iter().find_map(|range| {
            let (from, to) = way(range);
            let offset = id.checked_sub(from).filter(|offset| *offset < range.count)?;
            Some(to + offset)
        })
    }

    fn inward_or_anonymous(&self, id: u32) -> u32 {
        self.inward(id).unwrap_or(self.anonymous)
    }

    fn outward_or_anonymous(&self, id: u32) -> u32 {
        self.outward(id).unwrap_or(self.anonymous)
    }
}

impl IdMap {
    /// The user here that a client's user is.
    fn identity(&self, named: &Identity) -> Identity {
        let groups = named.groups.as_deref().map(|groups| {
            // A group that is none here gives no rights, so not those of the anonymous one either.
            groups.iter().filter_map(|group| self.groups.inward(*group)).collect()
        });
        Identity {
            uid: self.users.inward_or_anonymous(named.uid),
            gid: self.groups.inward_or_anonymous(named.gid),
            groups,
        }
    }
}

//! Mapping of user and group ids between clients and this host, by ranges.
//!
//! Ids sent by a client (its own and owners) are mapped inward, owners in replies outward, access lists
//! (acl(5)) included. An id outside all ranges is mapped to the anonymous one in both directions, or dropped
//! if it is a supplementary group; it can neither be made an owner nor be put into an access list (EINVAL).
//! User and group 0 are mapped to themselves unless a range contains them on either side: at the waist root
//! is the server itself, which sends its own requests as root, or a client's root that the front end has
//! admitted (over NFS as `Squash` says, over FUSE always).
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

/// Wraps `inner`, mapping the ids of its clients.
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

/// Mapping of the ids of users and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMap {
    /// Mapping of user ids.
    pub users: Ids,
    /// Mapping of group ids.
    pub groups: Ids,
}

/// Mapping of one kind of ids: ranges, and the anonymous id for all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    /// Ranges, disjoint among the clients' ids and among the host's; without any, ids are not changed.
    ranges: Vec<IdRange>,
    anonymous: u32,
}

/// Mapping of `count` client ids from `client` on to host ids from `host` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    client: u32,
    host: u32,
    count: u32,
}

/// Reasons why a mapping is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// A malformed range, as it was written.
    #[error("{0:?}: a range is CLIENT:HERE or CLIENT:HERE:COUNT, with ids below {NO_ID}")]
    Malformed(String),
    /// Two ranges that overlap, on the clients' side or the host's.
    #[error("{0} and {1} overlap")]
    Overlap(IdRange, IdRange),
}

impl FromStr for IdRange {
    type Err = MapError;

    fn from_str(text: &str) -> std::result::Result<Self, MapError> {
        let malformed = || MapError::Malformed(text.into());
        let numbers: Option<Vec<u32>> = text.split(':').map(|number| number.parse().ok()).collect();
        let (client, host, count) = match numbers.as_deref() {
            Some([client, host]) => (*client, *host, 1),
            Some([client, host, count @ (1..)]) => (*client, *host, *count),
            _ => return Err(malformed()),
        };
        // The last id is below `NO_ID`.
        let fits = |first: u32| first.checked_add(count).is_some();
        if fits(client) && fits(host) { Ok(Self { client, host, count }) } else { Err(malformed()) }
    }
}

impl std::fmt::Display for IdRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.client, self.host, self.count)
    }
}

impl Ids {
    /// Creates a mapping by these ranges; `anonymous` represents all other ids.
    ///
    /// # Errors
    /// Two ranges overlap, on either side.
    pub fn new(mut ranges: Vec<IdRange>, anonymous: u32) -> std::result::Result<Self, MapError> {
        let intersect = |a: u32, a_count: u32, b: u32, b_count: u32| {
            u64::from(a) < u64::from(b) + u64::from(b_count)
                && u64::from(b) < u64::from(a) + u64::from(a_count)
        };
        for (index, one) in ranges.iter().enumerate() {
            let overlaps = |other: &&IdRange| {
                intersect(one.client, one.count, other.client, other.count)
                    || intersect(one.host, one.count, other.host, other.count)
            };
            if let Some(other) = ranges.iter().take(index).find(overlaps) {
                return Err(MapError::Overlap(*other, *one));
            }
        }
        let has_root = |range: &IdRange| range.client == 0 || range.host == 0;
        if !ranges.is_empty() && !ranges.iter().any(has_root) {
            ranges.push(IdRange { client: 0, host: 0, count: 1 });
        }
        Ok(Self { ranges, anonymous })
    }

    /// Maps a client's id to the host's id; `None` if it is outside all ranges.
    #[must_use]
    pub fn inward(&self, id: u32) -> Option<u32> {
        self.find(id, |range| (range.client, range.host))
    }

    /// Maps an id of the host to the clients' id; `None` if it is outside all ranges.
    #[must_use]
    pub fn outward(&self, id: u32) -> Option<u32> {
        self.find(id, |range| (range.host, range.client))
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
    /// Maps a client's user to the host's.
    fn identity(&self, named: &Identity) -> Identity {
        let groups = named.groups.as_deref().map(|groups| {
            // Unmapped groups are dropped: mapped to the anonymous group, they would grant its rights.
            groups.iter().filter_map(|group| self.groups.inward(*group)).collect()
        });
        Identity {
            uid: self.users.inward_or_anonymous(named.uid),
            gid: self.groups.inward_or_anonymous(named.gid),
            groups,
        }
    }
}

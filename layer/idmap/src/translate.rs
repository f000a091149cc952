//! Mapping of owners in replies and access lists.

use tombolo_core::fs::{
    Attr, Change, Created, DirPage, Entry, Lock, Made, Opened, PersistentHandle, ReadDone, Renamed, SetAttr,
    StatFs, Written,
};
use tombolo_core::{Error, Result};

use crate::IdMap;

/// A reply of an operation, which may contain owners.
pub(crate) trait Reply: Send + 'static {
    /// Maps the owners in the reply to the client's ids.
    fn outward(&mut self, map: &IdMap);
}

impl Reply for Attr {
    fn outward(&mut self, map: &IdMap) {
        self.uid = map.users.outward_or_anonymous(self.uid);
        self.gid = map.groups.outward_or_anonymous(self.gid);
    }
}

impl<T: Reply> Reply for Option<T> {
    fn outward(&mut self, map: &IdMap) {
        self.iter_mut().for_each(|value| value.outward(map));
    }
}

impl Reply for (Attr, Change) {
    fn outward(&mut self, map: &IdMap) {
        self.0.outward(map);
        self.1.outward(map);
    }
}

impl Reply for DirPage {
    fn outward(&mut self, map: &IdMap) {
        self.attrs_mut().for_each(|attr| attr.outward(map));
    }
}

macro_rules! with_owners {
    ($($answer:ty: $($part:ident),+;)+) => {
        $(impl Reply for $answer {
            fn outward(&mut self, map: &IdMap) {
                $(self.$part.outward(map);)+
            }
        })+
    };
}

with_owners! {
    Change: after;
    Entry: attr;
    Made: entry, dir;
    Created: entry, dir;
    Opened: attr;
    Renamed: from_dir, to_dir;
    Written: file;
}

macro_rules! without_owners {
    ($($answer:ty),+) => { $(impl Reply for $answer { fn outward(&mut self, _: &IdMap) {} })+ };
}

without_owners!((), u64, Vec<u8>, ReadDone, StatFs, Lock, PersistentHandle);

/// Maps the owners in new attributes. Fails with [`Error::InvalidArgument`] for unmapped ids, as chown(2)
/// does in a user namespace.
pub(crate) fn inward(set: &SetAttr, map: &IdMap) -> Result<SetAttr> {
    let mapped = |id: Option<u32>, ids: &crate::Ids| {
        id.map(|id| ids.inward(id).ok_or(Error::InvalidArgument)).transpose()
    };
    Ok(SetAttr { uid: mapped(set.uid, &map.users)?, gid: mapped(set.gid, &map.groups)?, ..*set })
}

pub(crate) fn is_access_list(name: &[u8]) -> bool {
    matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

// An access list has a version, then entries of tag, permissions and id, in little-endian byte order
// (linux/posix_acl_xattr.h).
const VERSION_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const TAG_USER: u16 = 0x02;
const TAG_GROUP: u16 = 0x08;

/// Maps the ids in an access list. `None` if one of them is unmapped. Entries without an id, and malformed
/// remainders, are returned unchanged.
pub(crate) fn access_list(
    list: &[u8],
    user: impl Fn(u32) -> Option<u32>,
    group: impl Fn(u32) -> Option<u32>,
) -> Option<Vec<u8>> {
    let mut list = list.to_vec();
    for entry in list.get_mut(VERSION_BYTES..).unwrap_or_default().chunks_exact_mut(ENTRY_BYTES) {
        let Some(([low, high, ..], id)) = entry.split_last_chunk_mut() else { continue };
        let map: &dyn Fn(u32) -> Option<u32> = match u16::from_le_bytes([*low, *high]) {
            TAG_USER => &user,
            TAG_GROUP => &group,
            _ => continue,
        };
        *id = map(u32::from_le_bytes(*id))?.to_le_bytes();
    }
    Some(list)
}

//! Extensions at the end of a request: supplementary groups (CREATE_SUPP_GROUP, since 7.38).

use crate::layout::header::{EXT_GROUPS, ExtHeader};
use zerocopy::FromBytes;

/// The extensions of a request. Unknown kinds are skipped, as the protocol requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a>(&'a [u8]);

impl<'a> Extensions<'a> {
    /// Validates the bytes at the end of a request that its header reserves for extensions.
    ///
    /// # Errors
    /// The problem, if an extension is shorter than its header or longer than the remaining bytes.
    pub fn new(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (_, _, after) = split(rest).ok_or("invalid length of an extension")?;
            rest = after;
        }
        Ok(Extensions(bytes))
    }

    /// Returns the supplementary groups in the request. A kernel sends at most one: the parent directory's
    /// group, if the caller is a member.
    pub fn groups(self) -> impl Iterator<Item = u32> {
        let body = self.find(EXT_GROUPS).unwrap_or_default();
        let (count, ids) = u32::read_from_prefix(body).unwrap_or_default();
        ids.chunks_exact(size_of::<u32>())
            .take(count as usize)
            .map(|bytes| u32::read_from_bytes(bytes).unwrap_or_default())
    }

    fn find(self, kind: u32) -> Option<&'a [u8]> {
        let mut rest = self.0;
        while let Some((header, body, after)) = split(rest) {
            if header.kind == kind {
                return Some(body);
            }
            rest = after;
        }
        None
    }
}

/// Splits the first extension off: its header, its body, and the bytes behind it at the next multiple of 8;
/// `None` if its length is invalid.
fn split(bytes: &[u8]) -> Option<(ExtHeader, &[u8], &[u8])> {
    let (header, _) = ExtHeader::read_from_prefix(bytes).ok()?;
    let size = header.size as usize;
    let body = bytes.get(size_of::<ExtHeader>()..size)?;
    let after = bytes.get(size.next_multiple_of(8)..).unwrap_or_default();
    Some((header, body, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn extension(kind: u32, body: &[u8]) -> Vec<u8> {
        let header = ExtHeader { size: u32::try_from(8 + body.len()).unwrap(), kind };
        let mut bytes = [header.as_bytes(), body].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn groups_are_found_behind_other_extensions() {
        let label = extension(1, b"selinux label");
        let groups = extension(EXT_GROUPS, [2u32, 100, 4000].as_bytes());
        let bytes = [label, groups].concat();
        let extensions = Extensions::new(&bytes).unwrap();
        assert_eq!(extensions.groups().collect::<Vec<_>>(), [100, 4000]);
        assert_eq!(Extensions::default().groups().count(), 0);
    }

    #[test]
    fn excess_group_count_yields_only_present_groups() {
        let bytes = extension(EXT_GROUPS, [u32::MAX, 7].as_bytes());
        assert_eq!(Extensions::new(&bytes).unwrap().groups().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_wrong_length_is_refused() {
        for size in [0u32, 7, 17, u32::MAX] {
            let header = ExtHeader { size, kind: EXT_GROUPS };
            let bytes = [header.as_bytes(), &[0; 8]].concat();
            assert!(Extensions::new(&bytes).is_err(), "size {size}");
        }
    }
}

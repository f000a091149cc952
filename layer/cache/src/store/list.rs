//! Listing of cached files.

use tombolo_core::fs::{FileType, WeakAttr};

use super::database::CHUNK_BLOCKS;
use super::rows::DataRow;
use super::{ObjectId, Store, lock, readable, sums};

/// A regular file that the cache knows, with or without data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Path within the tree, without a leading `/`.
    pub path: Vec<u8>,
    /// Number of the file in this cache.
    pub id: ObjectId,
    /// Last known size and times.
    pub version: WeakAttr,
    /// Cached data of the file, if any.
    pub data: Option<ListedData>,
}

/// Cached data of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedData {
    /// Version of these data. If the file has another version, they will be dropped.
    pub version: WeakAttr,
    /// Number of cached blocks.
    pub blocks: u64,
    /// Number of blocks of the file.
    pub blocks_max: u64,
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Number of cached bytes.
    pub kept_bytes: u64,
}

/// Maximum depth of a listed tree.
const DEPTH_MAX: usize = 4096;

impl Store {
    /// Passes all regular files known at and below a path to `visit`, in the order of the listings, without
    /// following links. Returns `false` if the path is not in the cache.
    pub fn list(&self, path: &[u8], visit: &mut dyn FnMut(Listed)) -> bool {
        self.flush();
        let mut id = ObjectId::ROOT;
        let components = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        for name in components {
            let names = self.object(id).map(|(_, names)| names);
            let found = names.and_then(|names| {
                names.after(0).find(|(_, found, _)| *found == name).map(|(.., target)| target)
            });
            match found {
                Some(target) => id = target.object,
                None => return false,
            }
        }
        let path =
            path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join(&b'/');
        let mut left = vec![(0, path, id)];
        while let Some((depth, path, id)) = left.pop() {
            let Some((object, names)) = self.object(id) else { continue };
            match object.attr.file_type {
                FileType::Directory if depth < DEPTH_MAX => {
                    let first = left.len();
                    left.extend(names.after(0).map(|(_, name, target)| {
                        let path =
                            if path.is_empty() { name.to_vec() } else { [&path[..], b"/", name].concat() };
                        (depth + 1, path, target.object)
                    }));
                    left.get_mut(first..).unwrap_or_default().reverse();
                }
                FileType::Regular => {
                    let version = WeakAttr::from(&object.attr);
                    visit(Listed { path, id, version, data: self.listed_data(id) });
                }
                _ => {}
            }
        }
        true
    }

    fn listed_data(&self, id: ObjectId) -> Option<ListedData> {
        let row = readable(lock(&self.shared.reader).data(id)).flatten();
        let row = row.and_then(|row| DataRow::decoded(&row)).filter(DataRow::has_blocks)?;
        let blocks_max = row.version.size.div_ceil(row.block_bytes.into());
        let chunks = readable(lock(&self.shared.reader).chunks(id, row.generation)).unwrap_or_default();
        let blocks = chunks.into_iter().map(|(chunk, sums)| {
            let len = blocks_max.saturating_sub(chunk.saturating_mul(CHUNK_BLOCKS)).min(CHUNK_BLOCKS);
            sums::blocks_in(&sums, len as usize)
        });
        Some(ListedData {
            version: row.version,
            blocks: blocks.sum(),
            blocks_max,
            block_bytes: row.block_bytes,
            kept_bytes: row.kept_bytes,
        })
    }
}

//! What is cached of which file.

use tombolo_core::fs::{FileType, WeakAttr};

use super::database::CHUNK_BLOCKS;
use super::rows::DataRow;
use super::{ObjectId, Store, data_file, lock, readable};

/// What is cached of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where it is in the tree, without a `/` in front.
    pub path: Vec<u8>,
    /// Its number in this cache.
    pub id: ObjectId,
    /// Its size and times, as they are known.
    pub version: WeakAttr,
    /// What of its data is here.
    pub data: Option<ListedData>,
}

/// Data of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedData {
    /// The version that they are of. If it is not the file's, they will be dropped.
    pub version: WeakAttr,
    /// Blocks that are here, and those that the file has.
    pub blocks: u64,
    /// See [`ListedData::blocks`].
    pub blocks_max: u64,
    /// The size of a block.
    pub block_bytes: u32,
    /// How many bytes are here.
    pub kept_bytes: u64,
}

/// A tree is not gone through below this.
const DEPTH_MAX: usize = 4096;

impl Store {
    /// All files that are known at and below a path, in the order of their directories. Links in it are not
    /// followed. False: it is not known here.
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
            data_file::blocks_in(&sums, len as usize)
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

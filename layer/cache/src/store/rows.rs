//! Encoding of the database's rows (`docs/formats/cache.md`). A row that fails its checksum counts as
//! missing.

use tombolo_core::fs::{AccessMask, Attr, PersistentHandle, WeakAttr};
use tombolo_host_runtime::rows::{Reader, Writer, file_type_number, file_type_of};

use super::ObjectId;
use crate::names::Target;
use crate::rights::RightRow;

/// Stored state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRow {
    pub handle: PersistentHandle,
    pub attr: Attr,
    pub parent: Option<ObjectId>,
    pub link: Option<Vec<u8>>,
    /// `true` if all names of the directory are cached; and the position of its next new name.
    pub names: (bool, u64),
    pub rights: Vec<RightRow>,
}

/// Encoding of some names of a directory, each with its position and target.
pub(crate) struct NamesRow;

/// The data file of an object, as recorded in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRow {
    pub generation: u64,
    pub version: WeakAttr,
    pub block_bytes: u32,
    /// Size of the cached parts, in bytes.
    pub kept_bytes: u64,
}

impl ObjectRow {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut row = Writer::default();
        row.u32(self.handle.kind.cast_unsigned());
        row.bytes(&self.handle.bytes);
        row.attr(&self.attr);
        row.option(self.parent, |row, parent| row.u64(parent.0));
        row.option(self.link.as_deref(), Writer::bytes);
        row.u8(self.names.0.into());
        row.u64(self.names.1);
        for (user, known, allowed, ctime) in &self.rights {
            row.identity(user);
            row.u8(known.bits());
            row.u8(allowed.bits());
            row.time(*ctime);
        }
        row.finished()
    }

    pub(crate) fn decoded(row: &[u8]) -> Option<Self> {
        let mut row = Reader::new(row)?;
        Some(Self {
            handle: PersistentHandle { kind: row.u32()?.cast_signed(), bytes: row.bytes()?.into() },
            attr: row.attr()?,
            parent: row.option(|row| row.u64().map(ObjectId))?,
            link: row.option(|row| row.bytes().map(<[u8]>::to_vec))?,
            names: (row.u8()? == 1, row.u64()?),
            rights: read_rights(&mut row)?,
        })
    }
}

impl NamesRow {
    pub(crate) fn encoded<'a>(names: impl Iterator<Item = (u64, &'a [u8], Target)>) -> Vec<u8> {
        let mut row = Writer::default();
        for (place, name, target) in names {
            row.u64(place);
            row.bytes(name);
            row.u64(target.object.0);
            row.u8(file_type_number(target.file_type));
        }
        row.finished()
    }

    /// Passes each name to `take`. Returns `false` if the row is damaged or a name is refused.
    pub(crate) fn decode(row: &[u8], mut take: impl FnMut(u64, &[u8], Target) -> bool) -> bool {
        let Some(mut row) = Reader::new(row) else { return false };
        while !row.is_empty() {
            let Some((place, name, target)) = read_name(&mut row) else { return false };
            if !take(place, name, target) {
                return false;
            }
        }
        true
    }
}

impl DataRow {
    /// Returns `true` if the block size is valid.
    pub(crate) fn has_blocks(&self) -> bool {
        self.block_bytes.is_power_of_two() && (4096..=1 << 20).contains(&self.block_bytes)
    }

    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut row = Writer::default();
        row.u64(self.generation);
        row.u64(self.version.size);
        row.time(self.version.mtime);
        row.time(self.version.ctime);
        row.u32(self.block_bytes);
        row.u64(self.kept_bytes);
        row.finished()
    }

    pub(crate) fn decoded(row: &[u8]) -> Option<Self> {
        let mut row = Reader::new(row)?;
        Some(Self {
            generation: row.u64()?,
            version: WeakAttr { size: row.u64()?, mtime: row.time()?, ctime: row.time()? },
            block_bytes: row.u32()?,
            kept_bytes: row.u64()?,
        })
    }
}

fn read_name<'a>(row: &mut Reader<'a>) -> Option<(u64, &'a [u8], Target)> {
    let (place, name) = (row.u64()?, row.bytes()?);
    Some((place, name, Target { object: ObjectId(row.u64()?), file_type: file_type_of(row.u8()?)? }))
}

fn read_rights(row: &mut Reader<'_>) -> Option<Vec<RightRow>> {
    let mut rights = Vec::new();
    while !row.is_empty() {
        let user = row.identity()?;
        let (known, allowed) = (AccessMask::from_bits(row.u8()?)?, AccessMask::from_bits(row.u8()?)?);
        rights.push((user, known, allowed, row.time()?));
    }
    Some(rights)
}

#[cfg(test)]
mod tests {
    use tombolo_core::Identity;
    use tombolo_core::fs::{Device, FileType, Mode, Timestamp};

    use super::*;

    const NAMES: [(u64, &[u8], Target); 2] = {
        let target = Target { object: ObjectId(19), file_type: FileType::Directory };
        [(3, b"a", target), (20, &[b'x'; 255], target)]
    };

    fn samples() -> (ObjectRow, Vec<u8>, DataRow) {
        let time = |secs| Timestamp { secs, nanos: 5 };
        let attr = Attr {
            file_type: FileType::Symlink,
            mode: Mode::new(0o4755),
            nlink: 2,
            uid: 3,
            gid: 4,
            size: 5 << 40,
            blocks: 6,
            block_size: 7,
            rdev: Device { major: 8, minor: 9 },
            fsid: 10,
            fileid: 11,
            generation: 12,
            atime: time(-13),
            mtime: time(14),
            ctime: time(15),
            btime: Some(time(16)),
            volatile: false,
        };
        let handle = PersistentHandle { kind: -3, bytes: (0..64).collect() };
        let object = ObjectRow {
            handle,
            attr,
            parent: Some(ObjectId(17)),
            link: Some(b"target".to_vec()),
            names: (true, 18),
            rights: vec![
                (Identity { uid: 1, gid: 2, groups: None }, AccessMask::READ, AccessMask::empty(), time(3)),
                (
                    Identity { uid: 1, gid: 2, groups: Some([4, 5].into()) },
                    AccessMask::all(),
                    AccessMask::READ,
                    time(6),
                ),
            ],
        };
        let names = NamesRow::encoded(NAMES.into_iter());
        let version = WeakAttr::from(&attr);
        let data = DataRow { generation: 21, version, block_bytes: 65536, kept_bytes: 22 };
        (object, names, data)
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let (object, names, data) = samples();
        assert_eq!(ObjectRow::decoded(&object.encoded()), Some(object));
        let mut left = NAMES.into_iter();
        assert!(NamesRow::decode(&names, |place, name, target| left.next() == Some((place, name, target))));
        assert_eq!(left.next(), None);
        assert_eq!(DataRow::decoded(&data.encoded()), Some(data));
    }

    #[test]
    fn no_flipped_bit_and_no_cut_goes_unseen() {
        let (object, names, data) = samples();
        for row in [object.encoded(), names, data.encoded()] {
            let reads = |row: &[u8]| {
                ObjectRow::decoded(row).is_some()
                    || NamesRow::decode(row, |_, _, _| true)
                    || DataRow::decoded(row).is_some()
            };
            for bit in 0..row.len() * 8 {
                let mut flipped = row.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(!reads(&flipped), "bit {bit}");
            }
            (0..row.len()).for_each(|len| assert!(!reads(&row[..len]), "{len} bytes"));
        }
    }
}

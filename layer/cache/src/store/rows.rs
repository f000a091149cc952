//! How rows of the database are written: fields in little-endian order, behind a version and before a checksum.
//!
//! The database does not notice a flipped bit; a row that does not hold counts as not there (`docs/formats/cache.md`).

use tombolo_core::Identity;
use tombolo_core::fs::{AccessMask, Attr, Device, FileType, Mode, PersistentHandle, Timestamp, WeakAttr};

use super::ObjectId;
use crate::names::Target;
use crate::rights::RightRow;

/// The version of all rows.
const VERSION: u8 = 1;

/// What is kept of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRow {
    pub handle: PersistentHandle,
    pub attr: Attr,
    pub parent: Option<ObjectId>,
    pub link: Option<Vec<u8>>,
    /// Whether all names of the directory are kept, and the place of the next.
    pub names: (bool, u64),
    pub rights: Vec<RightRow>,
}

/// Some names of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamesRow(pub Vec<(u64, Vec<u8>, Target)>);

/// The data file of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRow {
    pub generation: u64,
    pub version: WeakAttr,
    pub block_bytes: u32,
    /// How much of it is here.
    pub kept_bytes: u64,
}

/// Builds a row.
pub(crate) struct Writer(Vec<u8>);

/// Takes a row apart. `None` where it ends too early or holds what no field can.
pub(crate) struct Reader<'a>(&'a [u8]);

impl Writer {
    fn new() -> Self {
        Self(vec![VERSION])
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u8(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn time(&mut self, time: Timestamp) {
        self.u64(time.secs.cast_unsigned());
        self.u32(time.nanos);
    }

    fn finished(mut self) -> Vec<u8> {
        let checksum = crc32c::crc32c(&self.0);
        self.u32(checksum);
        self.0
    }
}

impl<'a> Reader<'a> {
    fn new(row: &'a [u8]) -> Option<Self> {
        let (row, checksum) = row.split_last_chunk()?;
        let (version, rest) = row.split_first()?;
        let holds = crc32c::crc32c(row) == u32::from_le_bytes(*checksum) && *version == VERSION;
        holds.then_some(Self(rest))
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*value))
    }

    fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.u8()? {
            0 => Some(None),
            1 => read(self).map(Some),
            _ => None,
        }
    }

    fn time(&mut self) -> Option<Timestamp> {
        Some(Timestamp { secs: self.u64()?.cast_signed(), nanos: self.u32()? })
    }
}

impl ObjectRow {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut row = Writer::new();
        row.u32(self.handle.kind.cast_unsigned());
        row.bytes(&self.handle.bytes);
        write_attr(&mut row, &self.attr);
        row.option(self.parent, |row, parent| row.u64(parent.0));
        row.option(self.link.as_deref(), Writer::bytes);
        row.u8(self.names.0.into());
        row.u64(self.names.1);
        for (user, known, allowed, ctime) in &self.rights {
            row.u32(user.uid);
            row.u32(user.gid);
            let groups: Vec<u8> = user.groups().iter().flat_map(|group| group.to_le_bytes()).collect();
            row.option(user.groups.is_some().then_some(&groups[..]), Writer::bytes);
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
            attr: read_attr(&mut row)?,
            parent: row.option(|row| row.u64().map(ObjectId))?,
            link: row.option(|row| row.bytes().map(<[u8]>::to_vec))?,
            names: (row.u8()? == 1, row.u64()?),
            rights: read_rights(&mut row)?,
        })
    }
}

impl NamesRow {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut row = Writer::new();
        for (place, name, target) in &self.0 {
            row.u64(*place);
            row.bytes(name);
            row.u64(target.object.0);
            row.u8(type_number(target.file_type));
        }
        row.finished()
    }

    pub(crate) fn decoded(row: &[u8]) -> Option<Self> {
        let mut row = Reader::new(row)?;
        let mut names = Vec::new();
        while !row.0.is_empty() {
            let (place, name) = (row.u64()?, row.bytes()?.to_vec());
            names.push((
                place,
                name,
                Target { object: ObjectId(row.u64()?), file_type: file_type(row.u8()?)? },
            ));
        }
        Some(Self(names))
    }
}

impl DataRow {
    /// Whether its blocks are of a size that can be.
    pub(crate) fn has_blocks(&self) -> bool {
        self.block_bytes.is_power_of_two() && (4096..=1 << 20).contains(&self.block_bytes)
    }

    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut row = Writer::new();
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

fn read_rights(row: &mut Reader<'_>) -> Option<Vec<RightRow>> {
    let mut rights = Vec::new();
    while !row.0.is_empty() {
        let (uid, gid) = (row.u32()?, row.u32()?);
        let groups = row.option(Reader::bytes)?;
        let groups =
            groups.map(|bytes| bytes.as_chunks().0.iter().map(|group| u32::from_le_bytes(*group)).collect());
        let (known, allowed) = (AccessMask::from_bits(row.u8()?)?, AccessMask::from_bits(row.u8()?)?);
        rights.push((Identity { uid, gid, groups }, known, allowed, row.time()?));
    }
    Some(rights)
}

fn write_attr(row: &mut Writer, attr: &Attr) {
    row.u8(type_number(attr.file_type));
    row.u32(attr.mode.bits());
    for number in [attr.nlink, attr.uid, attr.gid, attr.block_size, attr.rdev.major, attr.rdev.minor] {
        row.u32(number);
    }
    for number in [attr.size, attr.blocks, attr.fsid, attr.fileid, attr.generation] {
        row.u64(number);
    }
    row.time(attr.atime);
    row.time(attr.mtime);
    row.time(attr.ctime);
    row.option(attr.btime, Writer::time);
}

fn read_attr(row: &mut Reader<'_>) -> Option<Attr> {
    let (file_type, mode) = (file_type(row.u8()?)?, Mode::new(row.u32()?));
    let (nlink, uid, gid, block_size) = (row.u32()?, row.u32()?, row.u32()?, row.u32()?);
    let rdev = Device { major: row.u32()?, minor: row.u32()? };
    let (size, blocks, fsid, fileid, generation) =
        (row.u64()?, row.u64()?, row.u64()?, row.u64()?, row.u64()?);
    let (atime, mtime, ctime) = (row.time()?, row.time()?, row.time()?);
    let btime = row.option(Reader::time)?;
    Some(Attr {
        file_type,
        mode,
        nlink,
        uid,
        gid,
        size,
        blocks,
        block_size,
        rdev,
        fsid,
        fileid,
        generation,
        atime,
        mtime,
        ctime,
        btime,
        volatile: false,
    })
}

const TYPES: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::Symlink,
    FileType::BlockDevice,
    FileType::CharDevice,
    FileType::Fifo,
    FileType::Socket,
];

fn type_number(file_type: FileType) -> u8 {
    TYPES.iter().position(|other| *other == file_type).unwrap_or_default() as u8
}

fn file_type(number: u8) -> Option<FileType> {
    TYPES.get(usize::from(number)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> (ObjectRow, NamesRow, DataRow) {
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
        let target = Target { object: ObjectId(19), file_type: FileType::Directory };
        let names = NamesRow(vec![(3, b"a".to_vec(), target), (20, vec![b'x'; 255], target)]);
        let version = WeakAttr::from(&attr);
        let data = DataRow { generation: 21, version, block_bytes: 65536, kept_bytes: 22 };
        (object, names, data)
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let (object, names, data) = samples();
        assert_eq!(ObjectRow::decoded(&object.encoded()), Some(object));
        assert_eq!(NamesRow::decoded(&names.encoded()), Some(names));
        assert_eq!(DataRow::decoded(&data.encoded()), Some(data));
    }

    #[test]
    fn no_flipped_bit_and_no_cut_goes_unseen() {
        let (object, names, data) = samples();
        for row in [object.encoded(), names.encoded(), data.encoded()] {
            let reads = |row: &[u8]| {
                ObjectRow::decoded(row).is_some()
                    || NamesRow::decoded(row).is_some()
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

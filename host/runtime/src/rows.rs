//! Encoding of database rows on disk: little-endian fields, preceded by a version and followed by a checksum.
//!
//! Databases do not detect flipped bits; an invalid row is treated as missing (`docs/formats`).

use tombolo_core::Identity;
use tombolo_core::fs::{Attr, Device, FileType, Mode, Timestamp};

/// Version of all rows.
const VERSION: u8 = 1;

/// Encoder of a row.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

/// Decoder of a row. Its methods return `None` at the end of the row or for an invalid value.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl Default for Writer {
    fn default() -> Self {
        Self(vec![VERSION])
    }
}

impl Writer {
    /// Appends a byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Appends a number of four bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a number of eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a length and that many bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }

    /// Appends a presence flag, and the value if present.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u8(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Appends seconds and nanoseconds.
    pub fn time(&mut self, time: Timestamp) {
        self.u64(time.secs.cast_unsigned());
        self.u32(time.nanos);
    }

    /// Appends attributes, without [`Attr::volatile`].
    pub fn attr(&mut self, attr: &Attr) {
        self.u8(file_type_number(attr.file_type));
        self.u32(attr.mode.bits());
        for number in [attr.nlink, attr.uid, attr.gid, attr.block_size, attr.rdev.major, attr.rdev.minor] {
            self.u32(number);
        }
        for number in [attr.size, attr.blocks, attr.fsid, attr.fileid, attr.generation] {
            self.u64(number);
        }
        self.time(attr.atime);
        self.time(attr.mtime);
        self.time(attr.ctime);
        self.option(attr.btime, Writer::time);
    }

    /// Appends a user's identity.
    pub fn identity(&mut self, user: &Identity) {
        self.u32(user.uid);
        self.u32(user.gid);
        let groups: Vec<u8> = user.groups().iter().flat_map(|group| group.to_le_bytes()).collect();
        self.option(user.groups.is_some().then_some(&groups[..]), Self::bytes);
    }

    /// Returns the row, completed with its checksum.
    pub fn finished(mut self) -> Vec<u8> {
        let checksum = crc32c::crc32c(&self.0);
        self.u32(checksum);
        self.0
    }
}

impl<'a> Reader<'a> {
    /// Returns a decoder of a row, or `None` if its version or checksum is wrong.
    pub fn new(row: &'a [u8]) -> Option<Self> {
        let (row, checksum) = row.split_last_chunk()?;
        let (version, rest) = row.split_first()?;
        let holds = crc32c::crc32c(row) == u32::from_le_bytes(*checksum) && *version == VERSION;
        holds.then_some(Self(rest))
    }

    /// Reads a byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// Reads a number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*value))
    }

    /// Reads a number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a length and that many bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    /// Reads an optional value: `Some(None)` if it is absent, `None` if the row is invalid.
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.u8()? {
            0 => Some(None),
            1 => read(self).map(Some),
            _ => None,
        }
    }

    /// Reads seconds and nanoseconds.
    pub fn time(&mut self) -> Option<Timestamp> {
        Some(Timestamp { secs: self.u64()?.cast_signed(), nanos: self.u32()? })
    }

    /// Reads attributes written by [`Writer::attr`].
    pub fn attr(&mut self) -> Option<Attr> {
        let (file_type, mode) = (file_type_of(self.u8()?)?, Mode::new(self.u32()?));
        let (nlink, uid, gid, block_size) = (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        let rdev = Device { major: self.u32()?, minor: self.u32()? };
        let (size, blocks, fsid, fileid, generation) =
            (self.u64()?, self.u64()?, self.u64()?, self.u64()?, self.u64()?);
        let (atime, mtime, ctime) = (self.time()?, self.time()?, self.time()?);
        let btime = self.option(Reader::time)?;
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

    /// Reads an identity written by [`Writer::identity`].
    pub fn identity(&mut self) -> Option<Identity> {
        let (uid, gid) = (self.u32()?, self.u32()?);
        let groups = self.option(Self::bytes)?;
        let groups =
            groups.map(|bytes| bytes.as_chunks().0.iter().map(|group| u32::from_le_bytes(*group)).collect());
        Some(Identity { uid, gid, groups })
    }

    /// Returns `true` at the end of the row.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the number that stands for a file type in a row.
pub fn file_type_number(file_type: FileType) -> u8 {
    FileType::ALL.iter().position(|other| *other == file_type).unwrap_or_default() as u8
}

/// Returns the file type with this number, or `None` for an unknown number.
pub fn file_type_of(number: u8) -> Option<FileType> {
    FileType::ALL.get(usize::from(number)).copied()
}

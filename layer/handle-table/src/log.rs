//! The table on disk: a header and one record for each change, with checksums (`docs/formats/handles.md`).
//!
//! Reading ends at an invalid record: what follows cannot be trusted to be aligned. Only a rewritten log is
//! synced to the disk: at each start, and when it has grown long (`rewrite`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tombolo_core::fs::{Attr, NAME_MAX, Name, NameBuf, Volume};

const MAGIC: [u8; 8] = *b"tmblhndl";
const VERSION: u32 = 1;

const HEADER_BYTES: usize = 32;
/// Length and checksum preceding a record.
const MARK_BYTES: usize = 8;
/// Length of a record without its name.
const FIXED_BYTES: usize = 40;

const _: () = {
    // Magic, version, reserved, volume.
    assert!(HEADER_BYTES == 8 + 4 + 4 + 16);
    assert!(MARK_BYTES == 4 + 4);
    // Id, parent, file system, inode number, generation.
    assert!(FIXED_BYTES == 5 * size_of::<u64>());
};

/// Parent of a file that has lost its known name; no directory has this number.
const NO_PARENT: u64 = u64::MAX;

/// A file's number. Its upper half is random at each start, so that numbers lost in a crash are not issued
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(pub u64);

impl Id {
    /// The export's root.
    pub const ROOT: Self = Self(0);
}

/// Identity of a file, by which it is recognised under any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileIdentity {
    pub fsid: u64,
    pub fileid: u64,
    /// Generation number; 0 if the file system does not distinguish a file from an earlier one with its inode
    /// number.
    pub generation: u64,
}

impl FileIdentity {
    pub fn of(attr: &Attr) -> Self {
        Self { fsid: attr.fsid, fileid: attr.fileid, generation: attr.generation }
    }
}

/// Directory and name under which a file was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub parent: Id,
    pub name: NameBuf,
}

impl Location {
    pub fn new(parent: Id, name: Name<'_>) -> Self {
        Self { parent, name: name.to_owned() }
    }
}

/// The identity and location of a file since a change; without a location, the file has lost its known name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub id: Id,
    pub identity: FileIdentity,
    pub location: Option<Location>,
}

/// Length of the buffered records at which they are written, in bytes.
pub(super) const BUFFER_BYTES: usize = 1 << 16;

/// A log is long if it has more than two records per file plus this number.
const RECORDS_SPARE: usize = 1 << 16;

pub(super) struct Log {
    /// `None` for a log that discards records, and after a failed write.
    file: Option<File>,
    /// Records not written yet.
    buffer: Vec<u8>,
    /// Number of records in the file and the buffer.
    records: usize,
    /// Number of records up to which the log does not count as long, because rewriting it has just failed.
    long_from: usize,
    /// Records appended since a rewrite of the log began, to be added to the new log, the *successor*; `None`
    /// while no rewrite is in progress.
    for_successor: Option<SuccessorRecords>,
}

#[derive(Default)]
struct SuccessorRecords {
    bytes: Vec<u8>,
    records: usize,
}

impl Log {
    /// Creates a log without a file, which discards records.
    pub fn discarding() -> Self {
        Self { file: None, buffer: Vec::new(), records: 0, long_from: 0, for_successor: None }
    }

    /// Creates a new file at `path`, in place of an existing one, with a log without records.
    pub fn create(path: &Path, volume: Volume) -> io::Result<Self> {
        // A new file is created instead of truncating the old one, because another process may still have the
        // old one open.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(&volume.0);
        file.write_all(&header)?;
        Ok(Self { file: Some(file), ..Self::discarding() })
    }

    /// Appends a record, which is in the file after the next [`flush`](Self::flush).
    pub fn append(&mut self, record: &Record) {
        if self.file.is_none() {
            return;
        }
        let start = self.buffer.len();
        encode(record, &mut self.buffer);
        self.records += 1;
        if let Some(records) = &mut self.for_successor {
            records.bytes.extend_from_slice(self.buffer.get(start..).unwrap_or_default());
            records.records += 1;
        }
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Writes the appended records. After an error no further records are appended: files registered from
    /// then on are stale after a restart.
    pub fn flush(&mut self) {
        let Some(file) = self.file.as_mut().filter(|_| !self.buffer.is_empty()) else { return };
        if let Err(error) = file.write_all(&self.buffer) {
            tracing::error!(%error, "cannot write the table of file handles: new handles are valid only until the process ends");
            self.file = None;
        }
        self.buffer.clear();
    }

    /// Writes the appended records, and syncs the log to the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush();
        match &self.file {
            Some(file) => file.sync_all(),
            None => Err(io::Error::other("the table cannot be written")),
        }
    }

    /// Returns `true` if the log is long for this number of files, and is not being rewritten.
    pub fn is_long(&self, files: usize) -> bool {
        let enough = files.saturating_mul(2).saturating_add(RECORDS_SPARE).max(self.long_from);
        self.file.is_some() && self.for_successor.is_none() && self.records > enough
    }

    /// Begins collecting records for a successor.
    pub fn begin_successor(&mut self) {
        self.for_successor = Some(SuccessorRecords::default());
    }

    /// Abandons the successor. Another attempt is made after further growth.
    pub fn end_successor(&mut self) {
        self.for_successor = None;
        self.long_from = self.records.saturating_add(RECORDS_SPARE);
    }

    /// Appends to the successor `next` the records collected meanwhile, renames it from `draft` to `path`,
    /// and replaces this log by it.
    pub fn succeed(&mut self, mut next: Self, draft: &Path, path: &Path) -> io::Result<()> {
        self.flush();
        let (Some(file), Some(records)) = (&mut next.file, &self.for_successor) else {
            return Err(io::Error::other("the table cannot be written"));
        };
        file.write_all(&records.bytes)?;
        fs::rename(draft, path)?;
        next.records += records.records;
        *self = next;
        Ok(())
    }
}

/// Syncs the directory entry of a file to the disk.
pub(super) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all())
}

/// Returns the temporary path for a table at `path`.
pub(super) fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Reads a table, calling `replay` with each record before the first invalid one. Returns the table's volume;
/// `None` if the file is not a table, or one of an unsupported version.
pub(super) fn read(from: &mut impl Read, mut replay: impl FnMut(Record)) -> io::Result<Option<Volume>> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    from.take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    let Some(volume) = volume_of(&header) else { return Ok(None) };
    let mut record = Vec::with_capacity(MARK_BYTES + FIXED_BYTES + NAME_MAX);
    loop {
        record.clear();
        from.take(MARK_BYTES as u64).read_to_end(&mut record)?;
        let len = record.first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
        // At most the length of a record is read: the remainder may be damage of any length.
        from.take(len.min(FIXED_BYTES + NAME_MAX) as u64).read_to_end(&mut record)?;
        match decode(&record) {
            Some((found, _)) => replay(found),
            None if record.is_empty() => break,
            None => {
                let rest = io::copy(from, &mut io::sink())?;
                let lost_bytes = record.len() as u64 + rest;
                tracing::warn!(lost_bytes, "the end of the table of file handles is damaged");
                break;
            }
        }
    }
    Ok(Some(volume))
}

fn volume_of(header: &[u8]) -> Option<Volume> {
    let (magic, rest) = header.split_first_chunk::<8>()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<4>()?;
    let (volume, _) = rest.split_first_chunk::<16>()?;
    (*magic == MAGIC && u32::from_le_bytes(*version) == VERSION).then_some(Volume(*volume))
}

fn encode(record: &Record, into: &mut Vec<u8>) {
    let name =
        record.location.as_ref().map(|location| location.name.as_name().as_bytes()).unwrap_or_default();
    let parent = record.location.as_ref().map_or(NO_PARENT, |location| location.parent.0);
    let FileIdentity { fsid, fileid, generation } = record.identity;
    let start = into.len() + MARK_BYTES;
    let len = (FIXED_BYTES + name.len()) as u32;
    into.extend_from_slice(&len.to_le_bytes());
    into.extend_from_slice(&[0; 4]);
    for number in [record.id.0, parent, fsid, fileid, generation] {
        into.extend_from_slice(&number.to_le_bytes());
    }
    into.extend_from_slice(name);
    let sum = crc32c::crc32c(into.get(start..).unwrap_or_default()).to_le_bytes();
    if let Some(location) = into.get_mut(start - 4..start) {
        location.copy_from_slice(&sum);
    }
}

/// Decodes the first record. Returns it with the remaining bytes, or `None` if it is invalid.
fn decode(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if !(FIXED_BYTES..=FIXED_BYTES + NAME_MAX).contains(&len) {
        return None;
    }
    let (record, after) = rest.split_at_checked(len)?;
    if crc32c::crc32c(record) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (numbers, name) = record.split_at_checked(FIXED_BYTES)?;
    let (numbers, _) = numbers.as_chunks::<8>();
    let &[id, parent, fsid, fileid, generation] = numbers else { return None };
    let number = u64::from_le_bytes;
    let location = match number(parent) {
        NO_PARENT => None,
        parent => Some(Location::new(Id(parent), Name::new(name).ok()?)),
    };
    let identity =
        FileIdentity { fsid: number(fsid), fileid: number(fileid), generation: number(generation) };
    Some((Record { id: Id(number(id)), identity, location }, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenError;
    use crate::rewrite::open;

    fn location(name: &str) -> Location {
        Location::new(Id::ROOT, Name::new(name.as_bytes()).expect("a name"))
    }

    fn identity(fileid: u64) -> FileIdentity {
        FileIdentity { fsid: 1, fileid, generation: 2 }
    }

    #[test]
    fn a_record_is_as_the_format_has_it() {
        let record = Record { id: Id(0x0102), identity: identity(3), location: Some(location("ab")) };
        let mut bytes = Vec::new();
        encode(&record, &mut bytes);
        assert_eq!(bytes.len(), 8 + 40 + 2);
        assert_eq!(bytes[..4], 42_u32.to_le_bytes());
        assert_eq!(bytes[8..16], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[48..], *b"ab");
        assert_eq!(decode(&bytes), Some((record, &[][..])));
        let nowhere = Record { id: Id(9), identity: identity(3), location: None };
        bytes.clear();
        encode(&nowhere, &mut bytes);
        assert_eq!(decode(&bytes), Some((nowhere, &[][..])));
    }

    #[test]
    fn damaged_table_loses_only_its_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("table");
        let (mut table, volume) = open(&path).expect("a new table");
        let ids: Vec<Id> = (1..=3)
            .map(|n| table.register(&location(&format!("file-{n}")), identity(n), false).expect("a number"))
            .collect();
        table.moved(&location("file-1"), &location("moved"), [Some(ids[0]), None]);
        let written = fs::metadata(&path).expect("the table").len();
        assert_eq!(written, HEADER_BYTES as u64, "written at once, not each by itself");
        table.log().flush();
        drop(table);
        let (table, again) = open(&path).expect("the table");
        assert_eq!(again, volume);
        assert!(ids.iter().all(|&id| table.path_of(id).is_ok()));
        assert_eq!(table.path_of(ids[0]).expect("a way")[0].0, location("moved").name);
        drop(table);

        // The log was rewritten in the order of registration: damage to the second record also loses the
        // third.
        let whole = fs::read(&path).expect("read");
        let mut bytes = whole.clone();
        bytes[HEADER_BYTES + MARK_BYTES + FIXED_BYTES + "moved".len() + MARK_BYTES + 3] ^= 1;
        fs::write(&path, bytes).expect("damage");
        let (mut table, _) = open(&path).expect("the table");
        let known: Vec<bool> = ids.iter().map(|&id| table.path_of(id).is_ok()).collect();
        assert_eq!(known, [true, false, false]);
        let new = table.register(&location("file-3"), identity(3), false).expect("a number");
        assert!(!ids.contains(&new), "a lost number is not given out again");
        drop(table);

        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).expect("cut");
            assert_eq!(open(&path).is_ok(), len >= HEADER_BYTES, "{len} bytes");
        }
    }

    #[test]
    fn other_files_are_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("table");
        for bytes in [&b"thesis"[..], &[0; 100], b"tmblhndl\x02\0\0\0aaaabbbbbbbbbbbbbbbb"] {
            fs::write(&path, bytes).expect("write");
            assert!(matches!(open(&path), Err(OpenError::Foreign { .. })));
            assert_eq!(fs::read(&path).expect("read"), bytes);
        }
    }
}

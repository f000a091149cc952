//! The table on disk: a header, and a record for each change, each with a checksum (`docs/formats/handles.md`).
//!
//! A record that does not hold ends the reading: what follows cannot be trusted to be in its place. Nothing is written
//! through to the disk but the log that is written anew at each start.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tombolo_core::fs::{NAME_MAX, Name, Volume};
use tombolo_sys::random;

use super::OpenError;
use super::table::{Id, Place, Table, Who};

const MAGIC: [u8; 8] = *b"tmblhndl";
const VERSION: u32 = 1;

const HEADER_BYTES: usize = 32;
/// Length and checksum of a record, in front of it.
const MARK_BYTES: usize = 8;
/// A record without its name.
const FIXED_BYTES: usize = 40;

const _: () = {
    // Magic, version, nothing, volume.
    assert!(HEADER_BYTES == 8 + 4 + 4 + 16);
    assert!(MARK_BYTES == 4 + 4);
    // Id, parent, file system, inode number, generation.
    assert!(FIXED_BYTES == 5 * size_of::<u64>());
};

/// Says that a file has lost the name that we knew: no file is in a directory with this number.
const NOWHERE: u64 = u64::MAX;

/// What happened to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub id: Id,
    pub who: Who,
    pub place: Option<Place>,
}

/// A log that is appended to.
pub(super) struct Log {
    file: Option<File>,
    buffer: Vec<u8>,
}

impl Log {
    /// One that keeps nothing.
    pub fn nowhere() -> Self {
        Self { file: None, buffer: Vec::new() }
    }

    /// Adds a record. If that fails, nothing more is kept: what is met from now on is stale after a restart.
    pub fn append(&mut self, record: &Record) {
        let Some(file) = &mut self.file else { return };
        self.buffer.clear();
        encode(record, &mut self.buffer);
        if let Err(error) = file.write_all(&self.buffer) {
            tracing::error!(%error, "the table of file handles cannot be written: new handles end with this process");
            self.file = None;
        }
    }
}

/// Reads the table at `path`, or begins one, and writes it anew.
pub(super) fn open(path: &Path) -> Result<(Table, Volume), OpenError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    let mut epoch = [0; 4];
    random::fill(&mut epoch).map_err(|errno| at(path)(errno.into()))?;
    let mut table = Table::new(Log::nowhere(), u32::from_le_bytes(epoch).max(1));
    let volume = match fs::read(path) {
        Ok(bytes) => read(&bytes, &mut table).ok_or_else(|| OpenError::Foreign { path: path.to_owned() })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut volume = [0; 16];
            random::fill(&mut volume).map_err(|errno| at(path)(errno.into()))?;
            Volume(volume)
        }
        Err(error) => return Err(at(path)(error)),
    };
    let draft = draft_of(path);
    let log = write_anew(&draft, &table, volume).map_err(at(&draft))?;
    fs::rename(&draft, path).map_err(at(path))?;
    if let Some(directory) = path.parent() {
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(at(directory))?;
    }
    table.use_log(log);
    Ok((table, volume))
}

fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn write_anew(draft: &Path, table: &Table, volume: Volume) -> io::Result<Log> {
    let mut open = File::options();
    let mut file = open.write(true).create(true).truncate(true).mode(0o600).open(draft)?;
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(&volume.0);
    file.write_all(&header)?;
    let mut log = Log { file: Some(file), buffer: Vec::new() };
    table.write_to(&mut log);
    match &log.file {
        Some(file) => file.sync_all()?,
        None => return Err(io::Error::other("the table cannot be written")),
    }
    Ok(log)
}

/// The volume, with the records that hold put into the table; `None` if it is no table of ours.
fn read(bytes: &[u8], table: &mut Table) -> Option<Volume> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<4>()?;
    let (volume, mut rest) = rest.split_first_chunk::<16>()?;
    if *magic != MAGIC || u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    while let Some((record, after)) = decode(rest) {
        table.replay(record);
        rest = after;
    }
    if !rest.is_empty() {
        tracing::warn!(lost_bytes = rest.len(), "the end of the table of file handles is damaged");
    }
    Some(Volume(*volume))
}

fn encode(record: &Record, into: &mut Vec<u8>) {
    let name = record.place.as_ref().map(|place| place.name.as_name().as_bytes()).unwrap_or_default();
    let parent = record.place.as_ref().map_or(NOWHERE, |place| place.parent.0);
    let Who { fsid, fileid, generation } = record.who;
    let start = into.len() + MARK_BYTES;
    let len = (FIXED_BYTES + name.len()) as u32;
    into.extend_from_slice(&len.to_le_bytes());
    into.extend_from_slice(&[0; 4]);
    for number in [record.id.0, parent, fsid, fileid, generation] {
        into.extend_from_slice(&number.to_le_bytes());
    }
    into.extend_from_slice(name);
    let sum = crc32c::crc32c(into.get(start..).unwrap_or_default()).to_le_bytes();
    if let Some(place) = into.get_mut(start - 4..start) {
        place.copy_from_slice(&sum);
    }
}

/// The first record, and what follows; `None` where there is none that holds.
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
    let place = match number(parent) {
        NOWHERE => None,
        parent => Some(Place::new(Id(parent), Name::new(name).ok()?)),
    };
    let who = Who { fsid: number(fsid), fileid: number(fileid), generation: number(generation) };
    Some((Record { id: Id(number(id)), who, place }, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        Place::new(Id::ROOT, Name::new(name.as_bytes()).expect("a name"))
    }

    fn who(fileid: u64) -> Who {
        Who { fsid: 1, fileid, generation: 2 }
    }

    #[test]
    fn a_record_is_as_the_format_has_it() {
        let record = Record { id: Id(0x0102), who: who(3), place: Some(place("ab")) };
        let mut bytes = Vec::new();
        encode(&record, &mut bytes);
        assert_eq!(bytes.len(), 8 + 40 + 2);
        assert_eq!(bytes[..4], 42_u32.to_le_bytes());
        assert_eq!(bytes[8..16], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[48..], *b"ab");
        assert_eq!(decode(&bytes), Some((record, &[][..])));
        let nowhere = Record { id: Id(9), who: who(3), place: None };
        bytes.clear();
        encode(&nowhere, &mut bytes);
        assert_eq!(decode(&bytes), Some((nowhere, &[][..])));
    }

    #[test]
    fn what_was_met_is_there_after_a_restart_and_damage_costs_the_end_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("table");
        let (mut table, volume) = open(&path).expect("a new table");
        let ids: Vec<Id> = (1..=3)
            .map(|n| table.meet(&place(&format!("file-{n}")), who(n), false).expect("a number"))
            .collect();
        table.moved(&place("file-1"), &place("moved"));
        drop(table);
        let (table, again) = open(&path).expect("the table");
        assert_eq!(again, volume);
        assert!(ids.iter().all(|&id| table.way(id).is_ok()));
        assert_eq!(table.way(ids[0]).expect("a way")[0].0, place("moved").name);
        drop(table);

        // The log was written anew, in the order in which the files were met: damage in the second costs the third too.
        let whole = fs::read(&path).expect("read");
        let mut bytes = whole.clone();
        bytes[HEADER_BYTES + MARK_BYTES + FIXED_BYTES + "moved".len() + MARK_BYTES + 3] ^= 1;
        fs::write(&path, bytes).expect("damage");
        let (mut table, _) = open(&path).expect("the table");
        let known: Vec<bool> = ids.iter().map(|&id| table.way(id).is_ok()).collect();
        assert_eq!(known, [true, false, false]);
        let new = table.meet(&place("file-3"), who(3), false).expect("a number");
        assert!(!ids.contains(&new), "a lost number is not given out again");
        drop(table);

        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).expect("cut");
            assert_eq!(open(&path).is_ok(), len >= HEADER_BYTES, "{len} bytes");
        }
    }

    #[test]
    fn what_is_no_table_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("table");
        for bytes in [&b"thesis"[..], &[0; 100], b"tmblhndl\x02\0\0\0aaaabbbbbbbbbbbbbbbb"] {
            fs::write(&path, bytes).expect("write");
            assert!(matches!(open(&path), Err(OpenError::Foreign { .. })));
            assert_eq!(fs::read(&path).expect("read"), bytes);
        }
    }
}

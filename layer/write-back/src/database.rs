//! The database of the journal: its tables (`docs/formats/write-back.md`), the writing of groups of changes,
//! and the reading at the start.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use thiserror::Error as ThisError;
use tombolo_core::Error;

use crate::data_file::DataFiles;
use crate::journal::Batch;
use crate::sums::{self, Sums};

/// Reason for which a journal cannot be used.
#[derive(Debug, ThisError)]
pub enum JournalError {
    /// A directory or file of the journal cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the directory or file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The database cannot be used.
    #[error("{}: {source}", path.display())]
    Database {
        /// Path of the database.
        path: PathBuf,
        /// The database's error.
        #[source]
        source: rusqlite::Error,
    },
    /// A row is damaged. It is the only copy, so nothing is discarded.
    #[error("{}: damaged row in {table}", path.display())]
    Damaged {
        /// Path of the database.
        path: PathBuf,
        /// Name of the table.
        table: &'static str,
    },
}

/// Contents of the journal at the start.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Rows of nodes by number, and of names by directory and name.
    pub nodes: Vec<(u64, Vec<u8>)>,
    pub names: Vec<(u64, Vec<u8>, Vec<u8>)>,
    /// Records by which the cache finds its nodes again even if it has lost their numbers, by number.
    pub records: Vec<(u64, Vec<u8>)>,
    /// Ranges with data, and those of them that fail their checksums, by the generation of the data file.
    /// `torn` is filled only when the journal is opened.
    pub extents: HashMap<u64, Vec<Range<u64>>>,
    pub torn: HashMap<u64, Vec<Range<u64>>>,
    /// Number of the latest change, and of the latest change that the origin has.
    pub change: u64,
    pub at_origin: u64,
    /// Lower bound of the unused numbers of nodes and data files.
    pub next_id: u64,
    /// Random part of the hidden names (`tree::HIDDEN`) of this journal; 0 if none was chosen yet.
    pub tag: u64,
}

pub(crate) const DATABASE: &str = "journal.db";

const TABLES: &str = "
    pragma journal_mode = wal;
    pragma synchronous = full;
    pragma cache_size = -8000;
    pragma busy_timeout = 10000;
    create table if not exists nodes (id integer primary key, row blob);
    create table if not exists names (dir integer, name blob, row blob, primary key (dir, name)) without rowid;
    create table if not exists extents (generation integer, start integer, end integer,
        primary key (generation, start)) without rowid;
    create table if not exists pieces (seq integer primary key, generation integer, at integer, bytes blob, sum integer);
    create table if not exists numbers (what text primary key, value integer);
    create table if not exists records (id integer primary key, record blob);
";

/// Writes a group to the database in one transaction. With `is_emptied`, all data in the journal are stable
/// in their files or obsolete, and are dropped from the journal.
pub(crate) fn commit(
    database: &Connection,
    batch: &Batch,
    sums: &Sums,
    is_emptied: bool,
) -> rusqlite::Result<()> {
    let transaction = database.unchecked_transaction()?;
    for (node, record) in &batch.records {
        run(database, "insert or replace into records values (?, ?)", params![node.0.cast_signed(), record])?;
    }
    for (id, row) in &batch.nodes {
        let id = id.cast_signed();
        match row {
            Some(row) => run(database, "insert or replace into nodes values (?, ?)", params![id, row])?,
            None => run(database, "delete from nodes where id = ?", [id])?,
        }
    }
    for ((dir, name), row) in &batch.names {
        let dir = dir.cast_signed();
        match row {
            Some(row) => {
                run(database, "insert or replace into names values (?, ?, ?)", params![dir, name, row])?;
            }
            None => run(database, "delete from names where dir = ? and name = ?", params![dir, name])?,
        }
    }
    for (generation, delta) in &batch.extents {
        let generation = generation.cast_signed();
        for start in &delta.gone {
            let delete = "delete from extents where generation = ? and start = ?";
            run(database, delete, [generation, start.cast_signed()])?;
        }
        if let Some(new) = &delta.new {
            let row = [generation, new.start.cast_signed(), new.end.cast_signed()];
            run(database, "insert or replace into extents values (?, ?, ?)", row)?;
        }
    }
    if is_emptied {
        run(database, "delete from pieces", [])?;
    }
    // These files were just synced, with the data that earlier groups have stored as pieces.
    for generation in batch.files.keys() {
        run(database, "delete from pieces where generation = ?", [generation.cast_signed()])?;
    }
    for (generation, at, bytes) in batch.pieces.iter().filter(|_| !is_emptied) {
        if !batch.files.contains_key(generation) {
            let row = params![generation.cast_signed(), at.cast_signed(), bytes, sum(bytes)];
            run(database, "insert into pieces (generation, at, bytes, sum) values (?, ?, ?, ?)", row)?;
        }
    }
    sums::keep(database, sums)?;
    for file in &batch.gone {
        let generation = file.generation.cast_signed();
        for table in ["sums", "pieces", "extents"] {
            run(database, &format!("delete from {table} where generation = ?"), [generation])?;
        }
    }
    let set = "insert or replace into numbers values (?, ?)";
    run(database, set, params!["change", batch.change.cast_signed()])?;
    if let Some(at_origin) = batch.at_origin {
        run(database, set, params!["at_origin", at_origin.cast_signed()])?;
    }
    transaction.commit()
}

/// Runs a statement, which stays prepared for the next time.
fn run(database: &Connection, statement: &str, row: impl Params) -> rusqlite::Result<()> {
    database.prepare_cached(statement)?.execute(row).map(drop)
}

/// Converts the error of a failed write, distinguishing a full disk.
pub(crate) fn not_written(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => Error::NoSpace,
        _ => Error::io(error),
    }
}

/// Reads the contents of the journal in a directory, if there is one.
pub(crate) fn kept_in(dir: &Path) -> std::result::Result<Option<Kept>, JournalError> {
    let path = dir.join(DATABASE);
    if !path.exists() {
        return Ok(None);
    }
    let kept = connect(&path).and_then(|database| read(&database));
    kept.map(Some).map_err(|source| JournalError::Database { path, source })
}

pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.execute_batch(TABLES)?;
    database.execute_batch(sums::TABLE)?;
    database.set_prepared_statement_cache_capacity(32);
    Ok(database)
}

pub(crate) fn read(database: &Connection) -> rusqlite::Result<Kept> {
    let unsigned = |value: i64| value.cast_unsigned();
    let number = |what: &str| -> rusqlite::Result<u64> {
        let get = "select value from numbers where what = ?";
        let value = database.query_row(get, [what], |row| row.get(0)).optional()?;
        Ok(value.map_or(0, unsigned))
    };
    let mut kept = Kept {
        nodes: rows(database, "select id, row from nodes", |row| Ok((unsigned(row.get(0)?), row.get(1)?)))?,
        records: rows(database, "select id, record from records", |row| {
            Ok((unsigned(row.get(0)?), row.get(1)?))
        })?,
        names: rows(database, "select dir, name, row from names", |row| {
            Ok((unsigned(row.get(0)?), row.get(1)?, row.get(2)?))
        })?,
        change: number("change")?,
        at_origin: number("at_origin")?,
        next_id: number("next_id")?,
        tag: number("tag")?,
        ..Kept::default()
    };
    let extent = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let extents: Vec<(i64, i64, i64)> = rows(database, "select generation, start, end from extents", extent)?;
    for (generation, start, end) in extents {
        kept.extents.entry(unsigned(generation)).or_default().push(unsigned(start)..unsigned(end));
    }
    Ok(kept)
}

fn rows<T>(
    database: &Connection,
    query: &str,
    convert: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    database.prepare(query)?.query_map([], convert)?.collect()
}

/// Stores a new random part for the journal's hidden names, and returns it.
pub(crate) fn new_tag(database: &Connection) -> rusqlite::Result<u64> {
    let mut bytes = [0; 4];
    tombolo_sys::random::fill(&mut bytes)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let tag = u64::from(u32::from_ne_bytes(bytes).max(1));
    let set = "insert or replace into numbers values ('tag', ?)";
    database.execute(set, [tag.cast_signed()])?;
    Ok(tag)
}

/// Moves the data stored in the journal to their files, which are synced before the journal drops the data.
/// Fails if data do not match their checksum. `path` is the database's.
pub(crate) fn replay(
    database: &Connection,
    files: &Arc<DataFiles>,
    path: &Path,
) -> std::result::Result<(), JournalError> {
    let failed = |source| JournalError::Database { path: path.to_owned(), source };
    let mut get =
        database.prepare("select generation, at, bytes, sum from pieces order by seq").map_err(failed)?;
    let pieces = get.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    let mut any = false;
    for piece in pieces.map_err(failed)? {
        let (generation, at, bytes, checksum): (i64, i64, Vec<u8>, i64) = piece.map_err(failed)?;
        if sum(&bytes) != checksum {
            return Err(JournalError::Damaged { path: path.to_owned(), table: "pieces" });
        }
        let file = files.file(generation.cast_unsigned());
        file.write(at.cast_unsigned(), bytes.into()).map_err(|error| JournalError::Io {
            path: file.path.clone(),
            source: std::io::Error::other(error),
        })?;
        any = true;
    }
    drop(get);
    if any {
        let dir = File::open(files.dir())
            .and_then(|dir| tombolo_sys::sync::file_system(dir.as_fd()).map_err(Into::into));
        dir.map_err(|source| JournalError::Io { path: files.dir().to_owned(), source })?;
        database.execute("delete from pieces", []).map_err(failed)?;
    }
    Ok(())
}

fn sum(bytes: &[u8]) -> i64 {
    i64::from(crc32c::crc32c(bytes))
}

//! The SQLite database, which loses no commit if the process is killed, and only the last ones on power loss
//! (`docs/decisions/cache-store.md`).

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Result, params};

use super::ObjectId;

/// A connection to the database of the index.
pub(super) struct Database(Connection);

/// Number of blocks whose checksums share a row.
pub(super) const CHUNK_BLOCKS: u64 = 1024;

const TABLES: &str = "
    pragma journal_mode = wal;
    pragma synchronous = normal;
    pragma cache_size = -16000;
    pragma journal_size_limit = 4194304;
    pragma busy_timeout = 10000;
    create table if not exists objects (id integer primary key, row blob);
    create table if not exists handles (handle blob primary key, id integer) without rowid;
    create table if not exists names (id integer, part integer, row blob, primary key (id, part)) without rowid;
    create table if not exists data (id integer primary key, row blob);
    create table if not exists blocks (id integer, generation integer, chunk integer, sums blob,
        primary key (id, generation, chunk)) without rowid;
";

impl Database {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(TABLES)?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(Self(connection))
    }

    /// Runs `work` in one transaction.
    pub(super) fn together(&self, work: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let transaction = self.0.unchecked_transaction()?;
        work(self)?;
        transaction.commit()
    }

    pub(super) fn object(&self, id: ObjectId) -> Result<Option<Vec<u8>>> {
        self.row("select row from objects where id = ?", id)
    }

    pub(super) fn set_object(&self, id: ObjectId, handle: &[u8], row: &[u8]) -> Result<()> {
        let mut set = self.0.prepare_cached("insert or replace into objects values (?, ?)")?;
        set.execute(params![number(id.0), row])?;
        let mut set = self.0.prepare_cached("insert or replace into handles values (?, ?)")?;
        set.execute(params![handle, number(id.0)]).map(drop)
    }

    pub(super) fn id_of(&self, handle: &[u8]) -> Result<Option<ObjectId>> {
        let mut get = self.0.prepare_cached("select id from handles where handle = ?")?;
        get.query_row([handle], |row| row.get(0).map(|id: i64| ObjectId(id.cast_unsigned()))).optional()
    }

    /// Passes the parts of a directory's names to `take`, in order. Returns `false` if one was refused.
    pub(super) fn names(&self, id: ObjectId, mut take: impl FnMut(&[u8]) -> bool) -> Result<bool> {
        let mut get = self.0.prepare_cached("select row from names where id = ? order by part")?;
        let mut rows = get.query([number(id.0)])?;
        while let Some(row) = rows.next()? {
            if !row.get_ref(0)?.as_blob().is_ok_and(&mut take) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn set_names(&self, id: ObjectId, part: u64, row: Option<&[u8]>) -> Result<()> {
        match row {
            Some(row) => {
                let mut set = self.0.prepare_cached("insert or replace into names values (?, ?, ?)")?;
                set.execute(params![number(id.0), number(part), row]).map(drop)
            }
            None => {
                let mut remove = self.0.prepare_cached("delete from names where id = ? and part = ?")?;
                remove.execute([number(id.0), number(part)]).map(drop)
            }
        }
    }

    pub(super) fn remove_names(&self, id: ObjectId) -> Result<()> {
        self.0.prepare_cached("delete from names where id = ?")?.execute([number(id.0)]).map(drop)
    }

    pub(super) fn data(&self, id: ObjectId) -> Result<Option<Vec<u8>>> {
        self.row("select row from data where id = ?", id)
    }

    pub(super) fn all_data(&self) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let mut get = self.0.prepare_cached("select id, row from data")?;
        get.query_map([], |row| Ok((ObjectId(row.get::<_, i64>(0)?.cast_unsigned()), row.get(1)?)))?.collect()
    }

    pub(super) fn set_data(&self, id: ObjectId, row: &[u8]) -> Result<()> {
        let mut set = self.0.prepare_cached("insert or replace into data values (?, ?)")?;
        set.execute(params![number(id.0), row]).map(drop)
    }

    /// Removes the rows of a data file of this generation; those of another generation stay.
    pub(super) fn remove_data(&self, id: ObjectId, generation: u64) -> Result<()> {
        let both = [number(id.0), number(generation)];
        self.0.prepare_cached("delete from blocks where id = ? and generation = ?")?.execute(both)?;
        let row = self.data(id)?.and_then(|row| super::rows::DataRow::decoded(&row));
        if row.is_none_or(|row| row.generation == generation) {
            self.0.prepare_cached("delete from data where id = ?")?.execute([number(id.0)])?;
        }
        Ok(())
    }

    pub(super) fn sums(&self, id: ObjectId, generation: u64, chunk: u64) -> Result<Option<Vec<u8>>> {
        let get = "select sums from blocks where id = ? and generation = ? and chunk = ?";
        let mut get = self.0.prepare_cached(get)?;
        get.query_row([number(id.0), number(generation), number(chunk)], |row| row.get(0)).optional()
    }

    /// Returns all rows of checksums of a data file, with the numbers of their chunks.
    pub(super) fn chunks(&self, id: ObjectId, generation: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let get = "select chunk, sums from blocks where id = ? and generation = ?";
        let mut get = self.0.prepare_cached(get)?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?));
        get.query_map([number(id.0), number(generation)], row)?.collect()
    }

    pub(super) fn set_sums(&self, id: ObjectId, generation: u64, chunk: u64, sums: &[u8]) -> Result<()> {
        let mut set = self.0.prepare_cached("insert or replace into blocks values (?, ?, ?, ?)")?;
        set.execute(params![number(id.0), number(generation), number(chunk), sums]).map(drop)
    }

    /// Returns the rows of up to `count` objects with higher numbers than this one, in order.
    pub(super) fn objects_after(&self, id: ObjectId, count: u32) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let mut get =
            self.0.prepare_cached("select id, row from objects where id > ? order by id limit ?")?;
        let row =
            |row: &rusqlite::Row<'_>| Ok((ObjectId(row.get::<_, i64>(0)?.cast_unsigned()), row.get(1)?));
        get.query_map([number(id.0), count.into()], row)?.collect()
    }

    /// Removes an object and its names.
    pub(super) fn remove_object(&self, id: ObjectId) -> Result<()> {
        self.0.prepare_cached("delete from objects where id = ?")?.execute([number(id.0)])?;
        self.remove_names(id)
    }

    /// Removes a handle, if it leads to this object.
    pub(super) fn remove_handle(&self, handle: &[u8], id: ObjectId) -> Result<()> {
        let mut remove = self.0.prepare_cached("delete from handles where handle = ? and id = ?")?;
        remove.execute(params![handle, number(id.0)]).map(drop)
    }

    pub(super) fn is_empty(&self) -> Result<bool> {
        self.0.prepare_cached("select 1 from objects limit 1")?.exists([]).map(|any| !any)
    }

    /// Returns the number of bytes of the file that are in use.
    pub(super) fn used_bytes(&self) -> Result<u64> {
        let get = "select (page_count - freelist_count) * page_size
            from pragma_page_count, pragma_freelist_count, pragma_page_size";
        self.0.prepare_cached(get)?.query_row([], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
    }

    /// Returns the unused part of the file to the file system.
    pub(super) fn shrink(&self) -> Result<()> {
        self.0.execute_batch("vacuum; pragma wal_checkpoint(truncate);")
    }

    pub(super) fn has_names(&self, id: ObjectId) -> Result<bool> {
        self.0.prepare_cached("select 1 from names where id = ? limit 1")?.exists([number(id.0)])
    }

    /// Returns `true` if it is recorded that rows must not be removed.
    pub(super) fn keeps_rows(&self) -> Result<bool> {
        self.0.query_row("pragma user_version", [], |row| row.get(0))
    }

    pub(super) fn set_keeps_rows(&self) -> Result<()> {
        self.0.execute_batch("pragma user_version = 1")
    }

    pub(super) fn count(&self, table: &str) -> Result<u64> {
        self.0
            .query_row(&format!("select count(*) from {table}"), [], |row| row.get::<_, i64>(0))
            .map(i64::cast_unsigned)
    }

    fn row(&self, get: &str, id: ObjectId) -> Result<Option<Vec<u8>>> {
        self.0.prepare_cached(get)?.query_row([number(id.0)], |row| row.get(0)).optional()
    }
}

fn number(value: u64) -> i64 {
    value.cast_signed()
}

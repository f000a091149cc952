//! Checksums of unsent data, by blocks of the files that contain them.
//!
//! A block that fails its checksum was being overwritten when the process or system ended suddenly, or the
//! disk is faulty. As the only copy, it is read as found, sent to the origin, and reported.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rusqlite::{Connection, params};
use tombolo_core::Result;

use crate::data_file::{DataFile, DataFiles};
use crate::extents::Extents;

pub(crate) const TABLE: &str = "
    create table if not exists sums (generation integer, block integer, start integer, end integer, sum integer,
        primary key (generation, block)) without rowid;
";

/// Length of a checksummed block, in bytes.
const BLOCK_BYTES: u64 = 64 << 10;

/// Key of a block: the generation of its file, and its number.
pub(crate) type Key = (u64, u64);

/// Written blocks, with the span of the data in each.
#[derive(Debug, Default)]
pub(crate) struct Blocks(HashMap<Key, (Arc<DataFile>, Range<u64>)>);

/// Checksums of spans of blocks.
pub(crate) type Sums = Vec<(Key, Range<u64>, u32)>;

impl Blocks {
    /// Returns the blocks of a range within the extents of its file.
    pub(crate) fn of(file: &Arc<DataFile>, extents: &Extents, range: &Range<u64>) -> Self {
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let span = |block| extents.span(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
        Self(blocks.map(|block| ((file.generation, block), (file.clone(), span(block)))).collect())
    }

    pub(crate) fn absorb(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    pub(crate) fn has(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Merges the blocks of an earlier group, except those that this one has.
    pub(crate) fn absorb_earlier(&mut self, earlier: &Self) {
        for (key, file, span) in earlier.iter() {
            if !self.has(key) {
                self.insert(*key, file, span);
            }
        }
    }

    pub(crate) fn insert(&mut self, key: Key, file: &Arc<DataFile>, span: &Range<u64>) {
        self.0.insert(key, (file.clone(), span.clone()));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Arc<DataFile>, &Range<u64>)> {
        self.0.iter().map(|(key, (file, span))| (key, file, span))
    }

    pub(crate) fn write_again(&self) -> Result<()> {
        self.0.values().try_for_each(|(file, span)| file.write_again(span.clone()))
    }

    /// Returns the checksums: those in `before` for blocks that it contains, otherwise the current ones,
    /// which are added to `before`.
    pub(crate) fn sums(&self, before: &mut HashMap<Key, u32>) -> Result<Sums> {
        let sum = |(key, (file, span)): (&Key, &(Arc<DataFile>, Range<u64>))| {
            let now = file.sum(span.clone())?;
            let first = *before.entry(*key).or_insert(now);
            if first != now {
                tracing::error!(
                    generation = key.0,
                    ?span,
                    "the local disk failed to write data, which are lost"
                );
            }
            Ok((*key, span.clone(), first))
        };
        self.0.iter().map(sum).collect()
    }
}

pub(crate) fn keep(database: &Connection, sums: &Sums) -> rusqlite::Result<()> {
    let mut set = database.prepare_cached("insert or replace into sums values (?, ?, ?, ?, ?)")?;
    for ((generation, block), span, sum) in sums {
        let [generation, block, start, end] =
            [*generation, *block, span.start, span.end].map(u64::cast_signed);
        set.execute(params![generation, block, start, end, sum])?;
    }
    Ok(())
}

/// Returns the spans that fail their checksums, by generation.
pub(crate) fn torn(
    database: &Connection,
    files: &Arc<DataFiles>,
    is_known: impl Fn(u64) -> bool,
) -> rusqlite::Result<HashMap<u64, Vec<Range<u64>>>> {
    let mut torn: HashMap<_, Vec<_>> = HashMap::new();
    let mut get =
        database.prepare("select generation, start, end, sum from sums order by generation, block")?;
    let rows = get.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    let mut file: Option<Arc<DataFile>> = None;
    for row in rows {
        let (generation, start, end, sum): (i64, i64, i64, u32) = row?;
        let (generation, span) = (generation.cast_unsigned(), start.cast_unsigned()..end.cast_unsigned());
        if !is_known(generation) {
            continue;
        }
        let file = match &file {
            Some(file) if file.generation == generation => file,
            _ => file.insert(files.file(generation)),
        };
        if file.sum(span.clone()).ok() != Some(sum) {
            torn.entry(generation).or_default().push(span);
        }
    }
    Ok(torn)
}

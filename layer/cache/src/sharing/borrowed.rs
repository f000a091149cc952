//! Data lent by the owner of another cache: a descriptor of a data file, and the extents cached in it.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::{Result, lock};
use tombolo_mem::Sink;

use super::borrower::Loan;
use super::extents::Extents;
use crate::data::Data;
use crate::store::{read_now, read_waiting};

/// Borrowed data of one version of a file.
#[derive(Debug)]
pub(crate) struct Borrowed {
    loan: Arc<Loan>,
    extents: Mutex<Extents>,
    is_used: AtomicBool,
}

impl Borrowed {
    pub(super) fn new(loan: Arc<Loan>) -> Self {
        Self { loan, extents: Mutex::default(), is_used: AtomicBool::new(true) }
    }

    /// Returns `true` while the owner is connected.
    pub(crate) fn holds(&self) -> bool {
        self.loan.holds()
    }

    /// Returns the generation of the owner's data file ([`DataFile::generation`](crate::store::DataFile)).
    pub(super) fn generation(&self) -> u64 {
        self.loan.generation
    }

    /// Adds extents, and returns the number of new bytes.
    pub(super) fn add(&self, extents: &[Range<u64>]) -> u64 {
        let mut all = lock(&self.extents);
        extents.iter().map(|extent| all.add(extent.clone())).sum()
    }

    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        lock(&self.extents).from(range.start).is_some_and(|(end, is_there)| is_there && end >= range.end)
    }

    /// Returns `true` if the data were read through their descriptor since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }

    fn file(&self) -> &File {
        self.is_used.store(true, Ordering::Relaxed);
        &self.loan.file
    }
}

/// Reads of cached data: from borrowed data where these cover the range, otherwise from the cache's own file.
impl Data {
    /// Reads verified data from the page cache, without blocking where the file system supports that. Returns
    /// `None` if they are not verified or not in the page cache.
    pub(crate) fn read_at_once(&self, offset: u64, into: &Sink) -> Result<Option<usize>> {
        let range = offset..offset.saturating_add(into.len() as u64);
        match self.borrowed().filter(|borrowed| borrowed.covers(&range)) {
            Some(borrowed) => read_now(borrowed.file(), offset, into),
            None => self.file.read_at_once(offset, into),
        }
    }

    /// Reads cached data, waiting for the disk. Returns less if a block is damaged or a borrowed file short.
    pub(crate) fn read(&self, offset: u64, into: &Sink) -> Result<usize> {
        let Some(borrowed) = self.borrowed() else { return self.file.read(offset, into) };
        let (mut rest, mut done) = (into.clone(), 0);
        while !rest.is_empty() {
            let at = offset + done as u64;
            let (end, is_lent) = lock(&borrowed.extents).from(at).unwrap_or((u64::MAX, false));
            let mut piece = rest.clone();
            piece.truncate(usize::try_from(end - at).unwrap_or(usize::MAX));
            let count = match is_lent {
                true => read_waiting(borrowed.file(), at, &piece)?,
                false => self.file.read(at, &piece)?,
            };
            if count < piece.len() {
                if is_lent {
                    tracing::warn!("borrowed data end too early: reading them from the origin");
                    self.give_back();
                }
                break;
            }
            done += count;
            rest.advance(count);
        }
        Ok(done)
    }
}
